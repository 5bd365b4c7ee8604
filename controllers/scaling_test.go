package controllers

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	. "github.com/onsi/gomega"

	"shardedjob.dev/api/v1alpha1"
)

// TestC08ScaleUpDownToZeroAndBack goes through all directions; pods that stay are never restarted (L08).
func TestC08ScaleUpDownToZeroAndBack(t *testing.T) {
	p := newPlace(t)
	p.create("images", 2)
	p.awaitReady("images", 2)
	first := p.uids("images")
	epoch := p.plan().Epoch
	p.Expect(epoch).To(BeEquivalentTo(1))

	for _, n := range []int32{5, 3, 0, 2} {
		p.scale(n)
		p.awaitReady("images", n)
		plan := p.plan()
		p.Expect(plan.Slots).To(Equal(n))
		p.Expect(plan.Epoch).To(Equal(epoch + 1))
		epoch = plan.Epoch
		if n > 2 {
			uids := p.uids("images")
			p.Expect(uids).To(HaveKeyWithValue("images-0", first["images-0"]))
			p.Expect(uids).To(HaveKeyWithValue("images-1", first["images-1"]))
		}
	}
}

func TestGrowthKeepsTheOldPlanUntilNewPodsAreReady(t *testing.T) {
	p := newPlace(t)
	p.stuck = func(pod corev1.Pod) string {
		if pod.Name == "images-3" {
			return "ContainerCreating"
		}
		return ""
	}
	p.create("images", 2)
	p.awaitReady("images", 2)
	p.scale(4)
	p.Eventually(p.condition("images", v1alpha1.ConditionRepartitioning)).Should(
		Equal("True StartingPods: Scaling from 2 to 4 slots: waiting for 1 pod to become ready"))
	p.Expect(p.plan().Slots).To(BeEquivalentTo(2))
	p.set(func() { p.stuck = nil })
	p.awaitReady("images", 4)
}

func TestShrinkKeepsSurplusPodsUntilEverySlotIsHeld(t *testing.T) {
	p := newPlace(t)
	p.create("images", 3)
	p.awaitReady("images", 3)
	p.set(func() { p.silent = true })
	p.scale(1)
	p.Eventually(p.condition("images", v1alpha1.ConditionRepartitioning)).Should(HavePrefix("True SwitchingOver: Scaling from 3 to 1 slot"))
	p.Consistently(func() int { return len(p.uids("images")) }).WithTimeout(2 * time.Second).Should(Equal(3))
	p.set(func() { p.silent = false })
	p.awaitReady("images", 1)
}

// TestC09CrashLoopingPodsAreRemoved: surplus pods that never got ready hold nothing, so nothing is waited for.
func TestC09CrashLoopingPodsAreRemoved(t *testing.T) {
	p := newPlace(t)
	p.stuck = func(corev1.Pod) string { return "CrashLoopBackOff" }
	p.create("images", 3)
	p.Eventually(p.condition("images", v1alpha1.ConditionStalled)).Should(
		HavePrefix("True PodsMissing: 0 of 3 pods are ready (images-0: container worker: CrashLoopBackOff: said the kubelet; "))
	for _, n := range []int32{1, 0} {
		p.scale(n)
		p.Eventually(func() int { return len(p.uids("images")) }).Should(BeEquivalentTo(n))
	}
	p.awaitReady("images", 0)
}

func TestM08SuspendFlapping(t *testing.T) {
	p := newPlace(t)
	p.create("images", 3)
	for range 6 {
		p.edit(func(job *v1alpha1.ShardedJob) { job.Spec.Suspend = true })
		p.edit(func(job *v1alpha1.ShardedJob) { job.Spec.Suspend = false })
	}
	p.edit(func(job *v1alpha1.ShardedJob) { job.Spec.Suspend, job.Spec.Replicas = true, ptr.To[int32](4) })
	p.awaitReady("images", 0)
	p.Expect(p.condition("images", v1alpha1.ConditionSuspended)()).To(HavePrefix("True Suspended"))
	p.edit(func(job *v1alpha1.ShardedJob) { job.Spec.Suspend = false })
	p.awaitReady("images", 4)
	p.Expect(p.condition("images", v1alpha1.ConditionSuspended)()).To(HavePrefix("False NotSuspended"))
}

