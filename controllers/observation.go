package controllers

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"shardedjob.dev/api/v1alpha1"
)

// Observation is what one pass knows of the world: plain values, from which the plan and the status follow.
type Observation struct {
	// Now is when it was made.
	Now time.Time
	// Job is the wish.
	Job JobView
	// Status is what was last written.
	Status v1alpha1.ShardedJobStatus

	// Foreign are objects that are in the way and belong to somebody else, as "Kind name".
	Foreign []string
	// Predecessors are leftovers of a deleted job of the same name, or of this one, that are being removed, as
	// "Kind name".
	Predecessors []string
	// ChildrenDrifted says that an account, role, binding or the report is missing or not as it should be.
	ChildrenDrifted bool

	// Plan is the published plan; nil if there is none that can be read.
	Plan *v1alpha1.Plan
	// Published is when its epoch was.
	Published time.Time
	// PlanStale says that the job's spec asks for another plan, the number of slots, epoch and generation aside.
	PlanStale bool

	// Report is the coordinator's last word; nil if there is none.
	Report *v1alpha1.Report
	// ReportError says what is wrong with the report, if anything.
	ReportError string
	// Notices are of workers that cannot use the database, by ordinal.
	Notices map[int32]v1alpha1.Notice

	// Set is the StatefulSet.
	Set SetView
	// Pods are the job's pods, by ordinal.
	Pods []PodView
	// PodRefusal is the API server's latest reason for refusing to create a pod.
	PodRefusal string
	// Refusal is why the API server refused what this pass tried.
	Refusal *Refusal
}

// JobView is the wish.
type JobView struct {
	Name       string
	UID        types.UID
	Created    time.Time
	Generation int64
	Deleting   bool
	Suspended  bool
	// Group is the consumer group.
	Group string
	// Pending says that the rows themselves remember what is done.
	Pending bool
	// Forget says that the group's progress is to be dropped.
	Forget bool
	// ForceDelete says that a pod which its node does not stop is to be removed once its worker is known to be gone.
	ForceDelete bool
	// Secret is the name of the database Secret, which workers know by its mount alone.
	Secret string
	// Wanted is the number of slots: replicas, 0 while suspended, and 1 to drop progress, since somebody has to do it.
	Wanted int32
	// TTL is how long a complete job stays; nil for ever.
	TTL *time.Duration
}

// SetView is the StatefulSet, if it exists and is ours.
type SetView struct {
	Exists bool
	// Replicas is how many pods it is to have.
	Replicas int32
	// Drifted says that it is not as the job wants it, replicas aside.
	Drifted bool
	// Settled says that the StatefulSet controller has seen its newest version, so that PodView.Current speaks of it.
	Settled bool
}

// PodView is one pod.
type PodView struct {
	Name    string
	Ordinal int32
	UID     types.UID
	Created time.Time
	Ready   bool
	// ReadySince is when it became ready; zero while it is not.
	ReadySince time.Time
	// EverReady says that it is or was ready, so that its worker may have held a lock.
	EverReady bool
	// Current says that it runs the newest pod template.
	Current bool
	// Deleting says that it is on its way out.
	Deleting bool
	// Node is where it runs.
	Node string
	// GoneBy is when its node was to have stopped it; zero if it is not deleted, or waits for something else to go.
	GoneBy time.Time
	// NodeLost says that the control plane hears nothing of its node.
	NodeLost bool
	// Trouble is why it does not get ready, in the words of the kubelet or the scheduler.
	Trouble string
	// NeedsPerson says that the trouble will not pass by itself.
	NeedsPerson bool
}

// Refusal is an answer of the API server that trying again will not change.
type Refusal struct {
	// Reason is ReasonInvalidTemplate or ReasonForbidden.
	Reason string
	// Message is the API server's.
	Message string
}

// Complete says that the work is done: it was recorded, or the workers of the current plan say so. It is final for this
// object, unless its group's progress is dropped.
func (o Observation) Complete() bool {
	if o.Forgetting() {
		return false
	}
	return o.Status.CompletionTime != nil || o.reportOfPlan() && o.Report.CompleteTime != nil
}

// Forgetting says that the group's progress is being or was dropped, so that what was known of it holds no more.
func (o Observation) Forgetting() bool { return o.Job.Forget || o.Plan != nil && o.Plan.Forget }

// Forgotten says that the group's progress was dropped, as the job still asks.
func (o Observation) Forgotten() bool {
	return o.Job.Forget && o.reportOfPlan() && o.Plan.Forget && o.Report.Forgotten
}

// reportOfPlan says that there is a report, and that it speaks of the partition of the plan.
func (o Observation) reportOfPlan() bool {
	return o.Plan != nil && o.Report != nil && o.Report.Epoch == o.Plan.Epoch && o.Report.Slots == o.Plan.Slots
}

// AllHeld says that every slot of the plan is held under it, by its own worker or an adopter, and so nobody works under
// an older one.
func (o Observation) AllHeld() bool {
	return o.reportOfPlan() && o.Report.SlotCounts.Working+o.Report.SlotCounts.Adopted == o.Plan.Slots
}

// AllHome says that every slot of the plan is held under it by its own worker.
func (o Observation) AllHome() bool { return o.AllHeld() && o.Report.SlotCounts.Adopted == 0 }

// worked is how many slots are worked under the plan: none of one that only dropped progress.
func (o Observation) worked() int32 {
	if o.Plan.Forget && !o.Job.Forget {
		return 0
	}
	return o.Plan.Slots
}

// ReportLive says that the pod that wrote the report is there and ready, so that the report speaks of now.
func (o Observation) ReportLive() bool {
	if o.Report == nil {
		return false
	}
	for _, p := range o.Pods {
		if p.Name == o.Report.Coordinator {
			return p.Ready && !p.Deleting
		}
	}
	return false
}

// HighestEpoch is the highest epoch that anybody has seen.
func (o Observation) HighestEpoch() int64 {
	var highest int64
	if o.Status.Partition != nil {
		highest = o.Status.Partition.Epoch
	}
	if o.Plan != nil {
		highest = max(highest, o.Plan.Epoch)
	}
	if o.Report != nil {
		highest = max(highest, o.Report.Epoch, o.Report.HighestEpoch)
	}
	return highest
}

// readyBelow counts ready pods with an ordinal below n.
func (o Observation) readyBelow(n int32) int32 {
	var ready int32
	for _, p := range o.Pods {
		if p.Ordinal < n && p.Ready && !p.Deleting {
			ready++
		}
	}
	return ready
}

// surplus are the pods with ordinal n or higher.
func (o Observation) surplus(n int32) []PodView {
	var pods []PodView
	for _, p := range o.Pods {
		if p.Ordinal >= n {
			pods = append(pods, p)
		}
	}
	return pods
}

// missing is how many of the pods that the StatefulSet should have do not exist.
func (o Observation) missing() int32 {
	if !o.Set.Exists {
		return 0
	}
	missing := o.Set.Replicas
	for _, p := range o.Pods {
		if p.Ordinal < o.Set.Replicas {
			missing--
		}
	}
	return missing
}

// have is how many pods the StatefulSet has; if someone deleted it, how many it must have to keep those that are left.
func (o Observation) have() int32 {
	if o.Set.Exists {
		return o.Set.Replicas
	}
	var have int32
	for _, p := range o.Pods {
		have = max(have, p.Ordinal+1)
	}
	return have
}
