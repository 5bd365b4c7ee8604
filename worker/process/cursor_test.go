package process

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/worker/cursor"
	"shardedjob.dev/worker/fence"
	"shardedjob.dev/worker/preflight"
)

// cursorWorker is a CursorRunner with a clock, and a database, in which whatever is waited for is due.
type cursorWorker struct {
	*bench
	*CursorRunner
	session *fenced
	clock   time.Time
	done    int
	seen    map[State]int
	problem *v1alpha1.Problem
}

// cursorWorker opens a slot under (epoch, n), after the fence has let it in.
func (b *bench) cursorWorker(settings Settings, epoch int64, n, k int32) *cursorWorker {
	b.Helper()
	w := &cursorWorker{bench: b, session: &fenced{conn: b.connect()}, clock: time.Now(), seen: map[State]int{}}
	table, problem, err := preflight.Check(b.Context(), w.session.conn, cursorSpec, settings.Statement)
	if err != nil || problem != nil {
		b.Fatalf("preflight: %+v %v", problem, err)
	}
	if settings.MaxAttempts == 0 {
		settings.MaxAttempts = 3
	}
	if settings.TimeoutSeconds == 0 {
		settings.TimeoutSeconds = 20
	}
	plan := cursor.Plan{Group: "test/group", Epoch: epoch, Slots: n}
	if problem, err := cursor.Prepare(b.Context(), w.session.conn); err != nil || problem != nil {
		b.Fatalf("prepare: %+v %v", problem, err)
	}
	if problem, err := cursor.Enter(b.Context(), w.session.conn, plan, table); err != nil || problem != nil {
		b.Fatalf("enter: %+v %v", problem, err)
	}
	slot, err := cursor.Open(b.Context(), w.session.conn, plan, table, k)
	if err != nil {
		b.Fatal(err)
	}
	w.CursorRunner = NewCursorRunner(plan, table, k, slot, settings)
	w.now = func() time.Time { return w.clock }
	return w
}

// step takes one step and lets the time pass that it asks for.
func (w *cursorWorker) step() (Result, error) {
	w.Helper()
	result, err := w.Step(w.Context(), w.session)
	w.done += result.Processed
	w.seen[result.State]++
	w.problem = result.Problem
	if result.Until.After(w.clock) {
		w.clock = result.Until
		w.exec("UPDATE shardedjob.row_failure SET due_at = now()")
	}
	return result, err
}

// run steps until the slot is in a state in which it would stay.
func (w *cursorWorker) run() State {
	w.Helper()
	for range 2000 {
		result, err := w.step()
		switch {
		case err != nil:
			w.Fatal(err)
		case result.State == Drained, result.State == Failing && w.Waiting() == 0:
			return result.State
		}
	}
	w.Fatal("the slot does not come to rest")
	return 0
}

var cursorSpec = v1alpha1.TableSpec{Schema: "public", Name: "t", Key: "id"}

func TestCursorWorksEachRowOnce(t *testing.T) {
	for name, c := range map[string]struct {
		setup    string
		settings Settings
		n        int32
	}{
		"one slot":          {tableOf("bigint") + rows(-50, 50), Settings{Statement: update, Rows: 7}, 1},
		"three slots":       {tableOf("smallint") + rows(-50, 50), Settings{Statement: update, Rows: 7}, 3},
		"an empty table":    {tableOf("int"), Settings{Statement: update, Rows: 7}, 2},
		"batches of one":    {tableOf("int") + rows(1, 20), Settings{Statement: update, Rows: 1}, 2},
		"a whole at once":   {tableOf("int") + rows(1, 20), Settings{Statement: update, Rows: 1000}, 1},
		"all of one slot":   {tableOf("int") + "INSERT INTO t SELECT g * 4 FROM generate_series(1, 30) g;", Settings{Statement: update, Rows: 7}, 4},
		"keys of type text": {tableOf("text") + rows(1, 100), Settings{Statement: update, Rows: 7}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, c.setup)
			done := 0
			for k := range c.n {
				w := b.cursorWorker(c.settings, 1, c.n, k)
				if state := w.run(); state != Drained {
					t.Errorf("slot %d ends in %v", k, state)
				}
				done += w.done
			}
			b.wantAllOnce()
			if want := b.text("SELECT count(*)::text FROM t"); want != b.text("SELECT sum(processed)::text FROM shardedjob.slot") || want != b.text("SELECT $1::int::text", done) {
				t.Errorf("%d rows were processed, want %s", done, want)
			}
		})
	}
}

