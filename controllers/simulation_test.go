package controllers

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"shardedjob.dev/api/v1alpha1"
)

// simulation is a small world for the planner: what the API server stores, pods that come and go, workers that follow the
// plan in their own time and adopt what others leave, nodes that are lost, and a report that says what was true when it
// was written.
type simulation struct {
	stored
	now     time.Time
	history []stored                // what a cache that lags may still show
	epochs  map[int64]v1alpha1.Plan // the plan of each epoch ever published
	made    int                     // pods ever made
	working map[int32]int64         // the epoch under which the slot's own worker holds it, by ordinal; absent if it does not
	adopted map[int32]int64         // the epoch under which another holds it
	failing map[int32]bool          // ordinals whose pods do not get ready for now
	never   map[int32]bool          // ordinals whose pods never do
	lost    map[types.UID]bool      // pods whose nodes do nothing any more
	held    map[int64]bool          // epochs under which all slots were reported held
	done    bool                    // the database remembers that all rows were processed
	dropped int64                   // the epoch under which progress was dropped last
}

// stored is what the API server holds. Versions count writes.
type stored struct {
	wanted                  int32
	forget, forceDelete     bool
	generation              int64
	status                  v1alpha1.ShardedJobStatus
	jobVersion, planVersion int
	setVersion              int
	plan                    *v1alpha1.Plan
	published               time.Time
	report                  *v1alpha1.Report
	setExists               bool
	setReplicas             int32
	pods                    []PodView
}

func (s stored) copy() stored {
	s.status = *s.status.DeepCopy()
	s.pods = slices.Clone(s.pods)
	return s
}

// mix is a world in which each cache shows another moment.
func mix(job, plan, set, report, pods stored) stored {
	job.plan, job.planVersion, job.published = plan.plan, plan.planVersion, plan.published
	job.setExists, job.setReplicas, job.setVersion = set.setExists, set.setReplicas, set.setVersion
	job.report, job.pods = report.report, pods.pods
	return job
}

// knows says whether in the given world the newest epoch is still known. Where it is not, the database knows it, and the
// workers' first report tells; that is not played here.
func (s *simulation) knows(given stored) bool {
	return given.observe(s.now).HighestEpoch() >= s.observe(s.now).HighestEpoch()
}

func newSimulation() *simulation {
	return &simulation{
		stored: stored{wanted: 2, generation: 1}, now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC),
		epochs: map[int64]v1alpha1.Plan{}, working: map[int32]int64{}, adopted: map[int32]int64{},
		failing: map[int32]bool{}, never: map[int32]bool{}, lost: map[types.UID]bool{}, held: map[int64]bool{},
	}
}

func (s stored) observe(now time.Time) Observation {
	s = s.copy()
	job := JobView{Name: "job", UID: "uid", Generation: s.generation, Wanted: s.wanted, Forget: s.forget, ForceDelete: s.forceDelete}
	if s.forget {
		job.Wanted = 1
	}
	return Observation{
		Now: now, Job: job, Status: s.status, Plan: s.plan, Published: s.published, Report: s.report, Pods: s.pods,
		Set: SetView{Exists: s.setExists, Replicas: s.setReplicas, Settled: true},
	}
}

// operate makes one pass of the operator, which sees the world as it was, and may crash after any write.
func (s *simulation) operate(t *rapid.T, seen stored, writes int) {
	o := seen.observe(s.now)
	step := Next(o)
	writeStatus := func() bool {
		next := NextStatus(o)
		s.checkStatus(t, o, next)
		if writes == 0 || writeInterval(o.Status, next) < 0 {
			return writes > 0
		}
		writes--
		completes := next.CompletionTime != nil && o.Status.CompletionTime == nil
		if seen.jobVersion != s.jobVersion || completes && seen.planVersion != s.planVersion {
			return false
		}
		s.status, s.jobVersion = next, s.jobVersion+1
		seen.jobVersion = s.jobVersion
		if next.CompletionTime != nil && !s.done {
			t.Fatalf("Complete is recorded, though progress was dropped under epoch %d: %+v", s.dropped, o)
		}
		return true
	}
	if _, ok := step.(Record); ok {
		if !writeStatus() {
			return
		}
		o.Status = *s.status.DeepCopy()
		step = Next(o)
		if _, again := step.(Record); again {
			t.Fatalf("recording leads to recording again: %+v", o)
		}
	}
	if writes == 0 {
		return
	}
	writes--
	s.act(t, o, seen, step)
	writeStatus()
}

