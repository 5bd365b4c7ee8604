// Package process does the work of a slot: one batch at a time, each in one transaction on the session that holds the
// slot's lock, so that its effects happen exactly once or not at all.
//
// A Runner decides what to try next. Fresh batches sweep upward through the keys. A batch that fails because of a row is
// split in halves until the bad row stands alone; that row is tried again later with growing pauses, and never holds up
// what is behind it. A batch that takes too long is split too, and fresh ones become smaller. Outages are handed to the
// caller and cost no row an attempt. When nothing succeeds at all, the Runner says so and slows down instead of walking
// through a billion rows.
package process

import (
	"context"
	"time"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/worker/database"
	"shardedjob.dev/worker/shard"
)

// Settings are the parts of a plan that a Runner obeys.
type Settings struct {
	Statement      string
	Rows           int
	TimeoutSeconds int32
	MaxAttempts    int32
}

// NewSettings takes them from a plan.
func NewSettings(plan v1alpha1.Plan) Settings {
	return Settings{
		Statement:      plan.Process.SQL.Statement,
		Rows:           int(plan.Batch.Rows),
		TimeoutSeconds: plan.Batch.TimeoutSeconds,
		MaxAttempts:    plan.Failure.MaxAttempts,
	}
}

// State says how a slot stands after a step.
type State int

const (
	// Working: take the next step at once.
	Working State = iota
	// Busy: all rows that could be tried are locked by somebody else. Go on at Result.Until.
	Busy
	// Retrying: only rows that failed are left; the next attempt is due at Result.Until.
	Retrying
	// Failing: a person must act, as Result.Problem says. All rows left have failed every attempt, or so many rows failed
	// without one that succeeded that the Runner has slowed down. Look again at Result.Until: rows may have been mended.
	Failing
	// Drained: a statement without locks found nothing pending in the slot. Look again at Result.Until: rows may be new.
	Drained
)

// Result is what a step did.
type Result struct {
	State State
	// Processed counts the rows committed by this step.
	Processed int
	// Until is when to take the next step; zero: now.
	Until time.Time
	// Problem is set where a person must act.
	Problem *v1alpha1.Problem
	// Waits says what the slot waits for, if that is neither a row nor a person.
	Waits string
}

// Pauses between looks at a slot in which nothing can be done.
const (
	busyPause    = 500 * time.Millisecond
	drainedPause = 5 * time.Second
	failingPause = 15 * time.Second
)

// Runner works one slot of one partition. The session may change between steps, and what failed is remembered; for another
// partition make another Runner. It is not safe for concurrent use.
type Runner struct {
	reader   *shard.Reader
	settings Settings
	sql      *SQL
	failures *Failures
	chunks   *Chunks
	sweep    sweep
	circuit  circuit

	retried bool // the last step tried a failed row again: a fresh batch is next
	resting bool // only failed rows are left: try all that are due before searching again
	now     func() time.Time
}

// NewRunner makes the Runner of a slot.
func NewRunner(reader *shard.Reader, settings Settings) *Runner {
	r := &Runner{reader: reader, now: time.Now}
	r.chunks = NewChunks(settings.Rows)
	r.begin(settings)
	return r
}

// begin starts over: what failed under another statement may succeed now.
func (r *Runner) begin(settings Settings) {
	r.settings = settings
	r.sql = NewSQL(r.reader.Table(), settings.Statement, r.reader.StillPendingSQL())
	r.failures = NewFailures(settings.MaxAttempts)
	r.chunks = NewChunks(settings.Rows)
	r.sweep, r.circuit = sweep{window: r.sweep.window}, circuit{}
}

// Reload obeys new settings from the next step on. Another statement or number of attempts gives all failed rows another
// chance.
func (r *Runner) Reload(settings Settings) {
	if settings.Statement != r.settings.Statement || settings.MaxAttempts != r.settings.MaxAttempts {
		r.begin(settings)
		return
	}
	r.settings = settings
	r.chunks.SetLimit(settings.Rows)
}

// Waiting counts the rows that failed and are tried again.
func (r *Runner) Waiting() int { return r.failures.Waiting() }

