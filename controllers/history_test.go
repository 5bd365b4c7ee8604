package controllers

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"shardedjob.dev/api/v1alpha1"
)

// checkStatus says what must be true of every status, whatever was seen.
func (s *simulation) checkStatus(t *rapid.T, o Observation, next v1alpha1.ShardedJobStatus) {
	if next.ObservedGeneration != o.Job.Generation || len(next.Conditions) != 6 {
		t.Fatalf("generation %d, %d conditions", next.ObservedGeneration, len(next.Conditions))
	}
	for _, c := range next.Conditions {
		if c.ObservedGeneration != o.Job.Generation || c.Message == "" {
			t.Fatalf("of generation %d: %+v", o.Job.Generation, c)
		}
	}
	if c := next.SlotCounts; o.Plan != nil && !o.Complete() && c.Working+c.Adopted+c.Waiting+c.Unheld != o.Plan.Slots {
		t.Fatalf("of %d slots, %+v", o.Plan.Slots, c)
	}
	ready := meta.FindStatusCondition(next.Conditions, v1alpha1.ConditionReady)
	if ready.Status != metav1.ConditionTrue {
		return
	}
	inForce := o.Plan != nil && o.Plan.Slots == o.Job.Wanted && o.Plan.Forget == o.Job.Forget && next.Repartition == nil
	switch r := o.Report; ready.Reason {
	case v1alpha1.ReasonRunning:
		inForce = inForce && o.Plan.Generation == o.Job.Generation && r.Epoch == o.Plan.Epoch && r.Generation >= o.Job.Generation &&
			r.SlotCounts.Working == o.Job.Wanted && o.readyBelow(o.Job.Wanted) == o.Job.Wanted && o.Job.Wanted > 0 && !o.Job.Forget
	case v1alpha1.ReasonPaused:
		inForce = inForce && o.Job.Wanted == 0 && len(o.Pods) == 0
	case v1alpha1.ReasonForgotten:
		inForce = inForce && o.Job.Forget && r.Forgotten && r.Epoch == o.Plan.Epoch && len(o.Pods) == 0
	case v1alpha1.ReasonComplete:
		inForce = !o.Job.Forget && next.CompletionTime != nil
	}
	if !inForce {
		t.Fatalf("Ready is True, %s: %+v", ready.Reason, o)
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
	for k := range s.setReplicas {
		s.adopt(k)
	}
	s.writeReport()
}

// settle lets everything that is possible happen until nothing changes. Sessions of lost nodes end. The nodes come back,
// unless their pods are to be removed and there is a worker to give the evidence.
func (s *simulation) settle(t *rapid.T) {
	clear(s.failing)
	if s.forget {
		delete(s.never, 0)
	}
	witness := slices.ContainsFunc(s.pods, func(p PodView) bool { return p.Ordinal < s.wanted && !s.lost[p.UID] && !s.never[p.Ordinal] })
	for _, p := range s.pods {
		if s.lost[p.UID] {
			delete(s.working, p.Ordinal)
		}
	}
	if !s.forceDelete || !witness || s.forget || s.done {
		clear(s.lost)
	}
	state := func() string {
		return fmt.Sprint(s.jobVersion, s.planVersion, s.setReplicas, s.pods, s.working, s.adopted, s.report)
	}
	for range 200 {
		s.now = s.now.Add(5 * time.Second)
		before := state()
		s.goOn(t)
		if before == state() {
			o := s.observe(s.now)
			if wait, ok := Next(o).(Wait); ok && wait.For == 0 && writeInterval(o.Status, NextStatus(o)) < 0 {
				return
			}
		}
	}
	t.Fatalf("the world does not come to rest: wanted %d, step %#v, status %+v", s.wanted, Next(s.observe(s.now)), s.status)
}

func (s *simulation) checkAtRest(t *rapid.T) {
	n, reason := s.wanted, v1alpha1.ReasonRunning
	switch o := s.observe(s.now); {
	case o.Complete() && !s.done:
		t.Fatalf("the job is complete, though progress was dropped under epoch %d", s.dropped)
	case o.Complete():
		n, reason = 0, v1alpha1.ReasonComplete
	case s.done && n > 0 && !s.forget:
		t.Fatalf("the work is done and the job is not complete: %+v", s.status)
	case s.forget:
		n, reason = 0, v1alpha1.ReasonForgotten
	case s.plan.Slots != n:
		t.Fatalf("wanted %d, plan %+v", n, s.plan)
	case n == 0:
		reason = v1alpha1.ReasonPaused
	}
	if s.setReplicas != n || int32(len(s.pods)) != n || s.status.Repartition != nil {
		t.Fatalf("wanted %d, %d replicas, pods %+v, status %+v", n, s.setReplicas, s.pods, s.status)
	}
	want := metav1.ConditionTrue
	for k := range n {
		held := s.working[k]
		if p := s.pods[slices.IndexFunc(s.pods, func(p PodView) bool { return p.Ordinal == k })]; !p.Ready && s.never[k] {
			want, held = metav1.ConditionFalse, s.adopted[k]
		}
		if held != s.plan.Epoch {
			t.Fatalf("slot %d is not held under epoch %d: %v, adopted %v", k, s.plan.Epoch, s.working, s.adopted)
		}
	}
	ready := meta.FindStatusCondition(s.status.Conditions, v1alpha1.ConditionReady)
	if ready.Status != want || want == metav1.ConditionTrue && ready.Reason != reason {
		t.Fatalf("at rest with %d slots, Ready is %s: %s", n, ready.Reason, ready.Message)
	}
	later := s.observe(s.now.Add(time.Hour))
	if wait, ok := Next(later).(Wait); !ok || wait.For != 0 {
		t.Fatalf("an idle job leads to %#v", Next(later))
	}
	if writeInterval(later.Status, NextStatus(later)) >= 0 {
		t.Fatalf("the status of an idle job changes from %+v to %+v", later.Status, NextStatus(later))
	}
}

// TestEveryHistoryEndsInTheNewestWish scales, forgets and completes at random while caches lag, the operator crashes between
// writes, pods fail or never come, nodes are lost and reports are late.
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
			s.wanted, s.generation, s.jobVersion = rapid.Int32Range(0, 7).Draw(t, "n"), s.generation+1, s.jobVersion+1
		},
		"annotate forget": func(*rapid.T) { s.forget, s.jobVersion = !s.forget, s.jobVersion+1 },
		"another rule for lost pods": func(*rapid.T) {
			s.forceDelete, s.generation, s.jobVersion = !s.forceDelete, s.generation+1, s.jobVersion+1
		},
		"process the last row": func(*rapid.T) { s.done = s.done || s.plan != nil && s.held[s.plan.Epoch] && !s.plan.Forget },
		"operate": func(t *rapid.T) {
			s.operate(t, s.copy(), rapid.IntRange(0, 3).Draw(t, "writes before a crash"))
		},
		"operate with a lagging cache": func(t *rapid.T) {
			back := rapid.IntRange(1, min(10, len(s.history))).Draw(t, "back")
			s.operate(t, s.history[len(s.history)-back].copy(), rapid.IntRange(0, 3).Draw(t, "writes before a crash"))
		},
		"operate with caches that lag apart": func(t *rapid.T) {
			past := func(what string) stored {
				return s.history[len(s.history)-rapid.IntRange(1, min(10, len(s.history))).Draw(t, what)]
			}
			seen := mix(past("job"), past("plan"), past("set"), past("report"), past("pods")).copy()
			if seen.plan != nil || s.knows(seen) {
				s.operate(t, seen, rapid.IntRange(0, 3).Draw(t, "writes before a crash"))
			}
		},
		"go on": func(t *rapid.T) {
			for range rapid.IntRange(1, 6).Draw(t, "rounds") {
				s.goOn(t)
			}
		},
		"run pods":      func(*rapid.T) { s.runPods() },
		"fail":          func(t *rapid.T) { s.failing[ordinal.Draw(t, "ordinal")] = true },
		"never come":    func(t *rapid.T) { s.never[rapid.Int32Range(1, 7).Draw(t, "ordinal")] = true },
		"get ready":     func(t *rapid.T) { s.becomeReady(ordinal.Draw(t, "ordinal")) },
		"follow":        func(t *rapid.T) { s.follow(ordinal.Draw(t, "ordinal")) },
		"adopt":         func(t *rapid.T) { s.adopt(ordinal.Draw(t, "ordinal")) },
		"lose a node":   func(t *rapid.T) { s.lose(ordinal.Draw(t, "ordinal")) },
		"end a session": func(t *rapid.T) { delete(s.working, ordinal.Draw(t, "ordinal")) },
		"report":        func(*rapid.T) { s.writeReport() },
		"time": func(t *rapid.T) {
			s.now = s.now.Add(time.Duration(rapid.IntRange(1, 200).Draw(t, "seconds")) * time.Second)
		},
		"lose the status": func(*rapid.T) {
			without := s.copy()
			without.status = v1alpha1.ShardedJobStatus{}
			if s.knows(without) {
				s.status, s.jobVersion = without.status, s.jobVersion+1
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
