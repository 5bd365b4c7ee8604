package controllers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"shardedjob.dev/api/v1alpha1"
)

// +kubebuilder:rbac:groups=shardedjob.dev,resources=shardedjobs,verbs=get;list;watch;delete
// +kubebuilder:rbac:groups=shardedjob.dev,resources=shardedjobs/status,verbs=patch
// +kubebuilder:rbac:groups=shardedjob.dev,resources=shardedjobs/finalizers,verbs=update
// +kubebuilder:rbac:groups=apps,resources=statefulsets,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups="",resources=configmaps,verbs=get;list;watch;create;update;patch
// +kubebuilder:rbac:groups="",resources=serviceaccounts,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;delete
// +kubebuilder:rbac:groups="",resources=events,verbs=list
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups=rbac.authorization.k8s.io,resources=roles;rolebindings,verbs=get;list;watch;create;patch

// Reconciler brings the world of each ShardedJob to what the job asks for.
type Reconciler struct {
	// Client reads from a cache and writes to the API server.
	Client client.Client
	// APIReader reads from the API server itself.
	APIReader client.Reader
	// Recorder records events.
	Recorder events.EventRecorder
	// Clock tells the time.
	Clock clock.PassiveClock
	// WorkerImage is the image of new workers.
	WorkerImage string

	// written is when the status of a job was last written, by its name: it only spaces out writes, so it may be lost.
	written sync.Map
}

const (
	// retryStale is when to look again after the world has moved on under a write.
	retryStale = 100 * time.Millisecond
	// retryRefused is when to try again what the API server refused: a quota may be raised without our being told.
	retryRefused = 30 * time.Second
)

// SetupWithManager registers the reconciler. Only changes of the spec and of annotations bring it to a job: its own
// writes of status do not.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	err := ctrl.NewControllerManagedBy(mgr).
		Named("shardedjob").
		For(&v1alpha1.ShardedJob{}, builder.WithPredicates(predicate.Or(
			predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}))).
		Owns(&appsv1.StatefulSet{}).
		Owns(&corev1.ConfigMap{}).
		Owns(&corev1.ServiceAccount{}).
		Owns(&rbacv1.Role{}).
		Owns(&rbacv1.RoleBinding{}).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(jobOfPod)).
		WithOptions(controller.Options{MaxConcurrentReconciles: 4}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("set up the controller: %w", err)
	}
	return nil
}

// jobOfPod names the job that a pod belongs to: the pod's owner is the StatefulSet, so the label tells.
func jobOfPod(_ context.Context, pod client.Object) []reconcile.Request {
	name := pod.GetLabels()[v1alpha1.LabelJob]
	if name == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: pod.GetNamespace(), Name: name}}}
}

// Reconcile makes one pass over a job: observe, plan, act, report. A step that only has to be recorded is followed by
// the next one at once.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var job v1alpha1.ShardedJob
	if err := r.Client.Get(ctx, req.NamespacedName, &job); err != nil {
		r.written.Delete(req.NamespacedName)
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	o, w, err := r.observe(ctx, &job)
	if err != nil || o.Job.Deleting {
		return ctrl.Result{}, err
	}
	step := Next(o)
	if _, ok := step.(Record); ok {
		if _, err := r.report(ctx, o, w); err != nil {
			return r.retry(err)
		}
		o.Status = *job.Status.DeepCopy()
		step = Next(o)
	}
	refusal, actErr := r.act(ctx, o, w, step)
	if refusal != nil {
		o.Refusal = refusal
	}
	if _, deleted := step.(DeleteJob); deleted && actErr == nil {
		return ctrl.Result{}, nil
	}
	again, err := r.report(ctx, o, w)
	if err := errors.Join(actErr, err); err != nil {
		return r.retry(err)
	}
	if wait, ok := step.(Wait); ok && wait.For > 0 {
		again = soonest(again, wait.For)
	}
	if o.Refusal != nil {
		again = soonest(again, retryRefused)
	}
	return ctrl.Result{RequeueAfter: again}, nil
}

func soonest(a, b time.Duration) time.Duration {
	if a == 0 || b < a {
		return b
	}
	return a
}

// retry looks again soon if the world has only moved on.
func (r *Reconciler) retry(err error) (ctrl.Result, error) {
	if errors.Is(err, errStale) || apierrors.IsConflict(err) {
		return ctrl.Result{RequeueAfter: retryStale}, nil
	}
	return ctrl.Result{}, err
}

// report writes the status if it has changed and the last write of its kind is long enough ago; else it returns when
// to come again. The job then holds what was written. A completion is final, so it takes the word of the present plan's
// workers: those of one before may speak of progress that was dropped since.
func (r *Reconciler) report(ctx context.Context, o Observation, w world) (time.Duration, error) {
	job, next := w.job, NextStatus(o)
	interval := writeInterval(job.Status, next)
	if interval < 0 {
		return 0, nil
	}
	key := client.ObjectKeyFromObject(job)
	if last, ok := r.written.Load(key); ok {
		if left := last.(time.Time).Add(interval).Sub(o.Now); left > 0 {
			return left, nil
		}
	}
	if next.CompletionTime != nil && job.Status.CompletionTime == nil {
		if err := r.checkPlan(ctx, w); err != nil {
			return 0, err
		}
	}
	before := job.DeepCopy()
	job.Status = next
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := r.Client.Status().Patch(ctx, job, patch, fieldOwner); err != nil {
		if apierrors.IsNotFound(err) {
			return 0, nil
		}
		if apierrors.IsConflict(err) {
			return 0, errStale
		}
		return 0, fmt.Errorf("write status: %w", err)
	}
	r.written.Store(key, o.Now)
	r.eventsOf(job, before.Status.Repartition, next.Repartition)
	return 0, nil
}

// eventsOf tells of the start and the end of a re-partition.
func (r *Reconciler) eventsOf(job *v1alpha1.ShardedJob, before, after *v1alpha1.RepartitionStatus) {
	switch {
	case after != nil && (before == nil || before.To != after.To):
		r.event(job, v1alpha1.EventRepartitionStarted, "Repartition", "Scaling from %d to %s", after.From, count(after.To, "slot", "slots"))
	case before != nil && after == nil:
		r.event(job, v1alpha1.EventRepartitionFinished, "Repartition", "Scaled from %d to %s", before.From, count(before.To, "slot", "slots"))
	}
}

func (r *Reconciler) event(job *v1alpha1.ShardedJob, reason, action, format string, args ...any) {
	r.Recorder.Eventf(job, nil, corev1.EventTypeNormal, reason, action, format, args...)
}
