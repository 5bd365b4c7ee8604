package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MaxWarnings is the most warnings that a report and a status hold.
const MaxWarnings = 8

// MaxSlotEntries is the most slots that a report and a status list one by one. Counts cover all of them.
const MaxSlotEntries = 64

// ShardedJobStatus is what is going on, as last observed.
type ShardedJobStatus struct {
	// observedGeneration is the generation of the spec that this status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// replicas is the number of worker pods there are.
	// +optional
	Replicas int32 `json:"replicas"`

	// readyReplicas is the number of worker pods that are connected to the database and have a plan.
	// +optional
	ReadyReplicas int32 `json:"readyReplicas"`

	// selector selects the worker pods, for autoscalers.
	// +optional
	Selector string `json:"selector,omitempty"`

	// partition is what workers run now.
	// +optional
	Partition *PartitionStatus `json:"partition,omitempty"`

	// repartition is present only while the number of slots changes.
	// +optional
	Repartition *RepartitionStatus `json:"repartition,omitempty"`

	// coordinator is the pod that speaks for all workers.
	// +optional
	Coordinator string `json:"coordinator,omitempty"`

	// progress counts rows.
	// +optional
	Progress *ProgressStatus `json:"progress,omitempty"`

	// slotCounts counts all slots by state.
	// +optional
	SlotCounts *SlotCounts `json:"slotCounts,omitempty"`

	// slots lists at most 64 slots, those that need attention first.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Slots []SlotStatus `json:"slots,omitempty"`

	// warnings are what a person should know though it stops nothing: what the work waits for, or why it is slow.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	Warnings []string `json:"warnings,omitempty"`

	// completionTime is when the work was done. It lies before the job was made if its consumer group had nothing left
	// to do by then.
	// +optional
	CompletionTime *metav1.Time `json:"completionTime,omitempty"`

	// conditions are Ready, Repartitioning, DatabaseReachable, Complete, Suspended and Stalled.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +patchStrategy=merge
	// +patchMergeKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty" patchStrategy:"merge" patchMergeKey:"type"`
}

// PartitionStatus is the partition that workers run.
type PartitionStatus struct {
	// epoch numbers the partitions of this job; it grows by at least one whenever the number of slots changes.
	// +optional
	Epoch int64 `json:"epoch"`
	// slots is the number of slots, n in MOD(key, n).
	// +optional
	Slots int32 `json:"slots"`
	// by says what of a key picks its slot; empty while no worker has looked at the table.
	// +optional
	By ShardBy `json:"by,omitempty"`
}

// RepartitionStep names how far a re-partition is.
// +kubebuilder:validation:Enum=StartingPods;NotEnoughConnections;SwitchingOver;StoppingPods
type RepartitionStep string

// The steps of a re-partition.
const (
	// StepStartingPods waits for new pods; work goes on under the old plan.
	StepStartingPods RepartitionStep = "StartingPods"
	// StepNotEnoughConnections means that the database has too few free connections; work goes on under the old plan.
	StepNotEnoughConnections RepartitionStep = "NotEnoughConnections"
	// StepSwitchingOver waits until every slot of the new plan is held.
	StepSwitchingOver RepartitionStep = "SwitchingOver"
	// StepStoppingPods waits for surplus pods to go.
	StepStoppingPods RepartitionStep = "StoppingPods"
)

// RepartitionStatus is a change of the number of slots that is under way.
type RepartitionStatus struct {
	// from is the number of slots before.
	// +optional
	From int32 `json:"from"`
	// to is the number of slots wanted.
	// +optional
	To int32 `json:"to"`
	// step is how far it is.
	// +optional
	Step RepartitionStep `json:"step,omitempty"`
	// startTime is when it began.
	// +optional
	StartTime metav1.Time `json:"startTime,omitzero"`
	// message says what it waits for.
	// +optional
	Message string `json:"message,omitempty"`
}

// ProgressStatus counts rows. Figures are as of the last report of the workers.
type ProgressStatus struct {
	// processed is the number of rows whose processing was committed since the job was made.
	// +optional
	Processed int64 `json:"processed"`
	// failed is the number of rows that are pending and failed each time they were tried.
	// +optional
	Failed int64 `json:"failed"`
	// estimatedTotal is the number of rows processed and still pending.
	// +optional
	EstimatedTotal *int64 `json:"estimatedTotal,omitempty"`
	// percent is processed of estimatedTotal; it is 100 only once the job is Complete.
	// +optional
	Percent *int32 `json:"percent,omitempty"`
	// rowsPerSecond is the rate of all workers together over the last half minute.
	// +optional
	RowsPerSecond int64 `json:"rowsPerSecond"`
	// estimatedCompletionTime is when the job is done at this rate.
	// +optional
	EstimatedCompletionTime *metav1.Time `json:"estimatedCompletionTime,omitempty"`
}

// SlotState says what is going on in a slot.
// +kubebuilder:validation:Enum=Working;Adopted;Drained;Waiting;Unheld;Failing
type SlotState string

// The states of a slot.
const (
	// SlotWorking: its lock is held and rows are being processed.
	SlotWorking SlotState = "Working"
	// SlotAdopted: its own worker is missing, and a worker of another slot works it, alone or in turn with others.
	SlotAdopted SlotState = "Adopted"
	// SlotDrained: its lock is held and no row of it is pending.
	SlotDrained SlotState = "Drained"
	// SlotFailing: its lock is held, and all rows still pending in it have failed every attempt.
	SlotFailing SlotState = "Failing"
	// SlotWaiting: a worker is there but does not hold the lock yet; the message says what it waits for.
	SlotWaiting SlotState = "Waiting"
	// SlotUnheld: no worker is there.
	SlotUnheld SlotState = "Unheld"
)

// SlotCounts counts all slots by whether they are worked.
type SlotCounts struct {
	// working counts slots whose own worker holds their lock under the plan of the partition.
	// +optional
	Working int32 `json:"working"`
	// adopted counts slots that are worked by workers of other slots.
	// +optional
	Adopted int32 `json:"adopted"`
	// waiting counts slots whose worker waits for the lock.
	// +optional
	Waiting int32 `json:"waiting"`
	// unheld counts slots without a worker.
	// +optional
	Unheld int32 `json:"unheld"`
}

// SlotStatus is one slot.
type SlotStatus struct {
	// ordinal is the slot's number, 0 to n - 1.
	// +required
	Ordinal int32 `json:"ordinal"`
	// pod is the slot's own pod.
	// +optional
	Pod string `json:"pod,omitempty"`
	// holder is who holds the slot's lock: a pod, or what is known of a foreign session.
	// +optional
	Holder string `json:"holder,omitempty"`
	// holderPID is the process ID of the holder's session on the database server, as pg_terminate_backend takes it.
	// +optional
	HolderPID int32 `json:"holderPID,omitempty"`
	// state says what is going on.
	// +optional
	State SlotState `json:"state,omitempty"`
	// processed counts the rows that the worker has processed since it started.
	// +optional
	Processed int64 `json:"processed"`
	// failed counts the rows of the slot that failed every attempt.
	// +optional
	Failed int64 `json:"failed"`
	// message says what the slot waits for, or what failed.
	// +optional
	Message string `json:"message,omitempty"`
}