func TestCursorJ02OneBadRowOfAHundred(t *testing.T) {
	for name, c := range map[string]struct{ setup, statement, reason string }{
		"check":     {"ALTER TABLE t ADD CONSTRAINT positive CHECK (v > 0 OR NOT done)", update, `check_violation (constraint "positive")`},
		"division":  {"", "UPDATE t SET done = true, times = times + 1 / v WHERE id = ANY ($1)", "division by zero"},
		"at commit": {"CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN IF NEW.v = 0 THEN RAISE EXCEPTION ''canary''; END IF; RETURN NEW; END'; CREATE CONSTRAINT TRIGGER f AFTER UPDATE ON t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION f()", update, "raise_exception"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, tableOf("int")+rows(1, 100)+"UPDATE t SET v = 0 WHERE id = 57;"+c.setup)
			w := b.cursorWorker(Settings{Statement: c.statement, Rows: 100}, 1, 1, 0)
			if state := w.run(); state != Failing || w.done != 99 {
				t.Errorf("ends in %v with %d rows", state, w.done)
			}
			if got := b.text("SELECT string_agg(key || ' ' || attempts || ' ' || exhausted || ' ' || reason, ';') FROM shardedjob.row_failure"); !strings.HasPrefix(got, "57 3 true") ||
				!strings.Contains(got, c.reason) || strings.Contains(got, "canary") {
				t.Errorf("on record: %s", got)
			}
			if w.problem == nil || w.problem.Reason != v1alpha1.ReasonRowsFailing || !strings.Contains(w.problem.Message, "key 57") {
				t.Errorf("problem %+v", w.problem)
			}
			// A worker that comes later knows of it, under another partition too.
			later := b.cursorWorker(Settings{Statement: c.statement, Rows: 100}, 2, 4, 57%4)
			if state := later.run(); state != Failing || later.done != 0 {
				t.Errorf("later: ends in %v with %d rows", state, later.done)
			}
			b.exec("DELETE FROM t WHERE id = 57")
			if state := later.run(); state != Drained {
				t.Errorf("ends in %v although the bad row is gone", state)
			}
			b.wantAllOnce()
		})
	}
}

func TestCursorAnotherNumberOfAttemptsIsAnotherChance(t *testing.T) {
	b := newBench(t, tableOf("int")+rows(1, 20)+"ALTER TABLE t ADD CONSTRAINT bad CHECK (NOT done OR id <> 5)")
	settings := Settings{Statement: update, Rows: 10, TimeoutSeconds: 5, MaxAttempts: 1}
	w := b.cursorWorker(settings, 1, 1, 0)
	if state := w.run(); state != Failing || w.done != 19 {
		t.Fatalf("ends in %v with %d rows", state, w.done)
	}
	b.exec("ALTER TABLE t DROP CONSTRAINT bad")
	settings.MaxAttempts = 2
	w.Reload(settings)
	if state := w.run(); state != Drained {
		t.Errorf("ends in %v", state)
	}
	b.wantAllOnce()
}

// Another statement is another chance, also for rows that failed before the worker started.
func TestCursorAnotherStatementIsAnotherChance(t *testing.T) {
	b := newBench(t, tableOf("int")+rows(1, 20))
	bad := Settings{Statement: update + " AND 1 / (id - 5) IS NOT NULL", Rows: 10, MaxAttempts: 1}
	if state := b.cursorWorker(bad, 1, 1, 0).run(); state != Failing {
		t.Fatalf("ends in %v", state)
	}
	same := b.cursorWorker(bad, 1, 1, 0)
	if state := same.run(); state != Failing || b.text("SELECT attempts::text FROM shardedjob.row_failure") != "1" {
		t.Errorf("a row that failed every attempt was tried again: %v", state)
	}
	good := b.cursorWorker(Settings{Statement: update, Rows: 10, MaxAttempts: 1}, 1, 1, 0)
	if state := good.run(); state != Drained || good.done != 1 {
		t.Errorf("ends in %v with %d rows", state, good.done)
	}
	b.wantAllOnce()
}

func TestCursorEverythingFailingStops(t *testing.T) {
	b := newBench(t, tableOf("int")+rows(1, 1000)+"ALTER TABLE t ADD CHECK (NOT done)")
	w := b.cursorWorker(Settings{Statement: update, Rows: 64}, 1, 1, 0)
	for range 2000 {
		result, err := w.step()
		if err != nil {
			t.Fatal(err)
		}
		if result.State == Failing {
			if !strings.Contains(result.Problem.Message, "100 attempts in a row failed") {
				t.Errorf("got %+v", result.Problem)
			}
			if n := b.text("SELECT count(*)::text FROM shardedjob.row_failure"); len(n) > 3 {
				t.Errorf("%s rows were put on record before it slowed down", n)
			}
			return
		}
	}
	t.Error("it never slows down")
}

