package main

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"shardedjob.dev/hack/torture/schedule"
)

// fate is what became of one row.
type fate struct {
	key string
	// late: it was not there at the start. outside: it is not in scope. there: it is still there. departed: the application has
	// deleted it.
	late, outside, there, departed bool
	// app says that the application has done its work, before any worker.
	app bool
	// owed says that the job had promised to process it, unless it was deleted or done by the application before.
	owed bool
	// n is how often it was processed by its own count, and noted how often by the ledger.
	n, noted int
}

// verdict is what is to be said of rows or batches; the empty one is that all is well.
type verdict string

const (
	lost        verdict = "lost"        // promised, and not processed
	doubled     verdict = "doubled"     // processed more than once
	overwritten verdict = "overwritten" // processed although the application had done its work
	disagreeing verdict = "disagreeing" // by its own count processed more or less often than by the ledger
	vanished    verdict = "vanished"    // not in the table, and not deleted by the application
	trespassed  verdict = "trespassed"  // processed although it is not in scope
	restored    verdict = "restored"    // in the table, and deleted by the application

	strayed  verdict = "strayed"  // processed in a slot that they do not belong to
	unfenced verdict = "unfenced" // batches by a session that held no slot or no plan
	outdated verdict = "outdated" // batches under an older plan than one under which another was committed before
)

func judge(f fate) verdict {
	switch {
	case max(f.n, f.noted) > 1:
		return doubled
	case f.there && f.departed:
		return restored
	case !f.there && !f.departed:
		return vanished
	case f.n != f.noted:
		return disagreeing
	case f.app && f.n > 0:
		return overwritten
	case f.outside && f.n > 0:
		return trespassed
	case f.n == 0 && f.owed && f.there && !f.app && !f.outside:
		return lost
	}
	return ""
}

// commit is a transaction that processed rows: in which slot and plan, -1 where its session held no lock, by which session, and when.
type commit struct {
	slot, slots int32
	epoch       int64
	pid         int32
	rows        int
	at          time.Time
}

// countUnfenced counts the commits without a slot or a plan.
func countUnfenced(commits []commit) (n int) {
	for _, c := range commits {
		if c.slot < 0 || c.epoch < 0 {
			n++
		}
	}
	return n
}

// wentBack counts the commits under an older plan than one that was committed under before. They are in order.
func wentBack(commits []commit) (n int) {
	var newest commit
	for _, c := range commits {
		if order := cmp.Or(cmp.Compare(c.epoch, newest.epoch), cmp.Compare(c.slots, newest.slots)); order < 0 {
			n++
		} else {
			newest = c
		}
	}
	return n
}

// pauses are the longest times between two commits of the job, and of a slot as long as no other plan comes between, whatever was
// broken at the time. The end of the job, when slots run out of rows, does not count: it is when so many rows are left to do.
func pauses(commits []commit, end int) (job, slot time.Duration) {
	left := 0
	for _, c := range commits {
		left += c.rows
	}
	var last commit
	bySlot := map[int32]time.Time{}
	for _, c := range commits {
		if left < end {
			break
		}
		left -= c.rows
		if c.epoch != last.epoch || c.slots != last.slots {
			clear(bySlot)
		}
		if !last.at.IsZero() {
			job = max(job, c.at.Sub(last.at))
		}
		if before, ok := bySlot[c.slot]; ok {
			slot = max(slot, c.at.Sub(before))
		}
		last, bySlot[c.slot] = c, c.at
	}
	return job, slot
}

// takeover is the time from a fault to the slot's next commit, by another session if the fault ends one. There is none if the
// slot did not exist any more before it went on, or had nothing left to do.
func takeover(m mark, commits []commit) (time.Duration, bool) {
	i, _ := slices.BinarySearchFunc(commits, m.at, func(c commit, at time.Time) int { return c.at.Compare(at) })
	var victim int32
	for _, c := range commits[:i] {
		if c.slot == m.slot {
			victim = c.pid
		}
	}
	for _, c := range commits[i:] {
		switch {
		case c.slots <= m.slot:
			return 0, false
		case c.slot == m.slot && (c.pid != victim || !endsSession(m.kind)):
			return c.at.Sub(m.at), true
		}
	}
	return 0, false
}

func endsSession(k schedule.Kind) bool { return k == schedule.Kill || k == schedule.Terminate }

// account is what the audits of a lane's jobs add up to.
type account struct {
	jobs, rows, late, processed, batches int
	wrong                                map[verdict]int
	job, slot                            time.Duration // the worst pauses
	takeovers                            map[schedule.Kind][]time.Duration
}

// find counts what is wrong.
func (a *account) find(v verdict, n int) {
	if n > 0 {
		a.wrong[v] += n
	}
}

// add puts another account on top.
func (a *account) add(b account) {
	a.jobs += b.jobs
	a.rows += b.rows
	a.late += b.late
	a.processed += b.processed
	a.batches += b.batches
	a.job, a.slot = max(a.job, b.job), max(a.slot, b.slot)
	if a.wrong == nil {
		a.wrong, a.takeovers = map[verdict]int{}, map[schedule.Kind][]time.Duration{}
	}
	for v, n := range b.wrong {
		a.wrong[v] += n
	}
	for kind, times := range b.takeovers {
		a.takeovers[kind] = append(a.takeovers[kind], times...)
	}
}

// middle and worst of some times; 0 of none.
func middle(times []time.Duration) (median, worst time.Duration) {
	if len(times) == 0 {
		return 0, 0
	}
	sorted := slices.Sorted(slices.Values(times))
	return sorted[len(sorted)/2], sorted[len(sorted)-1]
}

// verdicts in alphabetical order, for people.
func (a account) verdicts() []verdict { return slices.Sorted(maps.Keys(a.wrong)) }
