package process

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"shardedjob.dev/worker/shard"
)

// Session is the session that holds the slot's lock, as *fence.Session does.
type Session interface {
	Conn() *pgx.Conn
	// VerifyLocks fails if the session has lost a lock, by what fence.CheckSQL returned as the last statement before COMMIT.
	VerifyLocks(rows pgx.Rows) error
}

// ErrCommitUnknown means that the connection was lost during COMMIT: the batch is either committed or not. The rows
// themselves tell, since they are pending or not, or the cursor does.
var ErrCommitUnknown = errors.New("the outcome of the commit is not known")

// Batch processes the selected rows in one transaction and three round trips: begin and select; statement, the check that
// no row is left pending, the check of the session's locks; commit. Each statement may take timeoutSeconds. It returns
// the keys that were selected, also with an error; then nothing has happened to the rows, except that after
// ErrCommitUnknown one cannot know. No key, no error: there was nothing to do.
//
// Canceling ctx ends the session, because a statement under way cannot be taken back otherwise: to stop at a batch
// boundary, do not start another batch.
func Batch(ctx context.Context, s Session, sql *SQL, timeoutSeconds int32, selection shard.Selection) ([]shard.Key, error) {
	conn := s.Conn()
	var keys []shard.Key
	err := begin(ctx, conn, sql.table, timeoutSeconds, func(trip *pgx.Batch) { selection.Queue(trip, &keys) })
	if err == nil && len(keys) > 0 {
		err = sql.Run(ctx, s, keys, After{Params: [][]byte{[]byte(shard.Array(keys))}, Read: nonePending})
	}
	if err != nil || len(keys) == 0 {
		return keys, errors.Join(err, rollback(ctx, conn))
	}
	return keys, commit(ctx, conn)
}

// begin opens a transaction with what selects the rows, which fails with shard.ErrChanged if the table's name leads to another
// one. It sets the timeout anew each time, because it may have changed, and so may have the session.
func begin(ctx context.Context, conn *pgx.Conn, t shard.Table, timeoutSeconds int32, queue func(*pgx.Batch)) error {
	var trip pgx.Batch
	trip.Queue("BEGIN ISOLATION LEVEL READ COMMITTED")
	trip.Queue(fmt.Sprintf("SET LOCAL statement_timeout = '%ds'", timeoutSeconds))
	queue(&trip)
	t.QueueCheck(&trip)
	if err := conn.SendBatch(ctx, &trip).Close(); err != nil {
		return fmt.Errorf("begin a batch: %w", err)
	}
	return nil
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
