package model

// trySlot is step 3. A slot's own worker waits for its slot; an adopter takes any other that nobody holds; who finds none goes.
func (m *Model) trySlot(s *State, w int, out []Next) []Next {
	seat := m.Workers[w]
	if !seat.Adopts && seat.Ordinal < s.Workers[w].Obey.slots() {
		if m.slotTaken(s, w, seat.Ordinal) && !m.wrong(CursorBeforeSlot) {
			return m.askBack(s, w, out)
		}
		return m.takeSlot(s, w, seat.Ordinal, out)
	}
	had := len(out)
	for k := range s.Workers[w].Obey.slots() {
		if seat.Adopts && k != seat.Ordinal && !m.slotTaken(s, w, k) {
			out = m.takeSlot(s, w, k, out)
		}
	}
	if len(out) > had {
		return out
	}
	n := *s
	leave(&n, w)
	return append(out, Next{step(FindNone, w, 0), n})
}

// takeSlot takes slot k, which may be worked, or not before step 4 and 5.
func (m *Model) takeSlot(s *State, w int, k uint8, out []Next) []Next {
	n := *s
	c := &n.Workers[w]
	x := &n.Sessions[2*w]
	if m.Workers[w].Adopts {
		x.At = k
	}
	if m.wrong(CursorBeforeSlot|AdoptUnlocked) && c.Phase == Waiting {
		c.Phase = Primed
		if m.wrong(CursorBeforeSlot) {
			m.remember(&n, w, true, true)
		}
		return append(out, Next{Step{Kind: Prime, Who: uint8(w), Peer: k}, n})
	}
	c.Phase = Working
	x.Slot, x.Work = true, c.Obey
	if m.wrong(ReadEarly) && x.Rows != 0 {
		x.Txn = Open
	}
	if m.Cursors {
		c.Phase = Holding
		if m.wrong(CursorEarly) {
			m.remember(&n, w, true, false)
		}
	}
	return append(out, Next{Step{Kind: TakeSlot, Who: uint8(w), Mark: c.Obey, Peer: k}, n})
}

// primed is a worker that has chosen its slot without holding it.
func (m *Model) primed(s *State, w int, out []Next) []Next {
	out = m.giveUp(s, w, m.retreat(s, w, out))
	if k := m.slot(s, 2*w); m.wrong(AdoptUnlocked) || !m.slotTaken(s, w, k) {
		return m.takeSlot(s, w, k, out)
	}
	return out
}

// slotTaken says whether another session of the group holds the lock of slot k.
func (m *Model) slotTaken(s *State, w int, k uint8) bool {
	for i := range 2 * len(m.Workers) {
		if i != 2*w && s.Sessions[i].Slot && m.slot(s, i) == k && m.group(i/2) == m.group(w) {
			return true
		}
	}
	return false
}

// askBack takes the intent of a slot's own worker if another worker has adopted the slot.
func (m *Model) askBack(s *State, w int, out []Next) []Next {
	own := m.Workers[w].Ordinal
	if !m.adopters || m.intended(s, w, own) {
		return out
	}
	for i := range 2 * len(m.Workers) {
		if s.Sessions[i].Slot && m.slot(s, i) == own && m.Workers[i/2].Adopts && m.group(i/2) == m.group(w) {
			n := *s
			n.Sessions[2*w].Intent = true
			return append(out, Next{step(AskBack, w, 0), n})
		}
	}
	return out
}

// intended says whether a session of the group holds the intent of slot k.
func (m *Model) intended(s *State, w int, k uint8) bool {
	for i := range 2 * len(m.Workers) {
		if s.Sessions[i].Intent && m.Workers[i/2].Ordinal == k && m.group(i/2) == m.group(w) {
			return true
		}
	}
	return false
}

// withdraw lets go of the intent of a slot that is held by its own worker again.
func (m *Model) withdraw(s *State, w int, out []Next) []Next {
	n := *s
	n.Sessions[2*w].Intent = false
	return append(out, Next{step(Withdraw, w, 0), n})
}

// orphan says whether worker w, an adopter, would find a slot of plan p that nobody holds or wants back.
func (m *Model) orphan(s *State, w int, p Mark) bool {
	for k := range p.slots() {
		if k != m.Workers[w].Ordinal && !m.slotTaken(s, w, k) && !m.intended(s, w, k) && (!s.Sessions[2*w].Slot || m.slot(s, 2*w) != k) {
			return true
		}
	}
	return false
}

// handBack is what an adopter does at a batch boundary: it lets go of a slot that is wanted back, and may go on to another one. It
// says whether it has to.
func (m *Model) handBack(s *State, w int, out []Next) ([]Next, bool) {
	adopts := m.Workers[w].Adopts
	if (adopts && !m.wrong(IgnoreIntent) || m.wrong(YieldToSelf)) && m.intended(s, w, m.slot(s, 2*w)) {
		n := *s
		leave(&n, w)
		if !adopts { // with YieldToSelf: goes on asking for it
			m.releaseSlot(&n, 2*w)
			n.Workers[w].Phase, n.Workers[w].Obey = Waiting, s.Workers[w].Obey
		}
		return append(out, Next{step(HandBack, w, 0), n}), true
	}
	if adopts && !m.wrong(NoRotation) && m.orphan(s, w, s.Workers[w].Obey) {
		n := *s
		leave(&n, w)
		out = append(out, Next{step(Rotate, w, 0), n})
	}
	return out, false
}
