package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"k8s.io/apimachinery/pkg/util/wait"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/worker/database"
	"shardedjob.dev/worker/fence"
	"shardedjob.dev/worker/heartbeat"
	"shardedjob.dev/worker/internal/sleep"
	"shardedjob.dev/worker/process"
	"shardedjob.dev/worker/shard"
)

// retry is the pause after a batch that failed for no fault of a row while the session lives on, such as a deadlock.
var retry = wait.Backoff{Duration: 20 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 1 << 30, Cap: 5 * time.Second}

// longTrouble is the pause from which on trouble is worth a word: shorter ones pass by themselves every day.
const longTrouble = time.Second

// work processes the slot batch by batch until there is another plan to follow or the context ends, and then lets go of the
// slot. Everything that is not a batch happens between two batches. An error means that the session must not be used again.
func (s *shift) work(ctx context.Context, plan v1alpha1.Plan, claim fence.Claim) error {
	s.log.Info("Slot taken", "slot", s.ordinal, "epoch", plan.Epoch, "slots", plan.Slots, "generation", plan.Generation)
	s.mu.Lock()
	reader := shard.NewReader(s.table.Table, plan.Slots, s.ordinal)
	s.mu.Unlock()
	runner := process.NewRunner(reader, process.NewSettings(plan))
	s.state.set(v1alpha1.SlotWorking, "")
	s.state.update(func(b *heartbeat.Beat) { b.Failed = 0 })
	backoff := retry
	var due time.Time // when to take the next step
	for ctx.Err() == nil {
		changed := s.feed.Changed()
		now, _ := s.feed.Current()
		if s.repartitioned(plan) || now.Process.SQL.Statement != plan.Process.SQL.Statement {
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
		if pause := min(time.Until(due), pollEvery); pause > 0 {
			s.idle(ctx, changed, pause)
			continue
		}
		result, err := s.step(ctx, runner, plan)
		if err != nil {
			if s.fatal(err) {
				return err
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
	leave, cancel := bounded(ctx, callTimeout)
	defer cancel()
	if err := s.session.Leave(leave); err != nil {
		return err
	}
	s.log.Info("Slot let go", "slot", s.ordinal, "epoch", plan.Epoch)
	s.state.set(v1alpha1.SlotWaiting, "handing over")
	return nil
}

// step takes one step of the runner: one batch and a look at what is left, each statement of which has its own timeout; their
// sum only ends what a dead server would never answer. Once the worker has to stop, a batch that outlives the hand-over
// time is given up together with the session: the pod would be killed anyway.
func (s *shift) step(stop context.Context, runner *process.Runner, plan v1alpha1.Plan) (process.Result, error) {
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
func (s *shift) show(r process.Result, runner *process.Runner) {
	s.notices.post(nil)
	s.state.update(func(b *heartbeat.Beat) {
		b.Processed += int64(r.Processed)
		b.Failed = int64(runner.Failures().Exhausted())
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
		s.state.set(v1alpha1.SlotWorking, fmt.Sprintf("%d rows failed and are tried again", runner.Failures().Waiting()))
	default:
		s.state.problem(nil)
		s.state.set(v1alpha1.SlotWorking, "")
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
