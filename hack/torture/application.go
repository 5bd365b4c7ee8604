package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"shardedjob.dev/hack/torture/schedule"
)

// useTable is the application: it updates, deletes, inserts and finishes rows until ctx ends.
func (j *job) useTable(ctx context.Context) {
	random := rand.New(rand.NewPCG(j.seed, j.group.Hash()))
	for ctx.Err() == nil {
		j.trouble(ctx, func(ctx context.Context, conn *pgx.Conn) error {
			for ctx.Err() == nil {
				if err := j.useRow(ctx, conn, random); err != nil {
					return err
				}
				pause(ctx, time.Duration(random.Int64N(int64(40*time.Millisecond))))
			}
			return nil
		})
		pause(ctx, 200*time.Millisecond)
	}
}

// Statements of the application; each finds a row at or after a key.
const (
	update = "UPDATE t SET note = 'app' WHERE id = (SELECT id FROM t WHERE id >= key($1) ORDER BY id LIMIT 1)"
	// finish does the row's work, so that no worker may do it any more.
	finish = "UPDATE t SET done = true, app = true WHERE id = (SELECT id FROM t WHERE id >= key($1) AND NOT done ORDER BY id LIMIT 1) AND NOT done"
	remove = `WITH gone AS (DELETE FROM t WHERE id = (SELECT id FROM t WHERE id >= key($1) ORDER BY id LIMIT 1) RETURNING id, late, outside, app, n)
		INSERT INTO departure SELECT id, late, outside, app, n FROM gone`
	insert = "WITH come AS (INSERT INTO t (id) VALUES (key($1)) RETURNING id) INSERT INTO arrival SELECT id FROM come"
)

// useRow does one thing with one row.
func (j *job) useRow(ctx context.Context, conn *pgx.Conn, random *rand.Rand) error {
	statement, key := update, j.anyKey(random)
	switch chance := random.IntN(100); {
	case chance < 10:
		statement = remove
	case chance < 25:
		return j.insert(ctx, conn)
	case chance < 40 && j.lane.way.pending != "":
		statement = finish
	}
	_, err := conn.Exec(ctx, statement, key)
	return err
}

// anyKey is the number of a key among those that were there at the start.
func (j *job) anyKey(random *rand.Rand) int64 {
	i := int64(random.IntN(j.table.rows) - j.table.rows/2)
	if i >= 0 {
		return far + 4*i
	}
	return 4 * i
}

// insert adds a row with a new key, above all others or in a gap, unless it is time for the job to come to an end.
func (j *job) insert(ctx context.Context, conn *pgx.Conn) error {
	if j.quiet.Load() {
		return nil
	}
	var q int64
	if err := conn.QueryRow(ctx, "SELECT nextval('late_keys')").Scan(&q); err != nil {
		return err
	}
	key, ok := j.table.lateKey(q)
	if !ok {
		return nil
	}
	_, err := conn.Exec(ctx, insert, key)
	return err
}

// lateKey is the number of the q-th key, from 1, of those that are inserted later, as long as there are any.
func (t table) lateKey(q int64) (key int64, ok bool) {
	const prime = 1_000_003 // so that the gaps are filled in no order, and none twice
	rows := int64(t.rows)
	switch i := q * prime % rows; {
	case q >= rows:
		return 0, false
	case q%3 == 0:
		return beyond + q, true
	case i < rows/2:
		return 4*(i-rows/2) + 2, true
	default:
		return far + 4*(i-rows/2) + 2, true
	}
}

// lockRows keeps some rows locked.
func (j *job) lockRows(ctx context.Context, f schedule.Fault, random *rand.Rand) bool {
	return j.transaction(ctx, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "SELECT FROM t WHERE id >= key($1) ORDER BY id LIMIT 50 FOR UPDATE", j.anyKey(random))
		j.hold(f.Hold)
		return err
	})
}

// lockTable keeps writers out.
func (j *job) lockTable(ctx context.Context, f schedule.Fault) bool {
	return j.transaction(ctx, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "LOCK TABLE t IN SHARE MODE")
		if err == nil {
			j.hold(f.Hold)
		}
		return err
	})
}

// deadlock takes first what a batch takes last, and then the rows that batches are likely to have.
func (j *job) deadlock(ctx context.Context, f schedule.Fault, random *rand.Rand) bool {
	return j.transaction(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "UPDATE side SET hits = hits"); err != nil {
			return err
		}
		j.hold(f.Hold)
		_, err := tx.Exec(ctx, "UPDATE t SET note = 'app' WHERE id IN (SELECT id FROM t WHERE n = 0 AND NOT app ORDER BY id LIMIT $1)", 100+random.IntN(2000))
		return err
	})
}

// lateCommit inserts rows, some in a savepoint, and commits them late, or not at all.
func (j *job) lateCommit(ctx context.Context, f schedule.Fault, random *rand.Rand) bool {
	return j.transaction(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if err := j.insertSome(ctx, tx, random); err != nil {
			return err
		}
		j.hold(f.Hold)
		if random.IntN(8) == 0 {
			return tx.Rollback(ctx)
		}
		return nil
	})
}

func (j *job) insertSome(ctx context.Context, tx pgx.Tx, random *rand.Rand) error {
	for range 1 + random.IntN(10) {
		savepoint, err := tx.Begin(ctx)
		if err == nil {
			err = j.insert(ctx, savepoint.Conn())
		}
		if err == nil {
			err = savepoint.Commit(ctx)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// prepare leaves inserted rows in a prepared transaction, which no session belongs to and a restart does not end.
func (j *job) prepare(ctx context.Context, f schedule.Fault, random *rand.Rand) bool {
	name := fmt.Sprintf("%s %d", j.name, f.Seed)
	done := j.transaction(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if err := j.insertSome(ctx, tx, random); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "PREPARE TRANSACTION '"+name+"'")
		return err
	})
	j.hold(f.Hold)
	err := j.persist(ctx, "commit the prepared transaction "+name, func(ctx context.Context) error {
		return j.onConnection(ctx, func(ctx context.Context, conn *pgx.Conn) error {
			var there bool
			err := conn.QueryRow(ctx, "SELECT count(*) > 0 FROM pg_prepared_xacts WHERE gid = $1", name).Scan(&there)
			if err == nil && there {
				_, err = conn.Exec(ctx, "COMMIT PREPARED '"+name+"'")
			}
			return err
		})
	})
	if err != nil && ctx.Err() == nil {
		j.wrong("job %s: %v", j.name, err)
	}
	return done
}

// buildIndex builds and drops an index without keeping writers out, which cannot be done for all partitions at once.
func (j *job) buildIndex(ctx context.Context) bool {
	if j.table.parted {
		return false
	}
	return j.run(ctx, "CREATE INDEX CONCURRENTLY IF NOT EXISTS notes ON t (note)") && j.run(ctx, "DROP INDEX CONCURRENTLY IF EXISTS notes")
}
