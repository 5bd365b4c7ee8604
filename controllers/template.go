package controllers

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/utils/ptr"

	"shardedjob.dev/api/v1alpha1"
)

const (
	planVolume     = "shardedjob-plan"
	databaseVolume = "shardedjob-database"
	caVolume       = "shardedjob-ca"
	tokenVolume    = "shardedjob-token"

	// tokenMountPath is where client libraries look for a service account.
	tokenMountPath = "/var/run/secrets/kubernetes.io/serviceaccount"
	// tokenSeconds is what the kubelet itself asks for; it renews the token long before.
	tokenSeconds = 3607
)

// templateInputs is all that the pod template is made from, apart from the operator's own image. It holds nothing that
// changes with the number of slots or the plan.
type templateInputs struct {
	Template     *corev1.PodTemplateSpec `json:"template,omitempty"`
	Database     v1alpha1.DatabaseSpec   `json:"database"`
	GraceSeconds int64                   `json:"graceSeconds"`
	Upgrade      string                  `json:"upgrade,omitempty"`
}

// inputsHash names the inputs of the job's pod template. While it stays the same, the template does too, whatever
// operator runs.
func inputsHash(job *v1alpha1.ShardedJob) (string, error) {
	raw, err := json.Marshal(templateInputs{
		Template:     job.Spec.Template,
		Database:     job.Spec.Database,
		GraceSeconds: graceSeconds(job),
		Upgrade:      job.Annotations[v1alpha1.AnnotationUpgradeWorkers],
	})
	if err != nil {
		return "", fmt.Errorf("encode the inputs of the pod template: %w", err)
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:8]), nil
}

// graceSeconds leaves a worker the time to finish its batch and let go, and a little more.
func graceSeconds(job *v1alpha1.ShardedJob) int64 { return int64(job.Spec.HandoverSeconds()) + 10 }

// PodTemplate is the template of the worker pods: ours, with the user's merged over it. An error means that the
// user's cannot be merged, and says why.
func PodTemplate(job *v1alpha1.ShardedJob, image string) (corev1.PodTemplateSpec, error) {
	ours := ownTemplate(job, image)
	if job.Spec.Template == nil {
		return ours, nil
	}
	merged, err := mergeTemplate(ours, *job.Spec.Template)
	if err != nil {
		return corev1.PodTemplateSpec{}, fmt.Errorf("spec.template cannot be merged: %w", err)
	}
	// What selects the pods and tells them who they are is not the user's to change.
	if merged.Labels == nil {
		merged.Labels = map[string]string{}
	}
	maps.Copy(merged.Labels, ours.Labels)
	for i := range merged.Spec.Containers {
		if c := &merged.Spec.Containers[i]; c.Name == v1alpha1.WorkerContainer {
			c.Env = mergeEnv(c.Env, ours.Spec.Containers[0].Env)
		}
	}
	return merged, nil
}

func ownTemplate(job *v1alpha1.ShardedJob, image string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{
			Labels:      labelsOf(job.Name),
			Annotations: map[string]string{"kubectl.kubernetes.io/default-container": v1alpha1.WorkerContainer},
		},
		Spec: corev1.PodSpec{
			ServiceAccountName:            v1alpha1.WorkerName(job.Name),
			AutomountServiceAccountToken:  ptr.To(false),
			EnableServiceLinks:            ptr.To(false),
			TerminationGracePeriodSeconds: ptr.To(graceSeconds(job)),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot:   ptr.To(true),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{workerContainer(job, image)},
			Volumes:    volumes(job),
		},
	}
}

func workerContainer(job *v1alpha1.ShardedJob, image string) corev1.Container {
	mounts := []corev1.VolumeMount{
		{Name: planVolume, MountPath: v1alpha1.PlanMountPath, ReadOnly: true},
		{Name: databaseVolume, MountPath: v1alpha1.DatabaseMountPath, ReadOnly: true},
		{Name: tokenVolume, MountPath: tokenMountPath, ReadOnly: true},
	}
	if job.Spec.Database.CASecretName != "" {
		mounts = append(mounts, corev1.VolumeMount{Name: caVolume, MountPath: v1alpha1.CAMountPath, ReadOnly: true})
	}
	return corev1.Container{
		Name:    v1alpha1.WorkerContainer,
		Image:   image,
		Command: []string{"/worker"},
		Env:     workerEnv(job),
		Ports:   []corev1.ContainerPort{{Name: "http", ContainerPort: v1alpha1.WorkerPort, Protocol: corev1.ProtocolTCP}},
		// No liveness probe: a worker that waits for the database is alive, and a restart would cost it its session.
		ReadinessProbe: &corev1.Probe{
			ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
				Path: "/readyz", Port: intstr.FromInt32(v1alpha1.WorkerPort), Scheme: corev1.URISchemeHTTP,
			}},
			PeriodSeconds: 2,
		},
		// No limit on the processor: throttling in the middle of a batch lengthens every hand-over.
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{
				corev1.ResourceCPU:    resource.MustParse("50m"),
				corev1.ResourceMemory: resource.MustParse("64Mi"),
			},
			Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("256Mi")},
		},
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: ptr.To(false),
			ReadOnlyRootFilesystem:   ptr.To(true),
			Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
		VolumeMounts: mounts,
	}
}

