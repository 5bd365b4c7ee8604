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

// A Range is a part of the keys: greater than After and not greater than UpTo. Nil is without a bound.
type Range struct {
	After, UpTo *int64
}

// NextBatch selects the next pending rows of the slot, at most limit. It leaves out the excluded keys and rows that
// somebody else has locked. No key means that the range is at its end, not that nothing is pending there.
func (r *Reader) NextBatch(limit int, in Range, exclude []int64) Selection {
	condition, args := r.within(in, exclude)
	return Selection{
		sql: fmt.Sprintf("SELECT %[1]s::bigint FROM %[2]s WHERE %[3]s ORDER BY %[1]s LIMIT %[4]d"+locking,
			r.table.QuotedKey(), r.table.Quoted(), condition, limit),
		args: args,
		// At the start of a sweep the planner may know better, of an index on what is pending for example.
		walk: in.After != nil,
	}
}

// Pending says whether a row of the slot in the range is pending, apart from the excluded keys. It takes no lock and waits
// for none.
func (r *Reader) Pending(ctx context.Context, q Querier, in Range, exclude []int64) (bool, error) {
	condition, args := r.within(in, exclude)
	var pending bool
	if err := q.QueryRow(ctx, fmt.Sprintf("SELECT EXISTS (SELECT FROM %s WHERE %s)", r.table.Quoted(), condition), args...).Scan(&pending); err != nil {
		return false, fmt.Errorf("look whether rows of the slot are pending: %w", err)
	}
	return pending, nil
}

// within is the condition of the slot's pending rows in a range, and its parameters.
func (r *Reader) within(in Range, exclude []int64) (condition string, args []any) {
	condition, key := r.mine, r.table.QuotedKey()
	if in.After != nil {
		args = append(args, *in.After)
		condition += fmt.Sprintf(" AND %s > $%d::bigint", key, len(args))
	}
	if in.UpTo != nil {
		args = append(args, *in.UpTo)
		condition += fmt.Sprintf(" AND %s <= $%d::bigint", key, len(args))
	}
	if exclude = in.of(exclude); len(exclude) > 0 {
		args = append(args, exclude)
		condition += fmt.Sprintf(" AND %s <> ALL ($%d::bigint[])", key, len(args))
	}
	return condition, args
}

// Window is the range of the next rows of the table after a key, at most rows of them, whosever they are and whether
// pending or not. It walks the index of the key alone, so that a search in it takes a bounded time however few rows
// are pending. UpTo is nil at the end of the table.
func (r *Reader) Window(ctx context.Context, q Querier, after *int64, rows int) (Range, error) {
	key, args, condition := r.table.QuotedKey(), []any(nil), ""
	if after != nil {
		args, condition = []any{*after}, fmt.Sprintf(" WHERE %s > $1::bigint", key)
	}
	ends, err := collect(q.Query(ctx, fmt.Sprintf("SELECT %[1]s::bigint FROM %[2]s%[3]s ORDER BY %[1]s OFFSET %[4]d LIMIT 1",
		key, r.table.Quoted(), condition, rows-1), args...))
	if err != nil {
		return Range{}, fmt.Errorf("look where the next %d rows end: %w", rows, err)
	}
	if len(ends) == 0 {
		return Range{After: after}, nil
	}
	return Range{After: after, UpTo: &ends[0]}, nil
}

// Take selects those of the given keys that are still pending rows of the slot and are not locked by somebody else.
func (r *Reader) Take(keys []int64) Selection {
	return Selection{sql: r.among() + locking, args: []any{keys}}
}

// StillPending returns those of the given keys that are pending rows of the slot, locked or not, ascending.
func (r *Reader) StillPending(ctx context.Context, q Querier, keys []int64) ([]int64, error) {
	left, err := collect(q.Query(ctx, r.StillPendingSQL(), keys))
	if err != nil {
		return nil, fmt.Errorf("look which rows are still pending: %w", err)
	}
	return left, nil
}

// StillPendingSQL is the statement of StillPending; $1 is an array of the key's type.
func (r *Reader) StillPendingSQL() string { return r.among() }

func (r *Reader) among() string {
	return fmt.Sprintf("SELECT %[1]s::bigint FROM %[2]s WHERE %[1]s = ANY ($1::%[3]s[]) AND %[4]s ORDER BY %[1]s",
		r.table.QuotedKey(), r.table.Quoted(), r.table.KeyType, r.mine)
}

// of picks the keys that lie in the range.
func (in Range) of(keys []int64) []int64 {
	if in.After == nil && in.UpTo == nil {
		return keys
	}
	var inside []int64
	for _, key := range keys {
		if (in.After == nil || key > *in.After) && (in.UpTo == nil || key <= *in.UpTo) {
			inside = append(inside, key)
		}
	}
	return inside
}

func collect(rows pgx.Rows, err error) ([]int64, error) {
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[int64])
}
