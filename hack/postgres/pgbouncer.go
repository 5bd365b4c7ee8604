package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// PoolMode is when PgBouncer takes a server session back from a client.
type PoolMode string

// PgBouncer's pool modes. Only SessionPooling leaves session advisory locks where they were taken.
const (
	SessionPooling     PoolMode = "session"
	TransactionPooling PoolMode = "transaction"
	StatementPooling   PoolMode = "statement"
)

// PgBouncer is a connection pooler in front of a Server.
type PgBouncer struct {
	server  *Server
	dir     string
	port    int
	process *process
}

// StartPgBouncer starts a PgBouncer on loopback and a free port in front of a server, and installs Debian's package
// where there is none, which needs root. Settings go into its [pgbouncer] section, over the defaults: three server
// sessions per database and user. Only the superuser can log in. The caller closes it.
func StartPgBouncer(ctx context.Context, server *Server, mode PoolMode, settings map[string]string) (*PgBouncer, error) {
	program, err := ensurePgBouncer(ctx)
	if err != nil {
		return nil, err
	}
	dir, err := makeTemp(server.account)
	if err != nil {
		return nil, err
	}
	b := &PgBouncer{server: server, dir: dir}
	if err := b.start(ctx, program, mode, settings); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

func ensurePgBouncer(ctx context.Context) (string, error) {
	find := func() (string, error) {
		if path, err := exec.LookPath("pgbouncer"); err == nil {
			return path, nil
		}
		return exec.LookPath("/usr/sbin/pgbouncer") // not in everybody's PATH
	}
	if path, err := find(); err == nil {
		return path, nil
	}
	if !canInstall() {
		return "", errors.New("no pgbouncer found: install it (Debian: apt-get install pgbouncer)")
	}
	err := withInstallLock(ctx, func() error {
		if _, err := find(); err == nil {
			return nil
		}
		return aptInstall(ctx, nil, "pgbouncer")
	})
	if err != nil {
		return "", fmt.Errorf("installing pgbouncer: %w", err)
	}
	path, err := find()
	if err != nil {
		return "", fmt.Errorf("finding the installed pgbouncer: %w", err)
	}
	return path, nil
}

func (b *PgBouncer) start(ctx context.Context, program string, mode PoolMode, settings map[string]string) error {
	port, err := freePort([]string{"127.0.0.1"})
	if err != nil {
		return err
	}
	b.port = port
	users := filepath.Join(b.dir, "users.txt")
	all := map[string]string{
		"listen_addr":       "127.0.0.1",
		"listen_port":       strconv.Itoa(port),
		"unix_socket_dir":   "",
		"auth_type":         "trust",
		"auth_file":         users,
		"pool_mode":         string(mode),
		"default_pool_size": "3",
		"max_client_conn":   "200",
	}
	maps.Copy(all, settings)
	if err := os.WriteFile(users, fmt.Appendf(nil, "\"postgres\" \"%s\"\n", strings.ReplaceAll(b.server.options.Password, `"`, `""`)), 0o600); err != nil {
		return fmt.Errorf("configuring pgbouncer: %w", err)
	}
	config := filepath.Join(b.dir, "pgbouncer.ini")
	if err := os.WriteFile(config, []byte(renderBouncer(b.server.port, all)), 0o600); err != nil {
		return fmt.Errorf("configuring pgbouncer: %w", err)
	}
	if err := b.server.account.chown(b.dir); err != nil {
		return fmt.Errorf("configuring pgbouncer: %w", err)
	}
	if b.process, err = startProcess(b.server.account, b.dir, b.LogFile(), syscall.SIGTERM, program, config); err != nil {
		return err
	}
	return b.waitReady(ctx)
}

func renderBouncer(serverPort int, settings map[string]string) string {
	var ini strings.Builder
	fmt.Fprintf(&ini, "[databases]\n* = host=127.0.0.1 port=%d\n\n[pgbouncer]\n", serverPort)
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&ini, "%s = %s\n", name, settings[name])
	}
	return ini.String()
}

func (b *PgBouncer) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	for {
		conn, err := pgx.Connect(ctx, b.URI("postgres"))
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-b.process.done:
			return fmt.Errorf("pgbouncer ended while it started; its log says: %s", lastLines(fileFrom(b.LogFile(), 0), 8))
		case <-ctx.Done():
			return fmt.Errorf("waiting for pgbouncer to accept connections: %w; its log says: %s", err, lastLines(fileFrom(b.LogFile(), 0), 8))
		case <-poll.C:
		}
	}
}

// URI is the superuser's connection string for a database, by way of the pooler.
func (b *PgBouncer) URI(database string) string {
	return superuserURI("127.0.0.1", b.port, b.server.options.Password, database)
}

// LogFile is the path of the pooler's log.
func (b *PgBouncer) LogFile() string { return filepath.Join(b.dir, "pgbouncer.log") }

// Close stops the pooler and removes its folder.
func (b *PgBouncer) Close() error {
	var err error
	if b.process != nil {
		err = b.process.stop(syscall.SIGTERM, stopPatience) // SIGTERM is PgBouncer's immediate shutdown
	}
	return errors.Join(err, os.RemoveAll(b.dir))
}
