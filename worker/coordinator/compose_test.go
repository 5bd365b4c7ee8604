package coordinator

import (
	"testing"
	"time"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/worker/heartbeat"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// world makes a view of a job with two slots, both held and at work, for cases to break.
func world(changes ...func(*view)) view {
	v := view{
		job:     "thumbs",
		now:     noon,
		plan:    v1alpha1.Plan{UID: "uid", Epoch: 3, Slots: 2, Generation: 7},
		holders: map[int32]holder{0: {0, "thumbs-0", 3, 40}, 1: {1, "thumbs-1", 3, 41}},
		own:     map[int32]heard{},
		adopted: map[int32]heard{},
	}
	for k := range v.plan.Slots {
		v.own[k] = heard{at: noon, Beat: heartbeat.Beat{
			Ordinal: k, Slot: k, Run: "r", Epoch: 3, Slots: 2, Generation: 7, HighestEpoch: 3, State: v1alpha1.SlotWorking, Processed: 10,
		}}
	}
	for _, change := range changes {
		change(&v)
	}
	return v
}

func beat(k int32, change func(*heard)) func(*view) {
	return func(v *view) {
		b := v.own[k]
		change(&b)
		v.own[k] = b
	}
}

func state(k int32, s v1alpha1.SlotState) func(*view) {
	return beat(k, func(b *heard) { b.State = s })
}

func TestComposeSlots(t *testing.T) {
	tests := map[string]struct {
		view view
		want v1alpha1.SlotState // of slot 1
		held int32
	}{
		"held by its worker":                         {world(), v1alpha1.SlotWorking, 2},
		"held and drained":                           {world(state(1, v1alpha1.SlotDrained)), v1alpha1.SlotDrained, 2},
		"held, but the last word is of an old epoch": {world(state(1, v1alpha1.SlotDrained), beat(1, func(b *heard) { b.Epoch = 2 })), v1alpha1.SlotWorking, 2},
		"held under an old epoch":                    {world(func(v *view) { v.holders[1] = holder{1, "thumbs-1", 2, 41} }), v1alpha1.SlotWaiting, 1},
		"held by a stranger":                         {world(func(v *view) { v.holders[1] = holder{-1, "pid 7", 0, 7} }), v1alpha1.SlotWaiting, 1},
		"not held, its worker waits":                 {world(func(v *view) { delete(v.holders, 1) }), v1alpha1.SlotWaiting, 1},
		"not held, its worker silent":                {world(func(v *view) { delete(v.holders, 1) }, beat(1, func(b *heard) { b.at = noon.Add(-time.Minute) })), v1alpha1.SlotUnheld, 1},
		"held, its worker in a long batch":           {world(beat(1, func(b *heard) { b.at = noon.Add(-time.Minute) })), v1alpha1.SlotWorking, 2},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r := compose(tt.view)
			var got v1alpha1.SlotState
			for _, s := range r.SlotStatuses {
				if s.Ordinal == 1 {
					got = s.State
				}
				if h := tt.view.holders[s.Ordinal]; s.Holder != h.name || s.HolderPID != h.pid {
					t.Errorf("slot %d is held by %s, pid %d, want %s, pid %d", s.Ordinal, s.Holder, s.HolderPID, h.name, h.pid)
				}
			}
			if got != tt.want || r.SlotCounts.Working != tt.held {
				t.Errorf("slot 1 is %s with %d held, want %s with %d", got, r.SlotCounts.Working, tt.want, tt.held)
			}
			if c := r.SlotCounts; c.Working+c.Waiting+c.Unheld != r.Slots {
				t.Errorf("counts %+v do not add up to %d", c, r.Slots)
			}
		})
	}
}

func TestComposeGenerationIsTheLowest(t *testing.T) {
	tests := map[string]struct {
		view view
		want int64
	}{
		"all run it":            {world(), 7},
		"one is behind":         {world(beat(1, func(b *heard) { b.Generation = 6 })), 6},
		"one follows the locks": {world(beat(0, func(b *heard) { b.Generation = 0 })), 0},
		"one has not said":      {world(func(v *view) { delete(v.own, 1) }), 0},
		"one is of an old plan": {world(beat(1, func(b *heard) { b.Epoch = 2 })), 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := compose(tt.view).Generation; got != tt.want {
				t.Errorf("generation %d, want %d", got, tt.want)
			}
		})
	}
}

func TestComposeProblem(t *testing.T) {
	passing := &v1alpha1.Problem{Reason: v1alpha1.ReasonForeignLock}
	stalled := &v1alpha1.Problem{Reason: v1alpha1.ReasonTableMissing, Stalled: true}
	with := func(k int32, p *v1alpha1.Problem) func(*view) { return beat(k, func(b *heard) { b.Problem = p }) }
	failing := []func(*view){state(0, v1alpha1.SlotDrained), state(1, v1alpha1.SlotFailing)}
	tests := map[string]struct {
		view view
		want string
	}{
		"none": {world(), ""},
		"one that needs a person comes before one that passes": {world(with(0, passing), with(1, stalled)), v1alpha1.ReasonTableMissing},
		"one that passes is shown too":                         {world(with(1, passing)), v1alpha1.ReasonForeignLock},
		"rows fail, others are still worked":                   {world(state(1, v1alpha1.SlotFailing)), ""},
		"rows fail, all others are done":                       {world(failing...), v1alpha1.ReasonRowsFailing},
		"a worker that has left has no problem":                {world(with(1, stalled), beat(1, func(b *heard) { b.at = noon.Add(-time.Hour) })), ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := ""
			if p := compose(tt.view).Problem; p != nil {
				got = p.Reason
			}
			if got != tt.want {
				t.Errorf("problem %q, want %q", got, tt.want)
			}
		})
	}
}

