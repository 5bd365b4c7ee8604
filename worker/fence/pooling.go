package fence

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// probeRounds is how often the two connections take turns. A pooler hands out the server session that was given
	// back last, or first; either way two clients meet on one within two rounds, others' traffic excepted.
	probeRounds = 4
	// probePatience bounds the wait for a second connection, which a full pool in session mode cannot give.
	probePatience = 3 * time.Second
)

// checkPooling refuses a pooler that changes the server session under the client. A pooler that is idle gives the same one
// again and again, so asking twice proves nothing. But a pooler has to make up the cancellation key that PostgreSQL sends on
// connecting, and the pid in it is then not the server's: so a direct connection costs one round trip, and behind a pooler a second
// connection is opened for a moment. Two live clients on one server session is what session mode never does.
func (s *Session) checkPooling(ctx context.Context, config *pgx.ConnConfig) error {
	pid, err := s.serverPID(ctx)
	if err != nil {
		return err
	}
	s.pid = pid
	if s.conn.PgConn().PID() == pid {
		return s.samePID(ctx)
	}
	probeCtx, cancel := context.WithTimeout(ctx, probePatience)
	defer cancel()
	probe, err := pgx.ConnectConfig(probeCtx, config)
	if err != nil {
		if pooling := poolingError(err); pooling != nil {
			return pooling
		}
		// No room for a second connection. CheckLocks in each batch still refuses a server session without the locks.
		return s.samePID(ctx)
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
		defer cancel()
		_ = probe.Close(closing)
	}()
	for range probeRounds {
		shared, err := s.meet(probeCtx, probe)
		if err != nil {
			return err
		}
		if shared {
			return fmt.Errorf("%w: two connections were given one server session (pid %d)", ErrTransactionPooling, pid)
		}
		if err := s.samePID(ctx); err != nil {
			return err
		}
	}
	return nil
}

// meet opens a transaction on the probe and says whether it runs on this session's server process. While it is open, the
// session asks for its own pid again: had the probe taken its server session away, it would be given another.
func (s *Session) meet(ctx context.Context, probe *pgx.Conn) (bool, error) {
	var pid int32
	err := scanSimple(ctx, probe, "SELECT pg_backend_pid()", &pid)
	if err == nil && uint32(pid) == s.pid {
		return true, nil
	}
	if err == nil {
		_, err = probe.Exec(ctx, "BEGIN", pgx.QueryExecModeSimpleProtocol)
	}
	if err == nil {
		err = scanSimple(ctx, probe, "SELECT pg_backend_pid()", &pid)
	}
	if err != nil {
		if pooling := poolingError(err); pooling != nil {
			return false, pooling
		}
		if probe.IsClosed() {
			return false, nil // no server session was free for it in time, or the pooler went away
		}
		return false, fmt.Errorf("looking for a pooler: %w", err)
	}
	if err := s.samePID(context.WithoutCancel(ctx)); err != nil {
		return false, err
	}
	if _, err = probe.Exec(ctx, "ROLLBACK", pgx.QueryExecModeSimpleProtocol); err != nil && !probe.IsClosed() {
		return false, fmt.Errorf("looking for a pooler: %w", err)
	}
	return uint32(pid) == s.pid, nil
}

// samePID fails if the server process is another one than at first, in or out of a transaction.
func (s *Session) samePID(ctx context.Context) error {
	pid, err := s.serverPID(ctx)
	if err != nil {
		return err
	}
	if pid != s.pid {
		return fmt.Errorf("%w: the server process changed from pid %d to %d", ErrTransactionPooling, s.pid, pid)
	}
	return nil
}

func (s *Session) serverPID(ctx context.Context) (uint32, error) {
	var pid int32
	err := s.simple(ctx, "asking for the server process", "SELECT pg_backend_pid()", &pid)
	return uint32(pid), err
}

// poolingError recognizes a pooler in statement mode by its refusal of transactions.
func poolingError(err error) error {
	var refusal *pgconn.PgError
	if errors.As(err, &refusal) && strings.Contains(refusal.Message, "pooling mode") {
		return fmt.Errorf("%w: %s", ErrTransactionPooling, refusal.Message)
	}
	return nil
}
