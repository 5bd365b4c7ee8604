package model

// record is step 4: one short transaction moves the durable epoch up to the worker's plan, which stops the cursors of older
// plans, and makes that plan's layer, or finds both there. A worker under a lower plan is refused, whoever is there.
func (m *Model) record(s *State, w int, out []Next) []Next {
	p := s.Workers[w].Obey
	n := *s
	switch row := m.durable(&n, m.slot(s, 2*w)); {
	case *row > p:
		return m.refuse(s, w, *row, out)
	case m.wrong(EpochInBatch | EpochPerSlot):
		if m.wrong(EpochPerSlot) {
			*row = p
		}
		if n.Layers[p.slots()].Epoch != p.epoch() {
			m.open(&n.Layers, p)
		}
	case *row < p:
		if *row == 0 { // the job begins
			n.Owed = m.writing(s)
		}
		*row = p
		m.open(&n.Layers, p)
	}
	n.Workers[w].Phase = Recorded
	if m.wrong(CursorBeforeSlot) {
		n.Workers[w].Phase = Working
	}
	return append(out, Next{step(Record, w, p), n})
}

// durable is the row that keeps the durable epoch.
func (m *Model) durable(s *State, k uint8) *Mark {
	if m.wrong(EpochPerSlot) {
		return &s.PerSlot[k]
	}
	return &s.Row
}

// refuse is what a worker makes of a higher durable epoch: the same as of a bigger lock.
func (m *Model) refuse(s *State, w int, row Mark, out []Next) []Next {
	n := *s
	m.meet(&n, w, row)
	leave(&n, w)
	return append(out, Next{step(Refuse, w, row), n})
}

// recall is step 5: a new statement reads what is done.
func (m *Model) recall(s *State, w int, out []Next) []Next {
	n := *s
	k := &n.Workers[w]
	k.Phase = Working
	m.remember(&n, w, !m.wrong(CursorEarly), !m.wrong(LayersEarly))
	return append(out, Next{step(Recall, w, k.Obey), n})
}

// remember reads worker w's cursor, the layers of the other plans, or both.
func (m *Model) remember(s *State, w int, cursor, layers bool) {
	k := &s.Workers[w]
	if cursor {
		k.Cursor = 0
		if l := &s.Layers[k.Obey.slots()]; l.Epoch == k.Obey.epoch() {
			k.Cursor = l.Cursors[m.slot(s, 2*w)]
		}
	}
	if layers {
		k.Skip = m.others(&s.Layers, k.Obey)
	}
}

// beginAfterCursor begins a batch: the next rows of the slot up to the limit, or, if there are none, the move to the limit. A batch of
// failures is tried again without a move.
func (m *Model) beginAfterCursor(s *State, w int, out []Next) []Next {
	k := &s.Workers[w]
	begin := func(rows uint16, to uint8) {
		if m.wrong(EpochInBatch) && s.Row > k.Obey {
			out = m.refuse(s, w, s.Row, out)
			return
		}
		n := *s
		x := &n.Sessions[2*w]
		x.Txn, x.Rows, x.From, x.To = Open, rows, k.Cursor, to
		n.Back = n.Back || k.Obey < n.Top
		n.Top = max(n.Top, k.Obey)
		out = append(out, Next{Step{Kind: Advance, Who: uint8(w), Mark: k.Obey, Peer: to}, n})
	}
	slot := m.slotRows[k.Obey.slots()][m.slot(s, 2*w)]
	if failed := lowest(s.Failed&slot, m.BatchRows); failed != 0 {
		begin(failed, k.Cursor)
	}
	limit := m.limit(s, w)
	if k.Cursor >= limit {
		return out
	}
	rows := lowest(slot&m.visible(s)&upTo(limit)&^upTo(m.read(k.Cursor))&^k.Skip, m.BatchRows)
	if rows == 0 {
		begin(0, limit)
	} else {
		begin(rows, last(rows))
	}
	return out
}

// dropLayers deletes what covers nothing more.
func (m *Model) dropLayers(s *State, w int, out []Next) []Next {
	n := *s
	if m.prune(&n.Layers, s.Workers[w].Obey, m.slot(s, 2*w)); n.Layers == s.Layers {
		return out
	}
	return append(out, Next{step(Drop, w, 0), n})
}

// settle is the end of session i's transaction, or of one half of it. It says whether all was as the worker had left it; if not, the
// transaction is rolled back.
func (m *Model) settle(s *State, i int) bool {
	x := &s.Sessions[i]
	moves, counts := true, true
	switch rest := x.Txn == Owing; {
	case m.wrong(CursorApart):
		moves, counts = rest, !rest
	case m.halved(x):
		moves, counts = !rest, rest
	}
	switch {
	case moves && !m.move(s, i):
		return false
	case counts && x.Failed:
		s.Failed |= x.Rows
	case counts:
		s.Doubled = s.Doubled || s.Done&x.Rows != 0
		s.Done |= x.Rows
		s.Failed &^= x.Rows
	}
	if m.wrong(EpochInBatch) {
		s.Row = max(s.Row, x.Work)
	}
	return true
}

// halved says whether a session commits in two transactions what belongs in one.
func (m *Model) halved(x *Session) bool {
	return m.wrong(CursorApart) || m.wrong(FailureApart) && x.Failed
}

// move is the last statement before COMMIT: it moves the cursor if that is where the worker left it and its plan is the newest, and
// takes failures away if they are there. Whoever else moves the cursor, or stops it, at the same time waits for this
// transaction's row lock, so that the statement and the COMMIT are one step.
func (m *Model) move(s *State, i int) bool {
	x := &s.Sessions[i]
	l := &s.Layers[x.Work.slots()]
	cursor := &l.Cursors[m.slot(s, i)]
	there := l.Epoch == x.Work.epoch()
	same := there && *cursor == x.From && (x.Work == s.Row || m.wrong(OpenLayers|EpochPerSlot|EpochInBatch))
	if x.From == x.To {
		same = same && x.Rows&^s.Failed == 0
	}
	if !same && !m.wrong(NoCompare) {
		return false
	}
	if there {
		*cursor = x.To
	}
	return true
}
