package cursor

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"shardedjob.dev/worker/database"
	"shardedjob.dev/worker/shard"
)

// TestG06ALockedRowHoldsNothingUp has rows locked by the application, each in its way, while their slot is worked.
func TestG06ALockedRowHoldsNothingUp(t *testing.T) {
	for name, lock := range map[string]string{
		"share": "SELECT FROM t WHERE id = 57 FOR SHARE", "update": "UPDATE t SET kind = kind WHERE id = 57",
		"delete": "DELETE FROM t WHERE id = 57", "move": "UPDATE t SET id = 1000 WHERE id = 57",
	} {
		for _, commit := range []bool{true, false} {
			t.Run(fmt.Sprint(name, " ", commit), func(t *testing.T) {
				b := newBench(t, "integer")
				b.exec("INSERT INTO t SELECT generate_series(1, 100)")
				s := b.open(b.conn, plan(1, 1), 0)
				app := b.connect()
				tx, err := app.Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = tx.Rollback(context.Background()) }()
				exec(t, app, lock)
				for !s.AtEnd() {
					b.next(b.conn, s, 10)
				}
				b.want("SELECT string_agg(format('%s %s %s', key, attempts, reason), ', ') FROM shardedjob.row_failure", "57 0 locked by another session")
				b.complete(b.conn, plan(1, 1), false)
				if due, err := s.Due(t.Context(), b.conn, 9); err != nil || len(due) != 0 {
					t.Errorf("it is due at once: %v %v", due, err)
				}
				// As long as it is locked, it is put off without an attempt.
				if found, err := b.batch(b.conn, s, s.Take([]shard.Key{"57"}), nil); err != nil || len(found.Locked) != 1 || len(found.Keys) != 0 {
					t.Errorf("%+v %v", found, err)
				}
				backlog, err := s.Backlog(t.Context(), b.conn)
				if err != nil || backlog.Locked != 1 || backlog.Waiting+backlog.Exhausted != 0 || backlog.NextDue == nil || *backlog.NextDue <= 0 || backlog.Example != nil {
					t.Errorf("%+v %v", backlog, err)
				}
				end := tx.Rollback
				if commit {
					end = tx.Commit
				}
				if err := end(t.Context()); err != nil {
					t.Fatal(err)
				}
				b.drain(b.conn, s, 10)
				b.exec("DELETE FROM t WHERE id = 1000") // a row that went beyond the horizon is no matter of the job
				b.wantAllOnce()
				b.complete(b.conn, plan(1, 1), true)
				want := Totals{Processed: 100}
				if commit && (name == "delete" || name == "move") {
					want = Totals{Processed: 99, Gone: 1}
				}
				if totals, err := Count(t.Context(), b.conn, group); err != nil || totals != want {
					t.Errorf("totals %+v %v", totals, err)
				}
			})
		}
	}
}

// TestRowsThatChangeWhileTheyAreSelected changes rows after the selection has begun and before it locks them.
func TestRowsThatChangeWhileTheyAreSelected(t *testing.T) {
	for _, c := range []struct {
		name, change string
		keys, locked string
	}{
		{"last row moved far up", "UPDATE t SET id = 35 WHERE id = 10", "[1 2 3 4 5 6 7 8 9]", "[10]"},
		{"row moved far up", "UPDATE t SET id = 35 WHERE id = 5", "[1 2 3 4 6 7 8 9 10]", "[5]"},
		{"row moved down", "UPDATE t SET id = -1 WHERE id = 5", "[1 2 3 4 6 7 8 9 10]", "[5]"},
		{"rows swapped", "UPDATE t SET id = 13 - id WHERE id IN (6, 7)", "[1 2 3 4 5 8 9 10]", "[6 7]"},
		{"row deleted", "DELETE FROM t WHERE id = 10", "[1 2 3 4 5 6 7 8 9]", "[10]"},
		{"row no longer in scope", "UPDATE t SET kind = 'text' WHERE id = 1", "[2 3 4 5 6 7 8 9 10]", "[1]"},
		{"row changed otherwise", "UPDATE t SET kind = kind WHERE id = 1", "[1 2 3 4 5 6 7 8 9 10]", "[]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, "integer")
			b.exec(`ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id) DEFERRABLE INITIALLY DEFERRED; INSERT INTO t SELECT generate_series(1, 30);
				CREATE FUNCTION gate(integer) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
					IF $1 = 3 THEN PERFORM pg_advisory_xact_lock_shared(77); END IF; RETURN true; END $$`)
			b.table.Where = "gate(id) AND kind = 'photo'"
			worker := b.connect()
			s := b.open(worker, plan(1, 1), 0)
			b.exec("SELECT pg_advisory_lock(77)")
			type result struct {
				found Batch
				err   error
			}
			done := make(chan result, 1)
			go func() {
				found, err := b.batch(worker, s, s.Next(10), nil)
				done <- result{found, err}
			}()
			eventually(t, "the selection waits at the gate", func() bool {
				return b.text("SELECT count(*)::text FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = 77 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())") == "1"
			})
			b.exec(c.change)
			b.exec("SELECT pg_advisory_unlock(77)")
			r := <-done
			if r.err != nil || fmt.Sprint(r.found.Keys) != c.keys || fmt.Sprint(r.found.Locked) != c.locked || *r.found.End != "10" {
				t.Fatalf("%v %v %v", r.found.Keys, r.found.Locked, r.err)
			}
			b.drain(worker, s, 10)
			b.complete(worker, plan(1, 1), true)
			b.want("SELECT count(*)::text FROM t WHERE times <> 1 AND id BETWEEN 0 AND 30 AND kind = 'photo'", "0")
		})
	}
}

