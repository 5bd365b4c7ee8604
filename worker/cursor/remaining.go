package cursor

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"shardedjob.dev/worker/shard"
)

// samples is how many cursors an estimate looks at: each stands for a part of the slots.
const samples = 16

// Remaining counts the rows in scope up to the horizon that are not done, exactly if that takes no longer than timeout, else as the
// planner guesses. As long as the horizon is not known it counts the whole table. The connection must not be in a transaction.
func Remaining(ctx context.Context, conn *pgx.Conn, p Plan, t shard.Table, timeout time.Duration) (shard.Count, error) {
	job, err := readJob(ctx, conn, p.Group, "")
	if err != nil {
		return shard.Count{}, err
	}
	if job == nil || job.HorizonAt != nil && job.Horizon == nil {
		return shard.Count{}, nil
	}
	done, err := readLayers(ctx, conn, p.Group, "cursor IS NOT NULL")
	if err != nil {
		return shard.Count{}, wrap("read what is done", err)
	}
	failed, err := Count(ctx, conn, p.Group)
	if err != nil {
		return shard.Count{}, err
	}
	var args arguments
	from := upTo(job, t, &args)
	for _, layer := range done {
		from += " AND " + layer.open(t, &args)
	}
	rows, inTime, err := shard.CountWithin(ctx, conn, timeout, from, args...)
	if err == nil && !inTime {
		rows, err = guess(ctx, conn, p, t, job)
	}
	return shard.Count{Rows: rows + failed.Locked + failed.Waiting + failed.Exhausted, Estimate: !inTime}, err
}

// upTo selects the rows in scope up to the horizon.
func upTo(job *Job, t shard.Table, args *arguments) string {
	from := fmt.Sprintf("FROM %s WHERE %s", t.Quoted(), t.Scope())
	if job.Horizon != nil {
		from += fmt.Sprintf(" AND %s <= %s", t.Order(t.Column()), t.KeyValue(args.key(job.Horizon)))
	}
	return from
}

// guess adds up what the planner thinks is behind the cursors of the newest layer. It knows nothing of slots, whose rows are
// thought to be spread evenly, and older layers are left out.
func guess(ctx context.Context, conn *pgx.Conn, p Plan, t shard.Table, job *Job) (int64, error) {
	rows, err := conn.Query(ctx, fmt.Sprintf(`
		SELECT (array_agg(cursor ORDER BY %[1]s NULLS FIRST))[(count(*) + 1) / 2], count(*)
		  FROM (SELECT cursor, ntile(%[2]d) OVER (ORDER BY %[1]s NULLS FIRST) AS part
		          FROM shardedjob.slot WHERE consumer_group = $1 AND epoch = $2 AND slots = $3) s
		 GROUP BY part`, t.KeyValue("cursor"), samples), p.Group, p.Epoch, p.Slots)
	if err != nil {
		return 0, wrap("read the cursors", err)
	}
	type part struct {
		Cursor *shard.Key
		Slots  int64
	}
	parts, err := pgx.CollectRows(rows, pgx.RowToStructByPos[part])
	if err != nil {
		return 0, wrap("read the cursors", err)
	}
	var sum, slots int64
	for _, part := range parts {
		var args arguments
		from := upTo(job, t, &args)
		if part.Cursor != nil {
			from += fmt.Sprintf(" AND %s > %s", t.Order(t.Column()), t.KeyValue(args.key(part.Cursor)))
		}
		guessed, err := shard.Estimate(ctx, conn, from, args...)
		if err != nil {
			return 0, err
		}
		sum, slots = sum+guessed*part.Slots, slots+part.Slots
	}
	return sum / max(slots, 1), nil
}
