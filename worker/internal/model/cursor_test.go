package model

import "testing"

// With cursors the smallest instances have no zombies: four times as many states come from each.
var (
	cursorsUp    = with(up, cursors, zombies(0))
	cursorsDown  = with(down, cursors, zombies(0))
	cursorsTwice = with(twice, cursors, zombies(0))
	downUp       = with(one(2, []int{-1, 2}, 0, Plan{1, 2}, Plan{2, 1}, Plan{3, 2}), cursors)
	upDown       = with(one(2, []int{-1, 2}, 0, Plan{1, 1}, Plan{2, 2}, Plan{3, 1}), cursors)
	wentBack     = with(one(2, []int{-1}, 0, Plan{2, 2}, Plan{1, 1}), cursors)
	// One worker does everything. Key 4 moves from slot 0 to slot 1.
	alone = with(one(1, []int{4}, 0, Plan{1, 2}, Plan{2, 3}), adopter(0), cursors)

	// A slot whose worker comes and goes, and an adopter.
	adopted    = with(one(2, []int{-1, 2}, 1, Plan{1, 2}), adopter(0))
	oneOfThree = with(one(1, []int{-1, 0, 1}, 0, Plan{1, 3}), adopter(0))
	twoAdopt   = with(one(1, []int{-1}, 0, Plan{1, 3}), adopter(0), adopter(1))

	horizon = with(one(1, []int{-1, 2, 3, 5}, 0, Plan{1, 1}), cursors, inserts(2))
	streams = with(one(2, []int{2, 3}, 0, Plan{1, 2}), cursors, inserts(2), stream)
)

var soundCursors = []instance{
	{"cursors, scale up", cursorsUp},
	{"cursors, scale down", cursorsDown},
	{"cursors, pause and resume", with(one(2, []int{-1}, 0, Plan{1, 2}, Plan{2, 0}, Plan{3, 1}), cursors)},
	{"cursors, two rows in a batch", with(one(2, []int{-1, 0, 2, 3}, 0, Plan{1, 1}, Plan{2, 2}), cursors, func(c *Config) { c.BatchRows = 2 })},
	{"cursors, one epoch with two slot counts, only the smaller heard of by one", with(split, cursors, zombies(0))},
	{"cursors, the only old worker cannot reach the API server", with(up, cursors, blind(0))},
	{"cursors, the surplus worker cannot reach the API server", with(down, cursors, blind(1), zombies(0))},
	{"cursors, two objects of one group", with(two(1, [2]int{0, 0}, []int{-1, 2}, 0, Plan{1, 1}, Plan{2, 1}), cursors)},
	{"cursors, the user's SQL unlocks all", with(cursorsUp, userUnlocks)},
	{"cursors, rows fail", with(cursorsUp, failures)},
}

var soundAdoptions = []instance{
	{"adoption, the worker is there", adopted},
	{"adoption, the worker is not there", with(one(1, []int{-1, 2}, 1, Plan{1, 2}), adopter(0))},
	{"adoption, one worker of three", oneOfThree},
	{"adoption, C12 two pods with one identity", with(adopted, twin(1), zombies(0))},
	{"adoption, scale up", with(up, adopter(0), zombies(0))},
	{"adoption, the user's SQL unlocks all", with(adopted, userUnlocks)},
	{"adoption and cursors, the worker is there", with(adopted, cursors, zombies(0))},
	{"adoption and cursors, one worker of three", with(oneOfThree, cursors)},
	{"adoption and cursors, one worker of four", with(one(1, []int{1, 2, 3}, 0, Plan{1, 4}), adopter(0), cursors)},
	{"adoption and cursors, one worker scales up", alone},
	{"adoption and cursors, rows fail", with(adopted, cursors, failures, zombies(0))},
}

var soundHorizons = []instance{
	{"horizon, two late rows", horizon},
	{"horizon, three late rows", with(one(1, []int{-1, 2, 3}, 0, Plan{1, 1}), cursors, inserts(3))},
	{"horizon, two workers", with(one(2, []int{2, 3}, 0, Plan{1, 2}), cursors, inserts(2))},
	{"horizon, a zombie", with(one(1, []int{-1, 2, 3}, 1, Plan{1, 1}), cursors, inserts(2))},
	{"stream, two workers", streams},
	{"stream, three late rows", with(one(1, []int{-1, 2, 3}, 0, Plan{1, 1}), cursors, inserts(3), stream)},
}

// Two rules keep things right where one would do: the locks without the comparing of cursors, layers of all plans without the durable
// epoch and the other way round. What the durable epoch alone keeps is that no older plan works again.
func TestEachGuardIsEnough(t *testing.T) {
	const effects = EffectOnce | NotAgain | NoneLost | CompleteTrue
	for _, tt := range []struct {
		name  string
		wrong Mistake
		keeps Property
	}{
		{"cursors moved without comparing", NoCompare, allProperties},
		{"cursors of older plans not stopped", OpenLayers, allProperties},
		{"layers of older plans alone", OlderLayersOnly, allProperties},
		{"a durable epoch per slot", EpochPerSlot, effects},
		{"the durable epoch in the batch", EpochInBatch, effects},
	} {
		for _, c := range []Config{cursorsUp, cursorsDown} {
			t.Run(tt.name+", "+c.String(), func(t *testing.T) {
				c := with(c, mistake(tt.wrong))
				c.Check = tt.keeps
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
