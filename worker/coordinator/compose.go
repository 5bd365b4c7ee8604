package coordinator

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/worker/heartbeat"
)

// beatLifetime is for how long a worker that sends nothing counts as there. Workers say something every few seconds,
// but not in the middle of a batch.
const beatLifetime = 15 * time.Second

// holder is who holds a slot's lock, as pg_locks shows it.
type holder struct {
	// ordinal of the worker, -1 for a session that is not one of ours.
	ordinal int32
	// name for a person: a pod's name, or what is known of a stranger.
	name string
	// epoch under which the session works, 0 if it holds no epoch lock of this group.
	epoch int64
}

// heard is a worker's last beat and when it came.
type heard struct {
	heartbeat.Beat
	at time.Time
}

// view is all that a report is made from.
type view struct {
	job     string
	plan    v1alpha1.Plan
	now     time.Time
	holders map[int32]holder
	beats   map[int32]heard
	// batchLimit is how long a worker in the middle of a batch may stay silent.
	batchLimit time.Duration
	// problem of the coordinator itself.
	problem *v1alpha1.Problem
}

// slots says for each slot of the plan what is going on in it.
func (v view) slots() []v1alpha1.SlotStatus {
	slots := make([]v1alpha1.SlotStatus, v.plan.Slots)
	for k := range v.plan.Slots {
		slots[k] = v.slot(k)
	}
	return slots
}

func (v view) slot(k int32) v1alpha1.SlotStatus {
	s := v1alpha1.SlotStatus{Ordinal: k, Pod: v1alpha1.PodName(v.job, k), State: v1alpha1.SlotUnheld}
	beat, fresh := v.beat(k)
	if fresh {
		s.Processed, s.Failed, s.Message = beat.Processed, beat.Failed, beat.Message
	}
	lock, held := v.holders[k]
	if held {
		s.Holder = lock.name
	}
	switch {
	case held && lock.ordinal == k && lock.epoch == v.plan.Epoch:
		// The lock is the fact. What the worker says about its work counts only if it speaks of the same partition.
		s.State = v1alpha1.SlotWorking
		if fresh && beat.Epoch == v.plan.Epoch && (beat.State == v1alpha1.SlotDrained || beat.State == v1alpha1.SlotFailing) {
			s.State = beat.State
		}
	case held:
		s.State = v1alpha1.SlotWaiting
		if s.Message == "" {
			s.Message = fmt.Sprintf("its lock is held by %s", lock.name)
		}
	case fresh:
		s.State = v1alpha1.SlotWaiting
		if beat.Problem != nil {
			s.Message = beat.Problem.Message
		}
	default:
		s.Message = "no worker is connected to the database"
	}
	return s
}

// beat is what the worker said last, unless it has been silent for too long.
func (v view) beat(k int32) (heard, bool) {
	b, ok := v.beats[k]
	return b, ok && v.now.Sub(b.at) <= beatLifetime+v.batchLimit
}

// compose makes the report of a view. Figures that are not in the view are left to the caller.
func compose(v view) v1alpha1.Report {
	r := v1alpha1.Report{
		FormatVersion: v1alpha1.ReportFormatVersion,
		UID:           v.plan.UID,
		Epoch:         v.plan.Epoch,
		Slots:         v.plan.Slots,
		HighestEpoch:  v.plan.Epoch,
	}
	slots := v.slots()
	for _, s := range slots {
		switch s.State {
		case v1alpha1.SlotUnheld:
			r.SlotCounts.Unheld++
		case v1alpha1.SlotWaiting:
			r.SlotCounts.Waiting++
		default:
			r.SlotCounts.Working++
		}
		r.Failed += s.Failed
	}
	for _, b := range v.beats {
		r.HighestEpoch = max(r.HighestEpoch, b.Epoch, b.HighestEpoch)
	}
	r.Generation = v.generation(slots)
	r.Problem = v.worst(slots)
	r.SlotStatuses = exceptionsFirst(slots)
	return r
}

// generation is the lowest that a holder runs, 0 while one has not said.
func (v view) generation(slots []v1alpha1.SlotStatus) int64 {
	if len(slots) == 0 {
		return v.plan.Generation
	}
	lowest := int64(math.MaxInt64)
	for _, s := range slots {
		beat, ok := v.beat(s.Ordinal)
		if !ok || beat.Epoch != v.plan.Epoch {
			return 0
		}
		// It is 0 of a worker that knows the partition from the locks alone, and so may run an older statement.
		lowest = min(lowest, beat.Generation)
	}
	return lowest
}

// settled says that every slot is held and has nothing left that can be done, all under this plan.
func (v view) settled(slots []v1alpha1.SlotStatus) bool {
	for _, s := range slots {
		if s.State != v1alpha1.SlotDrained && s.State != v1alpha1.SlotFailing {
			return false
		}
	}
	return len(slots) > 0 && v.generation(slots) >= v.plan.Generation && v.plan.Generation > 0
}

// drained says that every slot is held and its worker found nothing pending under this plan.
func (v view) drained(slots []v1alpha1.SlotStatus) bool {
	return v.settled(slots) && !slices.ContainsFunc(slots, func(s v1alpha1.SlotStatus) bool { return s.State != v1alpha1.SlotDrained })
}

// worst is the problem to show: one that a person must act on before one that may pass, the lowest ordinal first. Rows
// that fail are a problem only once everything else is done.
func (v view) worst(slots []v1alpha1.SlotStatus) *v1alpha1.Problem {
	worst := v.problem
	for _, s := range slots {
		beat, ok := v.beat(s.Ordinal)
		if ok && beat.Problem != nil && (worst == nil || (beat.Problem.Stalled && !worst.Stalled)) {
			worst = beat.Problem
		}
	}
	if worst != nil || !v.settled(slots) {
		return worst
	}
	for _, s := range slots {
		if s.State == v1alpha1.SlotFailing {
			failed := int64(0)
			for _, o := range slots {
				failed += o.Failed
			}
			return &v1alpha1.Problem{
				Reason:  v1alpha1.ReasonRowsFailing,
				Message: fmt.Sprintf("%d rows failed every attempt and all others are done; mend the rows or the statement. For example, in slot %d: %s", failed, s.Ordinal, s.Message),
				Stalled: true,
			}
		}
	}
	return nil
}

// exceptionsFirst cuts the list to what a status can hold, what needs attention first.
func exceptionsFirst(slots []v1alpha1.SlotStatus) []v1alpha1.SlotStatus {
	order := map[v1alpha1.SlotState]int{
		v1alpha1.SlotUnheld: 0, v1alpha1.SlotWaiting: 1, v1alpha1.SlotFailing: 2, v1alpha1.SlotWorking: 3, v1alpha1.SlotDrained: 4,
	}
	slices.SortStableFunc(slots, func(a, b v1alpha1.SlotStatus) int { return cmp.Compare(order[a.State], order[b.State]) })
	return slots[:min(len(slots), v1alpha1.MaxSlotEntries)]
}

// remember keeps a completion for as long as the partition it was found under stands.
func completion(last *v1alpha1.Report, now v1alpha1.Report) *metav1.Time {
	if last != nil && last.Epoch == now.Epoch && last.CompleteTime != nil {
		return last.CompleteTime
	}
	return nil
}
