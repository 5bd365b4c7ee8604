package controllers

import (
	"context"
	"errors"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"shardedjob.dev/api/v1alpha1"
)

// fieldOwner is who we are to server-side apply.
const fieldOwner = client.FieldOwner("shardedjob-controller")

// errStale means that the world has moved on since it was observed: look again.
var errStale = errors.New("the observation is out of date")

// act carries out one step. What the API server refuses for good comes back as a Refusal; what was overtaken by another
// write as errStale.
func (r *Reconciler) act(ctx context.Context, o Observation, w world, step Step) (*Refusal, error) {
	if _, ok := step.(Wait); ok {
		return nil, nil
	}
	err := r.checkJob(ctx, w)
	if err != nil {
		return nil, err
	}
	switch s := step.(type) {
	case ApplyChildren:
		err = r.applyChildren(ctx, w)
	case WritePlan:
		err = r.writePlan(ctx, o, w, s)
	case ApplySet:
		err = r.applySet(ctx, w, s.Replicas)
	case DeletePods:
		err = r.deletePods(ctx, w, s)
	case ForceDeletePods:
		err = r.forceDeletePods(ctx, o, w, s)
	case DeleteJob:
		err = r.deleteJob(ctx, w.job)
	}
	switch {
	case err == nil:
		return nil, nil
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		return nil, errStale
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil, nil // everything goes, and so do we
	}
	if refusal := refusalOf(err); refusal != nil {
		return refusal, nil
	}
	return nil, err
}

// refusalOf is the refusal that err stands for, or nil if trying again may help.
func refusalOf(err error) *Refusal {
	switch {
	case apierrors.IsForbidden(err) && strings.Contains(err.Error(), "User \""):
		return &Refusal{Reason: v1alpha1.ReasonForbidden, Message: "The operator lacks a permission: " + statusMessage(err)}
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsForbidden(err), errors.Is(err, errTemplate):
		return &Refusal{Reason: v1alpha1.ReasonInvalidTemplate, Message: statusMessage(err)}
	}
	return nil
}

// statusMessage is the API server's own sentence, if err holds one.
func statusMessage(err error) string {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return status.Status().Message
	}
	return err.Error()
}

// neverWritten is a version that no object has: the first write to the store is version 2.
const neverWritten = "1"

// apply applies an object. One without a UID is to be created. To ask for a version that none has means just that: one
// that somebody made in between, be it another operator, is a conflict. One with a UID is ours, and the API server checks
// that it still is that one in that version.
func (r *Reconciler) apply(ctx context.Context, obj client.Object) error {
	raw, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		return fmt.Errorf("encode %s: %w", obj.GetName(), err)
	}
	// Zero values of the Go types that are not ours to set.
	delete(raw, "status")
	dropNulls(raw)
	options := []client.ApplyOption{fieldOwner}
	u := &unstructured.Unstructured{Object: raw}
	if obj.GetUID() != "" {
		options = append(options, client.ForceOwnership)
	} else {
		u.SetResourceVersion(neverWritten)
	}
	if err := r.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), options...); err != nil {
		return fmt.Errorf("apply %s %s: %w", u.GetKind(), obj.GetName(), err)
	}
	return nil
}

func (r *Reconciler) applyChildren(ctx context.Context, w world) error {
	for _, child := range w.children {
		if err := r.apply(ctx, child); err != nil {
			return err
		}
	}
	return nil
}

// writePlan publishes a plan on top of the one that was observed, never over another.
func (r *Reconciler) writePlan(ctx context.Context, o Observation, w world, step WritePlan) error {
	published := o.Now
	if o.Plan != nil && o.Plan.Epoch == step.Epoch {
		published = o.Published
	}
	desired, err := planConfigMap(w.job, v1alpha1.NewPlan(w.job, step.Epoch, step.Slots), published)
	if err != nil {
		return err
	}
	if w.plan == nil {
		if err := r.Client.Create(ctx, desired, fieldOwner); err != nil {
			return fmt.Errorf("create plan: %w", err)
		}
		return nil
	}
	desired.UID, desired.ResourceVersion = w.plan.UID, w.plan.ResourceVersion
	if err := r.Client.Update(ctx, desired, fieldOwner); err != nil {
		return fmt.Errorf("update plan: %w", err)
	}
	return nil
}

// errTemplate means that the user's template cannot be merged.
var errTemplate = errors.New("invalid template")

