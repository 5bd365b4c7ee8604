package cursor

import (
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"shardedjob.dev/worker/shard"
)

// A Selection finds rows and locks those that nobody else has locked, each with a re-check, since a row may have been changed
// after it was found.
type Selection struct {
	sql  string
	args arguments
	// asked are the keys that were asked for, of Take; walk: up the index of the key, of Next.
	asked []shard.Key
	walk  bool
	limit int
}

// A Batch is what a selection found.
type Batch struct {
	// Keys are locked and to be worked, ascending.
	Keys []shard.Key
	// Locked are keys whose rows another session has locked, or has just deleted.
	Locked []shard.Key
	// Gone are keys that were asked for whose rows are deleted, moved to another key, or no longer in scope. Next finds none.
	Gone []shard.Key
	// End is the key up to which Next has searched: where the cursor is once Keys are done. Nil for Take.
	End *shard.Key

	short  bool // fewer were found than asked for
	passed bool // no older layer covers anything beyond End
}

// A search that the statement timeout broke off is repeated in windows of so many rows of the table, whosever they are, and of
// half as many each time that this takes too long as well. After growAfter windows in a row that held too few they grow again.
const (
	firstWindow = 200_000
	leastWindow = 10
	growAfter   = 16
)

// Next selects the next rows of the slot after the cursor, at most limit. A batch that fails is split by asking for fewer: the
// same rows come again as long as the cursor stays. Without Keys and Locked nothing was found up to End: move the cursor
// there, which takes no statement.
//
// The horizon must be known, and the cursor not be at it.
func (s *Slot) Next(limit int) Selection {
	t := s.table
	key, order := t.Column(), t.Order(t.Column())
	var args arguments
	within := fmt.Sprintf("%s <= %s", order, t.KeyValue(args.key(s.job.Horizon)))
	if s.cursor != nil {
		within += fmt.Sprintf(" AND %s > %s", order, t.KeyValue(args.key(s.cursor)))
	}
	mine := t.Predicate(s.plan.Slots, s.number) + " AND " + t.Scope()
	passed := "true"
	for _, layer := range s.older {
		mine += " AND " + layer.open(t, &args)
		passed += fmt.Sprintf(" AND NOT EXISTS (SELECT FROM unnest($%d::text[]) AS sj_had(sj_cursor) WHERE %s > (SELECT sj_key FROM sj_end))",
			len(args), t.KeyValue("sj_cursor"))
	}
	picked := fmt.Sprintf("SELECT %s AS sj_key FROM %s WHERE %s AND %s ORDER BY %s LIMIT %d", key, t.Quoted(), within, mine, order, limit)
	end := t.KeyValue("$1")
	if s.window > 0 {
		seen := fmt.Sprintf("SELECT %s AS sj_key, %s AS sj_mine FROM %s WHERE %s ORDER BY %s", key, mine, t.Quoted(), within, order)
		picked = fmt.Sprintf("SELECT sj_key FROM (%s LIMIT %d) AS sj_seen WHERE sj_mine LIMIT %d", seen, s.window, limit)
		end = fmt.Sprintf("coalesce((SELECT %s FROM %s WHERE %s ORDER BY %s OFFSET %d LIMIT 1), %s)", key, t.Quoted(), within, order, s.window-1, end)
	}
	// The rows are found first and locked then, by their keys. To lock what is found as it is found would take a row whose key was
	// changed meanwhile under its new key, out of order, and the cursor would go on from there.
	return Selection{args: args, walk: true, limit: limit, sql: fmt.Sprintf(`
		WITH sj_picked AS MATERIALIZED (%s),
		sj_locked AS MATERIALIZED (
			SELECT sj_text FROM sj_picked CROSS JOIN LATERAL (
				SELECT %s AS sj_text FROM %s WHERE %s = sj_key AND %s FOR NO KEY UPDATE SKIP LOCKED) AS sj_row
		),
		sj_end AS MATERIALIZED (
			SELECT CASE WHEN (SELECT count(*) FROM sj_picked) = %d THEN (SELECT sj_key FROM sj_picked OFFSET %d) ELSE %s END AS sj_key
		)
		SELECT ARRAY(SELECT %s FROM sj_picked), ARRAY(SELECT sj_text FROM sj_locked), (SELECT %s FROM sj_end), %s`,
		picked, t.KeyText(key), t.Quoted(), key, t.Scope(), limit, limit-1, end, t.KeyText("sj_key"), t.KeyText("sj_key"), passed)}
}

// TooSlow takes a timeout of Next as a reason to search fewer rows at a time, and says whether that is possible.
func (s *Slot) TooSlow() bool {
	s.narrow = 0
	switch s.window {
	case 0:
		s.window = firstWindow
	case leastWindow:
		return false
	default:
		s.window = max(leastWindow, s.window/2)
	}
	return true
}

// Take selects rows by their keys: failures that are due.
func (s *Slot) Take(keys []shard.Key) Selection {
	t := s.table
	var args arguments
	rows := fmt.Sprintf("SELECT %s AS sj_text FROM %s WHERE %s = ANY (%s::%s[]) AND %s",
		t.KeyText(t.Column()), t.Quoted(), t.Column(), args.add(shard.Array(keys)), t.KeyType, t.Scope())
	return Selection{asked: keys, args: args, sql: fmt.Sprintf(`
		WITH sj_locked AS MATERIALIZED (%s FOR NO KEY UPDATE SKIP LOCKED)
		SELECT ARRAY(%s ORDER BY %s), ARRAY(SELECT sj_text FROM sj_locked), NULL::text, false`, rows, rows, t.Order(t.Column()))}
}

// Queue adds the selection to a round trip in which a transaction is open, and stores what it finds when its results are
// read.
func (s Selection) Queue(b *pgx.Batch, into *Batch) {
	if s.walk {
		b.Queue(shard.WithoutSort)
	}
	b.Queue(s.sql, s.args...).QueryRow(func(row pgx.Row) error {
		var found, locked []shard.Key
		*into = Batch{}
		if err := row.Scan(&found, &locked, &into.End, &into.passed); err != nil {
			return fmt.Errorf("select rows: %w", err)
		}
		taken := set(locked)
		for _, key := range found {
			if taken[key] {
				into.Keys = append(into.Keys, key)
			} else {
				into.Locked = append(into.Locked, key)
			}
		}
		there := set(found)
		into.short = len(found) < s.limit
		into.Gone = slices.DeleteFunc(slices.Clone(s.asked), func(key shard.Key) bool { return there[key] })
		return nil
	})
	if s.walk {
		b.Queue(shard.WithSort)
	}
}

func set(keys []shard.Key) map[shard.Key]bool {
	all := make(map[shard.Key]bool, len(keys))
	for _, key := range keys {
		all[key] = true
	}
	return all
}
