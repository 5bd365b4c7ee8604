package controllers

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"shardedjob.dev/api/v1alpha1"
)

// NextStatus is the status that is true of the observation. Every condition is set on each visit, Unknown where it could
// not be observed.
func NextStatus(o Observation) v1alpha1.ShardedJobStatus {
	s := *o.Status.DeepCopy()
	s.ObservedGeneration = o.Job.Generation
	s.Replicas = int32(len(o.Pods))
	s.ReadyReplicas = o.readyBelow(v1alpha1.MaxSlots)
	s.Selector = labels.Set{v1alpha1.LabelJob: o.Job.Name}.String()
	// An epoch that was recorded is not forgotten for a plan that is older: the next one has to go above it.
	if o.Plan != nil && (s.Partition == nil || s.Partition.Epoch <= o.Plan.Epoch) {
		s.Partition = &v1alpha1.PartitionStatus{Epoch: o.Plan.Epoch, Slots: o.Plan.Slots, By: nextBy(o)}
	}
	s.CompletionTime = nextCompletionTime(o)
	s.Repartition = nextRepartition(o)
	s.Coordinator = ""
	if o.ReportLive() {
		s.Coordinator = o.Report.Coordinator
	}
	s.Progress = nextProgress(o)
	s.SlotCounts = nextSlotCounts(o)
	s.Slots = nextSlots(o)
	s.Warnings = nextWarnings(o)

	stalled := stall(o)
	ready := readyCondition(o, s.Repartition, stalled)
	if len(s.Warnings) > 0 {
		ready.Message += warningMark + s.Warnings[0]
	}
	for _, c := range []metav1.Condition{
		ready,
		repartitioningCondition(o, s.Repartition),
		databaseCondition(o),
		completeCondition(o),
		suspendedCondition(o),
		stalledCondition(stalled),
	} {
		c.ObservedGeneration = o.Job.Generation
		c.LastTransitionTime = timeOf(o)
		c.Message = clip(c.Message)
		meta.SetStatusCondition(&s.Conditions, c)
	}
	return s
}

// maxMessage is what the API server allows in a condition's message, with room to spare.
const maxMessage = 8 << 10

func clip(message string) string {
	if len(message) > maxMessage {
		message = message[:maxMessage]
	}
	return strings.ToValidUTF8(message, "?")
}

func condition(kind string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message}
}

// stall is why a person must act, or nil.
func stall(o Observation) *v1alpha1.Problem {
	problem := func(reason, message string) *v1alpha1.Problem {
		return &v1alpha1.Problem{Reason: reason, Message: message, Stalled: true}
	}
	switch {
	case len(o.Foreign) > 0:
		return problem(v1alpha1.ReasonNameTaken, fmt.Sprintf(
			"%s exists and does not belong to this ShardedJob: delete it, or give the ShardedJob another name", strings.Join(o.Foreign, ", ")))
	case o.Complete(), len(o.Predecessors) > 0:
		return nil
	case o.Refusal != nil:
		return problem(o.Refusal.Reason, o.Refusal.Message)
	case o.HighestEpoch() >= v1alpha1.MaxEpoch &&
		(o.Plan == nil || o.Plan.Slots != o.Job.Wanted || o.Plan.Forget != o.Job.Forget || o.Plan.Epoch < o.HighestEpoch()):
		return problem(v1alpha1.ReasonEpochExhausted, fmt.Sprintf(
			"Epoch %d was seen and no higher one can be published: make another ShardedJob with another consumerGroup", o.HighestEpoch()))
	case o.Job.Wanted == 0 || o.Plan == nil:
		return nil
	}
	for _, p := range workerProblems(o) {
		if p.Stalled {
			return &p
		}
	}
	if refusal := podRefusal(o); refusal != "" {
		return problem(v1alpha1.ReasonPodsMissing, podsMissing(o))
	}
	for _, p := range o.Pods {
		if p.NeedsPerson && !p.Ready && !p.Deleting && p.Ordinal < o.have() {
			return problem(v1alpha1.ReasonPodsMissing, podsMissing(o))
		}
	}
	return nil
}

