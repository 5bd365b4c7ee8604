package controllers

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"shardedjob.dev/api/v1alpha1"
)

// TestC12OnlyTheLockProvesThatAPodIsGone: a pod that its node does not stop may run on behind a cut.
func TestC12OnlyTheLockProvesThatAPodIsGone(t *testing.T) {
	slot := func(state v1alpha1.SlotState, holder string) func(*Observation) {
		return func(o *Observation) {
			o.Report.SlotStatuses = []v1alpha1.SlotStatus{{Ordinal: 1, Holder: holder, State: state}}
		}
	}
	surplus := func(o *Observation) {
		o.Job.Wanted, o.Plan.Slots, o.Report.Slots, o.Set.Replicas = 1, 1, 1, 1
		o.Status.Repartition = &v1alpha1.RepartitionStatus{From: 2, To: 1}
		o.Report.SlotCounts = v1alpha1.SlotCounts{Working: 1}
		o.Report.SlotStatuses = []v1alpha1.SlotStatus{{Ordinal: 0, Holder: "images-0", State: v1alpha1.SlotWorking}}
	}
	for name, c := range map[string]struct {
		change func(*Observation)
		gone   bool
	}{
		"its slot is adopted":                      {slot(v1alpha1.SlotAdopted, "images-0"), true},
		"its slot is adopted, by turns":            {slot(v1alpha1.SlotAdopted, ""), true},
		"its slot is unheld":                       {slot(v1alpha1.SlotUnheld, ""), true},
		"its worker holds its slot":                {slot(v1alpha1.SlotWorking, "images-1"), false},
		"its worker has nothing left to do":        {slot(v1alpha1.SlotDrained, "images-1"), false},
		"its worker holds it under an older epoch": {slot(v1alpha1.SlotWaiting, "images-1"), false},
		"its worker waits":                         {slot(v1alpha1.SlotWaiting, ""), false},
		"a stranger holds it":                      {slot(v1alpha1.SlotWaiting, `pid 7 (user "joe")`), false},
		"its worker has adopted another slot": {func(o *Observation) {
			o.Report.SlotStatuses = append(o.Report.SlotStatuses, v1alpha1.SlotStatus{Ordinal: 0, Holder: "images-1", State: v1alpha1.SlotAdopted})
		}, false},
		"its slot is not listed":                   {func(o *Observation) { o.Report.SlotStatuses = nil }, false},
		"the report is of an older partition":      {func(o *Observation) { o.Report.Epoch = 1 }, false},
		"the coordinator's pod is not ready":       {func(o *Observation) { o.Pods[0].Ready = false }, false},
		"there is no report":                       {func(o *Observation) { o.Report = nil }, false},
		"the user wants it kept":                   {func(o *Observation) { o.Job.ForceDelete = false }, false},
		"it still has time":                        {func(o *Observation) { o.Pods[1].GoneBy = o.Now.Add(-overdueAfter + time.Second) }, false},
		"it is surplus":                            {surplus, true},
		"it is surplus and the slots are not held": {func(o *Observation) { surplus(o); o.Report.SlotCounts.Working = 0 }, false},
		"it is surplus and has adopted a slot": {func(o *Observation) {
			surplus(o)
			o.Report.SlotStatuses[0] = v1alpha1.SlotStatus{Ordinal: 0, Holder: "images-1", State: v1alpha1.SlotAdopted}
		}, false},
		"the job is paused": {func(o *Observation) {
			o.Job.Wanted, o.Plan.Slots, o.Report.Slots, o.Set.Replicas = 0, 0, 0, 0
			o.Report.SlotCounts, o.Report.SlotStatuses = v1alpha1.SlotCounts{}, nil
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			o := unreachable()
			o.Job.ForceDelete = true
			c.change(&o)
			if c.gone {
				g.Expect(Next(o)).To(Equal(ForceDeletePods{Pods: []PodView{o.Pods[1]}}))
			} else {
				g.Expect(Next(o)).To(BeAssignableToTypeOf(Wait{}))
			}
		})
	}
}

// TestNobodyTellsWhenAPodIsOverdue, so it is looked for.
func TestNobodyTellsWhenAPodIsOverdue(t *testing.T) {
	g := NewWithT(t)
	o := unreachable()
	o.Pods[1].GoneBy = o.Now.Add(time.Second)
	g.Expect(Next(o)).To(Equal(Wait{For: overdueAfter + time.Second}))
	o.Status.CompletionTime = &metav1.Time{Time: o.Now}
	o.Set.Replicas = 0
	g.Expect(Next(o)).To(Equal(Wait{For: overdueAfter + time.Second}), "of a complete job, too")
	o.Now = o.Now.Add(time.Hour)
	g.Expect(Next(o)).To(Equal(Wait{}))
}

