package cursor

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/worker/shard"
)

// Enter is step 4 of the entry protocol: the durable epoch moves up to p, or stays there, for good before any row is read. It
// fails with *StaleError where the database has seen a newer plan. A problem says that the group's progress does not fit the
// table. The session holds the slot's lock and is in no transaction.
//
// Where the epoch moves, the same short transaction closes the layers of older plans, so that no cursor of theirs can move
// any more, and makes the new one. It is not one statement: a statement that waits for another's row goes on with the rest as it
// was before the wait, and would miss what the other did.
func Enter(ctx context.Context, conn *pgx.Conn, p Plan, t shard.Table) (*v1alpha1.Problem, error) {
	job, err := readJob(ctx, conn, p.Group, "")
	if err != nil {
		return nil, err
	}
	if job != nil {
		found, now, err := job.judge(ctx, conn, p, t)
		if found != nil || err != nil {
			return found, err
		}
		if job.at(p) && job.scope != nil && job.storage == now.storage {
			return nil, nil
		}
	}
	var found *v1alpha1.Problem
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		found, err = enter(ctx, tx, p, t)
		return err
	})
	return found, wrap("move the durable epoch", err)
}

// judge says why the plan may not go on with the job.
func (j *Job) judge(ctx context.Context, q shard.Querier, p Plan, t shard.Table) (*v1alpha1.Problem, incarnation, error) {
	found, err := j.admit(p, t)
	if found != nil || err != nil {
		return found, incarnation{}, err
	}
	if j.scope == nil {
		now, err := readIncarnation(ctx, q, t)
		return nil, now, err
	}
	return j.check(ctx, q, p, t)
}

// enter holds the row of the group, so that entries come one after the other and each sees what the one before did.
func enter(ctx context.Context, tx pgx.Tx, p Plan, t shard.Table) (*v1alpha1.Problem, error) {
	if _, err := tx.Exec(ctx, "INSERT INTO shardedjob.job (consumer_group, format, epoch, slots) VALUES ($1, $2, 0, 0) ON CONFLICT DO NOTHING",
		p.Group, format); err != nil {
		return nil, err
	}
	job, err := readJob(ctx, tx, p.Group, " FOR UPDATE")
	if err != nil {
		return nil, err
	}
	if job == nil { // somebody deletes it at this moment
		return nil, ErrCursorMoved
	}
	found, now, err := job.judge(ctx, tx, p, t)
	if found != nil || err != nil {
		return found, err
	}
	if !job.at(p) || job.scope == nil {
		if err := newLayer(ctx, tx, p, t); err != nil {
			return nil, err
		}
	}
	_, err = tx.Exec(ctx, `
		UPDATE shardedjob.job
		   SET epoch = $2, slots = $3, table_oid = $4, table_name = $5, key_column = $6, key_type = $7, in_scope = $8,
		       storage = $9, sequence_value = greatest(sequence_value, $10)
		 WHERE consumer_group = $1`,
		p.Group, p.Epoch, p.Slots, t.OID, t.Quoted(), t.Key, t.KeyType, t.Where, now.storage, now.sequence)
	return nil, err
}

// newLayer closes the layers that are there and makes the plan's. A slot of it begins at the highest lower bound of all
// layers, up to which every row is done, or where a layer of the same slots had come, if that is further: the new one
// stands for both then. What of the old ones covers nothing beyond is deleted, row by row: up to the lowest cursor of the
// new layer everything is covered by that alone. A slot without a cursor has nothing done, and is what makes the lowest.
func newLayer(ctx context.Context, tx pgx.Tx, p Plan, t shard.Table) error {
	// This waits for a batch that is about to commit under an older plan, and makes any other fail.
	if _, err := tx.Exec(ctx, "UPDATE shardedjob.slot SET closed = true WHERE consumer_group = $1 AND NOT closed", p.Group); err != nil {
		return err
	}
	const lowest = "(array_agg(cursor ORDER BY %[1]s))[1] AS cursor FROM shardedjob.slot WHERE consumer_group = $1"
	value := t.KeyValue("cursor")
	if _, err := tx.Exec(ctx, fmt.Sprintf(`
		WITH bound AS (
			SELECT `+lowest+` GROUP BY epoch, slots HAVING count(cursor) = slots ORDER BY %[2]s DESC LIMIT 1
		)
		INSERT INTO shardedjob.slot (consumer_group, epoch, slots, slot, shard_by, cursor)
		SELECT $1, $2, $3, k, $4,
		       (SELECT cursor FROM (SELECT cursor FROM bound
		                            UNION ALL
		                            SELECT cursor FROM shardedjob.slot
		                             WHERE consumer_group = $1 AND slots = $3 AND shard_by = $4 AND slot = k AND cursor IS NOT NULL) had
		         ORDER BY %[1]s DESC LIMIT 1)
		  FROM generate_series(0, $3::integer - 1) k`, value, t.KeyValue("(array_agg(cursor ORDER BY "+value+"))[1]")),
		p.Group, p.Epoch, p.Slots, by(t)); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, fmt.Sprintf(`
		WITH least AS (
			SELECT `+lowest+` AND epoch = $2 AND slots = $3 HAVING count(cursor) = $3
		), dropped AS (
			DELETE FROM shardedjob.slot
			 WHERE consumer_group = $1 AND closed
			   AND (cursor IS NULL OR slots = $3 AND shard_by = $4 OR %[1]s <= (SELECT %[1]s FROM least))
			RETURNING processed, gone
		)
		UPDATE shardedjob.job
		   SET processed = processed + (SELECT coalesce(sum(processed), 0) FROM dropped),
		       gone = gone + (SELECT coalesce(sum(gone), 0) FROM dropped)
		 WHERE consumer_group = $1`, value), p.Group, p.Epoch, p.Slots, by(t))
	return err
}

// by is what picks slots, as it is written.
func by(t shard.Table) string {
	if t.By == v1alpha1.ShardByHash {
		return string(v1alpha1.ShardByHash)
	}
	return string(v1alpha1.ShardByValue)
}
