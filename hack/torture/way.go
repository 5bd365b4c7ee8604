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
}

// ways are all there are. In each the work is not idempotent.
var ways = []way{
	{name: "pending", pending: "NOT done", set: "n = n + 1, done = true"},
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