func (r *Reconciler) applySet(ctx context.Context, w world, replicas int32) error {
	if err := r.checkPlan(ctx, w); err != nil {
		return err
	}
	desired, err := StatefulSet(w.job, w.set, r.WorkerImage, replicas)
	if err != nil {
		err = fmt.Errorf("%w: %w", errTemplate, err)
	} else {
		err = r.applyOverLive(ctx, desired, w.set)
	}
	// A template that is refused must not keep the job from being scaled or paused.
	if err == nil || w.set == nil || refusalOf(err) == nil || replicas == ptr.Deref(w.set.Spec.Replicas, 1) {
		return err
	}
	resized, resizeErr := resizedSet(w.job, w.set, replicas)
	if resizeErr != nil {
		return errors.Join(err, resizeErr)
	}
	if resizeErr := r.applyOverLive(ctx, resized, w.set); resizeErr != nil {
		return resizeErr
	}
	return err
}

// applyOverLive applies the StatefulSet on top of the version that was observed: what looks like growth to a cache that
// lags may be a stop of pods in truth.
func (r *Reconciler) applyOverLive(ctx context.Context, desired, live *appsv1.StatefulSet) error {
	if live != nil {
		desired.UID, desired.ResourceVersion = live.UID, live.ResourceVersion
	}
	return r.apply(ctx, desired)
}

// checkJob makes sure, at the API server itself, that the wish is still the one that was observed. The caches of jobs and of
// other objects lag independently: beside a plan that another operator has made for a newer wish, an older one would look
// like the next change.
func (r *Reconciler) checkJob(ctx context.Context, w world) error {
	var live v1alpha1.ShardedJob
	switch err := r.APIReader.Get(ctx, client.ObjectKeyFromObject(w.job), &live); {
	case apierrors.IsNotFound(err):
		return errStale
	case err != nil:
		return fmt.Errorf("read the job: %w", err)
	case live.UID != w.job.UID || live.Generation != w.job.Generation || live.DeletionTimestamp != nil ||
		!equality.Semantic.DeepEqual(live.Annotations, w.job.Annotations):
		return errStale
	}
	return nil
}

// checkPlan makes sure, at the API server itself, that the plan is still the one that was observed: pods must not be
// stopped on the word of a cache that lags behind one's own, or another operator's, publication.
func (r *Reconciler) checkPlan(ctx context.Context, w world) error {
	var live corev1.ConfigMap
	err := r.APIReader.Get(ctx, client.ObjectKey{Namespace: w.job.Namespace, Name: v1alpha1.PlanName(w.job.Name)}, &live)
	switch {
	case apierrors.IsNotFound(err) && w.plan == nil:
		return nil
	case apierrors.IsNotFound(err):
		return errStale
	case err != nil:
		return fmt.Errorf("read plan: %w", err)
	case w.plan == nil || live.ResourceVersion != w.plan.ResourceVersion:
		return errStale
	}
	return nil
}

func (r *Reconciler) deletePods(ctx context.Context, w world, step DeletePods) error {
	for _, p := range step.Pods {
		switch gone, err := r.deletePod(ctx, w, p); {
		case err != nil:
			return err
		case !gone:
			r.event(w.job, v1alpha1.EventPodReplaced, "Replace", "Deleted pod %s, which %s", p.Name, step.Why)
		}
	}
	return nil
}

// forceDeletePods removes pods that their nodes do not stop, if the API server's own plan and report still prove that
// their workers are gone.
func (r *Reconciler) forceDeletePods(ctx context.Context, o Observation, w world, step ForceDeletePods) error {
	if err := r.checkPlan(ctx, w); err != nil {
		return err
	}
	var report corev1.ConfigMap
	if err := r.APIReader.Get(ctx, client.ObjectKey{Namespace: w.job.Namespace, Name: v1alpha1.ReportName(w.job.Name)}, &report); err != nil {
		return fmt.Errorf("read report: %w", err)
	}
	readReport(&o, report.Data)
	for _, p := range step.Pods {
		says, free := lockOf(o, p)
		if !free {
			return errStale
		}
		switch gone, err := r.deletePod(ctx, w, p, client.GracePeriodSeconds(0)); {
		case err != nil:
			return err
		case !gone:
			r.event(w.job, v1alpha1.EventPodForceDeleted, "ForceDelete", "Removed pod %s of slot %d: %s and %s", p.Name, p.Ordinal, p.overdueWords(), says)
		}
	}
	return nil
}

// deletePod deletes the very pod that was observed, and says whether it was gone already.
func (r *Reconciler) deletePod(ctx context.Context, w world, p PodView, options ...client.DeleteOption) (gone bool, err error) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.job.Namespace, Name: p.Name}}
	err = r.Client.Delete(ctx, pod, append(options, client.Preconditions{UID: &p.UID})...)
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("delete pod %s: %w", p.Name, err)
	}
	return err != nil, nil
}

func (r *Reconciler) deleteJob(ctx context.Context, job *v1alpha1.ShardedJob) error {
	err := r.Client.Delete(ctx, job, client.Preconditions{UID: &job.UID, ResourceVersion: &job.ResourceVersion},
		client.PropagationPolicy(metav1.DeletePropagationBackground))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete the finished job: %w", err)
	}
	return nil
}
