// Package cursor remembers, beside the table that is worked, which of its rows are done: in schema shardedjob of the same
// database, so that it moves in the transactions of the effects.
//
// Each slot has a cursor: every row of the slot up to it is done, but for the few that are kept apart because they
// failed or were locked by others ([Failure]). The cursors of one plan form a done-layer; the layers of older plans stay as
// long as they cover rows that the newest one does not, and a reader leaves out what they cover. So the number of slots can change
// at any time. A cursor moves up to the horizon, a key below which no row can appear any more that was being written when
// the job began ([Horizon]).
//
// A worker calls, on its fenced session and in this order: [Prepare] once; [Enter] after it has taken its slot's lock, which is step
// 4 of the entry protocol: the table itself refuses an old plan; [Open], step 5; [Horizon.Step] until it is known; then for each
// batch, in one transaction, [Slot.Next], the user's statement, and [Slot.Advance] as one of the last statements before COMMIT. Failed rows
// come back by [Slot.Due] and [Slot.Take]. [Complete] says when all is done.
//
// What belongs to a group outlives the job, and goes by [Forget] alone.
package cursor

import (
	"errors"
	"fmt"
)

// Plan is what a worker works under.
type Plan struct {
	// Group is the consumer group.
	Group string
	// Epoch and Slots as in v1alpha1.Plan; Slots is at least 1.
	Epoch int64
	Slots int32
}

func (p Plan) String() string { return fmt.Sprintf("epoch %d with %d slots", p.Epoch, p.Slots) }

// A StaleError says that the database has seen a plan that is newer than the worker's: get that one, or one above it.
type StaleError struct {
	// Epoch and Slots that the database has; Slots may be 0.
	Epoch int64
	Slots int32
}

func (e *StaleError) Error() string {
	return fmt.Sprintf("the database has seen epoch %d with %d slots, which is newer", e.Epoch, e.Slots)
}

// ErrCursorMoved means that the slot's cursor, or a failed row, is not where this worker left it: somebody else worked the slot,
// a newer plan has closed its layer, or the progress was forgotten. Roll back, and enter anew.
var ErrCursorMoved = errors.New("the cursor is not where this worker left it")
