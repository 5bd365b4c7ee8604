package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"

	"shardedjob.dev/hack/torture/schedule"
)

// fates reads what became of each row. What is owed of the late ones is put in.
const fates = `
SELECT id::text, coalesce(t.late, d.late, true), coalesce(t.outside, d.outside, false), t.late IS NOT NULL, d.late IS NOT NULL, coalesce(t.app, d.app, false),
	coalesce(NOT coalesce(t.late, d.late) OR owed, false), coalesce(t.n, d.n, 0), coalesce(l.noted, 0)
  FROM t FULL JOIN departure d USING (id) FULL JOIN (SELECT id, count(*) AS noted FROM ledger GROUP BY id) l USING (id)
  LEFT JOIN (SELECT id, %s AS owed
               FROM (SELECT id, pg_xact_commit_timestamp(xmin) AS committed FROM arrival) a, (SELECT $1::text AS name, $2::timestamptz AS complete) j) o USING (id)`

const commits = `
SELECT coalesce(slot, -1), coalesce(slots, -1), coalesce(epoch, -1), pid, rows, pg_xact_commit_timestamp(xmin)
  FROM batch ORDER BY 6, id`

// strays counts the rows that were processed in a slot that they do not belong to.
const strays = "SELECT count(*) FROM ledger l JOIN batch b ON b.id = l.batch WHERE b.slot <> %s"

// maxExamples is how many keys of each verdict are told.
const maxExamples = 5

// audit judges a job whose workers have stopped.
func (j *job) audit(ctx context.Context) error {
	a := account{jobs: 1, wrong: map[verdict]int{}, takeovers: map[schedule.Kind][]time.Duration{}}
	var done []commit
	examples := map[verdict][]string{}
	err := j.persist(ctx, "audit job "+j.name, func(ctx context.Context) error {
		return j.onConnection(ctx, func(ctx context.Context, conn *pgx.Conn) error {
			a.rows, a.late, a.processed = 0, 0, 0
			clear(a.wrong)
			clear(examples)
			if _, err := conn.Exec(ctx, "SET search_path = "+j.table.schema); err != nil {
				return err
			}
			var err error
			if done, err = readCommits(ctx, conn); err != nil {
				return err
			}
			var n int
			if err := conn.QueryRow(ctx, fmt.Sprintf(strays, j.table.shard().SlotOf("l.id", "b.slots"))).Scan(&n); err != nil {
				return err
			}
			a.find(strayed, n)
			return j.readFates(ctx, conn, func(f fate) {
				if f.late {
					a.late++
				} else {
					a.rows++
				}
				a.processed += f.noted
				if v := judge(f); v != "" {
					a.find(v, 1)
					if len(examples[v]) < maxExamples {
						examples[v] = append(examples[v], f.key)
					}
				}
			})
		})
	})
	if err != nil {
		return err
	}
	a.batches = len(done)
	a.find(unfenced, countUnfenced(done))
	if j.lane.way.pending == "" {
		a.find(outdated, wentBack(done)) // with pending nobody remembers plans but the sessions that are there
	}
	a.job, a.slot = pauses(done, a.rows/20)
	for _, m := range j.marks {
		if d, ok := takeover(m, done); ok {
			a.takeovers[m.kind] = append(a.takeovers[m.kind], d)
		}
	}
	if want := j.table.total(); a.rows != want {
		j.wrong("job %s: %d rows were there at the start, and %d are accounted for", j.name, want, a.rows)
	}
	for _, v := range a.verdicts() {
		j.wrong("job %s: %d are %s, among them %v", j.name, a.wrong[v], v, examples[v])
	}
	j.lane.mu.Lock()
	j.lane.sum.add(a)
	j.lane.mu.Unlock()
	j.say("Job %s: %s, %d rows and %d late ones, %d processed in %d batches under %d plans", j.name, j.table, a.rows, a.late, a.processed, a.batches, len(j.history))
	j.readLogs()
	return j.checkLeftovers(ctx, j)
}

func readCommits(ctx context.Context, conn *pgx.Conn) ([]commit, error) {
	rows, err := conn.Query(ctx, commits)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (c commit, err error) {
		return c, row.Scan(&c.slot, &c.slots, &c.epoch, &c.pid, &c.rows, &c.at)
	})
}

func (j *job) readFates(ctx context.Context, conn *pgx.Conn, see func(fate)) error {
	var complete time.Time
	if at := j.lastReport().CompleteTime; at != nil {
		complete = at.Time
	}
	rows, err := conn.Query(ctx, fmt.Sprintf(fates, j.lane.way.owed), j.group.Name(), complete)
	if err != nil {
		return err
	}
	var f fate
	_, err = pgx.ForEachRow(rows, []any{&f.key, &f.late, &f.outside, &f.there, &f.departed, &f.app, &f.owed, &f.n, &f.noted}, func() error {
		see(f)
		return nil
	})
	return err
}

// readLogs looks in the workers' logs for what must never be there.
func (j *job) readLogs() {
	logs, err := filepath.Glob(filepath.Join(j.dir, "worker-*.log"))
	if err != nil {
		j.wrong("job %s: %v", j.name, err)
	}
	for _, name := range logs {
		text, err := os.ReadFile(name)
		if err != nil {
			j.wrong("job %s: %v", j.name, err)
		}
		for _, cry := range []string{"panic:", "fatal error:", "WARNING: DATA RACE"} {
			if bytes.Contains(text, []byte(cry)) {
				j.wrong("job %s: there is %q in %s", j.name, cry, name)
			}
		}
	}
}

// leftovers lists what workers and application may leave behind: sessions whose name is like $1, advisory locks and prepared
// transactions, of the lock class $2 and with names like $3, or all.
const leftovers = `
SELECT format('session %s, %s', pid, application_name) FROM pg_stat_activity WHERE application_name LIKE $1
UNION ALL
SELECT format('advisory lock (%s, %s) of session %s', classid, objid, pid) FROM pg_locks WHERE locktype = 'advisory' AND ($2::bigint IS NULL OR classid::bigint = $2)
UNION ALL
SELECT format('prepared transaction %s', gid) FROM pg_prepared_xacts WHERE gid LIKE $3`

// checkLeftovers waits until nothing is left of the job, or of all if it is nil.
func (s *scene) checkLeftovers(ctx context.Context, j *job) error {
	what, sessions, prepared, class := "the run", "sj:%", "%", (*int64)(nil)
	if j != nil {
		class = new(int64)
		*class = int64(uint32(j.group.Class()))
		what, sessions, prepared = "job "+j.name, j.sessions()+"%", j.name+" %"
	}
	began := time.Now()
	for {
		var left []string
		err := s.persist(ctx, "look for what is left of "+what, func(ctx context.Context) error {
			return s.onConnection(ctx, func(ctx context.Context, conn *pgx.Conn) error {
				rows, err := conn.Query(ctx, leftovers, sessions, class, prepared)
				if err != nil {
					return err
				}
				left, err = pgx.CollectRows(rows, pgx.RowTo[string])
				return err
			})
		})
		if err != nil {
			return err
		}
		if len(left) == 0 {
			return nil
		}
		if time.Since(began) > s.leftoverPatience {
			s.wrong("%s has left %q", what, left)
			return nil
		}
		pause(ctx, 200*time.Millisecond)
	}
}
