package controllers

import (
	"fmt"
	"strings"
	"time"

	"shardedjob.dev/api/v1alpha1"
)

// What comes after a mark in a message may change at any moment, so a change of it alone is written no more often than
// figures are.
const (
	adoptedMark = ". Adopted: "
	warningMark = ". Warning: "
)

// podsMissing says how many pods are ready, why others are not, and what becomes of their slots.
func podsMissing(o Observation) string {
	n := o.have()
	message := fmt.Sprintf("%d of %s ready%s", o.readyBelow(n), count(n, "pod is", "pods are"), quoteTroubles(o))
	if c := nextSlotCounts(o); c.Adopted > 0 {
		message += "; " + heldWords(o, *c) + adopters(o, *c)
	}
	return message
}

// unheldMessage says how many slots are held and pods ready, and what is known of the reason.
func unheldMessage(o Observation) string {
	n, c := o.Plan.Slots, nextSlotCounts(o)
	message := fmt.Sprintf("%s, %d of %s ready", heldWords(o, *c), o.readyBelow(n), count(n, "pod is", "pods are"))
	if problems := workerProblems(o); len(problems) > 0 {
		message += ": " + problems[0].Message
	}
	if o.ReportError != "" {
		message += "; " + o.ReportError
	}
	return message + adopters(o, *c)
}

func heldWords(o Observation, c v1alpha1.SlotCounts) string {
	slots := count(o.Plan.Slots, "slot is", "slots are")
	if c.Adopted == 0 {
		return fmt.Sprintf("%d of %s held", c.Working, slots)
	}
	return fmt.Sprintf("%d of %s held by their own worker, %s adopted", c.Working, slots, count(c.Adopted, "is", "are"))
}

// adopters says which slots are adopted and by whom; between two turns of a worker that serves several, nobody holds one.
func adopters(o Observation, c v1alpha1.SlotCounts) string {
	var all []string
	for _, s := range nextSlots(o) {
		switch {
		case s.State != v1alpha1.SlotAdopted:
		case s.Holder == "":
			all = append(all, fmt.Sprintf("slot %d by turns", s.Ordinal))
		default:
			all = append(all, fmt.Sprintf("slot %d by %s", s.Ordinal, s.Holder))
		}
	}
	if len(all) == 0 || c.Adopted == 0 {
		return ""
	}
	return adoptedMark + strings.Join(few(all, maxTroubles), ", ")
}

// completeTail tells of a group whose work was done before the job was made, so that nobody takes that for a mistake.
func completeTail(o Observation) string {
	at := nextCompletionTime(o)
	if o.Job.Pending || at == nil || !at.Time.Before(o.Job.Created) {
		return "; later changes of the spec have no effect"
	}
	return fmt.Sprintf("; it was complete already since %s, and the progress of consumer group %s is kept: annotate it with %s=true to start anew",
		at.UTC().Format(time.RFC3339), o.Job.Group, v1alpha1.AnnotationForget)
}
