package cursor

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"shardedjob.dev/hack/postgres"
	"shardedjob.dev/worker/shard"
)

// waits expects a step to wait, and to say so with all the words.
func (b *bench) waits(conn *pgx.Conn, h *Horizon, words ...string) {
	b.Helper()
	wait, err := h.Step(b.Context(), conn)
	if err != nil || wait == nil {
		b.Fatalf("does not wait: %+v %v", wait, err)
	}
	for _, word := range words {
		if !strings.Contains(wait.Message, word) {
			b.Errorf("says %q, without %q", wait.Message, word)
		}
	}
}

// found expects a step to find the horizon.
func (b *bench) found(conn *pgx.Conn, h *Horizon, horizon string) {
	b.Helper()
	if wait, err := h.Step(b.Context(), conn); err != nil || wait != nil {
		b.Fatalf("still waits: %+v %v", wait, err)
	}
	b.want("SELECT horizon FROM shardedjob.job WHERE horizon_at IS NOT NULL", horizon)
}

// work drains all slots of a plan and expects every row up to the horizon to be worked.
func (b *bench) work(p Plan) {
	b.Helper()
	for k := range p.Slots {
		b.drain(b.conn, b.open(b.conn, p, k), 50)
	}
	b.complete(b.conn, p, true)
	b.want(fmt.Sprintf("SELECT count(*)::text FROM t, shardedjob.job WHERE times <> 1 AND %s AND %s <= %s",
		b.table.Scope(), b.table.Order("id"), b.table.KeyValue("horizon")), "0")
}

// writer opens a transaction of an application and runs statements in it.
func (b *bench) writer(statements ...string) *pgx.Conn {
	b.Helper()
	conn := b.connect()
	exec(b, conn, "SET lock_timeout = '1s'") // that nobody is blocked
	exec(b, conn, "BEGIN")
	for _, sql := range statements {
		exec(b, conn, sql)
	}
	return conn
}

func pid(conn *pgx.Conn) string { return fmt.Sprintf("pid %d, open for ", conn.PgConn().PID()) }

