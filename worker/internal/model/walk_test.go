package model

import (
	"flag"
	"testing"
)

// A walk is faultySteps with faults, then at most calmSteps without.
const (
	faultySteps = 600
	calmSteps   = 20_000
)

// With these a walk that failed is walked again, or many more are: go test ./worker/internal/model -run RandomWalks/cursors -seed 17 -walks 1
var (
	firstSeed = flag.Uint64("seed", 0, "the first seed of the random walks")
	manyWalks = flag.Uint64("walks", 0, "how many seeds to walk with; 0 for as many as the tests want")
)

func TestRandomWalks(t *testing.T) {
	for _, tt := range []struct {
		name   string
		random func(uint64) Config
		walks  uint64
	}{
		{"fence", RandomConfig, walks},
		{"cursors", RandomCursors, cursorWalks},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if *manyWalks > 0 {
				tt.walks = *manyWalks
			}
			for seed := *firstSeed; seed < *firstSeed+tt.walks; seed++ {
				c := tt.random(seed)
				v, err := Walk(c, seed, faultySteps, calmSteps)
				if err != nil {
					t.Fatal(err)
				}
				if v != nil {
					t.Fatalf("-seed %d, %s: %v", seed, c, v)
				}
			}
			t.Logf("%d walks", tt.walks)
		})
	}
}

// A walk that found nothing would prove little if it did not find mistakes either.
func TestWalksFindMistakes(t *testing.T) {
	for _, tt := range []struct {
		name   string
		random func(uint64) Config
		wrong  Mistake
		breaks Property
	}{
		{"looking before taking", RandomConfig, LookFirst, SlotsApart},
		{"same epoch with two slot counts", RandomConfig, AcceptTwoSlotCounts, EffectOnce},
		{"a kept conflict lock", RandomConfig, KeepClaim, Finishes},
		{"a silent reconnect", RandomConfig, SilentReconnect | NoOwnLockCheck, EffectOnce},
		{"not waiting for older epochs, with cursors", RandomCursors, NoWait, SlotsApart},
		{"cursors read before step 4", RandomCursors, CursorEarly, NotAgain},
		{"a missing cursor left out where a layer starts", RandomCursors, PresentStart, NoneLost},
		{"a missing cursor left out where a layer is dropped", RandomCursors, PresentDrop, EffectOnce},
		{"a layer dropped by one slot", RandomCursors, DropByOneSlot, EffectOnce},
		{"the cursor in a transaction of its own", RandomCursors, CursorApart, EffectOnce},
		{"adoption without the slot's lock", RandomCursors, AdoptUnlocked, NoOverlap},
		{"a worker that yields to its own intent", RandomCursors, YieldToSelf, Finishes},
		{"waiting for the writer's process", RandomCursors, WaitForPid, NoneLost},
		{"rows read by the snapshot of the list", RandomCursors, OldSnapshot, NoneLost},
	} {
		t.Run(tt.name, func(t *testing.T) {
			calm := 0
			if tt.breaks == Finishes {
				calm = calmSteps
			}
			for seed := range uint64(3000) {
				c := with(tt.random(seed), mistake(tt.wrong))
				c.Check, c.SkipLocked = tt.breaks, false
				v, err := Walk(c, seed, faultySteps, calm)
				if err != nil {
					t.Fatal(err)
				}
				if v == nil {
					continue
				}
				again, err := Walk(c, seed, faultySteps, calm)
				if err != nil || again.String() != v.String() {
					t.Fatalf("seed %d walks another path: %v %v", seed, again, err)
				}
				t.Logf("seed %d, %s: %s after %d steps", seed, c, v.Property, len(v.Trace))
				return
			}
			t.Fatal("not found")
		})
	}
}
