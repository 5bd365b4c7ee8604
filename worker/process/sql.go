package process

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/worker/database"
	"shardedjob.dev/worker/fence"
	"shardedjob.dev/worker/preflight"
	"shardedjob.dev/worker/shard"
)

// SQL processes rows with the user's statement. On a session it keeps three prepared statements, which it shares with others
// of its kind.
type SQL struct {
	table     shard.Table
	statement string
	after     string // runs after the statement, in the same transaction
}

// NewSQL makes the processor of a statement that passed the preflight check. The second statement, which follows it in each
// transaction, says whether rows are left pending, or moves the cursor.
func NewSQL(t shard.Table, statement, after string) *SQL {
	return &SQL{table: t, statement: statement, after: after}
}

// An After is a run of the statement that follows the user's: its parameters in text format, and what reads its result.
type After struct {
	Params [][]byte
	Read   func(pgx.Rows) error
}

// StillPendingError names keys that are pending after the statement ran for them: it did not do what it is for.
type StillPendingError struct {
	Keys []shard.Key
}

func (e *StillPendingError) Error() string {
	return fmt.Sprintf("the statement left pending true for %d rows, among them key %.100s", len(e.Keys), e.Keys[0])
}

// nonePending fails with *StillPendingError if a row is pending.
func nonePending(rows pgx.Rows) error {
	left, err := shard.Keys(rows)
	if err == nil && len(left) > 0 {
		err = &StillPendingError{Keys: left}
	}
	return err
}

// Run runs the statement for the keys, in their order, in the transaction that the session is in, and in the same round trip
// what comes after it, and a look whether the session has kept its locks. Without keys it leaves out the statement. After
// an error the transaction has to be rolled back, else it may be committed.
func (s *SQL) Run(ctx context.Context, session Session, keys []shard.Key, after After) error {
	conn := session.Conn()
	if err := s.prepare(ctx, conn); err != nil {
		return fmt.Errorf("prepare the statement: %w", err)
	}
	var trip pgconn.Batch
	var read []func(pgx.Rows) error
	if len(keys) > 0 {
		trip.ExecPrepared(processName, [][]byte{[]byte(shard.Array(keys))}, nil, nil)
		read = append(read, drop) // what the statement returns is of no interest
	}
	trip.ExecPrepared(afterName, after.Params, nil, nil)
	trip.ExecParams(fence.SettleSQL, nil, nil, nil, nil)
	trip.ExecPrepared(locksName, nil, nil, []int16{pgx.BinaryFormatCode})
	read = append(read, after.Read, drop, session.VerifyLocks)
	results := conn.PgConn().ExecBatch(ctx, &trip)
	n := 0
	var err error
	for ; err == nil && n < len(read) && results.NextResult(); n++ {
		err = read[n](pgx.RowsFromResultReader(conn.TypeMap(), results.ResultReader()))
	}
	if closing := results.Close(); err == nil {
		err = closing
	}
	switch {
	case err != nil:
		return fmt.Errorf("run the statement: %w", err)
	case n < len(read):
		return errors.New("run the statement: the server left out the check of the locks")
	}
	return nil
}

// drop reads a result to its end and its error.
func drop(rows pgx.Rows) error {
	rows.Close()
	return rows.Err()
}

// blame says what an error of a batch of n rows is to be taken for, after a look at the table and the statement where the
// error may be theirs, for every row: a table is dropped, a privilege revoked. A problem needs a person, shard.ErrChanged
// calls for a new check of the table. If both are fine it is the row's, a function may name a missing table for some rows
// only, or that of a plan that has outlived a change of the table, which the next run makes anew. Call it outside a
// transaction.
func (s *SQL) blame(ctx context.Context, conn *pgx.Conn, cause error, n int) (database.Class, *v1alpha1.Problem, error) {
	class := database.Classify(cause)
	if class != database.ClassConfig && (class != database.ClassRow || n > 0) {
		return class, nil, nil
	}
	delete(conn.PgConn().CustomData(), preparedKey) // to be planned anew
	now, problem, err := preflight.Check(ctx, conn, s.table.Spec, s.statement)
	switch {
	case problem != nil || err != nil:
		return class, problem, err
	case !s.table.Like(now):
		return class, nil, shard.ErrChanged
	case outlived(cause):
		return database.ClassOutage, nil, nil
	}
	return database.ClassRow, nil, nil
}

// outlived says whether a prepared statement's own result has changed.
func outlived(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "0A000" && pg.Routine == "RevalidateCachedQuery" && pg.Where == ""
}

// Names of the prepared statements.
const (
	processName = "sj_process"
	afterName   = "sj_after"
	locksName   = "sj_locks"
)

// preparedKey is where a connection keeps what is prepared on it.
const preparedKey = "shardedjob.dev/process"

type prepared struct {
	statement, after string
	array            uint32
}

// prepare declares $1 as the array of the key's type, so that "= ANY ($1)" uses the index, and functions are found
// that take such an array.
func (s *SQL) prepare(ctx context.Context, conn *pgx.Conn) error {
	want, kept := prepared{s.statement, s.after, s.table.KeyArrayOID}, conn.PgConn().CustomData()
	if kept[preparedKey] == want {
		return nil
	}
	delete(kept, preparedKey)
	for _, statement := range []struct {
		name, sql string
		params    []uint32
	}{{processName, s.statement, []uint32{want.array}}, {afterName, s.after, nil}, {locksName, fence.CheckSQL, nil}} {
		if err := conn.PgConn().Deallocate(ctx, statement.name); err != nil { // no error if there is none
			return err
		}
		if _, err := conn.PgConn().Prepare(ctx, statement.name, statement.sql, statement.params); err != nil {
			return err
		}
	}
	kept[preparedKey] = want
	return nil
}
