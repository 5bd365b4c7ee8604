package model

// An epochView is what a look at the epoch locks of the others shows, compared with one's own.
type epochView struct {
	newer Mark   // the biggest of the bigger marks
	older uint32 // the sessions of the smaller ones
}

func (m *Model) epochs(s *State, w int, mine Mark) (v epochView) {
	for i := range 2 * len(m.Workers) {
		e := s.Sessions[i].Epoch
		if i == 2*w || e == 0 || m.group(i/2) != m.group(w) {
			continue
		}
		switch {
		case m.rank(e) > m.rank(mine):
			v.newer = max(v.newer, e)
		case m.rank(e) < m.rank(mine):
			if !m.wrong(WaitForSlotsOnly) || s.Sessions[i].Slot {
				v.older |= 1 << i
			}
		}
	}
	if m.wrong(EpochWithoutSlots) && v.newer != 0 {
		v.newer |= mine & 15
	}
	if m.wrong(NoWait) {
		v.older = 0
	}
	return v
}

// rank is what makes one epoch lock bigger than another: the epoch, then the slots. Two slot counts of one epoch are two plans,
// and the one with fewer slots counts as the older: exactly one of the two yields.
func (m *Model) rank(e Mark) uint8 {
	switch {
	case m.wrong(AcceptTwoSlotCounts | EpochWithoutSlots):
		return e.epoch()
	case m.wrong(CompareSlotsFirst):
		return e.slots()<<4 | e.epoch()
	}
	return uint8(e)
}

// look is step 2 of the entry. Whoever sees a bigger mark lets go; the biggest waits for the smaller ones.
func (m *Model) look(s *State, w int, out []Next) []Next {
	mine := s.Workers[w].Obey
	v := m.epochs(s, w, mine)
	if v.newer != 0 {
		return m.retreat(s, w, out)
	}
	n := *s
	n.Workers[w].Phase, n.Workers[w].Waits = Waiting, v.older
	if m.wrong(ReadEarly) {
		n.Sessions[2*w].Rows = m.pick(s, w, mine)
	}
	if m.wrong(LayersEarly) {
		m.remember(&n, w, false, true)
	}
	return append(out, Next{step(LookOK, w, mine), n})
}

// lookFirst is the look of a worker that has taken nothing yet.
func (m *Model) lookFirst(s *State, w int, t Mark, out []Next) []Next {
	v := m.epochs(s, w, t)
	n := *s
	if v.newer != 0 {
		m.meet(&n, w, v.newer)
		return append(out, Next{step(Retreat, w, v.newer), n})
	}
	n.Workers[w].Phase, n.Workers[w].Obey, n.Workers[w].Waits = Peeked, t, v.older
	return append(out, Next{step(LookOK, w, t), n})
}

// retreat is a look, at the entry, at a poll or between two batches, that shows a bigger mark. After it the worker may enter again:
// under the epoch it follows, or under its own plan, which succeeds only when the rival is gone.
func (m *Model) retreat(s *State, w int, out []Next) []Next {
	v := m.epochs(s, w, s.Workers[w].Obey)
	if v.newer == 0 {
		return out
	}
	n := *s
	m.meet(&n, w, v.newer)
	leave(&n, w)
	return append(out, Next{step(Retreat, w, v.newer), n})
}

// peek is a look by a worker that has no slot in its plan, or in the one it follows, and takes no lock: the plan may be stale.
// If it sees an older plan it is a herald, and goes on like a worker with a slot, up to where it would take that.
func (m *Model) peek(s *State, w int, t Mark, out []Next) []Next {
	v := m.epochs(s, w, t)
	if !m.wrong(NoHerald) && v.newer == 0 && v.older != 0 {
		return m.takeEpoch(s, w, t, Entered, out)
	}
	n := *s
	if m.meet(&n, w, v.newer); n == *s || m.wrong(SurplusSleeps) {
		return out
	}
	return append(out, Next{step(Peek, w, v.newer), n})
}

// meet is what worker w makes of a bigger mark. A newer epoch it follows, for the API server may be away. One of its own epoch
// with more slots it does not: nobody can know which of the two is right, and only a plan above both can settle it.
func (m *Model) meet(s *State, w int, bigger Mark) {
	own := m.target(s, w).epoch()
	switch j := m.Workers[w].Job; {
	case bigger.epoch() > own:
		if !m.wrong(NoFollow) {
			s.Workers[w].Follow = bigger
		}
	case bigger.epoch() == own && bigger != m.target(s, w) && !m.wrong(NoAsk):
		s.Asked[j] = m.regular[j] < len(m.Jobs[j].Plans)
	}
}
