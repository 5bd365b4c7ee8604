package controllers

import (
	"context"
	"encoding/json"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"shardedjob.dev/api/v1alpha1"
)

// lagging is a client whose cache shows some objects as they were.
type lagging struct {
	client.Client
	job  *v1alpha1.ShardedJob
	maps map[string]*corev1.ConfigMap
}

func (l lagging) Get(ctx context.Context, key client.ObjectKey, obj client.Object, options ...client.GetOption) error {
	switch into := obj.(type) {
	case *v1alpha1.ShardedJob:
		if l.job != nil {
			l.job.DeepCopyInto(into)
			return nil
		}
	case *corev1.ConfigMap:
		if old := l.maps[key.Name]; old != nil {
			old.DeepCopyInto(into)
			return nil
		}
	}
	return l.Client.Get(ctx, key, obj, options...)
}

// reconcile makes one pass with a cache that lags, beside the operator that goes on.
func (p *place) reconcile(l lagging) reconcile.Result {
	l.Client = p.client
	r := &Reconciler{Client: l, APIReader: p.client, Recorder: events.NewFakeRecorder(10), Clock: clock.RealClock{}, WorkerImage: testImage}
	result, err := r.Reconcile(p.ctx, reconcile.Request{NamespacedName: client.ObjectKey{Namespace: p.namespace, Name: "images"}})
	p.Expect(err).NotTo(HaveOccurred())
	return result
}

func (p *place) configMap(name string) *corev1.ConfigMap {
	var configMap corev1.ConfigMap
	p.Expect(p.get(&configMap, name)).To(Succeed())
	return &configMap
}

// TestN01AnOldWishIsNoNewOne: caches lag independently, so that a job may look older than the plan that another operator made
// for it.
func TestN01AnOldWishIsNoNewOne(t *testing.T) {
	p := newPlace(t)
	p.create("images", 2)
	p.awaitReady("images", 2)
	var old v1alpha1.ShardedJob
	p.Expect(p.get(&old, "images")).To(Succeed())
	// In the middle of a change, the target is recorded already.
	old.Spec.Replicas, old.Status.Repartition = ptr.To[int32](3), &v1alpha1.RepartitionStatus{From: 2, To: 3}
	for _, change := range []struct {
		make func()
		want int32
	}{
		{func() { p.scale(4) }, 4},
		{func() { p.scale(1) }, 1},
		{func() {
			p.edit(func(job *v1alpha1.ShardedJob) { job.Annotations = map[string]string{v1alpha1.AnnotationForget: "true"} })
			p.Eventually(p.condition("images", v1alpha1.ConditionReady)).Should(HavePrefix("True Forgotten"))
		}, 1},
	} {
		change.make()
		if !p.plan().Forget {
			p.awaitReady("images", change.want)
		}
		before := p.plan()
		p.Expect(p.reconcile(lagging{job: &old})).To(Equal(reconcile.Result{RequeueAfter: retryStale}))
		p.Expect(p.plan()).To(Equal(before))
	}
}

// TestCompletionIsNotTakenFromAPlanBefore: progress was dropped since, and the work is to be done again.
func TestCompletionIsNotTakenFromAPlanBefore(t *testing.T) {
	p := newPlace(t)
	p.create("images", 2)
	p.awaitReady("images", 2)
	plan, report := p.configMap("images-plan"), p.configMap("images-report")
	var told v1alpha1.Report
	p.Expect(json.Unmarshal([]byte(report.Data[v1alpha1.ReportKey]), &told)).To(Succeed())
	told.CompleteTime = &metav1.Time{Time: metav1.Now().Time}
	raw, err := json.Marshal(told)
	p.Expect(err).NotTo(HaveOccurred())
	report.Data[v1alpha1.ReportKey] = string(raw)

	p.edit(func(job *v1alpha1.ShardedJob) { job.Annotations = map[string]string{v1alpha1.AnnotationForget: "true"} })
	p.Eventually(p.condition("images", v1alpha1.ConditionReady)).Should(HavePrefix("True Forgotten"))
	p.edit(func(job *v1alpha1.ShardedJob) { job.Annotations = nil })
	p.awaitReady("images", 2)
	maps := map[string]*corev1.ConfigMap{"images-plan": plan, "images-report": report}
	p.Expect(p.reconcile(lagging{maps: maps})).To(Equal(reconcile.Result{RequeueAfter: retryStale}))
	var job v1alpha1.ShardedJob
	p.Expect(p.get(&job, "images")).To(Succeed())
	p.Expect(job.Status.CompletionTime).To(BeNil())
	p.Expect(p.uids("images")).To(HaveLen(2))
}
