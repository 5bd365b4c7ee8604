package controllers

import (
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"shardedjob.dev/api/v1alpha1"
)

func exampleJob() *v1alpha1.ShardedJob {
	return &v1alpha1.ShardedJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "images", UID: "uid", Generation: 1},
		Spec: v1alpha1.ShardedJobSpec{
			Replicas: ptr.To[int32](2),
			Database: v1alpha1.DatabaseSpec{SecretName: "app-db", URIKey: "uri"},
			Batch:    v1alpha1.BatchSpec{Rows: 500, TimeoutSeconds: 20},
			Process:  v1alpha1.ProcessSpec{SQL: &v1alpha1.SQLProcess{Statement: "SELECT $1"}},
		},
	}
}

func TestTheUsersTemplateIsMergedOverOurs(t *testing.T) {
	g := NewWithT(t)
	job := exampleJob()
	job.Spec.Template = &corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"team": "media", v1alpha1.LabelJob: "other"}},
		Spec: corev1.PodSpec{
			NodeSelector: map[string]string{"disk": "ssd"},
			Containers: []corev1.Container{
				{Name: "app", Image: "app:1"},
				{Name: v1alpha1.WorkerContainer, Env: []corev1.EnvVar{{Name: "LOG", Value: "debug"}, {Name: v1alpha1.EnvJobUID, Value: "false"}}},
			},
		},
	}
	template, err := PodTemplate(job, "worker:1")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(template.Labels).To(And(HaveKeyWithValue("team", "media"), HaveKeyWithValue(v1alpha1.LabelJob, "images")))
	g.Expect(template.Spec.NodeSelector).To(HaveKeyWithValue("disk", "ssd"))
	g.Expect(template.Spec.Containers).To(HaveLen(2))
	for _, c := range template.Spec.Containers {
		mounted := false
		for _, m := range c.VolumeMounts {
			mounted = mounted || m.MountPath == tokenMountPath
		}
		g.Expect(mounted).To(Equal(c.Name == v1alpha1.WorkerContainer), "only the worker container has the token")
		if c.Name == v1alpha1.WorkerContainer {
			g.Expect(c.Image).To(Equal("worker:1"))
			g.Expect(c.Command).To(Equal([]string{"/worker"}))
			g.Expect(c.Env).To(ContainElements(corev1.EnvVar{Name: v1alpha1.EnvJobUID, Value: "uid"}, corev1.EnvVar{Name: "LOG", Value: "debug"}))
		}
	}
}

func TestTheTemplateChangesOnlyWithItsInputs(t *testing.T) {
	job := exampleJob()
	live, err := StatefulSet(job, nil, "worker:1", 2)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*v1alpha1.ShardedJob)
		image  string
	}{
		"nothing":            {func(*v1alpha1.ShardedJob) {}, "worker:1"},
		"replicas":           {func(j *v1alpha1.ShardedJob) { j.Spec.Replicas = ptr.To[int32](9) }, "worker:1"},
		"the statement":      {func(j *v1alpha1.ShardedJob) { j.Spec.Process.SQL.Statement = "SELECT 1, $1" }, "worker:1"},
		"rows of a batch":    {func(j *v1alpha1.ShardedJob) { j.Spec.Batch.Rows = 7 }, "worker:1"},
		"labels":             {func(j *v1alpha1.ShardedJob) { j.Labels = map[string]string{"a": "b"} }, "worker:1"},
		"the Secret":         {func(j *v1alpha1.ShardedJob) { j.Spec.Database.SecretName = "other" }, "worker:2"},
		"the grace period":   {func(j *v1alpha1.ShardedJob) { j.Spec.Fence.HandoverSeconds = ptr.To[int32](99) }, "worker:2"},
		"the key of the URI": {func(j *v1alpha1.ShardedJob) { j.Spec.Database.URIKey = "other" }, "worker:2"},
		"the time of a batch": {func(j *v1alpha1.ShardedJob) {
			j.Spec.Fence.HandoverSeconds, j.Spec.Batch.TimeoutSeconds = nil, 99
		}, "worker:2"},
		"the time of a batch within the same hand-over": {func(j *v1alpha1.ShardedJob) {
			j.Spec.Fence.HandoverSeconds = ptr.To(j.Spec.HandoverSeconds())
			j.Spec.Batch.TimeoutSeconds--
		}, "worker:1"},
		"upgrade-workers": {func(j *v1alpha1.ShardedJob) {
			j.Annotations = map[string]string{v1alpha1.AnnotationUpgradeWorkers: "1"}
		}, "worker:2"},
		"the template": {func(j *v1alpha1.ShardedJob) {
			j.Spec.Template = &corev1.PodTemplateSpec{Spec: corev1.PodSpec{PriorityClassName: "low"}}
		}, "worker:2"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			changed := job.DeepCopy()
			c.change(changed)
			set, err := StatefulSet(changed, live, "worker:2", 2)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(set.Spec.Template.Spec.Containers[0].Image).To(Equal(c.image))
			g.Expect(setDrifted(set, live)).To(Equal(c.image == "worker:2"))
		})
	}
}

func TestDefaultsAreNoDriftAndHandMadeChangesAre(t *testing.T) {
	g := NewWithT(t)
	job := exampleJob()
	desired, err := StatefulSet(job, nil, "worker:1", 2)
	g.Expect(err).NotTo(HaveOccurred())
	for name, c := range map[string]struct {
		change func(*appsv1.StatefulSet)
		drift  bool
	}{
		"a default":        {func(s *appsv1.StatefulSet) { s.Spec.Template.Spec.Containers[0].ReadinessProbe.FailureThreshold = 3 }, false},
		"another replicas": {func(s *appsv1.StatefulSet) { s.Spec.Replicas = ptr.To[int32](9) }, false},
		"another image":    {func(s *appsv1.StatefulSet) { s.Spec.Template.Spec.Containers[0].Image = "mine" }, true},
		"a label less":     {func(s *appsv1.StatefulSet) { delete(s.Labels, v1alpha1.LabelJob) }, true},
		"a record less":    {func(s *appsv1.StatefulSet) { delete(s.Annotations, annotationTemplate) }, true},
	} {
		live := desired.DeepCopy()
		c.change(live)
		g.Expect(setDrifted(desired, live)).To(Equal(c.drift), name)
	}
}

func TestOrdinals(t *testing.T) {
	for pod, want := range map[string]int32{
		"images-0": 0, "images-12": 12, "images-": -1, "images-01": -1, "images--1": -1, "images-x": -1, "other-1": -1, "images-99999999999": -1,
	} {
		got, ok := ordinalOf("images", pod)
		if ok != (want >= 0) || ok && got != want {
			t.Errorf("%s: got %d, %t", pod, got, ok)
		}
	}
}
