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
	// pid of the session on the server.
	pid int32
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
	// own are the last words of each slot's own worker, adopted those of whoever works it in its place.
	own, adopted map[int32]heard
	// batchLimit is how long a worker in the middle of a batch may stay silent.
	batchLimit time.Duration
	// problem of the coordinator itself.
	problem *v1alpha1.Problem
}

// slot is what is known of a slot.
type slot struct {
	v1alpha1.SlotStatus
	// speaker is the worker that works it and what it said last, nil if that is not known.
	speaker *heard
	// settled is Drained or Failing if nothing is left that can be done, else empty.
	settled v1alpha1.SlotState
}

// slots says for each slot of the plan what is going on in it.
func (v view) slots() []slot {
	slots := make([]slot, v.plan.Slots)
	for k := range v.plan.Slots {
		slots[k] = v.slot(k)
	}
	return slots
}

func (v view) slot(k int32) slot {
	s := slot{SlotStatus: v1alpha1.SlotStatus{Ordinal: k, Pod: v1alpha1.PodName(v.job, k), State: v1alpha1.SlotUnheld}}
	own, fresh := v.beat(k)
	if fresh {
		s.Processed, s.Failed, s.Message = own.Processed, own.Failed, own.Message
	}
	lock, held := v.holders[k]
	if held {
		s.Holder, s.HolderPID = lock.name, lock.pid
	}
	adopter, serves := v.adopter(k, lock, held)
	switch {
	case held && lock.ordinal == k && lock.epoch == v.plan.Epoch:
		// The lock is the fact. What the worker says about its work counts only if it speaks of the same partition.
		s.State = v1alpha1.SlotWorking
		if fresh {
			s.speaker = &own
			s.settled = v.settledBy(own)
		}
		if s.settled != "" {
			s.State = s.settled
		}
	case held && lock.ordinal >= 0 && lock.ordinal != k && lock.epoch == v.plan.Epoch, !held && !fresh && serves:
		s.State = v1alpha1.SlotAdopted
		if serves {
			s.speaker, s.settled = &adopter, v.settledBy(adopter)
			s.Processed, s.Failed = adopter.Processed, adopter.Failed
			s.Message = adoptedMessage(v.job, adopter, s.settled, s.Message)
		}
	case held:
		s.State = v1alpha1.SlotWaiting
		if s.Message == "" {
			s.Message = fmt.Sprintf("its lock is held by %s", lock.name)
		}
	case fresh:
		s.State = v1alpha1.SlotWaiting
		if own.Problem != nil {
			s.Message = own.Problem.Message
		}
	default:
		s.Message = "no worker is connected to the database"
	}
	return s
}

// adoptedMessage says who works the slot, and what its own worker says if that is there.
func adoptedMessage(job string, by heard, settled v1alpha1.SlotState, own string) string {
	message := "worked by " + v1alpha1.PodName(job, by.Ordinal) + " in place of its own worker"
	switch {
	case settled == v1alpha1.SlotDrained:
		message += ", nothing is pending in it"
	case by.Message != "":
		message += ": " + by.Message
	}
	if own != "" {
		message += "; its own worker: " + own
	}
	return message
}

// settledBy is what a worker says of a slot that it works, if it means that nothing is left that can be done.
func (v view) settledBy(b heard) v1alpha1.SlotState {
	if b.Epoch == v.plan.Epoch && (b.State == v1alpha1.SlotDrained || b.State == v1alpha1.SlotFailing) {
		return b.State
	}
	return ""
}

// beat is what the slot's own worker said last, unless it has been silent for too long.
func (v view) beat(k int32) (heard, bool) {
	b, ok := v.own[k]
	return b, ok && v.now.Sub(b.at) <= beatLifetime+v.batchLimit
}

// turnTime is how long an adopter may take for each slot that it serves in turn, between two looks of the coordinator.
const turnTime = 5 * time.Second

