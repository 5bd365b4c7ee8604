package fence

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"shardedjob.dev/hack/postgres"
)

func TestC03NewPlanWaitsForEveryOldSession(t *testing.T) {
	uri, g := database(t), NewGroup("media/thumbnails")
	admin := postgres.Connect(t, uri)
	exec(t, admin, "CREATE TABLE t (id int); INSERT INTO t SELECT generate_series(1, 100)")
	old := make([]*Session, 3)
	for k := range old {
		old[k] = open(t, uri, g, int32(k))
		enter(t, old[k], claim(g, int32(k), 3, 3))
	}
	batch, err := old[1].Conn().Begin(deadline(t)) // id 7 is in slot 1 of 3 and in slot 3 of 4
	if err != nil {
		t.Fatal(err)
	}
	if _, err := batch.Exec(deadline(t), "UPDATE t SET id = id WHERE id = 7"); err != nil {
		t.Fatal(err)
	}
	entries := make([]*entering, 4)
	for k := range 4 {
		if k == 1 { // its worker is still busy
			continue
		}
		s := open(t, uri, g, int32(k))
		if k < 3 {
			s = old[k]
			if err := s.Leave(deadline(t)); err != nil {
				t.Fatal(err)
			}
		}
		entries[k] = startEnter(t, s, claim(g, int32(k), 4, 4))
	}
	for _, k := range []int{0, 2, 3} {
		w := entries[k].waiting(t, WaitingOlderPlan)
		if want := fmt.Sprintf("waiting for pid %d (thumbnails-1) of epoch 3, 0 s; its session is ended after 30 s", old[1].PID()); w.Message != want && !strings.Contains(w.Message, "more)") {
			t.Errorf("got %q, want %q", w.Message, want)
		}
	}
	newer, err := old[1].Superseded(deadline(t), claim(g, 1, 3, 3)) // seen by the busy worker in the locks alone
	if err == nil && newer == nil {
		t.Fatal("a newer plan was not seen")
	}
	if err == nil && (newer.Epoch != 4 || newer.Slots != 4) {
		t.Errorf("got %v", newer)
	}
	for _, k := range []int{0, 2, 3} {
		if entries[k].over() {
			t.Fatalf("slot %d of the new plan was entered while the old is worked: %v", k, entries[k].err)
		}
	}
	if err := old[1].CheckLocks(deadline(t), batch); err != nil {
		t.Error(err)
	}
	if err := batch.Commit(deadline(t)); err != nil {
		t.Error(err)
	}
	if err := old[1].Leave(deadline(t)); err != nil {
		t.Fatal(err)
	}
	enter(t, old[1], claim(g, 1, 4, 4))
	for _, k := range []int{0, 2, 3} {
		if err := entries[k].result(t); err != nil {
			t.Errorf("slot %d: %v", k, err)
		}
	}
}

func TestNewerPlanIsFollowed(t *testing.T) {
	uri, g := database(t), NewGroup("a/b")
	for _, tc := range []struct {
		name      string
		old, next Claim
	}{
		{"newer epoch", claim(g, 0, 3, 3), claim(g, 1, 4, 2)},
		{"same epoch, more slots", claim(g, 0, 3, 3), claim(g, 1, 3, 4)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			next, old := open(t, uri, g, 1), open(t, uri, g, 0)
			defer func() { _, _ = next.Close(context.Background()), old.Close(context.Background()) }()
			enter(t, next, tc.next)
			join(t, old, tc.old)
			var newer *SupersededError
			if err := old.Enter(deadline(t), tc.old, nil); !errors.As(err, &newer) {
				t.Fatalf("got %v", err)
			}
			if newer.Epoch != tc.next.Epoch || newer.Slots != tc.next.Slots || newer.By.PID != int32(next.PID()) {
				t.Errorf("got %v", newer)
			}
			if held := old.Held(); len(held) != 1 || held[0] != OwnerKey(g, tc.old.UID) {
				t.Errorf("still held: %v", held)
			}
			followed := tc.old
			followed.Epoch, followed.Slots = newer.Epoch, newer.Slots
			enter(t, old, followed)
			if newer, err := next.Superseded(deadline(t), tc.next); newer != nil || err != nil {
				t.Errorf("the newest plan is superseded: %v, %v", newer, err)
			}
		})
	}
}

