//go:build !race

package model

// The race detector has nothing to find in a single goroutine and makes these twenty times slower.
const walks, cursorWalks = 1500, 5000

var largeGuards = []guard{{"cursors", func(c *Config) { c.Cursors, c.Zombies = true, 0 }, EffectOnce | NoneLost}}

var large = []instance{
	{"two groups, one of two workers", with(two(2, [2]int{0, 1}, []int{-1}, 1, Plan{1, 1}), func(c *Config) {
		c.Jobs[0].Plans = []Plan{{1, 1}, {2, 2}}
		c.Workers = c.Workers[:3]
	})},
	{"two workers, two zombies, three plans", one(2, []int{-1, 2}, 2, Plan{1, 2}, Plan{2, 1}, Plan{3, 2})},
	{"three workers scale up", one(3, []int{-1}, 1, Plan{1, 2}, Plan{2, 3})},
	{"three workers, one epoch with two slot counts", one(3, []int{-1}, 0, Plan{1, 2}, Plan{1, 3})},
	{"three workers scale down, the user's SQL unlocks all", with(one(3, []int{-1, 2}, 0, Plan{1, 3}, Plan{2, 2}), userUnlocks)},

	{"cursors, up and down", upDown},
	{"cursors, one epoch with two slot counts", cursorsTwice},
	{"cursors, an epoch that goes back", wentBack},
	{"cursors, C12 two pods with one identity", with(cursorsUp, twin(0))},
	{"cursors, scale up, a zombie", with(cursorsUp, zombies(1))},
	{"cursors, scale down, a zombie", with(cursorsDown, zombies(1))},
	{"cursors, down and up", downUp},
	{"cursors, down and up, three rows", with(downUp, func(c *Config) { c.Rows = []int{-1, 2, 4} })},
	{"cursors, down and up, moved without comparing", with(downUp, mistake(NoCompare))},
	{"cursors, down and up, layers of older plans alone", with(downUp, mistake(OlderLayersOnly))},
	{"cursors, rows fail, down and up", with(downUp, failures)},
	{"cursors, an epoch that goes back, two rows", with(wentBack, func(c *Config) { c.Rows = []int{-1, 2} })},
	{"cursors, an epoch that goes back, heard of by one", with(wentBack, blind(1), zombies(1))},
	{"adoption, two adopters and the third worker", with(one(3, []int{-1, 1}, 0, Plan{1, 3}), adopter(0), adopter(1))},
	{"adoption, two of three workers and two adopters", with(one(2, []int{-1, 1}, 1, Plan{1, 3}), adopter(0), adopter(1))},
	{"adoption, scale up, a zombie", with(up, adopter(0))},
	{"adoption and cursors, scale up", with(cursorsUp, adopter(0))},
	{"adoption and cursors, scale down", with(one(2, []int{-1}, 0, Plan{1, 2}, Plan{2, 1}), adopter(0), cursors)},
	{"adoption and cursors, two of three workers and two adopters", with(one(2, []int{-1}, 0, Plan{1, 3}), adopter(0), adopter(1), cursors)},
	{"adoption and cursors, a zombie, the user's SQL unlocks all", with(adopted, cursors, userUnlocks)},
	{"horizon, scale up", with(one(2, []int{2, 3}, 0, Plan{1, 1}, Plan{2, 2}), cursors, inserts(2))},
	{"horizon, scale down, rows fail", with(one(2, []int{2, 3}, 0, Plan{1, 2}, Plan{2, 1}), cursors, inserts(1), failures)},
	{"stream, scale up", with(one(2, []int{2, 3}, 0, Plan{1, 1}, Plan{2, 2}), cursors, inserts(2), stream)},
	{"adoption and horizon", with(one(2, []int{2, 3}, 0, Plan{1, 2}), adopter(0), cursors, inserts(1))},
}
