package worker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/worker/fence"
	"shardedjob.dev/worker/internal/sleep"
	"shardedjob.dev/worker/preflight"
)

const (
	// beatEvery is how often a worker with no news says that it is there.
	beatEvery = 5 * time.Second
	// pollEvery is how often a worker with nothing to do looks around, and how often it may send a heartbeat.
	pollEvery = time.Second
	// problemRetry is the pause before a failed check of the table is repeated, if the plan does not change before.
	problemRetry = 10 * time.Second
	// heraldAfter is about how long a worker without a slot waits before it tells those of older plans of its own.
	heraldAfter = 5 * time.Second
	// connectTimeout bounds a connection attempt, name look-up and authentication included.
	connectTimeout = 10 * time.Second
	// callTimeout bounds a look at the locks and a heartbeat: the server answers in milliseconds or not at all.
	callTimeout = 5 * time.Second
	// checkTimeout bounds the check of table and statement, which may wait for a table's lock.
	checkTimeout = 30 * time.Second
	// statementTimeout is what the session allows a statement outside a batch.
	statementTimeout = 30 * time.Second
	// lastWord bounds what a worker says when it stops.
	lastWord = 2 * time.Second
)

// shift is a worker's time on one session: the one on which it works its own slot, or the adopter's.
type shift struct {
	*Worker
	state   *state // what this session lets the world know, in place of the worker's
	session *fence.Session
	group   fence.Group
	checked *v1alpha1.Plan // whose table and statement have been checked on this session
	table   *table         // as it was checked

	lookedAt, beatAt time.Time
}

// adopts says that this is the adopter's session.
func (s *shift) adopts() bool { return s.state == &s.adopter.state }

// post puts up a notice, or takes it down. Only the worker's own session speaks for it.
func (s *shift) post(p *v1alpha1.Problem) {
	if !s.adopts() {
		s.notices.post(p)
	}
}

// claim is what this session wants under a plan.
func (s *shift) claim(plan v1alpha1.Plan, slot int32) fence.Claim {
	return fence.Claim{
		Group: s.group, UID: string(s.cfg.JobUID), Ordinal: s.ordinal, Slot: slot, Epoch: plan.Epoch, Slots: plan.Slots,
		Handover: time.Duration(plan.HandoverSeconds) * time.Second,
	}
}

// hold opens a session and works on it until it is lost, the job pauses or the context ends. Only the loss of the session
// is an error.
func (w *Worker) hold(ctx context.Context, plan v1alpha1.Plan) error {
	s, err := w.open(ctx, plan, &w.state, "")
	if err != nil {
		return err
	}
	defer s.end(ctx)
	defer w.adopter.assign(nil) // who has no slot of its own looks after no other
	for ctx.Err() == nil {
		changed := w.feed.Changed()
		plan, _ := w.feed.Current()
		if plan.Slots == 0 {
			return nil
		}
		w.state.follow(plan)
		if err := s.round(ctx, plan, changed, w.ordinal); err != nil {
			return err
		}
	}
	return nil
}

// open begins a shift.
func (w *Worker) open(ctx context.Context, plan v1alpha1.Plan, st *state, role string) (*shift, error) {
	group := fence.NewGroup(plan.Group)
	connectCtx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	session, err := w.connect(connectCtx, group, role, nil)
	if err != nil {
		return nil, err
	}
	st.session(session.PID(), false)
	w.log.Info("Session opened", "pid", session.PID(), "role", role)
	return &shift{Worker: w, state: st, session: session, group: group}, nil
}

// end says a last word, and ends the session and with it all locks.
func (s *shift) end(ctx context.Context) {
	ctx, cancel := bounded(ctx, lastWord)
	defer cancel()
	if s.session.Lost() == nil && s.session.Leave(ctx) == nil {
		s.state.set(v1alpha1.SlotWaiting, "stopping")
		_ = s.beat(ctx, true) // it only hastens what the coordinator finds out by itself
	}
	_ = s.session.Close(ctx)
}

