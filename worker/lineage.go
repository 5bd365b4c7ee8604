package worker

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"
)

// lineage keeps a worker away from a server that another has succeeded. After a promotion the old primary may come back and
// take writes until somebody stops it; its timeline tells it from its successor. The worker remembers where it has been, so
// that none of its sessions, the coordinator's included, goes back.
type lineage struct {
	mu       sync.Mutex
	system   string
	timeline int64
}

// A succeededError says that a server is an old primary.
type succeededError struct{ timeline, successor int64 }

func (e *succeededError) Error() string {
	return fmt.Sprintf("the database server is on timeline %d, and one on timeline %d has succeeded it; name that one in the database Secret, or start the workers anew if an older state was restored",
		e.timeline, e.successor)
}

// lineageSQL is of the server as it is: the control file has a new timeline only after the checkpoint that follows a promotion.
const lineageSQL = `SELECT system_identifier::text, CASE WHEN NOT pg_is_in_recovery() THEN ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::bigint END
	FROM pg_control_system()`

// guard adds to a check of a fresh connection, which decides whether the next host is tried, that the server is none that
// another has succeeded. A standby is for others to refuse, and a server that does not tell is let pass.
func (l *lineage) guard(next pgconn.ValidateConnectFunc) pgconn.ValidateConnectFunc {
	return func(ctx context.Context, conn *pgconn.PgConn) error {
		if next != nil {
			if err := next(ctx, conn); err != nil {
				return err
			}
		}
		found := conn.ExecParams(ctx, lineageSQL, nil, nil, nil, nil).Read()
		var refused *pgconn.PgError
		switch {
		case errors.As(found.Err, &refused) && !conn.IsClosed():
			return nil
		case found.Err != nil:
			return fmt.Errorf("look at the server's timeline: %w", found.Err)
		case len(found.Rows) != 1 || found.Rows[0][1] == nil:
			return nil
		}
		timeline, err := strconv.ParseInt(string(found.Rows[0][1]), 10, 64)
		if err != nil {
			return fmt.Errorf("look at the server's timeline: %w", err)
		}
		return l.met(string(found.Rows[0][0]), timeline)
	}
}

// met remembers a server, and refuses it if a successor was met before.
func (l *lineage) met(system string, timeline int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.system == system && timeline < l.timeline {
		return &succeededError{timeline: timeline, successor: l.timeline}
	}
	l.system, l.timeline = system, timeline
	return nil
}
