package coordinator

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"shardedjob.dev/worker/heartbeat"
)

func TestTally(t *testing.T) {
	type add struct {
		ordinal   int32
		slot      int32
		run       string
		processed int64
	}
	tests := map[string]struct {
		adds []add
		want int64
	}{
		"counts of a run are totals, not differences": {[]add{{0, 0, "a", 5}, {0, 0, "a", 9}}, 9},
		"two ordinals add up":                         {[]add{{0, 0, "a", 5}, {1, 1, "b", 7}}, 12},
		"a restarted worker begins at 0":              {[]add{{0, 0, "a", 5}, {0, 0, "b", 0}, {0, 0, "b", 3}}, 8},
		"a late beat of an ended run changes nothing": {[]add{{0, 0, "a", 5}, {0, 0, "b", 2}, {0, 0, "a", 6}, {0, 0, "b", 3}}, 8},
		"adopted slots are counted apart":             {[]add{{0, 0, "a", 5}, {0, 3, "a+", 7}, {0, 4, "a+", 9}, {0, 0, "a", 6}}, 15},
		"a beat that was overtaken does not subtract": {[]add{{0, 0, "a", 9}, {0, 0, "a", 5}}, 9},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			tally := newTally("uid")
			for _, a := range tt.adds {
				tally.add(heartbeat.Beat{Ordinal: a.ordinal, Slot: a.slot, Run: a.run, Processed: a.processed})
			}
			if got := tally.processed(); got != tt.want {
				t.Errorf("processed() = %d, want %d", got, tt.want)
			}
		})
	}
}

// A coordinator that takes over in the middle counts what one without a break would have counted.
func TestTallySurvivesTakeover(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		whole, broken := newTally("uid"), newTally("uid")
		counts := map[string]int64{}
		current := map[int32]int{}
		for range rapid.IntRange(1, 60).Draw(t, "beats") {
			ordinal := rapid.Int32Range(0, 3).Draw(t, "ordinal")
			if rapid.IntRange(0, 5).Draw(t, "restart") == 0 {
				current[ordinal]++
			}
			name := fmt.Sprintf("%d-%d", ordinal, current[ordinal])
			counts[name] += rapid.Int64Range(0, 100).Draw(t, "rows")
			b := heartbeat.Beat{Ordinal: ordinal, Slot: ordinal, Run: name, Processed: counts[name]}
			whole.add(b)
			broken.add(b)
			if rapid.IntRange(0, 3).Draw(t, "takeover") == 0 {
				raw, err := broken.encode()
				if err != nil {
					t.Fatal(err)
				}
				broken = decodeTally("uid", raw)
			}
		}
		want := int64(0)
		for _, n := range counts {
			want += n
		}
		if whole.processed() != want || broken.processed() != want {
			t.Fatalf("counted %d without and %d with takeovers, want %d", whole.processed(), broken.processed(), want)
		}
	})
}

func TestDecodeTallyIgnoresWhatIsNotOurs(t *testing.T) {
	for name, raw := range map[string]string{
		"nothing":          "",
		"not JSON":         "{",
		"another job's":    `{"uid":"other","base":7}`,
		"a negative count": `{"uid":"uid","base":-7}`,
	} {
		t.Run(name, func(t *testing.T) {
			if got := decodeTally("uid", raw).processed(); got != 0 {
				t.Errorf("processed() = %d, want 0", got)
			}
		})
	}
}

func TestRate(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var pace pace
	if got := pace.rate(start, 0); got != 0 {
		t.Errorf("rate with one sample = %d, want 0", got)
	}
	for second := 1; second <= 60; second++ {
		if got := pace.rate(start.Add(time.Duration(second)*time.Second), int64(second*100)); got != 100 {
			t.Errorf("rate after %d s = %d, want 100", second, got)
		}
	}
	got := int64(100)
	for second := 61; second <= 95; second++ {
		got = pace.rate(start.Add(time.Duration(second)*time.Second), 6000)
	}
	if got != 0 {
		t.Errorf("rate after half a minute without work = %d, want 0", got)
	}
}
