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
	text  string // the key's text form
	order string // what rows are sorted by
}

// NewReader reads slot k of n.
func NewReader(t Table, n, k int32) *Reader {
	return &Reader{table: t, mine: t.Predicate(n, k) + " AND " + t.Need(), text: t.KeyText(t.Column()), order: t.Order(t.Column())}
}

// Table is the table that is read.
func (r *Reader) Table() Table { return r.table }

// A Range is a part of the keys: greater than After and not greater than UpTo. Nil is without a bound.
type Range struct {
	After, UpTo *Key
}

// NextBatch selects the next pending rows of the slot, at most limit. It leaves out the excluded keys and rows that
// somebody else has locked. No key means that the range is at its end, not that nothing is pending there.
func (r *Reader) NextBatch(limit int, in Range, exclude []Key) Selection {
	condition, args := r.within(in, exclude)
	return Selection{
		sql:  fmt.Sprintf("SELECT %s FROM %s WHERE %s ORDER BY %s LIMIT %d"+locking, r.text, r.table.Quoted(), condition, r.order, limit),
		args: args,
		// At the start of a sweep the planner may know better, of an index on what is pending for example.
		walk: in.After != nil,
	}
}

// Pending says whether a row of the slot in the range is pending, apart from the excluded keys. It takes no lock and waits
// for none.
func (r *Reader) Pending(ctx context.Context, q Querier, in Range, exclude []Key) (bool, error) {
	condition, args := r.within(in, exclude)
	var pending bool
	if err := q.QueryRow(ctx, fmt.Sprintf("SELECT EXISTS (SELECT FROM %s WHERE %s)", r.table.Quoted(), condition), args...).Scan(&pending); err != nil {
		return false, fmt.Errorf("look whether rows of the slot are pending: %w", err)
	}
	return pending, nil
}

// within is the condition of the slot's pending rows in a range, and its parameters.
func (r *Reader) within(in Range, exclude []Key) (condition string, args []any) {
	condition = r.mine
	if in.After != nil {
		args = append(args, string(*in.After))
		condition += fmt.Sprintf(" AND %s > %s", r.order, r.table.KeyValue(fmt.Sprintf("$%d", len(args))))
	}
	if in.UpTo != nil {
		args = append(args, string(*in.UpTo))
		condition += fmt.Sprintf(" AND %s <= %s", r.order, r.table.KeyValue(fmt.Sprintf("$%d", len(args))))
	}
	if len(exclude) > 0 {
		args = append(args, Array(exclude))
		condition += fmt.Sprintf(" AND %s <> ALL ($%d::%s[])", r.table.Column(), len(args), r.table.KeyType)
	}
	return condition, args
}

// Window is the range of the next rows of the table after a key, at most rows of them, whosever they are and whether
// pending or not. It walks the index of the key alone, so that a search in it takes a bounded time however few rows
// are pending. UpTo is nil at the end of the table.
func (r *Reader) Window(ctx context.Context, q Querier, after *Key, rows int) (Range, error) {
	var args []any
	condition := ""
	if after != nil {
		args, condition = []any{string(*after)}, fmt.Sprintf(" WHERE %s > %s", r.order, r.table.KeyValue("$1"))
	}
	ends, err := collect(q.Query(ctx, fmt.Sprintf("SELECT %s FROM %s%s ORDER BY %s OFFSET %d LIMIT 1",
		r.text, r.table.Quoted(), condition, r.order, rows-1), args...))
	if err != nil {
		return Range{}, fmt.Errorf("look where the next %d rows end: %w", rows, err)
	}
	if len(ends) == 0 {
		return Range{After: after}, nil
	}
	return Range{After: after, UpTo: &ends[0]}, nil
}

// Take selects those of the given keys that are still pending rows of the slot and are not locked by somebody else.
func (r *Reader) Take(keys []Key) Selection {
	return Selection{sql: r.among() + locking, args: []any{Array(keys)}}
}

// StillPending returns those of the given keys that are pending rows of the slot, locked or not, ascending.
func (r *Reader) StillPending(ctx context.Context, q Querier, keys []Key) ([]Key, error) {
	left, err := collect(q.Query(ctx, r.StillPendingSQL(), Array(keys)))
	if err != nil {
		return nil, fmt.Errorf("look which rows are still pending: %w", err)
	}
	return left, nil
}

// StillPendingSQL is the statement of StillPending; $1 is an array of the key's type.
func (r *Reader) StillPendingSQL() string { return r.among() }

func (r *Reader) among() string {
	return fmt.Sprintf("SELECT %s FROM %s WHERE %s = ANY ($1::%s[]) AND %s ORDER BY %s",
		r.text, r.table.Quoted(), r.table.Column(), r.table.KeyType, r.mine, r.order)
}

func collect(rows pgx.Rows, err error) ([]Key, error) {
	if err != nil {
		return nil, err
	}
	return Keys(rows)
}
