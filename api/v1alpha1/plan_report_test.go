package v1alpha1

import (
	"encoding/json"
	"strings"
	"testing"
)

func validPlan() Plan {
	return Plan{
		FormatVersion: PlanFormatVersion, UID: "uid", Group: "ns/job", Epoch: 1, Slots: 3, HandoverSeconds: 30, AdoptAfterSeconds: 30,
		Process: ProcessSpec{SQL: &SQLProcess{Statement: "UPDATE t SET x = 1 WHERE id = ANY($1)"}},
		Batch:   BatchSpec{Rows: 10, TimeoutSeconds: 20}, Failure: FailureSpec{MaxAttempts: 5},
	}
}

func TestDecodePlan(t *testing.T) {
	tests := map[string]struct {
		change func(*Plan)
		ok     bool
	}{
		"valid":                    {func(*Plan) {}, true},
		"paused":                   {func(p *Plan) { p.Slots = 0 }, true},
		"greatest epoch and slots": {func(p *Plan) { p.Epoch, p.Slots = MaxEpoch, MaxSlots }, true},
		"a format of the future":   {func(p *Plan) { p.FormatVersion++ }, false},
		"epoch 0":                  {func(p *Plan) { p.Epoch = 0 }, false},
		"an epoch beyond the lock": {func(p *Plan) { p.Epoch = MaxEpoch + 1 }, false},
		"too many slots":           {func(p *Plan) { p.Slots = MaxSlots + 1 }, false},
		"no statement":             {func(p *Plan) { p.Process.SQL = nil }, false},
		"no rows":                  {func(p *Plan) { p.Batch.Rows = 0 }, false},
		"adoption at once":         {func(p *Plan) { p.AdoptAfterSeconds = 0 }, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := validPlan()
			tt.change(&p)
			data, err := EncodePlan(p)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := DecodePlan([]byte(data[PlanKey])); (err == nil) != tt.ok {
				t.Errorf("DecodePlan: %v", err)
			}
		})
	}
}

// TestDecodePlanOfBefore: a plan that was published before a field existed is no other plan for it, so that nothing is
// written anew when the operator is upgraded.
func TestDecodePlanOfBefore(t *testing.T) {
	data, err := EncodePlan(validPlan())
	if err != nil {
		t.Fatal(err)
	}
	old := strings.ReplaceAll(data[PlanKey], `"adoptAfterSeconds":30,`, "")
	if old == data[PlanKey] {
		t.Fatalf("nothing to leave out of %s", old)
	}
	p, err := DecodePlan([]byte(old))
	if err != nil || p.AdoptAfterSeconds != 30 || p.Table.ShardBy != ShardByAuto || p.Forget {
		t.Errorf("DecodePlan = %+v, %v", p, err)
	}
}

// The report comes from pods that users can exec into, so the operator takes nothing in it for granted.
func TestDecodeReportIsUntrusted(t *testing.T) {
	tests := map[string]struct {
		change func(*Report)
		ok     bool
	}{
		"valid":                    {func(*Report) {}, true},
		"more held than there are": {func(r *Report) { r.SlotCounts.Working = 4 }, false},
		"more adopted than left":   {func(r *Report) { r.SlotCounts.Working, r.SlotCounts.Adopted = 2, 2 }, false},
		"negative count":           {func(r *Report) { r.Processed = -1 }, false},
		"an unknown shardBy":       {func(r *Report) { r.By = "Luck" }, false},
		"an epoch out of range":    {func(r *Report) { r.HighestEpoch = MaxEpoch + 1 }, false},
		"a reason that no condition takes": {func(r *Report) {
			r.Problem = &Problem{Reason: "no good\n", Message: "x"}
		}, false},
		"a state that is none": {func(r *Report) { r.SlotStatuses = []SlotStatus{{State: "Dancing"}} }, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r := Report{FormatVersion: ReportFormatVersion, UID: "uid", Epoch: 1, Slots: 3}
			tt.change(&r)
			raw, err := json.Marshal(r)
			if err != nil {
				t.Fatal(err)
			}
			got, _, err := DecodeReport("uid", map[string]string{ReportKey: string(raw)})
			if (err == nil) != tt.ok || (got != nil) != tt.ok {
				t.Errorf("DecodeReport = %v, %v", got, err)
			}
		})
	}
	t.Run("long messages and lists are cut", func(t *testing.T) {
		r := Report{FormatVersion: ReportFormatVersion, UID: "uid", Slots: 100, Problem: &Problem{Reason: "X", Message: strings.Repeat("ü", 2000)}}
		for range 100 {
			r.SlotStatuses = append(r.SlotStatuses, SlotStatus{State: SlotWorking})
		}
		raw, _ := json.Marshal(r)
		got, _, err := DecodeReport("uid", map[string]string{ReportKey: string(raw)})
		if err != nil || len(got.SlotStatuses) != MaxSlotEntries || len(got.Problem.Message) > maxMessageBytes+3 {
			t.Errorf("not cut: %v", err)
		}
	})
	t.Run("complete at no time", func(t *testing.T) {
		got, _, err := DecodeReport("uid", map[string]string{ReportKey: `{"formatVersion":1,"uid":"uid","completeTime":"0001-01-01T00:00:00Z"}`})
		if got != nil || err == nil {
			t.Errorf("got %v, %v", got, err)
		}
	})
	t.Run("another job's report is none", func(t *testing.T) {
		got, notices, err := DecodeReport("uid", map[string]string{
			ReportKey: `{"uid":"other"}`, "worker-1": `{"uid":"other","reason":"AuthFailed"}`,
		})
		if got != nil || len(notices) != 0 || err != nil {
			t.Errorf("got %v, %v, %v", got, notices, err)
		}
	})
	t.Run("notices are by ordinal and odd keys are named", func(t *testing.T) {
		_, notices, err := DecodeReport("uid", map[string]string{
			"worker-7": `{"uid":"uid","reason":"AuthFailed","message":"m","stalled":true}`, "worker-07": "{}", "counters.json": "{}",
		})
		if n := notices[7]; n.Reason != ReasonAuthFailed || !n.Stalled || err == nil || !strings.Contains(err.Error(), "worker-07") {
			t.Errorf("got %v, %v", notices, err)
		}
	})
}
