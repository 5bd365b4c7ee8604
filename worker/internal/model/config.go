package model

import (
	"fmt"
	"slices"
)

// Limits of an instance, set by the width of the fields of [State].
const (
	maxWorkers  = 12
	maxSessions = 2 * maxWorkers
	maxJobs     = 2
	maxRows     = 16
	maxEpoch    = 15
	maxSlots    = 15
	maxCursors  = 6 // slots of a plan with cursors
	maxInserts  = 4
)

// A Plan is what the controller publishes: under Epoch the table is cut into Slots.
type Plan struct{ Epoch, Slots uint8 }

// A Job is one ShardedJob. Jobs of one Group share slot and epoch locks; all jobs share the table.
type Job struct {
	Group int
	// Plans are published in this order. A controller that has lost its status may publish one epoch with two slot counts, or go
	// back. If the last plan is not above all others, one more that is above them is published once a worker asks for it.
	Plans []Plan
}

// A Seat is a worker: the pod of a job with this ordinal. A Blind one never hears of a plan later than the first.
type Seat struct {
	Job     int
	Ordinal uint8
	Blind   bool
	// Adopts makes it the second session of that pod, by which slots of others are served.
	Adopts bool
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
	// Cursors says that rows do not remember that they are done: cursors in the database do.
	Cursors bool
	// Failures lets a batch fail, with Cursors.
	Failures bool
	// Inserts is how many rows, the last ones, are inserted meanwhile, with Cursors: each by a transaction of its own, which
	// takes its key when it begins and commits whenever it likes.
	Inserts int
	// Stream goes on with what is inserted; without it the job ends at a horizon.
	Stream   bool
	Mistakes Mistake
	// Check says which properties are looked at; zero means all.
	Check Property
}

// A Model is a checked Config with what can be worked out in advance.
type Model struct {
	Config
	slotRows [maxSlots + 1][maxSlots + 1]uint16 // [n][k]: rows of slot k of n
	regular  [maxJobs]int                       // plans that are published unasked
	allRows  uint16
	zero     uint8 // rows with keys up to 0
	counts   []int // slot counts of the plans, ascending
	adopters bool
}

// New checks the limits of an instance.
func New(c Config) (*Model, error) {
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	m := &Model{}
	c.Jobs = slices.Clone(c.Jobs)
	for i := range c.Jobs {
		job := &c.Jobs[i]
		m.regular[i] = len(job.Plans)
		job.Plans = settled(job.Plans)
		for _, p := range job.Plans {
			if p.Epoch < 1 || p.Epoch > maxEpoch || p.Slots > maxSlots || c.Cursors && p.Slots > maxCursors {
				return nil, fmt.Errorf("model: plan (%d,%d) of job %d out of range", p.Epoch, p.Slots, i)
			}
			if n := int(p.Slots); n > 0 && !slices.Contains(m.counts, n) {
				m.counts = append(m.counts, n)
			}
		}
	}
	slices.Sort(m.counts)
	if c.Check == 0 {
		c.Check = allProperties
	}
	m.Config, m.allRows = c, uint16(1<<len(c.Rows)-1)
	m.adopters = slices.ContainsFunc(c.Workers, func(x Seat) bool { return x.Adopts })
	for _, id := range c.Rows {
		m.zero += bit(id <= 0)
	}
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

func (c *Config) check() error {
	switch {
	case len(c.Workers) == 0 || len(c.Workers) > maxWorkers:
		return fmt.Errorf("%d workers, want 1 to %d", len(c.Workers), maxWorkers)
	case len(c.Jobs) == 0 || len(c.Jobs) > maxJobs:
		return fmt.Errorf("%d jobs, want 1 to %d", len(c.Jobs), maxJobs)
	case len(c.Rows) > maxRows:
		return fmt.Errorf("%d rows, want at most %d", len(c.Rows), maxRows)
	case c.BatchRows < 1:
		return fmt.Errorf("batch of %d rows", c.BatchRows)
	case c.Inserts < 0 || c.Inserts > min(maxInserts, len(c.Rows)):
		return fmt.Errorf("%d of %d rows are inserted, want at most %d", c.Inserts, len(c.Rows), maxInserts)
	case !c.Cursors && (c.Failures || c.Inserts > 0 || c.Stream):
		return fmt.Errorf("failures, inserts and streams need cursors")
	case c.Cursors && !slices.IsSorted(c.Rows):
		return fmt.Errorf("rows %d are not in the order of their keys", c.Rows)
	}
	for i, w := range c.Workers {
		if w.Job < 0 || w.Job >= len(c.Jobs) || w.Ordinal >= maxSlots {
			return fmt.Errorf("worker %d has no place", i)
		}
	}
	for i, job := range c.Jobs {
		switch {
		case len(job.Plans) == 0:
			return fmt.Errorf("job %d has no plan", i)
		case c.Cursors && job.Group != c.Jobs[0].Group:
			return fmt.Errorf("job %d is of another group, whose cursors are its own", i)
		}
	}
	return nil
}

// settled appends a plan above all others if the last is not.
func settled(plans []Plan) []Plan {
	last := plans[len(plans)-1]
	top := last.Epoch
	alone := true
	for _, p := range plans {
		top = max(top, p.Epoch)
		alone = alone && (p.Epoch < last.Epoch || p == last)
	}
	if alone {
		return plans
	}
	return append(slices.Clone(plans), Plan{top + 1, last.Slots})
}

// covers is MOD(id, n) IN (k, k - n): Go's remainder has the sign of the dividend, as PostgreSQL's has.
func (m *Model) covers(id, n, k int) bool {
	r := id % n
	return r == k || r == k-n && !m.wrong(PlainMod)
}

// plan is the newest plan that worker w has heard of from the API.
func (m *Model) plan(s *State, w int) Mark {
	return markOf(m.Jobs[m.Workers[w].Job].Plans[s.Workers[w].View])
}

func (m *Model) group(w int) int { return m.Jobs[m.Workers[w].Job].Group }

// slot is the slot that session i holds, or works: that of its worker's ordinal, but for an adopter.
func (m *Model) slot(s *State, i int) uint8 {
	if seat := m.Workers[i/2]; !seat.Adopts {
		return seat.Ordinal
	}
	return s.Sessions[i].At
}
