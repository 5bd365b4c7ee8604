package process

import (
	"errors"
	"strings"
	"testing"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/worker/database"
	"shardedjob.dev/worker/preflight"
	"shardedjob.dev/worker/shard"
)

// TestF02SchemaChangesHeal changes a table on which statements are prepared. No row is charged with an attempt.
func TestF02SchemaChangesHeal(t *testing.T) {
	for name, c := range map[string]struct{ change, statement string }{
		"add a column":           {"ALTER TABLE t ADD COLUMN more int", update + " RETURNING *"},
		"drop an unused column":  {"ALTER TABLE t DROP COLUMN unused", update + " RETURNING *"},
		"another type":           {"ALTER TABLE t ALTER COLUMN unused TYPE text", "UPDATE t SET done = true, times = times + 1, unused = 'yes' WHERE id = ANY ($1)"},
		"another type, returned": {"ALTER TABLE t ALTER COLUMN unused TYPE text", update + " RETURNING unused"},
		"int becomes bigint":     {"ALTER TABLE t ALTER COLUMN id TYPE bigint; INSERT INTO t SELECT 3000000000 + g FROM generate_series(1, 12) g", update},
		"int becomes text":       {"ALTER TABLE t ALTER COLUMN id TYPE text; INSERT INTO t SELECT 'k' || g FROM generate_series(1, 12) g", update},
		"another index":          {"ALTER TABLE t DROP CONSTRAINT t_pkey; ALTER TABLE t ADD PRIMARY KEY (id)", update},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, tableOf("int")+"ALTER TABLE t ADD COLUMN unused varchar(5) DEFAULT 'x';"+rows(1, 40))
			w := b.worker(spec, Settings{Statement: c.statement, Rows: 5}, 1, 0)
			if result, err := w.Step(t.Context(), w.session); err != nil || result.Processed != 5 {
				t.Fatalf("%+v, %v", result, err)
			}
			b.exec(c.change)
			if state := w.run(); state != Drained || w.seen[Failing]+w.seen[Retrying] > 0 {
				t.Errorf("ends in %v after %v: %+v", state, w.seen, w.problem)
			}
			b.wantAllOnce()
		})
	}
}

// TestF07WhatIsGoneIsNamed takes away what the work needs and gives it back.
func TestF07WhatIsGoneIsNamed(t *testing.T) {
	for name, c := range map[string]struct{ take, give, reason, text string }{
		"table dropped":        {"DROP TABLE s.t", "", v1alpha1.ReasonTableMissing, `no table "t" in schema "s"`},
		"table renamed":        {"ALTER TABLE s.t RENAME TO tt", "ALTER TABLE s.tt RENAME TO t", v1alpha1.ReasonTableMissing, `did you mean "tt"?`},
		"schema dropped":       {"DROP SCHEMA s CASCADE", "", v1alpha1.ReasonTableMissing, `no schema "s"`},
		"schema renamed":       {"ALTER SCHEMA s RENAME TO ss", "ALTER SCHEMA ss RENAME TO s", v1alpha1.ReasonTableMissing, `no schema "s"`},
		"key renamed":          {"ALTER TABLE s.t RENAME COLUMN id TO di", "ALTER TABLE s.t RENAME COLUMN di TO id", v1alpha1.ReasonColumnMissing, `no column "id"`},
		"written column":       {"ALTER TABLE s.t DROP COLUMN v", "ALTER TABLE s.t ADD COLUMN v int DEFAULT 1", v1alpha1.ReasonColumnMissing, `process.sql.statement: column "v" does not exist`},
		"column of pending":    {"ALTER TABLE s.t RENAME COLUMN done TO ready", "ALTER TABLE s.t RENAME COLUMN ready TO done", v1alpha1.ReasonColumnMissing, `table.pending: column "done" does not exist`},
		"table of a statement": {"ALTER TABLE s.log RENAME TO gol", "ALTER TABLE s.gol RENAME TO log", v1alpha1.ReasonTableMissing, `process.sql.statement: relation "s.log" does not exist`},
		"SELECT revoked":       {"REVOKE SELECT ON s.t FROM <role>", "GRANT SELECT ON s.t TO <role>", v1alpha1.ReasonMissingPrivileges, "lacks SELECT"},
		"USAGE revoked":        {"REVOKE USAGE ON SCHEMA s FROM <role>", "GRANT USAGE ON SCHEMA s TO <role>", v1alpha1.ReasonMissingPrivileges, "lacks USAGE"},
		"INSERT revoked":       {"REVOKE INSERT ON s.log FROM <role>", "GRANT INSERT ON s.log TO <role>", v1alpha1.ReasonMissingPrivileges, "permission denied for table log"},
		"not unique":           {"ALTER TABLE s.t DROP CONSTRAINT t_pkey; ALTER TABLE s.t RENAME COLUMN v TO w", "ALTER TABLE s.t RENAME COLUMN w TO v; ALTER TABLE s.t ADD PRIMARY KEY (id)", v1alpha1.ReasonUnsuitableKey, "not unique"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, "CREATE SCHEMA s; SET search_path = s; CREATE TABLE log (n int);"+tableOf("int")+rows(1, 40))
			role := "app_" + b.text("SELECT current_database()")
			of := func(sql string) string { return strings.ReplaceAll(sql, "<role>", role) }
			b.exec(of("CREATE ROLE <role>; GRANT USAGE ON SCHEMA s TO <role>; GRANT ALL ON ALL TABLES IN SCHEMA s TO <role>"))
			s := spec
			s.Schema = "s"
			w := b.worker(s, Settings{Statement: "WITH x AS (UPDATE t SET done = true, times = times + v WHERE id = ANY ($1) RETURNING id) INSERT INTO s.log SELECT id FROM x", Rows: 5}, 1, 0)
			if _, err := w.session.conn.Exec(t.Context(), of("SET ROLE <role>")); err != nil {
				t.Fatal(err)
			}
			if result, err := w.Step(t.Context(), w.session); err != nil || result.Processed != 5 {
				t.Fatalf("%+v, %v", result, err)
			}
			b.exec(of(c.take))
			began := w.clock
			if state := w.run(); state != Failing || w.problem.Reason != c.reason || !w.problem.Stalled || !strings.Contains(w.problem.Message, c.text) {
				t.Fatalf("ends in %v: %+v", state, w.problem)
			}
			if w.failures.Waiting()+w.failures.Exhausted() > 0 {
				t.Errorf("rows are charged: %+v", w.failures.Sample(3))
			}
			if result, err := w.Step(t.Context(), w.session); err != nil || result.State != Failing || result.Until.Sub(began) < failingPause {
				t.Errorf("it is not tried again slowly: %+v, %v", result, err)
			}
			if c.give == "" {
				return
			}
			b.exec(of(c.give))
			if state := w.run(); state != Drained {
				t.Errorf("ends in %v: %+v", state, w.problem)
			}
			b.wantAllOnce()
		})
	}
}

