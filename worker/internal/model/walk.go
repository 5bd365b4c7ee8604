package model

import (
	"fmt"
	"math/rand/v2"
)

// Walk takes one random path: faulty steps with faults among them, each about one in sixteen, then no more faults until the end is
// reached, within calm steps. The same seed walks the same path. A nil result is a good walk.
func Walk(c Config, seed uint64, faulty, calm int) (*Violation, error) {
	m, err := New(c)
	if err != nil {
		return nil, err
	}
	rnd := rand.New(rand.NewPCG(seed, 0))
	var s State
	var trace []Step
	var next []Next
	for i := range faulty + calm {
		if i >= faulty && m.finished(&s) {
			return nil, nil
		}
		next = m.Steps(&s, next[:0])
		n := choose(next, rnd, i < faulty)
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

// choose picks a fault seldom or never, and otherwise any other step.
func choose(next []Next, rnd *rand.Rand, faults bool) *Next {
	calm := 0
	for i := range next { // faults come last
		if !next[i].Step.fault() {
			calm++
		}
	}
	switch {
	case faults && calm < len(next) && (calm == 0 || rnd.IntN(16) == 0):
		return &next[calm+rnd.IntN(len(next)-calm)]
	case calm > 0:
		return &next[rnd.IntN(calm)]
	}
	return nil
}

// RandomConfig makes an instance that is too large to explore: several workers, epochs and zombies, often with two jobs or a
// controller that publishes one epoch twice.
func RandomConfig(seed uint64) Config {
	rnd := rand.New(rand.NewPCG(seed, 1))
	c := Config{
		Rows:        []int{-9, -7, -2, 0, 1, 3, 4, 6, 11, 12},
		BatchRows:   1 + rnd.IntN(3),
		Zombies:     1 + rnd.IntN(4),
		UserUnlocks: rnd.IntN(2) == 0,
		SkipLocked:  rnd.IntN(4) == 0,
	}
	jobs := 1 + rnd.IntN(2)
	for j := range jobs {
		per := maxWorkers / jobs
		job := Job{Group: rnd.IntN(jobs)}
		for e := 1; e <= 1+rnd.IntN(5); e++ {
			job.Plans = append(job.Plans, Plan{uint8(e), uint8(rnd.IntN(per + 1))})
			if rnd.IntN(4) == 0 {
				job.Plans = append(job.Plans, Plan{uint8(e), uint8(1 + rnd.IntN(per))})
			}
		}
		last := job.Plans[len(job.Plans)-1].Epoch
		job.Plans = append(job.Plans, Plan{last + uint8(rnd.IntN(2)), uint8(1 + rnd.IntN(per))})
		c.Jobs = append(c.Jobs, job)
		for k := range per {
			c.Workers = append(c.Workers, Seat{Job: j, Ordinal: uint8(k)})
		}
	}
	return c
}

// String names an instance in test output.
func (c Config) String() string {
	s := fmt.Sprintf("%d workers, %d rows, %d zombies, plans", len(c.Workers), len(c.Rows), c.Zombies)
	for _, job := range c.Jobs {
		for _, p := range job.Plans {
			s += " " + markOf(p).String()
		}
		s += ";"
	}
	return s
}
