package adoption

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// step is the grain of the world's time: workers look and change slots at different steps.
const step = 250 * time.Millisecond

// A world is workers, each with its own tracker and its own moments to look, and the slot locks that they share.
type world struct {
	now     time.Time
	random  *rand.Rand
	slots   []int32 // who holds each, or nobody
	workers []*pod
	turn    int // the longest turn, in steps; the shortest may pass unseen
	look    int // steps between two looks, about
}

// pod is one worker.
type pod struct {
	ordinal int32
	up      bool
	broken  bool // gets no second connection
	tracker *Tracker
	view    Assignment
	mine    []int32 // adopted slots that it should serve, by its view
	at      int     // the one of mine whose turn it is
	holds   int32   // adopted slot, or nobody
	left    int     // steps until the turn is over
	wait    int     // steps until the next look
}

func newWorld(t *rapid.T, n int) *world {
	w := &world{now: time.Now(), random: rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0)), slots: make([]int32, n),
		turn: rapid.IntRange(1, 12).Draw(t, "turn"), look: rapid.SampledFrom([]int{3, 3, 20}).Draw(t, "look")}
	for k := range n {
		w.slots[k] = nobody
		w.workers = append(w.workers, &pod{
			ordinal: int32(k), tracker: NewTracker(int32(k)), holds: nobody, broken: rapid.IntRange(0, 3).Draw(t, "broken") == 0,
		})
	}
	return w
}

func (w *world) see() Look {
	l := Look{Epoch: 1, Slots: make([]Slot, len(w.slots))}
	for k, by := range w.slots {
		switch by {
		case nobody:
		case int32(k):
			l.Slots[k].State = Own
		default:
			l.Slots[k] = Slot{Adopted, by}
		}
		if w.workers[k].up && by != int32(k) {
			l.Slots[k] = Slot{State: Wanted}
		}
	}
	return l
}

// start is a new process: it knows nothing. A stop lets go of everything.
func (w *world) toggle(p *pod) {
	p.up = !p.up
	p.tracker, p.view, p.mine, p.holds = NewTracker(p.ordinal), nil, nil, nobody
	for k, by := range w.slots {
		if by == p.ordinal {
			w.slots[k] = nobody
		}
	}
}

// tick lets every worker do what it would do within one step.
func (w *world) tick() {
	w.now = w.now.Add(step)
	for _, p := range w.workers {
		if !p.up {
			continue
		}
		if w.slots[p.ordinal] == nobody {
			w.slots[p.ordinal] = p.ordinal
		}
		if p.wait--; p.wait <= 0 {
			p.view, p.wait = p.tracker.Look(w.see(), adoptAfter, w.now), w.look+w.random.IntN(w.look)
			p.mine = p.view.Of(p.ordinal)
		}
		p.left--
		if p.holds != nobody && (p.left <= 0 || w.workers[p.holds].up) {
			w.slots[p.holds], p.holds = nobody, nobody
		}
		if p.holds != nobody || p.broken || len(p.mine) == 0 {
			continue
		}
		p.at++
		if slot := p.mine[p.at%len(p.mine)]; w.slots[slot] == nobody && !w.workers[slot].up {
			w.slots[slot], p.holds, p.left = p.ordinal, slot, 1+w.random.IntN(w.turn)
		}
	}
}

// TestManyTrackersCometoOneView runs workers that start, stop and cannot connect, and then leaves them alone. From then on
// they agree although none has seen what the others saw: each orphan is served, evenly, and by the same worker for good.
func TestManyTrackersComeToOneView(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 30).Draw(t, "n")
		w := newWorld(t, n)
		run := func(d time.Duration, each func()) {
			for range d / step {
				w.tick()
				each()
			}
		}
		for range rapid.IntRange(1, 12).Draw(t, "events") {
			w.toggle(w.workers[rapid.IntRange(0, n-1).Draw(t, "who")])
			// Long enough for all to have seen it: who starts again unseen is late with what it is given, and passed over for a while.
			run(2*time.Duration(w.look)*step+time.Duration(rapid.IntRange(0, 40).Draw(t, "s"))*time.Second, func() {})
		}
		up, able, orphans := 0, 0, 0
		for _, p := range w.workers {
			switch {
			case !p.up:
				orphans++
			case p.broken:
				up++
			default:
				up, able = up+1, able+1
			}
		}
		if able == 0 {
			return
		}
		settle := 5 * adoptAfter
		if up > able {
			settle += time.Duration(1+orphans) * adoptAfter
		}
		run(settle, func() {})
		by, served := make([]int32, n), make([]time.Time, n)
		for k := range by {
			by[k], served[k] = nobody, w.now
		}
		broken, patience := up > able, time.Duration(orphans)*4*time.Second
		if broken { // a worker that cannot serve is tried again now and then, after which not all need think the same at once
			patience += time.Duration(2+orphans) * adoptAfter
		}
		run(40*adoptAfter, func() {
			for k, holder := range w.slots {
				if w.workers[k].up {
					continue
				}
				if idle := w.now.Sub(served[k]); idle > patience {
					t.Fatalf("slot %d was left alone for %v: %v", k, idle, w)
				}
				if holder == nobody {
					continue
				}
				if by[k] != nobody && by[k] != holder && !broken {
					t.Fatalf("slot %d went from worker %d to %d though nothing happened", k, by[k], holder)
				}
				by[k], served[k] = holder, w.now
			}
		})
		if broken {
			return
		}
		var view Assignment
		for _, p := range w.workers {
			if view == nil {
				view = p.view
			}
			if p.up && !maps.Equal(p.view, view) {
				t.Fatalf("worker %d thinks %v, another %v", p.ordinal, p.view, view)
			}
		}
		loads := make([]int, n)
		for k, server := range by {
			if !w.workers[k].up {
				loads[server]++
			}
		}
		for _, p := range w.workers {
			if p.up && (loads[p.ordinal] < orphans/up || loads[p.ordinal] > (orphans+up-1)/up) {
				t.Fatalf("worker %d serves %d of %d orphans among %d: %v", p.ordinal, loads[p.ordinal], orphans, up, w)
			}
		}
	})
}

func (w *world) String() string {
	text := fmt.Sprint(w.slots)
	for _, p := range w.workers {
		text += fmt.Sprintf("\n%d up %t broken %t mine %v view %v", p.ordinal, p.up, p.broken, p.mine, p.view)
	}
	return text
}
