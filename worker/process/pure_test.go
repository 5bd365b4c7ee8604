package process

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"shardedjob.dev/worker/shard"
)

func keyOf(i int) shard.Key { return shard.Key(strconv.Itoa(i)) }

// TestChunksFindEveryBadRow plays a server that refuses batches with a bad row, times out on long ones, and counts.
func TestChunksFindEveryBadRow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 64).Draw(t, "limit")
		total := rapid.IntRange(1, 300).Draw(t, "rows")
		patience := rapid.IntRange(1, 64).Draw(t, "rows a batch may have")
		bad := map[shard.Key]bool{}
		for _, key := range rapid.SliceOfN(rapid.IntRange(0, total-1), 0, 20).Draw(t, "bad") {
			bad[keyOf(key)] = true
		}
		c := NewChunks(limit)
		done, failed := map[shard.Key]int{}, map[shard.Key]int{}
		next, batches := 0, 0
		for {
			keys := c.Next()
			if keys == nil {
				for len(keys) < c.Size() && next < total {
					keys, next = append(keys, keyOf(next)), next+1
				}
			}
			if len(keys) == 0 {
				break
			}
			if batches++; batches > 100_000 {
				t.Fatal("does not end")
			}
			if len(keys) > limit || c.Size() < 1 || c.Size() > limit {
				t.Fatalf("batch of %d, size %d, limit %d", len(keys), c.Size(), limit)
			}
			switch {
			case len(keys) > patience:
				c.TimedOut(keys)
			case slices.ContainsFunc(keys, func(key shard.Key) bool { return bad[key] }):
				if c.Failed(keys) {
					failed[keys[0]]++
				}
			default:
				c.Succeeded(len(keys))
				for _, key := range keys {
					done[key]++
				}
			}
		}
		for i := range total {
			key := keyOf(i)
			if want := !bad[key]; done[key] == 1 != want || failed[key] == 1 == want {
				t.Fatalf("key %s (bad: %v) done %d times, failed %d times", key, bad[key], done[key], failed[key])
			}
		}
	})
}

func TestChunksShrinkAndGrowBack(t *testing.T) {
	c := NewChunks(100)
	if c.TimedOut(make([]shard.Key, 100)) || c.Size() != 50 {
		t.Fatalf("size %d", c.Size())
	}
	for c.Next() != nil {
	}
	for i := 0; c.Size() < 100; i++ {
		if i > 100 {
			t.Fatal("does not grow back")
		}
		c.Succeeded(c.Size())
	}
	c.SetLimit(200)
	if c.Size() != 200 {
		t.Errorf("a higher limit counts at once: %d", c.Size())
	}
	c.SetLimit(10)
	if c.Size() != 10 {
		t.Errorf("so does a lower one: %d", c.Size())
	}
	if !c.TimedOut([]shard.Key{"7"}) || c.Size() != 1 {
		t.Errorf("a single row that times out is the bad one: %d", c.Size())
	}
}

// TestFailuresAgreeWithAModel checks the counts, and that pauses grow and keys become due.
func TestFailuresAgreeWithAModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		attempts := rapid.Int32Range(1, 6).Draw(t, "attempts")
		f, now, model := NewFailures(attempts), time.Unix(0, 0), map[shard.Key]int32{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			key := keyOf(rapid.IntRange(-3, 3).Draw(t, "key"))
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0, 1:
				model[key]++
				if last := f.Fail(key, "x", now); last != (model[key] == attempts) {
					t.Fatalf("attempt %d of %d is the last: %v", model[key], attempts, last)
				}
			case 2:
				f.Forget(key)
				delete(model, key)
			case 3:
				at, ok := f.NextDue()
				if !ok {
					continue
				}
				if at.Sub(now) > lastRetry {
					t.Fatalf("due in %v", at.Sub(now))
				}
				if _, due := f.Due(at.Add(-1)); due && at.After(now) {
					t.Fatal("due before its time")
				}
				now = at
				if key, due := f.Due(now); !due || model[key] >= attempts {
					t.Fatalf("key %s with %d attempts due: %v", key, model[key], due)
				}
			}
			exhausted := 0
			for _, n := range model {
				if n >= attempts {
					exhausted++
				}
			}
			if f.Exhausted() != exhausted || f.Waiting() != len(model)-exhausted || len(f.Keys()) != len(model) {
				t.Fatalf("%d exhausted, %d waiting, keys %v; model %v", f.Exhausted(), f.Waiting(), f.Keys(), model)
			}
			if sample := f.Sample(2); exhausted > 0 && sample[0].Attempts < attempts {
				t.Fatalf("sample %v", sample)
			}
		}
	})
}

func TestPausesGrow(t *testing.T) {
	for attempts := int32(1); attempts < 100; attempts++ {
		full := lastRetry
		if attempts < 10 {
			full = firstRetry << (attempts - 1)
		}
		if pause := pauseAfter(attempts); pause < full/2 || pause > full {
			t.Errorf("after %d attempts: %v", attempts, pause)
		}
	}
}

func TestCircuit(t *testing.T) {
	var c circuit
	now := time.Unix(0, 0)
	pauses := []time.Duration{}
	for range 9 * tripAfter {
		c.fail(now)
		if until, tripped := c.tripped(now); tripped {
			pauses = append(pauses, until.Sub(now))
			now = until
		}
	}
	if len(pauses) != 9 || pauses[0] != time.Second || pauses[8] != longestBreak {
		t.Errorf("pauses %v", pauses)
	}
}
