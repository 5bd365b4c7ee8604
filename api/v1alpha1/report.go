package v1alpha1

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ReportKey is the key of the report ConfigMap that the coordinator writes.
const ReportKey = "report.json"

// NoticeKeyPrefix starts the keys that single workers write while they cannot use the database:
// NoticeKeyPrefix + ordinal.
const NoticeKeyPrefix = "worker-"

// ReportFormatVersion is the version of Report that this code writes and reads.
const ReportFormatVersion = 1

// maxReportBytes bounds what the operator reads: 64 slot entries with long messages stay well below.
const maxReportBytes = 256 << 10

// maxMessageBytes bounds each message of a report, as conditions do (32 KiB) with room to spare.
const maxMessageBytes = 1 << 10

// Report is what the workers' coordinator says of all workers. It is written only when something in it has changed.
type Report struct {
	// FormatVersion is ReportFormatVersion.
	FormatVersion int32 `json:"formatVersion"`
	// UID is the ShardedJob's, from the plan.
	UID types.UID `json:"uid"`
	// Coordinator is the pod that wrote it.
	Coordinator string `json:"coordinator"`
	// Epoch and Slots are the coordinator's plan; slot counts and slots speak of it.
	Epoch int64 `json:"epoch"`
	Slots int32 `json:"slots"`
	// Generation is the lowest that a holder of a slot runs; 0 while it is not known of all.
	Generation int64 `json:"generation"`
	// By says what of a key picks its slot; empty while not known.
	By ShardBy `json:"by,omitempty"`
	// HighestEpoch is the highest seen in the database's locks and tables or any plan.
	HighestEpoch int64 `json:"highestEpoch"`
	// Processed counts rows committed since the job was made or, with cursors, since the group's progress began.
	Processed int64 `json:"processed"`
	// Failed counts rows that failed every attempt.
	Failed int64 `json:"failed"`
	// Remaining estimates the rows still pending; nil while not known.
	Remaining *int64 `json:"remaining,omitempty"`
	// RowsPerSecond of all workers over the last half minute.
	RowsPerSecond int64 `json:"rowsPerSecond"`
	// SlotCounts cover all slots.
	SlotCounts SlotCounts `json:"slotCounts"`
	// SlotStatuses are at most MaxSlotEntries, exceptions first.
	SlotStatuses []SlotStatus `json:"slotStatuses,omitempty"`
	// CompleteTime is set once every row in scope was processed: a fresh check found nothing pending, or every cursor is at
	// the horizon. With cursors it may lie before the job was made.
	CompleteTime *metav1.Time `json:"completeTime,omitempty"`
	// Forgotten says that the group's progress was dropped, as Plan.Forget asks.
	Forgotten bool `json:"forgotten,omitempty"`
	// Warnings are sentences about what stops nothing, at most MaxWarnings.
	Warnings []string `json:"warnings,omitempty"`
	// Problem is the worst that a worker has met, if any.
	Problem *Problem `json:"problem,omitempty"`
	// Connections is the room left on the database server; nil while not known.
	Connections *Connections `json:"connections,omitempty"`
}

// Problem is something that keeps a worker from working.
type Problem struct {
	// Reason is one of the Reason constants.
	Reason string `json:"reason"`
	// Message is one sentence for a person; it never holds a password or the content of a row.
	Message string `json:"message"`
	// Stalled says that a person must act; else the worker keeps trying and expects it to pass.
	Stalled bool `json:"stalled,omitempty"`
}

// Connections is the room on the database server for the workers' role.
type Connections struct {
	// Limit is the least of max_connections less the reserved ones, the database's and the role's limit.
	Limit int32 `json:"limit"`
	// Free is how many of them are not in use.
	Free int32 `json:"free"`
}

// Notice is what one worker says of itself while it cannot use the database, and so cannot reach the coordinator.
type Notice struct {
	// Pod is the worker's pod.
	Pod string `json:"pod"`
	// UID is the ShardedJob's.
	UID types.UID `json:"uid"`
	Problem
}

// NoticeKey is the key of the report ConfigMap under which the worker with this ordinal writes its Notice.
func NoticeKey(ordinal int32) string { return fmt.Sprintf("%s%d", NoticeKeyPrefix, ordinal) }

