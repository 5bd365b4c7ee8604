// Package heartbeat is how workers tell their coordinator what they do: a NOTIFY on a channel of the consumer group, at
// most one a second and worker, and only at batch boundaries. It needs no table and costs the sender one short
// statement; when nobody listens, it is gone.
package heartbeat

import (
	"encoding/json"
	"fmt"
	"strings"

	"shardedjob.dev/api/v1alpha1"
)

// maxText bounds a message, so that a heartbeat stays far below the 8,000 bytes that PostgreSQL allows a NOTIFY.
const maxText = 600

// Beat is what one worker says of itself.
type Beat struct {
	// Ordinal of the worker's pod.
	Ordinal int32 `json:"o"`
	// Slot that the beat speaks of: the worker's own, or one that it has adopted.
	Slot int32 `json:"k"`
	// Run names one start of a worker process, and in it either the work on the own slot or that on adopted ones. Counts
	// begin at 0 with each.
	Run string `json:"r"`
	// Epoch, Slots and Generation of the plan that the worker follows.
	Epoch      int64 `json:"e"`
	Slots      int32 `json:"n"`
	Generation int64 `json:"g"`
	// HighestEpoch that the worker has ever seen.
	HighestEpoch int64 `json:"h"`
	// State of the worker's slot.
	State v1alpha1.SlotState `json:"s"`
	// Processed counts rows committed by this run.
	Processed int64 `json:"p"`
	// Failed counts the rows of the slot that failed every attempt.
	Failed int64 `json:"f"`
	// Warning is what a person should know though it stops nothing.
	Warning string `json:"w,omitempty"`
	// Message says what is waited for, or what failed.
	Message string `json:"m,omitempty"`
	// Problem is what keeps the worker from working.
	Problem *v1alpha1.Problem `json:"x,omitempty"`
}

// Channel is the name of the group's notification channel.
func Channel(groupHash uint64) string { return fmt.Sprintf("sj_%016x", groupHash) }

// Encode makes the payload of a NOTIFY.
func Encode(b Beat) (string, error) {
	b.Message, b.Warning = clip(b.Message), clip(b.Warning)
	if b.Problem != nil {
		p := *b.Problem
		p.Message = clip(p.Message)
		b.Problem = &p
	}
	raw, err := json.Marshal(b)
	if err != nil {
		return "", fmt.Errorf("encode heartbeat: %w", err)
	}
	return string(raw), nil
}

// Decode reads a payload. Anyone on the database can send one, so it is checked like any input.
func Decode(payload string) (Beat, error) {
	var b Beat
	if err := json.Unmarshal([]byte(payload), &b); err != nil {
		return Beat{}, fmt.Errorf("decode heartbeat: not of our form")
	}
	if b.Ordinal < 0 || b.Ordinal >= v1alpha1.MaxSlots || b.Slot < 0 || b.Slot >= v1alpha1.MaxSlots || b.Run == "" || len(b.Run) > 16 || b.Processed < 0 || b.Failed < 0 ||
		b.Epoch < 0 || b.Epoch > v1alpha1.MaxEpoch || b.HighestEpoch < 0 || b.HighestEpoch > v1alpha1.MaxEpoch {
		return Beat{}, fmt.Errorf("decode heartbeat: a figure is out of range")
	}
	return b, nil
}

func clip(s string) string {
	if len(s) <= maxText {
		return s
	}
	return strings.ToValidUTF8(s[:maxText], "") + "…"
}
