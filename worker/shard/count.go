package shard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Count is a number of rows.
type Count struct {
	Rows int64
	// Estimate says that it is the planner's guess.
	Estimate bool
}

// AnyPending says whether any row of the table is pending, in whichever slot: the fresh check before a job is Complete.
// It fails with ErrChanged if the name leads to another table now, or rows may be hidden.
func AnyPending(ctx context.Context, q Querier, t Table) (bool, error) {
	var pending bool
	var now *uint32
	sql := fmt.Sprintf("SELECT EXISTS (SELECT FROM %s WHERE %s), "+whichTable, t.Quoted(), t.Need())
	if err := q.QueryRow(ctx, sql, t.Quoted()).Scan(&pending, &now); err != nil {
		return false, fmt.Errorf("look whether rows are pending: %w", err)
	}
	return pending, t.is(now)
}

// CountPending counts the rows that still need work, exactly if that takes no longer than timeout, else as the
// planner guesses. The connection must not be in a transaction.
func CountPending(ctx context.Context, conn *pgx.Conn, t Table, timeout time.Duration) (Count, error) {
	from := fmt.Sprintf("FROM %s WHERE %s", t.Quoted(), t.Need())
	rows, inTime, err := CountWithin(ctx, conn, timeout, from)
	if err != nil || inTime {
		return Count{Rows: rows}, err
	}
	rows, err = Estimate(ctx, conn, from)
	return Count{Rows: rows, Estimate: true}, err
}

// CountWithin counts the rows of "SELECT ... from", and says whether it could in the given time. The connection must not be in a
// transaction.
func CountWithin(ctx context.Context, conn *pgx.Conn, timeout time.Duration, from string, args ...any) (rows int64, inTime bool, _ error) {
	err := pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, fmt.Sprintf("SET LOCAL statement_timeout = %d", max(timeout.Milliseconds(), 1))); err != nil {
			return err
		}
		return tx.QueryRow(ctx, "SELECT count(*) "+from, args...).Scan(&rows)
	})
	var pg *pgconn.PgError
	switch {
	case err == nil:
		return rows, true, nil
	case errors.As(err, &pg) && pg.Code == "57014":
		return 0, false, nil
	}
	return 0, false, fmt.Errorf("count rows: %w", err)
}

// Estimate is the planner's guess at the number of rows of "SELECT ... from".
func Estimate(ctx context.Context, conn *pgx.Conn, from string, args ...any) (int64, error) {
	var raw []byte
	if err := conn.QueryRow(ctx, "EXPLAIN (FORMAT JSON) SELECT "+from, args...).Scan(&raw); err != nil {
		return 0, fmt.Errorf("estimate the number of rows: %w", err)
	}
	var plans []struct {
		Plan struct {
			Rows float64 `json:"Plan Rows"`
		}
	}
	if err := json.Unmarshal(raw, &plans); err != nil || len(plans) != 1 {
		return 0, fmt.Errorf("estimate the number of rows: unexpected plan")
	}
	return int64(plans[0].Plan.Rows), nil
}