func TestNotEnoughConnections(t *testing.T) {
	p := newPlace(t)
	p.change = func(r *v1alpha1.Report) { r.Connections = &v1alpha1.Connections{Limit: 10, Free: 2} }
	p.create("images", 2)
	p.awaitReady("images", 2)
	p.scale(5)
	p.Eventually(p.condition("images", v1alpha1.ConditionRepartitioning)).Should(Equal("True NotEnoughConnections: Scaling from 2 to 5 slots: " +
		"3 more connections are needed and the database has 2 free of 10; work goes on with 2 slots"))
	p.Expect(p.plan().Slots).To(BeEquivalentTo(2))
	p.scale(4)
	p.awaitReady("images", 4)
}

// TestL07AnAutoscalerOfTheStatefulSet is not followed: the number of slots is the job's alone, and pods in use are left alone.
func TestL07AnAutoscalerOfTheStatefulSet(t *testing.T) {
	p := newPlace(t)
	p.create("images", 3)
	p.awaitReady("images", 3)
	uids, plan := p.uids("images"), p.plan()
	for _, n := range []int32{5, 8, 1, 0, 4} {
		set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: "images"}}
		if n < 3 {
			// What the autoscaler takes away is made anew; what it did not touch goes on.
			uids = map[string]string{}
		}
		scale := &autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: n}}
		p.Expect(p.client.SubResource("scale").Update(p.ctx, set, client.WithSubResourceBody(scale))).To(Succeed())
		p.Eventually(func() int32 { _ = p.get(set, "images"); return *set.Spec.Replicas }).Should(BeEquivalentTo(3))
		p.awaitReady("images", 3)
		for pod, uid := range uids {
			p.Expect(p.uids("images")).To(HaveKeyWithValue(pod, uid))
		}
		p.Expect(p.plan()).To(Equal(plan))
		uids = p.uids("images")
	}
	p.scale(4)
	p.awaitReady("images", 4)
}

// TestL10HandMadeChangesArePutBack, one after the other.
func TestL10HandMadeChangesArePutBack(t *testing.T) {
	p := newPlace(t)
	p.create("images", 3)
	p.awaitReady("images", 3)
	uids := p.uids("images")
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: "images"}}

	p.Expect(p.client.Patch(p.ctx, set, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"replicas":5}}`)))).To(Succeed())
	p.Eventually(func() map[string]string { return p.uids("images") }).Should(HaveLen(3))
	p.awaitReady("images", 3)
	p.Expect(p.uids("images")).To(Equal(uids))

	p.Expect(p.get(set, "images")).To(Succeed())
	old := set.UID
	p.Expect(p.client.Delete(p.ctx, set, client.PropagationPolicy(metav1.DeletePropagationOrphan))).To(Succeed())
	p.Eventually(func() types.UID { _ = p.get(set, "images"); return set.UID }).ShouldNot(Equal(old))
	p.awaitReady("images", 3)
	p.Expect(p.uids("images")).To(Equal(uids))

	p.Expect(p.client.Delete(p.ctx, set)).To(Succeed())
	p.Eventually(func() map[string]string { return p.uids("images") }).ShouldNot(HaveKeyWithValue("images-0", uids["images-0"]))
	p.awaitReady("images", 3)

	plan := p.plan()
	p.Expect(p.client.Delete(p.ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: "images-plan"}})).To(Succeed())
	p.Eventually(func() error { return p.get(&corev1.ConfigMap{}, "images-plan") }).Should(Succeed())
	p.Expect(p.plan().Epoch).To(Equal(plan.Epoch + 1))
	p.awaitReady("images", 3)
}