// adopter is who works the slot in place of its own worker, and its last word of it: the lock's holder, or, where nobody
// holds the lock right now, whoever serves the slot in turn with others.
func (v view) adopter(k int32, lock holder, held bool) (heard, bool) {
	b, ok := v.adopted[k]
	if !ok || b.Epoch != v.plan.Epoch || held && b.Ordinal != lock.ordinal {
		return heard{}, false
	}
	unheld := 0
	for slot := range v.plan.Slots {
		if h, ok := v.holders[slot]; !ok || h.ordinal != slot {
			unheld++
		}
	}
	return b, v.now.Sub(b.at) <= beatLifetime+v.batchLimit+turnTime*time.Duration(unheld)
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
		case v1alpha1.SlotAdopted:
			r.SlotCounts.Adopted++
		default:
			r.SlotCounts.Working++
		}
		r.Failed += s.Failed
		if s.speaker != nil && s.speaker.Warning != "" {
			r.Warnings = warnings(r.Warnings, []string{s.speaker.Warning})
		}
	}
	for _, b := range v.own {
		r.HighestEpoch = max(r.HighestEpoch, b.Epoch, b.HighestEpoch)
	}
	r.Generation = v.generation(slots)
	r.Forgotten = v.plan.Forget && v.drained(slots)
	r.Problem = v.worst(slots)
	r.SlotStatuses = exceptionsFirst(slots)
	return r
}

// warnings adds sentences that are not there yet, as long as there is room.
func warnings(have, more []string) []string {
	for _, w := range more {
		if len(have) < v1alpha1.MaxWarnings && !slices.Contains(have, w) {
			have = append(have, w)
		}
	}
	return have
}

// generation is the lowest that a worker of a slot runs, 0 while one has not said.
func (v view) generation(slots []slot) int64 {
	if len(slots) == 0 {
		return v.plan.Generation
	}
	lowest := int64(math.MaxInt64)
	for _, s := range slots {
		if s.speaker == nil || s.speaker.Epoch != v.plan.Epoch {
			return 0
		}
		// It is 0 of a worker that knows the partition from the locks alone, and so may run an older statement.
		lowest = min(lowest, s.speaker.Generation)
	}
	return lowest
}

// settled says that every slot is worked and has nothing left that can be done, all under this plan.
func (v view) settled(slots []slot) bool {
	for _, s := range slots {
		if s.settled == "" {
			return false
		}
	}
	return len(slots) > 0 && v.generation(slots) >= v.plan.Generation && v.plan.Generation > 0
}

// drained says that every slot is worked and its worker found nothing pending under this plan.
func (v view) drained(slots []slot) bool {
	return v.settled(slots) && !slices.ContainsFunc(slots, func(s slot) bool { return s.settled != v1alpha1.SlotDrained })
}

// worst is the problem to show: one that a person must act on before one that may pass, the lowest ordinal first. Rows
// that fail are a problem only once everything else is done.
func (v view) worst(slots []slot) *v1alpha1.Problem {
	worst := v.problem
	consider := func(p *v1alpha1.Problem) {
		if p != nil && (worst == nil || (p.Stalled && !worst.Stalled)) {
			worst = p
		}
	}
	for _, s := range slots {
		if own, ok := v.beat(s.Ordinal); ok {
			consider(own.Problem)
		}
		if s.speaker != nil {
			consider(s.speaker.Problem)
		}
	}
	if worst != nil || !v.settled(slots) {
		return worst
	}
	for _, s := range slots {
		if s.settled == v1alpha1.SlotFailing {
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
func exceptionsFirst(slots []slot) []v1alpha1.SlotStatus {
	order := map[v1alpha1.SlotState]int{
		v1alpha1.SlotUnheld: 0, v1alpha1.SlotWaiting: 1, v1alpha1.SlotFailing: 2, v1alpha1.SlotAdopted: 3, v1alpha1.SlotWorking: 4,
		v1alpha1.SlotDrained: 5,
	}
	slices.SortStableFunc(slots, func(a, b slot) int { return cmp.Compare(order[a.State], order[b.State]) })
	var first []v1alpha1.SlotStatus
	for _, s := range slots[:min(len(slots), v1alpha1.MaxSlotEntries)] {
		first = append(first, s.SlotStatus)
	}
	return first
}

// remember keeps a completion for as long as the partition it was found under stands.
func completion(last *v1alpha1.Report, now v1alpha1.Report) *metav1.Time {
	if last != nil && last.Epoch == now.Epoch && last.CompleteTime != nil {
		return last.CompleteTime
	}
	return nil
}
