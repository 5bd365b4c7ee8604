package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/hack/torture/schedule"
)

// play runs the lanes, and the faults at their times. It returns when the last jobs are audited; an error is one of the
// torture itself.
func (s *scene) play(ctx context.Context, faults []schedule.Fault) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var lanes, others sync.WaitGroup
	for _, l := range s.lanes {
		lanes.Go(func() {
			if err := l.run(ctx); err != nil {
				cancel(err)
			}
		})
	}
	watching, stop := context.WithCancel(ctx)
	others.Go(func() { s.sayProgress(watching) })
	for _, l := range s.lanes {
		select {
		case <-l.begun:
		case <-ctx.Done():
		}
	}
	begin := time.Now()
	s.setEnd(begin.Add(s.duration))
	s.injectAll(ctx, begin, faults)
	if ctx.Err() == nil {
		s.say("The faults are over")
	}
	lanes.Wait()
	stop()
	others.Wait()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return s.checkLeftovers(ctx, nil)
}

// injectAll carries out the faults, each at its time, mends all at the end, and sees to it that no job stays paused or is worked in
// tiny batches.
func (s *scene) injectAll(ctx context.Context, begin time.Time, faults []schedule.Fault) {
	var group sync.WaitGroup
	for _, f := range faults {
		pause(ctx, time.Until(begin.Add(f.At)))
		if ctx.Err() != nil {
			break
		}
		group.Go(func() {
			injected := s.inject(ctx, f)
			s.mu.Lock()
			defer s.mu.Unlock()
			t := s.score[f.Kind]
			if injected {
				t.injected++
			} else {
				t.missed++
			}
			s.score[f.Kind] = t
		})
	}
	pause(ctx, time.Until(s.end()))
	close(s.calm)
	group.Wait()
	for _, l := range s.lanes {
		l.mu.Lock()
		l.slots = max(l.slots, 1)
		j := l.now
		l.mu.Unlock()
		if j == nil {
			continue
		}
		if j.wished() == 0 {
			j.scale(schedule.FirstSlots)
		}
		j.reload(func(p *v1alpha1.Plan) { p.Batch.Rows = largeBatch })
	}
}

// end is when the faults are over: far away until they have begun.
func (s *scene) end() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.faultsEnd
}

func (s *scene) setEnd(at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faultsEnd = at
}

// hold waits as long as a fault lasts: not longer than until the faults are over.
func (s *scene) hold(d time.Duration) {
	select {
	case <-time.After(d):
	case <-s.calm:
	}
}

// pause waits for a time, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// wrong notes what is not as it has to be, and tells it at once.
func (s *scene) wrong(format string, args ...any) {
	finding := fmt.Sprintf(format, args...)
	s.mu.Lock()
	s.findings = append(s.findings, finding)
	s.mu.Unlock()
	s.say("WRONG: %s", finding)
}

func (s *scene) failed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.findings) > 0
}
