package cursor

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"shardedjob.dev/worker/shard"
)

// A Horizon is on its way to be found: the greatest key that a cursor moves to. Keys are handed out before they are committed, so
// a row may appear below keys that are there already. First all who are writing now are waited for: what they have written belongs to
// the job. The greatest key that is there then, whatever a sequence says, is the horizon. Then all who are writing at that time are
// waited for: nobody else can have drawn a key below it. From then on no row appears up to the horizon but under a key that was
// chosen by hand, or that was drawn before its INSERT began.
//
// Any number of workers may look for it; the first one to find it keeps it in the database, for all of the group and for good.
type Horizon struct {
	plan  Plan
	table shard.Table

	conn   *pgx.Conn // whom the wait belongs to
	since  time.Time
	read   bool            // the greatest key has been read, and the second wait is on
	top    []shard.Key     // that key and those next to it, descending; empty: the table is
	waited map[hold]writer // those still waited for; nil: not looked yet
	before map[hold]writer // all at the last look
}

// NewHorizon begins to look for the horizon of a plan.
func NewHorizon(p Plan, t shard.Table) *Horizon { return &Horizon{plan: p, table: t} }

// Step looks once, in no transaction, whether those who were writing are done. Nil, nil: the horizon is in the database,
// and the slot is to be opened anew. Else call it again after a pause. It blocks nobody. On another session the wait begins
// anew, since a server that was restarted may have forgotten whom we waited for. It fails with *StaleError if the durable
// epoch is not the plan's any more, and with shard.ErrChanged if the table's name leads elsewhere.
func (h *Horizon) Step(ctx context.Context, conn *pgx.Conn) (*Wait, error) {
	if h.conn != conn {
		*h = Horizon{plan: h.plan, table: h.table, conn: conn, since: time.Now()}
	}
	if known, err := h.known(ctx); known || err != nil {
		return nil, err
	}
	for {
		now, err := readWriters(ctx, conn, h.table)
		if err != nil {
			return nil, err
		}
		if h.waited == nil {
			h.waited = now
		} else {
			h.waited = left(h.waited, h.before, now)
		}
		h.before = now
		switch {
		case len(h.waited) > 0:
			return newWait(h.waited, time.Since(h.since)), nil
		case h.read:
			return nil, h.keep(ctx)
		}
		// In a statement of its own, which sees what they have committed.
		if h.top, err = greatest(ctx, conn, h.table); err != nil {
			return nil, err
		}
		h.read, h.waited = true, nil
	}
}

// known says whether the horizon is in the database already.
func (h *Horizon) known(ctx context.Context) (bool, error) {
	job, err := readJob(ctx, h.conn, h.plan.Group, "")
	switch {
	case err != nil:
		return false, err
	case job == nil || job.scope == nil:
		return false, fmt.Errorf("find the horizon: %w", ErrCursorMoved)
	case !job.at(h.plan):
		return false, &StaleError{Epoch: job.Epoch, Slots: job.Slots}
	}
	return job.HorizonAt != nil, nil
}

// keep writes the horizon down, unless somebody else did, or there is a newer plan.
func (h *Horizon) keep(ctx context.Context) error {
	var horizon *string
	if len(h.top) > 0 {
		horizon = (*string)(&h.top[0])
	}
	tag, err := h.conn.Exec(ctx, `UPDATE shardedjob.job SET horizon = $4, horizon_at = now(), witnesses = $5
		WHERE consumer_group = $1 AND epoch = $2 AND slots = $3 AND table_oid IS NOT NULL AND horizon_at IS NULL`,
		h.plan.Group, h.plan.Epoch, h.plan.Slots, horizon, shard.Array(h.top))
	if err == nil && tag.RowsAffected() == 0 {
		_, err = h.known(ctx)
	}
	return wrap("keep the horizon", err)
}

// witnesses is how many of the greatest keys are remembered.
const witnesses = 20

// greatest are the greatest keys of the table, in scope or not, which the index has at its end. It fails with shard.ErrChanged if
// the table's name leads to another one, since its keys would stay the horizon even if the names were changed back.
func greatest(ctx context.Context, conn *pgx.Conn, t shard.Table) (keys []shard.Key, _ error) {
	var trip pgx.Batch // without BEGIN it is one transaction too
	trip.Queue(fmt.Sprintf("SELECT %s FROM %s ORDER BY %s DESC LIMIT %d", t.KeyText(t.Column()), t.Quoted(), t.Order(t.Column()), witnesses)).Query(
		func(rows pgx.Rows) (err error) {
			keys, err = shard.Keys(rows)
			return err
		})
	t.QueueCheck(&trip)
	return keys, wrap("look for the greatest keys", conn.SendBatch(ctx, &trip).Close())
}
