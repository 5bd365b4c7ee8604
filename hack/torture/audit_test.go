package main

import (
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"shardedjob.dev/hack/torture/schedule"
)

func TestJudge(t *testing.T) {
	once := fate{there: true, owed: true, n: 1, noted: 1}
	tests := map[string]struct {
		change func(*fate)
		want   verdict
	}{
		"processed once":                   {func(*fate) {}, ""},
		"not processed":                    {func(f *fate) { f.n, f.noted = 0, 0 }, lost},
		"twice":                            {func(f *fate) { f.n, f.noted = 2, 2 }, doubled},
		"twice by its own count":           {func(f *fate) { f.n = 2 }, doubled},
		"twice by the ledger":              {func(f *fate) { f.noted = 2 }, doubled},
		"only in the ledger":               {func(f *fate) { f.n = 0 }, disagreeing},
		"not in the ledger":                {func(f *fate) { f.noted = 0 }, disagreeing},
		"late and not owed":                {func(f *fate) { f.late, f.owed, f.n, f.noted = true, false, 0, 0 }, ""},
		"late and owed":                    {func(f *fate) { f.late, f.n, f.noted = true, 0, 0 }, lost},
		"late and done all the same":       {func(f *fate) { f.late, f.owed = true, false }, ""},
		"done by the application":          {func(f *fate) { f.app, f.n, f.noted = true, 0, 0 }, ""},
		"out of scope":                     {func(f *fate) { f.outside, f.n, f.noted = true, 0, 0 }, ""},
		"processed out of scope":           {func(f *fate) { f.outside = true }, trespassed},
		"done by both":                     {func(f *fate) { f.app = true }, overwritten},
		"deleted before it was processed":  {func(f *fate) { f.there, f.departed, f.n, f.noted = false, true, 0, 0 }, ""},
		"deleted after it was processed":   {func(f *fate) { f.there, f.departed = false, true }, ""},
		"deleted and processed twice":      {func(f *fate) { f.there, f.departed, f.n, f.noted = false, true, 2, 2 }, doubled},
		"deleted, and then processed once": {func(f *fate) { f.there, f.departed, f.n = false, true, 0 }, disagreeing},
		"deleted and there":                {func(f *fate) { f.departed = true }, restored},
		"gone":                             {func(f *fate) { f.there = false }, vanished},
	}
	for name, tt := range tests {
		f := once
		tt.change(&f)
		if got := judge(f); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// at is a commit so many seconds after noon.
func at(seconds float64, slot, slots int32, epoch int64, pid int32) commit {
	return commit{slot: slot, slots: slots, epoch: epoch, pid: pid, rows: 10, at: noon.Add(time.Duration(seconds * float64(time.Second)))}
}

func TestPauses(t *testing.T) {
	commits := []commit{
		at(0, 0, 2, 1, 7), at(1, 1, 2, 1, 8), at(2, 0, 2, 1, 7), at(6, 1, 2, 1, 8), // slot 1 rests for 5 s, all for 4
		at(7, 0, 3, 2, 7), // the plan is another: the slot too
		at(60, 0, 3, 2, 7),
	}
	job, slot := pauses(commits, 15)
	if job != 4*time.Second || slot != 5*time.Second {
		t.Errorf("pauses of %s and %s, want 4 s and 5 s", job, slot)
	}
	if job, slot = pauses(commits, 0); job != 53*time.Second || slot != 53*time.Second {
		t.Errorf("with the end %s and %s, want 53 s twice", job, slot)
	}
}

func TestTakeover(t *testing.T) {
	commits := []commit{
		at(0, 1, 3, 1, 8), at(1, 1, 3, 1, 8), at(1.5, 0, 3, 1, 7), at(4, 1, 3, 1, 9), at(5, 2, 3, 1, 6), at(6, 0, 1, 2, 7), at(7, 2, 3, 3, 6),
	}
	tests := map[string]struct {
		kind schedule.Kind
		slot int32
		at   float64
		want time.Duration // 0: none
	}{
		"another session goes on":                {schedule.Kill, 1, 0.5, 3500 * time.Millisecond},
		"the same session goes on":               {schedule.Freeze, 1, 0.5, 500 * time.Millisecond},
		"the slot had never been worked":         {schedule.Kill, 2, 3, 2 * time.Second},
		"the slot is no more when work goes on":  {schedule.Kill, 2, 5.5, 0},
		"nothing is left to do":                  {schedule.Terminate, 0, 6.5, 0},
		"the session of the victim never ends":   {schedule.Kill, 0, 1.7, 0},
		"a plan in between has the slot as well": {schedule.Stop, 0, 2, 4 * time.Second},
	}
	for name, tt := range tests {
		got, ok := takeover(mark{kind: tt.kind, slot: tt.slot, at: at(tt.at, 0, 0, 0, 0).at}, commits)
		if got != tt.want || ok != (tt.want != 0) {
			t.Errorf("%s: %s, %v, want %s", name, got, ok, tt.want)
		}
	}
}

func TestWentBack(t *testing.T) {
	commits := []commit{at(0, 0, 2, 1, 1), at(1, 0, 3, 2, 1), at(2, 1, 2, 1, 2), at(3, 1, 2, 2, 2), at(4, 0, 3, 2, 2), at(5, 0, 1, 3, 2)}
	if got := wentBack(commits); got != 2 {
		t.Errorf("%d commits under older plans, want 2", got)
	}
}

func TestAccountsAddUp(t *testing.T) {
	var sum account
	a := account{
		jobs: 1, rows: 10, late: 3, processed: 12, batches: 4, wrong: map[verdict]int{lost: 1}, job: time.Second, slot: 3 * time.Second,
		takeovers: map[schedule.Kind][]time.Duration{schedule.Kill: {2, 1}},
	}
	sum.add(a)
	a.job, a.slot = 2*time.Second, time.Second
	sum.add(a)
	if sum.jobs != 2 || sum.rows != 20 || sum.late != 6 || sum.processed != 24 || sum.batches != 8 || sum.job != 2*time.Second || sum.slot != 3*time.Second ||
		!maps.Equal(sum.wrong, map[verdict]int{lost: 2}) || !slices.Equal(sum.takeovers[schedule.Kill], []time.Duration{2, 1, 2, 1}) {
		t.Errorf("the sum is %+v", sum)
	}
	if median, worst := middle(sum.takeovers[schedule.Kill]); median != 2 || worst != 2 {
		t.Errorf("median %d and worst %d, want 2 and 2", median, worst)
	}
}

// Late keys are not those of the start, and none comes twice.
func TestLateKeysAreNew(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table := table{rows: rapid.IntRange(leastRows, 20_000).Draw(t, "rows")}
		seen := map[int64]bool{}
		for q := int64(1); ; q++ {
			key, ok := table.lateKey(q)
			if !ok {
				break
			}
			if seen[key] {
				t.Fatalf("key %d comes twice", key)
			}
			seen[key] = true
			if remainder := (key%4 + 4) % 4; key < beyond && remainder != 2 {
				t.Fatalf("key %d may be there from the start", key)
			}
		}
		if len(seen) < table.rows-1 {
			t.Fatalf("%d late keys, want as many as rows", len(seen))
		}
	})
}
