package fence

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"shardedjob.dev/hack/postgres"
)

// TestC04RandomPlansAndFaults runs workers through plans that change all the time, with sessions that are ended, that freeze with an
// open transaction and that unlock everything in their own SQL. Each worker has a second session, on which it adopts any slot
// that it gets. Each batch takes the rows of its slot with FOR UPDATE
// NOWAIT: the server itself, apart from the fence, tells if any other transaction has one of them.
func TestC04RandomPlansAndFaults(t *testing.T) {
	const workers, rows, changes = 5, 30, 25
	uri := database(t)
	admin := postgres.Connect(t, uri)
	exec(t, admin, "CREATE TABLE t (id int PRIMARY KEY, worked int NOT NULL DEFAULT 0)")
	exec(t, admin, "INSERT INTO t SELECT g FROM generate_series(-$1::int / 2, $1::int / 2) g", rows)
	w := newTroupe(t, uri, NewGroup("random/flapping"))
	for k := range workers {
		w.group.Go(func() { w.live(int32(k), false) })
		w.group.Go(func() { w.live(int32(k), true) })
	}
	for range changes {
		select {
		case <-time.After(20*time.Millisecond + rand.N(250*time.Millisecond)):
		case <-w.ctx.Done():
		}
		if rand.N(3) == 0 {
			exec(t, admin, `SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_locks
				WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
				ORDER BY random() LIMIT 1) victim`)
		}
		w.publish(func(p plan) plan {
			p.slots = 1 + rand.Int32N(workers)
			if rand.N(5) > 0 { // else one epoch has two slot counts
				p.epoch++
			}
			return p
		})
	}
	last := w.publish(func(plan) plan { return plan{epoch: 1000, slots: workers, calm: true} })
	eventually(t, "the last plan is worked by everybody", func() bool {
		return w.ctx.Err() != nil || w.working(last) == workers
	})
	before := w.batches.get()
	eventually(t, "work goes on", func() bool { return w.ctx.Err() != nil || w.batches.get() > before+workers })
	w.stop(nil)
	w.group.Wait()
	if err := context.Cause(w.ctx); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	t.Logf("%d batches (%d of adopters, who were asked to leave %d times), %d entries superseded, %d sessions lost, %d zombies",
		w.batches.get(), w.adopted.get(), w.wanted.get(), w.superseded.get(), w.lost.get(), len(w.zombies))
	if w.adopted.get() == 0 {
		t.Error("no slot was adopted")
	}
}

type plan struct {
	epoch int64
	slots int32
	calm  bool // no more faults
}

type counter struct {
	mu sync.Mutex
	n  int
}

func (c *counter) add() { c.mu.Lock(); c.n++; c.mu.Unlock() }

func (c *counter) get() int { c.mu.Lock(); defer c.mu.Unlock(); return c.n }

// A troupe is workers in goroutines, and the plan they obey.
type troupe struct {
	ctx    context.Context
	stop   context.CancelCauseFunc
	config *pgx.ConnConfig
	name   Group
	group  sync.WaitGroup

	batches, adopted, wanted, superseded, lost counter

	mu      sync.Mutex
	plan    plan
	changed chan struct{}
	at      map[int32]plan // what each worker works under
	zombies []*Session
}

func newTroupe(t *testing.T, uri string, g Group) *troupe {
	config, err := pgx.ParseConfig(uri)
	if err != nil {
		t.Fatal(err)
	}
	w := &troupe{config: config, name: g, plan: plan{epoch: 1, slots: 2}, changed: make(chan struct{}), at: map[int32]plan{}}
	w.ctx, w.stop = context.WithCancelCause(t.Context())
	t.Cleanup(func() {
		w.stop(nil)
		w.group.Wait()
		for _, s := range w.zombies {
			_ = s.Close(context.Background())
		}
	})
	return w
}

func (w *troupe) publish(change func(plan) plan) plan {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.plan = change(w.plan)
	close(w.changed)
	w.changed = make(chan struct{})
	return w.plan
}

// read is the plan, and a context that ends when there is another.
func (w *troupe) read() (plan, context.Context, context.CancelFunc) {
	w.mu.Lock()
	defer w.mu.Unlock()
	ctx, cancel := context.WithCancel(w.ctx)
	changed := w.changed
	go func() {
		select {
		case <-changed:
			cancel()
		case <-ctx.Done():
		}
	}()
	return w.plan, ctx, cancel
}

func (w *troupe) working(p plan) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, at := range w.at {
		if at == p {
			n++
		}
	}
	return n
}

func (w *troupe) note(ordinal int32, p plan) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.at[ordinal] = p
}

