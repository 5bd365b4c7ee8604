package v1alpha1

// Condition types of a ShardedJob.
const (
	// ConditionReady is True when the generation of the spec that it names is in force: every slot of the wanted
	// partition is worked by its own worker (Running), all of them are let go (Paused), there is nothing left to do
	// (Complete), or progress was dropped as asked (Forgotten).
	ConditionReady = "Ready"
	// ConditionRepartitioning is True while the number of slots changes.
	ConditionRepartitioning = "Repartitioning"
	// ConditionDatabaseReachable is True when the workers can work on the database.
	ConditionDatabaseReachable = "DatabaseReachable"
	// ConditionComplete is True once every row in scope was processed.
	ConditionComplete = "Complete"
	// ConditionSuspended is True while spec.suspend holds the job back.
	ConditionSuspended = "Suspended"
	// ConditionStalled is True only when a person must act; the message says what to do.
	ConditionStalled = "Stalled"
)

// Reasons of condition Ready.
const (
	// ReasonRunning: every slot is held by its own worker, which works under the generation named.
	ReasonRunning = "Running"
	// ReasonPaused: replicas is 0 or the job is suspended, and every pod is gone.
	ReasonPaused = "Paused"
	// ReasonComplete: every row in scope was processed.
	ReasonComplete = "Complete"
	// ReasonStarting: the job is new and not every slot is held yet.
	ReasonStarting = "Starting"
	// ReasonPausing: work is being let go; pods are still there.
	ReasonPausing = "Pausing"
	// ReasonRepartitioning: the number of slots changes; condition Repartitioning says how far it is.
	ReasonRepartitioning = "Repartitioning"
	// ReasonUpdating: workers do not all run the newest generation yet.
	ReasonUpdating = "Updating"
	// ReasonSlotsUnheld: a slot of the partition is not held by its own worker; others may have adopted it.
	ReasonSlotsUnheld = "SlotsUnheld"
	// ReasonPodsMissing: pods that should exist do not; the message quotes why.
	ReasonPodsMissing = "PodsMissing"
	// ReasonWaitingForPredecessor: leftovers of a deleted job of the same name are still there.
	ReasonWaitingForPredecessor = "WaitingForPredecessor"
	// ReasonForgetting: the progress of the group is being dropped, as the annotation asks.
	ReasonForgetting = "Forgetting"
	// ReasonForgotten: it has been dropped and no worker runs; the job waits to be deleted.
	ReasonForgotten = "Forgotten"
	// ReasonStalled: a person must act; condition Stalled says how.
	ReasonStalled = "Stalled"
)

// Reasons of the other conditions while there is nothing to report.
const (
	// ReasonSteady: the number of slots does not change.
	ReasonSteady = "Steady"
	// ReasonReachable: the workers can work on the database.
	ReasonReachable = "Reachable"
	// ReasonNotObserved: it could not be observed (yet).
	ReasonNotObserved = "NotObserved"
	// ReasonInProgress: not every row is processed yet.
	ReasonInProgress = "InProgress"
	// ReasonNotSuspended: spec.suspend is false.
	ReasonNotSuspended = "NotSuspended"
	// ReasonSuspended: spec.suspend is true.
	ReasonSuspended = "Suspended"
	// ReasonProceeding: nobody has to act.
	ReasonProceeding = "Proceeding"
)

// Reasons that workers report. Each is a sentence in a condition's message; whether a person must act is
// Problem.Stalled.
const (
	// ReasonDatabaseUnreachable: the database cannot be reached; workers keep trying.
	ReasonDatabaseUnreachable = "DatabaseUnreachable"
	// ReasonTooManyConnections: the database refuses further connections; workers keep trying.
	ReasonTooManyConnections = "TooManyConnections"
	// ReasonAuthFailed: the server refuses the user or the password.
	ReasonAuthFailed = "AuthFailed"
	// ReasonDatabaseMissing: the server has no database of that name.
	ReasonDatabaseMissing = "DatabaseMissing"
	// ReasonInvalidSecret: the Secret, or a key in it, is missing or malformed.
	ReasonInvalidSecret = "InvalidSecret"
	// ReasonNotPrimary: the server is a standby or read-only.
	ReasonNotPrimary = "NotPrimary"
	// ReasonTransactionPooling: a pooler moves the session between backends, so that locks cannot be held.
	ReasonTransactionPooling = "TransactionPooling"
	// ReasonTableMissing: the table, or another one that the SQL names, does not exist.
	ReasonTableMissing = "TableMissing"
	// ReasonTableChanged: the progress of the group belongs to a table that was since replaced or truncated.
	ReasonTableChanged = "TableChanged"
	// ReasonScopeChanged: the progress of the group was made with another key or where.
	ReasonScopeChanged = "ScopeChanged"
	// ReasonColumnMissing: the key, or another column that the SQL names, does not exist.
	ReasonColumnMissing = "ColumnMissing"
	// ReasonNotATable: the relation is a view, a foreign table or something else that is not a table.
	ReasonNotATable = "NotATable"
	// ReasonUnsuitableKey: the key is nullable, not unique, or of a type that cannot be partitioned.
	ReasonUnsuitableKey = "UnsuitableKey"
	// ReasonMissingPrivileges: the role lacks a privilege.
	ReasonMissingPrivileges = "MissingPrivileges"
	// ReasonRowSecurity: row security applies to the role, so that rows may be hidden from it.
	ReasonRowSecurity = "RowSecurity"
	// ReasonInvalidSQL: where, pending or the statement cannot be prepared.
	ReasonInvalidSQL = "InvalidSQL"
	// ReasonConflict: another job works the same rows or uses the same consumer group.
	ReasonConflict = "Conflict"
	// ReasonRowsFailing: all rows still pending have failed every attempt.
	ReasonRowsFailing = "RowsFailing"
	// ReasonForeignLock: a session that is not a worker holds a lock that a worker needs.
	ReasonForeignLock = "ForeignLock"
	// ReasonLocksLost: a session's locks were gone before it could commit, as when the statement unlocks them itself.
	ReasonLocksLost = "LocksLost"
	// ReasonEpochExhausted: the epoch cannot grow further.
	ReasonEpochExhausted = "EpochExhausted"
)

// Reasons of condition Stalled that the operator finds by itself.
const (
	// ReasonNameTaken: an object that does not belong to the job has the name of one that it needs.
	ReasonNameTaken = "NameTaken"
	// ReasonInvalidTemplate: the API server refuses the StatefulSet that the template makes.
	ReasonInvalidTemplate = "InvalidTemplate"
	// ReasonForbidden: the operator lacks a permission.
	ReasonForbidden = "Forbidden"
)

// Reasons of condition Repartitioning are the RepartitionSteps.

// Reasons of events.
const (
	// EventRepartitionStarted: the number of slots begins to change.
	EventRepartitionStarted = "RepartitionStarted"
	// EventRepartitionFinished: every slot of the new partition is held, by its own worker or an adopter.
	EventRepartitionFinished = "RepartitionFinished"
	// EventPodForceDeleted: a pod that its node did not stop was removed.
	EventPodForceDeleted = "PodForceDeleted"
	// EventPodReplaced: a pod that stood in the way of others was deleted.
	EventPodReplaced = "PodReplaced"
)
