package cursor

import (
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"shardedjob.dev/worker/shard"
)

// A Move is what a transaction changes in what is remembered of a slot.
type Move struct {
	// To is the new cursor; nil: it stays.
	To *shard.Key
	// Processed and Gone are the rows that this transaction has done and found gone.
	Processed, Gone int
	// Failed are rows that stay behind the cursor, to be tried again; those with attempts 0 were locked by others, which counts as no
	// attempt even if the row had failed before.
	Failed []Failure
	// TriedWith is a fingerprint of what the rows failed with: Slot.Retry gives those another chance that failed with another.
	TriedWith string
	// Resolved are keys that were remembered as failed and are not any more.
	Resolved []shard.Key

	short, passed bool // as in Batch
}

// lockedReason and lockedPause are for rows that others have locked.
const (
	lockedReason = "locked by another session"
	lockedPause  = firstRetry
)

// Move is the move that a batch makes when all its Keys are done: the cursor goes to End, what was locked by others is to be tried
// again, and what was taken by its key, or is gone, is resolved. Resolving a key that was not remembered is ErrCursorMoved.
func (b Batch) Move() Move {
	m := Move{To: b.End, Processed: len(b.Keys), Gone: len(b.Gone), short: b.short, passed: b.passed}
	for _, key := range b.Locked {
		m.Failed = append(m.Failed, Failure{Key: key, Reason: lockedReason, Due: lockedPause})
	}
	if b.End == nil {
		m.Resolved = append(append(m.Resolved, b.Keys...), b.Gone...)
	}
	return m
}

// AdvanceSQL makes a move: the cursor by compare-and-set, and with it what stays behind. It can be prepared; its result is for
// Advance.Verify. The slot's row comes first, so that two who would change the same meet there.
const AdvanceSQL = `
	WITH moved AS (
		UPDATE shardedjob.slot
		   SET cursor = $6::text, processed = processed + $7::bigint, gone = gone + $8::bigint, updated_at = now()
		 WHERE consumer_group = $1::text AND epoch = $2::bigint AND slots = $3::integer AND slot = $4::integer
		   AND NOT closed AND cursor IS NOT DISTINCT FROM $5::text
		RETURNING consumer_group
	), failed AS (
		INSERT INTO shardedjob.row_failure AS f (consumer_group, key, attempts, reason, exhausted, tried_with, due_at)
		SELECT consumer_group, key, attempts, reason, exhausted, $15::text, now() + pause * interval '1 millisecond'
		  FROM moved, unnest($9::text[], $10::integer[], $11::text[], $12::boolean[], $13::bigint[]) AS had(key, attempts, reason, exhausted, pause)
		ON CONFLICT (consumer_group, key) DO UPDATE
		   SET attempts = greatest(f.attempts, excluded.attempts),
		       reason = CASE WHEN excluded.attempts > 0 THEN excluded.reason ELSE f.reason END,
		       tried_with = CASE WHEN excluded.attempts > 0 THEN excluded.tried_with ELSE f.tried_with END,
		       exhausted = CASE WHEN excluded.attempts > 0 THEN excluded.exhausted ELSE f.exhausted END,
		       last_at = CASE WHEN excluded.attempts > 0 THEN excluded.last_at ELSE f.last_at END,
		       due_at = excluded.due_at
	), resolved AS (
		DELETE FROM shardedjob.row_failure f USING moved
		 WHERE f.consumer_group = moved.consumer_group AND f.key = ANY ($14::text[])
		RETURNING 1
	)
	SELECT (SELECT count(*) FROM moved)::integer, (SELECT count(*) FROM resolved)::integer`

// An Advance is one move of a slot, to be made in the transaction of the effects.
type Advance struct {
	slot *Slot
	move Move
}

// Advance prepares a move from where the cursor is. After COMMIT call Committed.
func (s *Slot) Advance(m Move) *Advance {
	if m.To == nil {
		m.To = s.cursor
	}
	return &Advance{slot: s, move: m}
}

// Params are the parameters of AdvanceSQL, in text format.
func (a *Advance) Params() [][]byte {
	s, m := a.slot, a.move
	var keys, reasons []shard.Key
	var attempts, exhausted, pauses []string
	for _, f := range m.Failed {
		keys = append(keys, f.Key)
		reasons = append(reasons, shard.Key(strings.ToValidUTF8(f.Reason, "?")))
		attempts = append(attempts, strconv.Itoa(int(f.Attempts)))
		exhausted = append(exhausted, strconv.FormatBool(f.Exhausted))
		pauses = append(pauses, strconv.FormatInt(f.Due.Milliseconds(), 10))
	}
	list := func(values []string) string { return "{" + strings.Join(values, ",") + "}" }
	params := [][]byte{
		[]byte(s.plan.Group), strconv.AppendInt(nil, s.plan.Epoch, 10), strconv.AppendInt(nil, int64(s.plan.Slots), 10),
		strconv.AppendInt(nil, int64(s.number), 10), text(s.cursor), text(m.To),
		strconv.AppendInt(nil, int64(m.Processed), 10), strconv.AppendInt(nil, int64(m.Gone), 10),
	}
	for _, array := range []string{shard.Array(keys), list(attempts), shard.Array(reasons), list(exhausted), list(pauses), shard.Array(m.Resolved)} {
		params = append(params, []byte(array))
	}
	return append(params, []byte(m.TriedWith))
}

// text is a parameter; nil is NULL, and what is not nil is not, even if it is empty.
func text(key *shard.Key) []byte {
	if key == nil {
		return nil
	}
	return append([]byte{}, *key...)
}

// Verify reads the result of AdvanceSQL to its end, and fails with ErrCursorMoved if something was not as this worker knew it.
func (a *Advance) Verify(rows pgx.Rows) error {
	var moved, resolved int32
	if _, err := pgx.ForEachRow(rows, []any{&moved, &resolved}, func() error { return nil }); err != nil {
		return err
	}
	if moved != 1 || int(resolved) != len(a.move.Resolved) {
		return ErrCursorMoved
	}
	return nil
}

// Queue adds the move to a round trip. ErrCursorMoved comes out of the batch's Close; so COMMIT must not be part of it.
func (a *Advance) Queue(b *pgx.Batch) {
	var args []any
	for _, param := range a.Params() {
		if param == nil {
			args = append(args, nil)
		} else {
			args = append(args, string(param))
		}
	}
	b.Queue(AdvanceSQL, args...).Query(a.Verify)
}

// Committed notes in the Slot that the transaction was committed.
func (a *Advance) Committed() {
	s := a.slot
	s.cursor = a.move.To
	if a.move.passed {
		s.older = nil
	}
	if s.window == 0 || !a.move.short {
		return
	}
	if s.narrow++; s.narrow >= growAfter {
		s.window, s.narrow = min(firstWindow, 2*s.window), 0
	}
}
