package process

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"shardedjob.dev/worker/cursor"
	"shardedjob.dev/worker/database"
	"shardedjob.dev/worker/shard"
)

const (
	// horizonPause is the pause between two looks whether those who were writing are done.
	horizonPause = time.Second
	// backlogEvery is how often the failed rows of a slot are looked at while there is other work.
	backlogEvery = time.Second
)

// CursorRunner works one slot whose progress is kept in a cursor: in the order of the keys, and the cursor moves in the
// transaction of the effects. A row that fails by itself, or that somebody else has locked, is put on record behind the
// cursor, in the same transaction in which the cursor passes it, and tried again later: it holds up nothing.
//
// What it has read is protected by one hold of the slot's lock, and has to be read anew at another: Reopen. It is not safe for
// concurrent use.
type CursorRunner struct {
	plan     cursor.Plan
	table    shard.Table
	number   int32
	slot     *cursor.Slot
	horizon  *cursor.Horizon // nil once it is known
	settings Settings
	sql      *SQL
	chunks   *Chunks // how large batches are, and parts of one that failed on its second try
	suspects int     // the next rows, so many, hold one that failed
	circuit  circuit

	backlog    cursor.Backlog
	backlogDue time.Time
	retried    bool       // failed rows were tried last: fresh ones are next
	afresh     bool       // look for rows that failed with other settings
	mended     *shard.Key // up to which exhausted rows were looked at
	now        func() time.Time
}

// NewCursorRunner makes the runner of the slot with this number, which was opened under the plan.
func NewCursorRunner(plan cursor.Plan, t shard.Table, number int32, slot *cursor.Slot, settings Settings) *CursorRunner {
	r := &CursorRunner{plan: plan, table: t, number: number, now: time.Now}
	r.begin(settings)
	r.take(slot)
	return r
}

// begin starts over: what failed under another statement may succeed now.
func (r *CursorRunner) begin(settings Settings) {
	r.settings = settings
	r.sql = NewSQL(r.table, settings.Statement, cursor.AdvanceSQL)
	r.chunks, r.suspects, r.circuit = NewChunks(settings.Rows), 0, circuit{}
}

// take goes on from a slot as it was opened.
func (r *CursorRunner) take(slot *cursor.Slot) {
	r.slot, r.horizon, r.backlogDue, r.afresh = slot, nil, time.Time{}, true
	if slot.Job().HorizonAt == nil {
		r.horizon = cursor.NewHorizon(r.plan, r.table)
	}
}

// Reopen goes on at another hold of the slot's lock, with the slot as it was opened under the same plan. How many rows can be
// worked at a time was learned before, and stays: who holds a slot for some steps only would else never come to work any.
// Parts of a batch stay too; that others may have worked them meanwhile shows in the record.
func (r *CursorRunner) Reopen(slot *cursor.Slot, settings Settings) {
	if settings.Statement != r.settings.Statement {
		r.begin(settings)
	}
	slot.Learn(r.slot)
	r.take(slot)
	r.Reload(settings)
}

// Reload obeys new settings from the next step on. Another number of attempts gives all failed rows another chance.
func (r *CursorRunner) Reload(settings Settings) {
	r.afresh = r.afresh || settings.MaxAttempts != r.settings.MaxAttempts
	r.settings = settings
	r.chunks.SetLimit(settings.Rows)
}

// fingerprint tells apart the settings under which a row may fail or succeed.
func (r *CursorRunner) fingerprint() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %s", r.settings.MaxAttempts, r.settings.Statement))
	return hex.EncodeToString(sum[:8])
}

// Waiting counts the rows that failed, or were locked, and are tried again.
func (r *CursorRunner) Waiting() int { return int(r.backlog.Waiting + r.backlog.Locked) }

// Exhausted counts the rows that failed every attempt.
func (r *CursorRunner) Exhausted() int { return int(r.backlog.Exhausted) }

// Step does one batch, or finds out why there is none. An error is an outage, or says that the session, its locks or
// the cursor are lost: nothing is known to have happened.
func (r *CursorRunner) Step(ctx context.Context, s Session) (Result, error) {
	if r.horizon != nil {
		return r.look(ctx, s)
	}
	now := r.now()
	if until, tripped := r.circuit.tripped(now); tripped {
		return r.failing(until), nil
	}
	if !now.Before(r.backlogDue) {
		if err := r.count(ctx, s); err != nil {
			return Result{}, err
		}
	}
	if !r.retried || r.slot.AtEnd() {
		if result, tried, err := r.again(ctx, s); tried || err != nil {
			return result, err
		}
	}
	r.retried = false
	switch {
	case r.full():
		return r.stuck(ctx, s)
	case r.Waiting()+r.Exhausted() >= maxFailures:
		return r.busy(), nil // others hold so many rows that no more can be put on record
	case !r.slot.AtEnd():
		return r.fresh(ctx, s)
	}
	return r.rest(ctx, s)
}

