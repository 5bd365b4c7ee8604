package shard

import (
	"fmt"

	"github.com/jackc/pgx/v5"
)

// A Selection locks rows, each with a re-check of what it is selected by, and returns their keys, ascending.
type Selection struct {
	sql  string
	args []any
	walk bool // up the index of the key, from where the range begins to the last row of the limit
}

const locking = " FOR NO KEY UPDATE SKIP LOCKED"

// Where the planner thinks that fewer rows are pending in the slot than the limit allows, it reads the whole table and
// sorts what it finds, for each batch again. It often thinks so: of a remainder it has no statistics, and assumes a
// hundredth of the table; what is pending changes faster than they do. Without sorting only the index gives the order.
// The user's statement, in the same transaction, is planned as the user wants it.
//
// WithoutSort and WithSort come before and after a selection that walks up the index, in its transaction.
const (
	WithoutSort = "SELECT set_config('shardedjob.enable_sort', current_setting('enable_sort'), true), set_config('enable_sort', 'off', true)"
	WithSort    = "SELECT set_config('enable_sort', current_setting('shardedjob.enable_sort'), true)"
)

// Queue adds the selection to a round trip in which a transaction is open, and stores the keys when its results are read.
func (s Selection) Queue(b *pgx.Batch, keys *[]Key) {
	if s.walk {
		b.Queue(WithoutSort)
	}
	b.Queue(s.sql, s.args...).Query(func(rows pgx.Rows) (err error) {
		if *keys, err = Keys(rows); err != nil {
			return fmt.Errorf("select rows: %w", err)
		}
		return nil
	})
	if s.walk {
		b.Queue(WithSort)
	}
}
