package model

import "math/rand/v2"

// Walk takes one random path: faulty steps with faults among them, then no more faults until the end is reached, within calm
// steps. How seldom faults and news are is drawn too. The same seed walks the same path. A nil result is a good walk.
func Walk(c Config, seed uint64, faulty, calm int) (*Violation, error) {
	m, err := New(c)
	if err != nil {
		return nil, err
	}
	rnd := rand.New(rand.NewPCG(seed, 0))
	d := dice{Rand: rnd, fault: 8 << rnd.IntN(6), news: 8 << rnd.IntN(5)}
	var s State
	var trace []Step
	var next []Next
	for i := range faulty + calm {
		if i >= faulty {
			if m.finished(&s) {
				return nil, nil
			}
			d.fault, d.news = 0, 2
		}
		next = m.Steps(&s, next[:0])
		n := d.choose(next)
		if n == nil {
			break
		}
		s = n.State
		trace = append(trace, n.Step)
		if p := m.broken(&s); p != 0 {
			return &Violation{p, trace}, nil
		}
	}
	if m.Check&Finishes == 0 || m.finished(&s) {
		return nil, nil
	}
	return &Violation{Finishes, trace}, nil
}

// dice say what happens next: about one step in fault is a fault, if there may be any, one in news a plan, or the begin or end of a writer.
type dice struct {
	*rand.Rand
	fault, news int
}

// choose picks a step, or nil if there is none.
func (d *dice) choose(next []Next) *Next {
	const calm, news, faults = 0, 1, 2
	class := func(s Step) int {
		switch s.Kind {
		case Publish, BeginInsert, CommitInsert, AbortInsert:
			return news
		case KillSession, KillClient, Restart:
			return faults
		}
		return calm
	}
	var count [3]int
	for i := range next {
		count[class(next[i].Step)]++
	}
	c := calm
	switch {
	case d.fault > 0 && count[faults] > 0 && (count[calm]+count[news] == 0 || d.IntN(d.fault) == 0):
		c = faults
	case count[news] > 0 && (count[calm] == 0 || d.IntN(d.news) == 0):
		c = news
	}
	if count[c] == 0 {
		return nil
	}
	k := d.IntN(count[c])
	for i := range next {
		if class(next[i].Step) == c {
			if k == 0 {
				return &next[i]
			}
			k--
		}
	}
	return nil
}
