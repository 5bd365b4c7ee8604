package controllers

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"shardedjob.dev/api/v1alpha1"
)

func TestForeignObjectsAreLeftAloneAndNamed(t *testing.T) {
	p := newPlace(t)
	foreign := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: "images-plan"}, Data: map[string]string{"mine": "yes"}}
	p.Expect(p.client.Create(p.ctx, foreign)).To(Succeed())
	p.create("images", 2)
	p.Eventually(p.condition("images", v1alpha1.ConditionStalled)).Should(Equal(
		"True NameTaken: ConfigMap images-plan exists and does not belong to this ShardedJob: delete it, or give the ShardedJob another name"))
	p.Expect(p.condition("images", v1alpha1.ConditionReady)()).To(HavePrefix("False Stalled: ConfigMap images-plan"))
	var live corev1.ConfigMap
	p.Expect(p.get(&live, "images-plan")).To(Succeed())
	p.Expect(live.ResourceVersion).To(Equal(foreign.ResourceVersion))
	p.Expect(p.uids("images")).To(BeEmpty())
	p.Expect(p.client.Delete(p.ctx, foreign)).To(Succeed())
	p.awaitReady("images", 2)
}

func TestLeftoversOfADeletedJobAreWaitedFor(t *testing.T) {
	p := newPlace(t)
	gone := p.create("images", 1)
	p.awaitReady("images", 1)
	// A finalizer keeps a leftover for as long as the test wants.
	hold := func(finalizers string) {
		plan := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: "images-plan"}}
		patch := fmt.Sprintf(`{"metadata":{"finalizers":%s}}`, finalizers)
		p.Expect(p.client.Patch(p.ctx, plan, client.RawPatch(types.MergePatchType, []byte(patch)))).To(Succeed())
	}
	hold(`["shardedjob.dev/test"]`)
	p.Expect(p.client.Delete(p.ctx, gone)).To(Succeed())
	p.create("images", 2)
	p.Eventually(p.condition("images", v1alpha1.ConditionReady)).Should(Equal(
		"False WaitingForPredecessor: Waiting until what was deleted is gone: ConfigMap images-plan"))
	p.Expect(p.condition("images", v1alpha1.ConditionStalled)()).To(HavePrefix("False Proceeding"))
	hold("null")
	p.awaitReady("images", 2)
	p.Expect(p.plan().Epoch).To(BeEquivalentTo(1))
}

func TestL06QuotaIsQuoted(t *testing.T) {
	p := newPlace(t)
	quota := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: "two"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("2")}},
	}
	p.Expect(p.client.Create(p.ctx, quota)).To(Succeed())
	p.Eventually(func() corev1.ResourceList { _ = p.get(quota, "two"); return quota.Status.Hard }).ShouldNot(BeEmpty())
	p.create("images", 4)
	p.Eventually(p.condition("images", v1alpha1.ConditionReady)).Should(And(
		HavePrefix("False PodsMissing: 2 of 4 pods are ready (pods \"images-"), ContainSubstring("exceeded quota: two, requested: pods=1, used: pods=2, limited: pods=2")))
	p.Expect(p.condition("images", v1alpha1.ConditionStalled)()).To(HavePrefix("True PodsMissing"))
	p.scale(2)
	p.awaitReady("images", 2)
	p.Expect(p.condition("images", v1alpha1.ConditionStalled)()).To(HavePrefix("False Proceeding"))
}

