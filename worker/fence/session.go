package fence

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// callTimeout bounds a call to the server that has no nearer deadline: every call here is answered in milliseconds, so
// that a longer silence means a dead peer.
const callTimeout = 5 * time.Second

// A Session is one database session and the advisory locks it holds. It is never pooled, recycled or reconnected: when it is
// lost, everything it stood for is lost too. Only one goroutine may use it at a time, except Held, Holds, PID and Lost.
//
// A canceled context does not break off a call that is under way, because that would end the session; calls are bounded
// by the context's deadline, or else by five seconds.
type Session struct {
	conn     *pgx.Conn
	pid      uint32
	settings map[string]string // what applySettings makes

	joined *joined                // what Join has claimed
	clocks map[sighting]time.Time // since when older sessions are waited for

	mu   sync.Mutex
	held map[Key]Mode
	lost error
}

// Conn is the session's connection, for the work that the locks fence. Do not take or drop locks on it.
func (s *Session) Conn() *pgx.Conn { return s.conn }

// PID is the server process of the session.
func (s *Session) PID() uint32 { return s.pid }

// Holds says whether the session is believed to hold a lock.
func (s *Session) Holds(key Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.held[key]
	return ok
}

// Held lists the locks that the session is believed to hold, in order.
func (s *Session) Held() []Key {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Keys(s.held), func(a, b Key) int {
		if a.Class != b.Class {
			return int(int64(a.Class) - int64(b.Class))
		}
		return int(int64(a.Object) - int64(b.Object))
	})
}

// Lost is nil while the session may be used, then the reason why it may not, which wraps ErrSessionLost.
func (s *Session) Lost() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lost
}

// Close ends the session and so lets go of all its locks. It takes five seconds at most.
func (s *Session) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	err := s.conn.Close(ctx)
	_ = s.lose(errors.New("closed by its worker"))
	return err
}

// Ping asks the server for a sign of life.
func (s *Session) Ping(ctx context.Context) error {
	return s.call(ctx, "pinging the server", func(ctx context.Context) error { return s.conn.Ping(ctx) })
}

// call runs one exchange with the server within its time.
func (s *Session) call(ctx context.Context, doing string, f func(context.Context) error) error {
	if err := s.gone(); err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	limit := time.Now().Add(callTimeout)
	if deadline, ok := ctx.Deadline(); ok && deadline.Before(limit) {
		limit = deadline
	}
	bounded, cancel := context.WithDeadline(context.WithoutCancel(ctx), limit)
	defer cancel()
	return s.Failed(doing, f(bounded))
}

// gone is Lost for the goroutine that uses the session: it notices a connection that broke under other work.
func (s *Session) gone() error {
	if err := s.Lost(); err != nil || !s.conn.IsClosed() {
		return err
	}
	return s.lose(errors.New("the connection broke"))
}

// Failed makes the error of work on Conn: it says what was being done, and notes and wraps ErrSessionLost if the
// connection is gone.
func (s *Session) Failed(doing string, err error) error {
	if err == nil {
		return nil
	}
	if s.conn.IsClosed() {
		return fmt.Errorf("%s: %w", doing, s.lose(err))
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// lose notes that the session is gone and returns why; the first reason stays.
func (s *Session) lose(why error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lost == nil {
		s.lost = fmt.Errorf("%w: %w", ErrSessionLost, why)
		clear(s.held)
		s.joined = nil
	}
	return s.lost
}

// idle fails inside a transaction: an unlock there would be final even if the transaction rolled back, and a wait
// between two tries would hold a snapshot.
func (s *Session) idle() error {
	if status := s.conn.PgConn().TxStatus(); status != 'I' && !s.conn.IsClosed() {
		return ErrInTransaction
	}
	return nil
}

// TryLock takes a lock if it is free and says whether it was. It never waits: a blocking lock call holds a snapshot, and
// deadlocks with CREATE INDEX CONCURRENTLY.
func (s *Session) TryLock(ctx context.Context, key Key, mode Mode) (bool, error) {
	got, err := s.tryLocks(ctx, []Key{key}, mode)
	if err != nil {
		return false, err
	}
	return got[0], nil
}

// tryLocks takes locks in order, in one statement, and says which it got.
func (s *Session) tryLocks(ctx context.Context, keys []Key, mode Mode) ([]bool, error) {
	const doing = "taking an advisory lock"
	for _, key := range keys {
		if s.Holds(key) {
			return nil, fmt.Errorf("%s %s: %w", doing, key, ErrAlreadyHeld)
		}
	}
	if err := s.idle(); err != nil {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	function := "pg_try_advisory_lock_shared"
	if mode == Exclusive {
		function = "pg_try_advisory_lock"
	}
	got, err := s.lockCalls(ctx, doing, keys, func(Key) string { return function })
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, key := range keys {
		if got[i] {
			s.held[key] = mode
		}
	}
	return got, nil
}

// Unlock lets go of a lock, outside any transaction. It fails with ErrLockLost if the server knows nothing of the lock.
func (s *Session) Unlock(ctx context.Context, key Key) error { return s.unlock(ctx, key) }

// unlock lets go of locks in order, in one statement.
func (s *Session) unlock(ctx context.Context, keys ...Key) error {
	const doing = "letting go of an advisory lock"
	if len(keys) == 0 {
		return nil
	}
	if err := s.gone(); err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	for _, key := range keys {
		if !s.Holds(key) {
			return fmt.Errorf("%s %s: it is not held", doing, key)
		}
	}
	if err := s.idle(); err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	released, err := s.lockCalls(ctx, doing, keys, func(key Key) string {
		if s.mode(key) == Exclusive {
			return "pg_advisory_unlock"
		}
		return "pg_advisory_unlock_shared"
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, key := range keys {
		delete(s.held, key)
		if !released[i] {
			err = errors.Join(err, fmt.Errorf("%s %s: %w", doing, key, ErrLockLost))
		}
	}
	return err
}

func (s *Session) mode(key Key) Mode {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held[key]
}

// lockCalls calls a lock function for each key, in order, in one statement. The keys are integers, so they can be part of the
// text; that spares the server a parse of every new combination only to plan it once.
func (s *Session) lockCalls(ctx context.Context, doing string, keys []Key, function func(Key) string) ([]bool, error) {
	sql := "SELECT ARRAY["
	for i, key := range keys {
		if i > 0 {
			sql += ", "
		}
		sql += fmt.Sprintf("%s(%d, %d)", function(key), key.Class, key.Object)
	}
	sql += "]"
	var results []bool
	err := s.call(ctx, doing, func(ctx context.Context) error {
		return s.conn.QueryRow(ctx, sql, pgx.QueryExecModeExec).Scan(&results)
	})
	if err == nil && len(results) != len(keys) {
		err = fmt.Errorf("%s: the server answered %d of %d calls", doing, len(results), len(keys))
	}
	return results, err
}