// TestD02SparseSlots has keys far apart, and few rows in scope among many, with a statement timeout that the whole search exceeds.
func TestD02SparseSlots(t *testing.T) {
	for _, c := range []struct {
		name, rows, where string
		worked            int
		timeout           string
		windows           bool
	}{
		{"gaps", "SELECT 5 UNION SELECT 314286764840715234 UNION SELECT g * 4000000000000000 FROM generate_series(1, 77) g", "", 79, "5s", false},
		{"steps of a billion", "SELECT g * 1000000000::bigint FROM generate_series(-50, 50) g", "", 101, "5s", false},
		{"extremes", fmt.Sprintf("VALUES ('%d'::bigint), (0), ('%d')", math.MinInt64, math.MaxInt64), "", 3, "5s", false},
		{"few in scope", "SELECT generate_series(1, 800)", "CASE WHEN slow(id) THEN id IN (5, 790) END", 2, "100ms", true},
		{"none in scope", "SELECT generate_series(1, 800)", "CASE WHEN slow(id) THEN id < 0 END", 0, "100ms", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, "bigint")
			b.exec("CREATE FUNCTION slow(bigint) RETURNS boolean LANGUAGE sql VOLATILE AS 'SELECT pg_sleep(0.0005) IS NOT NULL'")
			b.exec("INSERT INTO t " + c.rows)
			b.table.Where = c.where
			b.exec("SET statement_timeout = '" + c.timeout + "'")
			p := plan(1, 2)
			for k := range p.Slots {
				s := b.open(b.conn, p, k)
				for !s.AtEnd() {
					if _, err := b.batch(b.conn, s, s.Next(100), nil); err != nil && (database.Classify(err) != database.ClassTimeout || !s.TooSlow()) {
						t.Fatal(err)
					}
				}
				if (s.window > 0) != c.windows {
					t.Errorf("the window of slot %d is %d", k, s.window)
				}
			}
			b.complete(b.conn, p, true)
			b.want("SELECT count(*) || ' ' || max(times) FROM t WHERE times > 0", strings.Replace(fmt.Sprintf("%d 1", c.worked), "0 1", "NULL", 1))
		})
	}
}

func TestWindowsGrowAgain(t *testing.T) {
	b := newBench(t, "integer")
	b.exec("INSERT INTO t SELECT generate_series(1, 400)")
	b.table.Where = "id > 390"
	s := b.open(b.conn, plan(1, 1), 0)
	for s.window != leastWindow {
		if !s.TooSlow() {
			t.Fatal("no smaller window")
		}
	}
	if s.TooSlow() {
		t.Error("there is a smaller window than the least")
	}
	var ends []string
	for !s.AtEnd() {
		ends = append(ends, string(*b.next(b.conn, s, 4).End))
	}
	if got := strings.Join(ends, " "); !strings.HasPrefix(got, "10 20 30 40 ") || !strings.Contains(got, " 160 180 200 ") || !strings.HasSuffix(got, " 394 398 400") {
		t.Errorf("windows end at %s", got)
	}
	b.want("SELECT count(*) || ' ' || max(times) FROM t WHERE times > 0", "10 1")
}

func TestScopeMayBeAnything(t *testing.T) {
	b := newBench(t, "integer")
	b.exec("INSERT INTO t SELECT generate_series(1, 40); CREATE TABLE picked AS SELECT generate_series(1, 20) AS id")
	b.table.Where = `kind = 'photo' -- a comment) '
		AND id IN (SELECT id FROM picked) AND t.times = 0`
	s := b.open(b.conn, plan(1, 1), 0)
	b.drain(b.conn, s, 7)
	b.want("SELECT count(*) || ' ' || max(id) FROM t WHERE times = 1", "20 20")
}

