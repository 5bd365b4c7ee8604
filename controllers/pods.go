package controllers

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"shardedjob.dev/api/v1alpha1"
)

// ordinalOf is k of the pod <job>-k.
func ordinalOf(job, pod string) (int32, bool) {
	suffix, ok := strings.CutPrefix(pod, job+"-")
	if !ok {
		return 0, false
	}
	ordinal, err := strconv.ParseInt(suffix, 10, 32)
	if err != nil || ordinal < 0 || v1alpha1.PodName(job, int32(ordinal)) != pod {
		return 0, false
	}
	return int32(ordinal), true
}

// jobUID is the UID of the job that the pod works for, as its worker is told.
func jobUID(pod *corev1.Pod) string {
	for _, c := range pod.Spec.Containers {
		if c.Name != v1alpha1.WorkerContainer {
			continue
		}
		for _, e := range c.Env {
			if e.Name == v1alpha1.EnvJobUID {
				return e.Value
			}
		}
	}
	return ""
}

// viewPod is the pod in plain values. revision is the newest of the StatefulSet, "" while it is not known.
func viewPod(pod *corev1.Pod, ordinal int32, revision string) PodView {
	view := PodView{
		Name:     pod.Name,
		Ordinal:  ordinal,
		UID:      pod.UID,
		Created:  pod.CreationTimestamp.Time,
		Current:  revision == "" || pod.Labels["controller-revision-hash"] == revision,
		Deleting: pod.DeletionTimestamp != nil,
		Node:     pod.Spec.NodeName,
		NodeLost: nodeLost(pod),
	}
	// One with finalizers waits for whoever is to remove them.
	if view.Deleting && view.Node != "" && len(pod.Finalizers) == 0 {
		view.GoneBy = pod.DeletionTimestamp.Time
	}
	if c := podCondition(pod, corev1.PodReady); c != nil {
		view.Ready = c.Status == corev1.ConditionTrue
		view.EverReady = view.Ready || turnedUnready(pod, c)
		if view.Ready {
			view.ReadySince = c.LastTransitionTime.Time
		}
	}
	if !view.Ready {
		view.Trouble, view.NeedsPerson = podTrouble(pod)
	}
	return view
}

// startupSlack is how long after the start of a pod the kubelet may take to say for the first time that it is not ready.
const startupSlack = 5 * time.Second

// turnedUnready says whether a pod that is not ready was so once. The kubelet sets the Ready condition to False when it
// starts a pod and from then on changes its transition time only with its status; so a later one means that the pod was
// ready in between. A pod without a start time or condition was never looked at by a kubelet.
func turnedUnready(pod *corev1.Pod, ready *corev1.PodCondition) bool {
	return pod.Status.StartTime != nil && ready.LastTransitionTime.Sub(pod.Status.StartTime.Time) > startupSlack
}

// nodeLost says that the node controller has lost the pod's node. It then sets Ready to False and leaves the kubelet's
// word on the containers as it was; a kubelet would do so only for the sake of a readiness gate, which it names.
func nodeLost(pod *corev1.Pod) bool {
	ready, containers := podCondition(pod, corev1.PodReady), podCondition(pod, corev1.ContainersReady)
	return ready != nil && ready.Status == corev1.ConditionFalse && ready.Reason == "" &&
		containers != nil && containers.Status == corev1.ConditionTrue
}

func podCondition(pod *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == kind {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

// hopeless are the kubelet's reasons for not running a container that do not pass by themselves.
var hopeless = []string{
	"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable",
	"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff",
}

// podTrouble is why the pod is not ready, and whether a person must act.
func podTrouble(pod *corev1.Pod) (string, bool) {
	if c := podCondition(pod, corev1.PodScheduled); c != nil && c.Status == corev1.ConditionFalse {
		return c.Message, false
	}
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		w := s.State.Waiting
		if w == nil || !slices.Contains(hopeless, w.Reason) {
			continue
		}
		if w.Message == "" {
			return fmt.Sprintf("container %s: %s", s.Name, w.Reason), true
		}
		return fmt.Sprintf("container %s: %s: %s", s.Name, w.Reason, w.Message), true
	}
	if pod.Status.Phase == corev1.PodFailed {
		return strings.TrimSpace(pod.Status.Reason + " " + pod.Status.Message), false
	}
	return "", false
}

// observePodRefusal is the API server's latest word on a pod that it refused to create. It exists only as an event of
// the StatefulSet. One from before the last pod was created is old.
func (r *Reconciler) observePodRefusal(ctx context.Context, o Observation, set *appsv1.StatefulSet) (string, error) {
	var events corev1.EventList
	selector := fields.Set{
		"involvedObject.kind": "StatefulSet", "involvedObject.uid": string(set.UID),
		"reason": "FailedCreate", "type": corev1.EventTypeWarning,
	}.AsSelector()
	if err := r.APIReader.List(ctx, &events, client.InNamespace(set.Namespace), client.MatchingFieldsSelector{Selector: selector}); err != nil {
		return "", fmt.Errorf("list events of the StatefulSet: %w", err)
	}
	var latest time.Time
	for _, p := range o.Pods {
		if p.Created.After(latest) {
			latest = p.Created
		}
	}
	var message string
	for _, e := range events.Items {
		if at := eventTime(e); !at.Before(latest) {
			latest, message = at, e.Message
		}
	}
	// "create Pod x-1 in StatefulSet x failed error: " goes before what the API server said.
	if _, words, ok := strings.Cut(message, "failed error: "); ok {
		message = words
	}
	return message, nil
}

func eventTime(e corev1.Event) time.Time {
	switch {
	case e.Series != nil:
		return e.Series.LastObservedTime.Time
	case !e.LastTimestamp.IsZero():
		return e.LastTimestamp.Time
	case !e.EventTime.IsZero():
		return e.EventTime.Time
	}
	return e.CreationTimestamp.Time
}
