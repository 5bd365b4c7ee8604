package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ShardedJob runs one function over every row of a PostgreSQL table with n workers at once. Worker k, the pod with
// ordinal k, works the rows with MOD(key, n) = k, and holds slot k's advisory lock while it does. kubectl scale
// re-partitions the table while the work goes on.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=sj,categories=all
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas,selectorpath=.status.selector
// +kubebuilder:printcolumn:name="Table",type=string,JSONPath=`.spec.table.name`
// +kubebuilder:printcolumn:name="Replicas",type=integer,JSONPath=`.spec.replicas`
// +kubebuilder:printcolumn:name="Slots",type=integer,JSONPath=`.status.partition.slots`,description="Slots the table is partitioned into now"
// +kubebuilder:printcolumn:name="Held",type=integer,JSONPath=`.status.slotCounts.working`,description="Slots whose own worker holds their lock"
// +kubebuilder:printcolumn:name="Adopted",type=integer,priority=1,JSONPath=`.status.slotCounts.adopted`,description="Slots that workers of other slots work"
// +kubebuilder:printcolumn:name="Done%",type=integer,JSONPath=`.status.progress.percent`
// +kubebuilder:printcolumn:name="Rows/s",type=integer,JSONPath=`.status.progress.rowsPerSecond`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 52",message="the name of a ShardedJob can have at most 52 characters, because the labels of its pods hold the name and eleven characters more"
// +kubebuilder:validation:XValidation:rule="!self.metadata.name.contains('.')",message="the name of a ShardedJob cannot contain a dot, because it becomes the host name of its pods"
type ShardedJob struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what should run.
	// +required
	Spec ShardedJobSpec `json:"spec"`
	// status is what is going on, as last observed. Only the operator writes it.
	// +optional
	Status ShardedJobStatus `json:"status,omitzero"`
}

// ShardedJobList is a list of ShardedJobs.
//
// +kubebuilder:object:root=true
type ShardedJobList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// items are the ShardedJobs.
	Items []ShardedJob `json:"items"`
}

// Mode says when a job ends.
// +kubebuilder:validation:Enum=Backfill
type Mode string

// ModeBackfill ends with condition Complete once every row in scope is processed.
const ModeBackfill Mode = "Backfill"

// ShardedJobSpec is what should run.
//
// +kubebuilder:validation:XValidation:rule="has(self.consumerGroup) == has(oldSelf.consumerGroup) && (!has(self.consumerGroup) || self.consumerGroup == oldSelf.consumerGroup)",message="consumerGroup cannot be changed, since locks are taken under it; make another ShardedJob"
// +kubebuilder:validation:XValidation:rule="!has(self.fence.handoverSeconds) || self.fence.handoverSeconds > self.batch.timeoutSeconds",message="fence.handoverSeconds must be greater than batch.timeoutSeconds, so that a worker can finish its batch before its session is ended"
type ShardedJobSpec struct {
	// replicas is n: the number of slots the table is partitioned into, and of worker pods. 0 pauses the job. Best left
	// out of manifests that are applied again and again, so that kubectl scale or an autoscaler owns it.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	Replicas *int32 `json:"replicas,omitempty"`

	// mode says when the job ends. Backfill: with condition Complete, once every row in scope is processed. It cannot be
	// changed.
	// +optional
	// +kubebuilder:default=Backfill
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="mode cannot be changed; make another ShardedJob"
	Mode Mode `json:"mode,omitempty"`

	// consumerGroup is the name under which locks are taken and progress is kept in the database, <namespace>/<name> of
	// the job if left out. A job that is deleted and made again goes on where its group was. Two live jobs of one group,
	// in one cluster or two, are a conflict and the newcomer waits. It cannot be changed.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	ConsumerGroup string `json:"consumerGroup,omitempty"`

	// database says how workers reach PostgreSQL.
	// +required
	Database DatabaseSpec `json:"database"`

	// table says which rows are in scope and which of them still need work. It cannot be changed.
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="table cannot be changed, since half of the work may be done; make another ShardedJob"
	Table TableSpec `json:"table"`

	// process says what is done with a batch of rows.
	// +required
	Process ProcessSpec `json:"process"`

	// batch bounds the rows and the time of one transaction.
	// +optional
	// +kubebuilder:default={}
	Batch BatchSpec `json:"batch,omitzero"`

	// failure says what happens to a row whose processing fails.
	// +optional
	// +kubebuilder:default={}
	Failure FailureSpec `json:"failure,omitzero"`

	// fence sets the times of the locks.
	// +optional
	// +kubebuilder:default={}
	Fence FenceSpec `json:"fence,omitzero"`

	// suspend stops the work at the next batch boundary and removes the pods. Setting it to false goes on where the
	// job was.
	// +optional
	// +kubebuilder:default=false
	Suspend bool `json:"suspend,omitempty"`

	// ttlSecondsAfterFinished deletes the ShardedJob this many seconds after its condition Complete became True. Left
	// out: it stays.
	// +optional
	// +kubebuilder:validation:Minimum=0
	TTLSecondsAfterFinished *int32 `json:"ttlSecondsAfterFinished,omitempty"`

	// template is an optional pod template. What it sets is merged over the operator's own: labels, node selectors,
	// volumes, further containers; a container named "worker" is merged over the worker container. containers may be
	// left out.
	// +optional
	Template *corev1.PodTemplateSpec `json:"template,omitempty"`
}

