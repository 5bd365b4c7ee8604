package schedule

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func options(t *rapid.T) Options {
	return Options{
		Seed:     rapid.Uint64().Draw(t, "seed"),
		Duration: time.Duration(rapid.IntRange(60, 600).Draw(t, "seconds")) * time.Second,
		Every:    time.Duration(rapid.IntRange(50, 1000).Draw(t, "every")) * time.Millisecond,
		Jobs:     rapid.IntRange(1, 3).Draw(t, "jobs"),
		Pods:     rapid.Int32Range(1, 8).Draw(t, "pods"),
		Handover: 3 * time.Second,
	}
}

// A seed makes one schedule, and a longer run of it begins with the shorter one.
func TestScheduleIsReplayed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := options(t)
		short := New(o)
		if !slices.Equal(short, New(o)) {
			t.Fatal("the same seed made another schedule")
		}
		end := o.Duration
		o.Duration += time.Minute
		long := New(o)
		// A fault that makes more than one, such as a pause, may reach over the end of the shorter one.
		long = slices.DeleteFunc(long, func(f Fault) bool { return f.At >= end })
		if !slices.Equal(short, long) {
			t.Fatal("a longer schedule begins otherwise")
		}
		o.Seed++
		if slices.Equal(long, New(o)) {
			t.Fatal("another seed made the same schedule")
		}
	})
}

func TestScheduleIsSound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := options(t)
		slots := make([]int32, o.Jobs)
		for i := range slots {
			slots[i] = FirstSlots
		}
		var last time.Duration
		for _, f := range New(o) {
			scope := traits[f.Kind].scope
			switch {
			case f.At < last || f.At >= o.Duration:
				t.Fatalf("%s is out of order or time", f)
			case (f.Job < 0) != (scope == Everything) || f.Job >= o.Jobs:
				t.Fatalf("%s is about a job that is not there", f)
			case (f.Pod < 0) != (scope != Pod) || f.Pod >= o.Pods && f.Pod >= FirstSlots:
				t.Fatalf("%s is about a pod that is not there", f)
			case f.Kind == Flap:
				t.Fatalf("%s is not made of scales", f)
			case f.Kind == Scale && (f.Slots < 0 || f.Slots > o.Pods):
				t.Fatalf("%s is out of bounds", f)
			case f.Kind == Freeze && f.Hold <= o.Handover:
				t.Fatalf("%s is not longer than the hand-over time", f)
			}
			if f.Kind == Scale {
				slots[f.Job] = f.Slots
			}
			last = f.At
		}
	})
}

// No pause is for ever: a scale to 0 is followed by another, unless the schedule ends.
func TestPausesEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := options(t)
		paused := map[int]Fault{}
		for _, f := range New(o) {
			for job, pause := range paused {
				if f.At-pause.At > traits[Scale].most+time.Second {
					t.Fatalf("%s: job %d is still paused at %s", pause, job, f.At)
				}
			}
			if f.Kind == Scale {
				delete(paused, f.Job)
				if f.Slots == 0 {
					paused[f.Job] = f
				}
			}
		}
	})
}

// What is broken is not broken again before it is mended.
func TestOneServerRestartAtATime(t *testing.T) {
	for seed := range uint64(20) {
		end := map[string]time.Duration{}
		for _, f := range New(Options{Seed: seed, Duration: 20 * time.Minute, Every: 100 * time.Millisecond, Jobs: 2, Pods: 6}) {
			trait := traits[f.Kind]
			if f.Job >= 0 || trait.thing == "" {
				continue
			}
			if f.At < end[trait.thing] {
				t.Fatalf("seed %d: %s while it is broken until %s", seed, f, end[trait.thing])
			}
			end[trait.thing] = f.At + f.Hold + trait.rest
		}
	}
}

func TestEachKindComes(t *testing.T) {
	for seed := range uint64(50) {
		o := Options{Seed: seed, Duration: 30 * time.Second, Every: 150 * time.Millisecond, Jobs: 2, Pods: 5}
		seen := map[Kind]bool{Flap: true}
		for _, f := range New(o) {
			seen[f.Kind] = true
		}
		for _, kind := range Kinds() {
			if !seen[kind] {
				t.Errorf("seed %d: no %s in %s", seed, kind, o.Duration)
			}
		}
	}
}

func TestKindsAreChosen(t *testing.T) {
	faults := New(Options{Seed: 1, Duration: time.Minute, Every: time.Second, Jobs: 1, Pods: 3, Kinds: []Kind{Kill, Freeze}})
	if len(faults) < 20 {
		t.Errorf("%d faults in a minute, want about one a second", len(faults))
	}
	for _, f := range faults {
		if f.Kind != Kill && f.Kind != Freeze {
			t.Errorf("%s was not asked for", f)
		}
	}
}

func TestFaultForPeople(t *testing.T) {
	for want, f := range map[string]Fault{
		"     1.5s kill          job 1 pod 2 for 700ms": {At: 1500 * time.Millisecond, Kind: Kill, Job: 1, Pod: 2, Hold: 700 * time.Millisecond},
		"     2m0s scale         job 0 to 5":            {At: 2 * time.Minute, Kind: Scale, Job: 0, Pod: -1, Slots: 5},
		"     20ms crash        ":                       {At: 20 * time.Millisecond, Kind: Crash, Job: -1, Pod: -1},
	} {
		if got := f.String(); got != want {
			t.Errorf("got  %q\nwant %q", got, want)
		}
	}
}
