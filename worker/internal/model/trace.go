package model

import (
	"fmt"
	"strings"
)

// A Kind names a step.
type Kind uint8

// Steps of the controller, the workers and the server, then the faults.
const (
	Publish Kind = iota
	Hear
	Connect
	AskClaim
	Yield
	WinClaim
	Peek
	Pause
	TakeEpoch
	LookOK
	Retreat
	Terminate
	GiveUp
	TakeSlot
	Begin
	SendCommit
	RollBack
	UnlockAll
	Commit
	SayComplete
	ReleaseSlot
	ReleaseEpoch
	Prime
	Record
	Refuse
	Recall
	Advance
	SendFailures
	Undo
	Drop
	AskBack
	Withdraw
	HandBack
	Rotate
	FindNone
	List
	Find
	Bound
	BeginInsert
	Prepare
	CommitInsert
	AbortInsert
	SessionEnds
	KillSession // a fault, like all that follow
	KillClient
	Restart
)

// A Step is one event. Who is a worker; a job for Publish, a session for Commit, Undo and SessionEnds, a writer for its steps.
type Step struct {
	Kind Kind
	Who  uint8
	Mark Mark
	Peer uint8 // a session, a slot, a slot count or a number of rows
}

func step(k Kind, w int, m Mark) Step { return Step{Kind: k, Who: uint8(w), Mark: m} }

func (s Step) fault() bool { return s.Kind >= KillSession }

func (m Mark) String() string { return fmt.Sprintf("(%d,%d)", m.epoch(), m.slots()) }

var sentences = map[Kind]string{
	Publish:      "controller of job %d publishes plan %s",
	Hear:         "worker %d hears of plan %s",
	Connect:      "worker %d connects",
	AskClaim:     "worker %d takes owner and conflict lock",
	Yield:        "worker %d sees a rival and lets go of its claim",
	WinClaim:     "worker %d sees no rival, the table is its job's",
	Peek:         "worker %d has no slot, looks and sees bigger %s",
	Pause:        "worker %d closes its session, the job is paused",
	TakeEpoch:    "worker %d takes epoch %s",
	LookOK:       "worker %d looks: nothing bigger than %s",
	Retreat:      "worker %d looks, sees bigger %s and is to let go",
	Terminate:    "worker %d terminates %s",
	GiveUp:       "worker %d is to let go, a new plan has come",
	TakeSlot:     "worker %d takes slot %[3]d under %[2]s",
	Begin:        "worker %d reads a batch and applies it",
	Advance:      "worker %d reads a batch and applies it, its cursor goes to row %[3]d",
	SendCommit:   "worker %d sends COMMIT",
	SendFailures: "worker %d has failed, keeps the rows apart and sends COMMIT",
	RollBack:     "worker %d misses a lock, rolls back and closes",
	UnlockAll:    "SQL of worker %d's user calls pg_advisory_unlock_all()",
	Commit:       "%s commits",
	Undo:         "%s finds that things have moved, and rolls back",
	SayComplete:  "worker %d says Complete",
	ReleaseSlot:  "worker %d unlocks its slot",
	ReleaseEpoch: "worker %d unlocks its epoch",
	Prime:        "worker %d sees slot %[3]d",
	Record:       "worker %d finds or writes durable epoch %s",
	Refuse:       "worker %d is refused by durable epoch %s",
	Recall:       "worker %d reads its cursor and the layers beside that of %s",
	Drop:         "worker %d deletes what older layers cover no more",
	AskBack:      "worker %d takes the intent of its slot",
	Withdraw:     "worker %d unlocks its intent",
	HandBack:     "worker %d sees an intent and is to let go of the slot",
	Rotate:       "worker %d is to let go of its slot for another",
	FindNone:     "worker %d finds no slot to adopt and is to let go",
	List:         "worker %d lists the writers",
	Find:         "worker %d reads the last key, with %[3]d rows up to it",
	Bound:        "worker %d takes %[3]d rows for the horizon",
	BeginInsert:  "writer %d begins, takes its key and inserts",
	Prepare:      "writer %d is prepared",
	CommitInsert: "writer %d commits",
	AbortInsert:  "writer %d rolls back",
	SessionEnds:  "%s ends",
	KillSession:  "session of worker %d is ended by someone",
	KillClient:   "client %d dies, its session lives on; it comes back with the first plan",
	Restart:      "database restarts",
}

func (s Step) String() string {
	f := sentences[s.Kind]
	switch s.Kind {
	case Terminate:
		return fmt.Sprintf(f, s.Who, sessionName(s.Peer))
	case Commit, Undo, SessionEnds:
		return fmt.Sprintf(f, sessionName(s.Who))
	case Restart:
		return f
	}
	switch {
	case strings.Contains(f, "%[3]d"):
		return fmt.Sprintf(f, s.Who, s.Mark, s.Peer)
	case strings.Contains(f, "%s"):
		return fmt.Sprintf(f, s.Who, s.Mark)
	}
	return fmt.Sprintf(f, s.Who)
}

func sessionName(i uint8) string {
	if i%2 == 1 {
		return fmt.Sprintf("abandoned session of worker %d", i/2)
	}
	return fmt.Sprintf("session of worker %d", i/2)
}

// A Violation is a broken property and the steps that lead to it from the start.
type Violation struct {
	Property Property
	Trace    []Step
}

func (v *Violation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s after %d steps:\n", v.Property, len(v.Trace))
	for i, s := range v.Trace {
		fmt.Fprintf(&b, "%4d. %s\n", i+1, s)
	}
	return b.String()
}