// workerProblems are what workers report, the coordinator's first, then by ordinal. A notice of a pod that is gone, or
// ready again, is old.
func workerProblems(o Observation) []v1alpha1.Problem {
	var all []v1alpha1.Problem
	if o.Plan != nil && o.Report != nil && o.Report.Problem != nil && o.Report.Epoch == o.Plan.Epoch {
		all = append(all, *o.Report.Problem)
	}
	for _, pod := range o.Pods {
		notice, ok := o.Notices[pod.Ordinal]
		if !ok || notice.Pod != pod.Name || pod.Ready || pod.Deleting {
			continue
		}
		p := notice.Problem
		p.Message = pod.Name + ": " + p.Message
		if p.Reason == v1alpha1.ReasonInvalidSecret {
			p.Message += fmt.Sprintf(" (Secret %q)", o.Job.Secret)
		}
		all = append(all, p)
	}
	return all
}

func stalledCondition(stalled *v1alpha1.Problem) metav1.Condition {
	if stalled != nil {
		return condition(v1alpha1.ConditionStalled, metav1.ConditionTrue, stalled.Reason, stalled.Message)
	}
	return condition(v1alpha1.ConditionStalled, metav1.ConditionFalse, v1alpha1.ReasonProceeding, "Nobody has to act")
}

// readyCondition is True only when the present generation is in force, and somebody who is alive says so.
func readyCondition(o Observation, r *v1alpha1.RepartitionStatus, stalled *v1alpha1.Problem) metav1.Condition {
	no := func(reason, message string) metav1.Condition {
		return condition(v1alpha1.ConditionReady, metav1.ConditionFalse, reason, message)
	}
	yes := func(reason, message string) metav1.Condition {
		return condition(v1alpha1.ConditionReady, metav1.ConditionTrue, reason, message)
	}
	n := o.Job.Wanted
	switch {
	case stalled != nil && stalled.Reason == v1alpha1.ReasonPodsMissing:
		return no(v1alpha1.ReasonPodsMissing, stalled.Message)
	case stalled != nil:
		return no(v1alpha1.ReasonStalled, stalled.Message)
	case len(o.Predecessors) > 0:
		return no(v1alpha1.ReasonWaitingForPredecessor, "Waiting until what was deleted is gone: "+
			strings.Join(few(o.Predecessors, maxTroubles), ", "))
	case o.Job.Forget:
		return forgetCondition(o)
	case o.Complete():
		return yes(v1alpha1.ReasonComplete, "Every row in scope was processed"+completeTail(o)+quoteTroubles(o))
	case n == 0 && paused(o):
		return yes(v1alpha1.ReasonPaused, "No worker runs, and no lock is held")
	case n == 0:
		return no(v1alpha1.ReasonPausing, "Waiting for "+count(int32(len(o.Pods)), "pod", "pods")+" to finish the batch and stop"+quoteTroubles(o))
	case o.Plan == nil:
		return no(v1alpha1.ReasonStarting, "Starting "+count(n, "worker", "workers"))
	case neededInTrouble(o):
		return no(v1alpha1.ReasonPodsMissing, podsMissing(o))
	case r != nil:
		return no(v1alpha1.ReasonRepartitioning, repartitionMessage(r))
	case !o.Set.Exists || o.readyBelow(n) < n || !o.AllHome() || !o.ReportLive():
		return no(unheldReason(o), unheldMessage(o))
	case o.Set.Drifted || !o.Set.Settled || slices.ContainsFunc(o.Pods, func(p PodView) bool { return !p.Current }):
		return no(v1alpha1.ReasonUpdating, "The pods are being replaced by those of the new template")
	case o.Plan.Generation != o.Job.Generation || o.PlanStale || o.Report.Generation < o.Plan.Generation:
		return no(v1alpha1.ReasonUpdating, fmt.Sprintf("Not every worker has taken over generation %d yet", o.Job.Generation))
	case o.Set.Replicas != n || o.Plan.Slots != n:
		return no(v1alpha1.ReasonUpdating, fmt.Sprintf("Going to %s", count(n, "slot", "slots")))
	}
	return yes(v1alpha1.ReasonRunning, fmt.Sprintf("All %s held under epoch %d", count(n, "slot is", "slots are"), o.Plan.Epoch))
}

func paused(o Observation) bool {
	return o.Plan != nil && o.Plan.Slots == 0 && o.Plan.Generation == o.Job.Generation && o.Set.Exists && o.Set.Replicas == 0 && len(o.Pods) == 0
}

// unheldReason is Starting until the slots were all held for the first time.
func unheldReason(o Observation) string {
	if o.Plan.Epoch == 1 && (o.Report == nil || o.Report.Processed == 0) {
		return v1alpha1.ReasonStarting
	}
	return v1alpha1.ReasonSlotsUnheld
}

