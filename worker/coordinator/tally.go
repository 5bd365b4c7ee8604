package coordinator

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"shardedjob.dev/worker/heartbeat"
)

// CountersKey is the key of the report ConfigMap in which a coordinator leaves what its successor needs to go on
// counting. The operator does not read it.
const CountersKey = "counters.json"

// maxRetired bounds how many ended runs are remembered. A beat of one that comes late must not be counted again.
const maxRetired = 4096

// rateWindow is over how long the rate is taken.
const rateWindow = 30 * time.Second

// run is what one start of a worker process has counted so far.
type run struct {
	Name      string `json:"r"`
	Processed int64  `json:"p"`
}

// tally adds up the rows that workers have processed. Each run of a worker process counts from 0; when a new run shows
// up for a seat, the old one's count is kept and its name retired.
type tally struct {
	UID     types.UID     `json:"uid"`
	Base    int64         `json:"base"`
	Runs    map[int32]run `json:"runs"` // by seat
	Retired []string      `json:"retired,omitempty"`
}

// seat is who counts: a worker on its own slot, or, below zero, the same worker on slots that it has adopted.
func seat(b heartbeat.Beat) int32 {
	if b.Slot != b.Ordinal {
		return -1 - b.Ordinal
	}
	return b.Ordinal
}

func newTally(uid types.UID) *tally {
	return &tally{UID: uid, Runs: map[int32]run{}}
}

// decodeTally reads what a predecessor left; anything unusable counts as nothing left.
func decodeTally(uid types.UID, raw string) *tally {
	t := newTally(uid)
	if raw == "" || json.Unmarshal([]byte(raw), t) != nil || t.UID != uid || t.Base < 0 {
		return newTally(uid)
	}
	if t.Runs == nil {
		t.Runs = map[int32]run{}
	}
	return t
}

func (t *tally) encode() (string, error) {
	raw, err := json.Marshal(t)
	if err != nil {
		return "", fmt.Errorf("encode counters: %w", err)
	}
	return string(raw), nil
}

// add takes in how many rows a run has processed in all.
func (t *tally) add(b heartbeat.Beat) {
	at, name, processed := seat(b), b.Run, b.Processed
	if slices.Contains(t.Retired, name) {
		return
	}
	now := t.Runs[at]
	switch {
	case now.Name == name:
		processed = max(processed, now.Processed)
	case now.Name != "":
		t.Base += now.Processed
		t.Retired = append(t.Retired, now.Name)
		if len(t.Retired) > maxRetired {
			t.Retired = t.Retired[1:]
		}
	}
	t.Runs[at] = run{Name: name, Processed: processed}
}

// processed is the sum over all runs.
func (t *tally) processed() int64 {
	sum := t.Base
	for _, r := range t.Runs {
		sum += r.Processed
	}
	return sum
}

// pace is how fast a count grows.
type pace struct {
	samples []sample
}

type sample struct {
	at        time.Time
	processed int64
}

// rate takes in the count as it is now, and returns rows per second over the last half minute, or as long as has been
// watched.
func (p *pace) rate(now time.Time, processed int64) int64 {
	p.samples = append(p.samples, sample{at: now, processed: processed})
	// The newest sample that is at least one window old stays, as the window's start.
	for len(p.samples) > 2 && now.Sub(p.samples[1].at) >= rateWindow {
		p.samples = p.samples[1:]
	}
	first := p.samples[0]
	if seconds := now.Sub(first.at).Seconds(); seconds > 0 {
		return int64(float64(max(0, processed-first.processed))/seconds + 0.5)
	}
	return 0
}
