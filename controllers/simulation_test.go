package controllers

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"shardedjob.dev/api/v1alpha1"
)

// simulation is a small world for the planner: what the API server stores, pods that come and go, workers that follow the
// plan in their own time, and a report that says what was true when it was written.
type simulation struct {
	stored
	now     time.Time
	history []stored        // what a cache that lags may still show
	epochs  map[int64]int32 // slots of each epoch ever published
	working map[int32]int64 // the epoch under which the pod holds its slot, by ordinal; absent if none
	failing map[int32]bool  // pods that will not get ready
	held    map[int64]bool  // epochs under which all slots were reported held
}

// stored is what the API server holds. Versions count writes.
type stored struct {
	wanted                     int32
	generation                 int64
	status                     v1alpha1.ShardedJobStatus
	statusVersion, planVersion int
	setVersion                 int
	plan                       *v1alpha1.Plan
	published                  time.Time
	report                     *v1alpha1.Report
	setExists                  bool
	setReplicas                int32
	pods                       []PodView
}

func (s stored) copy() stored {
	s.status = *s.status.DeepCopy()
	s.pods = slices.Clone(s.pods)
	return s
}

// knows says whether in the given world the newest epoch is still known. Where it is not, the database knows it, and the
// workers' first report tells; that is not played here.
func (s *simulation) knows(given stored) bool {
	return given.observe(s.now).HighestEpoch() >= s.observe(s.now).HighestEpoch()
}

func newSimulation() *simulation {
	return &simulation{
		stored: stored{wanted: 2, generation: 1}, now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC),
		epochs: map[int64]int32{}, working: map[int32]int64{}, failing: map[int32]bool{}, held: map[int64]bool{},
	}
}

func (s stored) observe(now time.Time) Observation {
	s = s.copy()
	return Observation{
		Now: now, Status: s.status, Plan: s.plan, Published: s.published, Report: s.report, Pods: s.pods,
		Job: JobView{Name: "job", UID: "uid", Generation: s.generation, Wanted: s.wanted},
		Set: SetView{Exists: s.setExists, Replicas: s.setReplicas, Settled: true},
	}
}

