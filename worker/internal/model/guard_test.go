package model

import (
	"math/rand/v2"
	"strings"
	"testing"
)

// A guard is what keeps effects single beside the fence.
type guard struct {
	name  string
	on    func(*Config)
	keeps Property
}

// With FOR UPDATE SKIP LOCKED the rows themselves keep effects single, whatever the locks do; but the fence is still broken. So do
// cursors: step 4 stops those of older plans, and one that was moved in between stays where it is.
func TestEffectsStaySingleWithoutTheFence(t *testing.T) {
	for _, guard := range append([]guard{{"rows", skipLocked, EffectOnce | NoOverlap}}, largeGuards...) {
		for _, tt := range mistakes {
			if tt.wrong == ReadEarly || tt.breaks[0] != EffectOnce { // ReadEarly locks nothing, and reads no cursor
				continue
			}
			t.Run(guard.name+", "+tt.name, func(t *testing.T) {
				c := with(tt.c, mistake(tt.wrong), guard.on)
				c.Check = guard.keeps
				r, err := Explore(c, 1_000_000)
				if err != nil {
					t.Fatal(err)
				}
				if r.Violation != nil {
					t.Fatal(r.Violation)
				}
			})
		}
	}
}

func TestC01NegativeKeys(t *testing.T) {
	m, err := New(one(1, nil, 0, Plan{1, 1}))
	if err != nil {
		t.Fatal(err)
	}
	for id := -100; id <= 100; id++ {
		for n := 1; n <= maxSlots; n++ {
			owners := 0
			for k := range n {
				if m.covers(id, n, k) {
					owners++
				}
			}
			if owners != 1 {
				t.Errorf("key %d has %d owners of %d", id, owners, n)
			}
		}
	}
}

// The explorer compares encoded states: two states must never share an encoding.
func TestEncodingKeepsTheState(t *testing.T) {
	for seed := range uint64(40) {
		m, err := New(RandomConfig(seed))
		if err != nil {
			t.Fatal(err)
		}
		rnd := rand.New(rand.NewPCG(seed, 2))
		var s State
		for range 150 {
			if got := m.decode(m.encode(nil, &s)); got != s {
				t.Fatalf("got %+v, want %+v", got, s)
			}
			next := m.Steps(&s, nil)
			s = next[rnd.IntN(len(next))].State
		}
	}
}

func TestBadInstancesAreRefused(t *testing.T) {
	for name, c := range map[string]Config{
		"no worker":        {},
		"thirteen workers": one(13, nil, 0, Plan{1, 1}),
		"no job":           {Workers: []Seat{{}}},
		"no plan":          one(1, nil, 0),
		"epoch 0":          one(1, nil, 0, Plan{0, 1}),
		"sixteen slots":    one(1, nil, 0, Plan{1, 16}),
		"a job too many":   {Jobs: []Job{{Plans: []Plan{{1, 1}}}}, Workers: []Seat{{Job: 1}}, BatchRows: 1},
		"no row in batch":  with(one(1, nil, 0, Plan{1, 1}), func(c *Config) { c.BatchRows = 0 }),
		"seventeen rows":   one(1, make([]int, 17), 0, Plan{1, 1}),
	} {
		if _, err := New(c); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// An instance that is too large is an error, not a proof.
func TestLimitOfStates(t *testing.T) {
	if _, err := Explore(up, 100); err == nil || !strings.Contains(err.Error(), "100 states") {
		t.Errorf("got %v", err)
	}
}
