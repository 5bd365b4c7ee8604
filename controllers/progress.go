package controllers

import (
	"math"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"shardedjob.dev/api/v1alpha1"
)

// nextCompletionTime is when the work was done: as it was recorded, else as the workers say, unless that is yet to come. It
// is nil while there is work, and when progress is dropped.
func nextCompletionTime(o Observation) *metav1.Time {
	switch {
	case !o.Complete():
		return nil
	case o.Status.CompletionTime != nil:
		return o.Status.CompletionTime
	}
	at := timeOf(o)
	if told := o.Report.CompleteTime.Rfc3339Copy(); told.Before(&at) {
		at = told
	}
	return &at
}

// nextBy is what of a key picks its slot. It holds for as long as the job, once it is known.
func nextBy(o Observation) v1alpha1.ShardBy {
	switch {
	case o.reportOfPlan() && o.Report.By != "":
		return o.Report.By
	case o.Status.Partition != nil:
		return o.Status.Partition.By
	}
	return ""
}

// nextProgress counts rows. Without a report the last figures stand, at rate 0.
func nextProgress(o Observation) *v1alpha1.ProgressStatus {
	p := o.Status.Progress.DeepCopy()
	if p == nil {
		p = &v1alpha1.ProgressStatus{}
	}
	if o.Report == nil {
		if o.Status.Progress == nil {
			return nil
		}
		p.RowsPerSecond, p.EstimatedCompletionTime = 0, nil
		return p
	}
	r := o.Report
	remaining := r.Remaining
	p.Processed, p.Failed, p.RowsPerSecond = r.Processed, r.Failed, 0
	if o.Complete() {
		remaining = ptr.To[int64](0)
	} else if o.ReportLive() {
		p.RowsPerSecond = r.RowsPerSecond
	}
	p.EstimatedTotal, p.Percent = nil, nil
	if remaining != nil {
		p.EstimatedTotal = ptr.To(addRows(r.Processed, *remaining))
		p.Percent = ptr.To(percent(r.Processed, *remaining))
	}
	if o.Complete() {
		p.Percent = ptr.To[int32](100)
	}
	p.EstimatedCompletionTime = estimateCompletion(o, p)
	return p
}

func addRows(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// percent rounds down, and says 100 of no job that is not Complete.
func percent(processed, remaining int64) int32 {
	total := addRows(processed, remaining)
	if total == 0 {
		return 0
	}
	return int32(min(99, 100*(float64(processed)/float64(total))))
}

// estimateCompletion keeps the last estimate while it is about right, so that it does not change with each report.
func estimateCompletion(o Observation, p *v1alpha1.ProgressStatus) *metav1.Time {
	if o.Complete() || p.RowsPerSecond == 0 || o.Report.Remaining == nil || *o.Report.Remaining == 0 {
		return nil
	}
	left := time.Duration(math.MaxInt64)
	if seconds := *o.Report.Remaining / p.RowsPerSecond; seconds < int64(left/time.Second) {
		left = time.Duration(seconds) * time.Second
	}
	const year = 365 * 24 * time.Hour
	if left > 100*year {
		return nil
	}
	estimate := o.Now.Add(left)
	tolerance := max(time.Minute, left/10)
	if last := o.Status.Progress; last != nil && last.EstimatedCompletionTime != nil && last.EstimatedCompletionTime.After(o.Now) &&
		estimate.Sub(last.EstimatedCompletionTime.Time).Abs() < tolerance {
		return last.EstimatedCompletionTime
	}
	rounded := metav1.NewTime(estimate.Truncate(time.Second)).Rfc3339Copy()
	return &rounded
}

// nextSlotCounts counts the slots of the plan. What a report says of another plan says nothing of this one: its
// workers are on their way over.
func nextSlotCounts(o Observation) *v1alpha1.SlotCounts {
	switch {
	case o.Plan == nil || o.Complete():
		return &v1alpha1.SlotCounts{}
	case !o.reportOfPlan():
		waiting := o.readyBelow(o.Plan.Slots)
		return &v1alpha1.SlotCounts{Waiting: waiting, Unheld: o.Plan.Slots - waiting}
	}
	c := o.Report.SlotCounts
	held := heldSlots(o)
	c.Unheld += c.Working + c.Adopted - held
	c.Working = min(c.Working, held)
	c.Adopted = held - c.Working
	return &c
}

func nextSlots(o Observation) []v1alpha1.SlotStatus {
	if o.Complete() || !o.ReportLive() || !o.reportOfPlan() {
		return nil
	}
	return o.Report.SlotStatuses
}

// nextWarnings are what the workers warn of while somebody who is alive says so.
func nextWarnings(o Observation) []string {
	if o.Complete() || !o.ReportLive() || !o.reportOfPlan() {
		return nil
	}
	return o.Report.Warnings
}