// operate makes one pass of the operator, which sees the world as it was, and may crash after any write.
func (s *simulation) operate(t *rapid.T, seen stored, writes int) {
	o := seen.observe(s.now)
	step := Next(o)
	writeStatus := func() bool {
		next := NextStatus(o)
		if writes == 0 || writeInterval(o.Status, next) < 0 {
			return writes > 0
		}
		writes--
		if seen.statusVersion != s.statusVersion {
			return false
		}
		s.status, s.statusVersion = next, s.statusVersion+1
		seen.statusVersion = s.statusVersion
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
	switch step := step.(type) {
	case WritePlan:
		writes--
		if seen.planVersion != s.planVersion {
			return
		}
		s.writePlan(t, step)
	case ApplySet:
		writes--
		if seen.planVersion != s.planVersion || seen.setVersion != s.setVersion {
			return
		}
		if s.plan != nil && step.Replicas < s.plan.Slots {
			t.Fatalf("the StatefulSet gets %d pods while the plan has %d slots", step.Replicas, s.plan.Slots)
		}
		if step.Replicas < s.setReplicas {
			s.checkStop(t, seen, step.Replicas)
		}
		s.writeSet(true, step.Replicas)
	}
	writeStatus()
}

func (s *simulation) writeSet(exists bool, replicas int32) {
	s.setExists, s.setReplicas, s.setVersion = exists, replicas, s.setVersion+1
}

// checkStop says that pods are stopped only for one of the reasons there are.
func (s *simulation) checkStop(t *rapid.T, seen stored, replicas int32) {
	if s.plan.Slots == 0 || s.held[s.plan.Epoch] || !s.now.Before(s.published.Add(Patience)) {
		return
	}
	for _, p := range seen.pods {
		if p.Ordinal >= replicas && p.EverReady {
			t.Fatalf("%s is stopped before all slots are held under epoch %d", p.Name, s.plan.Epoch)
		}
	}
}

func (s *simulation) writePlan(t *rapid.T, step WritePlan) {
	if s.plan == nil || step.Epoch != s.plan.Epoch {
		for epoch := range s.epochs {
			if step.Epoch <= epoch {
				t.Fatalf("epoch %d is published after %d", step.Epoch, epoch)
			}
		}
		s.epochs[step.Epoch], s.published = step.Slots, s.now
	} else if step.Slots != s.epochs[step.Epoch] {
		t.Fatalf("epoch %d has %d slots and then %d", step.Epoch, s.epochs[step.Epoch], step.Slots)
	}
	s.plan = &v1alpha1.Plan{UID: "uid", Epoch: step.Epoch, Slots: step.Slots, Generation: s.generation}
	s.planVersion++
}

// runPods plays the StatefulSet controller and the kubelet.
func (s *simulation) runPods() {
	s.pods = slices.DeleteFunc(s.pods, func(p PodView) bool {
		if p.Ordinal >= s.setReplicas && s.setExists {
			delete(s.working, p.Ordinal)
			return true
		}
		return false
	})
	for k := range s.setReplicas {
		if !slices.ContainsFunc(s.pods, func(p PodView) bool { return p.Ordinal == k }) {
			s.pods = append(s.pods, PodView{Name: fmt.Sprintf("job-%d", k), Ordinal: k, Created: s.now, Current: true})
		}
	}
}

func (s *simulation) becomeReady(k int32) {
	for i := range s.pods {
		if p := &s.pods[i]; p.Ordinal == k && !p.Ready && !s.failing[k] {
			p.Ready, p.EverReady, p.ReadySince = true, true, s.now
		}
	}
}

// follow lets the worker of a ready pod take over the plan.
func (s *simulation) follow(k int32) {
	for _, p := range s.pods {
		switch {
		case p.Ordinal != k || !p.Ready || s.plan == nil:
		case k < s.plan.Slots:
			s.working[k] = s.plan.Epoch
		default:
			delete(s.working, k)
		}
	}
}

func (s *simulation) writeReport() {
	if s.plan == nil {
		return
	}
	coordinator := ""
	for _, p := range s.pods {
		if p.Ready && (coordinator == "" || p.Name < coordinator) {
			coordinator = p.Name
		}
	}
	if coordinator == "" {
		return
	}
	var held int32
	for k, epoch := range s.working {
		if k < s.plan.Slots && epoch == s.plan.Epoch {
			held++
		}
	}
	s.held[s.plan.Epoch] = s.held[s.plan.Epoch] || held == s.plan.Slots
	s.report = &v1alpha1.Report{
		UID: "uid", Coordinator: coordinator, Epoch: s.plan.Epoch, HighestEpoch: s.plan.Epoch, Slots: s.plan.Slots,
		Generation: s.plan.Generation, SlotCounts: v1alpha1.SlotCounts{Working: held, Unheld: s.plan.Slots - held},
	}
}

// goOn lets everybody do the next thing.
func (s *simulation) goOn(t *rapid.T) {
	s.operate(t, s.copy(), 100)
	s.runPods()
	for k := range s.setReplicas {
		s.becomeReady(k)
		s.follow(k)
	}
	s.writeReport()
}

// settle lets everything that is possible happen until nothing changes.
func (s *simulation) settle(t *rapid.T) {
	clear(s.failing)
	for range 60 {
		s.now = s.now.Add(time.Second)
		before := fmt.Sprint(s.statusVersion, s.planVersion, s.setReplicas, len(s.pods), s.working)
		s.goOn(t)
		if before == fmt.Sprint(s.statusVersion, s.planVersion, s.setReplicas, len(s.pods), s.working) {
			o := s.observe(s.now)
			if _, waiting := Next(o).(Wait); waiting && writeInterval(o.Status, NextStatus(o)) < 0 {
				return
			}
		}
	}
	t.Fatalf("the world does not come to rest: wanted %d, step %#v, status %+v", s.wanted, Next(s.observe(s.now)), s.status)
}

func (s *simulation) checkAtRest(t *rapid.T) {
	n := s.wanted
	if s.plan.Slots != n || s.setReplicas != n || int32(len(s.pods)) != n || s.status.Repartition != nil {
		t.Fatalf("wanted %d, plan %+v, %d replicas, %d pods, status %+v", n, s.plan, s.setReplicas, len(s.pods), s.status)
	}
	for k := range n {
		if s.working[k] != s.plan.Epoch {
			t.Fatalf("slot %d is not held under epoch %d: %v", k, s.plan.Epoch, s.working)
		}
	}
	reason := v1alpha1.ReasonRunning
	if n == 0 {
		reason = v1alpha1.ReasonPaused
	}
	for _, c := range s.status.Conditions {
		if c.Type == v1alpha1.ConditionReady && (c.Status != "True" || c.Reason != reason) {
			t.Fatalf("at rest with %d slots, Ready is %s: %s", n, c.Reason, c.Message)
		}
	}
	later := s.observe(s.now.Add(time.Hour))
	if wait, ok := Next(later).(Wait); !ok || wait.For != 0 {
		t.Fatalf("an idle job leads to %#v", Next(later))
	}
	if writeInterval(later.Status, NextStatus(later)) >= 0 {
		t.Fatalf("the status of an idle job changes from %+v to %+v", later.Status, NextStatus(later))
	}
}

// TestEveryHistoryEndsInTheNewestWish scales at random while caches lag, the operator crashes between writes, pods fail
// and reports are late.
func TestEveryHistoryEndsInTheNewestWish(t *testing.T) {
	for range 20 { // times the checks that rapid makes by itself: a history takes a millisecond
		rapid.Check(t, checkHistory)
	}
}

func checkHistory(t *rapid.T) {
	s := newSimulation()
	ordinal := rapid.Int32Range(0, 7)
	t.Repeat(map[string]func(*rapid.T){
		"": func(*rapid.T) { s.history = append(s.history, s.copy()) },
		"scale": func(t *rapid.T) {
			s.wanted, s.generation = rapid.Int32Range(0, 7).Draw(t, "n"), s.generation+1
		},
		"operate": func(t *rapid.T) {
			s.operate(t, s.copy(), rapid.IntRange(0, 3).Draw(t, "writes before a crash"))
		},
		"operate with a lagging cache": func(t *rapid.T) {
			back := rapid.IntRange(1, min(10, len(s.history))).Draw(t, "back")
			s.operate(t, s.history[len(s.history)-back].copy(), rapid.IntRange(0, 3).Draw(t, "writes before a crash"))
		},
		"go on": func(t *rapid.T) {
			for range rapid.IntRange(1, 6).Draw(t, "rounds") {
				s.goOn(t)
			}
		},
		"run pods":  func(*rapid.T) { s.runPods() },
		"fail":      func(t *rapid.T) { s.failing[ordinal.Draw(t, "ordinal")] = true },
		"get ready": func(t *rapid.T) { s.becomeReady(ordinal.Draw(t, "ordinal")) },
		"follow":    func(t *rapid.T) { s.follow(ordinal.Draw(t, "ordinal")) },
		"report":    func(*rapid.T) { s.writeReport() },
		"time": func(t *rapid.T) {
			s.now = s.now.Add(time.Duration(rapid.IntRange(1, 200).Draw(t, "seconds")) * time.Second)
		},
		"lose the status": func(*rapid.T) {
			without := s.copy()
			without.status = v1alpha1.ShardedJobStatus{}
			if s.knows(without) {
				s.status, s.statusVersion = without.status, s.statusVersion+1
			}
		},
		"lose the plan": func(*rapid.T) {
			without := s.copy()
			without.plan = nil
			if s.plan != nil && s.knows(without) {
				s.plan, s.planVersion = nil, s.planVersion+1
			}
		},
		"delete the StatefulSet, orphaning pods": func(*rapid.T) { s.writeSet(false, 0) },
		"resize the StatefulSet by hand": func(t *rapid.T) {
			if s.setExists {
				s.writeSet(true, rapid.Int32Range(0, 7).Draw(t, "replicas"))
			}
		},
	})
	s.settle(t)
	s.checkAtRest(t)
}
