package adoption

import (
	"slices"

	"shardedjob.dev/worker/fence"
)

// A State is how a slot stands at one look.
type State uint8

// The states of a slot. The zero value is a slot that nobody holds and nobody wants back.
const (
	Free    State = iota
	Own           // held by its own worker, under the plan
	Wanted        // wanted by its own worker, who waits for an adopter to hand it back
	Adopted       // held by another worker, under the plan
	Other         // held by a stranger, or under another plan
)

// A Slot is one slot at one look.
type Slot struct {
	State State
	// By is the ordinal of the worker that has adopted it, if it is Adopted.
	By int32
}

// A Look is what one look at the group's locks says about the slots of a plan.
type Look struct {
	Epoch int64
	// Slots by their number.
	Slots []Slot
}

// See reduces the holders of the group's locks to what they say about the slots of plan (epoch, slots).
func See(g fence.Group, epoch int64, slots int32, holders []fence.Holder) Look {
	under := map[int32]bool{} // the pids that work under the plan
	for _, h := range holders {
		if h.Kind() == fence.KindEpoch && h.Of(g) && h.Epoch() == epoch && h.Slots() == slots {
			under[h.PID] = true
		}
	}
	look := Look{Epoch: epoch, Slots: make([]Slot, slots)}
	for _, h := range holders {
		if h.Kind() == fence.KindSlot && h.Key.Class == g.Class() && h.Value() < uint32(slots) {
			slot := &look.Slots[h.Value()]
			switch {
			case !h.Of(g) || !under[h.PID]:
				slot.State = Other
			case h.Identity.Ordinal == int32(h.Value()):
				slot.State = Own
			default:
				*slot = Slot{State: Adopted, By: h.Identity.Ordinal}
			}
		}
	}
	for _, h := range holders {
		if h.Kind() == fence.KindIntent && h.Of(g) && h.Value() < uint32(slots) && h.Identity.Ordinal == int32(h.Value()) {
			if slot := &look.Slots[h.Value()]; slot.State == Free || slot.State == Adopted {
				*slot = Slot{State: Wanted}
			}
		}
	}
	return look
}

// live says whether a worker holds its own slot: only who has work of its own may take on that of others.
func (l Look) live(ordinal int32) bool {
	return ordinal >= 0 && int(ordinal) < len(l.Slots) && l.Slots[ordinal].State == Own
}

// adopters are the workers that hold another's slot.
func (l Look) adopters() (ordinals []int32) {
	for _, slot := range l.Slots {
		if slot.State == Adopted {
			ordinals = append(ordinals, slot.By)
		}
	}
	slices.Sort(ordinals)
	return slices.Compact(ordinals)
}
