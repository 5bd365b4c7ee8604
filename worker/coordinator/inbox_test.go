package coordinator

import (
	"slices"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"shardedjob.dev/worker/heartbeat"
)

// While the API server is away nobody takes the beats, so they must not pile up.
func TestInboxKeepsTheNewestBeatOfEachRun(t *testing.T) {
	in := newInbox()
	send := func(ordinal int32, run string, processed int64) {
		t.Helper()
		payload, err := heartbeat.Encode(heartbeat.Beat{Ordinal: ordinal, Slot: ordinal, Run: run, Processed: processed})
		if err != nil {
			t.Fatal(err)
		}
		in.receive(&pgconn.Notification{Payload: payload})
	}
	taken := func() (all []heartbeat.Beat) {
		for _, b := range in.take() {
			all = append(all, heartbeat.Beat{Ordinal: b.Ordinal, Run: b.Run, Processed: b.Processed})
		}
		return all
	}
	for i := range int64(1000) {
		send(0, "a", i)
		send(1, "b", 2*i)
	}
	send(0, "c", 5)
	want := []heartbeat.Beat{{Run: "a", Processed: 999}, {Ordinal: 1, Run: "b", Processed: 1998}, {Run: "c", Processed: 5}}
	if got := taken(); !slices.Equal(got, want) {
		t.Errorf("taken: %v, want %v", got, want)
	}
	send(0, "c", 6)
	if got, want := taken(), []heartbeat.Beat{{Run: "c", Processed: 6}}; !slices.Equal(got, want) {
		t.Errorf("taken the second time: %v, want %v", got, want)
	}
}