func TestCursorALongBatchIsSplit(t *testing.T) {
	b := newBench(t, tableOf("int")+rows(1, 6)+"UPDATE t SET v = 100 WHERE id = 5")
	w := b.cursorWorker(Settings{Statement: "UPDATE t SET done = true, times = times + 1 WHERE id = ANY ($1) AND pg_sleep(0.25 * v) IS NOT NULL", Rows: 6, TimeoutSeconds: 1, MaxAttempts: 1}, 1, 1, 0)
	if state := w.run(); state != Failing || w.done != 5 {
		t.Errorf("ends in %v with %d rows", state, w.done)
	}
	if w.problem == nil || !strings.Contains(w.problem.Message, "key 5: took longer than batch.timeoutSeconds (1)") {
		t.Errorf("problem %+v", w.problem)
	}
}

// Who holds a slot for one step at a time comes to its end too, though a batch has to be split, and leaves no prepared
// statements behind.
func TestCursorOneStepAtATime(t *testing.T) {
	for name, locked := range map[string]bool{"fresh rows": false, "rows that were locked": true} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, tableOf("int")+rows(1, 100)+"ALTER TABLE t ADD CONSTRAINT bad CHECK (NOT done OR id <> 57)")
			settings := Settings{Statement: update, Rows: 100, TimeoutSeconds: 20, MaxAttempts: 1}
			w := b.cursorWorker(settings, 1, 1, 0)
			if locked {
				unlock := b.lockAll()
				for b.text("SELECT count(*)::text FROM shardedjob.row_failure") == "0" {
					if _, err := w.step(); err != nil {
						t.Fatal(err)
					}
				}
				unlock()
			}
			for range 60 {
				if _, err := w.step(); err != nil {
					t.Fatal(err)
				}
				b.exec("UPDATE shardedjob.row_failure SET due_at = now()")
				slot, err := cursor.Open(t.Context(), w.session.conn, w.plan, w.table, 0)
				if err != nil {
					t.Fatal(err)
				}
				w.Reopen(slot, settings)
			}
			if w.done != 99 || w.seen[Failing] == 0 {
				t.Errorf("%d rows are done, states %v", w.done, w.seen)
			}
			// Another statement, and other slots of an adopter, take the place of what was prepared.
			for _, statement := range []string{update + " AND true", update} {
				other := &SQL{table: w.table, statement: statement, after: cursor.AdvanceSQL}
				if err := other.prepare(t.Context(), w.session.conn); err != nil {
					t.Fatal(err)
				}
			}
			var prepared int
			if err := w.session.conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'sj_%'").Scan(&prepared); err != nil || prepared != 3 {
				t.Errorf("%d prepared statements, want 3: %v", prepared, err)
			}
		})
	}
}

// A batch whose statement needs more room for temporary files than temp_file_limit allows is split.
func TestCursorABatchThatNeedsTooMuchRoomIsSplit(t *testing.T) {
	b := newBench(t, tableOf("int")+rows(1, 100))
	b.exec("DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET temp_file_limit = 1000', current_database()); EXECUTE format('ALTER DATABASE %I SET work_mem = 64', current_database()); END $$")
	w := b.cursorWorker(Settings{Statement: "UPDATE t SET done = true, times = times + 1 FROM (SELECT count(DISTINCT g) FROM generate_series(1, 1000 * cardinality($1)) g) s WHERE id = ANY ($1)", Rows: 100, MaxAttempts: 1}, 1, 1, 0)
	if state := w.run(); state != Drained {
		t.Errorf("ends in %v", state)
	}
	b.wantAllOnce()
}

func TestCursorALostLockRollsBack(t *testing.T) {
	b := newBench(t, tableOf("int")+rows(1, 10))
	w := b.cursorWorker(Settings{Statement: update, Rows: 5}, 1, 1, 0)
	if _, err := w.step(); err != nil { // the horizon
		t.Fatal(err)
	}
	w.session.lost = fence.ErrLockLost
	if _, err := w.step(); !errors.Is(err, fence.ErrLockLost) {
		t.Errorf("got %v", err)
	}
	if done := b.text("SELECT count(*) || ' ' || (SELECT count(cursor) FROM shardedjob.slot) FROM t WHERE done"); done != "0 0" {
		t.Errorf("%s rows done, cursors moved, without the lock", done)
	}
	w.session.lost = nil
	w.run()
	b.wantAllOnce()
}

// A worker of an old plan that nobody has told of the new one cannot commit, even if its locks were of no use.
func TestCursorRefusesWhoIsLate(t *testing.T) {
	b := newBench(t, tableOf("int")+rows(1, 100))
	old := b.cursorWorker(Settings{Statement: update, Rows: 5}, 1, 2, 0)
	for range 3 {
		if _, err := old.step(); err != nil {
			t.Fatal(err)
		}
	}
	for k := range int32(3) {
		if state := b.cursorWorker(Settings{Statement: update, Rows: 5}, 2, 3, k).run(); state != Drained {
			t.Errorf("slot %d ends in %v", k, state)
		}
	}
	if _, err := old.step(); !errors.Is(err, cursor.ErrCursorMoved) {
		t.Errorf("the old worker got %v", err)
	}
	b.wantAllOnce()
}

