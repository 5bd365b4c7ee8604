package controllers

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"shardedjob.dev/api/v1alpha1"
)

// adopted is the observation of a job whose pod 1 finds no node, so that pod 0 works its slot too.
func adopted() Observation {
	o := running()
	o.Pods[1] = PodView{Name: "images-1", Ordinal: 1, Current: true, Trouble: "0/3 nodes are available"}
	o.Report.SlotCounts = v1alpha1.SlotCounts{Working: 1, Adopted: 1}
	o.Report.SlotStatuses = []v1alpha1.SlotStatus{
		{Ordinal: 1, Pod: "images-1", Holder: "images-0", HolderPID: 41, State: v1alpha1.SlotAdopted},
		{Ordinal: 0, Pod: "images-0", Holder: "images-0", HolderPID: 40, State: v1alpha1.SlotWorking},
	}
	return o
}

// unreachable is the same job after that pod was deleted on a node that is gone.
func unreachable() Observation {
	o := adopted()
	o.Pods[1] = PodView{Name: "images-1", Ordinal: 1, UID: "one", Current: true, EverReady: true, Deleting: true, Node: "node-b", GoneBy: o.Now.Add(-time.Minute)}
	return o
}

// forgetting is a job whose progress is to be dropped, with the plan published and nothing done yet.
func forgetting() Observation {
	o := running()
	o.Job.Forget, o.Job.Group, o.Job.Wanted = true, "media/images", 1
	o.Plan.Forget, o.Plan.Epoch, o.Plan.Slots, o.Set.Replicas, o.Pods = true, 3, 1, 1, o.Pods[:1]
	return o
}

func forgotten() Observation {
	o := forgetting()
	o.Report.Epoch, o.Report.Slots, o.Report.Forgotten, o.Report.SlotCounts = 3, 1, true, v1alpha1.SlotCounts{Working: 1}
	return o
}

