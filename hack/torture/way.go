package main

import (
	"fmt"
	"math/rand/v2"
)

// A way is one of the ways to remember what is done.
type way struct {
	name string
	// pending is the plan's condition; empty: a cursor.
	pending string
	// set is what the statement assigns.
	set string
	// owed is an SQL condition: which of the rows that were inserted late the job had promised to process. Of an arrival it knows id
	// and committed, of the job name and complete, the time that the report says.
	owed string
}

// ways are all there are. In each the work is not idempotent.
//
// With pending all rows are owed that were there when the check found nothing pending. It may have begun some time before it was
// told, in a coordinator that was stopped just then. With cursors it is all rows up to the horizon that were there when it was found;
// those that come later under lower keys are processed once or not at all.
var ways = []way{
	{name: "pending", pending: "NOT done", set: "n = n + 1, done = true", owed: "committed < complete - interval '15 s'"},
	{name: "cursors", set: "n = n + 1", owed: `EXISTS (SELECT FROM shardedjob.job WHERE consumer_group = name
		AND committed < horizon_at - interval '1 s' AND id <= key_of(horizon))`},
}

// statement makes a statement of chance for the way: plain and quick, slow, one in which now and then a row fails, or one that
// also writes to rows that all batches share, and so meets with deadlocks.
func (w way) statement(random *rand.Rand) string {
	switch random.IntN(4) {
	case 0:
		return fmt.Sprintf("UPDATE t SET %s WHERE id = ANY ($1)", w.set)
	case 1:
		return fmt.Sprintf("UPDATE t SET %s, note = 'flaky' || 1 / (random() > 0.0002)::int WHERE id = ANY ($1)", w.set)
	case 2:
		return fmt.Sprintf(`WITH shared AS (UPDATE side SET hits = hits + 1 WHERE bucket = abs(hashtext($1[1]::text) %% %d))
			UPDATE t SET %s FROM (SELECT pg_sleep(0.02)) pause WHERE id = ANY ($1)`, buckets, w.set)
	default:
		return fmt.Sprintf("UPDATE t SET %s FROM (SELECT pg_sleep(0.05)) pause WHERE id = ANY ($1)", w.set)
	}
}
