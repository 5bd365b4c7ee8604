package controllers

import (
	"encoding/json"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	gomegatypes "github.com/onsi/gomega/types"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"shardedjob.dev/api/v1alpha1"
)

// TestL11M06OutageInEveryTransition takes away the API server in the middle of each kind of change. Afterwards the newest wish
// comes true by itself, and no pod that it needs was touched.
func TestL11M06OutageInEveryTransition(t *testing.T) {
	p := newPlace(t)
	// Clients try again after pauses that grow with the outage, each for itself.
	p.SetDefaultEventuallyTimeout(5 * time.Minute)
	p.create("images", 3)
	p.awaitReady("images", 3)
	for i, transition := range []struct {
		change func()
		want   int32
	}{
		{func() { p.scale(5) }, 5},
		{func() {
			p.edit(func(job *v1alpha1.ShardedJob) {
				job.Spec.Replicas, job.Spec.Process.SQL.Statement = ptr.To[int32](2), "SELECT 1, $1"
			})
		}, 2},
		{func() { p.edit(func(job *v1alpha1.ShardedJob) { job.Spec.Suspend = true }) }, 0},
		{func() { p.edit(func(job *v1alpha1.ShardedJob) { job.Spec.Suspend = false }) }, 2},
	} {
		before := p.uids("images")
		writes := shared.operator.writes.total.Load()
		transition.change()
		p.Eventually(shared.operator.writes.total.Load).Should(BeNumerically(">", writes), "it is in the middle of it")
		p.Expect(shared.controlPlane.StopAPIServer()).To(Succeed())
		p.Consistently(func() error { return p.get(&v1alpha1.ShardedJob{}, "images") }).WithTimeout(2 * time.Second).ShouldNot(Succeed())
		p.Expect(shared.controlPlane.StartAPIServer(t.Context())).To(Succeed())
		p.awaitReady("images", transition.want)
		p.Expect(p.plan().Slots).To(Equal(transition.want), "transition %d", i)
		for pod, uid := range p.uids("images") {
			if old, ok := before[pod]; ok {
				p.Expect(uid).To(Equal(old), "%s was there before transition %d", pod, i)
			}
		}
	}
}

// TestM02BreakAndMend: what is wrong shows soon, and is gone from status soon after it is mended.
func TestM02BreakAndMend(t *testing.T) {
	p := newPlace(t)
	p.create("images", 2)
	p.awaitReady("images", 2)
	conditions := func() []string {
		var all []string
		for _, kind := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionDatabaseReachable, v1alpha1.ConditionStalled} {
			all = append(all, p.condition("images", kind)())
		}
		return all
	}
	mended := ContainElements(HavePrefix("True Running"), HavePrefix("True Reachable"), HavePrefix("False Proceeding"))
	notice := func(problem *v1alpha1.Problem) {
		var value any
		stuck := func(corev1.Pod) string { return "" }
		if problem != nil {
			raw, err := json.Marshal(v1alpha1.Notice{Pod: "images-1", UID: p.plan().UID, Problem: *problem})
			p.Expect(err).NotTo(HaveOccurred())
			value, stuck = string(raw), func(pod corev1.Pod) string { return map[string]string{"images-1": "Waiting"}[pod.Name] }
		}
		patch, err := json.Marshal(map[string]any{"data": map[string]any{v1alpha1.NoticeKey(1): value}})
		p.Expect(err).NotTo(HaveOccurred())
		report := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: v1alpha1.ReportName("images")}}
		p.Expect(p.client.Patch(p.ctx, report, client.RawPatch(types.MergePatchType, patch))).To(Succeed())
		p.set(func() { p.stuck = stuck })
	}
	report := func(problem *v1alpha1.Problem) {
		p.set(func() { p.change = func(r *v1alpha1.Report) { r.Problem = problem } })
	}
	for name, c := range map[string]struct {
		tell    func(*v1alpha1.Problem)
		problem v1alpha1.Problem
		broken  []any
	}{
		"the password": {notice, v1alpha1.Problem{Reason: v1alpha1.ReasonAuthFailed, Message: "no", Stalled: true}, []any{
			HavePrefix("False Stalled: images-1: no"), HavePrefix("False AuthFailed"), HavePrefix("True AuthFailed")}},
		"the database": {notice, v1alpha1.Problem{Reason: v1alpha1.ReasonDatabaseUnreachable, Message: "down"}, []any{
			HavePrefix("False Starting: 1 of 2 slots are held, 1 of 2 pods are ready: images-1: down"), HavePrefix("False DatabaseUnreachable"), HavePrefix("False Proceeding")}},
		"the table": {report, v1alpha1.Problem{Reason: v1alpha1.ReasonTableMissing, Message: "gone", Stalled: true}, []any{
			HavePrefix("False Stalled: gone"), HavePrefix("True Reachable"), HavePrefix("True TableMissing")}},
		"the statement": {report, v1alpha1.Problem{Reason: v1alpha1.ReasonRowsFailing, Message: "3 rows", Stalled: true}, []any{
			HavePrefix("False Stalled: 3 rows"), HavePrefix("True Reachable"), HavePrefix("True RowsFailing")}},
	} {
		for _, step := range []struct {
			problem *v1alpha1.Problem
			shown   gomegatypes.GomegaMatcher
		}{{&c.problem, ContainElements(c.broken...)}, {nil, mended}} {
			began := time.Now()
			c.tell(step.problem)
			p.Eventually(conditions).WithTimeout(time.Minute).Should(step.shown, name)
			t.Logf("%s, broken %t: shown after %d ms", name, step.problem != nil, time.Since(began).Milliseconds())
		}
	}
}
