package model

import "testing"

// A walk is faultySteps with faults, then at most calmSteps without.
const (
	faultySteps = 600
	calmSteps   = 20_000
)

func TestRandomWalks(t *testing.T) {
	for seed := range uint64(walks) {
		c := RandomConfig(seed)
		v, err := Walk(c, seed, faultySteps, calmSteps)
		if err != nil {
			t.Fatal(err)
		}
		if v != nil {
			t.Fatalf("seed %d, %s: %v", seed, c, v)
		}
	}
	t.Logf("%d walks", walks)
}

// A walk that found nothing would prove little if it did not find mistakes either.
func TestWalksFindMistakes(t *testing.T) {
	for _, tt := range []struct {
		name   string
		wrong  Mistake
		breaks Property
	}{
		{"looking before taking", LookFirst, EffectOnce},
		{"same epoch with two slot counts", AcceptTwoSlotCounts, EffectOnce},
		{"a kept conflict lock", KeepClaim, Finishes},
		{"a silent reconnect", SilentReconnect | NoOwnLockCheck, EffectOnce},
	} {
		t.Run(tt.name, func(t *testing.T) {
			calm := 0
			if tt.breaks == Finishes {
				calm = calmSteps
			}
			for seed := range uint64(3000) {
				c := with(RandomConfig(seed), mistake(tt.wrong))
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
