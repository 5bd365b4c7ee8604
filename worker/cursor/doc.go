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
	"time"

	"shardedjob.dev/worker/shard"
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

// Job is the row of a group.
type Job struct {
	// Epoch and Slots of the newest plan that anybody entered.
	Epoch int64
	Slots int32
	// Horizon is the greatest key to be worked; nil with HorizonAt set: the table was empty.
	Horizon *shard.Key
	// HorizonAt is when the horizon was found; nil: not yet.
	HorizonAt *time.Time
	// CompletedAt is when everything was done; nil: not yet.
	CompletedAt *time.Time
}

// A Batch is what a selection found.
type Batch struct {
	// Keys are locked and to be worked, ascending.
	Keys []shard.Key
	// Locked are keys whose rows another session has locked, or has just deleted.
	Locked []shard.Key
	// Gone are keys that were asked for, or just read, whose rows are deleted, moved to another key, or no longer in scope.
	Gone []shard.Key
	// End is the key up to which the slot was searched: where the cursor is once Keys are done. Nil for Slot.Take.
	End *shard.Key
}

// A Move is what a transaction changes in what is remembered of a slot.
type Move struct {
	// To is the new cursor; nil: it stays.
	To *shard.Key
	// Processed and Gone are the rows that this transaction has done and found gone.
	Processed, Gone int
	// Failed are rows that stay behind the cursor, to be tried again; with attempts 0 those that others have locked.
	Failed []Failure
	// Resolved are keys that were remembered as failed and are not any more.
	Resolved []shard.Key
}

// A Failure is a row behind the cursor that is not done.
type Failure struct {
	Key shard.Key
	// Attempts that failed; 0: locked by another session when the cursor passed.
	Attempts int32
	// Reason is a clause for a person, without the content of the row.
	Reason string
	// Exhausted rows are not tried again by themselves.
	Exhausted bool
	// Due is the time to wait until the next attempt, by the database's clock.
	Due time.Duration
}

// Backlog counts the failures of a slot.
type Backlog struct {
	// Locked were locked by others and never tried; Waiting failed and are tried again; Exhausted are not.
	Locked, Waiting, Exhausted int64
	// NextDue is the time to wait until the next attempt is due; nil: there is none.
	NextDue *time.Duration
	// Example is a failed row, an exhausted one if there is one; nil: none.
	Example *Failure
}

// Totals counts over all of a group, from the beginning.
type Totals struct {
	// Processed rows are done; Gone rows had vanished before they could be.
	Processed, Gone int64
	// Locked, Waiting and Exhausted as in Backlog.
	Locked, Waiting, Exhausted int64
}

// A Wait says whom a horizon waits for.
type Wait struct {
	// Transactions that may yet commit rows below the horizon.
	Transactions int
	// Message is a sentence for people: "waiting for 1 transaction, pid 4711, open for 62 s".
	Message string
}