func TestDrained(t *testing.T) {
	both := []func(*view){state(0, v1alpha1.SlotDrained), state(1, v1alpha1.SlotDrained)}
	tests := map[string]struct {
		view view
		want bool
	}{
		"both drained":                   {world(both...), true},
		"one works":                      {world(both[0]), false},
		"one fails":                      {world(both[0], state(1, v1alpha1.SlotFailing)), false},
		"drained under an old statement": {world(append(both, beat(1, func(b *heard) { b.Generation = 6 }))...), false},
		"no slots":                       {world(func(v *view) { v.plan.Slots = 0 }), false},
		"a lock is gone":                 {world(append(both, func(v *view) { delete(v.holders, 1) })...), false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tt.view.drained(tt.view.slots()); got != tt.want {
				t.Errorf("drained() = %v, want %v", got, tt.want)
			}
		})
	}
}

func TestReportListsExceptionsFirst(t *testing.T) {
	v := world(func(v *view) {
		v.plan.Slots = v1alpha1.MaxSlots
		for k := range v.plan.Slots {
			v.holders[k] = holder{k, v1alpha1.PodName(v.job, k), v.plan.Epoch, 40 + k}
		}
		delete(v.holders, 999)
	})
	r := compose(v)
	if len(r.SlotStatuses) != v1alpha1.MaxSlotEntries || r.SlotStatuses[0].Ordinal != 999 {
		t.Errorf("%d entries, the first is slot %d; want %d entries, slot 999 first", len(r.SlotStatuses), r.SlotStatuses[0].Ordinal, v1alpha1.MaxSlotEntries)
	}
	if r.SlotCounts.Working != 999 || r.SlotCounts.Unheld != 1 {
		t.Errorf("counts %+v, want all 1000 slots counted", r.SlotCounts)
	}
}

func TestComposeAdoptedSlots(t *testing.T) {
	// Slot 1 has lost its worker; that of slot 0 works it.
	adopted := func(change func(*view, *heard)) view {
		return world(func(v *view) {
			delete(v.own, 1)
			v.holders[1] = holder{0, "thumbs-0", 3, 40}
			b := heard{at: noon, Beat: heartbeat.Beat{Ordinal: 0, Slot: 1, Run: "r+", Epoch: 3, Slots: 2, Generation: 7, State: v1alpha1.SlotWorking}}
			change(v, &b)
			v.adopted[1] = b
		})
	}
	between := func(v *view) { delete(v.holders, 1) } // two turns
	tests := map[string]struct {
		view view
		want v1alpha1.SlotState
	}{
		"held by the adopter":                    {adopted(func(*view, *heard) {}), v1alpha1.SlotAdopted},
		"held by the adopter, nothing said yet":  {world(func(v *view) { delete(v.own, 1); v.holders[1] = holder{0, "thumbs-0", 3, 40} }), v1alpha1.SlotAdopted},
		"held by the adopter under an old epoch": {adopted(func(v *view, _ *heard) { v.holders[1] = holder{0, "thumbs-0", 2, 40} }), v1alpha1.SlotWaiting},
		"served in turn":                         {adopted(func(v *view, _ *heard) { between(v) }), v1alpha1.SlotAdopted},
		"served in turn, long ago":               {adopted(func(v *view, b *heard) { between(v); b.at = noon.Add(-time.Minute) }), v1alpha1.SlotUnheld},
		"served in turn under an old epoch":      {adopted(func(v *view, b *heard) { between(v); b.Epoch = 2 }), v1alpha1.SlotUnheld},
		"its own worker is back and waits": {adopted(func(v *view, _ *heard) {
			between(v)
			v.own[1] = heard{at: noon, Beat: heartbeat.Beat{Ordinal: 1, Slot: 1, Run: "r", Epoch: 3}}
		}), v1alpha1.SlotWaiting},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for _, s := range compose(tt.view).SlotStatuses {
				if s.Ordinal == 1 && s.State != tt.want {
					t.Errorf("slot 1 is %s (%s), want %s", s.State, s.Message, tt.want)
				}
			}
		})
	}
	done := adopted(func(v *view, b *heard) {
		between(v)
		b.State = v1alpha1.SlotDrained
		own := v.own[0]
		own.State = v1alpha1.SlotDrained
		v.own[0] = own
	})
	if !done.drained(done.slots()) {
		t.Error("a slot that is served in turn and drained keeps the job from being checked")
	}
}
