package model

import "strings"

// A Property is something that must be true; they can be combined.
type Property uint16

// Finishes is about paths, the others are about single states.
const (
	EffectOnce   Property = 1 << iota // no effect is committed twice
	NoOverlap                         // no two sessions have open work on one row
	SlotsApart                        // no two sessions hold slots that share a key; with cursors, or are under two plans
	OneJob                            // no second job is granted the table while a session of the first lives
	CompleteTrue                      // Complete is said only when no row is pending, or will be
	NotAgain                          // no session works on a row that is done
	NoneLost                          // no cursor has passed a row that is neither done nor kept apart
	NeverBack                         // with cursors: once a batch of a plan was begun, none of an older one is
	Finishes                          // the end can be reached without another fault

	allProperties = EffectOnce | NoOverlap | SlotsApart | OneJob | CompleteTrue | NotAgain | NoneLost | NeverBack | Finishes
)

func (p Property) String() string {
	var words []string
	for i, w := range []string{"effect committed twice", "open work overlaps", "slots overlap", "two jobs at one table", "false Complete",
		"work on a done row", "row lost", "an older plan works again", "cannot finish"} {
		if p&(1<<i) != 0 {
			words = append(words, w)
		}
	}
	return strings.Join(words, ", ")
}

// broken returns the first state property that s breaks, or zero.
func (m *Model) broken(s *State) Property {
	check := func(p Property, bad bool) Property {
		if bad {
			return m.Check & p
		}
		return 0
	}
	if p := check(EffectOnce, s.Doubled); p != 0 {
		return p
	}
	if p := check(CompleteTrue, s.Complete && m.outstanding(s)); p != 0 {
		return p
	}
	if p := check(NeverBack, s.Back); p != 0 {
		return p
	}
	if m.Cursors {
		if p := check(NoneLost, m.covered(&s.Layers)&m.visible(s)&^s.Done&^s.Failed != 0); p != 0 {
			return p
		}
	}
	for i := range 2 * len(m.Workers) {
		a := &s.Sessions[i]
		if !a.Live {
			continue
		}
		if p := check(NotAgain, a.working()&s.Done != 0); p != 0 {
			return p
		}
		for j := range i {
			b := &s.Sessions[j]
			if !b.Live {
				continue
			}
			if p := check(NoOverlap, a.working()&b.working() != 0); p != 0 {
				return p
			}
			if p := check(SlotsApart, a.Slot && b.Slot && m.shareKey(i, j, s)); p != 0 {
				return p
			}
			if p := check(OneJob, a.Claim >= Granted && b.Claim >= Granted && m.Workers[i/2].Job != m.Workers[j/2].Job); p != 0 {
				return p
			}
		}
	}
	return 0
}

// outstanding says whether a row is to be done, or will be: one that was being written before the job began.
func (m *Model) outstanding(s *State) bool {
	return (m.wanted(s)|m.visible(s)&m.inserts(s.Owed))&^s.Done != 0 || s.Owed&m.writing(s) != 0
}

// working is the set of rows a session has open work on. A batch that has lost its locks before COMMIT will be rolled back.
func (x *Session) working() uint16 {
	if x.Txn == Committing || x.Txn == Open && x.Slot {
		return x.Rows
	}
	return 0
}

// shareKey says whether any integer at all is in the slots of both sessions: k ≡ l modulo gcd(n, m). With cursors all
// have to be under one plan, so that what step 5 reads of the other layers stands still.
func (m *Model) shareKey(i, j int, s *State) bool {
	if m.Cursors && s.Sessions[i].Work != s.Sessions[j].Work {
		return true
	}
	a, b := s.Sessions[i].Work.slots(), s.Sessions[j].Work.slots()
	for b != 0 {
		a, b = b, a%b
	}
	return m.slot(s, i)%a == m.slot(s, j)%a
}

// finished is the end for one of the jobs: all plans published (the one that nobody may have asked for aside), the newest in
// force, each slot that has a worker of its own held by that under it, rows done, Complete said, no layer left of another plan.
func (m *Model) finished(s *State) bool {
	if m.wanted(s)&^s.Done != 0 || s.Failed != 0 || !s.Complete && !m.Stream || m.writing(s) != 0 || m.others(&s.Layers, s.Row) != 0 {
		return false
	}
	for j, job := range m.Jobs {
		want := markOf(job.Plans[s.Published[j]])
		owned, held := uint16(0), uint16(0)
		for w, seat := range m.Workers {
			if seat.Job != j || seat.Adopts || seat.Ordinal >= want.slots() {
				continue
			}
			owned |= 1 << seat.Ordinal
			if x := &s.Sessions[2*w]; x.Slot && x.Work == want && x.Txn == NoTxn && s.Workers[w].Phase == Working {
				held |= 1 << seat.Ordinal
			}
		}
		if int(s.Published[j]) >= m.regular[j]-1 && held == owned {
			return true
		}
	}
	return false
}
