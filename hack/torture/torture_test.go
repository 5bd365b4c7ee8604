package main

import (
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"shardedjob.dev/hack/torture/schedule"
)

// TestTorture is a short run, with faults of any kind as its seed has them.
func TestTorture(t *testing.T) {
	o := options{
		seed: 4, duration: 20 * time.Second, every: 250 * time.Millisecond, settle: 2 * time.Minute, rows: 40_000, pods: 4,
		ways: ways, kinds: possibleKinds(),
	}
	var out strings.Builder
	if err := run(t.Context(), o, io.MultiWriter(&out, t.Output())); err != nil {
		t.Fatal(err)
	}
	verdict := regexp.MustCompile(`(?m)^(\d+) faults, (\d+) rows processed, 0 lost, 0 doubled; worst pause [0-9.]+m?s\. Every row counts exactly once, and nothing is left behind$`)
	if m := verdict.FindStringSubmatch(out.String()); m == nil || m[1] == "0" || m[2] == "0" {
		t.Errorf("the run does not end with a verdict: %v", m)
	}
}

// What a run prints to be replayed by runs the same.
func TestReplayIsTheSameRun(t *testing.T) {
	for _, args := range [][]string{
		{"-seed", "7"},
		{"-seed", "18446744073709551615", "-duration", "90s", "-every", "1s", "-rows", "5000", "-pods", "9", "-race", "-ways", "cursors", "-kinds", "kill,freeze"},
	} {
		want, err := parse(args)
		if err != nil {
			t.Fatal(err)
		}
		command, ok := strings.CutPrefix(want.replay(), "go run ./hack/torture ")
		if !ok {
			t.Fatalf("%q is no command", want.replay())
		}
		got, err := parse(strings.Fields(command))
		if err != nil {
			t.Fatal(err)
		}
		if got.replay() != want.replay() || got.race != want.race || !slices.Equal(got.ways, want.ways) || !slices.Equal(got.kinds, want.kinds) {
			t.Errorf("%+v is replayed as %+v", want, got)
		}
	}
}

func TestFlags(t *testing.T) {
	o, err := parse(nil)
	if err != nil || o.seed == 0 || len(o.ways) != len(ways) || len(o.kinds) < len(schedule.Kinds())-1 {
		t.Errorf("without flags: %+v, %v", o, err)
	}
	for _, args := range [][]string{
		{"-rows", "1"}, {"-pods", "0"}, {"-duration", "0s"}, {"-kinds", "kill,earthquake"}, {"-ways", "memory"}, {"more"},
	} {
		if _, err := parse(args); err == nil {
			t.Errorf("%v is accepted", args)
		}
	}
}
