package controllers

import (
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"shardedjob.dev/api/v1alpha1"
)

// TestL04C12NodeGone loses a node: its pod is evicted and stays Terminating, for there is nobody to stop it. What the lock
// shows decides whether it is removed, since the pod may run on behind the cut (C12).
func TestL04C12NodeGone(t *testing.T) {
	p := newPlace(t)
	alive, gone := p.namespace+"-a", p.namespace+"-b"
	p.node(alive)
	p.node(gone)
	p.adopt = true
	job := p.job("images", 2)
	job.Spec.Batch.TimeoutSeconds, job.Spec.Fence.HandoverSeconds = 1, ptr.To[int32](2)
	job.Spec.Template = &corev1.PodTemplateSpec{Spec: corev1.PodSpec{Tolerations: []corev1.Toleration{{
		Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: ptr.To[int64](1),
	}}}}
	p.Expect(p.client.Create(p.ctx, job)).To(Succeed())
	p.awaitReady("images", 2)
	uids := p.uids("images")

	ready := p.condition("images", v1alpha1.ConditionReady)
	p.set(func() {
		p.lingers = func(pod corev1.Pod) bool { return pod.Name == "images-1" && string(pod.UID) == uids[pod.Name] }
	})
	p.lose(gone)
	p.Eventually(ready).Should(MatchRegexp("^False PodsMissing: 1 of 2 pods are ready .images-1: node " + gone + ` has not stopped it since 2[-0-9T:]+Z and its session, pid 4712, ` +
		`still holds slot 1's lock; delete the node, or have such pods replaced with fence.unreachablePods: ForceDelete\)$`))
	p.edit(func(job *v1alpha1.ShardedJob) { job.Spec.Fence.UnreachablePods = v1alpha1.ForceDeleteUnreachable })
	p.Eventually(ready).Should(ContainSubstring("still holds slot 1's lock; it is removed once that session is known to be gone"))
	p.Expect(p.uids("images")).To(Equal(uids))
	p.set(func() { p.lingers = nil })

	p.Eventually(func() map[string]string { return p.uids("images") }).Should(And(HaveLen(2), Not(HaveKeyWithValue("images-1", uids["images-1"]))))
	p.awaitReady("images", 2)
	p.Expect(p.uids("images")).To(HaveKeyWithValue("images-0", uids["images-0"]))
	var events eventsv1.EventList
	p.Eventually(func() []string {
		p.Expect(p.client.List(p.ctx, &events, client.InNamespace(p.namespace))).To(Succeed())
		var notes []string
		for _, e := range events.Items {
			if e.Reason == v1alpha1.EventPodForceDeleted {
				notes = append(notes, e.Note)
			}
		}
		return notes
	}).Should(ConsistOf(MatchRegexp("^Removed pod images-1 of slot 1: node " + gone + " has not stopped it since .* and slot 1 is adopted by images-0$")))

	// The other node goes too, and a job that is made anew waits for what was left there, until it is back.
	p.lose(alive)
	p.Expect(p.client.Delete(p.ctx, job)).To(Succeed())
	p.Eventually(func() bool { return apierrors.IsNotFound(p.get(&appsv1.StatefulSet{}, "images")) }).Should(BeTrue())
	p.create("images", 1)
	p.Eventually(ready).Should(MatchRegexp(`^False WaitingForPredecessor: .* Pod images-0 .node ` + alive + " has not stopped it since "))
	p.set(func() { p.lost = nil })
	p.awaitReady("images", 1)
}

func TestWhatIsSeenOfANode(t *testing.T) {
	now := metav1.Now()
	pod := func(change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "images-1"}, Spec: corev1.PodSpec{NodeName: "node-b"}}
		p.Status.Conditions = []corev1.PodCondition{
			{Type: corev1.PodReady, Status: corev1.ConditionTrue}, {Type: corev1.ContainersReady, Status: corev1.ConditionTrue},
		}
		change(p)
		return p
	}
	for name, c := range map[string]struct {
		change     func(*corev1.Pod)
		lost, gone bool
	}{
		"all is well":      {change: func(*corev1.Pod) {}},
		"its node is lost": {lost: true, change: func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse }},
		"a container is not ready": {change: func(p *corev1.Pod) {
			p.Status.Conditions[0].Status, p.Status.Conditions[0].Reason = corev1.ConditionFalse, "ContainersNotReady"
			p.Status.Conditions[1].Status = corev1.ConditionFalse
		}},
		"a readiness gate is closed": {change: func(p *corev1.Pod) {
			p.Status.Conditions[0].Status, p.Status.Conditions[0].Reason = corev1.ConditionFalse, "ReadinessGatesNotReady"
		}},
		"no kubelet has seen it":            {change: func(p *corev1.Pod) { p.Status.Conditions = nil }},
		"it is deleted":                     {gone: true, change: func(p *corev1.Pod) { p.DeletionTimestamp = &now }},
		"it is deleted and was never bound": {change: func(p *corev1.Pod) { p.DeletionTimestamp, p.Spec.NodeName = &now, "" }},
		"it is deleted and waits for a finalizer": {change: func(p *corev1.Pod) {
			p.DeletionTimestamp, p.Finalizers = &now, []string{"example.com/backup"}
		}},
	} {
		view := viewPod(pod(c.change), 1, "")
		if view.NodeLost != c.lost || view.GoneBy.IsZero() == c.gone {
			t.Errorf("%s: %+v", name, view)
		}
	}
}