// TestF07AnotherTableOfTheNameIsNotGoneOnWith puts another table in the place of the one that was checked.
func TestF07AnotherTableOfTheNameIsNotGoneOnWith(t *testing.T) {
	fresh := func(name string) string { return strings.Replace(tableOf("int"), "TABLE t ", "TABLE "+name+" ", 1) }
	for name, change := range map[string]string{
		"made again":     "DROP TABLE t;" + fresh("t") + rows(1, 30),
		"other type":     "DROP TABLE t;" + tableOf("text") + "INSERT INTO t SELECT 'k' || g FROM generate_series(1, 30) g",
		"swapped":        fresh("t_new") + "INSERT INTO t_new SELECT generate_series(1, 30); ALTER TABLE t RENAME TO t_old; ALTER TABLE t_new RENAME TO t",
		"nothing to do":  "DROP TABLE t;" + fresh("t"),
		"now partitions": "DROP TABLE t;" + strings.Replace(tableOf("int"), ");", ") PARTITION BY RANGE (id);", 1) + "CREATE TABLE p PARTITION OF t DEFAULT;" + rows(1, 30),
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, tableOf("int")+rows(1, 40))
			w := b.worker(spec, Settings{Statement: update, Rows: 5}, 1, 0)
			if _, err := w.Step(t.Context(), w.session); err != nil {
				t.Fatal(err)
			}
			was := w.reader.Table()
			b.exec(change)
			if result, err := w.Step(t.Context(), w.session); !errors.Is(err, shard.ErrChanged) {
				t.Fatalf("%+v, %v", result, err)
			}
			if _, err := shard.AnyPending(t.Context(), b.conn, was); !errors.Is(err, shard.ErrChanged) {
				t.Errorf("of another table is said whether it is done: %v", err)
			}
			if done := b.text("SELECT count(*)::text FROM t WHERE done"); done != "0" {
				t.Errorf("%s rows are done of a table that was not checked", done)
			}
			if state := w.run(); state != Drained || w.changed == 0 {
				t.Errorf("ends in %v, checked anew %d times", state, w.changed)
			}
			b.wantAllOnce()
			if now, problem, err := preflight.Check(t.Context(), b.conn, spec, update); err != nil || problem != nil || !w.reader.Table().Like(now) {
				t.Errorf("works %+v, not %+v; %+v, %v", w.reader.Table(), now, problem, err)
			}
		})
	}
}

