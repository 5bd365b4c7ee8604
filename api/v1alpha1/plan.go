package v1alpha1

import (
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
)

// PlanKey is the key of the plan ConfigMap that holds the Plan.
const PlanKey = "plan.json"

// PlanFormatVersion is the version of Plan that this code writes. A worker refuses a newer one.
const PlanFormatVersion = 1

// Limits that the lock keys set: an epoch lock holds 10 bits of n and 19 bits of the epoch.
const (
	// MaxSlots is the greatest number of slots.
	MaxSlots = 1000
	// MaxEpoch is the greatest epoch.
	MaxEpoch = 1<<19 - 1
)

// defaultAdoptAfterSeconds is FenceSpec.AdoptAfterSeconds of a job that does not name it.
const defaultAdoptAfterSeconds = 30

// Plan is the one thing that workers obey. Epoch changes only when the number of slots does; everything else changes
// Generation alone and takes effect at the next batch boundary.
type Plan struct {
	// FormatVersion is PlanFormatVersion.
	FormatVersion int32 `json:"formatVersion"`
	// UID is the ShardedJob's.
	UID types.UID `json:"uid"`
	// Group is the consumer group.
	Group string `json:"group"`
	// Generation of the spec that the plan was made from.
	Generation int64 `json:"generation"`
	// Epoch numbers the partitions, from 1.
	Epoch int64 `json:"epoch"`
	// Slots is n; 0 pauses.
	Slots int32 `json:"slots"`
	// HandoverSeconds is how long sessions of an older epoch may stay before they are ended.
	HandoverSeconds int32 `json:"handoverSeconds"`
	// AdoptAfterSeconds is for how long a slot may be unheld before others work it too.
	AdoptAfterSeconds int32 `json:"adoptAfterSeconds"`
	// Forget asks the workers to drop the progress of the group instead of working.
	Forget bool `json:"forget,omitempty"`
	// Mode of the job.
	Mode Mode `json:"mode"`
	// Table says which rows.
	Table TableSpec `json:"table"`
	// Process says what to do with them.
	Process ProcessSpec `json:"process"`
	// Batch bounds a transaction.
	Batch BatchSpec `json:"batch"`
	// Failure says what happens to failing rows.
	Failure FailureSpec `json:"failure"`
}

// NewPlan makes the plan of a job for the given partition.
func NewPlan(job *ShardedJob, epoch int64, slots int32) Plan {
	return Plan{
		FormatVersion:     PlanFormatVersion,
		UID:               job.UID,
		Group:             job.Group(),
		Generation:        job.Generation,
		Epoch:             epoch,
		Slots:             slots,
		HandoverSeconds:   job.Spec.HandoverSeconds(),
		AdoptAfterSeconds: job.Spec.Fence.AdoptAfterSeconds,
		Forget:            job.Forget(),
		Mode:              job.Spec.Mode,
		Table:             job.Spec.Table,
		Process:           job.Spec.Process,
		Batch:             job.Spec.Batch,
		Failure:           job.Spec.Failure,
	}
}

// Newer says whether p comes after other: a higher epoch, or the same with a higher generation.
func (p Plan) Newer(other Plan) bool {
	if p.Epoch != other.Epoch {
		return p.Epoch > other.Epoch
	}
	return p.Generation > other.Generation
}

// EncodePlan makes the data of a plan ConfigMap.
func EncodePlan(p Plan) (map[string]string, error) {
	raw, err := json.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("encode plan: %w", err)
	}
	return map[string]string{PlanKey: string(raw)}, nil
}

// DecodePlan reads a plan, and refuses one that this code cannot obey. Fields that plans did not have from the start get
// the values that the schema gives to jobs which do not name them.
func DecodePlan(raw []byte) (Plan, error) {
	p := Plan{AdoptAfterSeconds: defaultAdoptAfterSeconds, Table: TableSpec{ShardBy: ShardByAuto}}
	if err := json.Unmarshal(raw, &p); err != nil {
		return Plan{}, fmt.Errorf("decode plan: %w", err)
	}
	switch {
	case p.FormatVersion != PlanFormatVersion:
		return Plan{}, fmt.Errorf("plan has format version %d, this worker knows %d: upgrade the workers", p.FormatVersion, PlanFormatVersion)
	case p.UID == "" || p.Group == "" || p.Process.SQL == nil:
		return Plan{}, fmt.Errorf("plan is incomplete")
	case p.Epoch < 1 || p.Epoch > MaxEpoch:
		return Plan{}, fmt.Errorf("plan has epoch %d, outside 1 to %d", p.Epoch, MaxEpoch)
	case p.Slots < 0 || p.Slots > MaxSlots:
		return Plan{}, fmt.Errorf("plan has %d slots, outside 0 to %d", p.Slots, MaxSlots)
	case p.Batch.Rows < 1 || p.Batch.TimeoutSeconds < 1 || p.HandoverSeconds < 1 || p.AdoptAfterSeconds < 1 || p.Failure.MaxAttempts < 1:
		return Plan{}, fmt.Errorf("plan has a batch, hand-over, adoption or attempt limit below 1")
	}
	return p, nil
}
