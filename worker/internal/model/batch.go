package model

// pick reads the rows of worker w's next batch under plan p: a fresh statement, pending rows only, in key order.
func (m *Model) pick(s *State, w int, p Mark) uint16 {
	rows := m.slotRows[p.slots()][m.slot(s, 2*w)] &^ s.Done
	if m.SkipLocked {
		for i := range 2 * len(m.Workers) {
			if s.Sessions[i].Txn != NoTxn {
				rows &^= s.Sessions[i].Rows
			}
		}
	}
	return lowest(rows, m.BatchRows)
}

// batch is what worker w does with its slot, and the way out of it.
func (m *Model) batch(s *State, w int, out []Next) []Next {
	switch s.Workers[w].Phase {
	case Working:
		switch s.Sessions[2*w].Txn {
		case NoTxn:
			return m.betweenBatches(s, w, out)
		case Open:
			return m.inBatch(s, w, out)
		}
	case Leaving:
		n := *s
		if s.Sessions[2*w].Slot {
			// The slot goes first: a slot without its epoch lock would be one that nobody waits for.
			m.releaseSlot(&n, 2*w)
			return append(out, Next{step(ReleaseSlot, w, 0), n})
		}
		m.releaseEpoch(&n, w)
		m.ready(&n, w)
		return append(out, Next{step(ReleaseEpoch, w, 0), n})
	}
	return out
}

func (m *Model) betweenBatches(s *State, w int, out []Next) []Next {
	out, must := m.handBack(s, w, out)
	if must {
		return out
	}
	out = m.giveUp(s, w, m.retreat(s, w, out))
	if s.Workers[w].Waits != 0 { // only with SlotFirst
		return out
	}
	if m.Cursors {
		out = m.dropLayers(s, w, m.search(s, w, m.beginAfterCursor(s, w, out)))
	} else if rows := m.pick(s, w, s.Workers[w].Obey); rows != 0 {
		n := *s
		n.Sessions[2*w].Txn, n.Sessions[2*w].Rows = Open, rows
		return append(out, Next{step(Begin, w, 0), n})
	}
	// An empty batch says nothing about the others: Complete comes from a fresh check of the whole table.
	if !s.Complete && (m.nothingLeft(s) || m.wrong(EmptyIsEnd)) {
		n := *s
		n.Complete = true
		out = append(out, Next{step(SayComplete, w, 0), n})
	}
	return out
}

// nothingLeft is what the database says. A stream never ends.
func (m *Model) nothingLeft(s *State) bool {
	switch {
	case !m.Cursors:
		return s.Done == m.allRows
	case m.Stream || m.Inserts > 0 && s.Horizon == 0:
		return false
	}
	return m.wanted(s)&^m.covered(&s.Layers) == 0 && s.Failed == 0
}

// inBatch has select and effect behind it. Nobody else can take a lock away from a session, so that the
// count of own locks and the sending of COMMIT are one step.
func (m *Model) inBatch(s *State, w int, out []Next) []Next {
	n := *s
	x := &n.Sessions[2*w]
	if (!x.Slot || x.Epoch == 0) && !m.wrong(NoOwnLockCheck) {
		m.end(&n, 2*w)
		return append(out, Next{step(RollBack, w, 0), n})
	}
	x.Txn = Committing
	if m.wrong(UnlockBeforeCommit) {
		m.releaseSlot(&n, 2*w)
		x.Epoch = 0
		m.forget(&n, 2*w)
	}
	out = append(out, Next{step(SendCommit, w, 0), n})
	if m.Failures && x.Rows != 0 && x.From != x.To {
		x.Failed = true
		out = append(out, Next{step(SendFailures, w, 0), n})
	}
	if m.UserUnlocks && s.Sessions[2*w].Slot {
		out = m.unlockAll(s, w, out)
	}
	return out
}

// unlockAll is the user's SQL calling pg_advisory_unlock_all().
func (m *Model) unlockAll(s *State, w int, out []Next) []Next {
	n := *s
	x := &n.Sessions[2*w]
	m.releaseSlot(&n, 2*w)
	x.Epoch, x.Claim, x.Intent = 0, NoClaim, false
	m.forget(&n, 2*w)
	return append(out, Next{step(UnlockAll, w, 0), n})
}

// releaseSlot unlocks session i's slot. The statements of an open transaction go on naming the slot that was worked.
func (m *Model) releaseSlot(s *State, i int) {
	x := &s.Sessions[i]
	x.Slot = false
	if !m.Cursors || x.Txn == NoTxn {
		x.Work, x.At = 0, 0
	}
}

// server is what PostgreSQL does by itself: a COMMIT that has arrived takes effect, and a session without
// a client is ended (keepalives, idle timeouts).
func (m *Model) server(s *State, out []Next) []Next {
	for i := range 2 * len(m.Workers) {
		x := &s.Sessions[i]
		w := i / 2
		if x.Txn == Committing || x.Txn == Owing {
			out = m.commit(s, i, out)
			if i == 2*w && x.Slot && m.wrong(TriggersAfterCheck) {
				out = m.unlockAll(s, w, out)
			}
		}
		if x.Live && i != 2*w {
			n := *s
			m.end(&n, i)
			out = append(out, Next{Step{Kind: SessionEnds, Who: uint8(i)}, n})
		}
	}
	return out
}

// commit is the end of session i's transaction.
func (m *Model) commit(s *State, i int, out []Next) []Next {
	n := *s
	x := &n.Sessions[i]
	w, mine := i/2, i%2 == 0
	if m.Cursors && !m.settle(&n, i) {
		n = *s
		if mine { // the client closes its session and enters anew
			m.end(&n, i)
		} else {
			m.endTxn(&n, i)
		}
		return append(out, Next{Step{Kind: Undo, Who: uint8(i)}, n})
	}
	if !m.Cursors {
		n.Doubled = n.Doubled || s.Done&x.Rows != 0
		n.Done |= x.Rows
	}
	if m.halved(x) && x.Txn == Committing {
		x.Txn = Owing
		return append(out, Next{Step{Kind: Commit, Who: uint8(i)}, n})
	}
	if mine {
		n.Workers[w].Cursor = x.To
	}
	m.endTxn(&n, i)
	if mine && m.wrong(UnlockBeforeCommit) {
		m.ready(&n, w)
	}
	return append(out, Next{Step{Kind: Commit, Who: uint8(i)}, n})
}

// endTxn leaves session i without a transaction.
func (m *Model) endTxn(s *State, i int) {
	x := &s.Sessions[i]
	x.Txn, x.Rows, x.From, x.To, x.Failed = NoTxn, 0, 0, 0, false
	if !x.Slot {
		x.Work, x.At = 0, 0
	}
}