// TestRowSecurityThatBeginsInMidRun hides rows: those are not taken for done, or for gone.
func TestRowSecurityThatBeginsInMidRun(t *testing.T) {
	b := newBench(t, tableOf("int")+rows(1, 40))
	role := "app_" + b.text("SELECT current_database()")
	w := b.worker(spec, Settings{Statement: update, Rows: 5}, 1, 0)
	c := b.cursorWorker(Settings{Statement: update, Rows: 5}, 1, 1, 0)
	b.exec("CREATE ROLE " + role + "; GRANT USAGE ON SCHEMA public, shardedjob TO " + role + "; GRANT ALL ON ALL TABLES IN SCHEMA public, shardedjob TO " + role)
	for _, session := range []*fenced{w.session, c.session} {
		if _, err := session.conn.Exec(t.Context(), "SET ROLE "+role); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.step(); err != nil { // the horizon
		t.Fatal(err)
	}
	b.exec("ALTER TABLE t ENABLE ROW LEVEL SECURITY")
	if result, err := w.Step(t.Context(), w.session); !errors.Is(err, shard.ErrChanged) {
		t.Errorf("where rows remember: %+v, %v", result, err)
	}
	if pending, err := shard.AnyPending(t.Context(), w.session.conn, w.reader.Table()); !errors.Is(err, shard.ErrChanged) {
		t.Errorf("of hidden rows is said whether they are done: %v, %v", pending, err)
	}
	if result, err := c.step(); !errors.Is(err, shard.ErrChanged) || b.text("SELECT coalesce(max(cursor), 'none') FROM shardedjob.slot") != "none" {
		t.Errorf("where cursors do: %+v, %v", result, err)
	}
	if _, problem, err := preflight.Check(t.Context(), w.session.conn, spec, update); err != nil || problem == nil || problem.Reason != v1alpha1.ReasonRowSecurity {
		t.Errorf("the check finds %+v, %v", problem, err)
	}
	b.exec("ALTER TABLE t DISABLE ROW LEVEL SECURITY")
	if state := c.run(); state != Drained {
		t.Errorf("ends in %v", state)
	}
	b.wantAllOnce()
}

// TestCursorF02SchemaChangesHeal does the same to a job with cursors, whose progress goes on.
func TestCursorF02SchemaChangesHeal(t *testing.T) {
	for name, c := range map[string]struct{ change, statement string }{
		"add a column":          {"ALTER TABLE t ADD COLUMN more int", update + " RETURNING *"},
		"drop an unused column": {"ALTER TABLE t DROP COLUMN unused", update + " RETURNING *"},
		"another type":          {"ALTER TABLE t ALTER COLUMN unused TYPE text", "UPDATE t SET done = true, times = times + 1, unused = 'yes' WHERE id = ANY ($1)"},
		"int becomes bigint":    {"ALTER TABLE t ALTER COLUMN id TYPE bigint", update},
		"another index":         {"ALTER TABLE t DROP CONSTRAINT t_pkey; ALTER TABLE t ADD PRIMARY KEY (id)", update},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, tableOf("int")+"ALTER TABLE t ADD COLUMN unused varchar(5) DEFAULT 'x';"+rows(1, 40))
			w := b.cursorWorker(Settings{Statement: c.statement, Rows: 5}, 1, 1, 0)
			for w.done == 0 {
				if _, err := w.step(); err != nil {
					t.Fatal(err)
				}
			}
			b.exec(c.change)
			if _, err := w.step(); err != nil && !outlived(err) {
				t.Fatal(err)
			}
			if state := w.run(); state != Drained || w.seen[Failing]+w.seen[Retrying] > 0 {
				t.Errorf("ends in %v after %v: %+v", state, w.seen, w.problem)
			}
			b.wantAllOnce()
			if n := b.text("SELECT count(*)::text FROM shardedjob.row_failure"); n != "0" {
				t.Errorf("%s rows are on record as failed", n)
			}
			if state := b.cursorWorker(Settings{Statement: update, Rows: 5}, 2, 2, 1).run(); state != Drained { // it is still the same progress
				t.Errorf("under another plan: %v", state)
			}
			b.wantAllOnce()
		})
	}
}

