package heartbeat

import (
	"strings"
	"testing"

	"shardedjob.dev/api/v1alpha1"
)

func TestRoundTrip(t *testing.T) {
	long := strings.Repeat("ü", 5000)
	want := Beat{
		Ordinal: 3, Run: "0badcafe", Epoch: 7, Slots: 5, Generation: 2, HighestEpoch: 8, State: v1alpha1.SlotFailing,
		Processed: 1 << 40, Failed: 2, Message: long, Problem: &v1alpha1.Problem{Reason: "TableMissing", Message: long, Stalled: true},
	}
	payload, err := Encode(want)
	if err != nil {
		t.Fatal(err)
	}
	if len(payload) >= 8000 {
		t.Errorf("a payload of %d bytes, and PostgreSQL takes less than 8000", len(payload))
	}
	if want.Problem.Message != long {
		t.Error("Encode changed the problem it was given")
	}
	got, err := Decode(payload)
	if err != nil {
		t.Fatal(err)
	}
	if got.Ordinal != 3 || got.Run != want.Run || got.Processed != 1<<40 || got.State != v1alpha1.SlotFailing || !got.Problem.Stalled {
		t.Errorf("came back as %+v", got)
	}
}

func TestDecodeRefuses(t *testing.T) {
	for name, payload := range map[string]string{
		"no JSON":            "hello",
		"a negative ordinal": `{"o":-1,"r":"a"}`,
		"an ordinal too big": `{"o":1000,"r":"a"}`,
		"no run":             `{"o":1}`,
		"a negative count":   `{"o":1,"r":"a","p":-5}`,
		"an epoch too big":   `{"o":1,"r":"a","h":9999999}`,
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Decode(payload); err == nil {
				t.Error("accepted")
			}
		})
	}
}
