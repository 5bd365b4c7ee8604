package process

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/worker/database"
	"shardedjob.dev/worker/fence"
	"shardedjob.dev/worker/shard"
)

func TestC01C02D11EveryRowOnceWhateverTheKey(t *testing.T) {
	for keyType, edges := range map[string]string{
		"smallint": "-32768, 32767, 32766, -32767", "integer": "-2147483648, 2147483647, 2147483646",
		"bigint": "-9223372036854775808, -9223372036854775807, 9223372036854775807, 9223372036854775806",
	} {
		t.Run(keyType, func(t *testing.T) {
			for _, n := range []int32{1, 3, 7} {
				b := newBench(t, tableOf(keyType)+rows(-100, 100)+"INSERT INTO t SELECT unnest(ARRAY["+edges+"]::"+keyType+"[])")
				total := 0
				for k := range n {
					w := b.worker(spec, Settings{Statement: update, Rows: 30}, n, k)
					if state := w.run(); state != Drained {
						t.Errorf("slot %d ends in %v", k, state)
					}
					total += w.done
				}
				b.wantAllOnce()
				if want := b.text("SELECT count(*)::text FROM t"); fmt.Sprint(total) != want {
					t.Errorf("reported %d of %s rows", total, want)
				}
			}
		})
	}
}

func TestF01F06NamesAndPartitions(t *testing.T) {
	b := newBench(t, `CREATE SCHEMA "My.Sch";
		CREATE TABLE "My.Sch"."Order.Items" ("I""d" int PRIMARY KEY, "order" int) PARTITION BY RANGE ("I""d");
		CREATE TABLE "My.Sch".a PARTITION OF "My.Sch"."Order.Items" FOR VALUES FROM (0) TO (50);
		CREATE TABLE "My.Sch".b PARTITION OF "My.Sch"."Order.Items" FOR VALUES FROM (50) TO (1000);
		INSERT INTO "My.Sch"."Order.Items" SELECT generate_series(1, 120)`)
	w := b.worker(v1alpha1.TableSpec{Schema: "My.Sch", Name: "Order.Items", Key: `I"d`, Where: `"I""d" <= 100 --`, Pending: `"order" IS NULL`},
		Settings{Statement: `UPDATE "Order.Items" SET "order" = 1 WHERE "I""d" = ANY ($1);`, Rows: 7}, 1, 0)
	if state := w.run(); state != Drained || w.done != 100 {
		t.Errorf("%v with %d rows", state, w.done)
	}
}

func TestJ02OneBadRowOfAHundred(t *testing.T) {
	for name, c := range map[string]struct{ setup, statement, reason string }{
		"check":     {"ALTER TABLE t ADD CONSTRAINT positive CHECK (v > 0 OR NOT done)", update, `check_violation (constraint "positive")`},
		"division":  {"", "UPDATE t SET done = true, times = times + 1 / v WHERE id = ANY ($1)", "division by zero"},
		"trigger":   {"CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN IF NEW.v = 0 THEN RAISE EXCEPTION ''canary''; END IF; RETURN NEW; END'; CREATE TRIGGER f BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION f()", update, "raise_exception"},
		"at commit": {"CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN IF NEW.v = 0 THEN RAISE EXCEPTION ''canary''; END IF; RETURN NEW; END'; CREATE CONSTRAINT TRIGGER f AFTER UPDATE ON t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION f()", update, "raise_exception"},
		"names missing for one row": {"CREATE FUNCTION f(int) RETURNS int LANGUAGE plpgsql AS 'BEGIN IF $1 = 0 THEN EXECUTE ''SELECT canary''; END IF; RETURN 1; END'",
			"UPDATE t SET done = true, times = times + f(v) WHERE id = ANY ($1)", "undefined_column"},
		"left pending": {"", update + " AND v <> 0", "left pending true"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, tableOf("int")+rows(1, 100)+"UPDATE t SET v = 0 WHERE id = 57;"+c.setup)
			w := b.worker(spec, Settings{Statement: c.statement, Rows: 100}, 1, 0)
			if state := w.run(); state != Failing || w.done != 99 {
				t.Errorf("ends in %v with %d rows", state, w.done)
			}
			failed := w.failures.Sample(5)
			if len(failed) != 1 || failed[0].Key != "57" || failed[0].Attempts != 3 || !strings.Contains(failed[0].Reason, c.reason) {
				t.Errorf("failures %+v", failed)
			}
			if w.problem == nil || w.problem.Reason != v1alpha1.ReasonRowsFailing || !strings.Contains(w.problem.Message, "key 57") || strings.Contains(w.problem.Message, "canary") {
				t.Errorf("problem %+v", w.problem)
			}
			b.exec("DELETE FROM t WHERE id = 57")
			b.wantAllOnce()
			if state := w.run(); state != Drained {
				t.Errorf("ends in %v although the bad row is gone", state)
			}
		})
	}
}

