// Package adoption decides which orphaned slots a worker serves beside its own. It is pure: it is fed with looks at the
// group's locks and a clock, and does no I/O.
//
// A slot is orphaned when nobody has held it, and its own worker has not asked for it, for a while; or when it is seen in the
// hands of an adopter. Orphans are spread evenly over the live workers, those that hold their own slots. Each worker
// works that out for itself, with the same result from the same looks; where looks differ two workers may think that a
// slot is theirs, or none may, and the locks put that right: only one gets the slot, and all see who. So an adopted slot
// belongs to the worker that was last seen with it, and stays with it while it is served in turn with others. A turn should
// last longer than the time between two looks, so that others see it.
package adoption

import (
	"maps"
	"slices"
	"time"
)

const (
	nobody = -1
	// missingLooks is how often a worker has to be seen without any of the slots that it should serve, beside the time it
	// has for that, to count as one that cannot: between two slots it holds none.
	missingLooks = 3
	// pardon is after how many times adoptAfter one of those is given slots again though others are there.
	pardon = 10
)

// An Assignment says who serves the orphaned slots: the worker's ordinal for each.
type Assignment map[int32]int32

// Of lists the slots that a worker should serve, in order.
func (a Assignment) Of(ordinal int32) (slots []int32) {
	for slot, by := range a {
		if by == ordinal {
			slots = append(slots, slot)
		}
	}
	slices.Sort(slots)
	return slots
}

// A Tracker remembers what has been seen of a plan's slots. The zero value has seen nothing. One goroutine uses it.
type Tracker struct {
	epoch   int64
	slots   []slot
	workers map[int32]*worker
	trial   int32     // the worker that was pardoned last
	again   time.Time // when the next may be
}

// slot is what is remembered of a slot.
type slot struct {
	free   time.Time // since then free, and with this server; zero if the last look saw somebody with it
	orphan bool
	server int32 // who serves it, or nobody
}

// worker is what is remembered of a live worker.
type worker struct {
	since  time.Time // live since
	due    time.Time // seen with an adopted slot, or given the first one; zero if it serves none
	unseen int       // looks since then
	missed bool      // did not serve what it was given
}

// Look takes in one look and returns who serves which orphaned slot. The times must be read from one monotonic clock, and not run
// backwards. Another plan starts everything anew.
//
// A worker is given slots once it has been live for adoptAfter: by then it knows the orphans too, and one that crashes soon
// after each start moves nobody's slots. One that holds none of its slots for adoptAfter, because it gets no connection for
// example, is passed over in favor of the others. Nobody serves two slots more than another, but for what moves just then.
func (t *Tracker) Look(look Look, adoptAfter time.Duration, now time.Time) Assignment {
	if t.workers == nil || t.epoch != look.Epoch || len(t.slots) != len(look.Slots) {
		*t = Tracker{epoch: look.Epoch, slots: make([]slot, len(look.Slots)), workers: map[int32]*worker{}, trial: nobody}
		for k := range t.slots {
			t.slots[k].server = nobody
		}
	}
	t.seeSlots(look, adoptAfter, now)
	t.seeWorkers(look, now)
	t.passOver(adoptAfter, now)
	candidates := t.candidates(adoptAfter, now)
	if len(candidates) > 0 {
		t.spread(candidates, now)
		t.relieve(candidates, adoptAfter, now)
		t.level(candidates, now)
	}
	return t.assigned(now)
}

// seeSlots notes who has which slot.
func (t *Tracker) seeSlots(look Look, adoptAfter time.Duration, now time.Time) {
	for k, seen := range look.Slots {
		s := &t.slots[k]
		switch seen.State {
		case Free:
			if s.free.IsZero() {
				s.free = now
			}
			s.orphan = s.orphan || now.Sub(s.free) >= adoptAfter
		case Adopted:
			*s = slot{orphan: true, server: seen.By}
		default:
			*s = slot{server: nobody}
		}
		if s.server != nobody && !look.live(s.server) {
			s.server = nobody
		}
	}
}

// seeWorkers notes who is live, and who serves.
func (t *Tracker) seeWorkers(look Look, now time.Time) {
	maps.DeleteFunc(t.workers, func(ordinal int32, _ *worker) bool { return !look.live(ordinal) })
	for k := range look.Slots {
		if ordinal := int32(k); look.live(ordinal) && t.workers[ordinal] == nil {
			t.workers[ordinal] = &worker{since: now}
		}
	}
	for _, w := range t.workers {
		w.unseen++
	}
	for _, ordinal := range look.adopters() {
		if w := t.workers[ordinal]; w != nil {
			w.due, w.unseen, w.missed = now, 0, false
		}
		if ordinal == t.trial {
			t.trial, t.again = nobody, now // the trouble is over, maybe for others too
		}
	}
}

