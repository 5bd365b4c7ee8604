package process

import (
	"strings"
	"testing"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/worker/cursor"
)

// TestD08EveryRowOnceWhateverTheKeysType works keys of all types in small batches, by what is pending and by cursors whose
// number changes, in sessions whose settings write and read values in ways of their own.
func TestD08EveryRowOnceWhateverTheKeysType(t *testing.T) {
	const strange = "unnest(ARRAY['A', 'a', 'B', 'b', '_x', '-y', 'é', 'e' || U&'\\0301', '', ' x', 'NULL', '\"', '\\', '{,}'])"
	for name, c := range map[string]struct{ column, keys string }{
		"integer by hash":     {"int", "generate_series(-20, 20)"},
		"text, linguistic":    {`text COLLATE "en-x-icu"`, strange + " UNION SELECT ' '"},
		"varchar, by bytes":   {`varchar(20) COLLATE "C"`, strange + " UNION SELECT ' '"},
		"char":                {"char(5)", strange},
		"numeric":             {"numeric(40,0)", "10 ^ generate_series(0, 39, 3)::numeric UNION SELECT -(10 ^ generate_series(0, 39, 3)::numeric)"},
		"uuid":                {"uuid", "md5(generate_series(1, 30)::text)::uuid"},
		"bytea":               {"bytea", "decode(lpad(to_hex(generate_series(0, 255, 9)), 2, '0'), 'hex') UNION SELECT ''"},
		"date":                {"date", "date '2000-01-01' + generate_series(-20, 20) * 50000 UNION SELECT 'infinity'"},
		"timestamptz":         {"timestamptz", "timestamptz '2000-01-01' + generate_series(-20, 20) * interval '150 years 1 microsecond' UNION SELECT 'infinity'"},
		"domain over varchar": {"code", "'c' || generate_series(1, 30)"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, "CREATE DOMAIN code AS varchar(9) CHECK (VALUE LIKE 'c%');"+tableOf(c.column)+"INSERT INTO t SELECT "+c.keys)
			const strangeSession = "SET DateStyle = 'SQL, DMY'; SET TimeZone = 'Asia/Kolkata'; SET bytea_output = 'escape'"
			s := spec
			s.ShardBy = v1alpha1.ShardByHash
			for k := range int32(2) {
				w := b.worker(s, Settings{Statement: update, Rows: 7}, 2, k)
				if _, err := w.session.conn.Exec(t.Context(), strangeSession); err != nil {
					t.Fatal(err)
				}
				if state := w.run(); state != Drained || w.done == 0 {
					t.Errorf("slot %d ends in %v with %d rows", k, state, w.done)
				}
			}
			b.wantAllOnce()

			b.exec("UPDATE t SET done = false, times = 0")
			first := b.cursorWorker(Settings{Statement: update, Rows: 4}, 1, 2, 1)
			for first.done == 0 {
				if _, err := first.step(); err != nil {
					t.Fatal(err)
				}
			}
			for k := range int32(3) {
				w := b.cursorWorker(Settings{Statement: update, Rows: 4}, 2, 3, k)
				if _, err := w.session.conn.Exec(t.Context(), strangeSession); err != nil {
					t.Fatal(err)
				}
				if state := w.run(); state != Drained {
					t.Errorf("slot %d by cursor ends in %v: %+v", k, state, w.problem)
				}
			}
			b.wantAllOnce()
		})
	}
}

// TestD08TextsOfIntegersAreNotSorted works numbers whose texts have another order.
func TestD08TextsOfIntegersAreNotSorted(t *testing.T) {
	b := newBench(t, tableOf("int")+rows(1, 20_000))
	w := b.worker(spec, Settings{Statement: update, Rows: 3000}, 1, 0)
	for step := 1; step <= 7; step++ {
		if result, err := w.Step(t.Context(), w.session); err != nil || result.Processed != min(3000, 20_000-3000*(step-1)) {
			t.Fatalf("batch %d of the first sweep has %d rows, %v", step, result.Processed, err)
		}
	}
	b.wantAllOnce()
}

