package fence

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"shardedjob.dev/hack/netns"
	"shardedjob.dev/hack/postgres"
)

// takeover is how long the server may take to notice that it has lost a worker.
const takeover = 15 * time.Second

// openFar opens a worker's session that comes over a cable.
func openFar(t *testing.T, server *postgres.Server, cable *netns.Cable, uri string, g Group, ordinal int32) *Session {
	t.Helper()
	config, err := pgx.ParseConfig(server.URIAt(cable.Outside().String(), postgres.DatabaseName(uri)))
	if err != nil {
		t.Fatal(err)
	}
	config.DialFunc = cable.Dial
	s, err := Open(deadline(t), config, Options{ApplicationName: ApplicationName(g, ordinal, "5f1c7a34", g.Name())})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close(context.Background()) })
	return s
}

// lostClients are the moments in which a client can be lost.
var lostClients = []struct {
	name string
	// doing is what the server does then: a state and what it waits for.
	doing string
	// busy works on the session until the context ends or something fails.
	busy func(ctx context.Context, s *Session) error
}{
	{"idle", "idle ClientRead", func(ctx context.Context, s *Session) error {
		<-ctx.Done()
		return s.Ping(context.WithoutCancel(ctx))
	}},
	{"in the middle of a statement", "active PgSleep", func(ctx context.Context, s *Session) error {
		_, err := s.Conn().Exec(ctx, "UPDATE t SET v = 1 WHERE pg_sleep(25) IS NOT NULL")
		return err
	}},
	{"between the statements of a transaction", "idle in transaction ClientRead", func(ctx context.Context, s *Session) error {
		if _, err := s.Conn().Exec(ctx, "BEGIN; UPDATE t SET v = 1 WHERE id = 2"); err != nil {
			return err
		}
		<-ctx.Done()
		return s.CheckLocks(context.WithoutCancel(ctx), s.Conn())
	}},
	{"waiting for a row", "active transactionid", func(ctx context.Context, s *Session) error {
		_, err := s.Conn().Exec(ctx, "SET lock_timeout = 0; UPDATE t SET v = 1 WHERE id = 1")
		return err
	}},
	{"in the middle of a large result", "active ClientWrite", func(ctx context.Context, s *Session) error {
		_, err := s.Conn().Exec(ctx, large)
		return err
	}},
	{"not reading a large result", "active ClientWrite", func(ctx context.Context, s *Session) error {
		rows, err := s.Conn().Query(ctx, large)
		if err != nil {
			return err
		}
		<-ctx.Done()
		rows.Close()
		return rows.Err()
	}},
}

const large = "SELECT repeat('x', 10000), generate_series(1, 100000000)"

// loseClient brings a session's work to a moment, loses the client, and returns for how long the server keeps the locks.
func loseClient(t *testing.T, server *postgres.Server, i int, lose func(*netns.Cable, *Session) error) (kept time.Duration) {
	uri, g, cable := server.NewDB(t, postgres.NoLocksLeft), NewGroup("a/b"), netns.ForTest(t)
	admin := postgres.Connect(t, uri)
	exec(t, admin, "CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 0), (2, 0)")
	exec(t, postgres.Connect(t, uri), "BEGIN; SELECT FROM t WHERE id = 1 FOR UPDATE")
	s, c := openFar(t, server, cable, uri, g, 0), claim(g, 0, 1, 1)
	enter(t, s, c)

	const callLimit = takeover
	ctx, cancel := context.WithTimeout(t.Context(), callLimit)
	defer cancel()
	ended := make(chan error, 1)
	began := time.Now()
	go func() { ended <- lostClients[i].busy(ctx, s) }()
	eventually(t, lostClients[i].doing, func() bool {
		var doing string
		err := admin.QueryRow(deadline(t), "SELECT concat_ws(' ', state, wait_event) FROM pg_stat_activity WHERE pid = $1", int32(s.PID())).Scan(&doing)
		return err == nil && doing == lostClients[i].doing
	})
	if err := lose(cable, s); err != nil {
		t.Fatal(err)
	}
	lost := time.Now()
	eventually(t, "the server notices", func() bool {
		holders, err := Holders(deadline(t), admin, g)
		return err == nil && len(holders) == 0
	})
	kept = time.Since(lost)
	t.Logf("the slot was free after %.1f s", kept.Seconds())
	err := <-ended
	if err == nil || time.Since(began) > callLimit+callTimeout+time.Second {
		t.Errorf("the worker's call ended with %v after %v", err, time.Since(began))
	}
	if err := s.Failed("working", err); !errors.Is(err, ErrSessionLost) {
		t.Errorf("the worker does not know: %v", err)
	}
	var done int
	if err := admin.QueryRow(deadline(t), "SELECT sum(v) FROM t").Scan(&done); err != nil || done != 0 {
		t.Errorf("%d rows were changed by a lost worker (%v)", done, err)
	}
	if err := cable.Mend(t.Context()); err != nil {
		t.Fatal(err)
	}
	enter(t, openFar(t, server, cable, uri, g, 0), c)
	return kept
}

// together runs a test for each moment, all at once however few processors there are: they do nothing but wait.
func together(t *testing.T, test func(t *testing.T, i int)) {
	var all sync.WaitGroup
	for i, moment := range lostClients {
		all.Go(func() { t.Run(moment.name, func(t *testing.T) { test(t, i) }) })
	}
	all.Wait()
}

func TestA03CutCable(t *testing.T) {
	t.Parallel()
	server := netns.PostgresForTest(t)
	together(t, func(t *testing.T, i int) {
		if kept := loseClient(t, server, i, func(c *netns.Cable, _ *Session) error { return c.Cut(t.Context()) }); kept > takeover {
			t.Errorf("the server kept its locks for %v", kept)
		}
	})
}

func TestA09KilledClient(t *testing.T) {
	t.Parallel()
	server := netns.PostgresForTest(t)
	together(t, func(t *testing.T, i int) {
		// What the kernel does when a process is killed.
		kill := func(_ *netns.Cable, s *Session) error { return s.Conn().PgConn().Conn().Close() }
		if kept := loseClient(t, server, i, kill); kept > 3*time.Second {
			t.Errorf("the server kept its locks for %v", kept)
		}
	})
}
