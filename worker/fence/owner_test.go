package fence

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"shardedjob.dev/hack/postgres"
)

// A worker that was frozen wakes up when a session of the same name has its locks: who holds them goes by the session, not by
// the name, and what the sleeper believes counts for nothing.
func TestN03BeliefDoesNotOutliveTheLock(t *testing.T) {
	g := NewGroup("a/b")
	slot, seat, c := SlotKey(g, 0), CoordinatorKey(g, SeatCoordinator), claim(g, 0, 1, 1)
	for _, tc := range []struct {
		name, lose string
		want       error
	}{
		{"its session is ended", "SELECT pg_terminate_backend(%d)", ErrSessionLost},
		{"its own SQL unlocks", "", ErrLockLost},
	} {
		t.Run(tc.name, func(t *testing.T) {
			uri := database(t)
			sleeper, heir := open(t, uri, g, 0), open(t, uri, g, 0)
			enter(t, sleeper, c)
			if got, err := sleeper.TryLock(deadline(t), seat, Exclusive); !got || err != nil {
				t.Fatal(got, err)
			}
			if tc.lose == "" {
				exec(t, sleeper.Conn(), "SELECT pg_advisory_unlock_all()")
			} else {
				exec(t, postgres.Connect(t, uri), fmt.Sprintf(tc.lose, sleeper.PID()))
			}
			enter(t, heir, c)
			eventually(t, "the heir's seat", func() bool {
				got, err := heir.TryLock(deadline(t), seat, Exclusive)
				return got && err == nil
			})

			if !sleeper.Holds(slot) {
				t.Error("the test is of no use: the sleeper knows already")
			}
			if err := sleeper.CheckLocks(deadline(t), sleeper.Conn()); !errors.Is(err, tc.want) {
				t.Errorf("the sleeper's locks were checked with %v", err)
			}
			again := startEnter(t, open(t, uri, g, 0), c)
			if w := again.waiting(t, WaitingSlotHeld); w.Holders[0].PID != int32(heir.PID()) {
				t.Errorf("it waits for pid %d, not for its heir's %d", w.Holders[0].PID, heir.PID())
			}
			if err := heir.CheckLocks(deadline(t), heir.Conn()); err != nil {
				t.Error(err)
			}
		})
	}
}

// Sessions are told apart by when they began, in whatever zone and style the server shows it; how long they have been waited
// for is measured by the one who waits.
func TestN04TimeZonesDoNotMatter(t *testing.T) {
	uri, g := database(t), NewGroup("a/b")
	admin, name := postgres.Connect(t, uri), postgres.DatabaseName(uri)
	set := func(zone, style string) {
		exec(t, admin, fmt.Sprintf("ALTER DATABASE %s SET timezone = '%s'; ALTER DATABASE %[1]s SET datestyle = '%[3]s'", name, zone, style))
	}
	set("Asia/Kolkata", "German, DMY")
	zombie := open(t, uri, g, 0)
	enter(t, zombie, claim(g, 0, 1, 2))
	set("America/St_Johns", "SQL, MDY")
	c := claim(g, 0, 2, 2)
	c.Handover = 500 * time.Millisecond
	began := time.Now()
	if err := startEnter(t, open(t, uri, g, 0), c).result(t); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < c.Handover {
		t.Errorf("the zombie was ended after %v already", took)
	}
	if zombie.Ping(deadline(t)) == nil {
		t.Error("the zombie lives")
	}
}
