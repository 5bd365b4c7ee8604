package model

// A Next is one step and where it leads.
type Next struct {
	Step  Step
	State State
}

// Steps appends everything that can happen in s.
func (m *Model) Steps(s *State, out []Next) []Next {
	out = m.publish(s, out)
	for w := range m.Workers {
		out = m.hear(s, w, out)
		out = m.enter(s, w, out)
		out = m.batch(s, w, out)
	}
	return m.faults(s, m.server(s, out))
}

// publish is the controller's part.
func (m *Model) publish(s *State, out []Next) []Next {
	for j, job := range m.Jobs {
		if int(s.Published[j])+1 < len(job.Plans) {
			n := *s
			n.Published[j]++
			out = append(out, Next{Step{Kind: Publish, Who: uint8(j), Mark: markOf(job.Plans[n.Published[j]])}, n})
		}
	}
	return out
}

// hear is the watch's part; a plan that is stale for long is this step taken late.
func (m *Model) hear(s *State, w int, out []Next) []Next {
	if m.Workers[w].Blind || s.Workers[w].View >= s.Published[m.Workers[w].Job] {
		return out
	}
	n := *s
	n.Workers[w].View++
	return append(out, Next{step(Hear, w, m.plan(&n, w)), n})
}

// target is the plan that worker w would enter under: its own, or that of the lock it follows if it is not older.
func (m *Model) target(s *State, w int) Mark {
	own, follow := m.plan(s, w), s.Workers[w].Obey
	if follow != 0 && follow.epoch() >= own.epoch() {
		return follow
	}
	return own
}

// outdated says that worker w has heard of a plan that is to replace the one it has entered under.
func (m *Model) outdated(s *State, w int) bool {
	own, in := m.plan(s, w), s.Workers[w].Obey
	return own.epoch() > in.epoch() || own.epoch() == in.epoch() && own != in
}

// enter is the entry protocol, one step of worker w, up to the slot lock.
func (m *Model) enter(s *State, w int, out []Next) []Next {
	switch s.Workers[w].Phase {
	case Down, Severed:
		return m.connect(s, w, out)
	case Unclaimed:
		n := *s
		n.Sessions[2*w].Claim = Asked
		n.Workers[w].Phase = Claimed
		return append(out, Next{step(AskClaim, w, 0), n})
	case Claimed:
		return m.lookForRivals(s, w, out)
	case Ready:
		t := m.target(s, w)
		switch {
		case m.Workers[w].Ordinal >= t.slots():
			return m.peek(s, w, t, out)
		case m.wrong(LookFirst):
			return m.look(s, w, t, Peeked, out)
		}
		return m.takeEpoch(s, w, t, Entered, out)
	case Peeked:
		return m.takeEpoch(s, w, s.Workers[w].Obey, Waiting, out)
	case Entered:
		return m.look(s, w, s.Workers[w].Obey, Waiting, out)
	case Waiting:
		return m.wait(s, w, out)
	}
	return out
}

func (m *Model) connect(s *State, w int, out []Next) []Next {
	n := *s
	n.Sessions[2*w] = Session{Live: true}
	k := &n.Workers[w]
	switch {
	case k.Phase == Severed:
		if m.slotTaken(s, w) {
			return out
		}
		k.Phase = Working
		n.Sessions[2*w] = Session{Live: true, Slot: true, Work: k.Obey}
	case len(m.Jobs) > 1:
		k.Phase = Unclaimed
	default: // nobody to have a conflict with: the claim is left out
		k.Phase = Ready
	}
	return append(out, Next{step(Connect, w, 0), n})
}

// lookForRivals follows AskClaim. A newcomer that meets a rival lets go of its claim before it tries again.
func (m *Model) lookForRivals(s *State, w int, out []Next) []Next {
	for i := range 2 * len(m.Workers) {
		if s.Sessions[i].Claim.held() && m.Workers[i/2].Job != m.Workers[w].Job {
			if m.wrong(KeepClaim) {
				return out
			}
			n := *s
			n.Workers[w].Phase = Unclaimed
			n.Sessions[2*w].Claim = NoClaim
			if s.Sessions[2*w].Claim == Granted { // only with LookForRivalsAgain
				n.Sessions[2*w].Claim = Lapsed
			}
			return append(out, Next{step(Yield, w, 0), n})
		}
	}
	n := *s
	n.Sessions[2*w].Claim = Granted
	n.Workers[w].Phase = Ready
	return append(out, Next{step(WinClaim, w, 0), n})
}

// peek is a look by a worker that has no slot in its plan, or in the one it follows, and takes no lock: the plan may be stale, and
// the epoch that it follows may be over.
func (m *Model) peek(s *State, w int, t Mark, out []Next) []Next {
	if m.wrong(SurplusSleeps) {
		return out
	}
	n := *s
	if v := m.epochs(s, w, t); v.newer != 0 {
		n.Workers[w].Obey = v.newer
		return append(out, Next{step(Peek, w, v.newer), n})
	}
	if s.Workers[w].Obey == t && !m.held(s, w, t) {
		n.Workers[w].Obey = 0
		return append(out, Next{step(Unfollow, w, t), n})
	}
	return out
}

// held says whether any session of w's group holds epoch lock e.
func (m *Model) held(s *State, w int, e Mark) bool {
	for i := range 2 * len(m.Workers) {
		if s.Sessions[i].Epoch == e && m.group(i/2) == m.group(w) {
			return true
		}
	}
	return false
}

