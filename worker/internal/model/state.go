package model

import "math/bits"

// A Mark is the value of an epoch lock: the epoch and the slot count that goes with it. Marks compare as integers, by epoch
// and then by slots. Zero is no lock.
type Mark uint8

func markOf(p Plan) Mark { return Mark(p.Epoch<<4 | p.Slots) }

func (m Mark) epoch() uint8 { return uint8(m) >> 4 }
func (m Mark) slots() uint8 { return uint8(m) & 15 }

// A Phase is a worker's place in the protocol.
type Phase uint8

// The phases in their order.
const (
	Down      Phase = iota // no session
	Unclaimed              // a session that holds nothing
	Claimed                // owner and conflict lock taken, rivals not looked for
	Ready                  // may enter, holds neither epoch nor slot
	Entered                // epoch lock taken, others not looked at
	Waiting                // looked; older epochs, then the slot
	Working                // holds the slot, batch by batch
	Leaving                // lets go of its slot, if it has one, and then of its epoch
	Peeked                 // only with LookFirst: looked, nothing taken
	Severed                // only with SilentReconnect: session lost, believes itself Working
)

// A Txn is the state of a session's transaction as the server sees it.
type Txn uint8

// Once COMMIT is sent the client can be gone and the transaction still commits.
const (
	NoTxn Txn = iota
	Open
	Committing
)

// A Claim is what a session knows of the table: it holds owner and conflict lock, and has seen no rival.
type Claim uint8

// Lapsed exists only with DropClaim and LookForRivalsAgain.
const (
	NoClaim Claim = iota
	Asked         // locks held
	Granted       // locks held, and no rival was there when they were
	Lapsed        // was granted, then dropped though the session lives
)

func (c Claim) held() bool { return c == Asked || c == Granted }

// A Worker is the client side.
type Worker struct {
	Phase  Phase
	View   uint8  // index of the newest plan heard of
	Follow Mark   // an epoch lock above that plan; zero to go by the plan
	Obey   Mark   // entered under this
	Waits  uint16 // sessions of smaller marks seen at the look and still holding them
}

// A Session is the server side: its advisory locks and its transaction.
type Session struct {
	Live  bool
	Claim Claim
	Slot  bool // holds the lock of its worker's ordinal
	Txn   Txn
	Epoch Mark   // epoch lock held
	Work  Mark   // the plan under which the slot was taken
	Rows  uint16 // rows of the open batch
}

// A State is one moment. Session 2w is the one worker w uses, 2w+1 the one it has left behind.
type State struct {
	Workers   [maxWorkers]Worker
	Sessions  [maxSessions]Session
	Published [maxJobs]uint8
	Asked     [maxJobs]bool // a worker has asked for a plan above two of one epoch
	Done      uint16
	Doubled   bool // an effect was committed a second time
	Complete  bool
}

const (
	workerBytes  = 6
	sessionBytes = 5
	sharedBytes  = maxJobs + 3
)

// width is the number of bytes of an encoded state of this instance.
func (m *Model) width() int {
	return len(m.Workers)*(workerBytes+2*sessionBytes) + sharedBytes
}

// encode appends s: as short as byte fields make it, one encoding for each state.
func (m *Model) encode(b []byte, s *State) []byte {
	for w := range m.Workers {
		k := &s.Workers[w]
		b = append(b, byte(k.Phase), k.View, byte(k.Follow), byte(k.Obey), byte(k.Waits), byte(k.Waits>>8))
	}
	for i := range 2 * len(m.Workers) {
		x := &s.Sessions[i]
		b = append(b, bit(x.Live)|bit(x.Slot)<<1|byte(x.Claim)<<2|byte(x.Txn)<<4,
			byte(x.Epoch), byte(x.Work), byte(x.Rows), byte(x.Rows>>8))
	}
	b = append(b, s.Published[:]...)
	return append(b, byte(s.Done), byte(s.Done>>8), bit(s.Doubled)|bit(s.Complete)<<1|bit(s.Asked[0])<<2|bit(s.Asked[1])<<3)
}

// decode is the inverse of encode.
func (m *Model) decode(b []byte) (s State) {
	for w := range m.Workers {
		s.Workers[w] = Worker{Phase: Phase(b[0]), View: b[1], Follow: Mark(b[2]), Obey: Mark(b[3]), Waits: uint16(b[4]) | uint16(b[5])<<8}
		b = b[workerBytes:]
	}
	for i := range 2 * len(m.Workers) {
		s.Sessions[i] = Session{Live: b[0]&1 != 0, Slot: b[0]&2 != 0, Claim: Claim(b[0] >> 2 & 3), Txn: Txn(b[0] >> 4),
			Epoch: Mark(b[1]), Work: Mark(b[2]), Rows: uint16(b[3]) | uint16(b[4])<<8}
		b = b[sessionBytes:]
	}
	copy(s.Published[:], b)
	b = b[maxJobs:]
	s.Done, s.Doubled, s.Complete = uint16(b[0])|uint16(b[1])<<8, b[2]&1 != 0, b[2]&2 != 0
	s.Asked = [maxJobs]bool{b[2]&4 != 0, b[2]&8 != 0}
	return s
}

func bit(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// lowest returns the n lowest rows of a set.
func lowest(rows uint16, n int) uint16 {
	rest := rows
	for range min(n, bits.OnesCount16(rows)) {
		rest &= rest - 1
	}
	return rows &^ rest
}
