package fence

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"shardedjob.dev/hack/postgres"
)

// wanted asks an adopter's question.
func wanted(t testing.TB, s *Session, c Claim) bool {
	t.Helper()
	yes, err := s.Wanted(deadline(t), c)
	if err != nil {
		t.Fatal(err)
	}
	return yes
}

func TestOwnWorkerAsksForItsSlot(t *testing.T) {
	uri, g := database(t), NewGroup("media/thumbnails")
	adopter, c := open(t, uri, g, 1), adoption(g, 1, 3, 7, 5)
	enter(t, adopter, c)
	if wanted(t, adopter, c) {
		t.Error("wanted by nobody")
	}
	own := open(t, uri, g, 3)
	returning := startEnter(t, own, claim(g, 3, 7, 5))
	w := returning.waiting(t, WaitingAdopted)
	if want := fmt.Sprintf("waiting for slot 3, which pid %d (thumbnails-1) has adopted, 0 s", adopter.PID()); w.Message != want {
		t.Errorf("got %q, want %q", w.Message, want)
	}
	eventually(t, "the adopter sees the intent", func() bool { return wanted(t, adopter, c) })
	if err := adopter.Leave(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if err := returning.result(t); err != nil {
		t.Fatal(err)
	}
	if own.Holds(IntentKey(g, 3)) {
		t.Error("the intent outlives its end")
	}
	if err := own.CheckLocks(deadline(t), own.Conn()); err != nil {
		t.Error(err)
	}
}

func TestIntentEndsWithTheEntry(t *testing.T) {
	uri, g := database(t), NewGroup("a/b")
	adopter, c := open(t, uri, g, 1), adoption(g, 1, 0, 1, 2)
	enter(t, adopter, c)
	own := open(t, uri, g, 0)
	returning := startEnter(t, own, claim(g, 0, 1, 2))
	eventually(t, "the intent", func() bool { return wanted(t, adopter, c) })
	returning.cancel()
	if err := returning.result(t); err == nil {
		t.Fatal("entered a slot that is held")
	}
	if held := own.Held(); len(held) != 1 {
		t.Errorf("after giving up the session holds %v", held)
	}
	if wanted(t, adopter, c) {
		t.Error("the slot is wanted by who has given up")
	}
}

func TestAdopterDoesNotWaitForASlot(t *testing.T) {
	uri, g := database(t), NewGroup("a/b")
	owner := open(t, uri, g, 0)
	enter(t, owner, claim(g, 0, 1, 3))
	adopter := open(t, uri, g, 1)
	c := adoption(g, 1, 0, 1, 3)
	join(t, adopter, c)
	refused := func(why string) {
		t.Helper()
		if err := adopter.Enter(deadline(t), c, nil); !errors.Is(err, ErrSlotTaken) {
			t.Errorf("%s: %v", why, err)
		}
		if held := adopter.Held(); len(held) != 1 {
			t.Errorf("%s: a refused adopter holds %v", why, held)
		}
	}
	refused("held by its own worker")
	if err := owner.Leave(deadline(t)); err != nil {
		t.Fatal(err)
	}
	other := open(t, uri, g, 2)
	enter(t, other, adoption(g, 2, 0, 1, 3))
	refused("held by another adopter")

	returning := startEnter(t, owner, claim(g, 0, 1, 3))
	eventually(t, "the intent", func() bool { return owner.Holds(IntentKey(g, 0)) })
	refused("held and wanted back")
	if err := other.Leave(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if err := returning.result(t); err != nil {
		t.Fatal(err)
	}

	free := adoption(g, 1, 2, 1, 3)
	if got, err := other.TryLock(deadline(t), IntentKey(g, 2), Exclusive); !got || err != nil {
		t.Fatal(got, err)
	}
	if err := adopter.Enter(deadline(t), free, nil); !errors.Is(err, ErrSlotTaken) {
		t.Errorf("free, but wanted by its own worker: %v", err)
	}
}

func TestStrangersIntentAsksForNothing(t *testing.T) {
	uri, g := database(t), NewGroup("a/b")
	app := postgres.Connect(t, uri)
	intent := IntentKey(g, 0)
	exec(t, app, fmt.Sprintf("SELECT pg_advisory_lock(%d, %d)", intent.Class, intent.Object))
	adopter, c := open(t, uri, g, 1), adoption(g, 1, 0, 1, 2)
	enter(t, adopter, c)
	if wanted(t, adopter, c) {
		t.Error("a stranger got an adopter to let go")
	}
	returning := startEnter(t, open(t, uri, g, 0), claim(g, 0, 1, 2))
	returning.waiting(t, WaitingForeignLock)
	exec(t, app, "SELECT pg_advisory_unlock_all()")
	eventually(t, "the own worker's intent", func() bool { return wanted(t, adopter, c) })
	if err := adopter.Leave(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if err := returning.result(t); err != nil {
		t.Error(err)
	}
}

func TestOwnSlotIsNeverYielded(t *testing.T) {
	uri, g := database(t), NewGroup("a/b")
	zombie, c := open(t, uri, g, 0), claim(g, 0, 1, 2)
	enter(t, zombie, c)
	restarted := startEnter(t, open(t, uri, g, 0), c)
	restarted.waiting(t, WaitingSlotHeld)
	intruder := open(t, uri, g, 0)
	if got, err := intruder.TryLock(deadline(t), IntentKey(g, 0), Exclusive); !got || err != nil {
		t.Fatalf("a restarted worker asked its predecessor for the slot: %v, %v", got, err)
	}
	if wanted(t, zombie, c) {
		t.Error("a session was asked to yield its own slot")
	}
	if err := zombie.Close(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if err := restarted.result(t); err != nil {
		t.Error(err)
	}
}

// The adopter is in the middle of a batch when the slot's own worker comes back: the batch is committed, and no other is begun.
func TestSlotIsHandedBackWithinOneBatch(t *testing.T) {
	uri, g := database(t), NewGroup("a/b")
	exec(t, postgres.Connect(t, uri), "CREATE TABLE t (id int)")
	adopter, c := open(t, uri, g, 1), adoption(g, 1, 0, 1, 2)
	enter(t, adopter, c)
	batch, err := adopter.Conn().Begin(deadline(t))
	if err != nil {
		t.Fatal(err)
	}
	returning := startEnter(t, open(t, uri, g, 0), claim(g, 0, 1, 2))
	returning.waiting(t, WaitingAdopted)
	if _, err := batch.Exec(deadline(t), "INSERT INTO t VALUES (1)"); err != nil {
		t.Fatal(err)
	}
	if err := adopter.CheckLocks(deadline(t), batch); err != nil {
		t.Errorf("the slot was taken in the middle of a batch: %v", err)
	}
	if returning.over() {
		t.Errorf("entered a slot that is worked: %v", returning.err)
	}
	if err := batch.Commit(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if !wanted(t, adopter, c) {
		t.Fatal("the intent is not seen at the first boundary")
	}
	if err := adopter.Leave(deadline(t)); err != nil {
		t.Fatal(err)
	}
	left := time.Now()
	if err := returning.result(t); err != nil {
		t.Fatal(err)
	}
	t.Logf("the slot was not worked for %v", time.Since(left).Round(time.Millisecond))
}

func TestOfManyAdoptersOneGetsTheSlot(t *testing.T) {
	uri, g := database(t), NewGroup("a/b")
	const rounds, adopters, slot = 20, 4, 9
	var sessions [adopters]*Session
	for i := range sessions {
		sessions[i] = open(t, uri, g, int32(i))
		join(t, sessions[i], adoption(g, int32(i), slot, 1, 10))
	}
	for range rounds {
		errs := make([]error, adopters)
		var all sync.WaitGroup
		for i, s := range sessions {
			all.Go(func() { errs[i] = s.Enter(t.Context(), adoption(g, int32(i), slot, 1, 10), nil) })
		}
		all.Wait()
		got := 0
		for i, err := range errs {
			switch {
			case err == nil:
				got++
				if err := sessions[i].Leave(deadline(t)); err != nil {
					t.Fatal(err)
				}
			case !errors.Is(err, ErrSlotTaken):
				t.Errorf("adopter %d: %v", i, err)
			}
		}
		if got != 1 {
			t.Fatalf("%d adopters got the slot", got)
		}
	}
}

// Under another plan the slot's rows belong to other slots: nobody works them before the adopter has let go, or is ended.
func TestNewPlanWaitsForAdopters(t *testing.T) {
	uri, g := database(t), NewGroup("media/thumbnails")
	adopter, frozen := open(t, uri, g, 1), open(t, uri, g, 0)
	enter(t, adopter, adoption(g, 1, 2, 1, 4))
	enter(t, frozen, adoption(g, 0, 3, 1, 4))

	c := claim(g, 0, 2, 2)
	c.Handover = 2 * time.Second
	own := startEnter(t, open(t, uri, g, 0), c)
	next := adoption(g, 2, 1, 2, 2)
	next.Handover = 2 * time.Second
	other := startEnter(t, open(t, uri, g, 2), next)
	for _, e := range []*entering{own, other} {
		w := e.waiting(t, WaitingOlderPlan)
		if !strings.Contains(w.Message, "of epoch 1") {
			t.Errorf("got %q", w.Message)
		}
	}
	newer, err := adopter.Superseded(deadline(t), adoption(g, 1, 2, 1, 4))
	if err != nil || newer == nil || newer.Epoch != 2 {
		t.Fatalf("the adopter does not see the new plan: %v, %v", newer, err)
	}
	if err := adopter.Leave(deadline(t)); err != nil {
		t.Fatal(err)
	}
	for _, e := range []*entering{own, other} {
		if err := e.result(t); err != nil {
			t.Error(err)
		}
	}
	if frozen.Ping(deadline(t)) == nil {
		t.Error("an adopter of the old plan works beside the new one")
	}
	if err := adopter.Ping(deadline(t)); err != nil {
		t.Errorf("an adopter that let go was ended: %v", err)
	}
}

// The slot of a killed adopter goes to the worker that wants it, and to nobody else.
func TestKilledAdopterMakesWayForTheOwnWorker(t *testing.T) {
	uri, g := database(t), NewGroup("a/b")
	admin := postgres.Connect(t, uri)
	adopter, second := open(t, uri, g, 1), open(t, uri, g, 2)
	enter(t, adopter, adoption(g, 1, 0, 1, 3))
	c := adoption(g, 2, 0, 1, 3)
	join(t, second, c)
	own := open(t, uri, g, 0)
	returning := startEnter(t, own, claim(g, 0, 1, 3))
	eventually(t, "the intent", func() bool { return own.Holds(IntentKey(g, 0)) })
	exec(t, admin, "SELECT pg_terminate_backend($1)", int32(adopter.PID()))
	for !returning.over() {
		if err := second.Enter(deadline(t), c, nil); !errors.Is(err, ErrSlotTaken) {
			t.Fatalf("another adopter came between: %v", err)
		}
	}
	if err := returning.result(t); err != nil {
		t.Error(err)
	}
}
