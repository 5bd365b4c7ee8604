package fence

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/jackc/pgx/v5"
)

// A Querier runs a query: a connection or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Mode of a lock.
type Mode uint8

// The modes of an advisory lock.
const (
	Shared Mode = iota + 1
	Exclusive
)

// String is the mode's name as pg_locks has it.
func (m Mode) String() string {
	if m == Exclusive {
		return "ExclusiveLock"
	}
	return "ShareLock"
}

// A Holder is a session that holds one of our locks.
type Holder struct {
	Key  Key
	Mode Mode
	// PID of the server process.
	PID int32
	// BackendStart tells two sessions with one pid apart. It is zero where the server does not show it: for sessions of
	// other roles, without pg_read_all_stats.
	BackendStart time.Time
	// ApplicationName as the session gave it; Identity is what it says if Ours.
	ApplicationName string
	Identity        Identity
	// Ours says that the application name is a worker's, of whatever group.
	Ours bool
	User string
	// Address of the client; invalid for a Unix socket, or where it is not shown.
	Address netip.Addr
}

// Kind is what the lock means.
func (h Holder) Kind() Kind { k, _ := h.Key.Parse(); return k }

// Value is the slot, seat or hash that the lock is about; for an epoch lock see Epoch and Slots.
func (h Holder) Value() uint32 { _, v := h.Key.Parse(); return v }

func (h Holder) mark() mark { return mark(h.Value()) }

// Epoch of an epoch lock.
func (h Holder) Epoch() int64 { return h.mark().epoch() }

// Slots of an epoch lock.
func (h Holder) Slots() int32 { return h.mark().slots() }

// Of says whether the session is a worker of the group.
func (h Holder) Of(g Group) bool { return h.Ours && h.Identity.GroupHash == g.Hash() }

// Who names the session for people: "pid 4711 (thumbnails-2)", or all that is known of a stranger.
func (h Holder) Who() string {
	if h.Ours {
		return fmt.Sprintf("pid %d (%s)", h.PID, h.Identity.Pod())
	}
	who := fmt.Sprintf("pid %d (user %q, application %q", h.PID, h.User, h.ApplicationName)
	if h.Address.IsValid() {
		who += ", at " + h.Address.String()
	}
	return who + ")"
}

// advisory picks the granted two-part advisory locks of this database: locks are per database, and the one-part keys of
// an application look the same but for objsubid.
const advisory = `l.locktype = 'advisory' AND l.objsubid = 2 AND l.granted
	   AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())`

const holdersQuery = `
	SELECT l.classid::int8, l.objid::int8, l.mode, l.pid, a.backend_start, coalesce(a.application_name, ''),
	       coalesce(a.usename, ''), a.client_addr
	  FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
	 WHERE ` + advisory + ` AND l.classid::int8 = ANY($1::int8[])`

// Holders lists the sessions that hold locks of a group in the current database, one entry for each lock.
func Holders(ctx context.Context, q Querier, g Group) ([]Holder, error) {
	return HoldersOf(ctx, q, g.Class())
}

// HoldersOf is Holders for any lock classes, such as ConflictClass.
func HoldersOf(ctx context.Context, q Querier, classes ...int32) ([]Holder, error) {
	wanted := make([]int64, len(classes))
	for i, class := range classes {
		wanted[i] = int64(uint32(class))
	}
	rows, err := q.Query(ctx, holdersQuery, wanted)
	if err != nil {
		return nil, fmt.Errorf("looking at advisory locks: %w", err)
	}
	holders, err := pgx.CollectRows(rows, scanHolder)
	if err != nil {
		return nil, fmt.Errorf("looking at advisory locks: %w", err)
	}
	return holders, nil
}

func scanHolder(row pgx.CollectableRow) (Holder, error) {
	var (
		h             Holder
		class, object int64
		mode          string
		start         *time.Time
		address       *netip.Prefix
	)
	if err := row.Scan(&class, &object, &mode, &h.PID, &start, &h.ApplicationName, &h.User, &address); err != nil {
		return Holder{}, err
	}
	h.Key = Key{int32(uint32(class)), int32(uint32(object))}
	h.Mode = Shared
	if mode == Exclusive.String() {
		h.Mode = Exclusive
	}
	if start != nil {
		h.BackendStart = *start
	}
	if address != nil {
		h.Address = address.Addr()
	}
	h.Identity, h.Ours = ParseApplicationName(h.ApplicationName)
	return h, nil
}