// look takes one step towards the horizon. When it is known, the slot is read anew.
func (r *CursorRunner) look(ctx context.Context, s Session) (Result, error) {
	wait, err := r.horizon.Step(ctx, s.Conn())
	if err != nil {
		return Result{}, err
	}
	if wait != nil {
		return Result{Until: r.now().Add(horizonPause), Waits: wait.Message}, nil
	}
	slot, err := cursor.Open(ctx, s.Conn(), r.plan, r.table, r.number)
	if err != nil {
		return Result{}, err
	}
	r.slot, r.horizon = slot, nil
	return Result{}, nil
}

// count renews what is known of the failed rows.
func (r *CursorRunner) count(ctx context.Context, s Session) (err error) {
	if r.afresh {
		if err := r.slot.Retry(ctx, s.Conn(), r.fingerprint()); err != nil {
			return err
		}
		r.afresh = false
	}
	r.backlog, err = r.slot.Backlog(ctx, s.Conn())
	r.backlogDue = r.now().Add(backlogEvery)
	return err
}

// batch processes what a selection finds, and moves the cursor, in one transaction.
func (r *CursorRunner) batch(ctx context.Context, s Session, selection cursor.Selection) (cursor.Batch, error) {
	var found cursor.Batch
	conn := s.Conn()
	err := begin(ctx, conn, r.table, r.settings.TimeoutSeconds, func(trip *pgx.Batch) { selection.Queue(trip, &found) })
	if err == nil {
		err = r.finish(ctx, s, found.Keys, found.Move())
	}
	return found, errors.Join(err, rollback(ctx, conn))
}

// finish runs the statement for the keys and makes the move, in the open transaction, and commits.
func (r *CursorRunner) finish(ctx context.Context, s Session, keys []shard.Key, move cursor.Move) error {
	move.TriedWith = r.fingerprint()
	advance := r.slot.Advance(move)
	if err := r.sql.Run(ctx, s, keys, After{Params: advance.Params(), Read: advance.Verify}); err != nil {
		return err
	}
	if err := commit(ctx, s.Conn()); err != nil {
		return err
	}
	advance.Committed()
	if len(move.Failed)+len(move.Resolved) > 0 {
		r.backlogDue = time.Time{}
	}
	return nil
}

// record makes a move without any effect on the table: a row is put on record as failed.
func (r *CursorRunner) record(ctx context.Context, s Session, move cursor.Move) error {
	conn := s.Conn()
	err := begin(ctx, conn, r.table, r.settings.TimeoutSeconds, func(*pgx.Batch) {})
	if err == nil {
		err = r.finish(ctx, s, nil, move)
	}
	return errors.Join(err, rollback(ctx, conn))
}

// fresh works the next rows.
func (r *CursorRunner) fresh(ctx context.Context, s Session) (Result, error) {
	limit := r.chunks.Size()
	if r.suspects > 0 {
		limit = min(limit, max(1, r.suspects/2))
	}
	found, err := r.batch(ctx, s, r.slot.Next(limit))
	n := len(found.Keys)
	if err == nil {
		r.suspects = max(0, r.suspects-n)
		r.succeed(n)
		return Result{Processed: n}, nil
	}
	if n == 0 && database.Classify(err) == database.ClassTimeout && r.slot.TooSlow() {
		return Result{}, nil
	}
	single, reason, result, err := r.judge(ctx, s, n, err)
	switch {
	case err != nil || result.State != Working:
		return result, err
	case !single:
		r.suspects = n
		return Result{}, nil
	}
	r.suspects = 0
	return Result{}, r.fail(ctx, s, found.Move(), found.Keys[0], 1, reason)
}

// again tries rows on record that are due: one that failed alone, locked ones together, and in halves if that fails.
func (r *CursorRunner) again(ctx context.Context, s Session) (_ Result, tried bool, _ error) {
	keys, attempts, err := r.due(ctx, s)
	if err != nil || len(keys) == 0 {
		return Result{}, false, err
	}
	r.retried = true
	found, err := r.batch(ctx, s, r.slot.Take(keys))
	if err == nil {
		r.succeed(len(found.Keys))
		return Result{Processed: len(found.Keys)}, true, nil
	}
	single, reason, result, err := r.judge(ctx, s, len(found.Keys), err)
	switch {
	case err != nil || result.State != Working:
		return result, true, err
	case !single:
		r.chunks.Failed(found.Keys)
		return Result{}, true, nil
	}
	return Result{}, true, r.fail(ctx, s, cursor.Move{}, found.Keys[0], attempts+1, reason)
}