// round follows one plan as far as it goes: check, claim, enter, work. It returns nil when the plan has changed, a pause
// is over or an adopted slot is given up, to be called again, and an error when the session is lost.
func (s *shift) round(ctx context.Context, plan v1alpha1.Plan, changed <-chan struct{}, slot int32) error {
	claim := s.claim(plan, slot)
	// The group first: only who has a right to its name may speak in it, and stand for its coordinator.
	if !s.joined() {
		if err := s.session.Join(ctx, claim); err != nil {
			return s.refused(ctx, err, plan, changed)
		}
	}
	if !plan.Forget { // what is to be forgotten may be of a table that is gone
		if problem, err := s.check(ctx, plan); problem != nil || err != nil {
			if err != nil {
				return err
			}
			return s.wait(ctx, plan, changed, problem)
		}
		claim.TableOID = s.conflictOID()
		if err := s.session.Join(ctx, claim); err != nil {
			return s.refused(ctx, err, plan, changed)
		}
	}
	s.state.problem(nil)
	s.state.session(s.session.PID(), true)
	if slot >= plan.Slots {
		s.post(nil)
		s.state.set(v1alpha1.SlotWaiting, fmt.Sprintf("no slot for ordinal %d of %d", slot, plan.Slots))
		if err := s.rest(ctx, claim, changed, heraldAfter/2+rand.N(heraldAfter)); err != nil || ctx.Err() != nil || s.repartitioned(plan) {
			return err
		}
		if err := s.enter(ctx, plan, claim, s.session.Herald); err != nil {
			return s.refused(ctx, err, plan, changed)
		}
		return nil
	}
	s.state.set(v1alpha1.SlotWaiting, "entering")
	if err := s.enter(ctx, plan, claim, s.session.Enter); err != nil {
		return s.refused(ctx, err, plan, changed)
	}
	err := s.begin(ctx, plan, claim, changed)
	if s.session.Lost() != nil {
		return err
	}
	leave, cancel := bounded(ctx, callTimeout)
	defer cancel()
	return errors.Join(err, s.session.Leave(leave))
}

// joined says whether this session has claimed the group.
func (s *shift) joined() bool {
	return s.session.Holds(fence.OwnerKey(s.group, string(s.cfg.JobUID)))
}

// conflictOID is the table whose rows other groups must leave alone, 0 if there is none: cursors of two groups are no
// matter of each other.
func (s *shift) conflictOID() uint32 {
	if !s.table.remembers() {
		return 0
	}
	return s.table.OID
}

// kept is what is remembered of slots.
func (s *shift) kept() *memory {
	if s.adopts() {
		return &s.adopter.kept
	}
	return &s.Worker.kept
}

