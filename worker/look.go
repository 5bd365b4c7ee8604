package worker

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/worker/coordinator"
	"shardedjob.dev/worker/fence"
	"shardedjob.dev/worker/heartbeat"
)

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
	if !s.adopts() {
		s.adopter.see(claim, holders)
	}
	superseded, err := s.session.SupersededAmong(claim, holders)
	if err != nil || superseded == nil {
		return false, err
	}
	s.followNewer(superseded.Epoch, superseded.Slots, superseded)
	return true, nil
}

// followNewer takes over the partition that the locks of other workers or the group's row in the database show, since the
// API server may be away.
func (s *shift) followNewer(epoch int64, slots int32, seen error) {
	// Without slots, progress was dropped: there is nothing to follow, and a new job of the group has to go above it.
	if slots > 0 && s.feed.Follow(epoch, slots) {
		s.log.Info("Following a newer plan", "epoch", epoch, "slots", slots, "seen", seen.Error())
		return
	}
	// Follow also refuses what the feed has got in the meantime; only a rival, the same epoch with another number of slots,
	// takes a plan above it to settle, so ask for one.
	if now, _ := s.feed.Current(); slots == 0 && epoch >= now.Epoch || epoch == now.Epoch && slots != now.Slots {
		s.state.update(func(b *heartbeat.Beat) {
			b.HighestEpoch = max(b.HighestEpoch, min(epoch+1, v1alpha1.MaxEpoch))
			b.Message = seen.Error() + "; waiting for a plan above it"
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