func TestReloadGivesFailedRowsAnotherChance(t *testing.T) {
	b := newBench(t, tableOf("int")+rows(1, 20))
	w := b.worker(spec, Settings{Statement: update + " AND 1 / (id - 5) IS NOT NULL", Rows: 10}, 1, 0)
	if state := w.run(); state != Failing || w.done != 19 {
		t.Fatalf("ends in %v with %d rows", state, w.done)
	}
	w.Reload(Settings{Statement: update + " AND current_setting('statement_timeout') = '7s'", Rows: 3, TimeoutSeconds: 7, MaxAttempts: 3})
	if state := w.run(); state != Drained {
		t.Errorf("ends in %v", state)
	}
	b.wantAllOnce()
}

func TestEverythingFailingStops(t *testing.T) {
	b := newBench(t, tableOf("int")+rows(1, 1000)+"ALTER TABLE t ADD CHECK (NOT done)")
	w := b.worker(spec, Settings{Statement: update, Rows: 64}, 1, 0)
	attempts := 0
	for attempts = range 1000 {
		result, err := w.Step(t.Context(), w.session)
		if err != nil {
			t.Fatal(err)
		}
		if result.State == Failing {
			if !strings.Contains(result.Problem.Message, "100 attempts in a row failed") || !result.Until.After(w.clock) {
				t.Errorf("got %+v until %v", result.Problem, result.Until)
			}
			break
		}
	}
	if tried := w.failures.Waiting(); attempts > 400 || tried > 101 {
		t.Errorf("tried %d rows in %d steps before it slowed down", tried, attempts)
	}
}

func TestA11ALongBatchIsSplit(t *testing.T) {
	b := newBench(t, tableOf("int")+rows(1, 6)+"UPDATE t SET v = 100 WHERE id = 5")
	// 0.25 s each: four rows take as long as the timeout; row 5 takes 25 s by itself.
	w := b.worker(spec, Settings{Statement: "UPDATE t SET done = true, times = times + 1 WHERE id = ANY ($1) AND pg_sleep(0.25 * v) IS NOT NULL", Rows: 6, TimeoutSeconds: 1, MaxAttempts: 1}, 1, 0)
	if state := w.run(); state != Failing || w.done != 5 {
		t.Errorf("ends in %v with %d rows", state, w.done)
	}
	if f := w.failures.Sample(1); len(f) != 1 || f[0].Key != "5" || !strings.Contains(f[0].Reason, "batch.timeoutSeconds (1)") {
		t.Errorf("failures %+v", f)
	}
}

func TestSearchThatTakesTooLongGoesOnInWindows(t *testing.T) {
	b := newBench(t, tableOf("int")+rows(1, 3000)+"UPDATE t SET v = 2 WHERE id = 2999; ANALYZE t")
	b.exec("CREATE FUNCTION slow(int) RETURNS boolean LANGUAGE sql VOLATILE AS 'SELECT pg_sleep(0.0005) IS NOT NULL'")
	s := spec
	s.Pending = "slow(v) AND v = 2 AND NOT done"
	w := b.worker(s, Settings{Statement: update, Rows: 10, TimeoutSeconds: 1}, 1, 0)
	w.sweep.window = 1500 // the first windows of this size are too slow
	if state := w.run(); state != Drained || w.done != 1 || w.sweep.window >= 1500 {
		t.Errorf("ends in %v with %d rows, window %d", state, w.done, w.sweep.window)
	}
}

func TestLockedRowsAreWaitedFor(t *testing.T) {
	b := newBench(t, tableOf("int")+rows(1, 10))
	tx, err := b.conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), "SELECT FROM t WHERE id IN (3, 4) FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	w := b.worker(spec, Settings{Statement: update, Rows: 5}, 1, 0)
	busy := false
	for range 20 {
		result, err := w.Step(t.Context(), w.session)
		if err != nil {
			t.Fatal(err)
		}
		if result.State == Drained {
			t.Fatal("drained while rows are locked and pending")
		}
		if result.State == Busy {
			busy = true
			break
		}
	}
	if !busy {
		t.Error("never busy")
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if state := w.run(); state != Drained {
		t.Errorf("ends in %v", state)
	}
	b.wantAllOnce()
}

func TestNewRowsBehindTheSweep(t *testing.T) {
	b := newBench(t, tableOf("int")+rows(100, 120))
	w := b.worker(spec, Settings{Statement: update, Rows: 5}, 1, 0)
	if _, err := w.Step(t.Context(), w.session); err != nil {
		t.Fatal(err)
	}
	b.exec(rows(-5, 5))
	if state := w.run(); state != Drained {
		t.Errorf("ends in %v", state)
	}
	b.wantAllOnce()
}

func TestALostLockRollsBack(t *testing.T) {
	b := newBench(t, tableOf("int")+rows(1, 10))
	w := b.worker(spec, Settings{Statement: update, Rows: 5}, 1, 0)
	w.session.lost = fence.ErrLockLost
	if _, err := w.Step(t.Context(), w.session); !errors.Is(err, fence.ErrLockLost) {
		t.Errorf("got %v", err)
	}
	if done := b.text("SELECT count(*)::text FROM t WHERE done"); done != "0" {
		t.Errorf("%s rows done without the lock", done)
	}
	w.session.lost = nil
	w.run()
	b.wantAllOnce()
}

