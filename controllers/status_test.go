package controllers

import (
	"math"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"shardedjob.dev/api/v1alpha1"
)

// running is the observation of a job whose two slots are held.
func running() Observation {
	pod := func(k int32) PodView {
		return PodView{Name: v1alpha1.PodName("images", k), Ordinal: k, Ready: true, EverReady: true, Current: true}
	}
	return Observation{
		Now:  time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC),
		Job:  JobView{Name: "images", UID: "uid", Generation: 3, Wanted: 2},
		Plan: &v1alpha1.Plan{UID: "uid", Generation: 3, Epoch: 2, Slots: 2},
		Report: &v1alpha1.Report{
			UID: "uid", Coordinator: "images-0", Epoch: 2, HighestEpoch: 2, Slots: 2, Generation: 3, Processed: 75, RowsPerSecond: 5,
			Remaining: ptr.To[int64](25), SlotCounts: v1alpha1.SlotCounts{Working: 2},
		},
		Set:  SetView{Exists: true, Replicas: 2, Settled: true},
		Pods: []PodView{pod(0), pod(1)},
	}
}

func TestConditions(t *testing.T) {
	const ready, stalled, database = v1alpha1.ConditionReady, v1alpha1.ConditionStalled, v1alpha1.ConditionDatabaseReachable
	notReady := func(o *Observation, k int) {
		o.Pods[k].Ready, o.Pods[k].ReadySince = false, time.Time{}
	}
	for name, c := range map[string]struct {
		change func(*Observation)
		want   map[string]string
	}{
		"running": {func(*Observation) {}, map[string]string{
			ready: "True Running", stalled: "False Proceeding", database: "True Reachable", "Complete": "False InProgress", "Repartitioning": "False Steady"}},
		"a worker runs an older generation":  {func(o *Observation) { o.Report.Generation = 2 }, map[string]string{ready: "False Updating"}},
		"the plan is of an older generation": {func(o *Observation) { o.Plan.Generation = 2 }, map[string]string{ready: "False Updating"}},
		"the report is of an older epoch":    {func(o *Observation) { o.Report.Epoch = 1 }, map[string]string{ready: "False SlotsUnheld"}},
		"a slot is not held":                 {func(o *Observation) { o.Report.SlotCounts.Working = 1 }, map[string]string{ready: "False SlotsUnheld"}},
		"the coordinator's pod is gone":      {func(o *Observation) { o.Pods = o.Pods[1:] }, map[string]string{ready: "False SlotsUnheld", database: "Unknown NotObserved"}},
		"no pod is ready":                    {func(o *Observation) { notReady(o, 0); notReady(o, 1) }, map[string]string{ready: "False SlotsUnheld", database: "Unknown NotObserved"}},
		"an old template":                    {func(o *Observation) { o.Pods[1].Current = false }, map[string]string{ready: "False Updating"}},
		"new":                                {func(o *Observation) { o.Plan, o.Report, o.Pods = nil, nil, nil; o.Set = SetView{} }, map[string]string{ready: "False Starting", "Complete": "Unknown NotObserved"}},
		"rows fail": {func(o *Observation) {
			o.Report.Problem = &v1alpha1.Problem{Reason: v1alpha1.ReasonRowsFailing, Message: "3 rows fail", Stalled: true}
		}, map[string]string{ready: "False Stalled", stalled: "True RowsFailing", database: "True Reachable"}},
		"a wrong password": {func(o *Observation) {
			notReady(o, 1)
			o.Notices = map[int32]v1alpha1.Notice{1: {Pod: "images-1", Problem: v1alpha1.Problem{Reason: v1alpha1.ReasonAuthFailed, Stalled: true}}}
		}, map[string]string{ready: "False Stalled", stalled: "True AuthFailed", database: "False AuthFailed"}},
		"a notice of a pod that is ready again": {func(o *Observation) {
			o.Notices = map[int32]v1alpha1.Notice{1: {Pod: "images-1", Problem: v1alpha1.Problem{Reason: v1alpha1.ReasonAuthFailed, Stalled: true}}}
		}, map[string]string{ready: "True Running", stalled: "False Proceeding", database: "True Reachable"}},
		"no node has room": {func(o *Observation) { notReady(o, 1); o.Pods[1].Trouble = "0/1 nodes are available" }, map[string]string{
			ready: "False PodsMissing", stalled: "False Proceeding"}},
		"quota": {func(o *Observation) { o.Pods, o.PodRefusal = o.Pods[:1], "exceeded quota" }, map[string]string{
			ready: "False PodsMissing", stalled: "True PodsMissing"}},
		"a refused template": {func(o *Observation) { o.Refusal = &Refusal{Reason: v1alpha1.ReasonInvalidTemplate, Message: "no"} }, map[string]string{
			ready: "False Stalled", stalled: "True InvalidTemplate"}},
		"no epoch left": {func(o *Observation) { o.Report.HighestEpoch = v1alpha1.MaxEpoch }, map[string]string{
			ready: "False Stalled", stalled: "True EpochExhausted"}},
		"pausing": {func(o *Observation) { o.Job.Wanted, o.Plan.Slots = 0, 0 }, map[string]string{ready: "False Pausing"}},
		"paused": {func(o *Observation) { o.Job.Wanted, o.Plan.Slots, o.Pods, o.Set.Replicas = 0, 0, nil, 0 }, map[string]string{
			ready: "True Paused", "Complete": "False InProgress"}},
		"complete": {func(o *Observation) { o.Report.CompleteTime = &metav1.Time{Time: o.Now} }, map[string]string{ready: "True Complete", "Complete": "True Complete"}},
		"complete by a report of another epoch": {func(o *Observation) { o.Report.CompleteTime, o.Report.Epoch = &metav1.Time{Time: o.Now}, 1 }, map[string]string{
			ready: "False SlotsUnheld", "Complete": "False InProgress"}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			o := running()
			c.change(&o)
			status := NextStatus(o)
			g.Expect(status.Conditions).To(HaveLen(6))
			for _, condition := range status.Conditions {
				g.Expect(condition.ObservedGeneration).To(Equal(o.Job.Generation))
				g.Expect(condition.Message).NotTo(BeEmpty())
			}
			for kind, want := range c.want {
				got := meta.FindStatusCondition(status.Conditions, kind)
				g.Expect(string(got.Status)+" "+got.Reason).To(Equal(want), kind+": "+got.Message)
			}
			o.Status, o.Now = status, o.Now.Add(time.Hour)
			g.Expect(writeInterval(status, NextStatus(o))).To(Or(BeNumerically("<", 0), Equal(figuresInterval)), "nothing but an estimate changes with time alone")
		})
	}
}

