package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"k8s.io/apimachinery/pkg/util/wait"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/worker/cursor"
	"shardedjob.dev/worker/database"
	"shardedjob.dev/worker/fence"
	"shardedjob.dev/worker/heartbeat"
	"shardedjob.dev/worker/internal/sleep"
	"shardedjob.dev/worker/process"
	"shardedjob.dev/worker/shard"
)

// retry is the pause after a batch that failed for no fault of a row while the session lives on, such as a deadlock.
var retry = wait.Backoff{Duration: 20 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 1 << 30, Cap: 5 * time.Second}

// verifyEvery is how often a worker looks whether the table still holds the rows that the progress was made on.
const verifyEvery = 30 * time.Second

// longTrouble is the pause from which on trouble is worth a word: shorter ones pass by themselves every day.
const longTrouble = time.Second

// begin does what is to be done with a slot whose lock is held.
func (s *shift) begin(ctx context.Context, plan v1alpha1.Plan, claim fence.Claim, changed <-chan struct{}) error {
	if plan.Forget {
		return s.forget(ctx, plan, claim, changed)
	}
	if s.table.remembers() {
		return s.work(ctx, plan, claim, s.kept().pendingRunner(s.table.Table, plan, claim.Slot))
	}
	runner, problem, err := s.resume(ctx, plan, claim.Slot)
	var stale *cursor.StaleError
	switch {
	case errors.As(err, &stale):
		s.followNewer(stale.Epoch, stale.Slots, stale)
		if s.repartitioned(plan) {
			return nil
		}
		return s.waitUnheld(ctx, plan, changed, nil)
	case errors.Is(err, shard.ErrChanged):
		s.recheck()
		return nil
	case err != nil:
		return s.outage(ctx, err)
	case problem != nil:
		return s.waitUnheld(ctx, plan, changed, problem)
	}
	return s.work(ctx, plan, claim, runner)
}

// resume reads where the slot's cursor is, after the database has confirmed the plan: step 4 and 5 of the entry protocol.
func (s *shift) resume(ctx context.Context, plan v1alpha1.Plan, slot int32) (runner, *v1alpha1.Problem, error) {
	ctx, cancel := bounded(ctx, checkTimeout)
	defer cancel()
	conn, p := s.session.Conn(), cursorPlan(plan)
	for _, step := range []func() (*v1alpha1.Problem, error){
		func() (*v1alpha1.Problem, error) { return cursor.Prepare(ctx, conn) },
		func() (*v1alpha1.Problem, error) { return cursor.Enter(ctx, conn, p, s.table.Table) },
		func() (*v1alpha1.Problem, error) { return cursor.Check(ctx, conn, p, s.table.Table) },
	} {
		if problem, err := step(); problem != nil || err != nil {
			return nil, problem, err
		}
	}
	opened, err := cursor.Open(ctx, conn, p, s.table.Table, slot)
	if err != nil {
		return nil, nil, err
	}
	return s.kept().cursorRunner(s.table.Table, plan, slot, opened), nil, nil
}

// forget drops what the group has in the database, and then holds the slot, so that nobody works, until there is another
// plan.
func (s *shift) forget(ctx context.Context, plan v1alpha1.Plan, claim fence.Claim, changed <-chan struct{}) error {
	call, cancel := bounded(ctx, checkTimeout)
	defer cancel()
	if err := cursor.Forget(call, s.session.Conn(), cursorPlan(plan)); err != nil {
		return s.outage(ctx, err)
	}
	s.log.Info("The group's progress is forgotten")
	s.post(nil)
	s.state.set(v1alpha1.SlotDrained, "the progress is forgotten")
	return s.rest(ctx, claim, changed, time.Hour)
}

// outage puts up with an error that leaves the session usable, for a while.
func (s *shift) outage(ctx context.Context, err error) error {
	if s.fatal(err) {
		return err
	}
	s.log.Warn("Cannot read the progress", "error", database.Describe(err))
	s.state.problem(database.Problem(err))
	sleep.For(ctx, longTrouble)
	return nil
}

// waitUnheld waits without the slot, which others may be able to work.
func (s *shift) waitUnheld(ctx context.Context, plan v1alpha1.Plan, changed <-chan struct{}, problem *v1alpha1.Problem) error {
	leave, cancel := bounded(ctx, callTimeout)
	defer cancel()
	if err := s.session.Leave(leave); err != nil {
		return err
	}
	return s.wait(ctx, plan, changed, problem)
}

// runner does the work of a slot, batch by batch.
type runner interface {
	Step(ctx context.Context, s process.Session) (process.Result, error)
	Reload(process.Settings)
	// Waiting counts the rows that failed and are tried again, Exhausted those that failed every attempt.
	Waiting() int
	Exhausted() int
}