// DatabaseSpec says how workers reach PostgreSQL. Only the pods read the Secret, never the operator; it is read
// again at each connect, so that a rotated password needs no restart.
type DatabaseSpec struct {
	// secretName is a Secret in the job's namespace. It holds either a connection URI under uriKey, or the keys host,
	// port, dbname (or database), user (or username), password and sslmode, whose values are taken literally.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	SecretName string `json:"secretName"`

	// uriKey is the key of the Secret that holds the connection URI (postgres://user:password@host:5432/database).
	// +optional
	// +kubebuilder:default=uri
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	URIKey string `json:"uriKey,omitempty"`

	// caSecretName is a Secret with a CA bundle under ca.crt. With it the server's certificate and host name are
	// verified (sslmode verify-full).
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	CASecretName string `json:"caSecretName,omitempty"`
}

// TableSpec says which rows are in scope and which of them still need work. Names are taken literally: upper case,
// dots and blanks work without quotes.
type TableSpec struct {
	// schema is the table's schema.
	// +optional
	// +kubebuilder:default=public
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Schema string `json:"schema,omitempty"`

	// name is the table's name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`

	// key is one column that is NOT NULL and unique: an integer, a numeric without decimal places, uuid, text, bytea, date
	// or timestamp, or a domain over one of them. Slot k of n is the rows with MOD(key, n) = k, or with MOD(hash(key), n) = k
	// as shardBy says.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Key string `json:"key"`

	// where is an SQL condition: only rows for which it is true are in scope.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Where string `json:"where,omitempty"`

	// pending is an SQL condition that is true while a row still needs work, and that processing makes false, for
	// example "thumb IS NULL". The rows themselves remember what is done, so nothing is created in the database. A
	// partial index on the key with this condition keeps the search for the last rows fast. Without pending, workers
	// remember how far they are in tables of their own, in the schema shardedjob of the same database.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Pending string `json:"pending,omitempty"`

	// shardBy says what of a key picks its slot. Value: the key itself, which must be an integer. Hash: a hash of it, for
	// keys of other types, and for integers with a common step, which would leave slots empty. Auto: Value for integers,
	// else Hash; status.partition.by says which.
	// +optional
	// +kubebuilder:default=Auto
	ShardBy ShardBy `json:"shardBy,omitempty"`
}

// ShardBy says what of a key picks its slot.
// +kubebuilder:validation:Enum=Auto;Value;Hash
type ShardBy string

// The ways to pick a slot.
const (
	// ShardByAuto is ShardByValue for integers, else ShardByHash.
	ShardByAuto ShardBy = "Auto"
	// ShardByValue is MOD(key, n).
	ShardByValue ShardBy = "Value"
	// ShardByHash is MOD(hash(key), n).
	ShardByHash ShardBy = "Hash"
)

// ProcessSpec says what is done with a batch of rows: exactly one way.
type ProcessSpec struct {
	// sql runs a statement in the transaction that selected the rows, so that effects happen exactly once.
	// +required
	SQL *SQLProcess `json:"sql"`
}

// SQLProcess processes a batch with one SQL statement.
type SQLProcess struct {
	// statement is one SQL statement. $1 is the array of the batch's keys, of the key's type, in ascending order, for
	// example "UPDATE images SET thumb = make_thumb(data) WHERE id = ANY($1)". The search path is the table's schema,
	// then the role's own.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=65536
	// +kubebuilder:validation:XValidation:rule="self.matches('[$]1([^0-9]|$)')",message="statement must use $1, the array of keys, for example: UPDATE images SET thumb = make_thumb(data) WHERE id = ANY($1)"
	Statement string `json:"statement"`
}

