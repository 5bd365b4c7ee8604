package fence

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"shardedjob.dev/hack/postgres"
)

func TestA01LostSessionCommitsNothing(t *testing.T) {
	uri, g := database(t), NewGroup("a/b")
	admin := postgres.Connect(t, uri)
	exec(t, admin, "CREATE TABLE t (id int)")
	c := claim(g, 0, 1, 1)

	s := open(t, uri, g, 0)
	enter(t, s, c)
	tx, err := s.Conn().Begin(deadline(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(deadline(t), "INSERT INTO t VALUES (1)"); err != nil {
		t.Fatal(err)
	}
	exec(t, admin, "SELECT pg_terminate_backend($1)", int32(s.PID()))
	enter(t, open(t, uri, g, 0), c) // a rival takes the slot

	if err := s.CheckLocks(deadline(t), tx); !errors.Is(err, ErrSessionLost) {
		t.Errorf("the locks of a lost session were checked with %v", err)
	}
	if err := s.Failed("committing", tx.Commit(deadline(t))); !errors.Is(err, ErrSessionLost) {
		t.Errorf("a lost session committed with %v", err)
	}
	if s.Lost() == nil || s.Holds(SlotKey(g, 0)) || len(s.Held()) != 0 {
		t.Errorf("the session does not know that it is lost: %v", s.Held())
	}
	if _, err := s.TryLock(deadline(t), SlotKey(g, 7), Exclusive); !errors.Is(err, ErrSessionLost) {
		t.Errorf("a lost session was used again: %v", err)
	}
	if err := s.Join(deadline(t), c); !errors.Is(err, ErrSessionLost) {
		t.Errorf("a lost session joined again: %v", err)
	}
	if err := s.Enter(deadline(t), c, nil); !errors.Is(err, ErrSessionLost) {
		t.Errorf("a lost session entered again: %v", err)
	}
	var rows int
	if err := admin.QueryRow(deadline(t), "SELECT count(*) FROM t").Scan(&rows); err != nil || rows != 0 {
		t.Errorf("%d rows were committed (%v)", rows, err)
	}
}

func TestA06StrangersKeysDoNotMatter(t *testing.T) {
	uri, g := database(t), NewGroup("a/b")
	app := postgres.Connect(t, uri)
	exec(t, app, "SELECT pg_advisory_lock(k) FROM generate_series(0, 1000) k")
	exec(t, app, "SELECT pg_advisory_lock(a, b) FROM generate_series(0, 50) a, generate_series(0, 50) b")
	// The one-part key whose two halves are those of our slot key.
	key := SlotKey(g, 0)
	exec(t, app, "SELECT pg_advisory_lock($1)", int64(key.Class)<<32|int64(uint32(key.Object)))

	enter(t, open(t, uri, g, 0), claim(g, 0, 1, 1))
	other := NewGroup("a/c")
	enter(t, open(t, uri, other, 0), claim(other, 0, 1, 1))
	enter(t, open(t, database(t), g, 0), claim(g, 0, 1, 1)) // the same group in another database of the server
}

func TestA08HolderOfTheLockIsTheWriter(t *testing.T) {
	uri, g := database(t), NewGroup("a/b")
	s := open(t, uri, g, 0)
	enter(t, s, claim(g, 0, 1, 1))
	var writer int32
	if err := s.Conn().QueryRow(deadline(t), "SELECT pg_backend_pid()").Scan(&writer); err != nil {
		t.Fatal(err)
	}
	holders, err := Holders(deadline(t), postgres.Connect(t, uri), g)
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[Kind]int{}
	for _, h := range holders {
		kinds[h.Kind()]++
		if h.PID != writer || h.PID != int32(s.PID()) || h.User != "postgres" || !h.Of(g) || h.BackendStart.IsZero() || !h.Address.IsValid() {
			t.Errorf("holder %+v, writer %d", h, writer)
		}
		if (h.Kind() == KindSlot) != (h.Mode == Exclusive) {
			t.Errorf("%s in mode %s", h.Key, h.Mode)
		}
	}
	if len(kinds) != 3 || kinds[KindSlot] != 1 || kinds[KindEpoch] != 1 || kinds[KindOwner] != 1 {
		t.Errorf("kinds %v", kinds)
	}
}

func TestA10WaiterDoesNotHoldUpIndexBuild(t *testing.T) {
	uri, g := database(t), NewGroup("a/b")
	admin := postgres.Connect(t, uri)
	exec(t, admin, "CREATE TABLE t (id int, v text)")
	c := claim(g, 0, 1, 1)
	enter(t, open(t, uri, g, 0), c)
	waiter := startEnter(t, open(t, uri, g, 0), c)
	waiter.waiting(t, WaitingSlotHeld)
	for _, sql := range []string{"CREATE INDEX CONCURRENTLY i ON t (v)", "REINDEX INDEX CONCURRENTLY i", "VACUUM t"} {
		exec(t, admin, sql)
	}
	if waiter.over() {
		t.Errorf("the waiter did not go on waiting: %v", waiter.err)
	}
}

func TestA11RoleTimeoutsDoNotEndTheWait(t *testing.T) {
	uri, g := database(t), NewGroup("a/b")
	admin := postgres.Connect(t, uri)
	role := "w_" + postgres.DatabaseName(uri)
	exec(t, admin, "CREATE ROLE "+role+" LOGIN")
	t.Cleanup(func() {
		if _, err := admin.Exec(context.Background(), "DROP OWNED BY "+role+"; DROP ROLE "+role); err != nil {
			t.Error(err)
		}
	})
	for _, setting := range []string{"statement_timeout = '1s'", "lock_timeout = '200ms'", "idle_session_timeout = '100ms'",
		"default_transaction_isolation = 'serializable'", "application_name = 'mine'"} {
		exec(t, admin, "ALTER ROLE "+role+" SET "+setting)
	}
	exec(t, admin, "ALTER DATABASE "+postgres.DatabaseName(uri)+" SET statement_timeout = '1s'")
	uri = strings.Replace(uri, "postgres@", role+"@", 1)

	holder := open(t, uri, g, 0)
	c := claim(g, 0, 1, 1)
	enter(t, holder, c)
	s := open(t, uri, g, 0)
	for name, want := range map[string]string{
		"statement_timeout": "30s", "lock_timeout": "10s", "idle_session_timeout": "1min", "idle_in_transaction_session_timeout": "30s",
		"tcp_user_timeout": "9000", "tcp_keepalives_idle": "4", "client_connection_check_interval": "1s",
		"default_transaction_isolation": "read committed", "application_name": ApplicationName(g, 0, "5f1c7a34", "a/b"),
	} {
		var got string
		if err := s.Conn().QueryRow(deadline(t), "SELECT current_setting($1)", name).Scan(&got); err != nil || got != want {
			t.Errorf("%s is %q, want %q (%v)", name, got, want, err)
		}
	}
	waiter := startEnter(t, s, c)
	waiter.waiting(t, WaitingSlotHeld)
	eventually(t, "the wait outlasts the timeouts", func() bool {
		waiter.mu.Lock()
		defer waiter.mu.Unlock()
		return waiter.over() || len(waiter.waits) > 0 && waiter.waits[len(waiter.waits)-1].For.Seconds() > 1.5
	})
	if err := holder.Ping(deadline(t)); err != nil {
		t.Errorf("the holder's session: %v", err)
	}
	if err := holder.Leave(deadline(t)); err != nil {
		t.Error(err)
	}
	if err := waiter.result(t); err != nil {
		t.Errorf("the wait ended with %v", err)
	}
}

func TestB01TransactionPoolingIsRefused(t *testing.T) {
	server, g := postgres.ForTest(t), NewGroup("a/b")
	for _, tc := range []struct {
		name     string
		mode     postgres.PoolMode
		settings map[string]string
		refused  bool
	}{
		{"session", postgres.SessionPooling, nil, false},
		{"session, pool full", postgres.SessionPooling, map[string]string{"default_pool_size": "1"}, false},
		{"transaction", postgres.TransactionPooling, nil, true},
		{"transaction, one server session", postgres.TransactionPooling, map[string]string{"default_pool_size": "1"}, true},
		{"transaction, round robin", postgres.TransactionPooling, map[string]string{"server_round_robin": "1", "min_pool_size": "3"}, true},
		{"statement", postgres.StatementPooling, nil, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			database := postgres.DatabaseName(server.NewDB(t))
			pooler, err := postgres.StartPgBouncer(t.Context(), server, tc.mode, tc.settings)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = pooler.Close() })
			s, err := tryOpen(t, pooler.URI(database), g, 0)
			if tc.refused {
				if !errors.Is(err, ErrTransactionPooling) {
					t.Fatalf("got %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			enter(t, s, claim(g, 0, 1, 1))
			if err := s.CheckLocks(deadline(t), s.Conn()); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestB06StandbyIsRefused(t *testing.T) {
	server := postgres.StartForTest(t, postgres.Options{})
	standby, err := server.StartStandby(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = standby.Close() }()
	g := NewGroup("a/b")
	if _, err := tryOpen(t, standby.URI("postgres"), g, 0); !errors.Is(err, ErrNotPrimary) {
		t.Errorf("standby: %v", err)
	}
	exec(t, postgres.Connect(t, server.URI("postgres")), "ALTER SYSTEM SET default_transaction_read_only = on")
	exec(t, postgres.Connect(t, server.URI("postgres")), "SELECT pg_reload_conf()")
	eventually(t, "the read-only primary is refused", func() bool {
		_, err := tryOpen(t, server.URI("postgres"), g, 0)
		return errors.Is(err, ErrNotPrimary)
	})
	if err := standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := tryOpen(t, standby.URI("postgres"), g, 0); err != nil {
		t.Errorf("promoted: %v", err)
	}
}

func TestB03ParametersOfTheURIAreSetAfterConnecting(t *testing.T) {
	uri := database(t)
	config, err := pgx.ParseConfig(uri)
	if err != nil {
		t.Fatal(err)
	}
	config.RuntimeParams["search_path"] = "a, b"
	config.RuntimeParams["application_name"] = "not this"
	config.RuntimeParams["lock_timeout"] = "1" // what protects the fence cannot be set from outside
	s, err := Open(deadline(t), config, Options{ApplicationName: "this"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close(context.Background()) }()
	for name, want := range map[string]string{"search_path": "a, b", "application_name": "this", "lock_timeout": "10s"} {
		var got string
		if err := s.Conn().QueryRow(deadline(t), "SELECT current_setting($1)", name).Scan(&got); err != nil || got != want {
			t.Errorf("%s is %q, want %q (%v)", name, got, want, err)
		}
	}
	if params := s.Conn().Config().RuntimeParams; len(params) != 0 {
		t.Errorf("the startup packet held %v", params)
	}
	if len(config.RuntimeParams) != 3 {
		t.Errorf("the caller's config was changed: %v", config.RuntimeParams)
	}
	for name, value := range map[string]string{"work_mem": "nonsense", "no_such_setting": "x"} {
		bad := config.Copy()
		bad.RuntimeParams[name] = value
		if _, err := Open(deadline(t), bad, Options{}); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("a refused parameter was not named: %v", err)
		}
	}
}

func TestLocksAreNeitherStackedNorTakenInTransactions(t *testing.T) {
	uri, g := database(t), NewGroup("a/b")
	s := open(t, uri, g, 0)
	key := CoordinatorKey(g, SeatCoordinator)
	lock := func(s *Session) bool {
		got, err := s.TryLock(deadline(t), key, Exclusive)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if !lock(s) {
		t.Fatal("a free lock was refused")
	}
	if _, err := s.TryLock(deadline(t), key, Exclusive); !errors.Is(err, ErrAlreadyHeld) {
		t.Errorf("taken twice: %v", err)
	}
	other := open(t, uri, g, 1)
	if lock(other) {
		t.Error("an exclusive lock was given twice")
	}
	tx, err := s.Conn().Begin(deadline(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.TryLock(deadline(t), SlotKey(g, 1), Exclusive); !errors.Is(err, ErrInTransaction) {
		t.Errorf("taken in a transaction: %v", err)
	}
	if err := s.Unlock(deadline(t), key); !errors.Is(err, ErrInTransaction) {
		t.Errorf("let go in a transaction: %v", err)
	}
	if err := tx.Rollback(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if err := s.Unlock(deadline(t), key); err != nil || s.Holds(key) {
		t.Errorf("letting go: %v", err)
	}
	if err := s.Unlock(deadline(t), key); err == nil {
		t.Error("let go twice")
	}
	if !lock(other) {
		t.Error("a lock that was let go is not free")
	}
}

func TestCanceledContextLeavesTheSessionAlive(t *testing.T) {
	uri, g := database(t), NewGroup("a/b")
	c := claim(g, 0, 1, 1)
	holder, s := open(t, uri, g, 0), open(t, uri, g, 0)
	enter(t, holder, c)
	waiter := startEnter(t, s, c)
	waiter.waiting(t, WaitingSlotHeld)
	waiter.cancel()
	if err := waiter.result(t); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if held := s.Held(); len(held) != 1 || held[0] != OwnerKey(g, c.UID) {
		t.Errorf("after a canceled entry the session holds %v", held)
	}
	if err := s.CheckLocks(deadline(t), s.Conn()); err != nil {
		t.Error(err)
	}
	if err := holder.Leave(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if err := s.Enter(deadline(t), c, nil); err != nil {
		t.Errorf("entering again: %v", err)
	}
}

func TestCheckLocksSeesWhatTheUsersSQLDid(t *testing.T) {
	uri, g := database(t), NewGroup("a/b")
	slot := SlotKey(g, 0)
	exec(t, postgres.Connect(t, uri), `CREATE TABLE deferred (id int);
		CREATE FUNCTION unlock() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_unlock_all(); RETURN NULL; END';
		CREATE CONSTRAINT TRIGGER late AFTER INSERT ON deferred DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION unlock()`)
	for _, tc := range []struct {
		name, sql string
		lost      bool
	}{
		{"nothing", "SELECT 1", false},
		{"locks of its own", "SELECT pg_advisory_lock(1), pg_advisory_lock(2, 3)", false},
		{"all let go", "SELECT pg_advisory_unlock_all()", true},
		{"one let go", fmt.Sprintf("SELECT pg_advisory_unlock(%d, %d)", slot.Class, slot.Object), true},
		{"one let go and taken shared", fmt.Sprintf("SELECT pg_advisory_unlock(%d, %d), pg_advisory_lock_shared(%[1]d, %[2]d)", slot.Class, slot.Object), true},
		{"all let go by a deferred trigger", "INSERT INTO deferred VALUES (1)", true},
		{"another slot taken", fmt.Sprintf("SELECT pg_advisory_lock(%d, %d)", slot.Class, slot.Object+1), true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := open(t, uri, g, 0)
			defer func() { _ = s.Close(context.Background()) }()
			enter(t, s, claim(g, 0, 1, 1))
			tx, err := s.Conn().Begin(deadline(t))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback(context.Background()) }()
			if _, err := tx.Exec(deadline(t), tc.sql); err != nil {
				t.Fatal(err)
			}
			if err := s.CheckLocks(deadline(t), tx); errors.Is(err, ErrLockLost) != tc.lost || !tc.lost && err != nil {
				t.Errorf("got %v", err)
			}
			b := &pgx.Batch{}
			b.Queue("SELECT 1")
			s.QueueCheck(b)
			if err := tx.SendBatch(deadline(t), b).Close(); errors.Is(err, ErrLockLost) != tc.lost || !tc.lost && err != nil {
				t.Errorf("in a batch: got %v", err)
			}
		})
	}
}