// TestD04LateCommit has rows with lower keys commit after rows with higher ones, under transactions of all kinds.
func TestD04LateCommit(t *testing.T) {
	const serial = "CREATE TABLE t (id bigserial PRIMARY KEY, times int NOT NULL DEFAULT 0)"
	const parted = `CREATE TABLE t (id bigint NOT NULL, times int NOT NULL DEFAULT 0) PARTITION BY RANGE (id);
		CREATE TABLE low PARTITION OF t (PRIMARY KEY (id)) FOR VALUES FROM (MINVALUE) TO (100); CREATE TABLE high (id bigint PRIMARY KEY, times int NOT NULL DEFAULT 0);`
	for _, c := range []struct {
		name, table string
		late        []string // statements of the late transaction
	}{
		{"insert", serial, []string{"INSERT INTO t DEFAULT VALUES"}},
		{"copy from a query", serial, []string{"INSERT INTO t SELECT nextval('t_id_seq') FROM generate_series(1, 3)"}},
		{"released savepoint", serial, []string{"SAVEPOINT a", "INSERT INTO t DEFAULT VALUES", "RELEASE a"}},
		{"savepoint in a savepoint", serial, []string{"SAVEPOINT a", "SAVEPOINT b", "INSERT INTO t DEFAULT VALUES"}},
		{"written again after a rollback", serial, []string{"SAVEPOINT a", "INSERT INTO t DEFAULT VALUES", "ROLLBACK TO a", "INSERT INTO t DEFAULT VALUES"}},
		{"update of the key", serial + "; INSERT INTO t SELECT -1", []string{"UPDATE t SET id = nextval('t_id_seq')"}},
		{"function", serial + "; CREATE FUNCTION f() RETURNS void LANGUAGE sql AS 'INSERT INTO t DEFAULT VALUES'", []string{"SELECT f()"}},
		{"foreign key action", serial + "; CREATE TABLE parent (id bigint PRIMARY KEY); INSERT INTO parent VALUES (7); ALTER TABLE t ADD p bigint REFERENCES parent ON UPDATE CASCADE; INSERT INTO t (id, p) VALUES (-7, 7)",
			[]string{"UPDATE parent SET id = 8", "INSERT INTO t DEFAULT VALUES"}},
		{"through the partitioned table", parted + "ALTER TABLE t ATTACH PARTITION high FOR VALUES FROM (100) TO (MAXVALUE)", []string{"INSERT INTO t VALUES (50)"}},
		{"straight into a partition", parted + "ALTER TABLE t ATTACH PARTITION high FOR VALUES FROM (100) TO (MAXVALUE)", []string{"INSERT INTO low VALUES (50)"}},
		{"straight into a partition of a partition", `CREATE TABLE t (id bigint NOT NULL, times int NOT NULL DEFAULT 0) PARTITION BY RANGE (id);
			CREATE TABLE low PARTITION OF t FOR VALUES FROM (MINVALUE) TO (MAXVALUE) PARTITION BY RANGE (id); CREATE TABLE lower PARTITION OF low DEFAULT`, []string{"INSERT INTO lower VALUES (50)"}},
		{"partition with rows that is being attached", parted + "INSERT INTO high VALUES (150)", []string{"ALTER TABLE t ATTACH PARTITION high FOR VALUES FROM (100) TO (MAXVALUE)"}},
		{"child by inheritance", serial + "; CREATE TABLE child () INHERITS (t)", []string{"INSERT INTO child VALUES (-50)"}},
		{"lock table first", serial, []string{"LOCK TABLE t IN SHARE ROW EXCLUSIVE MODE", "SAVEPOINT a", "INSERT INTO t DEFAULT VALUES", "ROLLBACK TO a", "INSERT INTO t DEFAULT VALUES"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, "bigint")
			b.exec("DROP TABLE t; " + c.table)
			b.table = b.checked()
			late := b.writer(c.late...)
			blocked := strings.Contains(c.late[0], "LOCK")
			if !blocked {
				b.exec("INSERT INTO t (id) VALUES (60)") // commits before the lower one
			}
			p := plan(1, 2)
			b.enter(b.conn, p)
			h := NewHorizon(p, b.table)
			b.waits(b.conn, h, "waiting for 1 transaction, ", pid(late))
			b.waits(b.conn, h, pid(late))
			if !blocked && !strings.Contains(c.late[0], "ATTACH") {
				b.exec("INSERT INTO t (id) SELECT generate_series(190, 200)") // nobody is held up
			}
			exec(t, late, "COMMIT")
			b.found(b.conn, h, b.text("SELECT max(id)::text FROM t"))
			b.work(p)
		})
	}
}

// TestTheSecondWait has a transaction that begins to write after the first look, and holds a key below the greatest.
func TestTheSecondWait(t *testing.T) {
	b := newBench(t, "bigint")
	b.exec("CREATE SEQUENCE s; ALTER TABLE t ALTER id SET DEFAULT nextval('s')")
	first := b.writer("INSERT INTO t DEFAULT VALUES")
	p := plan(1, 1)
	b.enter(b.conn, p)
	h := NewHorizon(p, b.table)
	b.waits(b.conn, h, pid(first))
	second := b.writer("INSERT INTO t DEFAULT VALUES")
	b.exec("INSERT INTO t DEFAULT VALUES")
	exec(t, first, "COMMIT")
	b.waits(b.conn, h, pid(second))
	third := b.writer("INSERT INTO t DEFAULT VALUES") // draws a key above the horizon, which is read by now
	exec(t, second, "COMMIT")
	b.found(b.conn, h, "3")
	exec(t, third, "COMMIT")
	b.work(p)
	b.want("SELECT string_agg(id::text, ' ' ORDER BY id) FROM t WHERE times = 1", "1 2 3")
}

