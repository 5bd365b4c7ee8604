package controllers

import (
	"encoding/json"
	"fmt"
	"reflect"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"shardedjob.dev/api/v1alpha1"
)

const (
	// annotationInputs, on the StatefulSet itself, names the inputs that annotationTemplate was made from. Neither is
	// in the pod template, so neither restarts a pod.
	annotationInputs = "shardedjob.dev/inputs"
	// annotationTemplate is the pod template as it was made then. An operator with another image, or another way of
	// making templates, leaves running pods alone by keeping to it.
	annotationTemplate = "shardedjob.dev/applied-template"
	// annotationPublished, on the plan ConfigMap, is when its epoch was published (RFC 3339).
	annotationPublished = "shardedjob.dev/published"
)

func labelsOf(job string) map[string]string {
	return map[string]string{
		v1alpha1.LabelJob:              job,
		"app.kubernetes.io/name":       "shardedjob",
		"app.kubernetes.io/instance":   job,
		"app.kubernetes.io/managed-by": "shardedjob-controller",
	}
}

func childMeta(job *v1alpha1.ShardedJob, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name:      name,
		Namespace: job.Namespace,
		Labels:    labelsOf(job.Name),
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion:         v1alpha1.GroupVersion.String(),
			Kind:               jobKind,
			Name:               job.Name,
			UID:                job.UID,
			Controller:         ptr.To(true),
			BlockOwnerDeletion: ptr.To(true),
		}},
	}
}

// jobKind is the kind that owns all children.
const jobKind = "ShardedJob"

// StatefulSet is the job's StatefulSet with the given number of pods. live is the one that exists, or nil; its
// recorded pod template is kept while the inputs of the template are the same.
func StatefulSet(job *v1alpha1.ShardedJob, live *appsv1.StatefulSet, image string, replicas int32) (*appsv1.StatefulSet, error) {
	hash, err := inputsHash(job)
	if err != nil {
		return nil, err
	}
	template, ok := recordedTemplate(live, hash)
	if !ok {
		if template, err = PodTemplate(job, image); err != nil {
			return nil, err
		}
	}
	return assembleSet(job, hash, template, replicas)
}

// resizedSet is the StatefulSet as it was applied last, with another number of pods.
func resizedSet(job *v1alpha1.ShardedJob, live *appsv1.StatefulSet, replicas int32) (*appsv1.StatefulSet, error) {
	hash := live.Annotations[annotationInputs]
	template, ok := recordedTemplate(live, hash)
	if !ok {
		return nil, fmt.Errorf("StatefulSet %s does not record its pod template", live.Name)
	}
	return assembleSet(job, hash, template, replicas)
}

func assembleSet(job *v1alpha1.ShardedJob, hash string, template corev1.PodTemplateSpec, replicas int32) (*appsv1.StatefulSet, error) {
	recorded, err := json.Marshal(template)
	if err != nil {
		return nil, fmt.Errorf("encode the pod template: %w", err)
	}
	meta := childMeta(job, job.Name)
	meta.Annotations = map[string]string{annotationInputs: hash, annotationTemplate: string(recorded)}
	return &appsv1.StatefulSet{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "StatefulSet"},
		ObjectMeta: meta,
		Spec: appsv1.StatefulSetSpec{
			Replicas:            &replicas,
			Selector:            &metav1.LabelSelector{MatchLabels: map[string]string{v1alpha1.LabelJob: job.Name}},
			PodManagementPolicy: appsv1.ParallelPodManagement,
			UpdateStrategy:      appsv1.StatefulSetUpdateStrategy{Type: appsv1.RollingUpdateStatefulSetStrategyType},
			Template:            template,
		},
	}, nil
}

func recordedTemplate(live *appsv1.StatefulSet, hash string) (corev1.PodTemplateSpec, bool) {
	var template corev1.PodTemplateSpec
	if live == nil || live.Annotations[annotationInputs] != hash {
		return template, false
	}
	err := json.Unmarshal([]byte(live.Annotations[annotationTemplate]), &template)
	return template, err == nil
}

// setDrifted says whether live lacks something that desired sets, replicas aside. What others add, such as
// defaults, is no drift.
func setDrifted(desired, live *appsv1.StatefulSet) bool {
	for key, value := range desired.Annotations {
		if live.Annotations[key] != value {
			return true
		}
	}
	want := desired.Spec.DeepCopy()
	want.Replicas = nil
	return metaDrifted(desired, live) || !covers(live.Spec, *want)
}