func TestPercentIsHundredOnlyWhenComplete(t *testing.T) {
	for name, c := range map[string]struct {
		processed, remaining int64
		want                 int32
	}{
		"nothing at all": {0, 0, 0}, "half": {1, 1, 50}, "rounded down": {2, 1, 66}, "all but complete": {10, 0, 99},
		"huge": {math.MaxInt64, math.MaxInt64, 99}, "start": {0, 10, 0},
	} {
		if got := percent(c.processed, c.remaining); got != c.want {
			t.Errorf("%s: got %d, want %d", name, got, c.want)
		}
	}
}

func TestWhatMayWait(t *testing.T) {
	g := NewWithT(t)
	o := running()
	o.Status = NextStatus(o)
	o.Report.Processed++
	g.Expect(writeInterval(o.Status, NextStatus(o))).To(Equal(figuresInterval))
	o.Pods[1].Ready = false
	g.Expect(writeInterval(o.Status, NextStatus(o))).To(BeZero(), "Ready is no longer True")
}

// TestM07ProgressStaysWithinItsBounds whatever is reported: counts can exceed estimates, and rows come and go.
func TestM07ProgressStaysWithinItsBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rows := rapid.OneOf(rapid.Int64Range(0, 100), rapid.Int64Range(0, math.MaxInt64))
		o := running()
		for range rapid.IntRange(1, 5).Draw(t, "reports") {
			o.Report.Processed, o.Report.Failed, o.Report.RowsPerSecond = rows.Draw(t, "processed"), rows.Draw(t, "failed"), rows.Draw(t, "rate")
			o.Report.Remaining, o.Report.CompleteTime = rapid.Ptr(rows, true).Draw(t, "remaining"), nil
			if rapid.Bool().Draw(t, "complete") {
				o.Report.CompleteTime = &metav1.Time{Time: o.Now}
			}
			o.Now = o.Now.Add(time.Duration(rapid.IntRange(0, 1000).Draw(t, "seconds")) * time.Second)
			o.Status = NextStatus(o)
			p, complete := o.Status.Progress, o.Status.CompletionTime != nil
			switch {
			case complete && (*p.Percent != 100 || *p.EstimatedTotal != p.Processed || p.RowsPerSecond != 0 || p.EstimatedCompletionTime != nil):
				t.Fatalf("complete: %+v", p)
			case !complete && p.Percent != nil && (*p.Percent < 0 || *p.Percent > 99):
				t.Fatalf("%d%% before it is complete", *p.Percent)
			case p.EstimatedTotal != nil && *p.EstimatedTotal < p.Processed:
				t.Fatalf("%d of %d rows", p.Processed, *p.EstimatedTotal)
			case (p.EstimatedTotal == nil) != (p.Percent == nil):
				t.Fatalf("a share of nothing: %+v", p)
			}
		}
	})
}