// TestAPartitionThatIsAttachedMeanwhile is one that only the second look can know of.
func TestAPartitionThatIsAttachedMeanwhile(t *testing.T) {
	b := newBench(t, "bigint")
	b.exec(`DROP TABLE t; CREATE TABLE t (id bigint PRIMARY KEY, times int NOT NULL DEFAULT 0) PARTITION BY RANGE (id);
		CREATE TABLE low PARTITION OF t FOR VALUES FROM (MINVALUE) TO (100); CREATE TABLE high PARTITION OF t FOR VALUES FROM (200) TO (MAXVALUE);
		CREATE TABLE middle (id bigint PRIMARY KEY, times int NOT NULL DEFAULT 0)`)
	b.table = b.checked()
	first := b.writer("INSERT INTO low VALUES (1)")
	p := plan(1, 2)
	b.enter(b.conn, p)
	h := NewHorizon(p, b.table)
	b.waits(b.conn, h, pid(first))
	b.exec("ALTER TABLE t ATTACH PARTITION middle FOR VALUES FROM (100) TO (200)")
	second := b.writer("INSERT INTO middle VALUES (150)")
	b.exec("INSERT INTO t VALUES (250)")
	exec(t, first, "COMMIT")
	b.waits(b.conn, h, pid(second))
	exec(t, second, "COMMIT")
	b.found(b.conn, h, "250")
	b.work(p)
	b.wantAllOnce()
}

// TestTheHorizonOfAnotherTable is not taken, while one has the table's name and after it has given it back.
func TestTheHorizonOfAnotherTable(t *testing.T) {
	b := newBench(t, "bigint")
	b.exec("INSERT INTO t SELECT generate_series(1, 20); CREATE TABLE u (LIKE t INCLUDING ALL)")
	p := plan(1, 2)
	b.enter(b.conn, p)
	h := NewHorizon(p, b.table)
	b.exec("ALTER TABLE t RENAME TO v; ALTER TABLE u RENAME TO t")
	if wait, err := h.Step(t.Context(), b.conn); !errors.Is(err, shard.ErrChanged) {
		t.Errorf("takes the horizon of another table: %+v %v", wait, err)
	}
	b.exec("ALTER TABLE t RENAME TO u; ALTER TABLE v RENAME TO t")
	b.found(b.conn, h, "20")
	b.work(p)
	b.wantAllOnce()
}

func TestTheOwnSessionIsNotWaitedFor(t *testing.T) {
	b := newBench(t, "bigint")
	own := b.writer("INSERT INTO t VALUES (1)")
	for conn, want := range map[*pgx.Conn]int{own: 0, b.conn: 1} {
		if found, err := readWriters(t.Context(), conn, b.table); err != nil || len(found) != want {
			t.Errorf("%v %v", found, err)
		}
	}
}

// TestThoseWhoDoNotWriteAreNotWaitedFor: a horizon must not wait for a report or an index build that takes hours.
func TestThoseWhoDoNotWriteAreNotWaitedFor(t *testing.T) {
	b := newBench(t, "bigint")
	b.exec("INSERT INTO t SELECT generate_series(1, 9); CREATE TABLE other (id bigint)")
	p := plan(1, 1)
	b.enter(b.conn, p)
	for _, statements := range [][]string{
		{"SELECT FROM t"}, {"SELECT FROM t FOR UPDATE"}, {"ANALYZE t"}, {"CREATE INDEX ON t (times)"}, {"INSERT INTO other VALUES (1)"},
		{"SAVEPOINT a", "INSERT INTO t VALUES (10)", "ROLLBACK TO a"}, {"LOCK TABLE t IN SHARE MODE"},
	} {
		t.Run(statements[0], func(t *testing.T) {
			conn := b.writer(statements...)
			b.found(b.conn, NewHorizon(p, b.table), "9")
			exec(t, conn, "ROLLBACK")
			b.exec("UPDATE shardedjob.job SET horizon = NULL, horizon_at = NULL")
		})
	}
}

