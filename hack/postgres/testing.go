package postgres

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// shared is the test binary's one server.
var shared struct {
	once   sync.Once
	server *Server
	err    error
}

// ForTest returns the server that all tests of this binary share, started on first use. A test that stops or
// kills its server starts its own.
func ForTest(t testing.TB) *Server {
	t.Helper()
	shared.once.Do(func() {
		// Not the test's context: the server outlives the test, and a first run may install it.
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
		defer cancel()
		shared.server, shared.err = Start(ctx, Options{})
	})
	if shared.err != nil {
		t.Fatalf("starting the shared PostgreSQL: %v", shared.err)
	}
	return shared.server
}

// Connect opens a session that ends with the test.
func Connect(t testing.TB, uri string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), uri)
	if err != nil {
		t.Fatalf("connecting: %v", err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) }) // the test's own context is over by then
	return conn
}

// Main is the TestMain of a package whose tests use ForTest: it runs them and closes the shared server.
func Main(m *testing.M) { os.Exit(Run(m)) }

// Run is Main for packages that have more to clean up: it returns the exit code.
func Run(m *testing.M) int {
	code := m.Run()
	if shared.server != nil {
		if err := shared.server.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "closing the shared PostgreSQL:", err)
			code = max(code, 1)
		}
	}
	return code
}

// StartForTest starts a server for one test, which may do with it what it likes.
func StartForTest(t testing.TB, options Options) *Server {
	t.Helper()
	s, err := Start(t.Context(), options)
	if err != nil {
		t.Fatalf("starting PostgreSQL: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("closing PostgreSQL: %v", err)
		}
	})
	return s
}

// DBOption changes what NewDB does.
type DBOption int

// NoLocksLeft fails the test if, a few seconds after its end, sessions still hold advisory locks in its database.
const NoLocksLeft DBOption = iota + 1

// locksPatience is how long the server may take to notice that a session has gone.
const locksPatience = 5 * time.Second

var databases atomic.Int64

// NewDB makes an empty database for one test and returns the superuser's connection string. After the test the
// database is dropped, whoever is still connected.
func (s *Server) NewDB(t testing.TB, options ...DBOption) (uri string) {
	t.Helper()
	name := fmt.Sprintf("test_%d_%d", os.Getpid(), databases.Add(1))
	if err := s.CreateDatabase(t.Context(), name); err != nil {
		t.Fatalf("making a database for the test: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for _, option := range options {
			if option == NoLocksLeft {
				s.checkNoLocks(ctx, t, name)
			}
		}
		if err := s.DropDatabase(ctx, name); err != nil {
			t.Errorf("dropping the test's database: %v", err)
		}
	})
	return s.URI(name)
}

// DatabaseName is the name of the database that a connection string leads to, for tests that look at system views.
func DatabaseName(uri string) string {
	u, err := url.Parse(uri)
	if err != nil {
		return ""
	}
	return strings.TrimPrefix(u.Path, "/")
}

func (s *Server) checkNoLocks(ctx context.Context, t testing.TB, database string) {
	t.Helper()
	deadline := time.Now().Add(locksPatience)
	for {
		locks, err := s.AdvisoryLocks(ctx, database)
		if err != nil {
			t.Errorf("looking for locks left behind: %v", err)
			return
		}
		if len(locks) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("advisory locks left behind in the test's database:\n%s", strings.Join(locks, "\n"))
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// AdvisoryLocks lists the advisory locks held or waited for in a database, one line each, for people to read.
func (s *Server) AdvisoryLocks(ctx context.Context, database string) ([]string, error) {
	conn, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close(ctx) }()
	rows, err := conn.Query(ctx, `
		SELECT format('(%s, %s) objsubid %s %s granted=%s pid=%s application_name=%s',
		              l.classid, l.objid, l.objsubid, l.mode, l.granted, l.pid, coalesce(a.application_name, '?'))
		  FROM pg_locks l
		  JOIN pg_database d ON d.oid = l.database
		  LEFT JOIN pg_stat_activity a ON a.pid = l.pid
		 WHERE l.locktype = 'advisory' AND d.datname = $1
		 ORDER BY 1`, database)
	if err != nil {
		return nil, fmt.Errorf("listing advisory locks: %w", err)
	}
	defer rows.Close()
	var locks []string
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			return nil, fmt.Errorf("listing advisory locks: %w", err)
		}
		locks = append(locks, line)
	}
	return locks, rows.Err()
}
