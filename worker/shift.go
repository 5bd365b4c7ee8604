package worker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/worker/coordinator"
	"shardedjob.dev/worker/fence"
	"shardedjob.dev/worker/heartbeat"
	"shardedjob.dev/worker/internal/sleep"
	"shardedjob.dev/worker/preflight"
	"shardedjob.dev/worker/shard"
)

const (
	// beatEvery is how often a worker with no news says that it is there.
	beatEvery = 5 * time.Second
	// pollEvery is how often a worker with nothing to do looks around, and how often it may send a heartbeat.
	pollEvery = time.Second
	// problemRetry is the pause before a failed check of the table is repeated, if the plan does not change before.
	problemRetry = 10 * time.Second
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

// table is a checked table.
type table struct {
	shard.Table
}

// AnyPending says whether any row in scope is pending.
func (t *table) AnyPending(ctx context.Context, s *fence.Session) (bool, error) {
	// The check may have to read the whole table; its context bounds it.
	conn := s.Conn()
	if _, err := conn.Exec(ctx, "SET statement_timeout = 0"); err != nil {
		return false, fmt.Errorf("lift the statement timeout: %w", err)
	}
	return shard.AnyPending(ctx, conn, t.Table)
}

// countTimeout bounds an exact count of the pending rows; beyond it the planner's estimate does.
const countTimeout = 3 * time.Second

// CountPending counts or estimates the rows that are pending.
func (t *table) CountPending(ctx context.Context, s *fence.Session) (int64, error) {
	c, err := shard.CountPending(ctx, s.Conn(), t.Table, countTimeout)
	return c.Rows, err
}

// shift is a worker's time on one session.
type shift struct {
	*Worker
	session *fence.Session
	group   fence.Group
	checked *v1alpha1.Plan // whose table and statement have been checked on this session

	lookedAt, beatAt time.Time
}

// hold opens a session and works on it until it is lost, the job pauses or the context ends. Only the loss of the session
// is an error.
func (w *Worker) hold(ctx context.Context, plan v1alpha1.Plan) error {
	group := fence.NewGroup(plan.Group)
	connectCtx, cancel := context.WithTimeout(ctx, connectTimeout)
	session, err := w.connect(connectCtx, group, "", nil)
	cancel()
	if err != nil {
		return err
	}
	s := &shift{Worker: w, session: session, group: group}
	defer s.end(ctx)
	w.state.session(session.PID(), false)
	w.log.Info("Session opened", "pid", session.PID())
	for ctx.Err() == nil {
		changed := w.feed.Changed()
		plan, _ := w.feed.Current()
		if plan.Slots == 0 {
			return nil
		}
		w.state.follow(plan)
		if err := s.round(ctx, plan, changed); err != nil {
			return err
		}
	}
	return nil
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

// round follows one plan as far as it goes: check, claim, enter, work. It returns nil when the plan has changed or a pause
// is over, to be called again, and an error when the session is lost.
func (s *shift) round(ctx context.Context, plan v1alpha1.Plan, changed <-chan struct{}) error {
	claim := fence.Claim{
		Group: s.group, UID: string(s.cfg.JobUID), Ordinal: s.ordinal, Slot: s.ordinal, Epoch: plan.Epoch, Slots: plan.Slots,
		Handover: time.Duration(plan.HandoverSeconds) * time.Second,
	}
	// The group first: only who has a right to its name may speak in it, and stand for its coordinator.
	if !s.joined() {
		if err := s.session.Join(ctx, claim); err != nil {
			return s.refused(ctx, err, plan, changed)
		}
	}
	if problem, err := s.check(ctx, plan); problem != nil || err != nil {
		if err != nil {
			return err
		}
		return s.wait(ctx, plan, changed, problem)
	}
	claim.TableOID = s.oid()
	if err := s.session.Join(ctx, claim); err != nil {
		return s.refused(ctx, err, plan, changed)
	}
	s.state.problem(nil)
	s.state.session(s.session.PID(), true)
	if s.ordinal >= plan.Slots {
		s.notices.post(nil)
		s.state.set(v1alpha1.SlotWaiting, fmt.Sprintf("no slot for ordinal %d of %d", s.ordinal, plan.Slots))
		return s.rest(ctx, claim, changed, time.Hour)
	}
	if err := s.enter(ctx, plan, claim); err != nil {
		return s.refused(ctx, err, plan, changed)
	}
	return s.work(ctx, plan, claim)
}

// joined says whether this session has claimed the group.
func (s *shift) joined() bool {
	return s.session.Holds(fence.OwnerKey(s.group, string(s.cfg.JobUID)))
}

func (s *shift) oid() uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.table.OID
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
	s.mu.Lock()
	s.table = &table{checked}
	s.mu.Unlock()
	s.checked = &plan
	return nil, nil
}

// refused handles what keeps the worker out without the session being lost.
func (s *shift) refused(ctx context.Context, err error, plan v1alpha1.Plan, changed <-chan struct{}) error {
	var conflict *fence.ConflictError
	var newer *fence.SupersededError
	switch {
	case ctx.Err() != nil || errors.Is(err, context.Canceled):
		return s.session.Lost()
	case errors.As(err, &newer):
		s.followLocks(newer)
		if s.repartitioned(plan) {
			return nil
		}
		return s.wait(ctx, plan, changed, nil)
	case errors.As(err, &conflict):
		problem := s.conflictProblem(conflict)
		if conflict.Kind == fence.ConflictOwner {
			// Not our group to speak in.
			s.state.problem(problem)
			s.notices.post(problem)
			sleep.For(ctx, time.Second+rand.N(time.Second))
			return s.session.Ping(ctx)
		}
		// The claim to the group went with the one to the table.
		claim := fence.Claim{Group: s.group, UID: string(s.cfg.JobUID), Ordinal: s.ordinal, Slot: s.ordinal, Epoch: plan.Epoch, Slots: plan.Slots}
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
		s.notices.post(nil) // the coordinator hears of it
	}
	claim := fence.Claim{Group: s.group, Ordinal: s.ordinal, Slot: s.ordinal, Epoch: plan.Epoch, Slots: plan.Slots}
	return s.rest(ctx, claim, changed, problemRetry/2+rand.N(problemRetry))
}

// rest keeps the session alive, looks around and sends heartbeats, until the plan changes, the time is over, or a newer
// plan is seen in the locks.
func (s *shift) rest(ctx context.Context, claim fence.Claim, changed <-chan struct{}, d time.Duration) error {
	until := time.Now().Add(d)
	for time.Now().Before(until) {
		if newer, err := s.look(ctx, claim); newer || err != nil {
			return err
		}
		if err := s.beat(ctx, false); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
			return nil
		case <-time.After(min(pollEvery, time.Until(until))):
		}
	}
	return nil
}