func TestL06PodSecurityIsQuoted(t *testing.T) {
	p := newPlace(t)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: p.namespace}}
	p.Expect(p.client.Patch(p.ctx, namespace, client.RawPatch(types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"restricted"}}}`)))).To(Succeed())
	job := p.job("images", 1)
	job.Spec.Template = &corev1.PodTemplateSpec{Spec: corev1.PodSpec{HostNetwork: true, Containers: []corev1.Container{}}}
	p.Expect(p.client.Create(p.ctx, job)).To(Succeed())
	p.Eventually(p.condition("images", v1alpha1.ConditionStalled)).Should(And(
		HavePrefix("True PodsMissing: 0 of 1 pod is ready"), ContainSubstring(`violates PodSecurity "restricted:latest": host namespaces`)))
	// Without the offense the pods are within the strictest profile.
	p.edit(func(job *v1alpha1.ShardedJob) { job.Spec.Template = nil })
	p.awaitReady("images", 1)
}

func TestARefusedTemplateIsQuotedAndDoesNotKeepTheJobFromBeingPaused(t *testing.T) {
	p := newPlace(t)
	p.create("images", 2)
	p.awaitReady("images", 2)
	p.edit(func(job *v1alpha1.ShardedJob) {
		job.Spec.Template = &corev1.PodTemplateSpec{Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{}}}
	})
	p.Eventually(p.condition("images", v1alpha1.ConditionStalled)).Should(And(
		HavePrefix("True InvalidTemplate"), ContainSubstring("spec.template.spec.restartPolicy: Unsupported value")))
	p.edit(func(job *v1alpha1.ShardedJob) { job.Spec.Suspend = true })
	p.Eventually(func() map[string]string { return p.uids("images") }).Should(BeEmpty())
	p.edit(func(job *v1alpha1.ShardedJob) { job.Spec.Suspend, job.Spec.Template = false, nil })
	p.awaitReady("images", 2)
}

func TestL02BadImageThenGoodImage(t *testing.T) {
	p := newPlace(t)
	p.stuck = func(pod corev1.Pod) string {
		if pod.Spec.Containers[0].Image == "nope:1" {
			return "ImagePullBackOff"
		}
		return ""
	}
	withImage := func(image string) func(*v1alpha1.ShardedJob) {
		return func(job *v1alpha1.ShardedJob) {
			job.Spec.Template = &corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: v1alpha1.WorkerContainer, Image: image}},
			}}
		}
	}
	job := p.job("images", 3)
	withImage("nope:1")(job)
	p.Expect(p.client.Create(p.ctx, job)).To(Succeed())
	p.Eventually(p.condition("images", v1alpha1.ConditionReady)).Should(And(HavePrefix("False PodsMissing: 0 of 3 pods are ready"),
		ContainSubstring("images-2: container worker: ImagePullBackOff: said the kubelet")))
	p.edit(withImage("good:1"))
	p.awaitReady("images", 3)
	p.Expect(p.condition("images", v1alpha1.ConditionStalled)()).To(HavePrefix("False Proceeding"))
}

// TestL06OneOfFivePodsNeverComes: its slot is adopted, and the job scales and ends all the same.
func TestL06OneOfFivePodsNeverComes(t *testing.T) {
	p := newPlace(t)
	p.adopt = true
	p.stuck = func(pod corev1.Pod) string {
		if pod.Name == "images-4" {
			return "ImagePullBackOff"
		}
		return ""
	}
	p.create("images", 5)
	ready, repartitioning := p.condition("images", v1alpha1.ConditionReady), p.condition("images", v1alpha1.ConditionRepartitioning)
	p.Eventually(ready).Should(Equal("False PodsMissing: 4 of 5 pods are ready (images-4: container worker: ImagePullBackOff: said the kubelet); " +
		"4 of 5 slots are held by their own worker, 1 is adopted. Adopted: slot 4 by images-0"))
	p.Expect(repartitioning()).To(HavePrefix("False Steady"))
	p.scale(0)
	p.awaitReady("images", 0)
	p.scale(5)
	p.Eventually(repartitioning).Should(Equal("False Steady: The table is partitioned into 5 slots"))
	p.Eventually(ready).Should(HavePrefix("False PodsMissing: 4 of 5 pods are ready"))
	var job v1alpha1.ShardedJob
	p.Eventually(func() v1alpha1.SlotCounts { // written a second after the condition at most
		p.Expect(p.get(&job, "images")).To(Succeed())
		return *job.Status.SlotCounts
	}).Should(Equal(v1alpha1.SlotCounts{Working: 4, Adopted: 1}))
	p.Expect(job.Status.Partition.By).To(Equal(v1alpha1.ShardByValue))
	now := metav1.Now()
	p.set(func() { p.change = func(r *v1alpha1.Report) { r.CompleteTime = &now } })
	p.Eventually(ready).Should(HavePrefix("True Complete"))
	p.Eventually(func() map[string]string { return p.uids("images") }).Should(BeEmpty())
}
