// Package postgres starts real PostgreSQL servers for tests, demonstrations and benchmarks.
//
// Ensure finds the installed programs or installs Debian's package. Start makes a cluster, on loopback and a free
// port unless told otherwise, in a second or less: initdb runs once for each server version and its result is copied.
// A Server can then be treated as the world treats one: stopped, restarted, killed, given a hot standby that is
// promoted, or put behind a PgBouncer. It dies with the process that started it.
//
// Tests share one server per test binary and get a database each:
//
//	func TestMain(m *testing.M) { postgres.Main(m) }
//
//	func TestSomething(t *testing.T) {
//		uri := postgres.ForTest(t).NewDB(t)
//		…
//	}
package postgres

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// Options say how a server is set up. The zero value is a throw-away server on loopback.
type Options struct {
	// Dir keeps data, log and socket. Empty: a temporary folder that Close removes. A cluster found there is
	// used again. The user postgres must be able to reach it when root starts the server.
	Dir string
	// ListenAddresses are IP addresses; empty: 127.0.0.1.
	ListenAddresses []string
	// Port to listen on; 0: a free one.
	Port int
	// Settings go into postgresql.conf, over the defaults: fsync off (a lost machine loses the data, a killed
	// server does not), 200 connections, 20 prepared transactions.
	Settings map[string]string
	// AllowedCIDRs may connect, besides loopback, with the password. They need one.
	AllowedCIDRs []string
	// Password of the superuser postgres, asked for with scram-sha-256. Empty: loopback is trusted.
	Password string
}

// Mode is a way to stop a server.
type Mode string

// The ways to stop a server, as pg_ctl names them.
const (
	Smart     Mode = "smart"     // waits until every client has gone
	Fast      Mode = "fast"      // ends sessions, rolls back, writes a checkpoint
	Immediate Mode = "immediate" // ends at once; the next start recovers
)

var stopSignals = map[Mode]syscall.Signal{Smart: syscall.SIGTERM, Fast: syscall.SIGINT, Immediate: syscall.SIGQUIT}

// startPatience bounds a start, recovery included, when the caller's context does not.
const startPatience = 2 * time.Minute

// stopPatience is how long a server may take to stop before it is killed.
const stopPatience = 30 * time.Second

// Server is a PostgreSQL server that this process started. Its methods may be called from several goroutines,
// except that only one may stop, start or close it at a time.
type Server struct {
	binDir  string
	dir     string
	temp    bool // dir is ours to remove
	options Options
	account account
	port    int

	mu      sync.Mutex
	process *process // the last one started
}

// Start makes a cluster, or takes the one in Options.Dir, and returns once the server accepts connections. The
// context bounds the start alone. An error quotes the end of the server's log. The caller closes the server.
func Start(ctx context.Context, options Options) (*Server, error) {
	s, err := prepare(ctx, options)
	if err != nil {
		return nil, err
	}
	if err := s.begin(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// prepare makes the folder of a server, still without a cluster.
func prepare(ctx context.Context, options Options) (*Server, error) {
	if len(options.AllowedCIDRs) > 0 && options.Password == "" {
		return nil, errors.New("a server that others than loopback may reach needs a password")
	}
	if len(options.ListenAddresses) == 0 {
		options.ListenAddresses = []string{"127.0.0.1"}
	}
	binDir, err := Ensure(ctx, nil)
	if err != nil {
		return nil, err
	}
	a, err := serverAccount()
	if err != nil {
		return nil, err
	}
	s := &Server{binDir: binDir, dir: options.Dir, options: options, account: a, port: options.Port}
	if s.dir == "" {
		s.temp = true
		if s.dir, err = makeTemp(a); err != nil {
			return nil, err
		}
		return s, nil
	}
	if s.dir, err = filepath.Abs(s.dir); err != nil {
		return nil, fmt.Errorf("finding the server's folder: %w", err)
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the server's folder: %w", err)
	}
	return s, a.chown(s.dir)
}

// begin initializes the cluster if there is none and starts the server for the first time.
func (s *Server) begin(ctx context.Context) error {
	if _, err := os.Stat(filepath.Join(s.data(), "PG_VERSION")); errors.Is(err, fs.ErrNotExist) {
		if err := initialize(ctx, s.account, s.binDir, s.data()); err != nil {
			return err
		}
	}
	if err := s.launch(ctx); err != nil {
		return err
	}
	if s.options.Password == "" {
		return nil
	}
	return s.setPassword(ctx, s.options.Password)
}

// launch configures and starts the server. A port that we chose may have been taken by somebody else between the
// choice and the start, so another is tried.
func (s *Server) launch(ctx context.Context) error {
	const tries = 5
	for try := 1; ; try++ {
		chosen := s.port == 0
		if chosen {
			port, err := freePort(s.options.ListenAddresses)
			if err != nil {
				return err
			}
			s.port = port
		}
		err := s.configure()
		if err == nil {
			err = s.run(ctx)
		}
		if err == nil {
			return nil
		}
		if !chosen || !errors.Is(err, errPortTaken) || try == tries {
			return err
		}
		s.port = 0
	}
}

var errPortTaken = errors.New("the port is taken")

// run starts the server program and waits until it answers on its socket, which nobody else's server can do.
func (s *Server) run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	logStart := fileSize(s.LogFile())
	p, err := startProcess(s.account, s.dir, s.LogFile(), syscall.SIGQUIT,
		filepath.Join(s.binDir, "postgres"), "-D", s.data())
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.process = p
	s.mu.Unlock()

	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	for {
		err := s.ping(ctx)
		said := fileFrom(s.LogFile(), logStart)
		if strings.Contains(said, "could not bind") || strings.Contains(said, "could not create any TCP/IP sockets") {
			p.kill()
			return fmt.Errorf("starting PostgreSQL on port %d: %w: %s", s.port, errPortTaken, lastLines(said, 8))
		}
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("PostgreSQL ended while it started; its log says: %s", lastLines(fileFrom(s.LogFile(), logStart), 8))
		case <-ctx.Done():
			p.kill()
			return fmt.Errorf("waiting for PostgreSQL to accept connections: %w; its log says: %s", err, lastLines(said, 8))
		case <-poll.C:
		}
	}
}

