package fence

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"shardedjob.dev/worker/internal/sleep"
)

// Enter takes slot c.Slot under plan (c.Epoch, c.Slots) and returns nil once the session may work it. It blocks as long
// as it has to wait, outside any transaction, and tells onWait, which may be nil, at the start of each wait and about
// once a second. It fails with a *SupersededError where a newer plan is seen, with ctx's error, with ErrSessionLost, or with
// another error of the server. After a failure the session holds at most what Join took. On a new plan cancel ctx, and
// enter again; it may still return nil if the slot was taken just then. While working, call Leave first.
//
// A slot's own worker waits for it, and asks whoever has adopted it to hand it back: it takes the slot's intent, which the
// adopter sees by [Session.Wanted]. An adopter waits for older plans alone: where the slot is held or wanted back, Enter fails with ErrSlotTaken.
//
// The order of the steps is the proof that no two sessions ever work rows in common:
//
//  1. Take the epoch lock. Looking first and taking then lets an old and a new session both see nobody and both go on.
//  2. Look at the epoch locks of the others. Newer: let go, for whoever is there may be past its own look and waits for us.
//     Older: keep ours and wait until those seen now have let go. One that comes later takes its lock, then sees ours, and yields.
//     To wait for slot locks instead would miss a session between its look and its slot.
//  3. Take the slot lock, which sets apart the sessions of one plan. To take it before the wait is over would deadlock with a
//     session that waits for us.
//
// Rows may be read only after that: what was read before may have been changed by whoever we waited for.
func (s *Session) Enter(ctx context.Context, c Claim, onWait func(Waiting)) error {
	if c.Slot < 0 || c.Slot >= c.Slots {
		return fmt.Errorf("entering: there is no slot %d in a plan of %d", c.Slot, c.Slots)
	}
	e, err := s.newEntry(c, onWait)
	if err != nil {
		return err
	}
	if err := s.applySettings(ctx); err != nil {
		return err
	}
	if err := e.run(ctx); err != nil {
		return errors.Join(err, s.abandon(ctx))
	}
	return nil
}

// Herald is for a worker that has no slot in its plan, c.Slot >= c.Slots. If sessions of older plans are there, it shows them
// this one: it takes the epoch lock and waits, as Enter does in steps 1 and 2, until they have let go, and lets go too. Without
// it, nobody might ever tell them, where all who have a slot in the new plan are cut off from the API server.
func (s *Session) Herald(ctx context.Context, c Claim, onWait func(Waiting)) error {
	e, err := s.newEntry(c, onWait)
	if err != nil {
		return err
	}
	holders, err := s.look(ctx, c.Group.Class())
	if err != nil {
		return err
	}
	v := judge(c.Group, e.mark, c.Slot, int32(s.pid), holders)
	if newer := superseded(v); newer != nil {
		return newer
	}
	if len(v.older) == 0 {
		return nil
	}
	return errors.Join(e.run(ctx), s.abandon(ctx))
}

// Leave lets go of slot, intent and epoch, outside any transaction, and keeps the claim of Join. It does nothing if
// none is held. The slot goes first: whoever waits for the epoch must find it free.
func (s *Session) Leave(ctx context.Context) error {
	var keys []Key
	for _, kind := range []Kind{KindSlot, KindIntent, KindEpoch} {
		for _, key := range s.Held() {
			if k, _ := key.Parse(); k == kind {
				keys = append(keys, key)
			}
		}
	}
	return s.unlock(ctx, keys...)
}

// abandon is Leave after a failure: the context may be over, and a session that is lost has left already.
func (s *Session) abandon(ctx context.Context) error {
	if s.gone() == nil {
		return s.Leave(context.WithoutCancel(ctx))
	}
	return nil
}

// Superseded looks whether a session of the group is under a newer plan than c, and returns it. It takes and drops no lock,
// so a worker whose ordinal has no slot can use it to follow a plan that it cannot read. A working session calls it
// between batches, every LookInterval, and leaves at a result: the API server may be away, the lock says it too.
func (s *Session) Superseded(ctx context.Context, c Claim) (*SupersededError, error) {
	holders, err := s.look(ctx, c.Group.Class())
	if err != nil {
		return nil, err
	}
	return s.SupersededAmong(c, holders)
}

// SupersededAmong is Superseded for who has been seen already.
func (s *Session) SupersededAmong(c Claim, holders []Holder) (*SupersededError, error) {
	m, err := newMark(c.Epoch, c.Slots)
	if err != nil {
		return nil, err
	}
	return superseded(judge(c.Group, m, c.Slot, int32(s.pid), holders)), nil
}

func superseded(v view) *SupersededError {
	if v.newer == nil {
		return nil
	}
	return &SupersededError{Epoch: v.newer.Epoch(), Slots: v.newer.Slots(), By: *v.newer}
}

// An entry is one run of Enter, or of Herald.
type entry struct {
	*Session
	claim  Claim
	mark   mark
	epoch  Key
	onWait func(Waiting)
	told   time.Time              // when onWait was last called
	reason Reason                 // and what for
	waits  map[sighting]bool      // the older sessions of the first look that are still there
	since  time.Time              // when the entry began
	ended  map[sighting]time.Time // when a session was last told to end
	denied map[sighting]string    // the server's words where it may not be ended
}

