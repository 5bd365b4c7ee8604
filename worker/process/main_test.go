package process

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/hack/postgres"
	"shardedjob.dev/worker/preflight"
	"shardedjob.dev/worker/shard"
)

func TestMain(m *testing.M) { postgres.Main(m) }

// bench is a database with a table t to work on.
type bench struct {
	testing.TB
	uri  string
	conn *pgx.Conn // the application's, not the worker's
}

func newBench(t testing.TB, setup string) *bench {
	t.Helper()
	uri := postgres.ForTest(t).NewDB(t)
	b := &bench{TB: t, uri: uri}
	b.conn = b.connect()
	b.exec(setup)
	return b
}

func (b *bench) connect() *pgx.Conn { return postgres.Connect(b, b.uri) }

func (b *bench) exec(sql string) {
	b.Helper()
	if _, err := b.conn.Exec(b.Context(), sql); err != nil {
		b.Fatalf("%s: %v", sql, err)
	}
}

// lockAll locks every row, as a long transaction of an application does, until it is told to let go.
func (b *bench) lockAll() (unlock func()) {
	b.Helper()
	conn := b.connect()
	lock := func(sql string) {
		b.Helper()
		if _, err := conn.Exec(b.Context(), sql); err != nil {
			b.Fatal(err)
		}
	}
	lock("BEGIN")
	lock("SELECT FROM t FOR UPDATE")
	return func() { lock("ROLLBACK") }
}

func (b *bench) text(sql string, args ...any) string {
	b.Helper()
	var text string
	if err := b.conn.QueryRow(b.Context(), sql, args...).Scan(&text); err != nil {
		b.Fatalf("%s: %v", sql, err)
	}
	return text
}

// fenced stands in for the session of package fence.
type fenced struct {
	conn *pgx.Conn
	lost error
}

func (f *fenced) Conn() *pgx.Conn { return f.conn }

func (f *fenced) VerifyLocks(rows pgx.Rows) error {
	rows.Close()
	return f.lost
}

// worker is a Runner of slot k of n with a clock that jumps to whatever is waited for.
type worker struct {
	*bench
	*Runner
	session *fenced
	clock   time.Time
	done    int
	seen    map[State]int
	problem *v1alpha1.Problem

	spec    v1alpha1.TableSpec
	n, k    int32
	changed int // how often the table had to be checked anew
}

func (b *bench) worker(spec v1alpha1.TableSpec, settings Settings, n, k int32) *worker {
	b.Helper()
	w := &worker{bench: b, session: &fenced{conn: b.connect()}, clock: time.Now(), seen: map[State]int{}, spec: spec, n: n, k: k}
	if settings.MaxAttempts == 0 {
		settings.MaxAttempts = 3
	}
	if settings.TimeoutSeconds == 0 {
		settings.TimeoutSeconds = 20
	}
	w.check(settings)
	return w
}

// check makes the Runner for the table as it is now.
func (w *worker) check(settings Settings) {
	w.Helper()
	table, problem, err := preflight.Check(w.Context(), w.session.conn, w.spec, settings.Statement)
	if err != nil || problem != nil {
		w.Fatalf("preflight: %+v %v", problem, err)
	}
	w.Runner = NewRunner(shard.NewReader(table, w.n, w.k), settings)
	w.now = func() time.Time { return w.clock }
}

// run steps until the slot is in a state in which it would stay.
func (w *worker) run() State {
	w.Helper()
	for range 5000 {
		result, err := w.Step(w.Context(), w.session)
		switch {
		case errors.Is(err, shard.ErrChanged):
			w.changed++
			w.check(w.settings)
		case err != nil && !outlived(err):
			w.Fatal(err)
		}
		w.done += result.Processed
		w.seen[result.State]++
		w.problem = result.Problem
		switch result.State {
		case Drained:
			return Drained
		case Failing:
			if w.failures.Waiting() == 0 || result.Problem.Reason != v1alpha1.ReasonRowsFailing {
				return Failing
			}
		}
		if result.Until.After(w.clock) {
			w.clock = result.Until
		}
	}
	w.Fatal("the slot does not come to rest")
	return 0
}

var spec = v1alpha1.TableSpec{Schema: "public", Name: "t", Key: "id", Pending: "NOT done"}

const update = "UPDATE t SET done = true, times = times + 1 WHERE id = ANY ($1)"

const table = "CREATE TABLE t (id %s PRIMARY KEY, done boolean NOT NULL DEFAULT false, times int NOT NULL DEFAULT 0, v int NOT NULL DEFAULT 1);"

func tableOf(keyType string) string { return strings.Replace(table, "%s", keyType, 1) }

func (b *bench) wantAllOnce() {
	b.Helper()
	if bad := b.text("SELECT count(*)::text FROM t WHERE times <> 1 OR NOT done"); bad != "0" {
		b.Errorf("%s rows were not processed exactly once: %s", bad, b.text("SELECT string_agg(id || ' x ' || times, ', ') FROM (SELECT * FROM t WHERE times <> 1 ORDER BY id LIMIT 10) x"))
	}
}

func rows(from, to int) string {
	return fmt.Sprintf("INSERT INTO t SELECT generate_series(%d, %d);", from, to)
}
