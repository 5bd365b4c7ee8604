package controllers

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"shardedjob.dev/api/v1alpha1"
)

// nextRepartition is the re-partition that is under way, as it goes into status; nil if there is none.
func nextRepartition(o Observation) *v1alpha1.RepartitionStatus {
	if o.Plan == nil || o.Complete() || o.Job.Forget {
		return nil
	}
	n, m := o.Job.Wanted, o.worked()
	r := o.Status.Repartition.DeepCopy()
	switch {
	case r == nil && m == n:
		return nil
	case r == nil:
		r = &v1alpha1.RepartitionStatus{From: m, To: n, StartTime: timeOf(o)}
	case r.To != n:
		r.To, r.StartTime = n, timeOf(o)
	}
	if repartitioned(o) {
		return nil
	}
	r.Step, r.Message = repartitionStep(o, r.From)
	return r
}

// timeOf is when the observation was made, as precise as the API server stores it.
func timeOf(o Observation) metav1.Time { return metav1.NewTime(o.Now).Rfc3339Copy() }

// repartitioned says whether nothing is left to do of a re-partition.
func repartitioned(o Observation) bool {
	n := o.Job.Wanted
	return !o.Plan.Forget && o.Plan.Slots == n && o.have() == n && len(o.surplus(n)) == 0 && (n == 0 || o.AllHeld())
}

// repartitionStep says how far the re-partition is, and what it waits for.
func repartitionStep(o Observation, from int32) (v1alpha1.RepartitionStep, string) {
	n, m := o.Job.Wanted, o.worked()
	switch missing := missingConnections(o); {
	case missing > 0:
		return v1alpha1.StepNotEnoughConnections, fmt.Sprintf(
			"%s needed and the database has %d free of %d; work goes on with %d slots",
			count(n-o.have(), "more connection is", "more connections are"), o.Report.Connections.Free, o.Report.Connections.Limit, m)
	case m < n, m == n && from == 0 && n > 0 && o.readyBelow(n) < n:
		return v1alpha1.StepStartingPods, "waiting for " + count(n-o.readyBelow(n), "pod", "pods") + " to become ready" + quoteTroubles(o)
	case m == n && n > 0 && !o.AllHeld():
		return v1alpha1.StepSwitchingOver, fmt.Sprintf("%d of %d slots are held under epoch %d", heldSlots(o), n, o.Plan.Epoch)
	case m > n:
		return v1alpha1.StepSwitchingOver, "telling the workers"
	default:
		return v1alpha1.StepStoppingPods, "waiting for " + count(int32(len(o.surplus(n))), "surplus pod", "surplus pods") + " to stop" + quoteTroubles(o)
	}
}

// heldSlots is how many slots are known to be held under the present plan, by their own worker or an adopter. A report
// that nobody stands behind any more counts for no more slots than pods are ready.
func heldSlots(o Observation) int32 {
	if !o.reportOfPlan() {
		return 0
	}
	held := o.Report.SlotCounts.Working + o.Report.SlotCounts.Adopted
	if !o.ReportLive() {
		held = min(held, o.readyBelow(o.Plan.Slots))
	}
	return held
}

// maxTroubles is how many pods a message quotes.
const maxTroubles = 3

// quoteTroubles says, in brackets, why pods are missing or not ready, in the words of the API server, the scheduler and
// the kubelet.
func quoteTroubles(o Observation) string {
	troubles := troubles(o)
	if len(troubles) == 0 {
		return ""
	}
	return " (" + strings.Join(troubles, "; ") + ")"
}

func troubles(o Observation) []string {
	var all []string
	if refusal := podRefusal(o); refusal != "" {
		all = append(all, refusal)
	}
	for _, p := range o.Pods {
		if trouble := o.trouble(p); trouble != "" && (p.Ordinal < o.have() || p.Deleting) {
			all = append(all, p.Name+": "+trouble)
		}
	}
	return few(all, maxTroubles)
}

// few is the list, cut to so many.
func few(all []string, most int) []string {
	if len(all) <= most {
		return all
	}
	return append(slices.Clone(all[:most]), fmt.Sprintf("and %d more", len(all)-most))
}

// neededInTrouble says whether pods that should exist do not, or have trouble.
func neededInTrouble(o Observation) bool {
	return podRefusal(o) != "" || slices.ContainsFunc(o.Pods, func(p PodView) bool { return p.Ordinal < o.have() && o.trouble(p) != "" })
}

// podRefusal is why pods that should exist do not; "" if none is missing or nobody refused.
func podRefusal(o Observation) string {
	if o.missing() == 0 {
		return ""
	}
	return o.PodRefusal
}

// count is n with its noun.
func count(n int32, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