// TestAMoveIsMadeOnce has the same move made twice, as by a worker that does not know the outcome of its COMMIT and does not look.
func TestAMoveIsMadeOnce(t *testing.T) {
	b := newBench(t, "integer")
	b.exec("INSERT INTO t SELECT generate_series(1, 40)")
	s := b.open(b.conn, plan(1, 1), 0)
	twin := b.open(b.conn, plan(1, 1), 0)
	b.next(b.conn, s, 10)
	if _, err := b.batch(b.conn, twin, twin.Next(10), nil); !errors.Is(err, ErrCursorMoved) {
		t.Errorf("got %v", err)
	}
	if twin = b.open(b.conn, plan(1, 1), 0); *twin.cursor != "10" {
		t.Errorf("the cursor is at %s", *twin.cursor)
	}
	b.drain(b.conn, twin, 10)
	b.wantAllOnce()
	b.want("SELECT format('%s %s', processed, gone) FROM shardedjob.slot", "40 0")
}

// TestTheStatementMaySort: only the search for rows may not.
func TestTheStatementMaySort(t *testing.T) {
	b := newBench(t, "integer")
	b.exec("INSERT INTO t SELECT generate_series(1, 40)")
	b.table.Where = "current_setting('enable_sort') = 'off'"
	s := b.open(b.conn, plan(1, 1), 0)
	var trip pgx.Batch
	var found Batch
	var setting string
	trip.Queue("BEGIN")
	s.Next(10).Queue(&trip, &found)
	trip.Queue("SHOW enable_sort").QueryRow(func(row pgx.Row) error { return row.Scan(&setting) })
	trip.Queue("ROLLBACK")
	if err := b.conn.SendBatch(t.Context(), &trip).Close(); err != nil || len(found.Keys) != 10 || setting != "on" {
		t.Errorf("%v %s %v", found.Keys, setting, err)
	}
}

// TestE06CountersAreLong begins near where 32 bits end.
func TestE06CountersAreLong(t *testing.T) {
	b := newBench(t, "integer")
	b.exec("INSERT INTO t SELECT generate_series(1, 10)")
	s := b.open(b.conn, plan(1, 1), 0)
	b.exec("UPDATE shardedjob.slot SET processed = 2147483646, gone = 2147483646; UPDATE shardedjob.job SET processed = 2147483646")
	b.drain(b.conn, s, 10)
	if totals, err := Count(t.Context(), b.conn, group); err != nil || totals.Processed != 2*2147483646+10 || totals.Gone != 2147483646 {
		t.Errorf("%+v %v", totals, err)
	}
}

// TestAdvanceGoesInABatchOfTheDriver sends AdvanceSQL prepared, with the parameters as text.
func TestAdvanceGoesInABatchOfTheDriver(t *testing.T) {
	b := newBench(t, "text")
	b.exec(`INSERT INTO t VALUES ('a'), (''), ('"quoted", {}'), ('NULL'), (E'\\')`)
	p := b.conn.PgConn()
	s := b.open(b.conn, plan(1, 1), 0)
	if _, err := p.Prepare(t.Context(), "advance", AdvanceSQL, nil); err != nil {
		t.Fatal(err)
	}
	for !s.AtEnd() {
		var found Batch
		_, err := b.batch(b.conn, s, s.Next(1), func(f *Batch, _ *Move) error { found = *f; return errCrash })
		if !errors.Is(err, errCrash) {
			t.Fatal(err)
		}
		move := found.Move()
		move.Processed = 0
		for _, key := range found.Keys {
			move.Failed = append(move.Failed, Failure{Key: key, Attempts: 2, Reason: `a "reason", {NULL}`, Exhausted: true})
		}
		advance := s.Advance(move)
		var trip pgconn.Batch
		trip.ExecPrepared("advance", advance.Params(), nil, nil)
		results := p.ExecBatch(t.Context(), &trip)
		if !results.NextResult() {
			t.Fatal(results.Close())
		}
		if err := errors.Join(advance.Verify(pgx.RowsFromResultReader(b.conn.TypeMap(), results.ResultReader())), results.Close()); err != nil {
			t.Fatal(err)
		}
		advance.Committed()
	}
	failed, err := s.Exhausted(t.Context(), b.conn, nil, 9)
	if err != nil || len(failed) != 5 || failed[0].Key != "" || failed[4].Reason != `a "reason", {NULL}` || failed[0].Attempts != 2 {
		t.Errorf("%+v %v", failed, err)
	}
	if rest, err := s.Exhausted(t.Context(), b.conn, &failed[3].Key, 9); err != nil || len(rest) != 1 || rest[0].Key != failed[4].Key {
		t.Errorf("%+v %v", rest, err)
	}
}
