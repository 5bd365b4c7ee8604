package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// orphanVariable makes this test binary start a server, print its pid and wait to be killed.
const orphanVariable = "SHARDEDJOB_TEST_ORPHAN"

func TestMain(m *testing.M) {
	if os.Getenv(orphanVariable) != "" {
		s, err := Start(context.Background(), Options{})
		if err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		fmt.Println(s.Pid(), s.dir)
		select {}
	}
	Main(m)
}

func execute(t *testing.T, conn *pgx.Conn, statement string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

func ask[T any](t *testing.T, conn *pgx.Conn, query string, args ...any) T {
	t.Helper()
	var answer T
	if err := conn.QueryRow(t.Context(), query, args...).Scan(&answer); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return answer
}

// eventually polls until the condition holds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-deadline:
			t.Fatalf("waited in vain until %s", what)
		case <-tick.C:
		}
	}
}

func TestEachTestGetsItsOwnDatabase(t *testing.T) {
	s := ForTest(t)
	var names []string
	for i := range 2 {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			uri := s.NewDB(t)
			conn := Connect(t, uri)
			execute(t, conn, "CREATE TABLE images (id int)")
			names = append(names, ask[string](t, conn, "SELECT current_database()"))
			if got := DatabaseName(uri); got != names[i] {
				t.Errorf("DatabaseName(%q) = %q, want %q", uri, got, names[i])
			}
		})
	}
	if names[0] == names[1] {
		t.Errorf("both tests had database %s", names[0])
	}
	conn := Connect(t, s.URI("postgres"))
	if left := ask[int](t, conn, "SELECT count(*) FROM pg_database WHERE datname = ANY($1)", names); left != 0 {
		t.Errorf("%d databases of ended tests are still there", left)
	}
}

// recorder is a test that remembers its failures instead of failing, and runs its cleanups on request.
type recorder struct {
	testing.TB
	failures []string
	cleanups []func()
}

func (r *recorder) Helper() {}
func (r *recorder) Errorf(format string, args ...any) {
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}
func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }
func (r *recorder) end() {
	for i := len(r.cleanups) - 1; i >= 0; i-- {
		r.cleanups[i]()
	}
}

func TestNoLocksLeft(t *testing.T) {
	s := ForTest(t)
	for _, tc := range []struct {
		name     string
		release  bool
		failures int
	}{
		{"a lock that stays fails the test", false, 1},
		{"a lock that was given back does not", true, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := &recorder{TB: t}
			conn := Connect(t, s.NewDB(r, NoLocksLeft))
			execute(t, conn, "SELECT pg_advisory_lock(7, 42)")
			if tc.release {
				execute(t, conn, "SELECT pg_advisory_unlock(7, 42)")
			}
			r.end()
			if len(r.failures) != tc.failures {
				t.Errorf("got failures %q, want %d", r.failures, tc.failures)
			}
			if tc.failures > 0 && !strings.Contains(r.failures[0], "(7, 42)") {
				t.Errorf("failure does not name the lock: %q", r.failures[0])
			}
		})
	}
}

func TestRestartKeepsPortAndData(t *testing.T) {
	s := StartForTest(t, Options{})
	port := s.Port()
	execute(t, Connect(t, s.URI("postgres")), "CREATE TABLE kept AS SELECT 1 AS id")
	for _, tc := range []struct {
		name string
		halt func() error
	}{
		{"fast", func() error { return s.Restart(t.Context(), Fast) }},
		{"immediate", func() error { return s.Restart(t.Context(), Immediate) }},
		{"stopped before", func() error { return errors.Join(s.Stop(Fast), s.Restart(t.Context(), Fast)) }},
		{"killed before", func() error { s.Kill(); return s.Restart(t.Context(), Fast) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pid := s.Pid()
			if err := tc.halt(); err != nil {
				t.Fatal(err)
			}
			if s.Pid() == pid {
				t.Error("the server has the same pid as before")
			}
			if s.Port() != port {
				t.Errorf("port %d became %d", port, s.Port())
			}
			if got := ask[int](t, Connect(t, s.URI("postgres")), "SELECT count(*) FROM kept"); got != 1 {
				t.Errorf("%d rows kept, want 1", got)
			}
		})
	}
}

func TestKillEndsEverySession(t *testing.T) {
	s := StartForTest(t, Options{})
	conn := Connect(t, s.URI("postgres"))
	backend := ask[int](t, conn, "SELECT pg_backend_pid()")
	s.Kill()
	if alive(backend) {
		t.Error("a session outlived its server")
	}
	if err := conn.Ping(t.Context()); err == nil {
		t.Error("the session still answers")
	}
}

func TestPasswordIsAskedFor(t *testing.T) {
	s := StartForTest(t, Options{Password: "it's 100% @secret/", AllowedCIDRs: []string{"127.0.0.0/8"}})
	if got := ask[int](t, Connect(t, s.URI("postgres")), "SELECT 1"); got != 1 {
		t.Errorf("got %d", got)
	}
	_, err := pgx.Connect(t.Context(), superuserURI("127.0.0.1", s.Port(), "wrong", "postgres"))
	if err == nil || !strings.Contains(err.Error(), "password authentication failed") {
		t.Errorf("a wrong password gave %v", err)
	}
	if _, err := Start(t.Context(), Options{AllowedCIDRs: []string{"198.18.0.0/16"}}); err == nil {
		t.Error("a server open to others started without a password")
	}
}