func (s *Session) newEntry(c Claim, onWait func(Waiting)) (*entry, error) {
	epoch, err := EpochKey(c.Group, c.Epoch, c.Slots)
	if err != nil {
		return nil, err
	}
	if err := s.gone(); err != nil {
		return nil, err
	}
	if s.joined == nil || *s.joined != c.joined() {
		return nil, fmt.Errorf("entering: %w", ErrNotJoined)
	}
	for _, key := range s.Held() {
		if kind, _ := key.Parse(); kind == KindEpoch || kind == KindSlot {
			return nil, fmt.Errorf("entering: %s: %w", key, ErrAlreadyHeld)
		}
	}
	if onWait == nil {
		onWait = func(Waiting) {}
	}
	_, value := epoch.Parse()
	return &entry{
		Session: s, claim: c, mark: mark(value), epoch: epoch, onWait: onWait,
		since: time.Now(), ended: map[sighting]time.Time{}, denied: map[sighting]string{},
	}, nil
}

func (e *entry) run(ctx context.Context) error {
	for {
		done, err := e.step(ctx)
		if done || err != nil {
			return err
		}
		if err := pause(ctx, max(e.claim.Slots, e.claim.Slot+1)); err != nil {
			return fmt.Errorf("waiting to work slot %d: %w", e.claim.Slot, err)
		}
	}
}

// step does as much of the entry as can be done without waiting, and says whether the slot is held.
func (e *entry) step(ctx context.Context) (done bool, err error) {
	if !e.Holds(e.epoch) {
		// Workers hold it shared, so only a stranger can keep us out.
		if _, err := e.TryLock(ctx, e.epoch, Shared); err != nil {
			return false, err
		}
	}
	holders, err := e.look(ctx, e.claim.Group.Class())
	if err != nil {
		return false, err
	}
	v := judge(e.claim.Group, e.mark, e.claim.Slot, int32(e.pid), holders)
	if newer := superseded(v); newer != nil {
		return false, newer
	}
	if !e.Holds(e.epoch) {
		if v.block != nil {
			e.foreign(*v.block)
		}
		return false, nil
	}
	if len(v.strays) > 0 {
		e.foreign(v.strays...)
		return false, nil
	}
	if wait, err := e.waitForOlder(ctx, v.older); wait || err != nil {
		return false, err
	}
	switch {
	case e.claim.Slot >= e.claim.Slots:
		return true, nil
	case e.claim.adopts():
		return e.adopt(ctx, v)
	}
	got, err := e.TryLock(ctx, SlotKey(e.claim.Group, e.claim.Slot), Exclusive)
	if err != nil {
		return false, err
	}
	if got {
		return true, e.withdraw(ctx)
	}
	return false, e.ask(ctx, v)
}

// waitForOlder says whether sessions of the first look are still under an older plan. Those whose time is over are ended.
func (e *entry) waitForOlder(ctx context.Context, older []Holder) (wait bool, err error) {
	now := time.Now()
	seen := make(map[sighting]bool, len(older))
	for _, h := range older {
		seen[h.sighting()] = true
	}
	if e.waits == nil { // the first look under our own epoch lock
		e.waits = seen
	}
	for id := range e.clocks { // a session that let go, or went on to another plan, is not frozen
		if !seen[id] {
			delete(e.clocks, id)
		}
	}
	older = slices.DeleteFunc(older, func(h Holder) bool { return !e.waits[h.sighting()] })
	for _, h := range older {
		id := h.sighting()
		if _, ok := e.clocks[id]; !ok {
			e.clocks[id] = now
		}
		if now.Sub(e.clocks[id]) < e.claim.Handover || now.Sub(e.ended[id]) < terminateEvery {
			continue
		}
		e.ended[id] = now
		if err := e.terminate(ctx, h); err != nil {
			return true, err
		}
	}
	e.waits = make(map[sighting]bool, len(older)) // who has let go is never waited for again
	for _, h := range older {
		e.waits[h.sighting()] = true
	}
	if len(older) > 0 {
		e.olderEpoch(older, now)
	}
	return len(older) > 0, nil
}

// The check and the end are one statement, so that a session which has just let go, or a new one with its pid, is not hit.
const terminateQuery = `
	SELECT pg_terminate_backend(a.pid)
	  FROM pg_stat_activity a
	 WHERE a.pid = $1 AND a.backend_start IS NOT DISTINCT FROM $2 AND a.application_name = $3
	   AND EXISTS (SELECT FROM pg_locks l
	                WHERE l.pid = a.pid AND l.classid::int8 = $4 AND l.objid::int8 = $5 AND ` + advisory + `)`

// terminate ends the session of an older plan. It does not count as gone before pg_locks says so.
func (e *entry) terminate(ctx context.Context, h Holder) error {
	var start *time.Time
	if !h.BackendStart.IsZero() {
		start = &h.BackendStart
	}
	err := e.call(ctx, "ending a session of an older plan", func(ctx context.Context) error {
		_, err := e.conn.Exec(ctx, terminateQuery, h.PID, start, h.ApplicationName, int64(uint32(h.Key.Class)), int64(uint32(h.Key.Object)))
		return err
	})
	var refusal *pgconn.PgError
	if errors.As(err, &refusal) && refusal.Code == "42501" { // insufficient_privilege
		e.denied[h.sighting()] = refusal.Message
		return nil
	}
	return err
}

// pause waits for a poll interval, give or take a half, so that waiting sessions do not march in step.
func pause(ctx context.Context, slots int32) error {
	interval := pollInterval(slots)
	if !sleep.For(ctx, interval/2+rand.N(interval)) {
		return ctx.Err()
	}
	return nil
}
