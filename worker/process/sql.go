package process

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/worker/preflight"
	"shardedjob.dev/worker/shard"
)

// SQL processes rows with the user's statement.
type SQL struct {
	table     shard.Table
	statement string
}

// NewSQL makes the processor of a statement that passed the preflight check.
func NewSQL(t shard.Table, statement string) *SQL {
	return &SQL{table: t, statement: statement}
}

// queue adds the statement for the keys to a pipeline. $1 is declared as the array of the key's type, so that "= ANY ($1)"
// uses the index and functions that are declared with such an array are found.
func (s *SQL) args(keys []int64) []any {
	switch s.table.KeyType {
	case "smallint":
		return []any{narrow[int16](keys)}
	case "integer":
		return []any{narrow[int32](keys)}
	default:
		return []any{keys}
	}
}

// prepare parses the statement once for each session; a name of its own keeps it apart from cached ones.
func (s *SQL) prepare(ctx context.Context, conn *pgx.Conn) (string, error) {
	name := statementName(s.statement, s.table.KeyArrayOID)
	if err := prepareOnce(ctx, conn, name, s.statement, s.table.KeyArrayOID); err != nil {
		return "", fmt.Errorf("prepare the statement: %w", err)
	}
	return name, nil
}

// Run runs the statement for the keys, which are sorted first, in the given transaction. Then it looks which of the keys
// are still pending, and returns a *StillPendingError if any is: their processing did not do what it is for.
func (s *SQL) Run(ctx context.Context, tx pgx.Tx, reader *shard.Reader, keys []int64) error {
	slices.Sort(keys)
	name, err := s.prepare(ctx, tx.Conn())
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, name, s.args(keys)...); err != nil {
		return fmt.Errorf("run the statement: %w", err)
	}
	left, err := reader.StillPending(ctx, tx, keys)
	if err != nil {
		return err
	}
	if len(left) > 0 {
		return &StillPendingError{Keys: left}
	}
	return nil
}

// Recheck says whether the statement is wrong as such, for any row: after an error that looks like a matter of configuration. A
// function that names a missing table only for some rows is not.
func (s *SQL) Recheck(ctx context.Context, conn *pgx.Conn) (*v1alpha1.Problem, error) {
	return preflight.Statement(ctx, conn, s.table, s.statement)
}

// StillPendingError names keys that are pending after the statement ran for them.
type StillPendingError struct {
	Keys []int64
}

func (e *StillPendingError) Error() string {
	return fmt.Sprintf("the statement left pending true for %d rows, among them key %d", len(e.Keys), e.Keys[0])
}

func narrow[T int16 | int32](keys []int64) []T {
	out := make([]T, len(keys))
	for i, key := range keys {
		out[i] = T(key)
	}
	return out
}