// act carries out a step, unless the world has moved on since it was seen.
func (s *simulation) act(t *rapid.T, o Observation, seen stored, step Step) {
	if seen.planVersion != s.planVersion || seen.generation != s.generation || seen.forget != s.forget {
		return
	}
	switch step := step.(type) {
	case WritePlan:
		s.writePlan(t, seen, step)
	case ApplySet:
		if seen.setVersion != s.setVersion {
			return
		}
		if s.plan != nil && step.Replicas < s.plan.Slots && !o.Complete() && !o.Forgotten() {
			t.Fatalf("the StatefulSet gets %d pods while the plan has %d slots", step.Replicas, s.plan.Slots)
		}
		if step.Replicas < s.setReplicas {
			s.checkStop(t, o, step.Replicas)
		}
		s.writeSet(true, step.Replicas)
	case ForceDeletePods:
		o.Report = s.report
		for _, gone := range step.Pods {
			if _, free := lockOf(o, gone); !free || !seen.forceDelete || !o.overdue(gone) {
				t.Fatalf("%s is removed without need or evidence: %+v", gone.Name, s.report)
			}
			s.pods = slices.DeleteFunc(s.pods, func(p PodView) bool { return p.UID == gone.UID })
		}
	}
}

func (s *simulation) writeSet(exists bool, replicas int32) {
	s.setExists, s.setReplicas, s.setVersion = exists, replicas, s.setVersion+1
}

// checkStop says that pods are stopped only for one of the reasons there are.
func (s *simulation) checkStop(t *rapid.T, o Observation, replicas int32) {
	if o.Complete() || o.Forgotten() || s.plan.Slots == 0 || s.held[s.plan.Epoch] || !s.now.Before(s.published.Add(Patience)) {
		return
	}
	for _, p := range o.Pods {
		if p.Ordinal >= replicas && p.EverReady {
			t.Fatalf("%s is stopped before all slots are held under epoch %d", p.Name, s.plan.Epoch)
		}
	}
}

func (s *simulation) writePlan(t *rapid.T, seen stored, step WritePlan) {
	plan := v1alpha1.Plan{UID: "uid", Epoch: step.Epoch, Slots: step.Slots, Generation: seen.generation, Forget: seen.forget}
	if s.plan == nil || step.Epoch != s.plan.Epoch {
		for epoch := range s.epochs {
			if step.Epoch <= epoch {
				t.Fatalf("epoch %d is published after %d", step.Epoch, epoch)
			}
		}
		s.epochs[step.Epoch], s.published = plan, s.now
	} else if before := s.epochs[step.Epoch]; plan.Slots != before.Slots || plan.Forget != before.Forget {
		t.Fatalf("epoch %d has the plan %+v and then %+v", step.Epoch, before, plan)
	}
	if plan.Forget && plan.Slots != 1 {
		t.Fatalf("progress is to be dropped with %d slots", plan.Slots)
	}
	s.plan, s.planVersion = &plan, s.planVersion+1
}

// runPods plays the StatefulSet controller and the kubelets that are left.
func (s *simulation) runPods() {
	s.pods = slices.DeleteFunc(s.pods, func(p PodView) bool {
		if s.lost[p.UID] || !p.Deleting && (p.Ordinal < s.setReplicas || !s.setExists) {
			return false
		}
		delete(s.working, p.Ordinal)
		return true
	})
	for i := range s.pods {
		if p := &s.pods[i]; p.Ordinal >= s.setReplicas && s.setExists {
			s.evict(p)
		}
	}
	for k := range s.setReplicas {
		if !slices.ContainsFunc(s.pods, func(p PodView) bool { return p.Ordinal == k }) {
			s.made++
			s.pods = append(s.pods, PodView{
				Name: v1alpha1.PodName("job", k), Ordinal: k, UID: types.UID(fmt.Sprint(s.made)), Created: s.now, Current: true, Node: "node",
			})
		}
	}
}

