package cursor_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/hack/postgres"
	"shardedjob.dev/worker/cursor"
	"shardedjob.dev/worker/preflight"
	"shardedjob.dev/worker/process"
	"shardedjob.dev/worker/shard"
)

// BenchmarkBatch works the slots of a table one after the other, in batches of 500 rows: with pending, which the rows themselves
// remember, and with a cursor. It gives rows per second and the CPU time of the server's process for a row.
func BenchmarkBatch(b *testing.B) {
	const rows = 100_000
	settings := process.Settings{Statement: "UPDATE t SET done = true WHERE id = ANY ($1)", Rows: 500, TimeoutSeconds: 60, MaxAttempts: 1}
	for _, n := range []int32{1, 4, 64} {
		for _, way := range []string{"pending", "cursor"} {
			b.Run(fmt.Sprintf("%s/%d", way, n), func(b *testing.B) {
				conn := postgres.Connect(b, postgres.ForTest(b).NewDB(b))
				run := func(sql string) {
					if _, err := conn.Exec(b.Context(), sql); err != nil {
						b.Fatal(err)
					}
				}
				run("SET jit = off; SET max_parallel_workers_per_gather = 0") // as a fenced session does
				spec := v1alpha1.TableSpec{Name: "t", Key: "id"}
				if way == "pending" {
					spec.Pending = "NOT done"
				}
				var took, cpu time.Duration
				for range b.N {
					run("DROP TABLE IF EXISTS t; CREATE TABLE t (id bigint PRIMARY KEY, done boolean NOT NULL DEFAULT false, kind text) WITH (autovacuum_enabled = off, fillfactor = 50)")
					run(fmt.Sprintf("INSERT INTO t SELECT g, false, repeat('x', 100) FROM generate_series(1, %d) g", rows))
					run("VACUUM ANALYZE t")
					t, problem, err := preflight.Check(b.Context(), conn, spec, settings.Statement)
					if problem == nil && err == nil {
						problem, err = cursor.Prepare(b.Context(), conn)
					}
					if problem != nil || err != nil {
						b.Fatalf("%+v %v", problem, err)
					}
					run("TRUNCATE shardedjob.job, shardedjob.slot, shardedjob.row_failure")
					began, before := time.Now(), cpuTime(b, conn)
					for k := range n {
						drain(b, conn, newRunner(b, conn, t, n, k, settings))
					}
					took, cpu = took+time.Since(began), cpu+cpuTime(b, conn)-before
				}
				b.ReportMetric(rows*float64(b.N)/took.Seconds(), "rows/s")
				b.ReportMetric(float64(cpu.Microseconds())/rows/float64(b.N), "CPU-µs/row")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

type runner interface {
	Step(ctx context.Context, s process.Session) (process.Result, error)
}

// newRunner makes what works a slot, with its way to remember what is done.
func newRunner(b *testing.B, conn *pgx.Conn, t shard.Table, n, k int32, settings process.Settings) runner {
	if t.Pending != "" {
		return process.NewRunner(shard.NewReader(t, n, k), settings)
	}
	p := cursor.Plan{Group: "bench", Epoch: 1, Slots: n}
	if problem, err := cursor.Enter(b.Context(), conn, p, t); problem != nil || err != nil {
		b.Fatalf("%+v %v", problem, err)
	}
	slot, err := cursor.Open(b.Context(), conn, p, t, k)
	if err != nil {
		b.Fatal(err)
	}
	return process.NewCursorRunner(p, t, k, slot, settings)
}

func drain(b *testing.B, conn *pgx.Conn, r runner) {
	for {
		switch result, err := r.Step(b.Context(), session{conn}); {
		case err != nil || result.Problem != nil:
			b.Fatalf("%+v %v", result.Problem, err)
		case result.State == process.Drained:
			return
		}
	}
}

// session holds no locks, and so has lost none.
type session struct{ conn *pgx.Conn }

func (s session) Conn() *pgx.Conn { return s.conn }

func (s session) VerifyLocks(rows pgx.Rows) error {
	rows.Close()
	return rows.Err()
}

// cpuTime is what the server's process has used, in its own and the kernel's code.
func cpuTime(b *testing.B, conn *pgx.Conn) time.Duration {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", conn.PgConn().PID()))
	if err != nil {
		b.Fatal(err)
	}
	fields := strings.Fields(string(raw[strings.LastIndex(string(raw), ")"):]))
	const ticks = 100 // a second
	var sum int
	for _, field := range fields[12:14] {
		n, err := strconv.Atoi(field)
		if err != nil {
			b.Fatal(err)
		}
		sum += n
	}
	return time.Duration(sum) * time.Second / ticks
}