// check looks at table and statement, unless that was done for this plan on this session.
func (s *shift) check(ctx context.Context, plan v1alpha1.Plan) (*v1alpha1.Problem, error) {
	if s.checked != nil && s.checked.Table == plan.Table && s.checked.Process.SQL.Statement == plan.Process.SQL.Statement {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	conn := s.session.Conn()
	if err := preflight.SearchPath(ctx, conn, plan.Table.Schema); err != nil {
		return nil, err
	}
	checked, problem, err := preflight.Check(ctx, conn, plan.Table, plan.Process.SQL.Statement)
	if problem != nil || err != nil {
		return problem, err
	}
	s.table = &table{Table: checked, group: plan.Group}
	s.checked = &plan
	s.mu.Lock()
	s.Worker.table = s.table
	s.mu.Unlock()
	return nil, nil
}

// refused handles what keeps the worker out without the session being lost.
func (s *shift) refused(ctx context.Context, err error, plan v1alpha1.Plan, changed <-chan struct{}) error {
	var conflict *fence.ConflictError
	var newer *fence.SupersededError
	switch {
	case ctx.Err() != nil || errors.Is(err, context.Canceled), errors.Is(err, fence.ErrSlotTaken):
		return s.session.Lost()
	case errors.As(err, &newer):
		s.followNewer(newer.Epoch, newer.Slots, newer)
		if s.repartitioned(plan) {
			return nil
		}
		return s.wait(ctx, plan, changed, nil)
	case errors.As(err, &conflict):
		problem := s.conflictProblem(conflict)
		if conflict.Kind == fence.ConflictOwner {
			// Not our group to speak in.
			s.state.problem(problem)
			s.post(problem)
			sleep.For(ctx, time.Second+rand.N(time.Second))
			return s.session.Ping(ctx)
		}
		// The claim to the group went with the one to the table.
		claim := s.claim(plan, s.ordinal)
		if err := s.session.Join(ctx, claim); err != nil && !errors.As(err, &conflict) {
			return err
		}
		s.state.problem(problem)
		s.state.set(v1alpha1.SlotWaiting, problem.Message)
		return s.rest(ctx, claim, changed, time.Second+rand.N(time.Second))
	default:
		return err
	}
}

// conflictProblem says who is in the way. Workers of a deleted job of the same name, which are about to go, are no
// matter for a person.
func (s *shift) conflictProblem(c *fence.ConflictError) *v1alpha1.Problem {
	who := c.Other.Identity // whose job's name may be cut
	predecessor := c.Kind == fence.ConflictOwner && c.Other.Ours &&
		c.Other.ApplicationName == fence.ApplicationName(s.group, who.Ordinal, who.PodUID, s.cfg.Namespace+"/"+s.cfg.Job)
	message := c.Error() + "; this job waits until that one is gone"
	return &v1alpha1.Problem{Reason: v1alpha1.ReasonConflict, Message: message, Stalled: !predecessor}
}

// wait says what the problem is and waits for another plan, or for a while.
func (s *shift) wait(ctx context.Context, plan v1alpha1.Plan, changed <-chan struct{}, problem *v1alpha1.Problem) error {
	if problem != nil {
		s.log.Warn("Cannot work", "reason", problem.Reason, "message", problem.Message)
		s.state.session(s.session.PID(), false)
		s.state.problem(problem)
		s.state.set(v1alpha1.SlotWaiting, problem.Message)
		s.post(nil) // the coordinator hears of it
	}
	return s.rest(ctx, s.claim(plan, s.ordinal), changed, problemRetry/2+rand.N(problemRetry))
}

// enter takes the slot, or does without one. It ends early when the plan changes its partition.
func (s *shift) enter(ctx context.Context, plan v1alpha1.Plan, claim fence.Claim,
	by func(context.Context, fence.Claim, func(fence.Waiting)) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		for ctx.Err() == nil {
			changed := s.feed.Changed()
			if s.repartitioned(plan) {
				cancel()
				return
			}
			select {
			case <-ctx.Done():
			case <-changed:
			}
		}
	}()
	err := by(ctx, claim, func(w fence.Waiting) {
		s.state.set(v1alpha1.SlotWaiting, w.Message)
		if w.Reason == fence.WaitingForeignLock || w.Reason == fence.WaitingCannotEnd {
			s.state.problem(&v1alpha1.Problem{Reason: v1alpha1.ReasonForeignLock, Message: w.Message, Stalled: true})
		} else {
			s.state.problem(nil)
		}
		// Enter calls this between two of its own statements, so the session is free. A lost session, or a newer plan, shows
		// at Enter's next poll.
		_, _ = s.look(ctx, claim)
		_ = s.beat(ctx, false)
	})
	if err == nil {
		s.state.problem(nil)
	}
	return err
}

// repartitioned says whether the newest plan has another partition than this one.
func (s *shift) repartitioned(plan v1alpha1.Plan) bool {
	now, _ := s.feed.Current()
	return now.Epoch != plan.Epoch || now.Slots != plan.Slots
}
