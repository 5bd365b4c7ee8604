package fence

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// A Claim is what a worker wants: a slot of a group under a plan.
type Claim struct {
	Group Group
	// UID of the job.
	UID string
	// Ordinal of the pod: who it is.
	Ordinal int32
	// Slot it wants: its own, whose number is the ordinal, or an orphaned one to adopt.
	Slot int32
	// Epoch and Slots of the plan.
	Epoch int64
	Slots int32
	// TableOID of the table whose rows remember by themselves that they are done; 0 if no other group can conflict.
	TableOID uint32
	// Handover is how long sessions of older plans may stay before they are ended.
	Handover time.Duration
}

// joined is the part of a claim that outlives a hand-over.
type joined struct {
	group Group
	uid   string
	table uint32
}

// adopts says whether the slot is another worker's.
func (c Claim) adopts() bool { return c.Slot != c.Ordinal }

func (c Claim) joined() joined { return joined{c.Group, c.UID, c.TableOID} }

// keys are the owner key and, where there can be one, the conflict key.
func (j joined) keys() []Key {
	keys := []Key{OwnerKey(j.group, j.uid)}
	if j.table != 0 {
		keys = append(keys, ConflictKey(j.table, j.group))
	}
	return keys
}

// Join claims group and table for the job, which comes before Enter and is kept over hand-overs: released and taken
// again, another job could slip in while this one is only changing its plan. On a *ConflictError nothing is kept; try again
// with jitter.
//
// Take, then look: of two newcomers at least one sees the other. Both may, and both then let go, since newcomers that
// kept their claim and polled would wait for each other for ever. A session that has joined stays and does not look again.
func (s *Session) Join(ctx context.Context, c Claim) error {
	want := c.joined()
	if s.joined != nil && *s.joined == want {
		return s.gone()
	}
	if err := s.Leave(ctx); err != nil {
		return err
	}
	if s.joined != nil {
		old := s.joined.keys()
		s.joined = nil
		if err := s.unlock(ctx, old...); err != nil {
			return err
		}
	}
	keys := want.keys()
	got, err := s.tryLocks(ctx, keys, Shared)
	if err != nil {
		return err
	}
	holders, err := s.look(ctx, want.group.Class(), ConflictClass(want.table))
	if err != nil {
		return err
	}
	refused := rival(want, keys, got, int32(s.pid), holders)
	if refused == nil {
		s.joined = &want
		return nil
	}
	taken := slices.DeleteFunc(keys, func(key Key) bool { return !s.Holds(key) })
	if err := s.unlock(ctx, taken...); err != nil {
		return err
	}
	return refused
}

// rival is pure: the conflict that a newcomer sees, or nil. An owner or conflict lock of our own value is our own job's, unless
// it is exclusive: then it is a stranger's and kept us out.
func rival(want joined, keys []Key, got []bool, me int32, holders []Holder) error {
	for _, h := range holders {
		if h.PID == me {
			continue
		}
		i := slices.Index(keys, h.Key)
		switch {
		case i >= 0 && got[i]:
		case h.Kind() == KindOwner && h.Key.Class == want.group.Class():
			return &ConflictError{Kind: ConflictOwner, Other: h}
		case h.Kind() == KindConflict && want.table != 0 && h.Key.Class == ConflictClass(want.table):
			return &ConflictError{Kind: ConflictTable, Other: h}
		}
	}
	if i := slices.Index(got, false); i >= 0 {
		kind, _ := keys[i].Parse()
		return fmt.Errorf("claiming the job: its %s lock was taken for a moment by another session", kind)
	}
	return nil
}

func (s *Session) look(ctx context.Context, classes ...int32) (holders []Holder, err error) {
	err = s.call(ctx, "looking at the group's locks", func(ctx context.Context) error {
		holders, err = HoldersOf(ctx, s.conn, classes...)
		return err
	})
	return holders, err
}