func TestABadRowOfATextKey(t *testing.T) {
	b := newBench(t, tableOf("text")+`INSERT INTO t SELECT 'k' || g FROM generate_series(1, 50) g; INSERT INTO t VALUES ('"}', true, 1, 1), ('"{', false, 0, 0)`)
	w := b.worker(spec, Settings{Statement: "UPDATE t SET done = true, times = times + 1 / v WHERE id = ANY ($1)", Rows: 20}, 1, 0)
	if state := w.run(); state != Failing || w.done != 50 {
		t.Errorf("ends in %v with %d rows", state, w.done)
	}
	if failed := w.failures.Sample(2); len(failed) != 1 || failed[0].Key != `"{` || failed[0].Attempts != 3 {
		t.Errorf("failures %+v", failed)
	}
	b.exec("UPDATE t SET v = 1")
	w.Reload(Settings{Statement: update, Rows: 20, TimeoutSeconds: 20, MaxAttempts: 3})
	if state := w.run(); state != Drained {
		t.Errorf("ends in %v", state)
	}
	b.wantAllOnce()
}

// TestF06PartitionsComeAndGo moves partitions and rows while the table is worked.
func TestF06PartitionsComeAndGo(t *testing.T) {
	b := newBench(t, strings.Replace(tableOf("int"), ");", ") PARTITION BY RANGE (id);", 1)+
		`CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (100); CREATE TABLE t_2 PARTITION OF t FOR VALUES FROM (100) TO (200);
		CREATE TABLE t_3 PARTITION OF t FOR VALUES FROM (200) TO (300); CREATE TABLE t_4 (LIKE t INCLUDING ALL);`+rows(1, 299)+
		"INSERT INTO t_4 SELECT generate_series(300, 399)")
	w := b.worker(spec, Settings{Statement: update, Rows: 20}, 1, 0)
	step := func() {
		t.Helper()
		if result, err := w.Step(t.Context(), w.session); err != nil || result.State == Drained {
			t.Fatalf("%+v, %v", result, err)
		}
	}
	step()
	b.exec("ALTER TABLE t DETACH PARTITION t_1")
	step()
	b.exec("ALTER TABLE t ATTACH PARTITION t_4 FOR VALUES FROM (300) TO (500)")
	b.exec("UPDATE t SET id = id + 250 WHERE id BETWEEN 190 AND 195")
	step()
	b.exec("DROP TABLE t_3; ALTER TABLE t ATTACH PARTITION t_1 FOR VALUES FROM (0) TO (100)")
	if state := w.run(); state != Drained {
		t.Errorf("ends in %v: %+v", state, w.problem)
	}
	b.wantAllOnce()
	if left := b.text("SELECT count(*)::text FROM t"); left != "299" {
		t.Errorf("%s rows are left", left)
	}
}

// TestCursorF06PartitionsComeAndGo does so beneath a cursor: what is there up to the horizon is worked, wherever it goes to.
func TestCursorF06PartitionsComeAndGo(t *testing.T) {
	b := newBench(t, strings.Replace(tableOf("int"), ");", ") PARTITION BY RANGE (id);", 1)+
		`CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (100); CREATE TABLE t_2 PARTITION OF t FOR VALUES FROM (100) TO (200);
		CREATE TABLE t_3 PARTITION OF t FOR VALUES FROM (200) TO (300); CREATE TABLE t_4 PARTITION OF t FOR VALUES FROM (300) TO (400);
		CREATE TABLE t_5 (LIKE t INCLUDING ALL);`+rows(1, 180)+rows(200, 399)+"INSERT INTO t_5 SELECT generate_series(400, 499)")
	w := b.cursorWorker(Settings{Statement: update, Rows: 20}, 1, 1, 0)
	until := func(done int) {
		t.Helper()
		for w.done < done {
			if result, err := w.step(); err != nil || result.State == Drained {
				t.Fatalf("%+v, %v", result, err)
			}
		}
	}
	until(20)
	b.exec("ALTER TABLE t DETACH PARTITION t_1")
	until(40)
	b.exec("ALTER TABLE t ATTACH PARTITION t_5 FOR VALUES FROM (400) TO (500)") // another job's
	b.exec("UPDATE t SET id = id - 20 WHERE id BETWEEN 201 AND 219")            // from one partition to another, ahead of the cursor
	until(60)
	b.exec("DROP TABLE t_4")
	if state := w.run(); state != Drained {
		t.Errorf("ends in %v: %+v", state, w.problem)
	}
	if left := b.text("SELECT count(*)::text FROM t WHERE id < 400 AND times <> 1 OR id >= 400 AND times <> 0"); left != "0" {
		t.Errorf("%s rows were not worked as they should be", left)
	}
	if done := b.text("SELECT max(times) || ' ' || sum(times) FROM t_1"); done != "1 20" {
		t.Errorf("of the partition that was detached: %s", done)
	}
	if at, problem, err := cursor.Complete(t.Context(), b.conn, w.plan, w.table); at == nil || problem != nil || err != nil {
		t.Errorf("complete at %v: %+v %v", at, problem, err)
	}
}
