package fence

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Options of a session.
type Options struct {
	// ApplicationName as made by the function of that name.
	ApplicationName string
	// StatementTimeout bounds each statement unless the transaction sets its own. 0: 30 s.
	StatementTimeout time.Duration
	// LockTimeout bounds a statement's wait for a row or table lock. 0: 10 s.
	LockTimeout time.Duration
}

// Open connects, makes the settings of the session and refuses a server on which locks would not protect: with
// ErrNotPrimary or ErrTransactionPooling. The config is not changed. The time to connect is bounded by ctx and by the
// config's ConnectTimeout.
func Open(ctx context.Context, config *pgx.ConnConfig, options Options) (*Session, error) {
	config = config.Copy()
	settings := sessionSettings(options)
	moveParameters(config, settings)
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("connecting to the database: %w", err)
	}
	s := &Session{
		conn:     conn,
		settings: settings,
		held:     map[Key]Mode{},
		clocks:   map[sighting]time.Time{},
	}
	if major(conn.PgConn().ParameterStatus("server_version")) >= 17 {
		settings["transaction_timeout"] = "0" // would end the session, where statement_timeout ends the statement
	}
	if err := s.prepare(ctx, config); err != nil {
		_ = s.Close(ctx)
		return nil, err
	}
	return s, nil
}

func (s *Session) prepare(ctx context.Context, config *pgx.ConnConfig) error {
	if err := s.checkPrimary(ctx); err != nil {
		return err
	}
	if err := s.checkPooling(ctx, config); err != nil {
		return err
	}
	return s.applySettings(ctx)
}

// moveParameters takes the parameters of the connection string out of the startup packet, where poolers refuse them or
// drop them in silence, to be SET after connecting. "options" cannot be SET; who wrote it there gets it there.
func moveParameters(config *pgx.ConnConfig, settings map[string]string) {
	for name, value := range config.RuntimeParams {
		if name == "options" {
			continue
		}
		if _, ours := settings[name]; !ours {
			settings[name] = value
		}
		delete(config.RuntimeParams, name)
	}
}

// sessionSettings are what a fenced session needs, whatever its role or database say. A cut cable is noticed by the server's kernel
// within ten seconds: by the second or third keepalive, or by data that are not acknowledged (Linux goes by the user timeout
// for both, and by the count of keepalives only without it). In the middle of a statement the server asks its kernel
// once a second. A stopped process, whose kernel still answers keepalives, is noticed by the idle timeouts.
func sessionSettings(o Options) map[string]string {
	milliseconds := func(d, otherwise time.Duration) string {
		if d <= 0 {
			d = otherwise
		}
		return strconv.FormatInt(max(1, d.Milliseconds()), 10)
	}
	return map[string]string{
		"application_name":                    o.ApplicationName,
		"tcp_keepalives_idle":                 "4",
		"tcp_keepalives_interval":             "2",
		"tcp_keepalives_count":                "3",
		"tcp_user_timeout":                    "9000",
		"client_connection_check_interval":    "1000",
		"idle_session_timeout":                "60000",
		"idle_in_transaction_session_timeout": "30000",
		"statement_timeout":                   milliseconds(o.StatementTimeout, 30*time.Second),
		"lock_timeout":                        milliseconds(o.LockTimeout, 10*time.Second),
		"default_transaction_isolation":       "read committed", // others would read rows as of before the locks
		"max_parallel_workers_per_gather":     "0",              // MOD(…) = k misleads the planner for tiny batches
		"jit":                                 "off",
	}
}

// major is the number that a server version begins with, 0 if there is none.
func major(version string) int {
	digits := version[:len(version)-len(strings.TrimLeft(version, "0123456789"))]
	n, err := strconv.Atoi(digits)
	if err != nil {
		return 0
	}
	return n
}

// platform settings may be refused where the server's system lacks the call; they are then left out.
var platform = map[string]bool{
	"tcp_keepalives_idle": true, "tcp_keepalives_interval": true, "tcp_keepalives_count": true,
	"tcp_user_timeout": true, "client_connection_check_interval": true,
}

// applySettings makes the session's settings in one statement, or one by one where a platform refuses some. It is
// repeated before each entry, because the user's SQL may have changed them.
func (s *Session) applySettings(ctx context.Context) error {
	err := s.set(ctx, s.settings)
	var refused *pgconn.PgError
	if err == nil || !errors.As(err, &refused) || s.Lost() != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(s.settings)) {
		err := s.set(ctx, map[string]string{name: s.settings[name]})
		switch {
		case err == nil:
		case platform[name] && s.Lost() == nil:
			delete(s.settings, name)
		default:
			return fmt.Errorf("setting %s: %w", name, err)
		}
	}
	return nil
}

func (s *Session) set(ctx context.Context, settings map[string]string) error {
	names := slices.Sorted(maps.Keys(settings))
	values := make([]string, len(names))
	for i, name := range names {
		values[i] = settings[name]
	}
	return s.call(ctx, "making the session's settings", func(ctx context.Context) error {
		_, err := s.conn.Exec(ctx, "SELECT set_config(name, value, false) FROM unnest($1::text[], $2::text[]) AS setting(name, value)",
			pgx.QueryExecModeExec, names, values)
		return err
	})
}

// checkPrimary refuses a standby, and a server that is switched to read-only.
func (s *Session) checkPrimary(ctx context.Context) error {
	var recovery bool
	var readOnly string
	err := s.simple(ctx, "asking for the server's role",
		"SELECT pg_is_in_recovery(), current_setting('transaction_read_only')", &recovery, &readOnly)
	switch {
	case err != nil:
		return err
	case recovery:
		return fmt.Errorf("%w: it is a standby (pg_is_in_recovery)", ErrNotPrimary)
	case readOnly == "on":
		return fmt.Errorf("%w: default_transaction_read_only is on for this server, database or role", ErrNotPrimary)
	}
	return nil
}

// simple runs a query of one row in one round trip, without anything prepared, as it must be while it is not yet known
// whether there is a pooler.
func (s *Session) simple(ctx context.Context, doing, sql string, into ...any) error {
	return s.call(ctx, doing, func(ctx context.Context) error { return scanSimple(ctx, s.conn, sql, into...) })
}

func scanSimple(ctx context.Context, conn *pgx.Conn, sql string, into ...any) error {
	return conn.QueryRow(ctx, sql, pgx.QueryExecModeSimpleProtocol).Scan(into...)
}
