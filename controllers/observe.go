package controllers

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"shardedjob.dev/api/v1alpha1"
)

// world holds the objects that an Observation was made from, for act to write on top of.
type world struct {
	job *v1alpha1.ShardedJob
	// set and plan are ours, or nil.
	set  *appsv1.StatefulSet
	plan *corev1.ConfigMap
	// children are those of workerChildren to apply, each with UID and version of the live one if there is one.
	children []client.Object
}

// observe reads everything that the plan and the status follow from.
func (r *Reconciler) observe(ctx context.Context, job *v1alpha1.ShardedJob) (Observation, world, error) {
	o := Observation{Now: r.Clock.Now(), Status: *job.Status.DeepCopy(), Job: viewJob(job)}
	w := world{job: job}
	if o.Job.Deleting {
		return o, w, nil
	}
	for _, read := range []func(context.Context, *Observation, *world) error{r.observeSet, r.observePlan, r.observeChildren, r.observePods} {
		if err := read(ctx, &o, &w); err != nil {
			return o, w, err
		}
	}
	if o.missing() > 0 {
		refusal, err := r.observePodRefusal(ctx, o, w.set)
		if err != nil {
			return o, w, err
		}
		o.PodRefusal = refusal
	}
	return o, w, nil
}

func viewJob(job *v1alpha1.ShardedJob) JobView {
	view := JobView{
		Name:        job.Name,
		UID:         job.UID,
		Created:     job.CreationTimestamp.Time,
		Generation:  job.Generation,
		Deleting:    job.DeletionTimestamp != nil,
		Suspended:   job.Spec.Suspend,
		Group:       job.Group(),
		Pending:     job.Spec.Table.Pending != "",
		Forget:      job.Forget(),
		ForceDelete: job.Spec.Fence.UnreachablePods == v1alpha1.ForceDeleteUnreachable,
		Secret:      job.Spec.Database.SecretName,
		Wanted:      job.WantedSlots(),
	}
	if view.Forget {
		view.Wanted = 1
	}
	if seconds := job.Spec.TTLSecondsAfterFinished; seconds != nil {
		view.TTL = ptr.To(time.Duration(*seconds) * time.Second)
	}
	return view
}

// owned reads the job's object of the given name into obj, and says whether it is there and ours. One that is not is
// noted as foreign or as a predecessor. The cache holds labeled objects only; so before anything is taken for missing,
// and made, the API server itself is asked.
func (r *Reconciler) owned(ctx context.Context, o *Observation, job *v1alpha1.ShardedJob, kind, name string, obj client.Object) (bool, error) {
	key := client.ObjectKey{Namespace: job.Namespace, Name: name}
	err := r.Client.Get(ctx, key, obj)
	if apierrors.IsNotFound(err) {
		err = r.APIReader.Get(ctx, key, obj)
	}
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("read %s %s: %w", kind, name, err)
	}
	owner := metav1.GetControllerOf(obj)
	switch {
	case owner == nil, owner.UID != job.UID && (owner.Kind != jobKind || owner.Name != job.Name):
		o.Foreign = append(o.Foreign, kind+" "+name)
		return false, nil
	case owner.UID != job.UID, obj.GetDeletionTimestamp() != nil:
		o.Predecessors = append(o.Predecessors, kind+" "+name)
		return false, nil
	}
	return true, nil
}

func (r *Reconciler) observeSet(ctx context.Context, o *Observation, w *world) error {
	var set appsv1.StatefulSet
	ok, err := r.owned(ctx, o, w.job, "StatefulSet", w.job.Name, &set)
	if err != nil || !ok {
		return err
	}
	w.set = &set
	o.Set = SetView{
		Exists:   true,
		Replicas: ptr.Deref(set.Spec.Replicas, 1),
		Settled:  set.Status.ObservedGeneration == set.Generation,
	}
	desired, err := StatefulSet(w.job, &set, r.WorkerImage, o.Set.Replicas)
	if err != nil {
		o.Refusal = &Refusal{Reason: v1alpha1.ReasonInvalidTemplate, Message: err.Error()}
	} else {
		o.Set.Drifted = setDrifted(desired, &set)
	}
	return nil
}

