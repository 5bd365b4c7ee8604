package model

// A Writer is a transaction of the application that inserts one row. It holds its lock on the table from before it takes its key until it
// is over.
type Writer uint8

// A prepared transaction holds its lock without a process.
const (
	Unbegun Writer = iota
	Writing
	Prepared
	Inserted
	Aborted
)

// A Search is a worker on its way to a horizon. It belongs to one session.
type Search struct {
	Stage   Stage
	Writers uint8 // those that were listed and still hold their locks
	Limit   uint8 // the rows up to the horizon that was read
}

// A Stage is a place in a search.
type Stage uint8

// Without Stream the search begins with a list and a wait, so that the rows of all who were writing then are in. What is read may
// have lower keys in flight, so that it counts only after another list and wait.
const (
	NotBegun Stage = iota
	Listed         // waits
	Found          // has read the last key
	Relisted       // waits again
	Bounded        // with Stream: may work up to the limit
)

// visible is the set of rows that a new statement sees.
func (m *Model) visible(s *State) uint16 {
	rows := m.allRows >> m.Inserts
	for i, x := range s.Writers[:m.Inserts] {
		if x == Inserted {
			rows |= m.inserts(1 << i)
		}
	}
	return rows
}

// inserts is the set of rows of a set of writers.
func (m *Model) inserts(writers uint8) uint16 {
	return uint16(writers) << (len(m.Rows) - m.Inserts)
}

// writing is the set of writers that hold a lock on the table.
func (m *Model) writing(s *State) (writers uint8) {
	for i, x := range s.Writers[:m.Inserts] {
		writers |= bit(x == Writing || x == Prepared) << i
	}
	return writers
}

// limit is how many rows a cursor of worker w may pass.
func (m *Model) limit(s *State, w int) uint8 {
	switch k := &s.Workers[w]; {
	case m.Inserts == 0:
		return uint8(len(m.Rows))
	case m.wrong(NoHorizon):
		return last(m.visible(s))
	case m.Stream && k.Stage == Bounded:
		return k.Limit
	case !m.Stream && s.Horizon > 0:
		return s.Horizon - 1
	}
	return 0
}

// wanted is the set of rows that have to be done by now.
func (m *Model) wanted(s *State) uint16 {
	if m.Inserts > 0 && !m.Stream && s.Horizon > 0 {
		return m.visible(s) & upTo(s.Horizon-1)
	}
	return m.visible(s)
}

// search is one step of worker w's search for a horizon, outside any transaction.
func (m *Model) search(s *State, w int, out []Next) []Next {
	k := &s.Workers[w]
	switch {
	case m.Inserts == 0 || m.wrong(NoHorizon) || !m.Stream && s.Horizon > 0:
		return out
	case k.Stage == NotBegun && (m.Stream && !m.wrong(ListFirst) || m.wrong(NoFirstWait)):
		return m.find(s, w, out)
	case k.Stage == NotBegun:
		return m.list(s, w, Listed, out)
	case k.Stage == Listed && m.over(s, k.Writers):
		return m.find(s, w, out)
	case k.Stage == Found && !m.wrong(ListFirst):
		return m.list(s, w, Relisted, out)
	case k.Stage == Found || k.Stage == Relisted && m.over(s, k.Writers):
		return m.bound(s, w, out)
	case k.Stage == Bounded && k.Cursor >= k.Limit && last(m.visible(s)) > k.Limit:
		n := *s
		n.Workers[w].Search = Search{}
		return m.search(&n, w, out)
	}
	return out
}

// list is a look at pg_locks for who may write to the table.
func (m *Model) list(s *State, w int, then Stage, out []Next) []Next {
	n := *s
	k := &n.Workers[w]
	k.Stage, k.Writers = then, m.writing(s)
	if m.wrong(OldSnapshot) {
		k.Skip |= m.allRows &^ m.visible(s)
	}
	return append(out, Next{step(List, w, 0), n})
}

// over says whether writers that were listed hold their locks no longer.
func (m *Model) over(s *State, writers uint8) bool {
	for i, x := range s.Writers[:m.Inserts] {
		if writers&(1<<i) != 0 && (x == Writing || x == Prepared && !m.wrong(WaitForPid)) {
			return false
		}
	}
	return true
}

// find reads the last key.
func (m *Model) find(s *State, w int, out []Next) []Next {
	n := *s
	n.Workers[w].Search = Search{Stage: Found, Limit: last(m.visible(s))}
	return append(out, Next{Step{Kind: Find, Who: uint8(w), Peer: last(m.visible(s))}, n})
}

// bound is the end of a search. Without Stream the horizon is the job's, the first that is stored by a worker whose plan is in
// force; the others need not go on.
func (m *Model) bound(s *State, w int, out []Next) []Next {
	n := *s
	k := s.Workers[w]
	switch {
	case m.Stream:
		n.Workers[w].Search = Search{Stage: Bounded, Limit: k.Limit}
	case s.Row != k.Obey:
		return out
	default:
		n.Horizon = k.Limit + 1
		for v := range m.Workers {
			n.Workers[v].Search = Search{}
		}
	}
	return append(out, Next{Step{Kind: Bound, Who: uint8(w), Peer: k.Limit}, n})
}

// writers is what the application does. Keys are handed out in their order.
func (m *Model) writers(s *State, out []Next) []Next {
	for i, x := range s.Writers[:m.Inserts] {
		to := func(k Kind, y Writer) {
			n := *s
			n.Writers[i] = y
			if y > Prepared {
				for w := range m.Workers {
					n.Workers[w].Writers &^= 1 << i
				}
			}
			out = append(out, Next{step(k, i, 0), n})
		}
		switch {
		case x == Unbegun && (i == 0 || s.Writers[i-1] != Unbegun):
			to(BeginInsert, Writing)
		case x == Writing:
			to(Prepare, Prepared)
			fallthrough
		case x == Prepared:
			to(CommitInsert, Inserted)
			to(AbortInsert, Aborted)
		}
	}
	return out
}

// crash is what a restart of the server leaves of the writers: prepared transactions, under another name in pg_locks.
func (m *Model) crash(s *State) {
	for i := range s.Writers[:m.Inserts] {
		if s.Writers[i] == Writing {
			s.Writers[i] = Aborted
		}
	}
	for w := range m.Workers {
		s.Workers[w].Writers = 0 // nobody has a list but with KeepList
	}
}
