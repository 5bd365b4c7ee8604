package process

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"shardedjob.dev/worker/fence"
	"shardedjob.dev/worker/shard"
)

// Session is the session that holds the slot's lock, as *fence.Session does.
type Session interface {
	Conn() *pgx.Conn
	// CheckLocks fails if the session has lost a lock. It is the last statement before COMMIT.
	CheckLocks(ctx context.Context, q fence.Querier) error
}

// ErrCommitUnknown means that the connection was lost during COMMIT: the batch is either committed or not, and the rows
// themselves tell, since they are pending or not.
var ErrCommitUnknown = errors.New("the outcome of the commit is not known")

// Selection locks the rows of a batch in the transaction that q is in and returns their keys.
type Selection func(ctx context.Context, q shard.Querier) ([]int64, error)

// Batch processes the selected rows in one transaction: select, statement, the check that none is left pending, the check
// of the session's locks, commit; each statement may take timeoutSeconds. It returns the keys that were selected, also with an error; then nothing has happened to
// the rows, except that after ErrCommitUnknown one cannot know. No key, no error: there was nothing to do.
//
// Cancelling ctx ends the session, because a statement under way cannot be taken back otherwise: to stop at a batch
// boundary, do not start another batch.
func Batch(ctx context.Context, s Session, sql *SQL, timeoutSeconds int32, selection Selection) ([]int64, error) {
	conn := s.Conn()
	// One round trip. The timeout is set anew each time, because it may have changed, and so may have the session.
	begin := fmt.Sprintf("BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL statement_timeout = '%ds'", timeoutSeconds)
	if err := conn.PgConn().Exec(ctx, begin).Close(); err != nil {
		return nil, errors.Join(fmt.Errorf("begin a batch: %w", err), rollback(ctx, conn))
	}
	keys, err := selection(ctx, conn)
	if err == nil && len(keys) > 0 {
		err = sql.Run(ctx, conn, keys)
		if err == nil {
			err = s.CheckLocks(ctx, conn)
		}
	}
	if err != nil || len(keys) == 0 {
		return keys, errors.Join(err, rollback(ctx, conn))
	}
	return keys, commit(ctx, conn)
}

// rollback leaves the session outside a transaction; if it cannot, the session is lost, and the server rolls back.
func rollback(ctx context.Context, conn *pgx.Conn) error {
	if conn.IsClosed() || conn.PgConn().TxStatus() == idle {
		return nil
	}
	if _, err := conn.Exec(ctx, "ROLLBACK"); err != nil {
		return fmt.Errorf("roll a batch back: %w", err)
	}
	return nil
}

// idle is the server's sign for a session outside any transaction.
const idle = 'I'

func commit(ctx context.Context, conn *pgx.Conn) error {
	tag, err := conn.Exec(ctx, "COMMIT")
	switch {
	case err != nil && conn.IsClosed():
		return fmt.Errorf("%w: %w", ErrCommitUnknown, err)
	case err != nil:
		// A deferred constraint or trigger, for example.
		return errors.Join(fmt.Errorf("commit a batch: %w", err), rollback(ctx, conn))
	case tag.String() != "COMMIT":
		return errors.New("the server rolled a batch back instead of committing it")
	}
	return nil
}
