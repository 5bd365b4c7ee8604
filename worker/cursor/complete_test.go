package cursor

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/worker/shard"
)

// fail works the next row of a slot in vain.
func (b *bench) fail(s *Slot, attempts int32, exhausted bool, pause time.Duration) shard.Key {
	b.Helper()
	found, err := b.batch(b.conn, s, s.Next(1), func(f *Batch, m *Move) error {
		m.Failed = []Failure{{Key: f.Keys[0], Attempts: attempts, Reason: "division_by_zero", Exhausted: exhausted, Due: pause}}
		f.Keys, m.Processed = f.Keys[1:], 0
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	return *found.End
}

func TestFailuresOutliveTheWorker(t *testing.T) {
	b := newBench(t, "integer")
	b.exec("INSERT INTO t SELECT generate_series(-20, 20)")
	s := b.open(b.conn, plan(1, 2), 1)
	due := b.fail(s, 1, false, 0)
	later := b.fail(s, 2, false, time.Hour)
	hopeless := b.fail(s, 3, true, 0)
	for !s.AtEnd() {
		b.next(b.conn, s, 5)
	}
	b.drainOthers(plan(1, 2), 1)
	b.complete(b.conn, plan(1, 2), false)

	// Another partition, whose slots are picked otherwise, has the same failures.
	b.table.By = v1alpha1.ShardByHash
	p := plan(2, 3)
	var got []string
	var owner, ownerOfHopeless *Slot
	for k := range p.Slots {
		s := b.open(b.conn, p, k)
		failures, err := s.Due(t.Context(), b.conn, 10)
		if err != nil {
			t.Fatal(err)
		}
		exhausted, err := s.Exhausted(t.Context(), b.conn, nil, 10)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range append(failures, exhausted...) {
			if f.Exhausted {
				ownerOfHopeless = s
			} else {
				owner = s
			}
			got = append(got, fmt.Sprint(f.Key, " ", f.Attempts, f.Reason))
		}
		b.drainQuietly(s)
	}
	if len(got) != 2 || owner == nil || ownerOfHopeless == nil {
		t.Fatalf("failures %q", got)
	}
	if totals, err := Count(t.Context(), b.conn, group); err != nil || totals != (Totals{Processed: 38, Waiting: 2, Exhausted: 1}) {
		t.Errorf("%+v %v", totals, err)
	}
	backlog, err := ownerOfHopeless.Backlog(t.Context(), b.conn)
	if err != nil || backlog.Exhausted != 1 || backlog.Example == nil || backlog.Example.Key != hopeless {
		t.Errorf("%+v %v", backlog, err)
	}

	// One more attempt fails: it counts, and the row is put off; then one succeeds.
	if _, err := b.batch(b.conn, owner, owner.Take([]shard.Key{due}), func(f *Batch, m *Move) error {
		*m = Move{Failed: []Failure{{Key: f.Keys[0], Attempts: 2, Reason: "check_violation", Due: time.Hour}}}
		f.Keys = nil
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	b.want(fmt.Sprintf("SELECT format('%%s %%s %%s %%s', attempts, reason, exhausted, due_at > now() + interval '50 min') FROM shardedjob.row_failure WHERE key = '%s'", due), "2 check_violation f t")
	b.exec("UPDATE shardedjob.row_failure SET due_at = now()")
	if _, err := b.batch(b.conn, owner, owner.Take([]shard.Key{due}), nil); err != nil {
		t.Fatal(err)
	}
	// A row that is deleted by hand is gone; all others have another chance.
	b.exec(fmt.Sprintf("DELETE FROM t WHERE id = %s", hopeless))
	if found, err := b.batch(b.conn, ownerOfHopeless, ownerOfHopeless.Take([]shard.Key{hopeless}), nil); err != nil || len(found.Gone) != 1 {
		t.Errorf("%+v %v", found, err)
	}
	b.want("SELECT string_agg(key, ' ') FROM shardedjob.row_failure", string(later))
	for k := range p.Slots {
		s := b.open(b.conn, p, k)
		if err := s.Retry(t.Context(), b.conn, "another"); err != nil {
			t.Fatal(err)
		}
		b.drain(b.conn, s, 10)
	}
	b.wantAllOnce()
	b.complete(b.conn, p, true)
	if totals, err := Count(t.Context(), b.conn, group); err != nil || totals != (Totals{Processed: 40, Gone: 1}) {
		t.Errorf("%+v %v", totals, err)
	}
}

func (b *bench) drainOthers(p Plan, but int32) {
	b.Helper()
	for k := range p.Slots {
		if k != but {
			b.drainQuietly(b.open(b.conn, p, k))
		}
	}
}

// drainQuietly works a slot to its end, and leaves failures.
func (b *bench) drainQuietly(s *Slot) {
	b.Helper()
	for !s.AtEnd() {
		b.next(b.conn, s, 10)
	}
}

// TestAFailureResolvedByOthers: the row was skipped by hand, or is a twin's, while it is tried again.
func TestAFailureResolvedByOthers(t *testing.T) {
	b := newBench(t, "integer")
	b.exec("INSERT INTO t SELECT generate_series(1, 9)")
	s := b.open(b.conn, plan(1, 1), 0)
	key := b.fail(s, 1, false, 0)
	b.exec("DELETE FROM shardedjob.row_failure")
	if _, err := b.batch(b.conn, s, s.Take([]shard.Key{key}), nil); !errors.Is(err, ErrCursorMoved) {
		t.Errorf("got %v", err)
	}
	b.want("SELECT sum(times)::text FROM t", "0")
}

func TestCompleteIsNeverEarly(t *testing.T) {
	b := newBench(t, "integer")
	b.exec("INSERT INTO t SELECT generate_series(1, 30)")
	p := plan(1, 3)
	b.complete(b.conn, p, false)
	first := b.open(b.conn, p, 0)
	b.drain(b.conn, first, 100)
	b.complete(b.conn, p, false)
	b.drain(b.conn, b.open(b.conn, p, 1), 100)
	b.exec("DELETE FROM shardedjob.slot WHERE slot = 2") // a row that is missing is not done
	b.complete(b.conn, p, false)
	b.exec("INSERT INTO shardedjob.slot (consumer_group, epoch, slots, slot, shard_by) VALUES ($1, 1, 3, 2, 'Value')", group)
	last := b.open(b.conn, p, 2)
	key := b.fail(last, 5, true, 0)
	b.drainQuietly(last)
	b.complete(b.conn, p, false)
	if _, err := b.batch(b.conn, last, last.Take([]shard.Key{key}), nil); err != nil {
		t.Fatal(err)
	}
	b.complete(b.conn, plan(1, 4), false)
	b.complete(b.conn, p, true)
	at := b.text("SELECT completed_at::text FROM shardedjob.job")
	b.enter(b.conn, plan(2, 5)) // a later job of the group
	b.complete(b.conn, plan(2, 5), true)
	b.want("SELECT completed_at::text FROM shardedjob.job", at)
	if job, err := ReadJob(t.Context(), b.conn, group); err != nil || job.CompletedAt == nil || job.Epoch != 2 || job.Slots != 5 {
		t.Errorf("%+v %v", job, err)
	}
}

func TestForget(t *testing.T) {
	b := newBench(t, "integer")
	b.exec("INSERT INTO t SELECT generate_series(1, 30)")
	p := plan(7, 2)
	s := b.open(b.conn, p, 0)
	b.fail(s, 1, false, 0)
	b.drain(b.conn, s, 10)
	var stale *StaleError
	if err := Forget(t.Context(), b.conn, plan(6, 2)); !errors.As(err, &stale) {
		t.Errorf("an older plan: %v", err)
	}
	for range 2 { // every worker of the plan does it
		if err := Forget(t.Context(), b.conn, p); err != nil {
			t.Fatal(err)
		}
		b.want("SELECT format('%s %s %s', (SELECT count(*) FROM shardedjob.slot), (SELECT count(*) FROM shardedjob.row_failure), job) FROM shardedjob.job",
			fmt.Sprintf("0 0 (%s,1,8,0,,,,,,,,,,,,0,0)", group))
	}
	// A worker that goes on under the plan changes nothing, and cannot start anew.
	if _, err := b.batch(b.conn, s, s.Take([]shard.Key{"2"}), nil); !errors.Is(err, ErrCursorMoved) {
		t.Errorf("a batch: %v", err)
	}
	if _, err := Enter(t.Context(), b.conn, p, b.table); !errors.As(err, &stale) || stale.Epoch != 8 {
		t.Errorf("enter: %v", err)
	}
	if totals, err := Count(t.Context(), b.conn, group); err != nil || totals != (Totals{}) {
		t.Errorf("%+v %v", totals, err)
	}
	// A later job starts anew, with a scope of its own.
	b.exec("UPDATE t SET times = 0")
	b.table.Where = "id > 10"
	b.work(plan(9, 3))
	b.want("SELECT sum(times) || ' ' || min(id) FROM t WHERE times > 0", "20 11")
	if err := Forget(t.Context(), b.conn, p); !errors.As(err, &stale) {
		t.Errorf("forgotten under an old plan: %v", err)
	}
}

func TestNothingToForget(t *testing.T) {
	b := newBench(t, "integer")
	if err := Forget(t.Context(), b.conn, plan(1, 1)); err != nil {
		t.Error(err)
	}
	b.exec("DROP SCHEMA shardedjob CASCADE")
	if err := Forget(t.Context(), b.conn, plan(1, 1)); err != nil {
		t.Error(err)
	}
	if job, err := ReadJob(t.Context(), b.conn, group); err != nil || job != nil {
		t.Errorf("%+v %v", job, err)
	}
	b.want("SELECT to_regnamespace('shardedjob')::text", "NULL")
}

// TestM07WhatRemainsAddsUp counts after each batch, over re-scales, failures and rows that go away.
func TestM07WhatRemainsAddsUp(t *testing.T) {
	b := newBench(t, "integer")
	b.exec("INSERT INTO t SELECT generate_series(-500, 499); UPDATE t SET kind = 'text' WHERE id % 10 = 0")
	b.table.Where = "kind = 'photo'"
	for epoch := range int64(6) {
		p := plan(epoch+1, 1+rand.Int32N(5))
		for range 8 {
			s := b.open(b.conn, p, rand.Int32N(p.Slots))
			if s.AtEnd() {
				continue
			}
			b.next(b.conn, s, 30)
			if !s.AtEnd() && rand.N(3) == 0 {
				b.fail(s, 1, false, time.Hour)
			}
			totals, err := Count(t.Context(), b.conn, group)
			if err != nil {
				t.Fatal(err)
			}
			rest, err := Remaining(t.Context(), b.conn, p, b.table, time.Minute)
			if err != nil || rest.Estimate || rest.Rows+totals.Processed != 900 {
				t.Fatalf("%+v %+v %v", rest, totals, err)
			}
		}
	}
}

func TestRemainingIsEstimatedWhenCountingTakesLong(t *testing.T) {
	b := newBench(t, "integer")
	b.exec("INSERT INTO t SELECT generate_series(1, 20000); ANALYZE t")
	p := plan(1, 40)
	for k := range p.Slots {
		s := b.open(b.conn, p, k)
		for range k % 2 { // every other slot has done 250 of its 500 rows
			b.next(b.conn, s, 250)
		}
	}
	b.exec("CREATE FUNCTION slow(int) RETURNS boolean LANGUAGE sql VOLATILE AS 'SELECT pg_sleep(0.001) IS NOT NULL'")
	b.table.Where = "slow(id)"
	rest, err := Remaining(t.Context(), b.conn, p, b.table, 50*time.Millisecond)
	if err != nil || !rest.Estimate || rest.Rows < 12000 || rest.Rows > 18000 {
		t.Errorf("%+v %v", rest, err)
	}
}

// TestAHundredRescalesLeaveABoundedState re-scales with hardly any work between, with slots far apart.
func TestAHundredRescalesLeaveABoundedState(t *testing.T) {
	b := newBench(t, "bigint")
	b.exec("INSERT INTO t SELECT generate_series(1, 20000)")
	var sizes []string
	for epoch := range int64(100) {
		p := plan(epoch+1, 1+rand.Int32N(12))
		if epoch == 99 {
			p.Slots = 12
		}
		b.enter(b.conn, p)
		b.horizon(b.conn, p)
		for range 2 {
			s, err := Open(t.Context(), b.conn, p, b.table, rand.Int32N(p.Slots))
			if err != nil {
				t.Fatal(err)
			}
			if !s.AtEnd() {
				b.next(b.conn, s, 1+rand.N(40))
			}
		}
		if epoch%20 == 19 {
			sizes = append(sizes, b.text("SELECT format('%s rows, %s bytes', count(*), sum(pg_column_size(s))) FROM shardedjob.slot s"))
		}
	}
	t.Logf("after 20, 40, ... re-scales: %s; on disk: %s", strings.Join(sizes, "; "), b.text("SELECT pg_size_pretty(pg_total_relation_size('shardedjob.slot'))"))
	// One layer at most for each number of slots.
	if rows := b.text("SELECT count(*)::text FROM shardedjob.slot"); len(rows) > 2 {
		t.Errorf("%s rows are left", rows)
	}
	b.work(plan(100, 12))
	b.wantAllOnce()
}