func TestMessages(t *testing.T) {
	const ready, complete = v1alpha1.ConditionReady, v1alpha1.ConditionComplete
	const overdue = "False PodsMissing: 1 of 2 pods are ready (images-1: node node-b has not stopped it since 2029-12-31T23:59:00Z and "
	for name, c := range map[string]struct {
		from   func() Observation
		change func(*Observation)
		kind   string
		want   string
	}{
		"an adopted slot": {adopted, func(*Observation) {}, ready, "False PodsMissing: 1 of 2 pods are ready (images-1: 0/3 nodes are available); " +
			"1 of 2 slots are held by their own worker, 1 is adopted. Adopted: slot 1 by images-0"},
		"an adopted slot of a pod that is ready": {adopted, func(o *Observation) { o.Pods = running().Pods }, ready,
			"False SlotsUnheld: 1 of 2 slots are held by their own worker, 1 is adopted, 2 of 2 pods are ready. Adopted: slot 1 by images-0"},
		"many adopted slots": {adopted, func(o *Observation) {
			o.Job.Wanted, o.Plan.Slots, o.Report.Slots, o.Set.Replicas, o.Report.SlotCounts = 9, 9, 9, 9, v1alpha1.SlotCounts{Working: 1, Adopted: 8}
			o.Report.SlotStatuses, o.Pods = nil, o.Pods[:1]
			for k := range int32(8) {
				o.Report.SlotStatuses = append(o.Report.SlotStatuses, v1alpha1.SlotStatus{Ordinal: k + 1, Holder: "images-0", State: v1alpha1.SlotAdopted})
			}
		}, ready, "False SlotsUnheld: 1 of 9 slots are held by their own worker, 8 are adopted, 1 of 9 pods are ready. " +
			"Adopted: slot 1 by images-0, slot 2 by images-0, slot 3 by images-0, and 5 more"},
		"a slot that is served in turn": {adopted, func(o *Observation) { o.Report.SlotStatuses[0].Holder = "" }, ready, "False PodsMissing: " +
			"1 of 2 pods are ready (images-1: 0/3 nodes are available); 1 of 2 slots are held by their own worker, 1 is adopted. Adopted: slot 1 by turns"},
		"a warning": {running, func(o *Observation) {
			o.Report.Warnings = []string{"waiting for 1 transaction, pid 4711, open for 62 s", "another"}
		}, ready,
			"True Running: All 2 slots are held under epoch 2. Warning: waiting for 1 transaction, pid 4711, open for 62 s"},
		"a warning of an older partition": {running, func(o *Observation) { o.Report.Warnings, o.Report.Epoch = []string{"slow"}, 1 }, ready,
			"False SlotsUnheld: 0 of 2 slots are held, 2 of 2 pods are ready"},
		"a lost node": {adopted, func(o *Observation) { o.Pods[1].NodeLost, o.Pods[1].Node = true, "node-b" }, ready,
			"False PodsMissing: 1 of 2 pods are ready (images-1: node node-b does not answer and slot 1 is adopted by images-0); " +
				"1 of 2 slots are held by their own worker, 1 is adopted. Adopted: slot 1 by images-0"},
		"a pod that its node does not stop": {unreachable, func(*Observation) {}, ready, overdue + "slot 1 is adopted by images-0; " +
			"delete the node, or have such pods replaced with fence.unreachablePods: ForceDelete); 1 of 2 slots are held by their own worker, 1 is adopted. Adopted: slot 1 by images-0"},
		"one that may be removed": {unreachable, func(o *Observation) { o.Job.ForceDelete = true }, ready, overdue + "slot 1 is adopted by images-0, so it is removed); " +
			"1 of 2 slots are held by their own worker, 1 is adopted. Adopted: slot 1 by images-0"},
		"one whose session is alive": {unreachable, func(o *Observation) {
			o.Job.ForceDelete, o.Report.SlotCounts = true, v1alpha1.SlotCounts{Working: 2}
			o.Report.SlotStatuses = []v1alpha1.SlotStatus{{Ordinal: 1, Holder: "images-1", HolderPID: 41, State: v1alpha1.SlotWorking}}
		}, ready, overdue + "its session, pid 41, still holds slot 1's lock; it is removed once that session is known to be gone)"},
		"one of which nobody reports": {unreachable, func(o *Observation) { o.Job.ForceDelete, o.Pods[0].Ready = true, false }, ready,
			"False PodsMissing: 0 of 2 pods are ready (images-1: node node-b has not stopped it since 2029-12-31T23:59:00Z and " +
				"no coordinator says who holds slot 1's lock; it is removed once that session is known to be gone)"},
		"one that is surplus": {unreachable, func(o *Observation) {
			o.Job.Wanted, o.Plan.Slots, o.Report.Slots, o.Set.Replicas, o.Report.SlotCounts = 1, 1, 1, 1, v1alpha1.SlotCounts{Working: 1}
			o.Report.SlotStatuses = nil
			o.Status.Repartition = &v1alpha1.RepartitionStatus{From: 2, To: 1}
		}, ready, "False Repartitioning: Scaling from 2 to 1 slot: waiting for 1 surplus pod to stop (images-1: node node-b has not stopped it since " +
			"2029-12-31T23:59:00Z and every slot is held by others; delete the node, or have such pods replaced with fence.unreachablePods: ForceDelete)"},
		"one that a pause waits for": {unreachable, func(o *Observation) { o.Job.Wanted, o.Plan.Slots, o.Set.Replicas, o.Pods = 0, 0, 0, o.Pods[1:] }, ready,
			"False Pausing: Waiting for 1 pod to finish the batch and stop (images-1: node node-b has not stopped it since 2029-12-31T23:59:00Z and " +
				"no coordinator says who holds slot 1's lock; delete the node, or have such pods replaced with fence.unreachablePods: ForceDelete)"},
		"complete, by the rows": {running, func(o *Observation) { o.Job.Pending, o.Report.CompleteTime = true, &metav1.Time{Time: o.Now} }, complete,
			"True Complete: A fresh check found no pending row; later changes of the spec have no effect"},
		"complete, by cursors": {running, func(o *Observation) { o.Report.CompleteTime = &metav1.Time{Time: o.Now} }, complete,
			"True Complete: Every row that was in scope when the work began was processed; later changes of the spec have no effect"},
		"complete before the job was made": {running, func(o *Observation) {
			o.Job.Group, o.Job.Created, o.Report.CompleteTime = "media/images", o.Now.Add(-time.Second), &metav1.Time{Time: o.Now.Add(-time.Hour)}
		}, ready, "True Complete: Every row in scope was processed; it was complete already since 2029-12-31T23:00:00Z, and the progress of consumer group " +
			"media/images is kept: annotate it with shardedjob.dev/forget=true to start anew"},
		"progress is to be dropped": {forgetting, func(*Observation) {}, ready,
			"False Forgetting: The progress of consumer group media/images is to be dropped: waiting for a worker to do it"},
		"progress is to be dropped of a complete job": {forgetting, func(o *Observation) {
			o.Plan.Forget, o.Plan.Epoch, o.Plan.Slots, o.Status.CompletionTime = false, 2, 2, &metav1.Time{Time: o.Now}
		}, complete, "False Forgetting: The progress is to be dropped"},
		"progress cannot be dropped": {forgetting, func(o *Observation) {
			o.Report.Epoch, o.Report.Problem = 3, &v1alpha1.Problem{Reason: v1alpha1.ReasonAuthFailed, Message: "no", Stalled: true}
		}, ready, "False Stalled: no"},
		"progress was dropped": {forgotten, func(*Observation) {}, ready,
			"False Forgetting: The progress of consumer group media/images is dropped: waiting for 1 pod to stop"},
		"progress was dropped and the pod is gone": {forgotten, func(o *Observation) { o.Set.Replicas, o.Pods = 0, nil }, ready,
			"True Forgotten: The progress of consumer group media/images is dropped: delete this ShardedJob, or remove the annotation shardedjob.dev/forget to start anew"},
		"progress was dropped, so nothing is complete": {forgotten, func(o *Observation) { o.Report.CompleteTime = &metav1.Time{Time: o.Now} }, complete,
			"False Forgotten: The progress is dropped"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			o := c.from()
			c.change(&o)
			got := meta.FindStatusCondition(NextStatus(o).Conditions, c.kind)
			g.Expect(string(got.Status) + " " + got.Reason + ": " + got.Message).To(Equal(c.want))
		})
	}
}

// TestAsidesWaitLikeFigures: how long something lasts, and whose turn it is, is no news.
func TestAsidesWaitLikeFigures(t *testing.T) {
	for name, c := range map[string]struct {
		from   func() Observation
		change func(*Observation)
	}{
		"seconds of a warning": {running, func(o *Observation) { o.Report.Warnings = []string{"open for 72 s"} }},
		"another adopter":      {adopted, func(o *Observation) { o.Report.SlotStatuses[0].Holder = "images-7" }},
		"an adopter more, with a warning": {adopted, func(o *Observation) {
			o.Report.SlotStatuses[0].Holder, o.Report.Warnings = "images-7", []string{"open for 72 s"}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			o := c.from()
			o.Report.Warnings = []string{"open for 62 s"}
			o.Status = NextStatus(o)
			c.change(&o)
			next := NextStatus(o)
			g.Expect(next.Conditions).NotTo(Equal(o.Status.Conditions))
			g.Expect(writeInterval(o.Status, next)).To(Equal(figuresInterval))
		})
	}
}
