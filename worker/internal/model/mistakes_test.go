package model

import (
	"slices"
	"testing"
)

var (
	up     = one(2, []int{-1, 2}, 1, Plan{1, 1}, Plan{2, 2})
	down   = one(2, []int{-1, 2}, 1, Plan{1, 2}, Plan{2, 1})
	twice  = one(2, []int{-1}, 1, Plan{1, 1}, Plan{1, 2})
	split  = with(one(2, []int{-1}, 1, Plan{1, 1}, Plan{1, 2}), blind(0))
	rivals = two(1, [2]int{0, 1}, []int{-1, 2}, 1, Plan{1, 1}, Plan{2, 1})
	robbed = with(up, userUnlocks)
)

// A seeded mistake is a wrong protocol with an instance that shows it and the properties it breaks, each by itself.
type seeded struct {
	name   string
	wrong  Mistake
	c      Config
	breaks []Property
}

// mistakes are those about the fence. The same instances without them are among those of TestExhaustive.
var mistakes = []seeded{
	{"looking before taking the epoch lock", LookFirst, up, []Property{EffectOnce, NoOverlap, SlotsApart}},
	{"the same epoch with two slot counts", AcceptTwoSlotCounts, twice, []Property{EffectOnce, NoOverlap, SlotsApart}},
	{"yielding to more slots without asking for a plan above", NoAsk, split, []Property{Finishes}},
	{"an epoch lock without slot count, two plans", EpochWithoutSlots, twice, []Property{EffectOnce, NoOverlap, SlotsApart}},
	{"an epoch lock without slot count, one follows", EpochWithoutSlots, with(up, blind(0)), []Property{EffectOnce, NoOverlap, SlotsApart}},
	{"not waiting for older epochs", NoWait, up, []Property{EffectOnce, NoOverlap, SlotsApart}},
	{"waiting for older slots instead of older epochs", WaitForSlotsOnly, up, []Property{EffectOnce, NoOverlap, SlotsApart}},
	{"waiting for the session instead of its epoch lock", WaitForSessionEnd, up, []Property{Finishes}},
	{"taking a termination for done", TerminateIsDone, up, []Property{EffectOnce, NoOverlap, SlotsApart}},
	{"the slot before older epochs are gone", SlotFirst, up, []Property{SlotsApart}},
	{"reading before the slot is held", ReadEarly, up, []Property{EffectOnce}},
	{"unlocking before COMMIT", UnlockBeforeCommit, up, []Property{EffectOnce, NoOverlap}},
	{"no count of own locks", NoOwnLockCheck, robbed, []Property{EffectOnce, NoOverlap}},
	{"own locks counted before deferred triggers", TriggersAfterCheck, robbed, []Property{EffectOnce, NoOverlap}},
	{"a silent reconnect", SilentReconnect, up, []Property{NoOverlap, SlotsApart}},
	{"a silent reconnect and no count of own locks", SilentReconnect | NoOwnLockCheck, up, []Property{EffectOnce}},
	{"a kept conflict lock", KeepClaim, rivals, []Property{Finishes}},
	{"a conflict lock dropped at a hand-over", DropClaim, rivals, []Property{OneJob}},
	{"an incumbent that yields at a hand-over", LookForRivalsAgain, rivals, []Property{OneJob}},
	{"slot count in the high bits of the epoch lock", CompareSlotsFirst, with(down, blind(1)), []Property{Finishes}},
	{"not following a newer epoch", NoFollow, with(up, blind(0)), []Property{Finishes}},
	{"a surplus worker that looks at its plan alone", SurplusSleeps, with(up, blind(1)), []Property{Finishes}},
	{"a surplus worker that keeps its plan to itself", NoHerald, with(down, blind(0)), []Property{Finishes}},
	{"plain MOD", PlainMod, up, []Property{Finishes}},
	{"an empty slot taken for the end", EmptyIsEnd, up, []Property{CompleteTrue}},
}

func TestMistakesAreCaught(t *testing.T) {
	seen := Mistake(0)
	for _, tt := range slices.Concat(mistakes, cursorMistakes) {
		seen |= tt.wrong
		for _, p := range tt.breaks {
			t.Run(tt.name+", "+p.String(), func(t *testing.T) {
				c := with(tt.c, mistake(tt.wrong))
				c.Check = p
				r, err := Explore(c, 1_000_000)
				if err != nil {
					t.Fatal(err)
				}
				if r.Violation == nil {
					t.Fatalf("not caught in %d states", r.States)
				}
				t.Logf("%d states, %v", r.States, r.Violation)
			})
		}
	}
	if want := endOfMistakes - 1; seen != want {
		t.Errorf("mistakes without a case: %b", want&^seen)
	}
}
