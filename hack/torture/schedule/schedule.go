// Package schedule decides which fault happens when. It is a pure function of a seed: the same options make the same list,
// and a longer duration makes a longer list that begins with the shorter one.
package schedule

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Fault is one thing that goes wrong.
type Fault struct {
	// At is when, from the start.
	At time.Duration
	// Kind is what.
	Kind Kind
	// Job is the index of the job that it is about; -1 for one about all.
	Job int
	// Pod is the ordinal of the pod that it is about; -1 for one about the whole job.
	Pod int32
	// Slots is the new n of a Scale.
	Slots int32
	// Hold is how long it lasts; what that means depends on the kind.
	Hold time.Duration
	// Seed is for what else has to be chosen while it is carried out.
	Seed uint64
}

// String is a line for people, which tells all that Seed does not.
func (f Fault) String() string {
	words := []string{fmt.Sprintf("%9s %-13s", f.At.Round(time.Millisecond), f.Kind)}
	if f.Job >= 0 {
		words = append(words, fmt.Sprintf("job %d", f.Job))
	}
	if f.Pod >= 0 {
		words = append(words, fmt.Sprintf("pod %d", f.Pod))
	}
	if f.Kind == Scale {
		words = append(words, fmt.Sprintf("to %d", f.Slots))
	}
	if f.Hold > 0 {
		words = append(words, "for "+f.Hold.Round(time.Millisecond).String())
	}
	return strings.Join(words, " ")
}

// Options of a schedule.
type Options struct {
	Seed     uint64
	Duration time.Duration
	// Every is the mean time between two faults.
	Every time.Duration
	// Jobs is how many jobs there are, and Pods the greatest n of each.
	Jobs int
	Pods int32
	// Handover is the jobs' hand-over time: a pod that freezes is stopped for longer.
	Handover time.Duration
	// Kinds are those that may happen; none: all.
	Kinds []Kind
}

// FirstSlots is the n that each job has before its first Scale.
const FirstSlots = 3

// New makes the schedule, sorted by time. Each kind comes once, in an order of chance, before chance alone decides; what is
// about a thing that is still broken is left out.
func New(o Options) []Fault {
	if len(o.Kinds) == 0 {
		o.Kinds = Kinds()
	}
	m := &maker{Options: o, random: rand.New(rand.NewPCG(o.Seed, 0)), busy: map[string]time.Duration{}}
	for range o.Jobs {
		m.slots = append(m.slots, FirstSlots)
	}
	first := slices.Clone(o.Kinds)
	m.random.Shuffle(len(first), func(i, j int) { first[i], first[j] = first[j], first[i] })
	for at := m.gap(); at < o.Duration; at += m.gap() {
		if next := slices.IndexFunc(first, func(k Kind) bool { return m.add(at, k) }); next >= 0 {
			first = slices.Delete(first, next, next+1)
			continue
		}
		m.add(at, m.kind())
	}
	slices.SortStableFunc(m.faults, func(a, b Fault) int { return cmp.Compare(a.At, b.At) })
	return slices.DeleteFunc(m.faults, func(f Fault) bool { return f.At >= o.Duration })
}

type maker struct {
	Options
	random *rand.Rand
	faults []Fault
	slots  []int32                  // of each job, as scheduled so far
	busy   map[string]time.Duration // until when a thing is broken
}

// gap is a time between two faults.
func (m *maker) gap() time.Duration {
	return max(time.Millisecond, time.Duration(m.random.ExpFloat64()*float64(m.Every)))
}

// kind picks one by its weight.
func (m *maker) kind() Kind {
	sum := 0
	for _, k := range m.Kinds {
		sum += traits[k].weight
	}
	at := m.random.IntN(sum)
	for _, k := range m.Kinds {
		if at -= traits[k].weight; at < 0 {
			return k
		}
	}
	panic("unreachable: the weights have a sum")
}

// add schedules a fault and says whether there was room for it.
func (m *maker) add(at time.Duration, kind Kind) bool {
	t := traits[kind]
	f := Fault{At: at, Kind: kind, Job: -1, Pod: -1, Seed: m.random.Uint64()}
	f.Hold = t.least + time.Duration(m.random.Float64()*float64(t.most-t.least))
	if t.beyondHandover {
		f.Hold += m.Handover
	}
	if t.scope != Everything {
		f.Job = m.random.IntN(m.Jobs)
	}
	if t.scope == Pod {
		f.Pod = m.random.Int32N(max(1, m.slots[f.Job]))
	}
	if !m.free(f) {
		return false
	}
	switch kind {
	case Flap:
		m.flap(f)
	case Scale:
		m.scale(f, f.At, m.other(f.Job))
		if m.slots[f.Job] == 0 {
			m.scale(f, f.At+f.Hold, 1+m.random.Int32N(m.Pods))
		}
	default:
		m.faults = append(m.faults, f)
	}
	return true
}

// flap is a series of scales, fractions of a second apart.
func (m *maker) flap(f Fault) {
	const least, spread = 100 * time.Millisecond, 400 * time.Millisecond
	at := f.At
	for ; at < f.At+f.Hold; at += least + time.Duration(m.random.Float64()*float64(spread)) {
		m.scale(f, at, m.other(f.Job))
	}
	if m.slots[f.Job] == 0 {
		m.scale(f, at, 1+m.random.Int32N(m.Pods))
	}
}

// scale schedules another n.
func (m *maker) scale(f Fault, at time.Duration, slots int32) {
	f.At, f.Kind, f.Slots, f.Hold = at, Scale, slots, 0
	m.slots[f.Job] = slots
	m.faults = append(m.faults, f)
}

// other is an n other than the present one: any, and 0 seldom.
func (m *maker) other(job int) int32 {
	for {
		n := 1 + m.random.Int32N(m.Pods)
		if m.random.IntN(10) == 0 {
			n = 0
		}
		if n != m.slots[job] {
			return n
		}
	}
}

// free says whether what the fault is about is whole, and takes it until the fault is over and a little longer.
func (m *maker) free(f Fault) bool {
	t := traits[f.Kind]
	var things []string
	switch {
	case t.thing != "" && f.Job >= 0:
		things = append(things, fmt.Sprintf("%s of %d", t.thing, f.Job))
	case t.thing != "":
		things = append(things, t.thing)
	}
	if t.scope == Pod && f.Hold > 0 {
		things = append(things, fmt.Sprintf("pod %d of %d", f.Pod, f.Job))
	}
	for _, thing := range things {
		if f.At < m.busy[thing] {
			return false
		}
	}
	for _, thing := range things {
		m.busy[thing] = f.At + f.Hold + t.rest
	}
	return true
}