func (r *Reconciler) observePlan(ctx context.Context, o *Observation, w *world) error {
	var configMap corev1.ConfigMap
	ok, err := r.owned(ctx, o, w.job, "ConfigMap", v1alpha1.PlanName(w.job.Name), &configMap)
	if err != nil || !ok {
		return err
	}
	w.plan = &configMap
	plan, err := v1alpha1.DecodePlan([]byte(configMap.Data[v1alpha1.PlanKey]))
	if err != nil {
		return nil //nolint:nilerr // somebody spoiled it: it counts as none, and is published anew under the next epoch
	}
	o.Plan = &plan
	o.Published = configMap.CreationTimestamp.Time
	if at, err := time.Parse(time.RFC3339, configMap.Annotations[annotationPublished]); err == nil {
		o.Published = at
	}
	desired := v1alpha1.NewPlan(w.job, plan.Epoch, plan.Slots)
	desired.Generation = plan.Generation
	o.PlanStale = !equality.Semantic.DeepEqual(desired, plan) || metaDrifted(&corev1.ConfigMap{ObjectMeta: childMeta(w.job, configMap.Name)}, &configMap)
	return nil
}

func (r *Reconciler) observeChildren(ctx context.Context, o *Observation, w *world) error {
	for _, desired := range workerChildren(w.job) {
		live := desired.DeepCopyObject().(client.Object)
		kind := desired.GetObjectKind().GroupVersionKind().Kind
		ok, err := r.owned(ctx, o, w.job, kind, desired.GetName(), live)
		if err != nil {
			return err
		}
		if ok {
			desired.SetUID(live.GetUID())
			desired.SetResourceVersion(live.GetResourceVersion())
		}
		if !ok || childDrifted(desired, live) {
			o.ChildrenDrifted = true
			w.children = append(w.children, desired)
		}
		if report, isReport := live.(*corev1.ConfigMap); ok && isReport {
			readReport(o, report.Data)
		}
	}
	return nil
}

func readReport(o *Observation, data map[string]string) {
	report, notices, err := v1alpha1.DecodeReport(o.Job.UID, data)
	o.Report, o.Notices = report, notices
	if err != nil {
		o.ReportError = err.Error()
	}
}

func (r *Reconciler) observePods(ctx context.Context, o *Observation, w *world) error {
	var pods corev1.PodList
	if err := r.Client.List(ctx, &pods, client.InNamespace(w.job.Namespace), client.MatchingLabels{v1alpha1.LabelJob: w.job.Name}); err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	var revision string
	if o.Set.Settled {
		revision = w.set.Status.UpdateRevision
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		ordinal, ok := ordinalOf(w.job.Name, pod.Name)
		if !ok {
			continue
		}
		view := viewPod(pod, ordinal, revision)
		switch owner := metav1.GetControllerOf(pod); {
		case jobUID(pod) == string(w.job.UID):
		case owner != nil && owner.Kind == "StatefulSet" && owner.Name == w.job.Name && (w.set == nil || owner.UID != w.set.UID):
			left := "Pod " + pod.Name
			if o.overdue(view) {
				left += " (" + view.overdueWords() + ")"
			}
			o.Predecessors = append(o.Predecessors, left)
			continue
		case owner == nil && w.set == nil:
			o.Foreign = append(o.Foreign, "Pod "+pod.Name)
			continue
		}
		o.Pods = append(o.Pods, view)
	}
	slices.SortFunc(o.Pods, func(a, b PodView) int { return cmp.Compare(a.Ordinal, b.Ordinal) })
	slices.Sort(o.Predecessors)
	return nil
}
