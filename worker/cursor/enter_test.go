package cursor

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"shardedjob.dev/worker/shard"
)

func TestEnterMovesTheEpochUp(t *testing.T) {
	for _, c := range []struct {
		name     string
		had, p   Plan
		admitted bool
	}{
		{"first", Plan{}, plan(1, 3), true},
		{"same", plan(4, 3), plan(4, 3), true},
		{"newer", plan(4, 3), plan(5, 2), true},
		{"much newer", plan(4, 3), plan(400, 1000), true},
		{"older", plan(4, 3), plan(3, 3), false},
		{"older with more slots", plan(4, 3), plan(3, 7), false},
		{"rival with more slots", plan(4, 3), plan(4, 4), true},
		{"rival with fewer slots", plan(4, 3), plan(4, 2), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, "bigint")
			if c.had.Slots > 0 {
				b.enter(b.conn, c.had)
			}
			problem, err := Enter(t.Context(), b.conn, c.p, b.table)
			var stale *StaleError
			if problem != nil || (err == nil) != c.admitted || err != nil && !errors.As(err, &stale) {
				t.Fatalf("%+v %v", problem, err)
			}
			at := c.p
			if !c.admitted {
				at = c.had
				if stale.Epoch != at.Epoch || stale.Slots != at.Slots {
					t.Errorf("the error has %+v, the table %v", stale, at)
				}
			}
			b.want("SELECT format('%s %s %s', epoch, slots, (SELECT count(*) FROM shardedjob.slot WHERE NOT closed)) FROM shardedjob.job",
				fmt.Sprintf("%d %d %d", at.Epoch, at.Slots, at.Slots))
			if _, err := Open(t.Context(), b.conn, c.p, b.table, 0); (err == nil) != c.admitted {
				t.Errorf("open: %v", err)
			}
		})
	}
}

// TestEntrantsAtOnce lets workers of one plan, of older and of newer ones enter, work and crash at random, each on a session of its own
// and without any lock between them: the table alone has to keep them apart.
func TestEntrantsAtOnce(t *testing.T) {
	b := newBench(t, "bigint")
	b.exec("INSERT INTO t SELECT generate_series(-300, 299)")
	const workers, rounds = 5, 20
	var group sync.WaitGroup
	var mu sync.Mutex
	outcomes := map[string]int{}
	newest := plan(1, 1)
	for range workers {
		conn := b.connect()
		group.Go(func() {
			for range rounds {
				mu.Lock()
				if rand.N(12) == 0 {
					newest = plan(newest.Epoch+1, 1+rand.Int32N(4))
				}
				p := newest
				if rand.N(5) == 0 && p.Epoch > 1 { // one who has not heard of it
					p = plan(p.Epoch-1, 1+rand.Int32N(4))
				}
				mu.Unlock()
				outcome := b.visit(conn, p)
				mu.Lock()
				outcomes[outcome]++
				mu.Unlock()
			}
		})
	}
	group.Wait()
	t.Log(outcomes)
	if outcomes["worked"] == 0 || outcomes["stale"] == 0 {
		t.Error("nobody worked, or nobody was stale")
	}
	for k := range newest.Slots {
		b.drain(b.conn, b.open(b.conn, newest, k), 100)
	}
	b.wantAllOnce()
	b.complete(b.conn, newest, true)
}

// visit enters a plan, works some batches of a random slot, and says how it ended.
func (b *bench) visit(conn *pgx.Conn, p Plan) string {
	var stale *StaleError
	_, err := Enter(b.Context(), conn, p, b.table)
	if err == nil {
		_, err = NewHorizon(p, b.table).Step(b.Context(), conn)
	}
	var s *Slot
	if err == nil {
		s, err = Open(b.Context(), conn, p, b.table, rand.Int32N(p.Slots))
	}
	for i := 0; err == nil && i < 3 && s.job.HorizonAt != nil && !s.AtEnd(); i++ {
		_, err = b.batch(conn, s, s.Next(1+rand.N(20)), func(*Batch, *Move) error { return crashIf(rand.N(5) == 0) })
	}
	switch {
	case err == nil:
		return "worked"
	case errors.As(err, &stale):
		return "stale"
	case errors.Is(err, ErrCursorMoved):
		return "moved"
	case errors.Is(err, errCrash):
		return "crashed"
	case strings.Contains(err.Error(), "40P01"):
		return "deadlock"
	}
	b.Errorf("%v: %v", p, err)
	return "failed"
}

// TestABatchUnderWayWhenANewerPlanComes holds a batch of an older plan just before its move, and just before its COMMIT.
func TestABatchUnderWayWhenANewerPlanComes(t *testing.T) {
	for name, moved := range map[string]bool{"before its move": false, "before its commit": true} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, "bigint")
			b.exec("INSERT INTO t SELECT generate_series(1, 100)")
			old, entrant := b.connect(), b.connect()
			s := b.open(old, plan(1, 2), 1)
			b.next(old, s, 10) // so that the layer has something to cover, and stays
			tx, err := old.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var found Batch
			var trip pgx.Batch
			s.Next(10).Queue(&trip, &found)
			if err := tx.SendBatch(t.Context(), &trip).Close(); err != nil {
				t.Fatal(err)
			}
			exec(t, old, "UPDATE t SET times = times + 1 WHERE id = ANY ($1)", shard.Array(found.Keys))
			move := func() error {
				trip = pgx.Batch{}
				s.Advance(found.Move()).Queue(&trip)
				return tx.SendBatch(t.Context(), &trip).Close()
			}
			if moved {
				if err := move(); err != nil {
					t.Fatal(err)
				}
			}
			entered := make(chan error, 1)
			go func() {
				_, err := Enter(t.Context(), entrant, plan(2, 3), b.table)
				entered <- err
			}()
			if moved {
				eventually(t, "the entrant waits for the batch", func() bool {
					return b.text("SELECT count(*)::text FROM pg_stat_activity WHERE pid = "+fmt.Sprint(entrant.PgConn().PID())+" AND wait_event_type = 'Lock'") == "1"
				})
				if err := tx.Commit(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if err := <-entered; err != nil {
				t.Fatal(err)
			}
			if !moved {
				if err := move(); !errors.Is(err, ErrCursorMoved) {
					t.Errorf("the old batch moves on: %v", err)
				}
				if err := tx.Rollback(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			for k := range int32(3) {
				b.drain(b.conn, b.open(b.conn, plan(2, 3), k), 100)
			}
			b.wantAllOnce()
		})
	}
}
