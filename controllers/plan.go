package controllers

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"shardedjob.dev/api/v1alpha1"
)

// Patience bounds the two waits of a re-partition: for another new pod to become ready before the switch, and for all
// slots to be held before surplus pods are stopped.
const Patience = 120 * time.Second

// Step is the one thing to do next.
type Step interface{ step() }

type (
	// Record writes the status, where the target of a re-partition or the completion is not written down yet, before
	// anything is done about it.
	Record struct{}
	// ApplyChildren makes the workers' account, role, binding and report as they should be.
	ApplyChildren struct{}
	// WritePlan publishes the newest spec under the given partition.
	WritePlan struct {
		Epoch int64
		Slots int32
	}
	// ApplySet makes the StatefulSet as it should be, with the given number of pods.
	ApplySet struct{ Replicas int32 }
	// DeletePods deletes pods that the StatefulSet controller does not get rid of; Why is a clause for an event.
	DeletePods struct {
		Pods []PodView
		Why  string
	}
	// ForceDeletePods removes pods that their node does not stop and whose workers are known to be gone.
	ForceDeletePods struct{ Pods []PodView }
	// DeleteJob deletes the complete job, whose time to live is over.
	DeleteJob struct{}
	// Wait does nothing until something changes or the given time has passed; 0 is for ever.
	Wait struct{ For time.Duration }
)

func (Record) step()          {}
func (ApplyChildren) step()   {}
func (WritePlan) step()       {}
func (ApplySet) step()        {}
func (DeletePods) step()      {}
func (ForceDeletePods) step() {}
func (DeleteJob) step()       {}
func (Wait) step()            {}

const (
	// pollForeign is how often to look whether a foreign object is gone: nobody tells us.
	pollForeign = 30 * time.Second
	// pollPredecessor is how often to look whether leftovers are gone, beside being told.
	pollPredecessor = 5 * time.Second
	// pollPodRefusal is how often to look for the reason of missing pods: it exists as an event alone.
	pollPodRefusal = 10 * time.Second
)

// Next is the next step towards the wish. The rules, for n slots wanted and a plan of m slots under epoch e:
//
//	no plan, or m = 0 < n    publish (e+1, n): nobody is working who could be disturbed
//	m < n                    more pods first; publish (e+1, n) once they are ready or Patience is over
//	m > n                    publish (e+1, n) at once; stop surplus pods once all n slots are held
//	m = n                    keep plan and StatefulSet as they should be
//
// A slot counts as held whether by its own worker or by one that adopted it, so a pod that never comes holds nothing up.
// To drop the group's progress is a partition of its own, with one slot; nobody works under it.
//
// The wish is always the newest: a change in the middle of a re-partition starts again from the table above.
func Next(o Observation) Step {
	switch {
	case o.Job.Deleting:
		return Wait{} // the garbage collector takes the children
	case len(o.Foreign) > 0:
		return Wait{For: pollForeign}
	case len(o.Predecessors) > 0:
		return Wait{For: pollPredecessor}
	case o.Complete():
		return finish(o)
	case o.ChildrenDrifted:
		return ApplyChildren{}
	}
	if step := nextPlan(o); step != nil {
		return step
	}
	if want := wantedReplicas(o); !o.Set.Exists || o.Set.Drifted || o.Set.Replicas != want {
		return ApplySet{Replicas: want}
	}
	if stuck := stuckPods(o); len(stuck) > 0 {
		return DeletePods{Pods: stuck, Why: "is of an old template and never became ready"}
	}
	if blocking := blockingPods(o); len(blocking) > 0 {
		return DeletePods{Pods: blocking, Why: "is surplus and takes the room of one that is refused"}
	}
	if gone := removablePods(o); len(gone) > 0 {
		return ForceDeletePods{Pods: gone}
	}
	return Wait{For: waits(o)}
}

// finish lets the pods of a complete job go, and the job itself when its time is over. The plan stays: it says what was
// done.
func finish(o Observation) Step {
	if o.Status.CompletionTime == nil {
		return Record{}
	}
	if o.have() > 0 {
		return ApplySet{Replicas: 0}
	}
	wait := untilOverdue(o)
	if o.Job.TTL != nil {
		left := completeSince(o).Add(*o.Job.TTL).Sub(o.Now)
		if left <= 0 {
			return DeleteJob{}
		}
		wait = soonest(wait, left)
	}
	return Wait{For: wait}
}

// completeSince is when the object became complete, which its work may have been long before.
func completeSince(o Observation) time.Time {
	if c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionComplete); c != nil && c.Status == metav1.ConditionTrue {
		return c.LastTransitionTime.Time
	}
	return o.Now
}

