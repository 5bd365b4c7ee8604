package worker

import (
	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/worker/cursor"
	"shardedjob.dev/worker/process"
	"shardedjob.dev/worker/shard"
)

// memory keeps what a worker knows of a slot over a change of session, and over an adopter's turns with others: which rows
// failed, where the database does not keep it, and how large batches can be.
type memory struct {
	epoch   int64
	slots   int32
	runners map[int32]remembered
}

// remembered is the runner of a slot and the table that it was made for.
type remembered struct {
	runner
	table shard.Table
}

// recall is the runner that was used for the slot under this plan; nil: there is none.
func (m *memory) recall(t shard.Table, plan v1alpha1.Plan, slot int32) runner {
	if m.runners == nil || m.epoch != plan.Epoch || m.slots != plan.Slots {
		*m = memory{epoch: plan.Epoch, slots: plan.Slots, runners: map[int32]remembered{}}
	}
	if r, ok := m.runners[slot]; ok && r.table.Like(t) {
		return r.runner
	}
	return nil
}

// pendingRunner is the one that was used for the slot, or a new one.
func (m *memory) pendingRunner(t shard.Table, plan v1alpha1.Plan, slot int32) *process.Runner {
	settings := process.NewSettings(plan)
	if r, ok := m.recall(t, plan, slot).(*process.Runner); ok {
		r.Reload(settings)
		return r
	}
	r := process.NewRunner(shard.NewReader(t, plan.Slots, slot), settings)
	m.runners[slot] = remembered{r, t}
	return r
}

// cursorRunner is likewise for a slot that was opened.
func (m *memory) cursorRunner(t shard.Table, plan v1alpha1.Plan, slot int32, opened *cursor.Slot) *process.CursorRunner {
	settings := process.NewSettings(plan)
	if r, ok := m.recall(t, plan, slot).(*process.CursorRunner); ok {
		r.Reopen(opened, settings)
		return r
	}
	r := process.NewCursorRunner(cursorPlan(plan), t, slot, opened, settings)
	m.runners[slot] = remembered{r, t}
	return r
}