func TestSameEpochWithTwoSlotCountsComesToOne(t *testing.T) {
	uri, g := database(t), NewGroup("a/b")
	few, many := open(t, uri, g, 0), open(t, uri, g, 1)
	enter(t, few, claim(g, 0, 5, 3))
	waiter := startEnter(t, many, claim(g, 1, 5, 4))
	waiter.waiting(t, WaitingOlderPlan)
	newer, err := few.Superseded(deadline(t), claim(g, 0, 5, 3))
	if err != nil || newer == nil || newer.Epoch != 5 || newer.Slots != 4 {
		t.Fatalf("got %v, %v", newer, err)
	}
	if err := few.Leave(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if err := waiter.result(t); err != nil {
		t.Fatal(err)
	}
	enter(t, few, claim(g, 0, newer.Epoch, newer.Slots))
}

func TestC13ZombieIsEndedAfterTheHandover(t *testing.T) {
	uri, g := database(t), NewGroup("media/thumbnails")
	admin := postgres.Connect(t, uri)
	exec(t, admin, "CREATE TABLE t (id int)")
	zombie := open(t, uri, g, 2)
	enter(t, zombie, claim(g, 2, 3, 3))
	tx, err := zombie.Conn().Begin(deadline(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(deadline(t), "INSERT INTO t VALUES (1)"); err != nil {
		t.Fatal(err)
	}

	c := claim(g, 0, 4, 4)
	c.Handover = 300 * time.Millisecond
	start := time.Now()
	next := startEnter(t, open(t, uri, g, 0), c)
	if err := next.result(t); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took < c.Handover {
		t.Errorf("the zombie was given %v only", took)
	}
	if err := tx.Commit(deadline(t)); err == nil {
		t.Error("the zombie's late result was committed")
	}
	if zombie.Lost() == nil && zombie.Ping(deadline(t)) == nil {
		t.Error("the zombie's session lives")
	}
}

func TestLiveWorkersOfTheNewPlanAreNotEnded(t *testing.T) {
	uri, g := database(t), NewGroup("a/b")
	peer := open(t, uri, g, 1)
	enter(t, peer, claim(g, 1, 4, 2))
	c := claim(g, 0, 4, 2)
	c.Handover = time.Nanosecond
	enter(t, open(t, uri, g, 0), c)
	again := startEnter(t, open(t, uri, g, 1), Claim{Group: g, UID: c.UID, Ordinal: 1, Slot: 1, Epoch: 4, Slots: 2, Handover: time.Nanosecond})
	w := again.waiting(t, WaitingSlotHeld)
	if want := fmt.Sprintf("waiting for slot 1, which pid %d (b-1) holds, 0 s", peer.PID()); w.Message != want {
		t.Errorf("got %q, want %q", w.Message, want)
	}
	if err := peer.Ping(deadline(t)); err != nil {
		t.Errorf("a worker of the same plan was ended: %v", err)
	}
}

func TestForeignLocksBlockAndAreNamed(t *testing.T) {
	uri, g := database(t), NewGroup("a/b")
	older, err := EpochKey(g, 2, 3)
	if err != nil {
		t.Fatal(err)
	}
	newer, err := EpochKey(g, 9, 3)
	if err != nil {
		t.Fatal(err)
	}
	mine, err := EpochKey(g, 3, 3)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, function string
		key            Key
	}{
		{"older epoch", "pg_advisory_lock_shared", older},
		{"newer epoch", "pg_advisory_lock_shared", newer},
		{"own epoch, exclusive", "pg_advisory_lock", mine},
		{"slot", "pg_advisory_lock", SlotKey(g, 0)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			app := postgres.Connect(t, uri)
			exec(t, app, "SET application_name = 'billing'")
			exec(t, app, fmt.Sprintf("SELECT %s(%d, %d)", tc.function, tc.key.Class, tc.key.Object))
			c := claim(g, 0, 3, 3)
			c.Handover = time.Nanosecond // even so a stranger is not ended
			s := open(t, uri, g, 0)
			defer func() { _ = s.Close(context.Background()) }()
			waiter := startEnter(t, s, c)
			w := waiter.waiting(t, WaitingForeignLock)
			for _, part := range []string{fmt.Sprintf("pid %d", app.PgConn().PID()), `user "postgres"`, `application "billing"`, "at 127.0.0.1"} {
				if !strings.Contains(w.Message, part) {
					t.Errorf("%q does not say %q", w.Message, part)
				}
			}
			eventually(t, "being told again", func() bool { return len(waiter.messages(WaitingForeignLock)) > 1 })
			for _, message := range waiter.messages(WaitingForeignLock) {
				if message != w.Message {
					t.Errorf("%q became %q: each change of a problem is written to the API server", w.Message, message)
				}
			}
			exec(t, app, "SELECT pg_advisory_unlock_all()") // alive
			if err := waiter.result(t); err != nil {
				t.Errorf("after the stranger has gone: %v", err)
			}
		})
	}
}

func TestMissingRightToEndASessionIsExplained(t *testing.T) {
	uri, g := database(t), NewGroup("a/b")
	admin := postgres.Connect(t, uri)
	name := postgres.DatabaseName(uri)
	before, after := "before_"+name, "after_"+name
	exec(t, admin, fmt.Sprintf("CREATE ROLE %s LOGIN; CREATE ROLE %s LOGIN", before, after))
	t.Cleanup(func() {
		if _, err := admin.Exec(context.Background(), fmt.Sprintf("DROP ROLE %s; DROP ROLE %s", before, after)); err != nil {
			t.Error(err)
		}
	})
	as := func(role string) string { return strings.Replace(uri, "postgres@", role+"@", 1) }
	zombie := open(t, as(before), g, 0)
	enter(t, zombie, claim(g, 0, 3, 3))

	c := claim(g, 0, 4, 3)
	c.Handover = time.Nanosecond
	s := open(t, as(after), g, 0)
	waiter := startEnter(t, s, c)
	w := waiter.waiting(t, WaitingCannotEnd)
	if want := fmt.Sprintf(`GRANT pg_signal_backend TO "%s"`, after); !strings.Contains(w.Message, want) || !strings.Contains(w.Message, before) {
		t.Errorf("%q does not say %q", w.Message, want)
	}
	exec(t, admin, "GRANT pg_signal_backend TO "+after)
	if err := waiter.result(t); err != nil {
		t.Errorf("after the GRANT: %v", err)
	}
	_ = s.Close(context.Background())
	eventually(t, "sessions of the roles are over", func() bool {
		var n int
		err := admin.QueryRow(deadline(t), "SELECT count(*) FROM pg_stat_activity WHERE usename IN ($1, $2)", before, after).Scan(&n)
		return err == nil && n == 0
	})
}

func TestEnterChecksItsClaim(t *testing.T) {
	uri, g := database(t), NewGroup("a/b")
	s := open(t, uri, g, 0)
	c := claim(g, 0, 1, 2)
	if err := s.Enter(deadline(t), c, nil); !errors.Is(err, ErrNotJoined) {
		t.Errorf("entered without a claim: %v", err)
	}
	join(t, s, c)
	for _, tc := range []struct {
		name   string
		change func(*Claim)
	}{
		{"no slot", func(c *Claim) { c.Slot = 2 }},
		{"negative slot", func(c *Claim) { c.Slot = -1 }},
		{"paused", func(c *Claim) { c.Slots = 0 }},
		{"epoch 0", func(c *Claim) { c.Epoch = 0 }},
		{"epoch beyond the key", func(c *Claim) { c.Epoch = MaxEpoch + 1 }},
		{"another job", func(c *Claim) { c.UID = "other" }},
		{"another table", func(c *Claim) { c.TableOID = 1 }},
	} {
		bad := c
		tc.change(&bad)
		if err := s.Enter(deadline(t), bad, nil); err == nil {
			t.Errorf("%s: entered", tc.name)
		}
	}
	enter(t, s, c)
	if err := s.Enter(deadline(t), c, nil); !errors.Is(err, ErrAlreadyHeld) {
		t.Errorf("entered twice: %v", err)
	}
	if err := s.Leave(deadline(t)); err != nil {
		t.Error(err)
	}
	if err := s.Leave(deadline(t)); err != nil {
		t.Errorf("leaving twice: %v", err)
	}
}

func TestTwoJobsConflict(t *testing.T) {
	uri := database(t)
	table := uint32(16384)
	job := func(group, uid string, table uint32) Claim {
		return Claim{Group: NewGroup(group), UID: uid, Epoch: 1, Slots: 1, TableOID: table, Handover: patience}
	}
	for _, tc := range []struct {
		name          string
		first, second Claim
		want          ConflictKind
	}{
		{"two groups on one table", job("a/b", "1", table), job("c/d", "2", table), ConflictTable},
		{"two objects of one group", job("a/b", "1", 0), job("a/b", "2", 0), ConflictOwner},
		{"two groups on two tables", job("a/b", "1", table), job("c/d", "2", table+1), ""},
		{"two groups that remember by themselves", job("a/b", "1", 0), job("c/d", "2", 0), ""},
		{"two workers of one job", job("a/b", "1", table), job("a/b", "1", table), ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			first, second := open(t, uri, tc.first.Group, 0), open(t, uri, tc.second.Group, 0)
			defer func() { _, _ = first.Close(context.Background()), second.Close(context.Background()) }()
			enter(t, first, tc.first)
			err := second.Join(deadline(t), tc.second)
			var conflict *ConflictError
			if errors.As(err, &conflict) != (tc.want != "") || tc.want == "" && err != nil {
				t.Fatalf("got %v", err)
			}
			if tc.want == "" {
				return
			}
			if conflict.Kind != tc.want || conflict.Other.PID != int32(first.PID()) || !strings.Contains(err.Error(), "job a/b (pid") {
				t.Errorf("got %v", err)
			}
			if len(second.Held()) != 0 {
				t.Errorf("the newcomer kept %v", second.Held())
			}
			// The claim is kept over a hand-over: the newcomer cannot slip in.
			if err := first.Leave(deadline(t)); err != nil {
				t.Fatal(err)
			}
			if err := second.Join(deadline(t), tc.second); !errors.As(err, &conflict) {
				t.Errorf("slipped in: %v", err)
			}
			next := tc.first
			next.Epoch++
			enter(t, first, next)
			if err := first.Close(deadline(t)); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the newcomer's turn", func() bool { return second.Join(deadline(t), tc.second) == nil })
			if err := second.Enter(deadline(t), tc.second, nil); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestOfTwoNewcomersExactlyOneProceeds(t *testing.T) {
	uri := database(t)
	const rounds, workers = 20, 2
	for round := range rounds {
		var sessions [2 * workers]*Session
		for i := range sessions {
			sessions[i] = open(t, uri, NewGroup(fmt.Sprintf("job/%d", i/workers)), int32(i%workers))
		}
		won := make(chan int, len(sessions))
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan struct{}, len(sessions))
		for i, s := range sessions {
			go func() {
				defer func() { over <- struct{}{} }()
				c := Claim{Group: NewGroup(fmt.Sprintf("job/%d", i/workers)), UID: "u", TableOID: 4711, Epoch: 1, Slots: workers}
				for ctx.Err() == nil {
					if s.Join(ctx, c) == nil {
						won <- i / workers
						return
					}
					if pause(ctx, 1) != nil {
						return
					}
				}
			}()
		}
		first, second := <-won, <-won // both workers of one job
		cancel()
		for range sessions {
			<-over
		}
		if first != second || len(won) > 0 {
			t.Fatalf("round %d: jobs %d and %d (and %d more) proceeded", round, first, second, len(won))
		}
		for _, s := range sessions {
			if err := s.Close(deadline(t)); err != nil {
				t.Fatal(err)
			}
		}
	}
}
