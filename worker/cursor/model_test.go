package cursor

import (
	"maps"
	"math"
	"slices"

	"pgregory.net/rapid"

	"shardedjob.dev/api/v1alpha1"
)

// A model is what should be remembered, in plain Go: the same layers, compared as integers, and beside them the truth, how
// often each row was worked.
type model struct {
	keys   []int64 // ascending
	slotOf func(key int64, n int32, by v1alpha1.ShardBy) int32

	now    past
	older  []past // closed layers, of which rows may have been dropped
	failed map[int64]bool
	worked map[int64]int

	most int // the most cursors there ever were at once
}

// past is a layer; a nil cursor covers nothing.
type past struct {
	n       int32
	by      v1alpha1.ShardBy
	cursors []*int64
}

func newModel(keys []int64, slotOf func(int64, int32, v1alpha1.ShardBy) int32) *model {
	slices.Sort(keys)
	return &model{keys: slices.Compact(keys), slotOf: slotOf, failed: map[int64]bool{}, worked: map[int64]int{}}
}

// lowest is the lower bound of a layer: every row up to it is covered. A slot without a cursor has none.
func (l past) lowest() *int64 {
	var low *int64
	for _, c := range l.cursors {
		if c == nil {
			return nil
		}
		if low == nil || *c < *low {
			low = c
		}
	}
	return low
}

func further(a, b *int64) *int64 {
	if a == nil || b != nil && *b > *a {
		return b
	}
	return a
}

// rescale is newLayer.
func (m *model) rescale(n int32, by v1alpha1.ShardBy) {
	if m.now.n > 0 {
		m.older = append(m.older, m.now)
	}
	var bound *int64
	for _, l := range m.older {
		bound = further(bound, l.lowest())
	}
	m.now = past{n: n, by: by, cursors: make([]*int64, n)}
	for k := range m.now.cursors {
		m.now.cursors[k] = bound
		for _, l := range m.older {
			if l.n == n && l.by == by {
				m.now.cursors[k] = further(m.now.cursors[k], l.cursors[k])
			}
		}
	}
	least := m.now.lowest()
	m.older = slices.DeleteFunc(m.older, func(l past) bool {
		left := 0
		for k, c := range l.cursors {
			if c != nil && (l.n == n && l.by == by || least != nil && *c <= *least) {
				l.cursors[k] = nil
			} else if c != nil {
				left++
			}
		}
		return left == 0
	})
	cursors := int(n)
	for _, l := range m.older {
		for _, c := range l.cursors {
			if c != nil {
				cursors++
			}
		}
	}
	m.most = max(m.most, cursors)
}

func (l past) covers(key int64, slot int32) bool {
	return l.cursors[slot] != nil && key <= *l.cursors[slot]
}

// next is the rows of the next batch of a slot, and where the cursor is after it.
func (m *model) next(slot int32, limit int) (batch []int64, end int64) {
	for _, key := range m.keys {
		if m.slotOf(key, m.now.n, m.now.by) != slot || m.now.covers(key, slot) {
			continue
		}
		if slices.ContainsFunc(m.older, func(l past) bool { return l.covers(key, m.slotOf(key, l.n, l.by)) }) {
			continue
		}
		if batch = append(batch, key); len(batch) == limit {
			return batch, key
		}
	}
	return batch, m.keys[len(m.keys)-1]
}

// advance commits a batch, of whose rows some have failed.
func (m *model) advance(slot int32, batch []int64, end int64, failed []int64) {
	for _, key := range batch {
		if slices.Contains(failed, key) {
			m.failed[key] = true
		} else {
			m.worked[key]++
		}
	}
	m.now.cursors[slot] = &end
}

// due are the failed rows of a slot, which retry works.
func (m *model) due(slot int32) []int64 {
	due := slices.Sorted(maps.Keys(m.failed))
	return slices.DeleteFunc(due, func(key int64) bool { return m.slotOf(key, m.now.n, m.now.by) != slot })
}

func (m *model) retry(keys []int64) {
	for _, key := range keys {
		m.worked[key]++
		delete(m.failed, key)
	}
}

// A story is what happens to a table, drawn at random; each step is also done to the real thing, if there is one.
type story struct {
	*model
	onRescale func(n int32, by v1alpha1.ShardBy)
	onBatch   func(slot int32, limit int, batch []int64, end int64, failed []int64, crash bool)
	onRetry   func(slot int32, keys []int64, crash bool)
}

// drawKeys draws keys among which are neighbors, negative ones and the extremes.
func drawKeys(t *rapid.T) []int64 {
	key := rapid.OneOf(rapid.Int64Range(-30, 30), rapid.Int64(),
		rapid.SampledFrom([]int64{math.MinInt64, math.MinInt64 + 1, math.MaxInt64 - 1, math.MaxInt64, 9e18}))
	return rapid.SliceOfNDistinct(key, 1, 60, rapid.ID[int64]).Draw(t, "keys")
}

// play draws what happens, and then lets the newest plan come to its end.
func (s *story) play(t *rapid.T, least, most int) {
	for range rapid.IntRange(least, most).Draw(t, "re-scales") {
		n := rapid.Int32Range(1, 12).Draw(t, "n")
		by := rapid.SampledFrom([]v1alpha1.ShardBy{v1alpha1.ShardByValue, v1alpha1.ShardByHash}).Draw(t, "by")
		s.rescale(n, by)
		s.onRescale(n, by)
		// Few of the slots work, so that they are far apart.
		for range rapid.IntRange(0, 5).Draw(t, "batches") {
			slot := rapid.Int32Range(0, n-1).Draw(t, "slot")
			crash := rapid.IntRange(0, 3).Draw(t, "crash") == 0
			if rapid.IntRange(0, 4).Draw(t, "retry") == 0 {
				s.again(slot, crash)
				continue
			}
			s.batch(slot, rapid.IntRange(1, 6).Draw(t, "limit"), rapid.IntRange(0, 3).Draw(t, "fails") == 0, crash)
		}
	}
	for slot := range s.now.n {
		for s.now.cursors[slot] == nil || *s.now.cursors[slot] < s.keys[len(s.keys)-1] {
			s.batch(slot, 7, false, false)
		}
		s.again(slot, false)
	}
}

func (s *story) batch(slot int32, limit int, fails, crash bool) {
	if at := s.now.cursors[slot]; at != nil && *at == s.keys[len(s.keys)-1] {
		return
	}
	batch, end := s.next(slot, limit)
	var failed []int64
	if fails && len(batch) > 0 {
		failed = batch[:1]
	}
	if !crash {
		s.advance(slot, batch, end, failed)
	}
	s.onBatch(slot, limit, batch, end, failed, crash)
}

func (s *story) again(slot int32, crash bool) {
	keys := s.due(slot)
	if len(keys) == 0 {
		return
	}
	if !crash {
		s.retry(keys)
	}
	s.onRetry(slot, keys, crash)
}

// check says that every row was worked exactly once.
func (s *story) check(t *rapid.T) {
	if len(s.failed) > 0 {
		t.Errorf("rows are left as failed: %v", s.failed)
	}
	for _, key := range s.keys {
		if s.worked[key] != 1 {
			t.Errorf("row %d was worked %d times", key, s.worked[key])
		}
	}
}
