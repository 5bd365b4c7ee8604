package model

import (
	"strings"
	"testing"
)

// play takes the steps that a script names, in words as traces have them, each of which has to be possible.
func play(t *testing.T, c Config, script string) (*Model, State) {
	t.Helper()
	m, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	var s State
script:
	for line := range strings.Lines(strings.TrimSpace(script)) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		var can []string
		for _, next := range m.Steps(&s, nil) {
			if next.Step.String() == line {
				s = next.State
				if p := m.broken(&s); p != 0 {
					t.Fatalf("%s: %s", line, p)
				}
				continue script
			}
			can = append(can, next.Step.String())
		}
		t.Fatalf("not possible: %s\npossible:\n%s", line, strings.Join(can, "\n"))
	}
	return m, s
}

// All sessions have ended, the worker of the new plan with them, and one comes back with the old plan: the table itself refuses it.
func TestOldPlanComesBackAlone(t *testing.T) {
	const newPlan = `
		controller of job 0 publishes plan (2,2)
		worker 1 hears of plan (2,2)
		worker 1 connects
		worker 1 takes epoch (2,2)
		worker 1 looks: nothing bigger than (2,2)
		worker 1 takes slot 1 under (2,2)
		worker 1 finds or writes durable epoch (2,2)
		worker 1 reads its cursor and the layers beside that of (2,2)
		worker 1 reads a batch and applies it, its cursor goes to row 1
		database restarts
	`
	const oldPlan = `
		worker 0 connects
		worker 0 takes epoch (1,1)
		worker 0 looks: nothing bigger than (1,1)
		worker 0 takes slot 0 under (1,1)
	`
	c := with(cursorsUp, blind(0))
	_, s := play(t, c, newPlan+oldPlan+`
		worker 0 is refused by durable epoch (2,2)
		worker 0 unlocks its slot
		worker 0 unlocks its epoch
		worker 0 takes epoch (2,2)
	`)
	if s.Top != markOf(Plan{2, 2}) || s.Back {
		t.Errorf("an older plan was at work: %+v", s.Database)
	}

	m, s := play(t, with(c, mistake(EpochPerSlot)), newPlan+oldPlan+`
		worker 0 finds or writes durable epoch (1,1)
		worker 0 reads its cursor and the layers beside that of (1,1)
	`)
	for _, next := range m.Steps(&s, nil) {
		if next.Step.Kind == Advance && m.broken(&next.State) != NeverBack {
			t.Errorf("with an epoch per slot: %s, and nobody minds", next.Step)
		}
	}
}

// Whether a COMMIT whose answer was lost has taken effect, the table tells: the client that comes back goes on behind it, or does the
// row again.
func TestCommitOutcomeUnknown(t *testing.T) {
	const lost = `
		worker 0 connects
		worker 0 takes epoch (1,1)
		worker 0 looks: nothing bigger than (1,1)
		worker 0 takes slot 0 under (1,1)
		worker 0 finds or writes durable epoch (1,1)
		worker 0 reads its cursor and the layers beside that of (1,1)
		worker 0 reads a batch and applies it, its cursor goes to row 1
		worker 0 sends COMMIT
		client 0 dies, its session lives on; it comes back with the first plan
		worker 0 connects
		worker 0 takes epoch (1,1)
		worker 0 looks: nothing bigger than (1,1)
	`
	const again = `
		abandoned session of worker 0 ends
		worker 0 takes slot 0 under (1,1)
		worker 0 finds or writes durable epoch (1,1)
		worker 0 reads its cursor and the layers beside that of (1,1)
	`
	c := with(cursorsUp, zombies(1))
	play(t, c, lost+"abandoned session of worker 0 commits\n"+again+`
		worker 0 reads a batch and applies it, its cursor goes to row 2
	`)
	play(t, c, lost+again+`
		worker 0 reads a batch and applies it, its cursor goes to row 1
	`)
}