func TestAJobThatWasCompleteBeforeItWasMadeLivesItsTime(t *testing.T) {
	g := NewWithT(t)
	o := running()
	o.Job.TTL, o.Job.Created, o.Set.Replicas = ptr.To(time.Hour), o.Now.Add(-time.Minute), 0
	o.Report.CompleteTime = &metav1.Time{Time: o.Now.Add(-30 * time.Hour)}
	g.Expect(Next(o)).To(Equal(Record{}))
	o.Status = NextStatus(o)
	g.Expect(o.Status.CompletionTime.Time).To(BeTemporally("==", o.Report.CompleteTime.Time))
	o.Now = o.Now.Add(20 * time.Minute)
	g.Expect(Next(o)).To(Equal(Wait{For: 40 * time.Minute}))
	o.Now = o.Now.Add(40 * time.Minute)
	g.Expect(Next(o)).To(Equal(DeleteJob{}))
}

// TestGrowthDoesNotWaitForAPodThatNeverComes: its slot is adopted, and that ends the re-partition.
func TestGrowthDoesNotWaitForAPodThatNeverComes(t *testing.T) {
	g := NewWithT(t)
	o := running()
	o.Job.Wanted, o.Set.Replicas = 3, 3
	o.Pods = append(o.Pods, PodView{Name: "images-2", Ordinal: 2, Current: true, Trouble: "0/3 nodes are available"})
	o.Status.Repartition = &v1alpha1.RepartitionStatus{From: 2, To: 3, StartTime: metav1.NewTime(o.Now)}
	g.Expect(Next(o)).To(Equal(Wait{For: Patience}))
	o.Now = o.Now.Add(Patience)
	g.Expect(Next(o)).To(Equal(WritePlan{Epoch: 3, Slots: 3}))
	o.Plan.Epoch, o.Plan.Slots, o.Published = 3, 3, o.Now
	g.Expect(NextStatus(o).Repartition.Step).To(Equal(v1alpha1.StepSwitchingOver))
	o.Report.Epoch, o.Report.Slots, o.Report.SlotCounts = 3, 3, v1alpha1.SlotCounts{Working: 2, Unheld: 1}
	g.Expect(NextStatus(o).Repartition.Message).To(Equal("2 of 3 slots are held under epoch 3"))
	o.Report.SlotCounts = v1alpha1.SlotCounts{Working: 2, Adopted: 1}
	o.Status = NextStatus(o)
	g.Expect(o.Status.Repartition).To(BeNil())
	g.Expect(meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionReady).Reason).To(Equal(v1alpha1.ReasonPodsMissing))
	g.Expect(Next(o)).To(Equal(Wait{}))

	o.Report.CompleteTime = &metav1.Time{Time: o.Now}
	o.Status = NextStatus(o)
	g.Expect(Next(o)).To(Equal(ApplySet{Replicas: 0}), "and the job ends")
}

// TestShrinkingStopsSurplusPodsOnceSlotsAreHeldByWhomever: a surplus pod is not kept for a slot that another works.
func TestShrinkingStopsSurplusPodsOnceSlotsAreHeldByWhomever(t *testing.T) {
	g := NewWithT(t)
	o := adopted()
	o.Set.Replicas = 3
	o.Pods = append(o.Pods, PodView{Name: "images-2", Ordinal: 2, Ready: true, EverReady: true, Current: true})
	o.Status.Repartition, o.Published = &v1alpha1.RepartitionStatus{From: 3, To: 2}, o.Now
	g.Expect(Next(o)).To(Equal(ApplySet{Replicas: 2}))
	o.Report.SlotCounts = v1alpha1.SlotCounts{Working: 1, Unheld: 1}
	g.Expect(Next(o)).To(Equal(Wait{For: Patience}))
}

