package controllers

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"shardedjob.dev/api/v1alpha1"
)

// TestL09RestartAndUpgradeOfTheOperatorChangeNothing also touches metadata and asks for an upgrade of the workers.
func TestL09RestartAndUpgradeOfTheOperatorChangeNothing(t *testing.T) {
	p := newPlace(t)
	p.create("images", 3)
	p.awaitReady("images", 3)
	uids := p.uids("images")
	var set appsv1.StatefulSet
	p.Expect(p.get(&set, "images")).To(Succeed())
	for i := range 3 {
		restart(p.WithT, fmt.Sprintf("shardedjob.dev/shardedjob:%d", i))
	}
	p.edit(func(job *v1alpha1.ShardedJob) { job.Labels = map[string]string{"team": "media"} })
	p.edit(func(job *v1alpha1.ShardedJob) { job.Annotations = map[string]string{"note": "touched"} })
	p.Consistently(func() []string { return shared.operator.writes.of(p.namespace) }).WithTimeout(3 * time.Second).Should(BeEmpty())
	var after appsv1.StatefulSet
	p.Expect(p.get(&after, "images")).To(Succeed())
	p.Expect(after.Generation).To(Equal(set.Generation))
	p.Expect(p.uids("images")).To(Equal(uids))

	p.edit(func(job *v1alpha1.ShardedJob) { job.Annotations[v1alpha1.AnnotationUpgradeWorkers] = "now" })
	p.Eventually(func() string { _ = p.get(&after, "images"); return after.Spec.Template.Spec.Containers[0].Image }).Should(
		Equal("shardedjob.dev/shardedjob:2"))
	p.awaitReady("images", 3)
}

// TestM01IdleJobsCauseNoWrites: running, paused and complete.
func TestM01IdleJobsCauseNoWrites(t *testing.T) {
	p := newPlace(t)
	p.create("images", 2)
	p.awaitReady("images", 2)
	p.create("paused", 0)
	p.awaitReady("paused", 0)
	settled := len(shared.operator.writes.of(p.namespace))
	p.Consistently(func() int {
		// An object that changes without a difference to us wakes the operator up.
		report := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: "images-report"}}
		patch := fmt.Sprintf(`{"metadata":{"annotations":{"touched":"%d"}}}`, time.Now().UnixNano())
		p.Expect(p.client.Patch(p.ctx, report, client.RawPatch(types.MergePatchType, []byte(patch)))).To(Succeed())
		return len(shared.operator.writes.of(p.namespace))
	}).WithTimeout(5 * time.Second).WithPolling(250 * time.Millisecond).Should(Equal(settled))
}

// TestCompleteIsFinal: resources are freed, later changes have no effect, and the job goes when its time is over.
func TestCompleteIsFinal(t *testing.T) {
	p := newPlace(t)
	p.create("images", 2)
	p.awaitReady("images", 2)
	now := metav1.Now()
	p.set(func() {
		p.change = func(r *v1alpha1.Report) { r.CompleteTime, r.Processed, r.Remaining = &now, 10, ptr.To[int64](0) }
	})
	p.Eventually(p.condition("images", v1alpha1.ConditionReady)).Should(HavePrefix("True Complete"))
	p.Eventually(func() map[string]string { return p.uids("images") }).Should(BeEmpty())
	p.scale(5)
	p.Eventually(p.condition("images", v1alpha1.ConditionComplete)).Should(HavePrefix("True Complete"))
	var job v1alpha1.ShardedJob
	p.Expect(p.get(&job, "images")).To(Succeed())
	p.Expect(job.Status.CompletionTime).NotTo(BeNil())
	p.Expect(job.Status.Progress.Percent).To(HaveValue(BeEquivalentTo(100)))
	p.Expect(p.uids("images")).To(BeEmpty())
	p.edit(func(job *v1alpha1.ShardedJob) { job.Spec.TTLSecondsAfterFinished = ptr.To[int32](0) })
	p.Eventually(func() bool { return apierrors.IsNotFound(p.get(&job, "images")) }).Should(BeTrue())
}

// TestM05DeleteAndRecreate makes a job of the same name anew before the old one's children are gone.
func TestM05DeleteAndRecreate(t *testing.T) {
	p := newPlace(t)
	for i := range 20 {
		job := p.create("images", int32(1+i%3))
		if i%4 == 0 {
			p.awaitReady("images", int32(1+i%3))
			p.Expect(p.plan().UID).To(Equal(job.UID))
		}
		p.Expect(p.client.Delete(p.ctx, job)).To(Succeed())
	}
	job := p.create("images", 2)
	p.awaitReady("images", 2)
	plan := p.plan()
	p.Expect(plan.UID).To(Equal(job.UID))
	p.Expect(plan.Epoch).To(BeEquivalentTo(1))
}

// TestM04DeletionWaitsForNothing: neither the database nor the operator.
func TestM04DeletionWaitsForNothing(t *testing.T) {
	p := newPlace(t)
	job := p.create("images", 2)
	p.awaitReady("images", 2)
	p.Expect(p.get(job, "images")).To(Succeed())
	p.Expect(job.Finalizers).To(BeEmpty())
	p.Expect(p.client.Delete(p.ctx, job)).To(Succeed())
	p.Eventually(func() bool {
		return apierrors.IsNotFound(p.get(&v1alpha1.ShardedJob{}, "images")) && apierrors.IsNotFound(p.get(&appsv1.StatefulSet{}, "images")) &&
			apierrors.IsNotFound(p.get(&corev1.ConfigMap{}, "images-plan")) && len(p.uids("images")) == 0
	}).Should(BeTrue())

	p.create("others", 1)
	p.awaitReady("others", 1)
	p.Expect(p.client.Delete(p.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: p.namespace}})).To(Succeed())
	p.Eventually(func() bool { return apierrors.IsNotFound(p.get(&v1alpha1.ShardedJob{}, "others")) }).Should(BeTrue())
}

// TestReadyIsNeverTrueOfAnOlderGeneration: a worker that still runs the old statement keeps Ready from being True.
func TestReadyIsNeverTrueOfAnOlderGeneration(t *testing.T) {
	p := newPlace(t)
	p.create("images", 1)
	p.awaitReady("images", 1)
	before := p.plan()
	p.set(func() { p.change = func(r *v1alpha1.Report) { r.Generation = before.Generation } })
	uids := p.uids("images")
	p.edit(func(job *v1alpha1.ShardedJob) { job.Spec.Process.SQL.Statement = "SELECT $1" })
	p.Eventually(p.condition("images", v1alpha1.ConditionReady)).Should(Equal("False Updating: Not every worker has taken over generation 2 yet"))
	after := p.plan()
	p.Expect(after.Epoch).To(Equal(before.Epoch))
	p.Expect(after.Process.SQL.Statement).To(Equal("SELECT $1"))
	p.set(func() { p.change = nil })
	p.awaitReady("images", 1)
	p.Expect(p.uids("images")).To(Equal(uids))
}
