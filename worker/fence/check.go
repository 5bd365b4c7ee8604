package fence

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// CheckSQL is the statement of CheckLocks: this server process's own two-part advisory locks. It has no parameters.
const CheckSQL = `SELECT l.classid::int8, l.objid::int8, l.mode FROM pg_locks l
	 WHERE l.pid = pg_backend_pid() AND ` + advisory

// SettleSQL comes before CheckSQL and runs deferred triggers now: at COMMIT they would run after the check, and they may unlock too.
const SettleSQL = "SET CONSTRAINTS ALL IMMEDIATE"

// CheckLocks compares the locks that the server holds for the session that q runs on with those it is believed to hold,
// and fails with ErrLockLost if one is missing, or one too many in the group's own classes. Call it in each batch's transaction,
// last before COMMIT, on an error of any kind roll back: the user's SQL runs on this session and may have
// called pg_advisory_unlock_all(), and a pooler may have moved the transaction to another server session. It costs 0.2 ms,
// and 0.7 ms more for each thousand locks of all kinds on the server. Deferred constraints are checked before it.
func (s *Session) CheckLocks(ctx context.Context, q Querier) error {
	return s.call(ctx, "checking the session's locks", func(ctx context.Context) error {
		if s.conn.PgConn().TxStatus() == 'T' {
			rows, err := q.Query(ctx, SettleSQL)
			if err != nil {
				return err
			}
			rows.Close()
			if err := rows.Err(); err != nil {
				return err
			}
		}
		rows, err := q.Query(ctx, CheckSQL)
		if err != nil {
			return err
		}
		return s.VerifyLocks(rows)
	})
}

// QueueCheck adds CheckLocks to a batch of statements of the transaction. A mismatch comes out of the batch's Close as
// ErrLockLost; so COMMIT must not be part of the same batch.
func (s *Session) QueueCheck(b *pgx.Batch) {
	b.Queue(SettleSQL)
	b.Queue(CheckSQL).Query(s.VerifyLocks)
}

// VerifyLocks is CheckLocks with the result of CheckSQL at hand, for those who send it together with other statements. It
// reads the rows to their end.
func (s *Session) VerifyLocks(rows pgx.Rows) error {
	found := map[Key]Mode{}
	var class, object int64
	var name string
	_, err := pgx.ForEachRow(rows, []any{&class, &object, &name}, func() error {
		key := Key{int32(uint32(class)), int32(uint32(object))}
		mode := Shared
		if name == Exclusive.String() {
			mode = Exclusive
		}
		found[key] = max(found[key], mode)
		return nil
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lost != nil {
		return s.lost
	}
	return compareLocks(s.held, found)
}

// compareLocks fails if found is not what is believed. Locks in other classes are the user's own.
func compareLocks(believed, found map[Key]Mode) error {
	classes := map[int32]bool{}
	for key, mode := range believed {
		classes[key.Class] = true
		if found[key] != mode {
			return fmt.Errorf("%w: %s is not held", ErrLockLost, key)
		}
	}
	for key := range found {
		if _, ok := believed[key]; !ok && classes[key.Class] {
			return fmt.Errorf("%w: %s is held unasked", ErrLockLost, key)
		}
	}
	return nil
}