func TestAnOutageCostsNoAttempt(t *testing.T) {
	b := newBench(t, tableOf("int")+rows(1, 10))
	w := b.worker(spec, Settings{Statement: "UPDATE t SET done = true, times = times + 1 WHERE id = ANY ($1) AND pg_sleep(0.2) IS NOT NULL", Rows: 10}, 1, 0)
	failed := make(chan error, 1)
	go func() {
		_, err := w.Step(context.WithoutCancel(t.Context()), w.session)
		failed <- err
	}()
	var killed bool
	for deadline := time.Now().Add(20 * time.Second); !killed && time.Now().Before(deadline); {
		killed = b.text(`SELECT coalesce(bool_or(pg_terminate_backend(pid)), false)::text FROM pg_stat_activity
			WHERE pid = $1 AND query LIKE '%pg_sleep%' AND state = 'active'`, w.session.conn.PgConn().PID()) == "true"
	}
	err := <-failed
	if !killed || database.Classify(err) != database.ClassOutage || err == nil {
		t.Fatalf("killed %v, got %v", killed, err)
	}
	if w.failures.Waiting() != 0 {
		t.Errorf("failures %+v", w.failures.Sample(3))
	}
	w.session.conn = b.connect()
	w.Reload(Settings{Statement: update, Rows: 10, TimeoutSeconds: 20, MaxAttempts: 3})
	if state := w.run(); state != Drained {
		t.Errorf("ends in %v", state)
	}
	b.wantAllOnce()
}

// TestG01DeadlocksWithTheApplication lets the application lock rows in the opposite order while all rows are worked.
func TestG01DeadlocksWithTheApplication(t *testing.T) {
	b := newBench(t, tableOf("int")+rows(1, 200)+"CREATE TABLE other (id int PRIMARY KEY, n int NOT NULL DEFAULT 0); INSERT INTO other SELECT generate_series(1, 200)")
	// The statement touches rows beyond those that are locked for it, so deadlocks are possible.
	w := b.worker(spec, Settings{Statement: "WITH x AS (UPDATE t SET done = true, times = times + 1 WHERE id = ANY ($1)) UPDATE other SET n = n + 1 WHERE id = ANY ($1)", Rows: 20}, 1, 0)
	if _, err := w.session.conn.Exec(t.Context(), "SET deadlock_timeout = '20ms'"); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	app := b.connect()
	go func() {
		for i := 0; ctx.Err() == nil; i++ {
			err := pgx.BeginFunc(context.WithoutCancel(ctx), app, func(tx pgx.Tx) error {
				for j := 5; j > 0; j-- {
					if _, err := tx.Exec(context.WithoutCancel(ctx), "UPDATE other SET n = n + 0 WHERE id = $1", (i*7+j*13)%200+1); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil && database.Classify(err) != database.ClassOutage {
				stopped <- err
				return
			}
		}
		stopped <- nil
	}()
	outages := 0
	for state := Working; state != Drained; {
		result, err := w.Step(t.Context(), w.session)
		if err != nil {
			if outages++; database.Classify(err) != database.ClassOutage || w.session.conn.IsClosed() || outages > 1000 {
				t.Fatal(err)
			}
		}
		state = result.State
	}
	stop()
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if w.failures.Exhausted()+w.failures.Waiting() != 0 {
		t.Errorf("a deadlock was taken for a bad row: %+v", w.failures.Sample(3))
	}
	b.wantAllOnce()
	if n := b.text("SELECT count(*)::text FROM other WHERE n <> 1"); n != "0" {
		t.Errorf("%s effects did not happen exactly once", n)
	}
}

func TestAWrongSearchIsSaid(t *testing.T) {
	b := newBench(t, tableOf("int")+rows(1, 10)+"UPDATE t SET v = 0 WHERE id = 4")
	s := spec
	s.Pending = "NOT done AND 1 / v = 1"
	w := b.worker(s, Settings{Statement: update, Rows: 10}, 1, 0)
	if state := w.run(); state != Failing || w.problem.Reason != v1alpha1.ReasonInvalidSQL || !strings.Contains(w.problem.Message, "table.pending") {
		t.Errorf("ends in %v: %+v", state, w.problem)
	}
}

// Bad rows that are mended make room in a memory that was full of them.
func TestAMemoryFullOfRowsThatAreMended(t *testing.T) {
	b := newBench(t, tableOf("int")+rows(1, maxFailures+50))
	w := b.worker(spec, Settings{Statement: update, Rows: 1000, MaxAttempts: 1}, 1, 0)
	for key := range maxFailures {
		w.failures.Fail(shard.Key(strconv.Itoa(key+1)), "bad", w.clock)
	}
	if result, err := w.Step(t.Context(), w.session); err != nil || result.State != Failing {
		t.Fatalf("with a full memory: %+v %v", result, err)
	}
	b.exec(fmt.Sprintf("UPDATE t SET done = true, times = 1 WHERE id <= %d", maxFailures))
	for range 30 {
		result, err := w.Step(t.Context(), w.session)
		if err != nil {
			t.Fatal(err)
		}
		if result.State == Drained {
			b.wantAllOnce()
			return
		}
	}
	t.Error("the slot is not drained")
}
