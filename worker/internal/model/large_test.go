//go:build !race

package model

// The race detector has nothing to find in a single goroutine and makes these twenty times slower.
const walks = 1500

var large = []instance{
	{"two groups, one of two workers", with(two(2, [2]int{0, 1}, []int{-1}, 1, Plan{1, 1}), func(c *Config) {
		c.Jobs[0].Plans = []Plan{{1, 1}, {2, 2}}
		c.Workers = c.Workers[:3]
	})},
	{"two workers, two zombies, three plans", one(2, []int{-1, 2}, 2, Plan{1, 2}, Plan{2, 1}, Plan{3, 2})},
	{"three workers scale up", one(3, []int{-1}, 1, Plan{1, 2}, Plan{2, 3})},
	{"three workers, one epoch with two slot counts", one(3, []int{-1}, 0, Plan{1, 2}, Plan{1, 3})},
	{"three workers scale down, the user's SQL unlocks all", with(one(3, []int{-1, 2}, 0, Plan{1, 3}, Plan{2, 2}), userUnlocks)},
}