func (s *Server) ping(ctx context.Context) error {
	conn, err := s.connect(ctx)
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

// connect opens a superuser's session, in the database postgres, through the socket in the server's own folder.
func (s *Server) connect(ctx context.Context) (*pgx.Conn, error) {
	q := url.Values{"host": {s.dir}, "port": {strconv.Itoa(s.port)}, "sslmode": {"disable"}}
	conn, err := pgx.Connect(ctx, "postgres://postgres@/postgres?"+q.Encode())
	if err != nil {
		return nil, fmt.Errorf("connecting to the server: %w", err)
	}
	return conn, nil
}

// setPassword goes through the socket, where no password is asked for.
func (s *Server) setPassword(ctx context.Context, password string) error {
	conn, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	var statement string
	if err := conn.QueryRow(ctx, "SELECT format('ALTER ROLE postgres PASSWORD %L', $1::text)", password).Scan(&statement); err != nil {
		return fmt.Errorf("setting the superuser's password: %w", err)
	}
	if _, err := conn.Exec(ctx, statement); err != nil {
		return errors.New("the server refused the superuser's password") // its error would quote it
	}
	return nil
}

// Port is the TCP port; it stays the same over restarts.
func (s *Server) Port() int { return s.port }

// Pid is the process id of the postmaster that was started last.
func (s *Server) Pid() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		return 0
	}
	return s.process.pid
}

// BinDir is where the server's programs are.
func (s *Server) BinDir() string { return s.binDir }

// LogFile is the path of the server's log.
func (s *Server) LogFile() string { return filepath.Join(s.dir, "postgres.log") }

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

// URI is the superuser's connection string for a database, on the first address listened on.
func (s *Server) URI(database string) string {
	host := s.options.ListenAddresses[0]
	if ip, err := netip.ParseAddr(host); err == nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return s.URIAt(host, database)
}

// URIAt is URI by way of another address of the server, for clients elsewhere.
func (s *Server) URIAt(host, database string) string {
	return superuserURI(host, s.port, s.options.Password, database)
}

func superuserURI(host string, port int, password, database string) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.User("postgres"),
		Host:     net.JoinHostPort(host, strconv.Itoa(port)),
		Path:     "/" + database,
		RawQuery: "sslmode=disable",
	}
	if password != "" {
		u.User = url.UserPassword("postgres", password)
	}
	return u.String()
}

// Stop stops the server and keeps its data: Restart starts it again. Stopping a stopped server does nothing.
func (s *Server) Stop(mode Mode) error {
	sig, ok := stopSignals[mode]
	if !ok {
		return fmt.Errorf("unknown way to stop a server: %q", mode)
	}
	s.mu.Lock()
	p := s.process
	s.mu.Unlock()
	if p == nil {
		return nil
	}
	return p.stop(sig, stopPatience)
}

// Restart stops the server if it runs, and starts it again on the same port.
func (s *Server) Restart(ctx context.Context, mode Mode) error {
	if err := s.Stop(mode); err != nil {
		return err
	}
	return s.run(ctx)
}

// Kill ends the server and all its sessions with SIGKILL, as a machine that loses power does. Restart recovers it.
func (s *Server) Kill() {
	s.mu.Lock()
	p := s.process
	s.mu.Unlock()
	if p != nil && p.running() {
		p.kill()
	}
}

// Close stops the server at once and removes its folder if that was a temporary one.
func (s *Server) Close() error {
	err := s.Stop(Immediate)
	if s.temp {
		err = errors.Join(err, os.RemoveAll(s.dir))
	}
	return err
}

// CreateDatabase makes an empty database.
func (s *Server) CreateDatabase(ctx context.Context, name string) error {
	return s.administer(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize())
}

// DropDatabase removes a database and ends the sessions in it.
func (s *Server) DropDatabase(ctx context.Context, name string) error {
	return s.administer(ctx, "DROP DATABASE "+pgx.Identifier{name}.Sanitize()+" WITH (FORCE)")
}

func (s *Server) administer(ctx context.Context, statement string) error {
	conn, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, statement); err != nil {
		return fmt.Errorf("%s: %w", statement, err)
	}
	return nil
}
