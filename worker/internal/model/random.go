package model

import (
	"fmt"
	"math/rand/v2"
)

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
		per := 6 / jobs
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

// RandomCursors makes such an instance with cursors: up to six workers and the adopters that some of them have, pods that are
// missing, workers that never hear of a new plan, rows that fail or are inserted meanwhile.
func RandomCursors(seed uint64) Config {
	rnd := rand.New(rand.NewPCG(seed, 2))
	c := Config{
		BatchRows:   1 + rnd.IntN(3),
		Zombies:     rnd.IntN(4),
		UserUnlocks: rnd.IntN(4) == 0,
		Cursors:     true,
		Failures:    rnd.IntN(2) == 0,
		Inserts:     rnd.IntN(maxInserts + 1),
	}
	c.Stream = c.Inserts > 0 && rnd.IntN(2) == 0
	id := -15
	for range 4 + rnd.IntN(maxRows-3) {
		id += 1 + rnd.IntN(4)
		c.Rows = append(c.Rows, id)
	}
	n := 2 + rnd.IntN(maxCursors-1)
	job := Job{Plans: []Plan{{uint8(1 + rnd.IntN(2)), uint8(1 + rnd.IntN(n))}}}
	for range 1 + rnd.IntN(5) {
		last := job.Plans[len(job.Plans)-1].Epoch
		next := []uint8{last, 1, last + 1, last + 1, last + 1, last + 2}[rnd.IntN(6)]
		job.Plans = append(job.Plans, Plan{next, uint8(rnd.IntN(n + 1))})
	}
	job.Plans = append(job.Plans, Plan{job.Plans[len(job.Plans)-1].Epoch + 1, uint8(1 + rnd.IntN(n))})
	c.Jobs = []Job{job}
	for k := range n {
		// The first two are there and adopt, so that there is somebody for every slot, and one of them hears of every plan.
		if k >= 2 && rnd.IntN(4) == 0 {
			continue
		}
		blind := k != 1 && rnd.IntN(6) == 0
		c.Workers = append(c.Workers, Seat{Ordinal: uint8(k), Blind: blind})
		if k < 2 || rnd.IntN(4) == 0 {
			c.Workers = append(c.Workers, Seat{Ordinal: uint8(k), Blind: blind, Adopts: true})
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