// work processes the slot batch by batch until there is another plan to follow, an adopter's turn is over or the context
// ends. Everything that is not a batch happens between two batches. An error means that the session must not be used again.
func (s *shift) work(ctx context.Context, plan v1alpha1.Plan, claim fence.Claim, runner runner) error {
	s.log.Info("Slot taken", "slot", claim.Slot, "epoch", plan.Epoch, "slots", plan.Slots, "generation", plan.Generation)
	defer s.log.Info("Slot let go", "slot", claim.Slot, "epoch", plan.Epoch)
	s.state.set(v1alpha1.SlotWorking, "")
	s.state.update(func(b *heartbeat.Beat) { b.Failed = int64(runner.Exhausted()) })
	defer s.farewell(ctx)
	turn := turn{shift: s, claim: claim, until: time.Now().Add(adoptedTurn(plan.Slots))}
	backoff := retry
	verified := time.Now()
	var due time.Time // when to take the next step
	for ctx.Err() == nil {
		changed := s.feed.Changed()
		now, _ := s.feed.Current()
		if s.repartitioned(plan) || now.Process.SQL.Statement != plan.Process.SQL.Statement || now.Forget {
			break // a new statement is checked before it runs
		}
		if now.Generation != plan.Generation {
			plan = now
			runner.Reload(process.NewSettings(plan))
			s.state.follow(plan)
			due = time.Time{}
		}
		if newer, err := s.look(ctx, claim); err != nil {
			return err
		} else if newer {
			break
		}
		if err := s.beat(ctx, false); err != nil {
			return err
		}
		if time.Since(verified) > verifyEvery && !s.table.remembers() {
			verified = time.Now()
			call, cancel := bounded(ctx, callTimeout)
			problem, err := cursor.Check(call, s.session.Conn(), cursorPlan(plan), s.table.Table)
			cancel()
			if errors.Is(err, shard.ErrChanged) {
				s.recheck()
				return nil
			}
			if err != nil && s.fatal(err) || problem != nil {
				return err // to enter anew finds the problem too, and says so
			}
		}
		if s.adopts() {
			if over, err := turn.over(ctx, due); over || err != nil {
				return err
			}
		}
		if pause := min(time.Until(due), pollEvery); pause > 0 {
			s.idle(ctx, changed, pause)
			continue
		}
		result, err := s.step(ctx, runner, plan)
		if err != nil {
			if s.fatal(err) {
				return err
			}
			if errors.Is(err, shard.ErrChanged) {
				s.recheck()
				return nil
			}
			if errors.Is(err, cursor.ErrCursorMoved) {
				s.log.Warn("The slot's cursor was moved by somebody else; entering anew", "slot", claim.Slot)
				return nil
			}
			pause := backoff.Step()
			if pause > longTrouble {
				s.state.problem(database.Problem(err))
			}
			s.log.Info("Batch put off", "error", database.Describe(err))
			sleep.For(ctx, pause)
			continue
		}
		backoff = retry
		s.show(result, runner)
		due = result.Until
	}
	return nil
}

// recheck has the table checked anew before it is worked on.
func (s *shift) recheck() {
	s.log.Warn("The table has changed; checking it anew", "table", s.table.Quoted())
	s.checked = nil
}

// farewell says that the slot is being let go. An adopter's last word of a slot stands until its next turn.
func (s *shift) farewell(ctx context.Context) {
	if s.adopts() {
		if s.session.Lost() == nil {
			_ = s.beat(ctx, true) // a lost session shows at the next call
		}
		return
	}
	s.state.set(v1alpha1.SlotWaiting, "handing over")
}

// step takes one step of the runner: one batch and a look at what is left, each statement of which has its own timeout; their
// sum only ends what a dead server would never answer. Once the worker has to stop, a batch that outlives the hand-over
// time is given up together with the session: the pod would be killed anyway.
func (s *shift) step(stop context.Context, runner runner, plan v1alpha1.Plan) (process.Result, error) {
	ctx, cancel := bounded(stop, 2*time.Duration(plan.Batch.TimeoutSeconds)*time.Second+statementTimeout+callTimeout)
	defer cancel()
	defer context.AfterFunc(stop, func() { time.AfterFunc(time.Duration(plan.HandoverSeconds)*time.Second, cancel) })()
	began := time.Now()
	result, err := runner.Step(ctx, s.session)
	outcome := "committed"
	switch {
	case err != nil:
		outcome = "outage"
	case result.Processed == 0:
		outcome = "empty"
	}
	s.metrics.batches.WithLabelValues(outcome).Observe(time.Since(began).Seconds())
	return result, err
}

// fatal says whether the session is of no use any more after an error.
func (s *shift) fatal(err error) bool {
	var server *pgconn.PgError
	readOnly := errors.As(err, &server) && server.Code == "25006" // the server has become a standby
	return readOnly || s.session.Lost() != nil || s.session.Conn().IsClosed() || errors.Is(err, fence.ErrLockLost)
}

// show lets the world know how the slot stands after a step.
func (s *shift) show(r process.Result, runner runner) {
	s.post(nil)
	s.state.update(func(b *heartbeat.Beat) {
		b.Processed += int64(r.Processed)
		b.Warning = r.Waits
		b.Failed = int64(runner.Exhausted())
	})
	switch r.State {
	case process.Drained:
		s.state.problem(nil)
		s.state.set(v1alpha1.SlotDrained, "")
	case process.Failing:
		// Failing rows are a problem of the job only once all others are done; that is for the coordinator to say.
		if r.Problem.Reason == v1alpha1.ReasonRowsFailing {
			s.state.problem(nil)
			s.state.set(v1alpha1.SlotFailing, r.Problem.Message)
		} else {
			s.state.problem(r.Problem)
			s.state.set(v1alpha1.SlotWorking, r.Problem.Message)
		}
	case process.Busy:
		s.state.problem(nil)
		s.state.set(v1alpha1.SlotWorking, "the rows left are locked by other sessions")
	case process.Retrying:
		s.state.problem(nil)
		s.state.set(v1alpha1.SlotWorking, fmt.Sprintf("%d rows failed and are tried again", runner.Waiting()))
	default:
		s.state.problem(nil)
		s.state.set(v1alpha1.SlotWorking, r.Waits)
	}
}

// idle waits, but not longer than until the plan changes.
func (s *shift) idle(ctx context.Context, changed <-chan struct{}, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-changed:
	case <-t.C:
	}
}
