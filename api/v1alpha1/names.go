package v1alpha1

import "fmt"

// Labels and annotations.
const (
	// LabelJob carries the job's name on everything that belongs to it.
	LabelJob = "shardedjob.dev/job"
	// AnnotationUpgradeWorkers asks the operator, by a new value, to move the worker pods to its own image.
	AnnotationUpgradeWorkers = "shardedjob.dev/upgrade-workers"
	// AnnotationForget, if "true", asks for the progress that the job's group has in the database to be dropped. The job then
	// does nothing else and waits to be deleted.
	AnnotationForget = "shardedjob.dev/forget"
)

// WorkerContainer is the name of the worker's container in its pod.
const WorkerContainer = "worker"

// Where the worker finds things in its pod.
const (
	// PlanMountPath holds the plan ConfigMap, an optional volume.
	PlanMountPath = "/etc/shardedjob/plan"
	// DatabaseMountPath holds the Secret with the credentials, an optional volume.
	DatabaseMountPath = "/etc/shardedjob/database"
	// CAMountPath holds the Secret with the CA bundle, an optional volume.
	CAMountPath = "/etc/shardedjob/ca"
)

// Environment variables of the worker container.
const (
	// EnvPodName is the pod's name, whose last part is the ordinal.
	EnvPodName = "POD_NAME"
	// EnvPodUID is the pod's UID.
	EnvPodUID = "POD_UID"
	// EnvPodNamespace is the pod's namespace.
	EnvPodNamespace = "POD_NAMESPACE"
	// EnvJobName is the ShardedJob's name.
	EnvJobName = "JOB_NAME"
	// EnvJobUID is the ShardedJob's UID; a plan with another UID is not for this pod.
	EnvJobUID = "JOB_UID"
	// EnvURIKey is the key of the Secret that holds the connection URI.
	EnvURIKey = "DATABASE_URI_KEY"
)

// WorkerPort is where a worker serves /healthz, /readyz, /statusz and /metrics.
const WorkerPort = 8080

// PlanName is the name of the ConfigMap that holds the job's plan.
func PlanName(job string) string { return job + "-plan" }

// ReportName is the name of the ConfigMap that holds the workers' report.
func ReportName(job string) string { return job + "-report" }

// WorkerName is the name of the ServiceAccount, Role and RoleBinding of the job's workers.
func WorkerName(job string) string { return job + "-worker" }

// PodName is the name of the pod with the given ordinal.
func PodName(job string, ordinal int32) string { return fmt.Sprintf("%s-%d", job, ordinal) }