// evict marks a pod for deletion.
func (s *simulation) evict(p *PodView) {
	if !p.Deleting {
		p.Deleting, p.GoneBy = true, s.now.Add(40*time.Second)
	}
}

// lose cuts off the node of a pod, which is then evicted. Its worker may go on.
func (s *simulation) lose(k int32) {
	for i := range s.pods {
		if p := &s.pods[i]; p.Ordinal == k {
			s.lost[p.UID] = true
			s.evict(p)
		}
	}
}

func (s *simulation) becomeReady(k int32) {
	for i := range s.pods {
		if p := &s.pods[i]; p.Ordinal == k && !p.Ready && !p.Deleting && !s.failing[k] && !s.never[k] {
			p.Ready, p.EverReady, p.ReadySince = true, true, s.now
		}
	}
}

// follow lets the worker of a ready pod take over the plan, and drop progress if it asks for that.
func (s *simulation) follow(k int32) {
	for _, p := range s.pods {
		switch {
		case p.Ordinal != k || !p.Ready || s.lost[p.UID] || s.plan == nil:
		case k >= s.plan.Slots:
			delete(s.working, k)
		default:
			s.working[k] = s.plan.Epoch
			delete(s.adopted, k)
			if s.plan.Forget {
				s.done, s.dropped = false, s.plan.Epoch
			}
		}
	}
}

// adopt lets a worker take over slot k too, if its own worker is missing.
func (s *simulation) adopt(k int32) {
	if s.plan == nil || k >= s.plan.Slots || s.plan.Forget || s.working[k] != 0 {
		return
	}
	for _, epoch := range s.working {
		if epoch == s.plan.Epoch {
			s.adopted[k] = epoch
		}
	}
}

func (s *simulation) slot(k int32) v1alpha1.SlotStatus {
	status := v1alpha1.SlotStatus{Ordinal: k, Pod: v1alpha1.PodName("job", k), State: v1alpha1.SlotUnheld}
	switch own, ok := s.working[k]; {
	case ok && own == s.plan.Epoch:
		status.State, status.Holder = v1alpha1.SlotWorking, status.Pod
	case ok:
		status.State, status.Holder = v1alpha1.SlotWaiting, status.Pod
	case s.adopted[k] == s.plan.Epoch:
		status.State = v1alpha1.SlotAdopted
	}
	return status
}

func (s *simulation) writeReport() {
	if s.plan == nil {
		return
	}
	r := &v1alpha1.Report{
		UID: "uid", Epoch: s.plan.Epoch, HighestEpoch: s.plan.Epoch, Slots: s.plan.Slots, Generation: s.plan.Generation,
		Forgotten: s.dropped == s.plan.Epoch,
	}
	for _, p := range s.pods {
		if p.Ready && !s.lost[p.UID] && (r.Coordinator == "" || p.Name < r.Coordinator) {
			r.Coordinator = p.Name
		}
	}
	if r.Coordinator == "" {
		return
	}
	for k := range s.plan.Slots {
		slot := s.slot(k)
		switch slot.State {
		case v1alpha1.SlotWorking:
			r.SlotCounts.Working++
		case v1alpha1.SlotAdopted:
			r.SlotCounts.Adopted++
		case v1alpha1.SlotWaiting:
			r.SlotCounts.Waiting++
		default:
			r.SlotCounts.Unheld++
		}
		r.SlotStatuses = append(r.SlotStatuses, slot)
	}
	if held := r.SlotCounts.Working+r.SlotCounts.Adopted == r.Slots; held {
		s.held[r.Epoch] = true
		if s.done && r.Slots > 0 && !s.plan.Forget {
			r.CompleteTime = &metav1.Time{Time: time.Date(2029, 1, 1, 0, 0, 0, 0, time.UTC)}
		}
	}
	s.report = r
}
