package fence

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"shardedjob.dev/hack/postgres"
)

func TestMain(m *testing.M) { postgres.Main(m) }

// patience is how long a test waits for what should come soon.
const patience = 30 * time.Second

// database makes an empty database on the shared server.
func database(t testing.TB) string {
	return postgres.ForTest(t).NewDB(t, postgres.NoLocksLeft)
}

func deadline(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func exec(t testing.TB, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(deadline(t), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// open opens the session of one worker of a group.
func open(t testing.TB, uri string, g Group, ordinal int32) *Session {
	t.Helper()
	s, err := tryOpen(t, uri, g, ordinal)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func tryOpen(t testing.TB, uri string, g Group, ordinal int32) (*Session, error) {
	config, err := pgx.ParseConfig(uri)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(deadline(t), config, Options{ApplicationName: ApplicationName(g, ordinal, "5f1c7a34", g.Name())})
	if err == nil {
		t.Cleanup(func() { _ = s.Close(context.Background()) })
	}
	return s, err
}

// claim is worker ordinal's claim of its own slot in a job that has the group for itself.
func claim(g Group, ordinal int32, epoch int64, slots int32) Claim {
	return Claim{Group: g, UID: "uid of " + g.Name(), Ordinal: ordinal, Slot: ordinal, Epoch: epoch, Slots: slots, Handover: patience}
}

// adoption is worker ordinal's claim of another's slot.
func adoption(g Group, ordinal, slot int32, epoch int64, slots int32) Claim {
	c := claim(g, ordinal, epoch, slots)
	c.Slot = slot
	return c
}

func join(t testing.TB, s *Session, c Claim) {
	t.Helper()
	if err := s.Join(deadline(t), c); err != nil {
		t.Fatalf("joining: %v", err)
	}
}

// enter joins and enters, and expects no failure.
func enter(t testing.TB, s *Session, c Claim) {
	t.Helper()
	join(t, s, c)
	if err := s.Enter(deadline(t), c, nil); err != nil {
		t.Fatalf("entering %d of (%d, %d): %v", c.Ordinal, c.Epoch, c.Slots, err)
	}
}

// An entering is an Enter that goes on beside the test.
type entering struct {
	cancel context.CancelFunc
	done   chan struct{}
	err    error

	mu    sync.Mutex
	waits []Waiting
}

func startEnter(t testing.TB, s *Session, c Claim) *entering {
	t.Helper()
	join(t, s, c)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	e := &entering{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(e.done)
		e.err = s.Enter(ctx, c, func(w Waiting) {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.waits = append(e.waits, w)
		})
	}()
	t.Cleanup(func() { cancel(); <-e.done })
	return e
}

// result waits for the end of the Enter.
func (e *entering) result(t testing.TB) error {
	t.Helper()
	select {
	case <-e.done:
		return e.err
	case <-time.After(patience):
		t.Fatal("entering did not come to an end")
		return nil
	}
}

// waiting waits until the Enter says that it waits for a reason.
func (e *entering) waiting(t testing.TB, reason Reason) Waiting {
	t.Helper()
	var found Waiting
	eventually(t, fmt.Sprintf("waiting for %s", reason), func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		for _, w := range e.waits {
			if w.Reason == reason {
				found = w
				return true
			}
		}
		return false
	})
	return found
}

// messages are what has been told about waits for a reason.
func (e *entering) messages(reason Reason) (all []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, w := range e.waits {
		if w.Reason == reason {
			all = append(all, w.Message)
		}
	}
	return all
}

func (e *entering) over() bool {
	select {
	case <-e.done:
		return true
	default:
		return false
	}
}

func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	late := time.After(patience)
	for !condition() {
		select {
		case <-poll.C:
		case <-late:
			t.Fatalf("not in time: %s", what)
		}
	}
}