// TestPreparedTransactions keep their locks without a process, and over a restart of the server.
func TestPreparedTransactions(t *testing.T) {
	server := postgres.StartForTest(t, postgres.Options{})
	for _, restart := range []postgres.Mode{"", postgres.Fast, postgres.Immediate} {
		t.Run("restart "+string(restart), func(t *testing.T) {
			b := benchAt(t, server.NewDB(t), "bigint")
			app := b.writer("INSERT INTO t VALUES (5)")
			b.exec("INSERT INTO t VALUES (7)")
			p := plan(1, 1)
			b.enter(b.conn, p)
			h := NewHorizon(p, b.table)
			b.waits(b.conn, h, pid(app))
			name := "late " + t.Name()
			exec(t, app, fmt.Sprintf("PREPARE TRANSACTION '%s'", name))
			b.waits(b.conn, h, fmt.Sprintf("waiting for 1 transaction, prepared transaction %q, open for ", name))
			if restart != "" {
				if err := server.Restart(t.Context(), restart); err != nil {
					t.Fatal(err)
				}
				b.conn = b.connect()
				b.waits(b.conn, h, fmt.Sprintf("prepared transaction %q, open for ", name))
			}
			b.exec(fmt.Sprintf("COMMIT PREPARED '%s'", name))
			b.found(b.conn, h, "7")
			b.work(p)
			b.wantAllOnce()
		})
	}
}

func TestWhatASequenceSaysIsNoHorizon(t *testing.T) {
	for name, setup := range map[string]string{
		"pristine sequence": "INSERT INTO t (id) SELECT generate_series(1, 50)",
		"sequence behind":   "SELECT nextval('t_id_seq'); INSERT INTO t (id) SELECT generate_series(10, 60)",
		"outlier":           "INSERT INTO t SELECT FROM generate_series(1, 50); INSERT INTO t (id) VALUES (9000000000000000000), (-9000000000000000000)",
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, "bigint")
			b.exec("DROP TABLE t; CREATE TABLE t (id bigserial PRIMARY KEY, times int NOT NULL DEFAULT 0); " + setup)
			b.table = b.checked()
			p := plan(1, 3)
			b.enter(b.conn, p)
			b.found(b.conn, NewHorizon(p, b.table), b.text("SELECT max(id)::text FROM t"))
			b.work(p)
			b.wantAllOnce()
		})
	}
}

// TestD03EndsWhileRowsKeepComing: rows above the horizon are another job's.
func TestD03EndsWhileRowsKeepComing(t *testing.T) {
	b := newBench(t, "bigint")
	b.exec("INSERT INTO t SELECT generate_series(1, 100)")
	p := plan(1, 1)
	s := b.open(b.conn, p, 0)
	for next := 101; !s.AtEnd(); next += 20 {
		b.next(b.conn, s, 10)
		b.exec("INSERT INTO t SELECT generate_series($1::int, $1 + 19)", next)
	}
	b.complete(b.conn, p, true)
	b.want("SELECT count(*)::text FROM t WHERE times = 1 AND id <= 100", "100")
	b.want("SELECT sum(times)::text FROM t", "100")
}

func TestAnEmptyTableIsComplete(t *testing.T) {
	b := newBench(t, "uuid")
	p := plan(1, 4)
	b.enter(b.conn, p)
	b.complete(b.conn, p, false) // as long as the horizon is not known
	b.found(b.conn, NewHorizon(p, b.table), "NULL")
	if s := b.open(b.conn, p, 3); !s.AtEnd() {
		t.Error("there is something to do")
	}
	b.complete(b.conn, p, true)
}

// TestAWaitBelongsToItsSession: who is there is looked at anew on another session.
func TestAWaitBelongsToItsSession(t *testing.T) {
	b := newBench(t, "bigint")
	first := b.writer("INSERT INTO t VALUES (1)")
	p := plan(1, 1)
	b.enter(b.conn, p)
	h := NewHorizon(p, b.table)
	lost := b.connect()
	b.waits(lost, h, pid(first))
	second := b.writer("INSERT INTO t VALUES (2)")
	exec(t, first, "COMMIT")
	_ = lost.Close(t.Context())
	if _, err := h.Step(t.Context(), lost); err == nil {
		t.Error("no error on a closed session")
	}
	b.waits(b.conn, h, pid(second))
	exec(t, second, "ROLLBACK")
	b.found(b.conn, h, "1")
}

