package process

import (
	"context"
	"errors"
	"fmt"
	"time"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/worker/cursor"
	"shardedjob.dev/worker/database"
	"shardedjob.dev/worker/shard"
)

// judge draws the consequences of a batch that held the given keys. It has decided if the keys are taken care of: done,
// noted as failures or put back in parts; else nothing is known of them and they have to be tried as before.
func (r *Runner) judge(ctx context.Context, s Session, keys []shard.Key, err error) (_ Result, decided bool, _ error) {
	if err == nil {
		r.succeed(keys)
		return Result{Processed: len(keys)}, true, nil
	}
	class, problem, checkErr := r.sql.blame(ctx, s.Conn(), err, len(keys))
	if checkErr != nil {
		return Result{}, false, checkErr
	}
	if problem != nil {
		return Result{State: Failing, Until: r.now().Add(failingPause), Problem: problem}, false, nil
	}
	var left *StillPendingError
	switch {
	case errors.As(err, &left):
		for _, key := range left.Keys {
			r.fail(key, "the statement left pending true")
		}
		r.chunks.Put(without(keys, left.Keys))
	case class == database.ClassOutage, class == database.ClassTimeout && len(keys) == 0:
		return Result{}, false, err
	case len(keys) == 0:
		// Not the statement: the search for rows fails.
		return Result{State: Failing, Until: r.now().Add(failingPause), Problem: searchProblem(err)}, false, nil
	case class == database.ClassTimeout:
		if r.chunks.TimedOut(keys) {
			r.fail(keys[0], fmt.Sprintf("took longer than batch.timeoutSeconds (%d) by itself", r.settings.TimeoutSeconds))
		}
	default:
		if r.chunks.Failed(keys) {
			r.fail(keys[0], database.Describe(err))
		}
	}
	return Result{}, true, nil
}

func (r *Runner) succeed(keys []shard.Key) {
	if len(keys) == 0 {
		return
	}
	r.failures.Forget(keys...)
	r.chunks.Succeeded(len(keys))
	r.circuit = circuit{}
}

func (r *Runner) fail(key shard.Key, reason string) {
	now := r.now()
	r.failures.Fail(key, reason, now)
	r.circuit.fail(now)
}

// searchProblem is the problem that rows cannot be searched for.
func searchProblem(err error) *v1alpha1.Problem {
	problem := database.Problem(err)
	problem.Reason, problem.Message = v1alpha1.ReasonInvalidSQL, "the search for rows (table.where, table.pending) fails: "+database.Describe(err)
	return problem
}

// failing is the result that calls for a person.
func (r *Runner) failing(until time.Time) Result {
	var example *cursor.Failure
	for _, f := range r.failures.Sample(1) {
		example = &cursor.Failure{Key: f.Key, Reason: f.Reason}
	}
	return failingResult(until, r.circuit, r.failures.Exhausted(), r.failures.Full(), example)
}

func failingResult(until time.Time, c circuit, exhausted int, full bool, example *cursor.Failure) Result {
	what := fmt.Sprintf("%d rows failed every attempt", exhausted)
	switch {
	case c.trips > 0:
		what = fmt.Sprintf("%d attempts in a row failed and none succeeded", tripAfter)
	case full:
		what = fmt.Sprintf("%d rows fail, more than are remembered", maxFailures)
	}
	if example != nil {
		what += fmt.Sprintf("; key %.100s: %s", example.Key, example.Reason)
	}
	return Result{State: Failing, Until: until, Problem: &v1alpha1.Problem{Reason: v1alpha1.ReasonRowsFailing, Message: what, Stalled: true}}
}

// tripAfter failed attempts without a success, the Runner slows down to one such run a minute.
const (
	tripAfter    = 100
	longestBreak = time.Minute
)

// circuit notices that nothing succeeds at all.
type circuit struct {
	streak int // failed attempts since the last success or trip
	trips  int
	until  time.Time
}

func (c *circuit) fail(now time.Time) {
	if c.streak++; c.streak < tripAfter {
		return
	}
	c.streak = 0
	c.until = now.Add(min(time.Second<<min(c.trips, 6), longestBreak))
	c.trips++
}

func (c *circuit) tripped(now time.Time) (until time.Time, tripped bool) {
	return c.until, c.until.After(now)
}

// without are the keys that are not among the others.
func without(keys, others []shard.Key) []shard.Key {
	drop := make(map[shard.Key]bool, len(others))
	for _, key := range others {
		drop[key] = true
	}
	var rest []shard.Key
	for _, key := range keys {
		if !drop[key] {
			rest = append(rest, key)
		}
	}
	return rest
}
