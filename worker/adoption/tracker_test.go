package adoption

import (
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const adoptAfter = 10 * time.Second

// watch feeds the tracker with one look a second, for so long, and returns the last result.
func watch(tr *Tracker, l Look, from time.Time, d time.Duration) (a Assignment, until time.Time) {
	until = from
	for end := from.Add(d); !until.After(end); until = until.Add(time.Second) {
		a = tr.Look(l, adoptAfter, until)
	}
	return a, until
}

// lookOf is a look at n slots of which all are held by their own workers but these.
func lookOf(n int, others map[int32]Slot) Look {
	l := Look{Epoch: 1, Slots: make([]Slot, n)}
	for k := range l.Slots {
		l.Slots[k].State = Own
	}
	for k, slot := range others {
		l.Slots[k] = slot
	}
	return l
}

// drawLook draws a look under an epoch in which any slot is in any state.
func drawLook(t *rapid.T, n int, epoch int64) Look {
	l := Look{Epoch: epoch, Slots: make([]Slot, n)}
	for k := range l.Slots {
		l.Slots[k].State = State(rapid.IntRange(0, int(Other)).Draw(t, "state"))
		if l.Slots[k].State == Adopted {
			l.Slots[k].By = int32(rapid.IntRange(0, n).Draw(t, "by"))
		}
	}
	return l
}

// drawStable draws a look in which no slot is adopted.
func drawStable(t *rapid.T, n int, epoch int64) Look {
	l := drawLook(t, n, epoch)
	for k := range l.Slots {
		if l.Slots[k].State == Adopted {
			l.Slots[k] = Slot{}
		}
	}
	return l
}

func count(l Look, state State) (n int) {
	for _, slot := range l.Slots {
		if slot.State == state {
			n++
		}
	}
	return n
}

// checkAll fails unless each free slot of the look is assigned to a live worker, evenly, and nothing else is.
func checkAll(t rapid.TB, l Look, a Assignment) {
	t.Helper()
	loads := map[int32]int{}
	for k, slot := range l.Slots {
		by, ok := a[int32(k)]
		if ok != (slot.State == Free && count(l, Own) > 0) {
			t.Fatalf("slot %d in state %d is served: %t", k, slot.State, ok)
		}
		if ok && !l.live(by) {
			t.Fatalf("slot %d is served by worker %d, which is not there", k, by)
		}
		loads[by]++
	}
	few, many := len(l.Slots), 0
	for k, slot := range l.Slots {
		if slot.State == Own {
			few, many = min(few, len(a.Of(int32(k)))), max(many, len(a.Of(int32(k))))
		}
	}
	if many-few > 1 {
		t.Fatalf("one worker serves %d slots and another %d: %v", many, few, a)
	}
}

func TestOrphansAreSpreadEvenlyWhateverWasSeenBefore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 20).Draw(t, "n")
		one, two, now := NewTracker(nobody), NewTracker(nobody), time.Now()
		for range rapid.IntRange(0, 30).Draw(t, "looks") {
			l := drawLook(t, n, rapid.Int64Range(1, 2).Draw(t, "epoch"))
			if !maps.Equal(one.Look(l, adoptAfter, now), two.Look(l, adoptAfter, now)) {
				t.Fatal("the same looks had two results")
			}
			now = now.Add(time.Duration(rapid.IntRange(0, 5000).Draw(t, "ms")) * time.Millisecond)
		}
		stable := drawStable(t, n, 2)
		// Nobody is seen to serve, so that each in turn is passed over: it is even at the start, before anyone is.
		fresh := NewTracker(nobody)
		a, _ := watch(fresh, stable, now, adoptAfter)
		checkAll(t, stable, a)
		for range 60 { // and, after whatever was seen before, everything always has somebody
			a, now = watch(one, stable, now, adoptAfter)
			for k, slot := range stable.Slots {
				if by, ok := a[int32(k)]; slot.State == Free && count(stable, Own) > 0 && (!ok || !stable.live(by)) {
					t.Fatalf("slot %d is served by %d (%t)", k, by, ok)
				}
			}
		}
	})
}

func TestOneLiveWorkerServesAll(t *testing.T) {
	l := Look{Epoch: 1, Slots: make([]Slot, 10)}
	l.Slots[4].State = Own
	a, _ := watch(NewTracker(nobody), l, time.Now(), adoptAfter)
	if got := a.Of(4); len(got) != 9 {
		t.Errorf("it serves %v", got)
	}
}

