package cursor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/worker/shard"
)

// Complete notes that everything is done, if it is, and returns since when; nil: it is not. Everything is done when all cursors of the
// plan are at the horizon, or the table was empty, and no row is remembered as failed. Once set, the time stays, also for a later job of the
// group. A problem is one that Check finds; it fails as Check does. The connection must not be in a transaction.
func Complete(ctx context.Context, conn *pgx.Conn, p Plan, t shard.Table) (*time.Time, *v1alpha1.Problem, error) {
	problem, err := Check(ctx, conn, p, t)
	if problem != nil || err != nil {
		return nil, problem, err
	}
	// A slot without a row, or whose cursor is NULL, is not among those that are counted.
	if _, err := conn.Exec(ctx, fmt.Sprintf(`
		UPDATE shardedjob.job j SET completed_at = now()
		 WHERE consumer_group = $1 AND epoch = $2 AND slots = $3 AND completed_at IS NULL AND horizon_at IS NOT NULL
		   AND (horizon IS NULL
		        OR slots = (SELECT count(*) FROM shardedjob.slot s
		                     WHERE s.consumer_group = $1 AND s.epoch = $2 AND s.slots = $3 AND %s >= %s))
		   AND NOT EXISTS (SELECT FROM shardedjob.row_failure f WHERE f.consumer_group = $1)`,
		t.KeyValue("s.cursor"), t.KeyValue("j.horizon")), p.Group, p.Epoch, p.Slots); err != nil {
		return nil, nil, wrap("complete the job", err)
	}
	job, err := readJob(ctx, conn, p.Group, "")
	if err != nil || job == nil {
		return nil, nil, err
	}
	return job.CompletedAt, nil, nil
}

// Totals counts over all of a group, from the beginning.
type Totals struct {
	// Processed rows are done; Gone rows had vanished before they could be.
	Processed, Gone int64
	// Locked, Waiting and Exhausted as in Backlog.
	Locked, Waiting, Exhausted int64
}

// Count reads the totals of a group.
func Count(ctx context.Context, q shard.Querier, group string) (t Totals, err error) {
	err = q.QueryRow(ctx, `
		SELECT j.processed + s.processed, j.gone + s.gone, f.*
		  FROM shardedjob.job j,
		       (SELECT coalesce(sum(processed), 0)::bigint AS processed, coalesce(sum(gone), 0)::bigint AS gone
		          FROM shardedjob.slot WHERE consumer_group = $1) s,
		       (SELECT `+counting+` FROM shardedjob.row_failure WHERE consumer_group = $1) f
		 WHERE j.consumer_group = $1`, group).Scan(&t.Processed, &t.Gone, &t.Locked, &t.Waiting, &t.Exhausted)
	if errors.Is(err, pgx.ErrNoRows) {
		return Totals{}, nil
	}
	return t, wrap("count what is done", err)
}

// Forget drops the progress of a group, in one transaction, by a worker that has entered the fence under p. The durable epoch stays,
// one above p's and without slots: nobody of p starts anew, a later job does, above it. It does nothing if the progress was
// already forgotten so, or if there is none. It fails with *StaleError where the database has seen a newer plan.
func Forget(ctx context.Context, conn *pgx.Conn, p Plan) error {
	if job, err := ReadJob(ctx, conn, p.Group); err != nil || job == nil {
		return err
	}
	err := pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		job, err := readJob(ctx, tx, p.Group, " FOR UPDATE")
		switch {
		case err != nil || job == nil:
			return err
		case job.scope == nil && job.at(Plan{Epoch: p.Epoch + 1}):
			return nil
		case job.Epoch > p.Epoch || job.Epoch == p.Epoch && job.Slots > p.Slots:
			return &StaleError{Epoch: job.Epoch, Slots: job.Slots}
		}
		for _, sql := range []string{
			"DELETE FROM shardedjob.slot WHERE consumer_group = $1",
			"DELETE FROM shardedjob.row_failure WHERE consumer_group = $1",
		} {
			if _, err := tx.Exec(ctx, sql, p.Group); err != nil {
				return err
			}
		}
		_, err = tx.Exec(ctx, `
			UPDATE shardedjob.job
			   SET epoch = $2, slots = 0, table_oid = NULL, table_name = NULL, key_column = NULL, key_type = NULL, in_scope = NULL,
			       storage = NULL, sequence_value = NULL, horizon = NULL, horizon_at = NULL, witnesses = NULL, completed_at = NULL, processed = 0, gone = 0
			 WHERE consumer_group = $1`, p.Group, p.Epoch+1)
		return err
	})
	return wrap("forget the progress", err)
}
