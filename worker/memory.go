package worker

import (
	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/worker/process"
	"shardedjob.dev/worker/shard"
)

// memory keeps what a worker knows of failed rows over a change of session, where the database does not keep it.
type memory struct {
	epoch   int64
	slots   int32
	runners map[int32]remembered
}

// remembered is the runner of a slot and the table that it was made for.
type remembered struct {
	*process.Runner
	table shard.Table
}

// runner is the one that was used for the slot under this plan, or a new one.
func (m *memory) runner(t shard.Table, plan v1alpha1.Plan, slot int32) *process.Runner {
	if m.runners == nil || m.epoch != plan.Epoch || m.slots != plan.Slots {
		*m = memory{epoch: plan.Epoch, slots: plan.Slots, runners: map[int32]remembered{}}
	}
	settings := process.NewSettings(plan)
	if r, ok := m.runners[slot]; ok && r.table.Like(t) {
		r.Reload(settings)
		return r.Runner
	}
	r := process.NewRunner(shard.NewReader(t, plan.Slots, slot), settings)
	m.runners[slot] = remembered{r, t}
	return r
}
