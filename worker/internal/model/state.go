package model

import "math/bits"

// A Mark is the value of an epoch lock, and of the durable epoch: the epoch and the slot count that goes with it. Marks
// compare as integers, by epoch and then by slots. Zero is none.
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
	Holding                // with cursors: holds the slot, before step 4
	Recorded               // with cursors: after step 4, nothing read
	Primed                 // only with CursorBeforeSlot or AdoptUnlocked: has chosen a slot, does not hold it
)

// A Txn is the state of a session's transaction as the server sees it.
type Txn uint8

// Once COMMIT is sent the client can be gone and the transaction still commits.
const (
	NoTxn Txn = iota
	Open
	Committing
	Owing // only with CursorApart or FailureApart: half is committed
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
	Waits  uint32 // sessions of smaller marks seen at the look and still holding them

	Cursor uint8  // with cursors: where its slot's is
	Skip   uint16 // with cursors: rows that other layers covered when they were read
	Search        // with inserts
}

// A Session is the server side: its advisory locks and its transaction.
type Session struct {
	Live   bool
	Claim  Claim
	Slot   bool // holds the lock of its slot
	Intent bool // holds the intent of its worker's ordinal
	Txn    Txn
	Epoch  Mark   // epoch lock held
	At     uint8  // which slot, for an adopter
	Work   Mark   // the plan under which the slot was taken
	Rows   uint16 // rows of the open batch

	Failed   bool  // with failures: none of the rows is done
	From, To uint8 // with cursors: the move of the cursor in the open batch; equal where failures are tried again
}

// A State is one moment. Session 2w is the one worker w uses, 2w+1 the one it has left behind.
type State struct {
	Workers   [maxWorkers]Worker
	Sessions  [maxSessions]Session
	Published [maxJobs]uint8
	Asked     [maxJobs]bool // a worker has asked for a plan above all that are published
	Done      uint16
	Doubled   bool // an effect was committed a second time
	Complete  bool
	Database
}

// A Database is what outlives every session. Rows and Done aside, it is there with cursors alone.
type Database struct {
	Row     Mark // the durable epoch
	Layers  Layers
	Failed  uint16             // rows that a cursor has passed, kept apart
	PerSlot [maxCursors]Mark   // only with EpochPerSlot: durable epochs
	Top     Mark               // for the proof: the highest plan under which a batch was begun
	Back    bool               // for the proof: a batch was begun under a lower one
	Writers [maxInserts]Writer // with inserts
	Horizon uint8              // with inserts: rows up to the horizon, plus one; zero: not stored
	Owed    uint8              // for the proof: writers that were there before the job began
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

// upTo is the set of the first n rows of the table.
func upTo(n uint8) uint16 { return uint16(1<<n - 1) }

// last is how many rows of the table are there up to the last of a set.
func last(rows uint16) uint8 { return uint8(bits.Len16(rows)) }
