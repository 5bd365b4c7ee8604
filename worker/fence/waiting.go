package fence

import (
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Reason is why an entry waits.
type Reason string

// The reasons to wait.
const (
	// WaitingOlderPlan: sessions of an older plan have not let go yet. They are ended after the hand-over time.
	WaitingOlderPlan Reason = "OlderPlan"
	// WaitingCannotEnd: such a session should be ended, but this session's role may not.
	WaitingCannotEnd Reason = "CannotEnd"
	// WaitingAdopted: another worker has adopted the slot and hands it back at its next batch boundary.
	WaitingAdopted Reason = "Adopted"
	// WaitingSlotHeld: another session of the same ordinal holds the slot under the same plan.
	WaitingSlotHeld Reason = "SlotHeld"
	// WaitingForeignLock: a session that is no worker of the group holds one of its locks. It is never ended.
	WaitingForeignLock Reason = "ForeignLock"
)

// Waiting says what an entry waits for.
type Waiting struct {
	Reason Reason
	// Message is a sentence for people.
	Message string
	// Holders are the sessions that are waited for.
	Holders []Holder
	// For how long the entry has been waiting, altogether.
	For time.Duration
}

// tell calls onWait, for one reason at most once a second.
func (e *entry) tell(now time.Time, reason Reason, message string, holders []Holder) {
	if reason == e.reason && now.Sub(e.told) < messagesEvery {
		return
	}
	e.told, e.reason = now, reason
	e.onWait(Waiting{Reason: reason, Message: message, Holders: holders, For: now.Sub(e.since)})
}

// olderEpoch tells about the sessions of older plans, the one that is there longest by name.
func (e *entry) olderEpoch(older []Holder, now time.Time) {
	first := older[0]
	for _, h := range older {
		if e.clocks[h.sighting()].Before(e.clocks[first.sighting()]) {
			first = h
		}
		if words, ok := e.denied[h.sighting()]; ok {
			e.tell(now, WaitingCannotEnd, cannotEnd(h, e.conn.Config().User, words), older)
			return
		}
	}
	message := fmt.Sprintf("waiting for %s of epoch %d, %s; its session is ended after %s",
		first.Who(), first.Epoch(), seconds(now.Sub(e.clocks[first.sighting()])), seconds(e.claim.Handover))
	e.tell(now, WaitingOlderPlan, message+others(len(older)), older)
}

// cannotEnd says what a person has to do. The usual cause is a database role that was changed while workers of the old one go on.
func cannotEnd(h Holder, me, words string) string {
	return fmt.Sprintf("waiting for %s of epoch %d, whose session belongs to role %q and may not be ended by role %q (%s): GRANT pg_signal_backend TO %s, or end it with SELECT pg_terminate_backend(%d)",
		h.Who(), h.Epoch(), h.User, me, words, pgx.Identifier{me}.Sanitize(), h.PID)
}

// slotHeld tells about the session that holds our slot.
func (e *entry) slotHeld(h Holder) {
	reason, does := WaitingSlotHeld, "holds"
	if h.Identity.Ordinal != e.claim.Ordinal {
		reason, does = WaitingAdopted, "has adopted"
	}
	now := time.Now()
	message := fmt.Sprintf("waiting for slot %d, which %s %s, %s", e.claim.Slot, h.Who(), does, seconds(now.Sub(e.since)))
	e.tell(now, reason, message, []Holder{h})
}

func (e *entry) foreign(holders ...Holder) {
	now := time.Now()
	kind, _ := holders[0].Key.Parse()
	// Without the time: it is reported as a problem, and each new text of one is written to the API server.
	message := fmt.Sprintf("waiting for %s, which holds the %s lock (%d, %d) of this group without being one of its workers",
		stranger(holders[0]), kind, uint32(holders[0].Key.Class), uint32(holders[0].Key.Object))
	e.tell(now, WaitingForeignLock, message+others(len(holders)), holders)
}

// stranger names a session that is not of the group in full, even if it is a worker of another.
func stranger(h Holder) string {
	h.Ours = false
	return h.Who()
}

func others(n int) string {
	if n < 2 {
		return ""
	}
	return fmt.Sprintf(" (and %d more)", n-1)
}

func seconds(d time.Duration) string {
	return fmt.Sprintf("%d s", int64(d.Round(time.Second)/time.Second))
}