func TestCursorRowsThatVanishAreCounted(t *testing.T) {
	b := newBench(t, tableOf("int")+rows(1, 10)+"ALTER TABLE t ADD CONSTRAINT bad CHECK (NOT done OR id <> 5)")
	w := b.cursorWorker(Settings{Statement: update, Rows: 10}, 1, 1, 0)
	for b.text("SELECT count(*)::text FROM shardedjob.row_failure") == "0" {
		if _, err := w.step(); err != nil {
			t.Fatal(err)
		}
	}
	b.exec("DELETE FROM t WHERE id = 5")
	if state := w.run(); state != Drained {
		t.Errorf("ends in %v", state)
	}
	if got := b.text("SELECT processed || ' ' || gone FROM shardedjob.slot"); got != "9 1" {
		t.Errorf("processed and gone are %s, want 9 1", got)
	}
}

// A cursor passes rows that somebody has locked, but no more of them than can be kept on record, and nobody is called.
func TestCursorG06AllRowsLocked(t *testing.T) {
	b := newBench(t, tableOf("int")+rows(1, maxFailures+3000))
	w := b.cursorWorker(Settings{Statement: update, Rows: 1000}, 1, 1, 0)
	unlock := b.lockAll()
	for range 100 {
		if result, err := w.step(); err != nil || result.State == Failing || result.Processed > 0 {
			t.Fatalf("with every row locked: %+v %v", result, err)
		}
	}
	if n := w.text("SELECT count(*)::text FROM shardedjob.row_failure WHERE attempts = 0"); n != w.text("SELECT $1::int::text", maxFailures) {
		t.Errorf("%s rows are on record", n)
	}
	if w.seen[Busy] == 0 {
		t.Errorf("states %v, want some of them busy", w.seen)
	}
	unlock()
	if state := w.run(); state != Drained {
		t.Errorf("ends in %v", state)
	}
	b.wantAllOnce()
}

// A bad row among those that were locked is found without an attempt being counted of the others.
func TestCursorFindsTheBadRowAmongLockedOnes(t *testing.T) {
	b := newBench(t, tableOf("int")+rows(1, 100)+"ALTER TABLE t ADD CONSTRAINT bad CHECK (NOT done OR id <> 57)")
	w := b.cursorWorker(Settings{Statement: update, Rows: 100}, 1, 1, 0)
	unlock := b.lockAll()
	for b.text("SELECT count(*)::text FROM shardedjob.row_failure") == "0" {
		if _, err := w.step(); err != nil {
			t.Fatal(err)
		}
	}
	unlock()
	for b.text("SELECT count(*)::text FROM shardedjob.row_failure") != "1" {
		if _, err := w.step(); err != nil {
			t.Fatal(err)
		}
		if n := b.text("SELECT count(*)::text FROM shardedjob.row_failure WHERE attempts > 0 AND key <> '57'"); n != "0" {
			t.Fatalf("%s good rows are taken for bad", n)
		}
	}
	if state := w.run(); state != Failing || w.done != 99 {
		t.Errorf("ends in %v with %d rows", state, w.done)
	}
}

// Bad rows that are deleted make room on a record that was full of them.
func TestCursorARecordFullOfRowsThatAreDeleted(t *testing.T) {
	b := newBench(t, tableOf("int")+rows(1, maxFailures+50))
	settings := Settings{Statement: update, Rows: 1000}
	w := b.cursorWorker(settings, 1, 1, 0)
	if _, err := w.step(); err != nil { // the horizon
		t.Fatal(err)
	}
	b.exec(fmt.Sprintf(`UPDATE shardedjob.slot SET cursor = %d;
		INSERT INTO shardedjob.row_failure (consumer_group, key, attempts, reason, exhausted, tried_with)
		SELECT 'test/group', g, 3, 'bad', true, '%s' FROM generate_series(1, %d) g`, maxFailures, w.fingerprint(), maxFailures))
	w = b.cursorWorker(settings, 1, 1, 0)
	if result, err := w.step(); err != nil || result.State != Failing || w.done != 0 {
		t.Fatalf("with a full record: %+v %v, %d rows", result, err, w.done)
	}
	b.exec(fmt.Sprintf("DELETE FROM t WHERE id <= %d", maxFailures))
	for range 30 {
		if _, err := w.step(); err != nil {
			t.Fatal(err)
		}
	}
	if w.seen[Drained] == 0 {
		t.Errorf("states %v, want the slot to be drained", w.seen)
	}
	b.wantAllOnce()
}