// TestCursorF07WhatIsGoneIsNamed takes away what the work needs and gives it back. No row is put on record for it.
func TestCursorF07WhatIsGoneIsNamed(t *testing.T) {
	for name, c := range map[string]struct{ take, give, reason, text string }{
		"table renamed":        {"ALTER TABLE t RENAME TO tt", "ALTER TABLE tt RENAME TO t", v1alpha1.ReasonTableMissing, `did you mean "tt"?`},
		"key renamed":          {"ALTER TABLE t RENAME COLUMN id TO di", "ALTER TABLE t RENAME COLUMN di TO id", v1alpha1.ReasonColumnMissing, `no column "id"`},
		"written column":       {"ALTER TABLE t DROP COLUMN v", "ALTER TABLE t ADD COLUMN v int DEFAULT 1", v1alpha1.ReasonColumnMissing, `process.sql.statement: column "v" does not exist`},
		"SELECT revoked":       {"REVOKE SELECT ON t FROM <role>", "GRANT SELECT ON t TO <role>", v1alpha1.ReasonMissingPrivileges, "lacks SELECT"},
		"table of a statement": {"ALTER TABLE log RENAME TO gol", "ALTER TABLE gol RENAME TO log", v1alpha1.ReasonTableMissing, `process.sql.statement: relation "log" does not exist`},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, "CREATE TABLE log (n int);"+tableOf("int")+rows(1, 40))
			role := "app_" + b.text("SELECT current_database()")
			of := func(sql string) string { return strings.ReplaceAll(sql, "<role>", role) }
			w := b.cursorWorker(Settings{Statement: "WITH x AS (UPDATE t SET done = true, times = times + v WHERE id = ANY ($1) RETURNING id) INSERT INTO log SELECT id FROM x", Rows: 5}, 1, 1, 0)
			b.exec(of("CREATE ROLE <role>; GRANT ALL ON t, log TO <role>; GRANT USAGE ON SCHEMA shardedjob TO <role>; GRANT ALL ON ALL TABLES IN SCHEMA shardedjob TO <role>"))
			if _, err := w.session.conn.Exec(t.Context(), of("SET ROLE <role>")); err != nil {
				t.Fatal(err)
			}
			for w.done == 0 {
				if _, err := w.step(); err != nil {
					t.Fatal(err)
				}
			}
			b.exec(of(c.take))
			began := w.clock
			result, err := w.step()
			if err != nil || result.State != Failing || result.Problem.Reason != c.reason || !result.Problem.Stalled || !strings.Contains(result.Problem.Message, c.text) {
				t.Fatalf("%+v %+v, %v", result, result.Problem, err)
			}
			if result.Until.Sub(began) < failingPause {
				t.Errorf("it is not tried again slowly: %+v", result)
			}
			b.exec(of(c.give))
			if state := w.run(); state != Drained || b.text("SELECT count(*)::text FROM shardedjob.row_failure") != "0" {
				t.Errorf("ends in %v: %+v", state, w.problem)
			}
			b.wantAllOnce()
		})
	}
}

// TestCursorRightToTheProgressIsTakenAway: what the statement may do is not to blame, and no row is.
func TestCursorRightToTheProgressIsTakenAway(t *testing.T) {
	b := newBench(t, tableOf("int")+rows(1, 40))
	role := "app_" + b.text("SELECT current_database()")
	w := b.cursorWorker(Settings{Statement: update, Rows: 5, MaxAttempts: 1}, 1, 1, 0)
	b.exec(strings.ReplaceAll("CREATE ROLE <role>; GRANT ALL ON t TO <role>; GRANT USAGE ON SCHEMA shardedjob TO <role>; GRANT ALL ON ALL TABLES IN SCHEMA shardedjob TO <role>", "<role>", role))
	if _, err := w.session.conn.Exec(t.Context(), "SET ROLE "+role); err != nil {
		t.Fatal(err)
	}
	for w.done == 0 {
		if _, err := w.step(); err != nil {
			t.Fatal(err)
		}
	}
	b.exec("REVOKE UPDATE ON shardedjob.slot FROM " + role)
	var err error
	for range 20 { // it may look for a row that is to blame first
		if _, err = w.step(); err != nil {
			break
		}
	}
	if p := database.Problem(err); p.Reason != v1alpha1.ReasonMissingPrivileges || !p.Stalled || !strings.Contains(p.Message, "permission denied for table slot") {
		t.Errorf("%v is taken for %+v", err, p)
	}
	b.exec("GRANT UPDATE ON shardedjob.slot TO " + role)
	if state := w.run(); state != Drained || b.text("SELECT count(*)::text FROM shardedjob.row_failure") != "0" {
		t.Errorf("ends in %v: %+v", state, w.problem)
	}
	b.wantAllOnce()
}
