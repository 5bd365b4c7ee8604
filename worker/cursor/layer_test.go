package cursor

import (
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"shardedjob.dev/api/v1alpha1"
)

func remainder(number int64, n int32) int32 {
	return int32((number%int64(n) + int64(n)) % int64(n))
}

// TestLayersOfTheModel lets the layers alone go through many re-scales.
func TestLayersOfTheModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		slotOf := func(key int64, n int32, by v1alpha1.ShardBy) int32 {
			if by == v1alpha1.ShardByHash {
				h := fnv.New32a()
				_, _ = fmt.Fprint(h, key)
				return remainder(int64(h.Sum32()), n)
			}
			return remainder(key, n)
		}
		s := story{model: newModel(drawKeys(t), slotOf), onRescale: func(int32, v1alpha1.ShardBy) {},
			onBatch: func(int32, int, []int64, int64, []int64, bool) {}, onRetry: func(int32, []int64, bool) {}}
		s.play(t, 1, 100)
		s.check(t)
		// One layer at most for each number of slots and way to pick them, however many re-scales there were.
		if s.most > 2*(1+2+3+4+5+6+7+8+9+10+11+12)+12 {
			t.Errorf("there were %d cursors at once", s.most)
		}
	})
}

// TestLayersOfTheDatabase plays the same stories with the real statements on a real server, and compares after each step.
func TestLayersOfTheDatabase(t *testing.T) {
	b := newBench(t, "bigint")
	fewer(t)
	rapid.Check(t, func(t *rapid.T) {
		b.exec("TRUNCATE t, shardedjob.job, shardedjob.slot, shardedjob.row_failure")
		keys := drawKeys(t)
		b.exec("INSERT INTO t SELECT unnest($1::bigint[])", keys)
		r := &real{bench: b, t: t, model: newModel(keys, hashed(b)), open: map[int32]*Slot{}}
		s := story{model: r.model, onRescale: r.rescale, onBatch: r.batch, onRetry: r.retry}
		s.play(t, 1, 6)
		s.check(t)
		b.wantAllOnce()
		b.complete(b.conn, r.plan, true)
	})
}

// fewer makes rapid play a fifth of the stories.
func fewer(t *testing.T) {
	checks := flag.Lookup("rapid.checks")
	before := checks.Value.String()
	n, err := strconv.Atoi(before)
	if err == nil {
		err = checks.Value.Set(strconv.Itoa(max(1, n/5)))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = checks.Value.Set(before) })
}

// hashed is the slot of each key of the table as the server says it.
func hashed(b *bench) func(int64, int32, v1alpha1.ShardBy) int32 {
	rows, err := b.conn.Query(b.Context(), "SELECT id, hashint8extended(id, 0) FROM t")
	if err != nil {
		b.Fatal(err)
	}
	hashes := map[int64]int64{}
	var key, hash int64
	if _, err := pgx.ForEachRow(rows, []any{&key, &hash}, func() error { hashes[key] = hash; return nil }); err != nil {
		b.Fatal(err)
	}
	return func(key int64, n int32, by v1alpha1.ShardBy) int32 {
		if by == v1alpha1.ShardByHash {
			return remainder(hashes[key], n)
		}
		return remainder(key, n)
	}
}

// real does to the database what is done to the model.
type real struct {
	*bench
	t     *rapid.T
	model *model
	plan  Plan
	open  map[int32]*Slot
}

func (r *real) rescale(n int32, by v1alpha1.ShardBy) {
	r.table.By = by
	r.plan = plan(r.plan.Epoch+1, n)
	r.enter(r.conn, r.plan)
	r.horizon(r.conn, r.plan)
	clear(r.open)
	r.compare()
}

// slot opens a slot when it is needed first, so that some are read late.
func (r *real) slot(k int32) *Slot {
	if r.open[k] == nil {
		r.open[k] = r.bench.open(r.conn, r.plan, k)
	}
	return r.open[k]
}

func (r *real) batch(slot int32, limit int, batch []int64, end int64, failed []int64, crash bool) {
	s := r.slot(slot)
	_, err := r.bench.batch(r.conn, s, s.Next(limit), func(b *Batch, m *Move) error {
		if got := fmt.Sprintf("%v %s", b.Keys, *b.End); got != fmt.Sprintf("%v %d", batch, end) {
			r.t.Errorf("slot %d finds %s, not %v %d", slot, got, batch, end)
		}
		for range failed {
			m.Failed = append(m.Failed, Failure{Key: b.Keys[0], Attempts: 1, Reason: "division_by_zero"})
			b.Keys = b.Keys[1:]
			m.Processed--
		}
		return crashIf(crash)
	})
	r.over(err, crash)
}

func (r *real) retry(slot int32, keys []int64, crash bool) {
	s := r.slot(slot)
	due, err := s.Due(r.Context(), r.conn, 100)
	if err != nil {
		r.t.Fatal(err)
	}
	_, err = r.bench.batch(r.conn, s, s.Take(keysOf(due)), func(b *Batch, _ *Move) error {
		if got := fmt.Sprint(b.Keys); got != fmt.Sprint(keys) {
			r.t.Errorf("slot %d has failures %s, not %v", slot, got, keys)
		}
		return crashIf(crash)
	})
	r.over(err, crash)
}

func crashIf(crash bool) error {
	if crash {
		return errCrash
	}
	return nil
}

// over compares database and model after a batch.
func (r *real) over(err error, crash bool) {
	if crash && errors.Is(err, errCrash) {
		clear(r.open) // whoever comes next reads it anew
	} else if err != nil {
		r.t.Fatal(err)
	}
	r.compare()
}

// compare says where the tables are not what the model has.
func (r *real) compare() {
	var want []string
	add := func(l past, closed bool) {
		for k, c := range l.cursors {
			at := "-"
			if c != nil {
				at = strconv.FormatInt(*c, 10)
			} else if closed {
				continue
			}
			want = append(want, fmt.Sprintf("%d %s %d %s %t", l.n, l.by, k, at, closed))
		}
	}
	for _, l := range r.model.older {
		add(l, true)
	}
	add(r.model.now, false)
	for _, key := range slices.Sorted(maps.Keys(r.model.failed)) {
		want = append(want, fmt.Sprint("failed ", key))
	}
	rows, err := r.conn.Query(r.Context(), `
		SELECT concat_ws(' ', slots, shard_by, slot, coalesce(cursor, '-'), closed::text) FROM shardedjob.slot
		UNION ALL SELECT 'failed ' || key FROM shardedjob.row_failure`)
	if err != nil {
		r.t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		r.t.Fatal(err)
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		r.t.Fatalf("the database has\n%s\nnot\n%s", got, want)
	}
}
