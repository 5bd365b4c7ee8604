package controllers

import (
	"fmt"
	"time"

	"shardedjob.dev/api/v1alpha1"
)

// overdueAfter is for how long a pod may outstay its grace: the kubelet cleans up behind it before it lets it go.
const overdueAfter = 15 * time.Second

// overdue says that the pod was deleted and that its node has not carried that out in time, as when it is unreachable.
// Kubernetes then keeps the pod for ever.
func (o Observation) overdue(p PodView) bool {
	return !p.GoneBy.IsZero() && !o.Now.Before(p.GoneBy.Add(overdueAfter))
}

// overdueWords name the node that does not stop the pod.
func (p PodView) overdueWords() string {
	return fmt.Sprintf("node %s has not stopped it since %s", p.Node, p.GoneBy.UTC().Format(time.RFC3339))
}

// untilOverdue is how long until a pod becomes overdue, of which nobody tells; 0 for never.
func untilOverdue(o Observation) time.Duration {
	var wait time.Duration
	for _, p := range o.Pods {
		if !p.GoneBy.IsZero() && !o.overdue(p) {
			wait = soonest(wait, p.GoneBy.Add(overdueAfter).Sub(o.Now))
		}
	}
	return wait
}

// removablePods are overdue pods whose workers are known to be gone, where the user lets us remove them.
func removablePods(o Observation) []PodView {
	var gone []PodView
	for _, p := range o.Pods {
		if !o.Job.ForceDelete || !o.overdue(p) {
			continue
		}
		if _, free := lockOf(o, p); free {
			gone = append(gone, p)
		}
	}
	return gone
}

// lockOf is what the workers' live report shows of the pod's lock, and whether that proves that its worker works no
// more. What nobody reports proves nothing.
func lockOf(o Observation, p PodView) (says string, free bool) {
	if !o.reportOfPlan() || !o.ReportLive() || o.Plan.Slots == 0 {
		return fmt.Sprintf("no coordinator says who holds slot %d's lock", p.Ordinal), false
	}
	var own *v1alpha1.SlotStatus
	for i := range o.Report.SlotStatuses {
		s := &o.Report.SlotStatuses[i]
		switch {
		case s.Holder == p.Name && s.HolderPID != 0:
			return fmt.Sprintf("its session, pid %d, still holds slot %d's lock", s.HolderPID, s.Ordinal), false
		case s.Holder == p.Name:
			return fmt.Sprintf("its session still holds slot %d's lock", s.Ordinal), false
		case s.Ordinal == p.Ordinal:
			own = s
		}
	}
	switch {
	case p.Ordinal >= o.Plan.Slots && o.AllHeld():
		return "every slot is held by others", true
	case p.Ordinal >= o.Plan.Slots:
		return "its session may still hold a slot of the partition before", false
	case own == nil:
		return fmt.Sprintf("the report does not say who holds slot %d's lock", p.Ordinal), false
	case own.State == v1alpha1.SlotUnheld:
		return fmt.Sprintf("nobody holds slot %d's lock", p.Ordinal), true
	case own.State == v1alpha1.SlotAdopted && own.Holder != "":
		return fmt.Sprintf("slot %d is adopted by %s", p.Ordinal, own.Holder), true
	case own.State == v1alpha1.SlotAdopted:
		return fmt.Sprintf("slot %d is adopted", p.Ordinal), true
	case own.Holder != "":
		return fmt.Sprintf("slot %d's lock is held by %s", p.Ordinal, own.Holder), false
	}
	return fmt.Sprintf("its worker still waits for slot %d's lock", p.Ordinal), false
}

// trouble is why the pod is not as it should be, "" if it is or nothing is known: its node is lost or does not stop it,
// or what the kubelet or the scheduler say.
func (o Observation) trouble(p PodView) string {
	if !o.overdue(p) && !p.NodeLost {
		if p.Ready || p.Deleting {
			return ""
		}
		return p.Trouble
	}
	switch says, free := lockOf(o, p); {
	case !o.overdue(p):
		return fmt.Sprintf("node %s does not answer and %s", p.Node, says)
	case !o.Job.ForceDelete:
		return p.overdueWords() + " and " + says + "; delete the node, or have such pods replaced with fence.unreachablePods: ForceDelete"
	case free:
		return p.overdueWords() + " and " + says + ", so it is removed"
	default:
		return p.overdueWords() + " and " + says + "; it is removed once that session is known to be gone"
	}
}