func workerEnv(job *v1alpha1.ShardedJob) []corev1.EnvVar {
	field := func(name, path string) corev1.EnvVar {
		return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{
			FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path},
		}}
	}
	return []corev1.EnvVar{
		field(v1alpha1.EnvPodName, "metadata.name"),
		field(v1alpha1.EnvPodUID, "metadata.uid"),
		field(v1alpha1.EnvPodNamespace, "metadata.namespace"),
		{Name: v1alpha1.EnvJobName, Value: job.Name},
		{Name: v1alpha1.EnvJobUID, Value: string(job.UID)},
		{Name: v1alpha1.EnvURIKey, Value: job.Spec.Database.URIKey},
	}
}

// volumes are the plan and the Secrets, all optional: what is missing becomes a sentence in status, not a pod stuck
// in ContainerCreating. The token is a volume of its own so that only the worker container mounts it.
func volumes(job *v1alpha1.ShardedJob) []corev1.Volume {
	secret := func(volume, name string) corev1.Volume {
		return corev1.Volume{Name: volume, VolumeSource: corev1.VolumeSource{
			Secret: &corev1.SecretVolumeSource{SecretName: name, Optional: ptr.To(true)},
		}}
	}
	configMap := func(name string) corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: name} }
	all := []corev1.Volume{
		{Name: planVolume, VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: configMap(v1alpha1.PlanName(job.Name)), Optional: ptr.To(true),
		}}},
		secret(databaseVolume, job.Spec.Database.SecretName),
		{Name: tokenVolume, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			Sources: []corev1.VolumeProjection{
				{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: ptr.To[int64](tokenSeconds)}},
				{ConfigMap: &corev1.ConfigMapProjection{
					LocalObjectReference: configMap("kube-root-ca.crt"),
					Items:                []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}},
				}},
				{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{
					Path: "namespace", FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.namespace"},
				}}}},
			},
		}}},
	}
	if name := job.Spec.Database.CASecretName; name != "" {
		all = append(all, secret(caVolume, name))
	}
	return all
}

// mergeTemplate merges the user's template over ours the way kubectl patch does.
func mergeTemplate(ours, users corev1.PodTemplateSpec) (corev1.PodTemplateSpec, error) {
	original, err := json.Marshal(ours)
	if err != nil {
		return corev1.PodTemplateSpec{}, err
	}
	patch, err := json.Marshal(users)
	if err != nil {
		return corev1.PodTemplateSpec{}, err
	}
	// A list that the user left out is encoded as null, which in a patch would mean: remove ours.
	var sparse map[string]any
	if err := json.Unmarshal(patch, &sparse); err != nil {
		return corev1.PodTemplateSpec{}, err
	}
	dropNulls(sparse)
	if patch, err = json.Marshal(sparse); err != nil {
		return corev1.PodTemplateSpec{}, err
	}
	merged, err := strategicpatch.StrategicMergePatch(original, patch, corev1.PodTemplateSpec{})
	if err != nil {
		return corev1.PodTemplateSpec{}, err
	}
	var template corev1.PodTemplateSpec
	if err := json.Unmarshal(merged, &template); err != nil {
		return corev1.PodTemplateSpec{}, err
	}
	return template, nil
}

func dropNulls(value any) {
	switch v := value.(type) {
	case map[string]any:
		for key, child := range v {
			if child == nil {
				delete(v, key)
				continue
			}
			dropNulls(child)
		}
	case []any:
		for _, child := range v {
			dropNulls(child)
		}
	}
}

// mergeEnv puts fixed before all of env that has another name, so that the user's variables may refer to ours.
func mergeEnv(env, fixed []corev1.EnvVar) []corev1.EnvVar {
	names := map[string]bool{}
	for _, e := range fixed {
		names[e.Name] = true
	}
	merged := append([]corev1.EnvVar{}, fixed...)
	for _, e := range env {
		if !names[e.Name] {
			merged = append(merged, e)
		}
	}
	return merged
}
