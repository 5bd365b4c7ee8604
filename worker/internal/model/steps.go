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
		if x := &s.Sessions[2*w]; x.Slot && x.Intent && !m.wrong(YieldToSelf) {
			out = m.withdraw(s, w, out)
			continue
		}
		out = m.enter(s, w, out)
		out = m.batch(s, w, out)
	}
	return m.faults(s, m.writers(s, m.server(s, out)))
}

// publish is the controller's part. The plan beyond the regular ones is its answer to a worker that asks, or that has seen an epoch
// above the one published.
func (m *Model) publish(s *State, out []Next) []Next {
	for j, job := range m.Jobs {
		if next := int(s.Published[j]) + 1; next < m.regular[j] || next < len(job.Plans) && (s.Asked[j] || m.overtaken(s, j)) {
			n := *s
			n.Published[j]++
			out = append(out, Next{Step{Kind: Publish, Who: uint8(j), Mark: markOf(job.Plans[n.Published[j]])}, n})
		}
	}
	return out
}

// overtaken says whether a worker reports an epoch above that of the job's plan.
func (m *Model) overtaken(s *State, j int) bool {
	epoch := m.Jobs[j].Plans[s.Published[j]].Epoch
	for w, seat := range m.Workers {
		if k := &s.Workers[w]; seat.Job == j && max(k.Follow, k.Obey).epoch() > epoch {
			return true
		}
	}
	return false
}

// hear is the watch's part; a plan that is stale for long is this step taken late. A plan of the epoch that the worker follows
// replaces what it has seen in the locks; an older one does not.
func (m *Model) hear(s *State, w int, out []Next) []Next {
	if m.Workers[w].Blind || s.Workers[w].View >= s.Published[m.Workers[w].Job] {
		return out
	}
	n := *s
	k := &n.Workers[w]
	k.View++
	if m.plan(&n, w).epoch() >= k.Follow.epoch() {
		k.Follow = 0
	}
	return append(out, Next{step(Hear, w, m.plan(&n, w)), n})
}

// target is the plan that worker w would enter under: the newest it has heard of, or has seen in the locks.
func (m *Model) target(s *State, w int) Mark {
	if follow := s.Workers[w].Follow; follow != 0 {
		return follow
	}
	return m.plan(s, w)
}

// enter is the entry protocol, one step of worker w, up to the slot lock.
func (m *Model) enter(s *State, w int, out []Next) []Next {
	switch s.Workers[w].Phase {
	case Down, Severed:
		return m.connect(s, w, out)
	case Unclaimed:
		if m.target(s, w).slots() == 0 {
			return m.pause(s, w, out)
		}
		n := *s
		n.Sessions[2*w].Claim = Asked
		n.Workers[w].Phase = Claimed
		return append(out, Next{step(AskClaim, w, 0), n})
	case Claimed:
		return m.lookForRivals(s, w, out)
	case Ready:
		t := m.target(s, w)
		switch {
		case t.slots() == 0:
			return m.pause(s, w, out)
		case m.Workers[w].Adopts && !m.orphan(s, w, t):
			return out
		case m.Workers[w].Ordinal >= t.slots() && !m.Workers[w].Adopts:
			return m.peek(s, w, t, out)
		case m.wrong(LookFirst):
			return m.lookFirst(s, w, t, out)
		}
		return m.takeEpoch(s, w, t, Entered, out)
	case Peeked:
		return m.takeEpoch(s, w, s.Workers[w].Obey, Waiting, out)
	case Entered:
		return m.look(s, w, out)
	case Waiting:
		return m.wait(s, w, out)
	case Primed:
		return m.primed(s, w, out)
	case Holding:
		return m.record(s, w, out)
	case Recorded:
		return m.recall(s, w, out)
	}
	return out
}

// connect opens a session. In a pause not even that is kept; an adopter has one only if it has a slot in sight.
func (m *Model) connect(s *State, w int, out []Next) []Next {
	if t := m.target(s, w); t.slots() == 0 || m.Workers[w].Adopts && !m.orphan(s, w, t) {
		return out
	}
	n := *s
	n.Sessions[2*w] = Session{Live: true}
	k := &n.Workers[w]
	switch {
	case k.Phase == Severed:
		if m.slotTaken(s, w, m.Workers[w].Ordinal) {
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

func (m *Model) pause(s *State, w int, out []Next) []Next {
	n := *s
	m.end(&n, 2*w)
	return append(out, Next{step(Pause, w, 0), n})
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

func (m *Model) takeEpoch(s *State, w int, t Mark, then Phase, out []Next) []Next {
	n := *s
	n.Workers[w].Phase, n.Workers[w].Obey = then, t
	n.Sessions[2*w].Epoch = t
	if m.wrong(EpochWithoutSlots) {
		n.Sessions[2*w].Epoch = t &^ 15
	}
	return append(out, Next{step(TakeEpoch, w, t), n})
}

// giveUp lets go because a new plan has come.
func (m *Model) giveUp(s *State, w int, out []Next) []Next {
	if m.target(s, w) == s.Workers[w].Obey {
		return out
	}
	n := *s
	leave(&n, w)
	return append(out, Next{step(GiveUp, w, 0), n})
}

func leave(s *State, w int) {
	k := &s.Workers[w]
	*k = Worker{Phase: Leaving, View: k.View, Follow: k.Follow}
}

// wait is the time between the look and the slot: smaller marks go by themselves or are ended, then the slot is tried.
func (m *Model) wait(s *State, w int, out []Next) []Next {
	k := s.Workers[w]
	for i := range 2 * len(m.Workers) {
		if k.Waits&(1<<i) == 0 || s.Sessions[i].Epoch == 0 || m.rank(s.Sessions[i].Epoch) >= m.rank(k.Obey) {
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
	out = m.giveUp(s, w, m.retreat(s, w, out))
	if k.Waits == 0 || m.wrong(SlotFirst) {
		return m.trySlot(s, w, out)
	}
	return out
}

// releaseEpoch unlocks the epoch of worker w's session, and its intent; nobody waits for it any longer.
func (m *Model) releaseEpoch(s *State, w int) {
	s.Sessions[2*w].Epoch, s.Sessions[2*w].Intent = 0, false
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