// passOver takes their slots from workers that do not serve any of them.
func (t *Tracker) passOver(adoptAfter time.Duration, now time.Time) {
	for ordinal, w := range t.workers {
		if w.due.IsZero() || now.Sub(w.due) < adoptAfter || w.unseen < missingLooks {
			continue
		}
		w.due, w.missed = time.Time{}, true
		t.again = now.Add(pardon * adoptAfter)
		for k := range t.slots {
			if s := &t.slots[k]; s.server == ordinal {
				s.server = nobody
			}
		}
	}
}

// candidates are the workers that may be given slots, in order. One that has failed is tried again now and then, one at a time,
// because what it is given meanwhile is not served.
func (t *Tracker) candidates(adoptAfter time.Duration, now time.Time) []int32 {
	settled := slices.DeleteFunc(slices.Sorted(maps.Keys(t.workers)), func(ordinal int32) bool {
		return now.Sub(t.workers[ordinal].since) < adoptAfter
	})
	missed := func(ordinal int32) bool { return t.workers[ordinal].missed }
	able := slices.DeleteFunc(slices.Clone(settled), missed)
	switch first := slices.IndexFunc(settled, missed); {
	case len(able) == 0: // all have failed, so that it is no fault of theirs
		for _, ordinal := range settled {
			t.workers[ordinal].missed = false
		}
		return settled
	case first >= 0 && !now.Before(t.again):
		t.trial, t.again = settled[first], now.Add(pardon*adoptAfter)
		t.workers[t.trial].missed = false
	}
	return able
}

// spread gives each orphan that nobody serves to whoever serves the fewest.
func (t *Tracker) spread(candidates []int32, now time.Time) {
	loads := t.loads()
	for k := range t.slots {
		if s := &t.slots[k]; s.orphan && s.server == nobody {
			s.server, s.free = fewest(candidates, loads), now
			loads[s.server]++
		}
	}
}

// relieve gives a slot that its server has not taken, though it serves others, to the next worker. Two workers that have not
// seen the same can each think that a slot is the other's; in this way one comes to take it, which both see.
func (t *Tracker) relieve(candidates []int32, adoptAfter time.Duration, now time.Time) {
	loads := t.loads()
	for k := range t.slots {
		s := &t.slots[k]
		if s.server == nobody || s.free.IsZero() || now.Sub(s.free) < time.Duration(1+loads[s.server])*adoptAfter {
			continue
		}
		next := slices.IndexFunc(candidates, func(ordinal int32) bool { return ordinal > s.server })
		s.server, s.free = candidates[max(next, 0)], now
	}
}

// level moves slots from whoever serves the most to whoever serves the fewest, until they differ by one at most.
func (t *Tracker) level(candidates []int32, now time.Time) {
	for loads := t.loads(); ; {
		from, to := most(candidates, loads), fewest(candidates, loads)
		if loads[from]-loads[to] <= 1 {
			return
		}
		s := t.spare(from)
		s.server, s.free = to, now
		loads[from]--
		loads[to]++
	}
}

// spare is the slot that has waited longest for its turn with a worker that serves two or more. One that is held waits least.
func (t *Tracker) spare(ordinal int32) (spare *slot) {
	for k := range t.slots {
		s := &t.slots[k]
		if s.server == ordinal && (spare == nil || !s.free.IsZero() && (spare.free.IsZero() || s.free.Before(spare.free))) {
			spare = s
		}
	}
	return spare
}

// loads counts the slots that each worker serves.
func (t *Tracker) loads() map[int32]int {
	loads := map[int32]int{}
	for _, s := range t.slots {
		if s.server != nobody {
			loads[s.server]++
		}
	}
	return loads
}

func fewest(of []int32, loads map[int32]int) int32 {
	return slices.MinFunc(of, func(a, b int32) int { return loads[a] - loads[b] })
}

func most(of []int32, loads map[int32]int) int32 {
	return slices.MaxFunc(of, func(a, b int32) int { return loads[a] - loads[b] })
}

// assigned is the result, and notes from when on each worker should be seen with one of its slots.
func (t *Tracker) assigned(now time.Time) Assignment {
	all := Assignment{}
	for k, s := range t.slots {
		if s.server != nobody {
			all[int32(k)] = s.server
		}
	}
	loads := t.loads()
	for ordinal, w := range t.workers {
		switch {
		case loads[ordinal] == 0:
			w.due = time.Time{}
		case w.due.IsZero():
			w.due, w.unseen = now, 0
		}
	}
	return all
}
