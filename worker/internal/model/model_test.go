package model

import (
	"slices"
	"testing"
	"time"
)

// one makes an instance of one job whose workers have ordinals 0 to n-1.
func one(n int, rows []int, zombies int, plans ...Plan) Config {
	c := Config{Jobs: []Job{{Plans: plans}}, Rows: rows, BatchRows: 1, Zombies: zombies}
	for k := range n {
		c.Workers = append(c.Workers, Seat{Ordinal: uint8(k)})
	}
	return c
}

// two makes an instance of two jobs on one table, each with workers of its own.
func two(each int, groups [2]int, rows []int, zombies int, plans ...Plan) Config {
	c := Config{Rows: rows, BatchRows: 1, Zombies: zombies}
	for j, g := range groups {
		c.Jobs = append(c.Jobs, Job{Group: g, Plans: plans})
		for k := range each {
			c.Workers = append(c.Workers, Seat{Job: j, Ordinal: uint8(k)})
		}
	}
	return c
}

// with changes a copy of an instance.
func with(c Config, changes ...func(*Config)) Config {
	c.Workers = append([]Seat(nil), c.Workers...)
	for _, change := range changes {
		change(&c)
	}
	return c
}

func blind(w int) func(*Config)       { return func(c *Config) { c.Workers[w].Blind = true } }
func mistake(x Mistake) func(*Config) { return func(c *Config) { c.Mistakes = x } }
func zombies(n int) func(*Config)     { return func(c *Config) { c.Zombies = n } }
func inserts(n int) func(*Config)     { return func(c *Config) { c.Inserts = n } }
func userUnlocks(c *Config)           { c.UserUnlocks = true }
func skipLocked(c *Config)            { c.SkipLocked = true }
func cursors(c *Config)               { c.Cursors = true }
func failures(c *Config)              { c.Failures = true }
func stream(c *Config)                { c.Stream = true }

// twin adds another pod with an ordinal that is taken.
func twin(k uint8) func(*Config) {
	return func(c *Config) { c.Workers = append(c.Workers, Seat{Ordinal: k}) }
}

// adopter adds the second session of the worker with an ordinal.
func adopter(k uint8) func(*Config) {
	return func(c *Config) { c.Workers = append(c.Workers, Seat{Ordinal: k, Adopts: true}) }
}

type instance struct {
	name string
	c    Config
}

// sound are the instances in which the fence is explored to the last state, with any number of faults.
var sound = []instance{
	{"scale up", up},
	{"scale down", one(2, []int{-1, 2}, 2, Plan{1, 2}, Plan{2, 1})},
	{"pause and resume", one(2, []int{-1}, 1, Plan{1, 2}, Plan{2, 0}, Plan{3, 1})},
	{"up and down", one(2, []int{-3}, 1, Plan{1, 1}, Plan{2, 2}, Plan{3, 1})},
	{"three workers", one(3, []int{-1}, 0, Plan{1, 2}, Plan{2, 3})},
	{"one epoch with two slot counts, first the smaller", twice},
	{"one epoch with two slot counts, first the larger", one(2, []int{-1}, 1, Plan{1, 2}, Plan{1, 1})},
	{"one epoch with two slot counts, only the smaller heard of by one", split},
	{"one epoch with two slot counts, only the larger heard of by one", with(one(2, []int{-1}, 1, Plan{1, 2}, Plan{1, 1}), blind(1))},
	{"one epoch with two slot counts, then a newer", one(2, []int{-1}, 1, Plan{1, 1}, Plan{1, 2}, Plan{2, 2})},
	{"a worker that cannot reach the API server", with(up, blind(1))},
	{"the only old worker cannot reach the API server", with(up, blind(0))},
	{"the surplus worker cannot reach the API server", with(down, blind(1))},
	{"the remaining worker cannot reach the API server", with(down, blind(0))},
	{"a blind worker and one epoch with two slot counts", with(one(2, []int{-1}, 1, Plan{1, 1}, Plan{2, 1}, Plan{2, 2}), blind(1))},
	{"the user's SQL unlocks all", robbed},
	{"rows guard themselves", with(up, skipLocked)},
	{"two groups on one table", rivals},
	{"two objects of one group", two(1, [2]int{0, 0}, []int{-1, 2}, 1, Plan{1, 1}, Plan{2, 1})},
	{"two groups, the user's SQL unlocks all", with(rivals, userUnlocks)},
}

func TestExhaustive(t *testing.T) {
	kinds := uint64(1)<<Prime | 1<<Undo // mistakes alone get there
	for _, tt := range slices.Concat(sound, soundCursors, soundAdoptions, soundHorizons, large) {
		t.Run(tt.name, func(t *testing.T) {
			start := time.Now()
			r, err := Explore(tt.c, 5_000_000)
			if err != nil {
				t.Fatal(err)
			}
			if r.Violation != nil {
				t.Fatal(r.Violation)
			}
			kinds |= r.Kinds
			t.Logf("%s: %d states, %d steps, depth %d, %.1f s", tt.c, r.States, r.Edges, r.Depth, time.Since(start).Seconds())
		})
	}
	for k := range sentences {
		if kinds&(1<<k) == 0 {
			t.Errorf("nowhere happens: %s", sentences[k])
		}
	}
}
