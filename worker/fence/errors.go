package fence

import (
	"errors"
	"fmt"
)

// What makes a session or a lock unusable. Errors of this package wrap them; test with errors.Is.
var (
	// ErrNotPrimary: the server is a standby or takes no writes. A lock taken there excludes nobody elsewhere.
	ErrNotPrimary = errors.New("the server is not a writable primary")
	// ErrTransactionPooling: a pooler changes the server session under the client, so that a session lock stays
	// behind with another client.
	ErrTransactionPooling = errors.New("the connection goes through a pooler in transaction or statement mode")
	// ErrSessionLost: the server session is gone, and with it every lock. Open another and start from Join.
	ErrSessionLost = errors.New("the database session is lost")
	// ErrLockLost: the server does not hold the locks for this session that it is believed to hold. Roll back, close
	// the session and start from Join.
	ErrLockLost = errors.New("the session's locks are not what they should be")
	// ErrAlreadyHeld: the session holds this lock. Taking it again would stack it.
	ErrAlreadyHeld = errors.New("the lock is already held")
	// ErrInTransaction: locks are taken and let go outside transactions only.
	ErrInTransaction = errors.New("the session is in a transaction")
	// ErrSlotTaken: the slot to be adopted is held, or wanted back by its own worker. Nothing of the entry is kept.
	ErrSlotTaken = errors.New("the slot is not free to be adopted")
	// ErrNotJoined: Enter was called before Join with the same group, UID and table had succeeded.
	ErrNotJoined = errors.New("the session has not joined the group")
)

// A SupersededError says that another session has a newer plan, or one of the same epoch with more slots. Everything but
// the owner and conflict lock has been let go of. Read the plan again; where that brings nothing newer, follow these.
type SupersededError struct {
	Epoch int64
	Slots int32
	// By is the session that works under the newer plan.
	By Holder
}

func (e *SupersededError) Error() string {
	return fmt.Sprintf("superseded by epoch %d with %d slots, which %s works under", e.Epoch, e.Slots, e.By.Who())
}

// ConflictKind is what two jobs collide over.
type ConflictKind string

const (
	// ConflictOwner: another job, or a predecessor that is still going, works for the same group.
	ConflictOwner ConflictKind = "Owner"
	// ConflictTable: another group works the rows of the same table.
	ConflictTable ConflictKind = "Table"
)

// A ConflictError says that somebody else is at the group or the table. The session holds no claim; retry Join with jitter.
type ConflictError struct {
	Kind ConflictKind
	// Other is one of the sessions that are there.
	Other Holder
}

func (e *ConflictError) Error() string {
	what := "works for the same consumer group"
	if e.Kind == ConflictTable {
		what = "works the same table"
	}
	if !e.Other.Ours {
		return fmt.Sprintf("%s holds a lock that is needed to claim the job", e.Other.Who())
	}
	return fmt.Sprintf("job %s (%s) %s", e.Other.Identity.Job, e.Other.Who(), what)
}