func repartitionMessage(r *v1alpha1.RepartitionStatus) string {
	return fmt.Sprintf("Scaling from %d to %s: %s", r.From, count(r.To, "slot", "slots"), r.Message)
}

func repartitioningCondition(o Observation, r *v1alpha1.RepartitionStatus) metav1.Condition {
	switch {
	case r != nil:
		return condition(v1alpha1.ConditionRepartitioning, metav1.ConditionTrue, string(r.Step), repartitionMessage(r))
	case o.Plan == nil:
		return condition(v1alpha1.ConditionRepartitioning, metav1.ConditionFalse, v1alpha1.ReasonSteady, "The table is not partitioned yet")
	}
	return condition(v1alpha1.ConditionRepartitioning, metav1.ConditionFalse, v1alpha1.ReasonSteady,
		"The table is partitioned into "+count(o.Plan.Slots, "slot", "slots"))
}

// databaseReasons are the problems that mean that workers cannot work on the database at all.
var databaseReasons = map[string]bool{
	v1alpha1.ReasonDatabaseUnreachable: true,
	v1alpha1.ReasonTooManyConnections:  true,
	v1alpha1.ReasonAuthFailed:          true,
	v1alpha1.ReasonDatabaseMissing:     true,
	v1alpha1.ReasonInvalidSecret:       true,
	v1alpha1.ReasonNotPrimary:          true,
	v1alpha1.ReasonTransactionPooling:  true,
}

func databaseCondition(o Observation) metav1.Condition {
	for _, p := range workerProblems(o) {
		if databaseReasons[p.Reason] {
			return condition(v1alpha1.ConditionDatabaseReachable, metav1.ConditionFalse, p.Reason, p.Message)
		}
	}
	if o.ReportLive() {
		return condition(v1alpha1.ConditionDatabaseReachable, metav1.ConditionTrue, v1alpha1.ReasonReachable, "The workers are connected")
	}
	return condition(v1alpha1.ConditionDatabaseReachable, metav1.ConditionUnknown, v1alpha1.ReasonNotObserved, "No worker reports")
}

// forgetCondition is Ready while the group's progress is dropped: True once it is, and nobody is left who could make any.
func forgetCondition(o Observation) metav1.Condition {
	switch {
	case !o.Forgotten():
		return condition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonForgetting, fmt.Sprintf(
			"The progress of consumer group %s is to be dropped: waiting for a worker to do it%s", o.Job.Group, quoteTroubles(o)))
	case len(o.Pods) > 0 || o.Set.Replicas > 0:
		return condition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonForgetting, fmt.Sprintf(
			"The progress of consumer group %s is dropped: waiting for %s to stop%s",
			o.Job.Group, count(int32(len(o.Pods)), "pod", "pods"), quoteTroubles(o)))
	}
	return condition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonForgotten, fmt.Sprintf(
		"The progress of consumer group %s is dropped: delete this ShardedJob, or remove the annotation %s to start anew",
		o.Job.Group, v1alpha1.AnnotationForget))
}

func completeCondition(o Observation) metav1.Condition {
	no := func(reason, message string) metav1.Condition {
		return condition(v1alpha1.ConditionComplete, metav1.ConditionFalse, reason, message)
	}
	switch {
	case o.Forgotten():
		return no(v1alpha1.ReasonForgotten, "The progress is dropped")
	case o.Job.Forget:
		return no(v1alpha1.ReasonForgetting, "The progress is to be dropped")
	case o.Complete() && o.Job.Pending:
		return condition(v1alpha1.ConditionComplete, metav1.ConditionTrue, v1alpha1.ReasonComplete,
			"A fresh check found no pending row"+completeTail(o))
	case o.Complete():
		return condition(v1alpha1.ConditionComplete, metav1.ConditionTrue, v1alpha1.ReasonComplete,
			"Every row that was in scope when the work began was processed"+completeTail(o))
	case o.Report == nil:
		return condition(v1alpha1.ConditionComplete, metav1.ConditionUnknown, v1alpha1.ReasonNotObserved, "No worker has reported yet")
	}
	return no(v1alpha1.ReasonInProgress, "Not every row is processed yet")
}

func suspendedCondition(o Observation) metav1.Condition {
	if o.Job.Suspended {
		return condition(v1alpha1.ConditionSuspended, metav1.ConditionTrue, v1alpha1.ReasonSuspended, "spec.suspend holds the job back")
	}
	return condition(v1alpha1.ConditionSuspended, metav1.ConditionFalse, v1alpha1.ReasonNotSuspended, "spec.suspend is false")
}