// TestForgetting goes through the plans that drop progress and start anew, from whatever the job was doing.
func TestForgetting(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Observation)
		record bool
	}{
		"running": {change: func(*Observation) {}},
		"paused": {change: func(o *Observation) {
			o.Job.Suspended, o.Plan.Slots, o.Report.Slots, o.Set.Replicas, o.Pods = true, 0, 0, 0, nil
		}},
		"complete": {record: true, change: func(o *Observation) {
			o.Status.CompletionTime, o.Report.CompleteTime, o.Set.Replicas, o.Pods = &metav1.Time{Time: o.Now}, &metav1.Time{Time: o.Now}, 0, nil
		}},
		"growing":             {record: true, change: func(o *Observation) { o.Status.Repartition = &v1alpha1.RepartitionStatus{From: 2, To: 5} }},
		"behind the database": {change: func(o *Observation) { o.Report.HighestEpoch = 2 }},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			o := running()
			o.Job.Forget, o.Job.Wanted = true, 1
			c.change(&o)
			if c.record {
				g.Expect(Next(o)).To(Equal(Record{}))
				o.Status = NextStatus(o)
				g.Expect(o.Status.CompletionTime).To(BeNil())
				g.Expect(o.Status.Repartition).To(BeNil())
			}
			g.Expect(Next(o)).To(Equal(WritePlan{Epoch: 3, Slots: 1}))
			o.Plan = &v1alpha1.Plan{UID: "uid", Generation: 3, Epoch: 3, Slots: 1, Forget: true}
			o.Published = o.Now
			if len(o.Pods) == 0 {
				g.Expect(Next(o)).To(Equal(ApplySet{Replicas: 1}), "somebody has to do it")
				o.Set.Replicas, o.Pods = 1, running().Pods[:1]
			}
			o.Report.Epoch, o.Report.Slots, o.Report.HighestEpoch, o.Report.Forgotten = 3, 1, 3, true
			g.Expect(Next(o)).To(Equal(ApplySet{Replicas: 0}))
			o.Set.Replicas, o.Pods = 0, nil
			g.Expect(Next(o)).To(Equal(Wait{}))
			o.Status = NextStatus(o)
			g.Expect(meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionReady).Reason).To(Equal(v1alpha1.ReasonForgotten))

			for _, n := range []int32{0, 1, 2} {
				o := o
				o.Job.Forget, o.Job.Wanted = false, n
				if n > 0 {
					g.Expect(Next(o)).To(Equal(Record{}))
					o.Status = NextStatus(o)
					g.Expect(o.Status.Repartition.From).To(BeZero(), "nobody works under a plan that drops progress")
				}
				g.Expect(Next(o)).To(Equal(WritePlan{Epoch: 4, Slots: n}))
			}
		})
	}
}

// TestTheEpochGoesAboveTheHighestThatAnybodyHasSeen, for workers refuse one that went back, as after a restore of etcd.
func TestTheEpochGoesAboveTheHighestThatAnybodyHasSeen(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Observation)
		want   Step
	}{
		"the database has seen more": {func(o *Observation) { o.Report.HighestEpoch = 4000 }, WritePlan{Epoch: 4001, Slots: 2}},
		"while it grows": {func(o *Observation) {
			o.Report.HighestEpoch, o.Job.Wanted = 4000, 5
			o.Status.Repartition = &v1alpha1.RepartitionStatus{From: 2, To: 5, StartTime: metav1.NewTime(o.Now)}
		}, WritePlan{Epoch: 4001, Slots: 2}},
		"while it shrinks": {func(o *Observation) {
			o.Report.HighestEpoch, o.Job.Wanted = 4000, 1
			o.Status.Repartition = &v1alpha1.RepartitionStatus{From: 2, To: 1}
		}, WritePlan{Epoch: 4001, Slots: 1}},
		"the plan is lost": {func(o *Observation) {
			o.Plan, o.Report.HighestEpoch = nil, 4000
		}, WritePlan{Epoch: 4001, Slots: 2}},
		"progress is to be dropped": {func(o *Observation) {
			o.Job.Forget, o.Job.Wanted, o.Report.HighestEpoch = true, 1, 4000
		}, WritePlan{Epoch: 4001, Slots: 1}},
		"the status knows more": {func(o *Observation) { o.Status.Partition = &v1alpha1.PartitionStatus{Epoch: 7} }, WritePlan{Epoch: 8, Slots: 2}},
		"nothing is left above": {func(o *Observation) { o.Report.HighestEpoch = v1alpha1.MaxEpoch }, Wait{}},
		"nothing is left above, and progress is to be dropped": {func(o *Observation) {
			o.Job.Forget, o.Job.Wanted, o.PlanStale, o.Set.Replicas, o.Report.HighestEpoch = true, 1, true, 2, v1alpha1.MaxEpoch
		}, Wait{}},
	} {
		o := running()
		c.change(&o)
		NewWithT(t).Expect(Next(o)).To(Equal(c.want), name)
	}
}