// DecodeReport reads the data of a report ConfigMap as untrusted input: what does not belong to the job, is malformed
// or beyond its bounds is left out with an error that says so. The report is nil when there is none. Notices are by
// ordinal.
func DecodeReport(uid types.UID, data map[string]string) (*Report, map[int32]Notice, error) {
	var firstErr error
	note := func(err error) {
		if firstErr == nil {
			firstErr = err
		}
	}
	notices := map[int32]Notice{}
	for key, raw := range data {
		suffix, ok := strings.CutPrefix(key, NoticeKeyPrefix)
		if !ok {
			continue
		}
		var ordinal int32
		if _, err := fmt.Sscanf(suffix, "%d", &ordinal); err != nil || NoticeKey(ordinal) != key || ordinal < 0 || ordinal >= MaxSlots {
			note(fmt.Errorf("report has a key %q that no worker writes", key))
			continue
		}
		var n Notice
		if err := json.Unmarshal([]byte(raw), &n); err != nil {
			note(fmt.Errorf("report key %q is malformed", key))
			continue
		}
		if n.UID != uid {
			continue
		}
		if !reasonPattern.MatchString(n.Reason) {
			note(fmt.Errorf("report key %q has no usable reason", key))
			continue
		}
		n.Message = clip(n.Message)
		notices[ordinal] = n
	}
	report, err := decodeReport(uid, data[ReportKey])
	if err != nil {
		note(err)
	}
	return report, notices, firstErr
}

func decodeReport(uid types.UID, raw string) (*Report, error) {
	if raw == "" {
		return nil, nil
	}
	if len(raw) > maxReportBytes {
		return nil, fmt.Errorf("report has %d bytes, more than %d", len(raw), maxReportBytes)
	}
	var r Report
	if err := json.Unmarshal([]byte(raw), &r); err != nil {
		return nil, fmt.Errorf("report is malformed")
	}
	if r.UID != uid {
		return nil, nil
	}
	switch c := r.SlotCounts; {
	case r.FormatVersion != ReportFormatVersion:
		return nil, fmt.Errorf("report has format version %d, the operator knows %d", r.FormatVersion, ReportFormatVersion)
	case r.Epoch < 0 || r.Epoch > MaxEpoch || r.HighestEpoch < 0 || r.HighestEpoch > MaxEpoch,
		r.Slots < 0 || r.Slots > MaxSlots,
		c.Working < 0 || c.Adopted < 0 || c.Waiting < 0 || c.Unheld < 0 || c.Working > r.Slots || c.Adopted > r.Slots-c.Working,
		r.Processed < 0 || r.Failed < 0 || r.RowsPerSecond < 0,
		r.Remaining != nil && *r.Remaining < 0,
		r.CompleteTime != nil && r.CompleteTime.IsZero():
		return nil, fmt.Errorf("report has a figure out of range")
	}
	switch r.By {
	case "", ShardByValue, ShardByHash:
	default:
		return nil, fmt.Errorf("report has an unknown way to pick slots")
	}
	r.Warnings = r.Warnings[:min(len(r.Warnings), MaxWarnings)]
	for i := range r.Warnings {
		r.Warnings[i] = clip(r.Warnings[i])
	}
	if len(r.SlotStatuses) > MaxSlotEntries {
		r.SlotStatuses = r.SlotStatuses[:MaxSlotEntries]
	}
	for i := range r.SlotStatuses {
		s := &r.SlotStatuses[i]
		s.Message, s.Pod, s.Holder, s.HolderPID = clip(s.Message), clip(s.Pod), clip(s.Holder), max(s.HolderPID, 0)
		switch s.State {
		case SlotWorking, SlotAdopted, SlotDrained, SlotFailing, SlotWaiting, SlotUnheld:
		default:
			return nil, fmt.Errorf("report has a slot in an unknown state")
		}
	}
	if r.Problem != nil {
		if !reasonPattern.MatchString(r.Problem.Reason) {
			return nil, fmt.Errorf("report has a problem without a usable reason")
		}
		r.Problem.Message = clip(r.Problem.Message)
	}
	r.Coordinator = clip(r.Coordinator)
	return &r, nil
}

// reasonPattern is what the API server demands of a condition's reason.
var reasonPattern = regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9_,:]{0,100}[A-Za-z0-9_])?$`)

// clip cuts a message at a rune boundary.
func clip(s string) string {
	if len(s) <= maxMessageBytes {
		return strings.ToValidUTF8(s, "?")
	}
	return strings.ToValidUTF8(s[:maxMessageBytes-len("…")], "") + "…"
}