// live is a pod's life, or that of the adopter in it: one session after the other.
func (w *troupe) live(ordinal int32, adopts bool) {
	for w.ctx.Err() == nil {
		s, err := Open(w.ctx, w.config, Options{ApplicationName: ApplicationName(w.name, ordinal, "5f1c7a34", w.name.Name())})
		if err != nil {
			if w.ctx.Err() == nil {
				w.stop(err)
			}
			return
		}
		for err == nil && w.ctx.Err() == nil {
			err = w.once(s, ordinal, adopts)
		}
		if errors.Is(err, errFrozen) {
			w.mu.Lock()
			w.zombies = append(w.zombies, s) // held open, never answering
			w.mu.Unlock()
			continue
		}
		_ = s.Close(w.ctx)
		var ended *pgconn.PgError
		if err != nil && w.ctx.Err() == nil && !errors.Is(err, ErrSessionLost) && !errors.Is(err, ErrLockLost) && !errors.As(err, &ended) {
			w.stop(fmt.Errorf("worker %d: %w", ordinal, err))
		}
		if ended != nil && ended.Code == "55P03" { // lock_not_available
			w.stop(fmt.Errorf("worker %d met another session at its rows: %w", ordinal, err))
		}
		w.lost.add()
	}
}

var errFrozen = errors.New("frozen")

// once enters under the plan and works until there is another.
func (w *troupe) once(s *Session, ordinal int32, adopts bool) error {
	p, ctx, cancel := w.read()
	defer cancel()
	if !p.calm && rand.N(3) == 0 { // an old plan, as after a restart while the API server is away
		p.epoch, p.slots = max(1, p.epoch-rand.Int64N(3)), 1+rand.Int32N(p.slots)
	}
	for {
		slot := ordinal
		if adopts {
			slot = rand.Int32N(p.slots)
		}
		newer, err := w.under(ctx, s, ordinal, slot, p)
		if newer == nil || err != nil || ctx.Err() != nil {
			return err
		}
		w.superseded.add()
		p = plan{epoch: newer.Epoch, slots: newer.Slots, calm: p.calm} // as long as nothing newer is heard
	}
}

// under enters and works under one plan. An adopter works a few batches of one slot.
func (w *troupe) under(ctx context.Context, s *Session, ordinal, slot int32, p plan) (*SupersededError, error) {
	c := Claim{Group: w.name, UID: "uid", Ordinal: ordinal, Slot: slot, Epoch: p.epoch, Slots: p.slots, TableOID: 4711, Handover: 400 * time.Millisecond}
	if err := s.Join(w.ctx, c); err != nil {
		return nil, err
	}
	for slot >= p.slots {
		if newer, err := s.Superseded(w.ctx, c); newer != nil || err != nil {
			return newer, err
		}
		if pause(ctx, p.slots) != nil {
			return nil, nil
		}
	}
	err := s.Enter(ctx, c, nil)
	var newer *SupersededError
	switch {
	case errors.As(err, &newer) && s.Lost() == nil:
		return newer, nil
	case errors.Is(err, ErrSlotTaken) && c.adopts() && s.Lost() == nil:
		_ = pause(ctx, p.slots)
		return nil, nil
	case err != nil && ctx.Err() != nil && s.Lost() == nil:
		return nil, nil
	case err != nil:
		return nil, err
	}
	if !c.adopts() {
		w.note(ordinal, p)
		defer func() { w.note(ordinal, plan{}) }()
	}
	for n := 0; ctx.Err() == nil && newer == nil; n++ {
		if err := w.batch(s, c, p); err != nil {
			return nil, err
		}
		if newer, err = s.Superseded(w.ctx, c); err != nil {
			return nil, err
		}
		if !c.adopts() {
			continue
		}
		w.adopted.add()
		wanted, err := s.Wanted(w.ctx, c)
		if err != nil {
			return nil, err
		}
		if wanted {
			w.wanted.add()
		}
		if wanted || n > 5 {
			break
		}
	}
	return newer, s.Leave(context.WithoutCancel(w.ctx))
}

// batch is a transaction on the fenced session. Work on a lost or wrongly fenced session fails; the rows being taken does not happen.
func (w *troupe) batch(s *Session, c Claim, p plan) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.ctx), patience)
	defer cancel()
	tx, err := s.Conn().Begin(ctx)
	if err != nil {
		return s.Failed("beginning", err)
	}
	statements := []string{
		fmt.Sprintf("SELECT id FROM t WHERE MOD(id, %d) IN (%d, %d) FOR UPDATE NOWAIT", c.Slots, c.Slot, c.Slot-c.Slots),
		fmt.Sprintf("UPDATE t SET worked = worked + 1 WHERE MOD(id, %d) IN (%d, %d)", c.Slots, c.Slot, c.Slot-c.Slots),
		fmt.Sprintf("SELECT pg_sleep(%f)", rand.Float64()*0.03),
	}
	fault := rand.N(30)
	if p.calm {
		fault = -1
	}
	if fault == 0 {
		statements = append(statements, "SELECT pg_advisory_unlock_all()")
	}
	for _, sql := range statements {
		if _, err := tx.Exec(ctx, sql); err != nil {
			return s.Failed("working", err)
		}
	}
	if fault == 1 {
		return errFrozen
	}
	if err := s.CheckLocks(ctx, tx); err != nil {
		return errors.Join(err, tx.Rollback(ctx))
	}
	if fault == 0 {
		return errors.New("the user's pg_advisory_unlock_all() was not noticed")
	}
	if err := tx.Commit(ctx); err != nil {
		return s.Failed("committing", err)
	}
	w.batches.add()
	return nil
}
