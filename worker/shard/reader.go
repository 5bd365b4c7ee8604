package shard

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Querier is a connection or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// Reader reads the pending rows of one slot.
type Reader struct {
	table Table
	mine  string // condition: in the slot, in scope and pending
}

// NewReader reads slot k of n.
func NewReader(t Table, n, k int32) *Reader {
	return &Reader{table: t, mine: t.Predicate(n, k) + " AND " + t.Need()}
}

// Table is the table that is read.
func (r *Reader) Table() Table { return r.table }

// NextBatch locks the next pending rows of the slot, at most limit, and returns their keys, ascending. It looks at keys
// greater than after (nil: from the lowest on) and leaves out the excluded ones and those that somebody else has
// locked. No key means that the sweep is at its end, not that nothing is pending.
func (r *Reader) NextBatch(ctx context.Context, tx Querier, limit int, after *int64, exclude []int64) ([]int64, error) {
	key := r.table.QuotedKey()
	sql := fmt.Sprintf("SELECT %s::bigint FROM %s WHERE %s", key, r.table.Quoted(), r.mine)
	var args []any
	if after != nil {
		args = append(args, *after)
		sql += fmt.Sprintf(" AND %s > $%d::bigint", key, len(args))
	}
	if exclude = above(exclude, after); len(exclude) > 0 {
		args = append(args, exclude)
		sql += fmt.Sprintf(" AND %s <> ALL ($%d::bigint[])", key, len(args))
	}
	// A literal limit: of a parameter the planner would assume a tenth of the table, and sort that.
	sql += fmt.Sprintf(" ORDER BY %s LIMIT %d FOR NO KEY UPDATE SKIP LOCKED", key, limit)
	keys, err := collect(tx.Query(ctx, sql, args...))
	if err != nil {
		return nil, fmt.Errorf("read the next pending rows: %w", err)
	}
	return keys, nil
}

// Take locks those of the given keys that are still pending rows of the slot, and are not locked by somebody else, and
// returns them, ascending.
func (r *Reader) Take(ctx context.Context, tx Querier, keys []int64) ([]int64, error) {
	taken, err := r.among(ctx, tx, keys, " FOR NO KEY UPDATE SKIP LOCKED")
	if err != nil {
		return nil, fmt.Errorf("take rows: %w", err)
	}
	return taken, nil
}

// StillPending returns those of the given keys that are pending rows of the slot, locked or not, ascending.
func (r *Reader) StillPending(ctx context.Context, q Querier, keys []int64) ([]int64, error) {
	left, err := r.among(ctx, q, keys, "")
	if err != nil {
		return nil, fmt.Errorf("look which rows are still pending: %w", err)
	}
	return left, nil
}

func (r *Reader) among(ctx context.Context, q Querier, keys []int64, lock string) ([]int64, error) {
	key := r.table.QuotedKey()
	sql := fmt.Sprintf("SELECT %[1]s::bigint FROM %[2]s WHERE %[1]s = ANY ($1::%[3]s[]) AND %[4]s ORDER BY %[1]s%[5]s",
		key, r.table.Quoted(), r.table.KeyType, r.mine, lock)
	return collect(q.Query(ctx, sql, keys))
}

// Pending says whether a row of the slot is pending, apart from the excluded keys. It waits for no lock.
func (r *Reader) Pending(ctx context.Context, q Querier, exclude []int64) (bool, error) {
	sql := fmt.Sprintf("SELECT EXISTS (SELECT FROM %s WHERE %s", r.table.Quoted(), r.mine)
	var args []any
	if len(exclude) > 0 {
		args = append(args, exclude)
		sql += fmt.Sprintf(" AND %s <> ALL ($1::bigint[])", r.table.QuotedKey())
	}
	var pending bool
	if err := q.QueryRow(ctx, sql+")", args...).Scan(&pending); err != nil {
		return false, fmt.Errorf("look whether rows of the slot are pending: %w", err)
	}
	return pending, nil
}

// above leaves out the keys that a sweep has passed.
func above(keys []int64, after *int64) []int64 {
	if after == nil {
		return keys
	}
	var rest []int64
	for _, key := range keys {
		if key > *after {
			rest = append(rest, key)
		}
	}
	return rest
}

func collect(rows pgx.Rows, err error) ([]int64, error) {
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[int64])
}
