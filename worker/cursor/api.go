package cursor

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/worker/shard"
)

var errSoon = errors.New("not built yet")

// Prepare makes the schema and its tables where they are missing. It returns a problem if the role may not, or lacks a
// privilege on them. It needs and takes no CREATE privilege when all is there.
func Prepare(ctx context.Context, conn *pgx.Conn) (*v1alpha1.Problem, error) { return nil, errSoon }

// Enter is step 4 of the entry protocol: the durable epoch moves up to p, or stays there, for good before any row is read. It fails with
// *StaleError where the database has seen a newer plan. A problem says that the group's progress was made with another table, key or where.
// The connection must not be in a transaction, and holds the slot's lock.
func Enter(ctx context.Context, conn *pgx.Conn, p Plan, t shard.Table) (*v1alpha1.Problem, error) {
	return nil, errSoon
}

// ReadJob reads the row of a group; nil: there is none, or no schema.
func ReadJob(ctx context.Context, q shard.Querier, group string) (*Job, error) { return nil, errSoon }

// A Slot is one slot under a plan: where its cursor is, and what older plans have done beyond it. Only who holds the slot's lock uses
// it. Open it anew after ErrCursorMoved, an unknown outcome of COMMIT, and each time that the slot is taken.
type Slot struct{}

// Open is step 5: it reads what is done. Call it after Enter, in a new statement. It fails with *StaleError if the plan is not the database's.
func Open(ctx context.Context, conn *pgx.Conn, p Plan, t shard.Table, slot int32) (*Slot, error) {
	return nil, errSoon
}

// Job is the group's row as it was read.
func (s *Slot) Job() Job { return Job{} }

// AtEnd says that the cursor has reached the horizon: there is no next batch, but there may be failures.
func (s *Slot) AtEnd() bool { return false }

// A Selection finds rows and locks them.
type Selection struct{}

// Queue adds the selection to a round trip in which a transaction is open, and stores what it finds when its results are read.
func (s Selection) Queue(b *pgx.Batch, into *Batch) {}

// Next selects the next rows of the slot after the cursor, at most limit. A batch that fails is split by asking for fewer: the
// same rows come again as long as the cursor stays. Without Keys and Locked nothing was found up to End: move the cursor there.
func (s *Slot) Next(limit int) Selection { return Selection{} }

// TooSlow takes a timeout of Next as a reason to search fewer rows at a time, and says whether that is possible.
func (s *Slot) TooSlow() bool { return false }

// Take selects rows by their keys: failures that are due.
func (s *Slot) Take(keys []shard.Key) Selection { return Selection{} }

// Move is the move that a batch from Next or Take makes when all its keys are done.
func (b Batch) Move() Move { return Move{} }

// AdvanceSQL makes a move. It can be prepared; its result is for Advance.Verify.
const AdvanceSQL = ""

// An Advance is one move of a slot's cursor, to be made in the transaction of the effects.
type Advance struct{}

// Advance prepares a move from where the cursor is.
func (s *Slot) Advance(m Move) *Advance { return nil }

// Params are the parameters of AdvanceSQL, in text format.
func (a *Advance) Params() [][]byte { return nil }

// Verify reads the result of AdvanceSQL to its end and fails with ErrCursorMoved if it did not match.
func (a *Advance) Verify(rows pgx.Rows) error { return errSoon }

// Queue adds the move to a round trip; ErrCursorMoved comes out of the batch's Close.
func (a *Advance) Queue(b *pgx.Batch) {}

// Committed notes in the Slot that the transaction was committed.
func (a *Advance) Committed() {}

// Due are failures of the slot whose next attempt is due, those that have waited longest first, at most limit.
func (s *Slot) Due(ctx context.Context, q shard.Querier, limit int) ([]Failure, error) {
	return nil, errSoon
}

// Exhausted are failures of the slot that are not tried again, at most limit, after a key of an earlier call (nil: from the
// first). Somebody may have deleted the rows: Take says which are gone.
func (s *Slot) Exhausted(ctx context.Context, q shard.Querier, after *shard.Key, limit int) ([]Failure, error) {
	return nil, errSoon
}

// Backlog counts the slot's failures.
func (s *Slot) Backlog(ctx context.Context, q shard.Querier) (Backlog, error) {
	return Backlog{}, errSoon
}

// Retry gives all failures of the slot another chance, with no attempt counted, as after a change of the statement.
func (s *Slot) Retry(ctx context.Context, q shard.Querier) error { return errSoon }

// A Horizon is on its way to be found. It belongs to one session.
type Horizon struct{}

// NewHorizon begins to look for the horizon of a plan.
func NewHorizon(p Plan, t shard.Table) *Horizon { return nil }

// Step looks once, outside any transaction, whether those who were writing are done. Nil, nil: the horizon is in the database, and
// the slot is to be opened anew. Else call it again after a pause. It blocks nobody.
func (h *Horizon) Step(ctx context.Context, conn *pgx.Conn) (*Wait, error) { return nil, errSoon }

// Check says whether the table is still the one that the progress was made on: it returns a problem if it was truncated.
func Check(ctx context.Context, conn *pgx.Conn, p Plan, t shard.Table) (*v1alpha1.Problem, error) {
	return nil, errSoon
}

// Complete notes that everything is done, if it is, and returns since when; nil: it is not. Once set, the time stays.
func Complete(ctx context.Context, conn *pgx.Conn, p Plan, t shard.Table) (*time.Time, *v1alpha1.Problem, error) {
	return nil, nil, errSoon
}

// Count reads the totals of a group.
func Count(ctx context.Context, q shard.Querier, group string) (Totals, error) {
	return Totals{}, errSoon
}

// Remaining counts the rows in scope up to the horizon that are not done, exactly if that takes no longer than timeout, else about.
func Remaining(ctx context.Context, conn *pgx.Conn, p Plan, t shard.Table, timeout time.Duration) (shard.Count, error) {
	return shard.Count{}, errSoon
}

// Forget drops the progress of a group, in one transaction, by a worker that has entered the fence under p. The durable epoch stays, one
// above p's, so that nobody of p starts anew. It does nothing if the progress was already forgotten so, or if there is none.
func Forget(ctx context.Context, conn *pgx.Conn, p Plan) error { return errSoon }