// TestTheHorizonIsKeptOnce by whoever finds it first, and not under an older plan.
func TestTheHorizonIsKeptOnce(t *testing.T) {
	b := newBench(t, "bigint")
	b.exec("INSERT INTO t VALUES (1)")
	p := plan(1, 1)
	b.enter(b.conn, p)
	h, rival := NewHorizon(p, b.table), NewHorizon(p, b.table)
	late := b.writer("INSERT INTO t VALUES (2)")
	b.waits(b.conn, h, pid(late))
	exec(t, late, "ROLLBACK")
	b.found(b.conn, rival, "1")
	b.exec("INSERT INTO t VALUES (3)")
	b.found(b.conn, h, "1")
	if err := h.keep(t.Context()); err != nil {
		t.Error(err)
	}
	b.want("SELECT horizon FROM shardedjob.job", "1")

	b.exec("UPDATE shardedjob.job SET horizon = NULL, horizon_at = NULL")
	b.enter(b.conn, plan(2, 1))
	for _, step := range []func() error{
		func() error { return h.keep(t.Context()) },
		func() error { _, err := h.Step(t.Context(), b.conn); return err },
	} {
		var stale *StaleError
		if err := step(); !errors.As(err, &stale) || stale.Epoch != 2 {
			t.Errorf("under an older plan: %v", err)
		}
	}
	b.want("SELECT horizon_at::text FROM shardedjob.job", "NULL")
}

func TestLeft(t *testing.T) {
	at := func(virtuals ...string) map[hold]writer {
		all := map[hold]writer{}
		for _, virtual := range virtuals {
			w := writer{pid: 1}
			if strings.HasPrefix(virtual, "-1/") {
				w.pid = 0
			}
			all[hold{virtual, 1}] = w
		}
		return all
	}
	for _, c := range []struct {
		name                string
		waited, before, now []string
		want                []string
	}{
		{"nobody", nil, nil, nil, nil},
		{"still there", []string{"3/1"}, []string{"3/1"}, []string{"3/1"}, []string{"3/1"}},
		{"gone", []string{"3/1", "4/1"}, []string{"3/1", "4/1"}, []string{"4/1"}, []string{"4/1"}},
		{"same backend, next transaction", []string{"3/1"}, []string{"3/1"}, []string{"3/2"}, nil},
		{"new one", []string{"3/1"}, []string{"3/1"}, []string{"3/1", "4/1"}, []string{"3/1"}},
		{"prepared now", []string{"3/1"}, []string{"3/1"}, []string{"-1/700"}, []string{"-1/700"}},
		{"another prepared", []string{"3/1"}, []string{"3/1"}, []string{"3/1", "-1/700"}, []string{"3/1"}},
		{"prepared before", []string{"3/1"}, []string{"3/1", "-1/700"}, []string{"-1/700"}, nil},
		{"prepared one gone, another came", []string{"-1/700"}, []string{"-1/700"}, []string{"-1/701"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := left(at(c.waited...), at(c.before...), at(c.now...)); fmt.Sprint(got) != fmt.Sprint(at(c.want...)) {
				t.Errorf("got %v", got)
			}
		})
	}
}

func TestWaitMessages(t *testing.T) {
	for _, c := range []struct {
		name    string
		writers []writer
		want    string
	}{
		{"one", []writer{{pid: 4711, open: 62e9}}, "waiting for 1 transaction, pid 4711, open for 62 s"},
		{"several", []writer{{pid: 1, open: 1e9}, {pid: 4711, open: 62e9}, {prepared: "x", open: 3e9}}, "waiting for 3 transactions, the oldest pid 4711, open for 62 s"},
		{"prepared", []writer{{prepared: "order 7", open: 62e9}}, `waiting for 1 transaction, prepared transaction "order 7", open for 62 s`},
		{"not shown", []writer{{pid: 4711, open: -1}}, "waiting for 1 transaction, pid 4711, for 5 s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			waited := map[hold]writer{}
			for i, w := range c.writers {
				waited[hold{fmt.Sprint(i), 1}] = w
				waited[hold{fmt.Sprint(i), 2}] = w // a lock on a partition is no other transaction
			}
			if got := newWait(waited, 5e9); got.Message != c.want || got.Transactions != len(c.writers) {
				t.Errorf("%+v", got)
			}
		})
	}
}