// due are rows on record to be tried together, and how many attempts of each have failed.
func (r *CursorRunner) due(ctx context.Context, s Session) (keys []shard.Key, attempts int32, _ error) {
	if keys := r.chunks.Next(); len(keys) > 0 {
		return keys, 0, nil
	}
	if r.backlog.NextDue == nil || *r.backlog.NextDue > 0 {
		return nil, 0, nil
	}
	due, err := r.slot.Due(ctx, s.Conn(), r.chunks.Size())
	if err != nil || len(due) == 0 {
		r.backlogDue = time.Time{}
		return nil, 0, err
	}
	for _, f := range due {
		if f.Attempts == 0 {
			keys = append(keys, f.Key)
		}
	}
	if len(keys) == 0 {
		return []shard.Key{due[0].Key}, due[0].Attempts, nil
	}
	return keys, 0, nil
}

// fail makes a move with a row on record as failed instead of done.
func (r *CursorRunner) fail(ctx context.Context, s Session, move cursor.Move, key shard.Key, attempts int32, reason string) error {
	move.Processed = 0
	move.Failed = append(move.Failed, cursor.Failure{
		Key: key, Attempts: attempts, Reason: reason, Exhausted: attempts >= r.settings.MaxAttempts, Due: pauseAfter(attempts),
	})
	err := r.record(ctx, s, move)
	if err == nil {
		r.circuit.fail(r.now())
	}
	return err
}

func (r *CursorRunner) succeed(n int) {
	if n > 0 {
		r.chunks.Succeeded(n)
		r.circuit = circuit{}
	}
}

// judge says what to make of a batch of n rows that failed: whether it is the fault of its single row, and why; else it is
// to be tried again in parts if neither a result nor an error says otherwise.
func (r *CursorRunner) judge(ctx context.Context, s Session, n int, err error) (single bool, reason string, _ Result, _ error) {
	if errors.Is(err, cursor.ErrCursorMoved) {
		return false, "", Result{}, err
	}
	class, problem, checkErr := r.sql.blame(ctx, s.Conn(), err, n)
	if problem != nil || checkErr != nil {
		return false, "", Result{State: Failing, Until: r.now().Add(failingPause), Problem: problem}, checkErr
	}
	switch {
	case class == database.ClassOutage, class == database.ClassTimeout && n == 0:
		return false, "", Result{}, err
	case n == 0:
		return false, "", Result{State: Failing, Until: r.now().Add(failingPause), Problem: searchProblem(err)}, nil
	case class == database.ClassTimeout:
		r.chunks.Shrink(n)
		return n == 1, fmt.Sprintf("took longer than batch.timeoutSeconds (%d) by itself", r.settings.TimeoutSeconds), Result{}, nil
	}
	return n == 1, database.Describe(err), Result{}, nil
}

// rest finds out how the slot stands when there is no fresh row.
func (r *CursorRunner) rest(ctx context.Context, s Session) (Result, error) {
	now := r.now()
	switch b := r.backlog; {
	case b.Locked > 0 && b.Waiting == 0:
		return r.busy(), nil
	case b.NextDue != nil:
		return Result{State: Retrying, Until: now.Add(*b.NextDue)}, nil
	case b.Exhausted == 0:
		return Result{State: Drained, Until: now.Add(drainedPause)}, nil
	}
	return r.stuck(ctx, s)
}

// stuck calls for a person, unless somebody has deleted rows that failed.
func (r *CursorRunner) stuck(ctx context.Context, s Session) (Result, error) {
	if dropped, err := r.dropGone(ctx, s); dropped || err != nil {
		return Result{}, err
	}
	return r.failing(r.now().Add(failingPause)), nil
}

// dropGone takes off the record the exhausted rows that somebody has deleted, some at a time, and says whether there were any.
func (r *CursorRunner) dropGone(ctx context.Context, s Session) (dropped bool, _ error) {
	exhausted, err := r.slot.Exhausted(ctx, s.Conn(), r.mended, r.settings.Rows)
	if err != nil {
		return false, err
	}
	keys := make([]shard.Key, len(exhausted))
	for i, f := range exhausted {
		keys[i] = f.Key
	}
	r.mended = nil // from the first again
	if len(keys) == r.settings.Rows {
		r.mended = &keys[len(keys)-1]
	}
	var found cursor.Batch
	conn := s.Conn()
	err = begin(ctx, conn, r.table, r.settings.TimeoutSeconds, func(trip *pgx.Batch) { r.slot.Take(keys).Queue(trip, &found) })
	if err == nil && len(found.Gone) > 0 {
		err = r.finish(ctx, s, nil, cursor.Move{Gone: len(found.Gone), Resolved: found.Gone})
	}
	return len(found.Gone) > 0, errors.Join(err, rollback(ctx, conn))
}

// failing is the result that calls for a person.
func (r *CursorRunner) failing(until time.Time) Result {
	return failingResult(until, r.circuit, int(r.backlog.Exhausted), r.full(), r.backlog.Example)
}

// full says whether too many rows fail by themselves for any more to be put on record.
func (r *CursorRunner) full() bool { return r.backlog.Waiting+r.backlog.Exhausted >= maxFailures }

// busy is the result that others hold rows locked.
func (r *CursorRunner) busy() Result { return Result{State: Busy, Until: r.now().Add(busyPause)} }
