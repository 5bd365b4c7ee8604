package worker

import (
	"context"
	"fmt"
	"time"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/worker/coordinator"
	"shardedjob.dev/worker/cursor"
	"shardedjob.dev/worker/fence"
	"shardedjob.dev/worker/shard"
)

// countTimeout bounds an exact count of the pending rows; beyond it the planner's estimate does.
const countTimeout = 3 * time.Second

// table answers the coordinator's questions about a checked table. Where the rows do not remember what is done, the
// group's tables do.
type table struct {
	shard.Table
	group string
}

// remembers says whether the rows themselves remember that they are done.
func (t *table) remembers() bool { return t.Pending != "" }

// By is what of a key picks its slot.
func (t *table) By() v1alpha1.ShardBy { return t.Table.By }

// Completed is when nothing was left to do.
func (t *table) Completed(ctx context.Context, s *fence.Session, plan v1alpha1.Plan) (*time.Time, error) {
	conn := s.Conn()
	if !t.remembers() {
		at, problem, err := cursor.Complete(ctx, conn, cursorPlan(plan), t.Table)
		if problem != nil {
			err = fmt.Errorf("%s", problem.Message)
		}
		return at, err
	}
	// The check may have to read the whole table; its context bounds it.
	if _, err := conn.Exec(ctx, "SET statement_timeout = 0"); err != nil {
		return nil, fmt.Errorf("lift the statement timeout: %w", err)
	}
	pending, err := shard.AnyPending(ctx, conn, t.Table)
	if err != nil || pending {
		return nil, err
	}
	// By the server's clock, as with cursors: those of pods may be wrong, each in its way.
	var now time.Time
	if err := conn.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&now); err != nil {
		return nil, fmt.Errorf("read the server's clock: %w", err)
	}
	return &now, nil
}

// CountPending counts or estimates the rows that are pending.
func (t *table) CountPending(ctx context.Context, s *fence.Session, plan v1alpha1.Plan) (int64, error) {
	if !t.remembers() {
		c, err := cursor.Remaining(ctx, s.Conn(), cursorPlan(plan), t.Table, countTimeout)
		return c.Rows, err
	}
	c, err := shard.CountPending(ctx, s.Conn(), t.Table, countTimeout)
	return c.Rows, err
}

// Counts are the rows done and failed as the group's tables know them.
func (t *table) Counts(ctx context.Context, s *fence.Session) (*coordinator.Counts, error) {
	if t.remembers() {
		return nil, nil
	}
	totals, err := cursor.Count(ctx, s.Conn(), t.group)
	if err != nil {
		return nil, err
	}
	return &coordinator.Counts{Processed: totals.Processed, Failed: totals.Exhausted}, nil
}

// Warnings are sentences about the table in so many slots.
func (t *table) Warnings(ctx context.Context, s *fence.Session, slots int32) ([]string, error) {
	var all []string
	if t.Warning != "" {
		all = append(all, t.Warning)
	}
	skew, err := shard.MeasureSkew(ctx, s.Conn(), t.Table, slots)
	if warning := skew.Warning(); warning != "" {
		all = append(all, warning)
	}
	return all, err
}

func cursorPlan(p v1alpha1.Plan) cursor.Plan {
	return cursor.Plan{Group: p.Group, Epoch: p.Epoch, Slots: p.Slots}
}
