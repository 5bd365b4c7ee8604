package cursor

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"shardedjob.dev/worker/shard"
)

// A hold is a lock on a table, or on a partition of it, that a transaction has which may write there. It is the lock that is waited for: a
// prepared transaction has neither process nor virtual transaction of its own and keeps the lock, also over a restart.
type hold struct {
	virtual  string // the virtual transaction, as pg_locks has it
	relation uint32
}

// A writer is who has a hold.
type writer struct {
	pid      int32         // 0: a prepared transaction
	prepared string        // its name
	open     time.Duration // since it began; negative: the role may not see that
}

// writersQuery lists who may write into table $1. INSERT, UPDATE, DELETE, MERGE and COPY take ROW EXCLUSIVE, on the table that is named and
// on the partition that the row goes to, before they draw a value of a sequence. Of the stronger modes SHARE ROW EXCLUSIVE, EXCLUSIVE and
// ACCESS EXCLUSIVE are taken on the way to a write, by LOCK TABLE for example. SHARE UPDATE EXCLUSIVE (VACUUM, ANALYZE, CREATE INDEX CONCURRENTLY)
// and SHARE (CREATE INDEX) write no rows and last for hours; but a partitioned table has SHARE UPDATE EXCLUSIVE while a filled table is
// attached to it.
const writersQuery = `
	WITH RECURSIVE ` + tree + `, locks AS MATERIALIZED (SELECT * FROM pg_locks WHERE granted)
	SELECT l.virtualtransaction, l.relation, coalesce(l.pid, 0), coalesce(p.gid, ''),
	       coalesce(extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, p.prepared)), -1)::float8
	  FROM locks l JOIN tree ON tree.oid = l.relation JOIN pg_class c ON c.oid = l.relation
	  LEFT JOIN pg_stat_activity a ON a.pid = l.pid
	  LEFT JOIN (locks x JOIN pg_prepared_xacts p ON p.transaction = x.transactionid)
	         ON l.pid IS NULL AND x.pid IS NULL AND x.virtualtransaction = l.virtualtransaction
	 WHERE l.locktype = 'relation' AND l.pid IS DISTINCT FROM pg_backend_pid()
	   AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
	   AND (l.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
	        OR l.mode = 'ShareUpdateExclusiveLock' AND c.relkind = 'p')`

func readWriters(ctx context.Context, q shard.Querier, t shard.Table) (map[hold]writer, error) {
	rows, err := q.Query(ctx, writersQuery, t.OID)
	if err != nil {
		return nil, wrap("look who writes", err)
	}
	found := map[hold]writer{}
	var h hold
	var w writer
	var seconds float64
	_, err = pgx.ForEachRow(rows, []any{&h.virtual, &h.relation, &w.pid, &w.prepared, &seconds}, func() error {
		w.open = time.Duration(seconds * float64(time.Second))
		found[h] = w
		return nil
	})
	return found, wrap("look who writes", err)
}

// left are those of the waited for that are still there. In some versions PREPARE TRANSACTION gives the locks to another virtual
// transaction: where one has gone, a prepared one that has newly come to the same table may be it, and is waited for too.
func left(waited, before, now map[hold]writer) map[hold]writer {
	still := map[hold]writer{}
	vanished := map[uint32]bool{}
	for h, w := range waited {
		if _, ok := now[h]; ok {
			still[h] = now[h]
		} else if w.pid != 0 {
			vanished[h.relation] = true
		}
	}
	for h, w := range now {
		if _, known := before[h]; w.pid == 0 && !known && vanished[h.relation] {
			still[h] = w
		}
	}
	return still
}

// A Wait says whom a horizon waits for.
type Wait struct {
	// Transactions that may yet commit rows below the horizon.
	Transactions int
	// Message is a sentence for people: "waiting for 1 transaction, pid 4711, open for 62 s".
	Message string
}

// newWait tells of the transaction that is open for longest by name.
func newWait(waited map[hold]writer, since time.Duration) *Wait {
	transactions := map[string]writer{}
	for h, w := range waited {
		transactions[h.virtual] = w
	}
	var first writer
	name := ""
	for virtual, w := range transactions {
		if name == "" || w.open > first.open || w.open == first.open && virtual < name {
			first, name = w, virtual
		}
	}
	who := fmt.Sprintf("pid %d", first.pid)
	if first.pid == 0 {
		who = fmt.Sprintf("prepared transaction %q", first.prepared)
	}
	message := fmt.Sprintf("waiting for 1 transaction, %s", who)
	if n := len(transactions); n > 1 {
		message = fmt.Sprintf("waiting for %d transactions, the oldest %s", n, who)
	}
	if first.open >= 0 {
		message += fmt.Sprintf(", open for %d s", int64(first.open.Seconds()))
	} else {
		message += fmt.Sprintf(", for %d s", int64(since.Seconds()))
	}
	return &Wait{Transactions: len(transactions), Message: strings.ToValidUTF8(message, "?")}
}
