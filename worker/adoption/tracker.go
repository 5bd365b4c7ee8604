// Package adoption decides which orphaned slots a worker serves beside its own. It is pure: it is fed with looks at the
// group's locks and a clock, and does no I/O.
//
// A slot is orphaned when nobody has held it, and its own worker has not asked for it, for a while; or when it is seen in the
// hands of an adopter. Orphans are spread evenly over the live workers, those that hold their own slots. Each worker
// works that out for itself, from nothing but which slots are orphaned and which workers are live: so all come to the same
// result as soon as they see the same, whatever each has seen before. Until then two workers may think that a slot is theirs,
// or none may; only one gets its lock. A worker serves its slots in turn. A turn should last longer than the time between two
// looks, so that others see who serves at all.
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

// A Tracker remembers what one worker has seen of a plan's slots. One goroutine uses it.
type Tracker struct {
	self    int32
	epoch   int64
	slots   []slot
	workers map[int32]*worker
	trial   int32     // the worker that was pardoned last
	again   time.Time // when the next may be
}

// NewTracker is the tracker of the worker with this ordinal, which has seen nothing.
func NewTracker(ordinal int32) *Tracker { return &Tracker{self: ordinal} }

// slot is what is remembered of a slot.
type slot struct {
	free   time.Time // since then nobody has been seen with it; zero if the last look saw somebody
	orphan bool
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
// example, is passed over in favor of the others. Nobody serves two slots more than another.
func (t *Tracker) Look(look Look, adoptAfter time.Duration, now time.Time) Assignment {
	if t.workers == nil || t.epoch != look.Epoch || len(t.slots) != len(look.Slots) {
		*t = Tracker{self: t.self, epoch: look.Epoch, slots: make([]slot, len(look.Slots)), workers: map[int32]*worker{}, trial: nobody}
	}
	t.seeSlots(look, adoptAfter, now)
	t.seeWorkers(look, now)
	t.passOver(adoptAfter, now)
	all := t.assign(look, t.candidates(adoptAfter, now))
	t.expect(all, now)
	return all
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
			*s = slot{orphan: true}
		default:
			*s = slot{}
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

// passOver takes their slots from workers that do not serve any of them. Nobody passes over itself: whoever could not serve and
// now can shows it to the others by serving.
func (t *Tracker) passOver(adoptAfter time.Duration, now time.Time) {
	for ordinal, w := range t.workers {
		if ordinal == t.self || w.due.IsZero() || now.Sub(w.due) < adoptAfter || w.unseen < missingLooks {
			continue
		}
		w.due, w.missed = time.Time{}, true
		t.again = now.Add(pardon * adoptAfter)
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

// assign says who serves each orphan. While there is no candidate, slots stay with the live workers that have them.
func (t *Tracker) assign(look Look, candidates []int32) Assignment {
	var orphans []int32
	held := Assignment{}
	for k, s := range t.slots {
		if s.orphan {
			orphans = append(orphans, int32(k))
		}
		if seen := look.Slots[k]; seen.State == Adopted && look.live(seen.By) {
			held[int32(k)] = seen.By
		}
	}
	if len(candidates) == 0 {
		return held
	}
	return spread(orphans, candidates)
}

// spread gives each orphan to one of the candidates, to none of them two more than to another. It goes by rendezvous hashing
// (Thaler and Ravishankar, 1998) among those that may still have one more, so that few slots move when a worker or an orphan
// comes or goes.
func spread(orphans, candidates []int32) Assignment {
	all, loads := Assignment{}, make([]int, len(candidates))
	share, more := len(orphans)/len(candidates), len(orphans)%len(candidates)
	for _, slot := range orphans {
		best, weight := 0, uint64(0)
		for i, ordinal := range candidates {
			room := loads[i] < share || loads[i] == share && more > 0
			if w := mix(uint64(slot)<<32 | uint64(ordinal)); room && w >= weight {
				best, weight = i, w
			}
		}
		if loads[best]++; loads[best] > share {
			more--
		}
		all[slot] = candidates[best]
	}
	return all
}

// mix is the finalizer of splitmix64 (Steele, Lea and Flood, 2014).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// expect notes from when on each worker should be seen with one of its slots.
func (t *Tracker) expect(all Assignment, now time.Time) {
	serves := map[int32]bool{}
	for _, ordinal := range all {
		serves[ordinal] = true
	}
	for ordinal, w := range t.workers {
		switch {
		case !serves[ordinal]:
			w.due = time.Time{}
		case w.due.IsZero():
			w.due, w.unseen = now, 0
		}
	}
}