func TestOneOrphanIsServedByOneOfAThousand(t *testing.T) {
	tr, l := NewTracker(nobody), lookOf(1000, map[int32]Slot{7: {}})
	before, now := watch(tr, l, time.Now(), adoptAfter-time.Second)
	if len(before) > 0 {
		t.Errorf("adopted too early: %v", before)
	}
	a, now := watch(tr, l, now, 0)
	if len(a) != 1 {
		t.Fatalf("assigned %v", a)
	}
	l.Slots[7] = Slot{Adopted, a[7]}
	if b, _ := watch(tr, l, now, 100*adoptAfter); !maps.Equal(a, b) {
		t.Errorf("%v became %v", a, b)
	}
}

func TestWhoDoesNotServeIsPassedOver(t *testing.T) {
	tr, l := NewTracker(nobody), lookOf(5, map[int32]Slot{3: {}})
	now, seen := time.Now(), []int32{}
	for range 4 {
		var a Assignment
		a, now = watch(tr, l, now, adoptAfter)
		seen = append(seen, a[3])
	}
	if each := slices.Sorted(slices.Values(seen)); !slices.Equal(each, []int32{0, 1, 2, 4}) {
		t.Errorf("slot 3 went to %v, want each of the workers once", seen)
	}
	// The last serves it, and keeps it, also when it holds it only now and then; the others are tried again, but seldom.
	others := 0
	for range 100 {
		l.Slots[3] = Slot{Adopted, seen[3]}
		_, now = watch(tr, l, now, 2*time.Second)
		l.Slots[3] = Slot{}
		var a Assignment
		if a, now = watch(tr, l, now, adoptAfter-2*time.Second); a[3] != seen[3] {
			others++
		}
	}
	if others > 2*100/pardon {
		t.Errorf("slot 3 went to others %d times", others)
	}
}

func TestNewcomersMoveNothingAtFirst(t *testing.T) {
	tr, l := NewTracker(nobody), lookOf(6, map[int32]Slot{1: {}, 2: {}, 3: {}, 4: {}, 5: {}})
	a, now := watch(tr, l, time.Now(), adoptAfter)
	if len(a.Of(0)) != 5 {
		t.Fatalf("assigned %v", a)
	}
	l.Slots[2] = Slot{Adopted, 0}
	for range 5 { // worker 5 crashes again and again
		l.Slots[5].State = Own
		if a, now = watch(tr, l, now, adoptAfter/2); len(a.Of(0)) != 4 {
			t.Fatalf("a newcomer got slots at once: %v", a)
		}
		l.Slots[5].State = Free
		_, now = watch(tr, l, now, 2*adoptAfter)
	}
	l.Slots[5].State = Own
	if a, _ = watch(tr, l, now, adoptAfter); len(a.Of(0)) != 2 || len(a.Of(5)) != 2 || a[2] != 0 {
		t.Errorf("after a while %v", a)
	}
}

func TestAdopterIsEvidence(t *testing.T) {
	tr, l := NewTracker(nobody), lookOf(4, map[int32]Slot{2: {Adopted, 1}})
	if a := tr.Look(l, adoptAfter, time.Now()); a[2] != 1 {
		t.Errorf("a slot in the hands of an adopter is served by %v", a)
	}
	l.Slots[2].State = Wanted
	if a := tr.Look(l, adoptAfter, time.Now()); len(a) != 0 {
		t.Errorf("a slot that is wanted back is served by %v", a)
	}
}

func TestAnotherPlanStartsAnew(t *testing.T) {
	l := lookOf(3, map[int32]Slot{2: {}})
	for name, change := range map[string]func(*Look){
		"epoch": func(l *Look) { l.Epoch++ },
		"slots": func(l *Look) { l.Slots = append(l.Slots, Slot{State: Own}) },
	} {
		tr := NewTracker(nobody)
		a, now := watch(tr, l, time.Now(), adoptAfter)
		if len(a) != 1 {
			t.Fatalf("assigned %v", a)
		}
		other := Look{l.Epoch, slices.Clone(l.Slots)}
		change(&other)
		if a := tr.Look(other, adoptAfter, now); len(a) != 0 {
			t.Errorf("%s: adopted at once: %v", name, a)
		}
	}
}
