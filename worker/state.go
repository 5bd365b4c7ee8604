package worker

import (
	"sync"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/worker/coordinator"
	"shardedjob.dev/worker/heartbeat"
)

// Status is what /statusz shows.
type Status struct {
	// Job is <namespace>/<name> of the ShardedJob, Pod the worker's pod and Ordinal its number.
	Job     string `json:"job"`
	Pod     string `json:"pod"`
	Ordinal int32  `json:"ordinal"`
	// Role is the worker's own part in the coordination; Coordinator is the pod that has the coordinator's seat.
	Role        coordinator.Role `json:"role"`
	Coordinator string           `json:"coordinator,omitempty"`
	// Epoch, Slots and Generation of the plan that is followed.
	Epoch      int64 `json:"epoch"`
	Slots      int32 `json:"slots"`
	Generation int64 `json:"generation"`
	// State of the worker's slot, and what it waits for.
	State   v1alpha1.SlotState `json:"state"`
	Message string             `json:"message,omitempty"`
	// SessionPID is the server process that holds the locks; 0 without a session.
	SessionPID uint32 `json:"sessionPid,omitempty"`
	// Adopts are the slots that the worker looks after beside its own.
	Adopts []int32 `json:"adopts,omitempty"`
	// Processed and Failed count rows since the process started.
	Processed int64 `json:"processed"`
	Failed    int64 `json:"failed"`
	// Problem is what keeps the worker from working.
	Problem *v1alpha1.Problem `json:"problem,omitempty"`
}

// state is what the loop lets the rest of the process know. It is safe for concurrent use.
type state struct {
	mu    sync.Mutex
	beat  heartbeat.Beat
	chief string // the coordinator's pod
	pid   uint32
	ready bool  // connected to the database, everything checked
	news  bool  // something worth a heartbeat at once
	told  int64 // processed rows in the last heartbeat
}

// update changes the beat, and notes whether that is worth a heartbeat at once.
func (s *state) update(change func(*heartbeat.Beat)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.beat
	change(&s.beat)
	after := &s.beat
	after.HighestEpoch = max(after.HighestEpoch, after.Epoch)
	if before.State != after.State || before.Epoch != after.Epoch || before.Generation != after.Generation ||
		before.HighestEpoch != after.HighestEpoch ||
		!equalProblems(before.Problem, after.Problem) {
		s.news = true
	}
}

// follow notes the plan that the worker obeys.
func (s *state) follow(p v1alpha1.Plan) {
	s.update(func(b *heartbeat.Beat) { b.Epoch, b.Slots, b.Generation = p.Epoch, p.Slots, p.Generation })
}

// serve notes which slot an adopter turns to.
func (s *state) serve(slot int32) {
	s.update(func(b *heartbeat.Beat) {
		b.Slot, b.State, b.Message, b.Warning, b.Failed, b.Problem = slot, v1alpha1.SlotWaiting, "", "", 0, nil
	})
}

// set notes what is going on in the slot.
func (s *state) set(to v1alpha1.SlotState, message string) {
	s.update(func(b *heartbeat.Beat) { b.State, b.Message = to, message })
}

// problem notes what keeps the worker from working, nil if nothing does.
func (s *state) problem(p *v1alpha1.Problem) {
	s.update(func(b *heartbeat.Beat) { b.Problem = p })
}

// session notes the server process of the session, 0 when it has ended, and whether everything about it is checked.
func (s *state) session(pid uint32, ready bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pid, s.ready = pid, ready
}

// led notes who the coordinator is, and asks for a heartbeat if it is a new one, which knows nothing yet.
func (s *state) led(pod string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.chief != pod {
		s.chief, s.news = pod, true
	}
}

// take returns the beat if there is news since the last call, also if only the count has changed where counts is set, or
// in any case.
func (s *state) take(counts, always bool) (heartbeat.Beat, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if counted := counts && s.beat.Processed != s.told; !s.news && !always && !counted {
		return heartbeat.Beat{}, false
	}
	s.news, s.told = false, s.beat.Processed
	return s.beat, true
}

// processed is the number of rows committed since the process started.
func (s *state) processed() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.beat.Processed
}

// isReady says whether the worker could work if it had a slot.
func (s *state) isReady() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ready
}

// fill copies what is known into a status.
func (s *state) fill(st *Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.beat
	st.Epoch, st.Slots, st.Generation = b.Epoch, b.Slots, b.Generation
	st.State, st.Message, st.Problem = b.State, b.Message, b.Problem
	st.Processed, st.Failed = b.Processed, b.Failed
	st.Coordinator, st.SessionPID = s.chief, s.pid
}