func (m *Model) takeEpoch(s *State, w int, t Mark, then Phase, out []Next) []Next {
	n := *s
	n.Workers[w].Phase, n.Workers[w].Obey = then, t
	n.Sessions[2*w].Epoch = t
	if m.wrong(EpochWithoutSlots) {
		n.Sessions[2*w].Epoch = t &^ 15
	}
	return append(out, Next{step(TakeEpoch, w, t), n})
}

// An epochView is what a look at the epoch locks of the others shows, compared with one's own.
type epochView struct {
	newer Mark   // the newest of the newer ones
	rival Mark   // the same epoch with another slot count
	older uint16 // the sessions of the older ones
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
		case e.slots() != mine.slots():
			v.rival = max(v.rival, e)
		}
	}
	if m.wrong(EpochWithoutSlots) {
		v.rival = 0
		if v.newer != 0 {
			v.newer |= mine & 15
		}
	}
	if m.wrong(AcceptTwoSlotCounts) {
		v.rival = 0
	}
	if m.wrong(NoWait) {
		v.older = 0
	}
	return v
}

// rank is what makes one epoch lock newer than another: the epoch alone.
func (m *Model) rank(e Mark) uint8 {
	if m.wrong(CompareSlotsFirst) {
		return e.slots()<<4 | e.epoch()
	}
	return e.epoch()
}

// look is step 2 of the entry. Whoever is not the newest lets go; the newest waits for the older ones.
func (m *Model) look(s *State, w int, mine Mark, then Phase, out []Next) []Next {
	v := m.epochs(s, w, mine)
	n := *s
	k := &n.Workers[w]
	if v.newer == 0 && v.rival == 0 {
		k.Phase, k.Obey, k.Waits = then, mine, v.older
		if m.wrong(ReadEarly) {
			n.Sessions[2*w].Rows = m.pick(s, w, mine)
		}
		return append(out, Next{step(LookOK, w, mine), n})
	}
	m.releaseEpoch(&n, w)
	k.Phase, k.Obey = Ready, 0
	if v.newer == 0 {
		// Nobody can know which of the two is right: go by the plan, or join the other. A worker that has no slot in
		// the other must not join, it would take no lock and wait for ever.
		out = append(out, Next{step(Retreat, w, 0), n})
		if m.Workers[w].Ordinal < v.rival.slots() {
			k.Obey = v.rival
			out = append(out, Next{step(Retreat, w, v.rival), n})
		}
		return out
	}
	if !m.wrong(NoFollow) {
		k.Obey = v.newer
	}
	return append(out, Next{step(Retreat, w, k.Obey), n})
}

// wait is the time between the look and the slot: older epochs go by themselves or are ended, then the slot is tried.
func (m *Model) wait(s *State, w int, out []Next) []Next {
	k := s.Workers[w]
	for i := range 2 * len(m.Workers) {
		if k.Waits&(1<<i) == 0 || s.Sessions[i].Epoch == 0 || s.Sessions[i].Epoch.epoch() >= k.Obey.epoch() {
			continue
		}
		n := *s
		if m.wrong(TerminateIsDone) {
			n.Workers[w].Waits &^= 1 << i
		} else {
			m.end(&n, i)
		}
		out = append(out, Next{Step{Kind: Terminate, Who: uint8(w), Peer: uint8(i)}, n})
	}
	if m.outdated(s, w) {
		n := *s
		m.releaseEpoch(&n, w)
		m.ready(&n, w)
		out = append(out, Next{step(GiveUp, w, 0), n})
	}
	if (k.Waits == 0 || m.wrong(SlotFirst)) && !m.slotTaken(s, w) {
		n := *s
		n.Workers[w].Phase = Working
		n.Sessions[2*w].Slot, n.Sessions[2*w].Work = true, k.Obey
		if m.wrong(ReadEarly) && n.Sessions[2*w].Rows != 0 {
			n.Sessions[2*w].Txn = Open
		}
		out = append(out, Next{step(TakeSlot, w, k.Obey), n})
	}
	return out
}

// slotTaken says whether another session of the group holds the slot lock of w's ordinal.
func (m *Model) slotTaken(s *State, w int) bool {
	for i := range 2 * len(m.Workers) {
		if s.Sessions[i].Slot && m.Workers[i/2].Ordinal == m.Workers[w].Ordinal && m.group(i/2) == m.group(w) {
			return true
		}
	}
	return false
}

// releaseEpoch unlocks the epoch of worker w's session; nobody waits for it any longer.
func (m *Model) releaseEpoch(s *State, w int) {
	s.Sessions[2*w].Epoch = 0
	s.Workers[w].Waits = 0
	if s.Sessions[2*w].Txn == NoTxn {
		s.Sessions[2*w].Rows = 0
	}
	if !m.wrong(WaitForSessionEnd) {
		m.forget(s, 2*w)
	}
}

// forget removes session i from everybody's list.
func (m *Model) forget(s *State, i int) {
	for w := range m.Workers {
		s.Workers[w].Waits &^= 1 << i
	}
}

// ready puts worker w, which holds neither epoch nor slot, before the entry; its claim stays.
func (m *Model) ready(s *State, w int) {
	s.Workers[w].Phase, s.Workers[w].Obey = Ready, 0
	switch {
	case s.Sessions[2*w].Claim != Granted:
	case m.wrong(DropClaim):
		s.Sessions[2*w].Claim = Lapsed
	case m.wrong(LookForRivalsAgain):
		s.Workers[w].Phase = Claimed
	}
}
