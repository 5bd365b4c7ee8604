package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"shardedjob.dev/hack/torture/schedule"
)

const progressEvery = 5 * time.Second

// say tells a person something.
func (s *scene) say(format string, args ...any) {
	s.printing.Lock()
	defer s.printing.Unlock()
	fmt.Fprintf(s.out, "[%6.1fs] %s\n", time.Since(s.began).Seconds(), fmt.Sprintf(format, args...))
}

// sayProgress tells how things go, until ctx ends.
func (s *scene) sayProgress(ctx context.Context) {
	for {
		pause(ctx, progressEvery)
		if ctx.Err() != nil {
			return
		}
		injected, _ := s.counted()
		line := fmt.Sprintf("%4d faults", injected)
		for _, l := range s.lanes {
			l.mu.Lock()
			p := l.state
			l.mu.Unlock()
			if p.job == "" {
				continue
			}
			line += fmt.Sprintf("   %s: epoch %d, %d slots, %d rows done, %d left", p.job, p.epoch, p.slots, p.processed, p.left)
		}
		s.say("%s", line)
	}
}

// counted are the faults so far.
func (s *scene) counted() (injected, missed int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.score {
		injected += t.injected
		missed += t.missed
	}
	return injected, missed
}

// summary prints what came of it all.
func (s *scene) summary() {
	all := account{}
	fmt.Fprintf(s.out, "\n%-10s %5s %9s %7s %10s %8s %5s %8s  %s\n", "progress", "jobs", "rows", "late", "processed", "batches", "lost", "doubled", "worst pause: job, slot")
	for _, l := range s.lanes {
		a := l.sum
		all.add(a)
		fmt.Fprintf(s.out, "%-10s %5d %9d %7d %10d %8d %5d %8d  %s, %s\n", l.way.name, a.jobs, a.rows, a.late, a.processed, a.batches,
			a.wrong[lost], a.wrong[doubled], short(a.job), short(a.slot))
	}
	fmt.Fprintf(s.out, "\n%-14s %9s %7s  %s\n", "fault", "injected", "missed", "until the slot's next commit: median, worst")
	for _, kind := range schedule.Kinds() {
		t := s.score[kind]
		if t == (tally{}) {
			continue
		}
		takeovers := ""
		if times := all.takeovers[kind]; len(times) > 0 {
			median, worst := middle(times)
			takeovers = fmt.Sprintf("%s, %s (%d times)", short(median), short(worst), len(times))
		}
		fmt.Fprintf(s.out, "%-14s %9d %7d  %s\n", kind, t.injected, t.missed, takeovers)
	}
	injected, missed := s.counted()
	fmt.Fprintf(s.out, "%-14s %9d %7d\n\n", "all", injected, missed)
	verdict := "Every row counts exactly once, and nothing is left behind"
	if s.failed() {
		verdict = "FAILED:\n  " + strings.Join(s.findings, "\n  ")
	}
	fmt.Fprintf(s.out, "%d faults, %d rows processed, %d lost, %d doubled; worst pause %s. %s\n", injected, all.processed,
		all.wrong[lost], all.wrong[doubled], short(all.job), verdict)
}

func short(d time.Duration) string { return d.Round(10 * time.Millisecond).String() }

// tail is how many faults of a schedule that failed are printed.
const tail = 30

// sayReplay tells how to get the same faults again.
func (s *scene) sayReplay(faults []schedule.Fault) {
	fmt.Fprintf(s.out, "\nThe last of the schedule:\n")
	for _, f := range faults[max(0, len(faults)-tail):] {
		fmt.Fprintln(s.out, " ", f)
	}
	fmt.Fprintf(s.out, "Schedule and logs are in %s. To replay it:\n  %s\n", s.dir, s.replay())
}
