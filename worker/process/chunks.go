package process

import "shardedjob.dev/worker/shard"

// growAfter full batches in a row the size grows by a quarter.
const growAfter = 4

// Chunks finds bad rows by halving: a batch that fails is tried again in two halves, until a single row fails. It also
// holds the size of fresh batches, which halves with each timeout and grows back slowly.
type Chunks struct {
	limit int
	size  int
	good  int // full batches since the size last changed
	todo  [][]shard.Key
}

// NewChunks begins with batches of limit rows.
func NewChunks(limit int) *Chunks { return &Chunks{limit: limit, size: limit} }

// Size is how many rows a fresh batch should have.
func (c *Chunks) Size() int { return c.size }

// SetLimit changes the greatest size of fresh batches.
func (c *Chunks) SetLimit(limit int) {
	if c.size == c.limit || c.size > limit {
		c.size = limit
	}
	c.limit = limit
}

// Next takes out the next part of a failed batch, if there is one.
func (c *Chunks) Next() []shard.Key {
	if len(c.todo) == 0 {
		return nil
	}
	last := len(c.todo) - 1
	chunk := c.todo[last]
	c.todo = c.todo[:last]
	return chunk
}

// Put keeps keys to be tried, as they are, before all others.
func (c *Chunks) Put(keys []shard.Key) {
	if len(keys) > 0 {
		c.todo = append(c.todo, keys)
	}
}

// Failed takes back the keys of a batch, one of which at least is bad, and says whether it is a single one, which is the
// bad one then; else they are tried again in halves.
func (c *Chunks) Failed(keys []shard.Key) (single bool) {
	if len(keys) <= 1 {
		return len(keys) == 1
	}
	middle := len(keys) / 2
	c.Put(keys[middle:])
	c.Put(keys[:middle])
	return false
}

// TimedOut is Failed for a batch that took too long; fresh batches become smaller.
func (c *Chunks) TimedOut(keys []shard.Key) (single bool) {
	c.Shrink(len(keys))
	return c.Failed(keys)
}

// Shrink makes fresh batches smaller, since one of n rows took too long.
func (c *Chunks) Shrink(n int) { c.size, c.good = max(1, min(c.size, n/2)), 0 }

// Succeeded notes a batch of n rows that went well.
func (c *Chunks) Succeeded(n int) {
	if n < c.size || c.size == c.limit {
		return
	}
	if c.good++; c.good >= growAfter {
		c.size, c.good = min(c.limit, c.size+max(1, c.size/4)), 0
	}
}
