package worker

import (
	"context"
	"slices"
	"sync"
	"time"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/worker/adoption"
	"shardedjob.dev/worker/fence"
	"shardedjob.dev/worker/heartbeat"
	"shardedjob.dev/worker/internal/sleep"
)

const (
	// takenPause is how long an adopter leaves a slot alone that somebody else has or wants.
	takenPause = 2 * time.Second
	// adopterLinger is how long the adopter keeps its session when there is nothing left to adopt.
	adopterLinger = 10 * time.Second
)

// adoptedTurn is how long an adopter works a slot before it goes on to the next of those that it looks after: long enough for
// the other workers to see it.
func adoptedTurn(slots int32) time.Duration { return 2 * fence.LookInterval(slots) }

// adopter works slots whose own workers are missing, on a session of its own and one after the other, beside the worker's
// own slot. Which slots it looks after follows from the locks that its worker sees.
type adopter struct {
	worker *Worker
	state  state
	kept   memory

	tracker *adoption.Tracker // used by the worker's own loop alone

	mu       sync.Mutex
	assigned []int32
	changed  chan struct{}
	due      map[int32]time.Time // when to look at a slot again
	last     int32               // the slot of the last turn
}

func newAdopter(w *Worker) *adopter {
	a := &adopter{worker: w, tracker: adoption.NewTracker(w.ordinal), changed: make(chan struct{}), due: map[int32]time.Time{}}
	a.state.beat = heartbeat.Beat{Ordinal: w.ordinal, Slot: w.ordinal, Run: w.run + "+", State: v1alpha1.SlotWaiting}
	return a
}

// see draws from a look at the group's locks which slots to look after.
func (a *adopter) see(claim fence.Claim, holders []fence.Holder) {
	plan, _ := a.worker.feed.Current()
	if plan.Epoch != claim.Epoch || plan.Slots != claim.Slots || plan.Forget {
		a.assign(nil)
		return
	}
	look := adoption.See(claim.Group, claim.Epoch, claim.Slots, holders)
	all := a.tracker.Look(look, time.Duration(plan.AdoptAfterSeconds)*time.Second, time.Now())
	a.assign(all.Of(claim.Ordinal))
}

// assign sets the slots to look after.
func (a *adopter) assign(slots []int32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if slices.Equal(a.assigned, slots) {
		return
	}
	a.assigned = slots
	for k := range a.due {
		if !slices.Contains(slots, k) {
			delete(a.due, k)
		}
	}
	close(a.changed)
	a.changed = make(chan struct{})
}

// assignment is the slots to look after, and a channel that is closed when they change.
func (a *adopter) assignment() ([]int32, <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.assigned, a.changed
}

// cares says whether a slot is still to be looked after.
func (a *adopter) cares(slot int32) bool {
	slots, _ := a.assignment()
	return slices.Contains(slots, slot)
}

// next is the slot whose turn it is: the one after the last that is due, or else the one that is due first, and when.
func (a *adopter) next() (slot int32, at time.Time, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, k := range a.rotation() {
		if due := a.due[k]; !ok || due.Before(at) {
			slot, at, ok = k, due, true
		}
	}
	return slot, at, ok
}

// rotation is the slots in the order of their turns, with those that are due now all alike.
func (a *adopter) rotation() []int32 {
	now := time.Now()
	for k, due := range a.due {
		if !due.After(now) {
			delete(a.due, k)
		}
	}
	i, _ := slices.BinarySearch(a.assigned, a.last+1)
	return slices.Concat(a.assigned[i:], a.assigned[:i])
}

// othersWait says whether another slot than this one is due.
func (a *adopter) othersWait(slot int32) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	return slices.ContainsFunc(a.assigned, func(k int32) bool { return k != slot && !a.due[k].After(now) })
}

// putOff leaves a slot alone until the time given.
func (a *adopter) putOff(slot int32, until time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.due[slot] = until
}

// run serves until the context ends.
func (a *adopter) run(ctx context.Context) {
	backoff := reconnect
	for ctx.Err() == nil {
		slots, changed := a.assignment()
		if len(slots) == 0 {
			select {
			case <-ctx.Done():
			case <-changed:
			}
			continue
		}
		began := time.Now()
		err := a.hold(ctx)
		a.state.session(0, false)
		if err == nil || ctx.Err() != nil {
			continue
		}
		problem := sessionProblem(err)
		a.worker.log.Warn("The adopter's session ended", "reason", problem.Reason, "message", problem.Message)
		if time.Since(began) > goodSession {
			backoff = reconnect
		}
		sleep.For(ctx, backoff.Step())
	}
}

// hold opens a session and serves on it until there has been nothing to adopt for a while. Only the loss of the session is
// an error.
func (a *adopter) hold(ctx context.Context) error {
	plan, _ := a.worker.feed.Current()
	s, err := a.worker.open(ctx, plan, &a.state, "adopter of ")
	if err != nil {
		return err
	}
	defer s.end(ctx)
	idle := time.Now()
	for ctx.Err() == nil && time.Since(idle) < adopterLinger {
		changed := a.worker.feed.Changed()
		plan, _ := a.worker.feed.Current()
		slot, at, ok := a.next()
		if !ok || slot >= plan.Slots {
			if err := s.rest(ctx, s.claim(plan, s.ordinal), changed, pollEvery); err != nil {
				return err
			}
			continue
		}
		idle = time.Now()
		if wait := time.Until(at); wait > 0 {
			if err := s.rest(ctx, s.claim(plan, slot), changed, min(wait, pollEvery)); err != nil {
				return err
			}
			continue
		}
		a.mu.Lock()
		a.last = slot
		a.mu.Unlock()
		a.putOff(slot, time.Now().Add(takenPause)) // unless its turn says otherwise
		a.state.follow(plan)
		a.state.serve(slot)
		if err := s.round(ctx, plan, changed, slot); err != nil {
			return err
		}
	}
	return nil
}

// turn is an adopter's time with one slot.
type turn struct {
	*shift
	claim fence.Claim
	until time.Time
}

// over says whether to hand the slot back, or to go on to the next one. It is asked at each batch boundary, and keeps in
// mind when the slot is due again.
func (t *turn) over(ctx context.Context, due time.Time) (bool, error) {
	a := t.adopter
	ctx, cancel := bounded(ctx, callTimeout)
	defer cancel()
	wanted, err := t.session.Wanted(ctx, t.claim)
	switch {
	case err != nil:
		return true, err
	case wanted:
		t.log.Info("Handing a slot back to its own worker", "slot", t.claim.Slot)
		return true, nil
	case !a.cares(t.claim.Slot):
		return true, nil
	}
	waits := time.Until(due) > 0
	if (waits || time.Now().After(t.until)) && a.othersWait(t.claim.Slot) {
		a.putOff(t.claim.Slot, due)
		return true, nil
	}
	return false, nil
}