// BatchSpec bounds one transaction.
type BatchSpec struct {
	// rows is the most rows that one transaction processes.
	// +optional
	// +kubebuilder:default=500
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000
	Rows int32 `json:"rows,omitempty"`

	// timeoutSeconds is the statement timeout of a batch. A batch that takes longer is rolled back and tried again
	// with fewer rows.
	// +optional
	// +kubebuilder:default=20
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`
}

// WhenExhausted says what becomes of a job with rows that failed maxAttempts times.
// +kubebuilder:validation:Enum=Hold
type WhenExhausted string

// HoldExhausted finishes all other rows and then stalls the job, reason RowsFailing.
const HoldExhausted WhenExhausted = "Hold"

// FailureSpec says what happens to a row whose processing fails. Outages of the database are not failures of a row.
type FailureSpec struct {
	// maxAttempts is how often a failing row is tried, with growing pauses, before it is held.
	// +optional
	// +kubebuilder:default=5
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	MaxAttempts int32 `json:"maxAttempts,omitempty"`

	// whenExhausted says what then becomes of the job. Hold: all other rows are finished, then the job is Stalled with
	// reason RowsFailing; it never becomes Complete while such rows are pending.
	// +optional
	// +kubebuilder:default=Hold
	WhenExhausted WhenExhausted `json:"whenExhausted,omitempty"`
}

// FenceSpec sets the times of the locks.
type FenceSpec struct {
	// handoverSeconds is how long workers of an old partition may take to finish their batch and let go of their
	// locks. After that their database sessions are ended. It must be greater than batch.timeoutSeconds; left out, it
	// is batch.timeoutSeconds + 10. Pods get ten seconds more to terminate.
	// +optional
	// +kubebuilder:validation:Minimum=2
	// +kubebuilder:validation:Maximum=7200
	HandoverSeconds *int32 `json:"handoverSeconds,omitempty"`

	// adoptAfterSeconds is for how long a slot may be without a holder before workers of other slots work it too. They
	// hand it back, within one batch, when its own worker returns.
	// +optional
	// +kubebuilder:default=30
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	AdoptAfterSeconds int32 `json:"adoptAfterSeconds,omitempty"`

	// unreachablePods says what to do with a pod that was deleted and does not go, because its node is unreachable.
	// Kubernetes keeps it for ever, since it cannot know whether the pod still runs. Keep: leave it. ForceDelete: remove it
	// once the workers report that its session holds its slot's lock no longer, so that another takes its place. Its
	// slot is adopted meanwhile, either way.
	// +optional
	// +kubebuilder:default=Keep
	UnreachablePods UnreachablePods `json:"unreachablePods,omitempty"`
}

// UnreachablePods says what to do with pods that were deleted and do not go.
// +kubebuilder:validation:Enum=Keep;ForceDelete
type UnreachablePods string

// What to do with pods that were deleted and do not go.
const (
	// KeepUnreachable leaves them to whoever mends the node.
	KeepUnreachable UnreachablePods = "Keep"
	// ForceDeleteUnreachable removes them once the lock shows that their worker is gone.
	ForceDeleteUnreachable UnreachablePods = "ForceDelete"
)

// HandoverSeconds is how long workers of an old partition may take to let go, in seconds: what the user asked for,
// else the batch timeout + 10.
func (s *ShardedJobSpec) HandoverSeconds() int32 {
	if s.Fence.HandoverSeconds != nil {
		return *s.Fence.HandoverSeconds
	}
	return s.Batch.TimeoutSeconds + 10
}

// Group is the consumer group of the job: what the user named, else <namespace>/<name>.
func (j *ShardedJob) Group() string {
	if j.Spec.ConsumerGroup != "" {
		return j.Spec.ConsumerGroup
	}
	return j.Namespace + "/" + j.Name
}

// Forget says that the user wants the progress of the job's group dropped, by annotation, before the job is deleted.
func (j *ShardedJob) Forget() bool { return j.Annotations[AnnotationForget] == "true" }

// WantedSlots is the number of slots the user wants now: replicas, or 0 while the job is suspended.
func (j *ShardedJob) WantedSlots() int32 {
	switch {
	case j.Spec.Suspend:
		return 0
	case j.Spec.Replicas == nil:
		return 1
	default:
		return *j.Spec.Replicas
	}
}