// Exhausted counts the rows that failed every attempt.
func (r *Runner) Exhausted() int { return r.failures.Exhausted() }

// Step does one batch, or finds out why there is none. An error is an outage, or says that the session or its locks are
// lost: nothing is known to have happened, back off and go on, with another session if this one is closed.
func (r *Runner) Step(ctx context.Context, s Session) (Result, error) {
	now := r.now()
	if until, tripped := r.circuit.tripped(now); tripped {
		return r.failing(until), nil
	}
	if keys := r.chunks.Next(); keys != nil {
		return r.again(ctx, s, keys)
	}
	if key, due := r.failures.Due(now); due && (r.resting || !r.retried) {
		r.retried = true
		return r.again(ctx, s, []shard.Key{key})
	}
	r.retried, r.resting = false, false
	if r.failures.Full() && r.failures.Waiting() == 0 {
		// Somebody may have mended or deleted them.
		if err := r.settle(ctx, s, r.failures.Keys()); err != nil {
			return Result{}, err
		}
	}
	if r.failures.Full() {
		return r.failing(now.Add(failingPause)), nil
	}
	return r.fresh(ctx, s)
}

// again tries keys that were part of a failed batch.
func (r *Runner) again(ctx context.Context, s Session, keys []shard.Key) (Result, error) {
	taken, err := Batch(ctx, s, r.sql, r.settings.TimeoutSeconds, r.reader.Take(keys))
	result, decided, err := r.judge(ctx, s, taken, err)
	if !decided {
		r.chunks.Put(keys)
		return result, err
	}
	if len(taken) < len(keys) {
		err = r.settle(ctx, s, without(keys, taken))
	}
	return result, err
}

// settle looks after keys that could not be taken. Those that are gone or done by somebody else need no further attempt;
// locked ones wait for the next sweep, or for their next attempt.
func (r *Runner) settle(ctx context.Context, s Session, keys []shard.Key) error {
	left, err := r.reader.StillPending(ctx, s.Conn(), keys)
	if err != nil {
		return err
	}
	for _, key := range left {
		r.failures.Postpone(key, r.now())
		r.sweep.behind = true
	}
	r.failures.Forget(without(keys, left)...)
	return nil
}

// fresh works the next rows of the sweep.
func (r *Runner) fresh(ctx context.Context, s Session) (Result, error) {
	in, err := r.sweep.next(ctx, s.Conn(), r.reader)
	if err != nil {
		return Result{}, r.sweep.absorb(err)
	}
	keys, err := Batch(ctx, s, r.sql, r.settings.TimeoutSeconds, r.reader.NextBatch(r.chunks.Size(), in, r.failures.Keys()))
	switch {
	case len(keys) == 0 && err == nil:
		return r.rest(ctx, s, in)
	case len(keys) == 0 && database.Classify(err) == database.ClassTimeout:
		return Result{}, r.sweep.absorb(err)
	}
	result, decided, err := r.judge(ctx, s, keys, err)
	if decided {
		r.sweep.moveTo(keys[len(keys)-1])
	}
	return result, err
}

// rest finds out what it means that a range holds no row to take.
func (r *Runner) rest(ctx context.Context, s Session, in shard.Range) (Result, error) {
	left, err := r.reader.Pending(ctx, s.Conn(), r.sweep.toCheck(in), r.failures.Keys())
	if err != nil {
		return Result{}, r.sweep.absorb(err)
	}
	now := r.now()
	switch r.sweep.rest(in, left) {
	case sweepOn:
		return Result{}, nil
	case sweepBlocked:
		return Result{State: Busy, Until: now.Add(busyPause)}, nil
	}
	if due, ok := r.failures.NextDue(); ok {
		r.resting = true
		return Result{State: Retrying, Until: due}, nil
	}
	if r.failures.Exhausted() > 0 {
		// Somebody may have mended or deleted them.
		if err := r.settle(ctx, s, r.failures.Keys()); err != nil {
			return Result{}, err
		}
	}
	if r.failures.Exhausted() > 0 {
		return r.failing(now.Add(failingPause)), nil
	}
	return Result{State: Drained, Until: now.Add(drainedPause)}, nil
}
