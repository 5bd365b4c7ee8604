package cursor

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"shardedjob.dev/worker/shard"
)

// firstRetry is the pause before a row is tried again that others had locked.
const firstRetry = time.Second

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

// mine is the SQL condition that is true of the slot's failures: their keys are in it, whichever partition they failed under.
func (s *Slot) mine(args *arguments) string {
	return fmt.Sprintf("consumer_group = %s AND %s = %d", args.add(s.plan.Group),
		s.table.SlotOf(s.table.KeyValue("key"), fmt.Sprint(s.plan.Slots)), s.number)
}

// Due are failures of the slot whose next attempt is due, those that have waited longest first, at most limit.
func (s *Slot) Due(ctx context.Context, q shard.Querier, limit int) ([]Failure, error) {
	var args arguments
	return failures(ctx, q, fmt.Sprintf("%s AND NOT exhausted AND due_at <= now() ORDER BY due_at, key LIMIT %d", s.mine(&args), limit), args)
}

// Exhausted are failures of the slot that are not tried again, by the text of their key, at most limit, after the key of an earlier
// call; nil: from the first. Somebody may have deleted the rows: Take says which are gone, and Move resolves them.
func (s *Slot) Exhausted(ctx context.Context, q shard.Querier, after *shard.Key, limit int) ([]Failure, error) {
	var args arguments
	from := args.key(after)
	return failures(ctx, q, fmt.Sprintf("%s AND exhausted AND (%s::text IS NULL OR key > %s) ORDER BY key LIMIT %d", s.mine(&args), from, from, limit), args)
}

func failures(ctx context.Context, q shard.Querier, condition string, args arguments) ([]Failure, error) {
	rows, err := q.Query(ctx, "SELECT key, attempts, reason, exhausted, "+untilDue+" FROM shardedjob.row_failure WHERE "+condition, args...)
	if err != nil {
		return nil, wrap("read failures", err)
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (f Failure, err error) {
		var due int64
		err = row.Scan(&f.Key, &f.Attempts, &f.Reason, &f.Exhausted, &due)
		f.Due = time.Duration(due) * time.Millisecond
		return f, err
	})
	return found, wrap("read failures", err)
}

// untilDue is milliseconds, 0 if it is due. The database's clock decides, which all workers share.
const untilDue = "greatest(0, ceil(extract(epoch FROM due_at - now()) * 1000))::bigint"

// Backlog counts the failures of a slot.
type Backlog struct {
	// Locked were locked by others and never tried; Waiting failed and are tried again; Exhausted are not.
	Locked, Waiting, Exhausted int64
	// NextDue is the time to wait until the next attempt is due; nil: there is none.
	NextDue *time.Duration
	// Example is a failed row, an exhausted one if there is one; nil: none.
	Example *Failure
}

// counting is how failures are told apart.
const counting = `count(*) FILTER (WHERE attempts = 0), count(*) FILTER (WHERE attempts > 0 AND NOT exhausted),
	count(*) FILTER (WHERE attempts > 0 AND exhausted)`

// Backlog counts the slot's failures.
func (s *Slot) Backlog(ctx context.Context, q shard.Querier) (b Backlog, err error) {
	var args arguments
	mine := s.mine(&args)
	var due *int64
	err = q.QueryRow(ctx, "SELECT "+counting+", min("+untilDue+") FILTER (WHERE NOT exhausted) FROM shardedjob.row_failure WHERE "+mine, args...).Scan(
		&b.Locked, &b.Waiting, &b.Exhausted, &due)
	if err != nil {
		return b, wrap("count failures", err)
	}
	if due != nil {
		wait := time.Duration(*due) * time.Millisecond
		b.NextDue = &wait
	}
	if b.Waiting+b.Exhausted == 0 {
		return b, nil
	}
	found, err := failures(ctx, q, mine+" AND attempts > 0 ORDER BY exhausted DESC, key LIMIT 1", args)
	if len(found) > 0 {
		b.Example = &found[0]
	}
	return b, err
}

// Retry gives the failures of the slot another chance that failed with anything else than what is to be tried now: another
// statement, for example. Of them no attempt is counted any more.
func (s *Slot) Retry(ctx context.Context, q shard.Querier, with string) error {
	var args arguments
	_, err := q.Exec(ctx, "UPDATE shardedjob.row_failure SET attempts = 0, exhausted = false, due_at = now() WHERE "+s.mine(&args)+
		" AND attempts > 0 AND tried_with <> "+args.add(with), args...)
	return wrap("give failed rows another chance", err)
}