// nextPlan is the next step about the plan, or nil.
func nextPlan(o Observation) Step {
	n, epoch := o.Job.Wanted, o.HighestEpoch()+1
	canPublish := epoch <= v1alpha1.MaxEpoch
	if !targetRecorded(o) {
		return Record{}
	}
	if o.Plan == nil {
		if !canPublish {
			return Wait{}
		}
		return WritePlan{Epoch: epoch, Slots: n}
	}
	m := o.worked()
	if canPublish {
		switch {
		case o.Plan.Forget == o.Job.Forget && o.Plan.Epoch < o.HighestEpoch():
			// The plan was lost and restored from an older one: workers refuse an epoch that went back.
			return WritePlan{Epoch: epoch, Slots: min(m, n)}
		case o.Plan.Forget != o.Job.Forget, m > n, m == 0 && n > 0, m < n && readyToGrow(o):
			return WritePlan{Epoch: epoch, Slots: n}
		}
	}
	if o.Plan.Forget == o.Job.Forget && (o.PlanStale || m == n && o.Plan.Generation != o.Job.Generation) {
		return WritePlan{Epoch: o.Plan.Epoch, Slots: m}
	}
	return nil
}

// targetRecorded says whether the status holds the present target of a re-partition, if there is one, and no completion of
// which the progress is dropped.
func targetRecorded(o Observation) bool {
	r := o.Status.Repartition
	switch {
	case o.Forgetting() && o.Status.CompletionTime != nil:
		return false
	case o.Job.Forget:
		return r == nil
	case o.Plan == nil:
		return true
	case r != nil:
		return r.To == o.Job.Wanted
	}
	return o.worked() == o.Job.Wanted
}

// readyToGrow says whether the new pods are there, or no more of them can be expected.
func readyToGrow(o Observation) bool {
	n := o.Job.Wanted
	if missingConnections(o) > 0 || !o.Set.Exists || o.Set.Replicas < n {
		return false
	}
	return o.readyBelow(n) == n || !o.Now.Before(growDeadline(o))
}

// growDeadline is when the switch goes on without the pods that are not ready.
func growDeadline(o Observation) time.Time {
	var last time.Time
	if r := o.Status.Repartition; r != nil {
		last = r.StartTime.Time
	}
	for _, p := range o.Pods {
		if p.Ordinal < o.Job.Wanted && p.ReadySince.After(last) {
			last = p.ReadySince
		}
	}
	return last.Add(Patience)
}

// missingConnections is how many connections the database lacks for the pods that growth would add. Only a report that
// speaks of now can hold growth back.
func missingConnections(o Observation) int32 {
	if o.Plan == nil || o.Plan.Slots == 0 || o.Plan.Slots >= o.Job.Wanted || !o.ReportLive() || o.Report.Connections == nil {
		return 0
	}
	return max(0, o.Job.Wanted-o.have()-o.Report.Connections.Free)
}

// wantedReplicas is how many pods the StatefulSet is to have now. It never gets fewer than the plan needs, nor fewer
// than it has while a surplus pod may still hold a slot.
func wantedReplicas(o Observation) int32 {
	need := o.Job.Wanted
	if o.Forgotten() {
		return 0
	}
	if o.Plan != nil {
		need = o.Plan.Slots
		if need < o.Job.Wanted && missingConnections(o) == 0 && o.HighestEpoch() < v1alpha1.MaxEpoch {
			need = o.Job.Wanted
		}
	}
	if have := o.have(); have > need && !mayStop(o, need) {
		return have
	}
	return need
}

// mayStop says whether pods with ordinal n and higher may go: every slot is held under the present plan, which has n
// slots or fewer; or none of them was ever ready; or they take the room of pods that the API server refuses; or
// waiting was long enough. A pause waits for nobody.
func mayStop(o Observation, n int32) bool {
	if o.Plan == nil {
		return false
	}
	if o.Plan.Slots == 0 || o.AllHeld() || podRefusal(o) != "" || !o.Now.Before(o.Published.Add(Patience)) {
		return true
	}
	for _, p := range o.surplus(n) {
		if p.EverReady {
			return false
		}
	}
	return true
}

// stuckPods are pods of an old template that never became ready. The StatefulSet controller replaces pods one after the
// other, and in some versions waits for ever for such a one.
func stuckPods(o Observation) []PodView {
	var stuck []PodView
	for _, p := range o.Pods {
		if !p.Current && !p.EverReady && !p.Deleting {
			stuck = append(stuck, p)
		}
	}
	return stuck
}

// blockingPods are surplus pods that have the room, of a quota for example, which a pod that is needed wants. The
// StatefulSet controller stops at the pod that it cannot create, and so never comes to removing them.
func blockingPods(o Observation) []PodView {
	if podRefusal(o) == "" {
		return nil
	}
	var blocking []PodView
	for _, p := range o.Pods {
		if p.Ordinal >= o.Set.Replicas && !p.Deleting {
			blocking = append(blocking, p)
		}
	}
	return blocking
}

// waits is how long until time alone changes the plan or something has to be looked at that nobody tells of; 0 if
// never.
func waits(o Observation) time.Duration {
	wait := untilOverdue(o)
	sooner := func(d time.Duration) {
		if d > 0 {
			wait = soonest(wait, d)
		}
	}
	if o.Plan != nil && o.Plan.Slots < o.Job.Wanted {
		sooner(growDeadline(o).Sub(o.Now))
	}
	if o.Plan != nil && o.Set.Replicas > o.Job.Wanted {
		sooner(o.Published.Add(Patience).Sub(o.Now))
	}
	if o.missing() > 0 {
		sooner(pollPodRefusal)
	}
	return wait
}
