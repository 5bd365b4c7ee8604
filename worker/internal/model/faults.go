package model

// faults may happen in every state and as often as they like. A property of the end ("can always finish") is about paths
// without them.
func (m *Model) faults(s *State, out []Next) []Next {
	zombies, live := 0, false
	for i := range 2 * len(m.Workers) {
		live = live || s.Sessions[i].Live
		if i%2 == 1 && s.Sessions[i].Live {
			zombies++
		}
	}
	for w := range m.Workers {
		switch {
		case s.Sessions[2*w].Live:
			n := *s
			m.end(&n, 2*w)
			out = append(out, Next{step(KillSession, w, 0), n})
			if zombies < m.Zombies && !s.Sessions[2*w+1].Live {
				n := *s
				m.abandon(&n, w)
				out = append(out, Next{step(KillClient, w, 0), n})
			}
		case s.Workers[w].View > 0 || s.Workers[w].Follow != 0 || s.Workers[w].Phase == Severed:
			n := *s
			n.Workers[w] = Worker{}
			out = append(out, Next{step(KillClient, w, 0), n})
		}
	}
	if live {
		n := *s
		for i := range 2 * len(m.Workers) {
			if n.Sessions[i].Live {
				m.end(&n, i)
			}
		}
		m.crash(&n)
		out = append(out, Next{Step{Kind: Restart}, n})
	}
	return out
}

// end is the end of session i: its transaction is lost, its locks are free, its client (if any) starts anew, with the plan it
// knows.
func (m *Model) end(s *State, i int) {
	s.Sessions[i] = Session{}
	m.forget(s, i)
	if w := i / 2; i == 2*w {
		k := &s.Workers[w]
		if m.wrong(SilentReconnect) && k.Phase == Working {
			k.Phase, k.Waits = Severed, 0
			return
		}
		kept := Worker{View: k.View, Follow: k.Follow}
		if m.wrong(KeepList) {
			kept.Search = k.Search
		}
		*k = kept
	}
}

// abandon is a client that is killed or cut off: the session stays with all it holds, and whoever waited for it goes on waiting.
// The new process knows only the first plan, as from a mounted volume that was not refreshed.
func (m *Model) abandon(s *State, w int) {
	was, is := 2*w, 2*w+1
	s.Sessions[is], s.Sessions[was] = s.Sessions[was], Session{}
	s.Workers[w] = Worker{}
	for v := range m.Workers {
		if k := &s.Workers[v]; k.Waits&(1<<was) != 0 {
			k.Waits = k.Waits&^(1<<was) | 1<<is
		}
	}
}
