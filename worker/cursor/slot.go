package cursor

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"shardedjob.dev/worker/shard"
)

// A Slot is one slot under a plan: where its cursor is, and what older plans have done beyond it. Only who holds the slot's
// lock uses it. Open it anew after ErrCursorMoved, after an unknown outcome of COMMIT, and each time that the slot is taken.
type Slot struct {
	plan   Plan
	table  shard.Table
	number int32

	job    Job
	cursor *shard.Key
	older  []Layer // that cover something beyond the cursor
	window int     // rows of the table searched at a time; 0: all that follow
	narrow int     // windows in a row that held too few rows
}

// Open is step 5: it reads what is done, in statements that begin after Enter has returned. It fails with *StaleError if the
// durable epoch is not the plan's, which Enter would make it.
func Open(ctx context.Context, conn *pgx.Conn, p Plan, t shard.Table, slot int32) (*Slot, error) {
	job, err := readJob(ctx, conn, p.Group, "")
	switch {
	case err != nil:
		return nil, err
	case job == nil || job.scope == nil:
		return nil, fmt.Errorf("open slot %d: %w", slot, ErrCursorMoved)
	case !job.at(p):
		return nil, &StaleError{Epoch: job.Epoch, Slots: job.Slots}
	}
	s := &Slot{plan: p, table: t, number: slot, job: *job}
	err = conn.QueryRow(ctx, "SELECT cursor FROM shardedjob.slot WHERE consumer_group = $1 AND epoch = $2 AND slots = $3 AND slot = $4",
		p.Group, p.Epoch, p.Slots, slot).Scan(&s.cursor)
	if errors.Is(err, pgx.ErrNoRows) {
		err = ErrCursorMoved
	}
	if err != nil {
		return nil, fmt.Errorf("open slot %d: %w", slot, err)
	}
	s.older, err = readLayers(ctx, conn, p.Group, fmt.Sprintf("closed AND cursor IS NOT NULL AND ($2::text IS NULL OR %s > %s)",
		t.KeyValue("cursor"), t.KeyValue("$2")), (*string)(s.cursor))
	return s, wrap(fmt.Sprintf("open slot %d", slot), err)
}

// readLayers reads the rows of table slot that meet a condition; $1 is the group.
func readLayers(ctx context.Context, q shard.Querier, group, condition string, args ...any) ([]Layer, error) {
	rows, err := q.Query(ctx, "SELECT epoch, slots, slot, shard_by, cursor FROM shardedjob.slot WHERE consumer_group = $1 AND "+
		condition+" ORDER BY epoch, slots, slot", append([]any{group}, args...)...)
	if err != nil {
		return nil, err
	}
	var l layers
	var epoch int64
	var slots, slot int32
	var by string
	var cursor *shard.Key
	_, err = pgx.ForEachRow(rows, []any{&epoch, &slots, &slot, &by, &cursor}, func() error {
		l.add(epoch, slots, slot, by, cursor)
		return nil
	})
	return l.all, err
}

// Learn takes over from an earlier opening how many rows can be searched at a time.
func (s *Slot) Learn(earlier *Slot) { s.window, s.narrow = earlier.window, earlier.narrow }

// Job is the group's row as it was read.
func (s *Slot) Job() Job { return s.job }

// AtEnd says that the cursor has reached the horizon: there is no next batch, but there may be failures.
func (s *Slot) AtEnd() bool {
	return s.job.HorizonAt != nil && (s.job.Horizon == nil || s.cursor != nil && *s.cursor == *s.job.Horizon)
}