// covers says whether all that desired sets, as it would be sent, is found in live. (equality.Semantic.DeepDerivative
// does not do: to it a number that is left out, and so gets a default, is a 0 that was asked for.)
func covers(live, desired appsv1.StatefulSetSpec) bool {
	is, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&live)
	if err != nil {
		return false
	}
	want, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&desired)
	if err != nil {
		return false
	}
	return contains(is, want)
}

func contains(live, desired any) bool {
	switch want := desired.(type) {
	case nil:
		return true
	case map[string]any:
		is, _ := live.(map[string]any)
		for key, value := range want {
			if !contains(is[key], value) {
				return false
			}
		}
		return true
	case []any:
		is, _ := live.([]any)
		if len(want) > len(is) {
			return false
		}
		for i := range want {
			if !contains(is[i], want[i]) {
				return false
			}
		}
		return true
	default:
		return reflect.DeepEqual(live, desired)
	}
}

// metaDrifted says whether live lacks a label or the owner reference of desired.
func metaDrifted(desired, live client.Object) bool {
	return !equality.Semantic.DeepDerivative(desired.GetLabels(), live.GetLabels()) ||
		!equality.Semantic.DeepDerivative(desired.GetOwnerReferences(), live.GetOwnerReferences())
}

// planConfigMap is the plan ConfigMap. It changes only when the plan does.
func planConfigMap(job *v1alpha1.ShardedJob, plan v1alpha1.Plan, published time.Time) (*corev1.ConfigMap, error) {
	data, err := v1alpha1.EncodePlan(plan)
	if err != nil {
		return nil, err
	}
	meta := childMeta(job, v1alpha1.PlanName(job.Name))
	meta.Annotations = map[string]string{annotationPublished: published.UTC().Format(time.RFC3339)}
	return &corev1.ConfigMap{ObjectMeta: meta, Data: data}, nil
}

// workerChildren are what the workers need beside the plan: an account that may read the one plan and write the
// one report, and the report, empty, which from then on only workers fill.
func workerChildren(job *v1alpha1.ShardedJob) []client.Object {
	name := v1alpha1.WorkerName(job.Name)
	return []client.Object{
		&corev1.ServiceAccount{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"},
			ObjectMeta: childMeta(job, name),
		},
		&rbacv1.Role{
			TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "Role"},
			ObjectMeta: childMeta(job, name),
			Rules: []rbacv1.PolicyRule{
				{
					APIGroups: []string{""}, Resources: []string{"configmaps"},
					ResourceNames: []string{v1alpha1.PlanName(job.Name)}, Verbs: []string{"get", "list", "watch"},
				},
				{
					APIGroups: []string{""}, Resources: []string{"configmaps"},
					ResourceNames: []string{v1alpha1.ReportName(job.Name)}, Verbs: []string{"get", "patch"},
				},
			},
		},
		&rbacv1.RoleBinding{
			TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "RoleBinding"},
			ObjectMeta: childMeta(job, name),
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: workerAccount(job), Namespace: job.Namespace}},
		},
		&corev1.ConfigMap{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
			ObjectMeta: childMeta(job, v1alpha1.ReportName(job.Name)),
		},
	}
}

// workerAccount is the account that the pods run as: ours, unless the user's template names another, which then gets
// the workers' permissions too.
func workerAccount(job *v1alpha1.ShardedJob) string {
	if t := job.Spec.Template; t != nil && t.Spec.ServiceAccountName != "" {
		return t.Spec.ServiceAccountName
	}
	return v1alpha1.WorkerName(job.Name)
}

// childDrifted says whether live, one of the workerChildren, differs from desired in what is ours.
func childDrifted(desired, live client.Object) bool {
	if metaDrifted(desired, live) {
		return true
	}
	switch want := desired.(type) {
	case *rbacv1.Role:
		return !equality.Semantic.DeepEqual(want.Rules, live.(*rbacv1.Role).Rules)
	case *rbacv1.RoleBinding:
		return !equality.Semantic.DeepEqual(want.Subjects, live.(*rbacv1.RoleBinding).Subjects)
	default:
		return false
	}
}