func TestSettingsOverrideDefaults(t *testing.T) {
	s := StartForTest(t, Options{Settings: map[string]string{"max_connections": "17", "fsync": "on", "application_name": "it's"}})
	conn := Connect(t, s.URI("postgres"))
	for name, want := range map[string]string{"max_connections": "17", "fsync": "on", "max_prepared_transactions": "20", "application_name": "it's"} {
		if got := ask[string](t, conn, "SELECT current_setting($1)", name); got != want {
			t.Errorf("%s = %s, want %s", name, got, want)
		}
	}
}

func TestStartSaysWhyItFailed(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	for _, tc := range []struct {
		name    string
		options Options
		want    string
	}{
		{"bad setting", Options{Settings: map[string]string{"no_such_setting": "1"}}, `unrecognized configuration parameter "no_such_setting"`},
		{"port taken", Options{Port: taken.Addr().(*net.TCPAddr).Port}, "Address already in use"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, err := Start(t.Context(), tc.options)
			if err == nil {
				t.Fatal("it started", s.Close())
			}
			if !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %q does not say %q", err, tc.want)
			}
		})
	}
}

func TestDirIsUsedAgain(t *testing.T) {
	// Not t.TempDir(): its parent is closed to the user postgres.
	a, err := serverAccount()
	if err != nil {
		t.Fatal(err)
	}
	temp, err := makeTemp(a)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(temp) })
	dir := filepath.Join(temp, "kept")
	for run, want := range []int{0, 1} {
		s, err := Start(t.Context(), Options{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		conn := Connect(t, s.URI("postgres"))
		if got := ask[int](t, conn, "SELECT count(*) FROM pg_tables WHERE tablename = 'kept'"); got != want {
			t.Errorf("run %d found %d tables, want %d", run, got, want)
		}
		execute(t, conn, "CREATE TABLE IF NOT EXISTS kept (id int)")
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestStandbyFollowsUntilPromoted(t *testing.T) {
	s := StartForTest(t, Options{Password: "secret"})
	standby, err := s.StartStandby(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := standby.Close(); err != nil {
			t.Error(err)
		}
	})
	execute(t, Connect(t, s.URI("postgres")), "CREATE TABLE followed (id int)")
	follower := Connect(t, standby.URI("postgres"))
	if !ask[bool](t, follower, "SELECT pg_is_in_recovery()") {
		t.Error("the standby is not one")
	}
	eventually(t, "the standby has the table", func() bool {
		return ask[bool](t, follower, "SELECT to_regclass('followed') IS NOT NULL")
	})
	if _, err := follower.Exec(t.Context(), "INSERT INTO followed VALUES (1)"); err == nil {
		t.Error("the standby took a write")
	}
	if err := standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	execute(t, follower, "INSERT INTO followed VALUES (1)")
}

// TestB01PoolModes shows what the case is about: which pool modes keep a session where its locks are.
func TestB01PoolModes(t *testing.T) {
	s := StartForTest(t, Options{Password: "secret"})
	for _, tc := range []struct {
		mode PoolMode
		kept bool
	}{
		{SessionPooling, true},
		{TransactionPooling, false},
	} {
		t.Run(string(tc.mode), func(t *testing.T) {
			pooler, err := StartPgBouncer(t.Context(), s, tc.mode, map[string]string{"server_round_robin": "1"})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := pooler.Close(); err != nil {
					t.Error(err)
				}
			})
			// The simple protocol, since a pooler in transaction mode knows no prepared statements of ours.
			uri := pooler.URI("postgres") + "&default_query_exec_mode=simple_protocol"
			mine, other := Connect(t, uri), Connect(t, uri)
			execute(t, mine, "BEGIN")
			pid := ask[int](t, mine, "SELECT pg_backend_pid()")
			if !tc.kept { // another client's transaction at the same time makes the pooler open a second session
				ask[int](t, other, "SELECT pg_backend_pid()")
			}
			execute(t, mine, "COMMIT")
			moved := false
			for range 10 {
				moved = moved || ask[int](t, mine, "SELECT pg_backend_pid()") != pid
			}
			if moved == tc.kept {
				t.Errorf("the session moved: %t", moved)
			}
		})
	}
}

func TestServerDiesWithItsParent(t *testing.T) {
	parent := exec.Command(os.Args[0], "-test.run=^$")
	parent.Env = append(os.Environ(), orphanVariable+"=1")
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	var dir string
	_, scanErr := fmt.Fscan(out, &pid, &dir)
	if err := parent.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = parent.Wait()
	if scanErr != nil {
		t.Fatalf("the parent started no server: %v", scanErr)
	}
	eventually(t, "the server has gone", func() bool { return !alive(pid) })
	sweep(ForTest(t).account)
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the folder of a dead process is still there: %v", err)
	}
}