// look looks at the group's locks, if it is time to, and says whether a newer plan is there.
func (s *shift) look(ctx context.Context, claim fence.Claim) (newer bool, err error) {
	if time.Since(s.lookedAt) < fence.LookInterval(claim.Slots) {
		return false, nil
	}
	s.lookedAt = time.Now()
	ctx, cancel := bounded(ctx, callTimeout)
	defer cancel()
	holders, err := fence.Holders(ctx, s.session.Conn(), s.group)
	if err != nil {
		return false, err
	}
	vacant, chief := coordinator.Vacant(holders)
	if chief == nil {
		s.state.led("")
	} else {
		s.state.led(v1alpha1.PodName(s.cfg.Job, chief.Identity.Ordinal))
	}
	if vacant && s.joined() {
		s.mu.Lock()
		candidate := s.candidate
		s.mu.Unlock()
		candidate.Vacancy()
	}
	superseded, err := s.session.SupersededAmong(claim, holders)
	if err != nil || superseded == nil {
		return false, err
	}
	s.followLocks(superseded)
	return true, nil
}

// followLocks takes over the partition that the locks of other workers show, since the API server may be away.
func (s *shift) followLocks(newer *fence.SupersededError) {
	if s.feed.Follow(newer.Epoch, newer.Slots) {
		s.log.Info("Following a newer plan that other workers have", "epoch", newer.Epoch, "slots", newer.Slots)
		return
	}
	// Follow also refuses what the feed has got in the meantime; only a rival, the same epoch with another number of slots,
	// takes a plan above it to settle, so ask for one.
	if now, _ := s.feed.Current(); newer.Epoch == now.Epoch && newer.Slots != now.Slots {
		s.state.update(func(b *heartbeat.Beat) {
			b.HighestEpoch = max(b.HighestEpoch, min(newer.Epoch+1, v1alpha1.MaxEpoch))
			b.Message = newer.Error() + "; waiting for a plan that settles it"
		})
	}
}

// beat sends a heartbeat at most once a second: at once if there is news, and if only the count has changed as often as a
// worker looks at the locks: rows that a killed worker has done since its last heartbeat are missing from the count, and
// the coordinator has about a hundred heartbeats a second to read, however many workers there are.
func (s *shift) beat(ctx context.Context, now bool) error {
	since := time.Since(s.beatAt)
	if !s.joined() || (!now && since < pollEvery) {
		return nil
	}
	plan, _ := s.feed.Current()
	look := fence.LookInterval(plan.Slots)
	b, news := s.state.take(since >= look, now || since >= max(look, beatEvery))
	if !news {
		return nil
	}
	payload, err := heartbeat.Encode(b)
	if err != nil {
		return err
	}
	s.beatAt = time.Now()
	ctx, cancel := bounded(ctx, callTimeout)
	defer cancel()
	_, err = s.session.Conn().Exec(ctx, "SELECT pg_notify($1, $2)", pgx.QueryExecModeExec, heartbeat.Channel(s.group.Hash()), payload)
	if err != nil {
		return fmt.Errorf("send a heartbeat: %w", err)
	}
	return nil
}

// bounded makes a context for a call to the database. A stop of the worker does not break it off, since that would end the
// session, and with it the locks, in the middle of a batch.
func bounded(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), d)
}

// enter takes the slot. It ends early when the plan changes its partition.
func (s *shift) enter(ctx context.Context, plan v1alpha1.Plan, claim fence.Claim) error {
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
	s.state.set(v1alpha1.SlotWaiting, "entering")
	err := s.session.Enter(ctx, claim, func(w fence.Waiting) {
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
