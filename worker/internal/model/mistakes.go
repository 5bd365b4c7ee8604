package model

// A Mistake is one way to get the protocol wrong. Mistakes can be combined.
type Mistake uint64

// Each mistake leaves out one rule of the fence.
const (
	LookFirst           Mistake = 1 << iota // looks at the epoch locks before taking its own
	AcceptTwoSlotCounts                     // compares epoch locks by the epoch alone: other slot counts are no other plan
	NoAsk                                   // yields to more slots in its epoch without asking for a plan above
	EpochWithoutSlots                       // the epoch lock does not carry the slot count
	NoWait                                  // does not wait for older epochs
	WaitForSlotsOnly                        // waits for older sessions that hold a slot, not for older epochs
	WaitForSessionEnd                       // waits for the end of older sessions though sessions outlive a hand-over
	TerminateIsDone                         // takes pg_terminate_backend's return for the session's end
	SlotFirst                               // takes the slot before the older epochs are gone
	ReadEarly                               // reads the first batch before it holds the slot
	UnlockBeforeCommit                      // lets go of slot and epoch, then commits
	NoOwnLockCheck                          // commits without counting its own locks
	TriggersAfterCheck                      // counts its own locks before deferred triggers have run
	SilentReconnect                         // takes the slot again on a new session without entering
	KeepClaim                               // a conflicting newcomer keeps its claim and polls
	DropClaim                               // lets go of the claim at a hand-over
	LookForRivalsAgain                      // looks for rivals at each hand-over, as if it were a newcomer
	CompareSlotsFirst                       // compares epoch locks with the slot count in the high bits
	NoFollow                                // goes by its own plan alone when it meets a newer epoch
	SurplusSleeps                           // a worker without a slot in its plan does not look at epoch locks
	PlainMod                                // MOD(key, n) = k, without k - n
	EmptyIsEnd                              // takes an empty slot for the end
	NoHerald                                // a worker without a slot in its plan does not show it to those of older ones

	endOfFence
)

// Mistakes about cursors, layers and the durable epoch.
const (
	LayersEarly      = endOfFence << iota // reads the other layers before it waits for older epochs
	CursorEarly                           // reads its cursor before step 4, the other layers after
	CursorBeforeSlot                      // reads what is done before it holds the slot
	NullIsZero                            // takes a cursor that is not there for the key 0
	PresentStart                          // starts a layer at the lowest cursor of those slots of another that have one
	PresentDrop                           // drops a layer once those of its slots that have a cursor have passed it
	DropByOneSlot                         // drops a layer once its own cursor has passed it
	EpochPerSlot                          // the durable epoch is one row per slot
	EpochInBatch                          // checks and raises the durable epoch in the transaction of the batch, not in step 4
	OlderLayersOnly                       // does not read the layers of newer plans
	OpenLayers                            // step 4 does not stop the cursors of older plans
	NoCompare                             // moves the cursor wherever it is
	CursorApart                           // commits the effects first, the cursor after
	FailureApart                          // commits the cursor first, the rows that failed after
	StartAtHighest                        // starts a layer at the highest cursor of the others
	MergeOtherCounts                      // takes over the cursors of a layer with another slot count

	endOfCursors
)

// Mistakes about adoption.
const (
	AdoptUnlocked = endOfCursors << iota // works a slot that it saw unheld, without its lock
	IgnoreIntent                         // an adopter does not look whether its slot is wanted back
	YieldToSelf                          // a slot's own worker yields to the intent on it
	NoRotation                           // an adopter stays with its slot

	endOfAdoption
)

// Mistakes about late commits.
const (
	NoHorizon   = endOfAdoption << iota // moves the cursor up to the last row that is there
	WaitForPid                          // waits for the writer's process, not for its lock
	ListFirst                           // lists the writers before it reads the horizon, or in one statement, which has no order
	NoFirstWait                         // does not wait for those who were writing when the job began
	OldSnapshot                         // reads rows by the snapshot of the list, taken before the wait
	KeepList                            // goes on with the wait of a session that was lost

	endOfMistakes
)

func (m *Model) wrong(x Mistake) bool { return m.Mistakes&x != 0 }
