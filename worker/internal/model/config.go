package model

import (
	"fmt"
	"slices"
)

// Limits of an instance, set by the width of the fields of [State].
const (
	maxWorkers  = 6
	maxSessions = 2 * maxWorkers
	maxJobs     = 2
	maxRows     = 16
	maxEpoch    = 15
	maxSlots    = 15
)

// A Plan is what the controller publishes: under Epoch the table is cut into Slots.
type Plan struct{ Epoch, Slots uint8 }

// A Job is one ShardedJob. Jobs of one Group share slot and epoch locks; all jobs share the table.
type Job struct {
	Group int
	// Plans are published in this order. A controller that has lost its status may publish one epoch with two slot counts.
	// If the last epoch is such a one, another plan above it is published once a worker that has met a rival asks for it.
	Plans []Plan
}

// A Seat is a worker: the pod of a job with this ordinal. A Blind one never hears of a plan later than the first.
type Seat struct {
	Job     int
	Ordinal uint8
	Blind   bool
}

// A Config is one instance of the model, small enough to be explored or large enough to be worth walking through.
type Config struct {
	Jobs      []Job
	Workers   []Seat
	Rows      []int // keys; those of one slot are worked in this order
	BatchRows int   // keys in one batch
	Zombies   int   // abandoned sessions that may live at one time
	// UserUnlocks lets the user's statement call pg_advisory_unlock_all().
	UserUnlocks bool
	// SkipLocked picks rows with FOR UPDATE SKIP LOCKED, so that the rows guard themselves.
	SkipLocked bool
	Mistakes   Mistake
	// Check says which properties are looked at; zero means all.
	Check Property
}

// A Mistake is one way to get the protocol wrong. Mistakes can be combined.
type Mistake uint32

// Each mistake leaves out one rule of the fence.
const (
	LookFirst           Mistake = 1 << iota // looks at the epoch locks before taking its own
	AcceptTwoSlotCounts                     // compares epoch locks by the epoch alone: other slot counts are no other plan
	NoAsk                                   // yields to more slots in its epoch without asking for a plan above
	EpochWithoutSlots                       // the epoch lock does not carry the slot count
	NoWait                                  // does not wait for older epochs
	WaitForSlotsOnly                        // waits for older sessions that hold a slot, not for older epochs
	WaitForSessionEnd                       // waits for the end of older sessions though sessions outlive a hand-over
	TerminateIsDone                         // takes pg_terminate_backend's return for the session's end
	SlotFirst                               // takes the slot before the older epochs are gone
	ReadEarly                               // reads the first batch before it holds the slot
	UnlockBeforeCommit                      // lets go of slot and epoch, then commits
	NoOwnLockCheck                          // commits without counting its own locks
	TriggersAfterCheck                      // counts its own locks before deferred triggers have run
	SilentReconnect                         // takes the slot again on a new session without entering
	KeepClaim                               // a conflicting newcomer keeps its claim and polls
	DropClaim                               // lets go of the claim at a hand-over
	LookForRivalsAgain                      // looks for rivals at each hand-over, as if it were a newcomer
	CompareSlotsFirst                       // compares epoch locks with the slot count in the high bits
	NoFollow                                // goes by its own plan alone when it meets a newer epoch
	SurplusSleeps                           // a worker without a slot in its plan does not look at epoch locks
	PlainMod                                // MOD(key, n) = k, without k - n
	EmptyIsEnd                              // takes an empty slot for the end
)

// A Model is a checked Config with what can be worked out in advance.
type Model struct {
	Config
	slotRows [maxSlots + 1][maxSlots + 1]uint16 // [n][k]: rows of slot k of n
	regular  [maxJobs]int                       // plans that are published unasked
	allRows  uint16
}

// New checks the limits of an instance.
func New(c Config) (*Model, error) {
	switch {
	case len(c.Workers) == 0 || len(c.Workers) > maxWorkers:
		return nil, fmt.Errorf("model: %d workers, want 1 to %d", len(c.Workers), maxWorkers)
	case len(c.Jobs) == 0 || len(c.Jobs) > maxJobs:
		return nil, fmt.Errorf("model: %d jobs, want 1 to %d", len(c.Jobs), maxJobs)
	case len(c.Rows) > maxRows:
		return nil, fmt.Errorf("model: %d rows, want at most %d", len(c.Rows), maxRows)
	case c.BatchRows < 1:
		return nil, fmt.Errorf("model: batch of %d rows", c.BatchRows)
	}
	m := &Model{}
	c.Jobs = slices.Clone(c.Jobs)
	for i := range c.Jobs {
		job := &c.Jobs[i]
		if len(job.Plans) == 0 {
			return nil, fmt.Errorf("model: job %d has no plan", i)
		}
		m.regular[i] = len(job.Plans)
		job.Plans = settled(job.Plans)
		for _, p := range job.Plans {
			if p.Epoch < 1 || p.Epoch > maxEpoch || p.Slots > maxSlots {
				return nil, fmt.Errorf("model: plan (%d,%d) of job %d out of range", p.Epoch, p.Slots, i)
			}
		}
	}
	for i, w := range c.Workers {
		if w.Job < 0 || w.Job >= len(c.Jobs) || w.Ordinal >= maxSlots {
			return nil, fmt.Errorf("model: worker %d has no place", i)
		}
	}
	if c.Check == 0 {
		c.Check = allProperties
	}
	m.Config, m.allRows = c, uint16(1<<len(c.Rows)-1)
	for n := 1; n <= maxSlots; n++ {
		for k := range n {
			for i, id := range c.Rows {
				if m.covers(id, n, k) {
					m.slotRows[n][k] |= 1 << i
				}
			}
		}
	}
	return m, nil
}

// settled appends a plan above the last epoch if that has two slot counts.
func settled(plans []Plan) []Plan {
	last := plans[len(plans)-1]
	for _, p := range plans {
		if p.Epoch == last.Epoch && p.Slots != last.Slots {
			return append(slices.Clone(plans), Plan{last.Epoch + 1, last.Slots})
		}
	}
	return plans
}

// covers is MOD(id, n) IN (k, k - n): Go's remainder has the sign of the dividend, as PostgreSQL's has.
func (m *Model) covers(id, n, k int) bool {
	r := id % n
	return r == k || r == k-n && !m.wrong(PlainMod)
}

func (m *Model) wrong(x Mistake) bool { return m.Mistakes&x != 0 }

// plan is the newest plan that worker w has heard of from the API.
func (m *Model) plan(s *State, w int) Mark {
	return markOf(m.Jobs[m.Workers[w].Job].Plans[s.Workers[w].View])
}

func (m *Model) group(w int) int { return m.Jobs[m.Workers[w].Job].Group }
