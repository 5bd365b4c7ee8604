package adoption

import (
	"slices"
	"testing"

	"shardedjob.dev/worker/fence"
)

// lock is one line of a look at the group's locks.
func lock(g fence.Group, key fence.Key, pid, ordinal int32) fence.Holder {
	return fence.Holder{Key: key, PID: pid, Ours: true, Identity: fence.Identity{GroupHash: g.Hash(), Ordinal: ordinal}}
}

func TestSee(t *testing.T) {
	g, other := fence.NewGroup("a/b"), fence.NewGroup("c/d")
	epoch := func(e int64, n, pid, ordinal int32) fence.Holder {
		key, err := fence.EpochKey(g, e, n)
		if err != nil {
			t.Fatal(err)
		}
		return lock(g, key, pid, ordinal)
	}
	stranger := lock(g, fence.SlotKey(g, 1), 9, 1)
	stranger.Ours = false
	for _, tt := range []struct {
		name string
		in   []fence.Holder
		want []Slot
	}{
		{"nobody", nil, []Slot{{}, {}, {}}},
		{"its own worker", []fence.Holder{epoch(7, 3, 1, 0), lock(g, fence.SlotKey(g, 0), 1, 0)}, []Slot{{State: Own}, {}, {}}},
		{"an adopter", []fence.Holder{lock(g, fence.SlotKey(g, 2), 1, 0), epoch(7, 3, 1, 0)}, []Slot{{}, {}, {Adopted, 0}}},
		{"its own worker of an older epoch", []fence.Holder{epoch(6, 3, 1, 0), lock(g, fence.SlotKey(g, 0), 1, 0)}, []Slot{{State: Other}, {}, {}}},
		{"an adopter under another number of slots", []fence.Holder{epoch(7, 4, 1, 0), lock(g, fence.SlotKey(g, 2), 1, 0)}, []Slot{{}, {}, {State: Other}}},
		{"a stranger", []fence.Holder{stranger}, []Slot{{}, {State: Other}, {}}},
		{"a worker of another group with the same class", []fence.Holder{lock(other, fence.SlotKey(g, 1), 1, 1)}, []Slot{{}, {State: Other}, {}}},
		{"wanted while free", []fence.Holder{lock(g, fence.IntentKey(g, 1), 4, 1)}, []Slot{{}, {State: Wanted}, {}}},
		{"wanted while adopted",
			[]fence.Holder{lock(g, fence.IntentKey(g, 2), 4, 2), epoch(7, 3, 1, 0), lock(g, fence.SlotKey(g, 2), 1, 0)}, []Slot{{}, {}, {State: Wanted}}},
		{"wanted by a worker that it does not belong to", []fence.Holder{lock(g, fence.IntentKey(g, 2), 4, 1)}, []Slot{{}, {}, {}}},
		{"a slot beyond the plan", []fence.Holder{epoch(7, 3, 1, 5), lock(g, fence.SlotKey(g, 5), 1, 5), lock(g, fence.IntentKey(g, 4), 2, 4)}, []Slot{{}, {}, {}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := See(g, 7, 3, tt.in); got.Epoch != 7 || !slices.Equal(got.Slots, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}
