package fence

import "time"

// A sighting is an older session as it was seen: who, and under which plan. The pid alone is not enough, it may be used again.
type sighting struct {
	pid   int32
	start int64 // microseconds, 0 where the server does not show it
	name  string
	mark  mark
}

func (h Holder) sighting() sighting {
	s := sighting{pid: h.PID, name: h.ApplicationName, mark: h.mark()}
	if !h.BackendStart.IsZero() {
		s.start = h.BackendStart.UnixMicro()
	}
	return s
}

// A view is what one look at the group's locks tells a session that wants to work under a plan.
type view struct {
	newer  *Holder  // of our group, under the newest plan that is newer than ours
	older  []Holder // of our group, under older plans
	strays []Holder // hold an epoch lock of another plan without being of our group
	slot   *Holder  // holds our slot
	intent *Holder  // holds our slot's intent
	block  *Holder  // holds our epoch lock exclusively, which no worker does
}

// judge is pure: it reads a look from the standpoint of session me, under plan m, wanting slot k.
//
// Plans compare by epoch and then by slots. Two plans of one epoch that differ in slots must not be worked at once: with
// equal epochs taken as equal plans, slot 1 of 3 and slot 1 of 4 would both be worked, and share rows. Whoever has
// fewer slots counts as older: it yields and the other waits for it, so exactly one of the two goes on. (If both let go
// at sight of each other, in step they could do so for ever.)
func judge(g Group, m mark, k, me int32, holders []Holder) (v view) {
	slot, intent, epoch := SlotKey(g, k), IntentKey(g, k), m.key(g)
	for i := range holders {
		h := &holders[i]
		switch {
		case h.PID == me:
		case h.Key == slot:
			v.slot = h
		case h.Key == intent:
			v.intent = h
		case h.Key == epoch:
			if h.Mode == Exclusive {
				v.block = h
			}
		case h.Key.Class != epoch.Class || h.Kind() != KindEpoch:
		case !h.Of(g):
			v.strays = append(v.strays, *h)
		case h.mark() > m:
			if v.newer == nil || h.mark() > v.newer.mark() {
				v.newer = h
			}
		default:
			v.older = append(v.older, *h)
		}
	}
	return v
}

// Looking and polling cost the server time in proportion to the locks there are, and n sessions do it: so the more slots, the
// rarer.
const (
	pollAtLeast    = 40 * time.Millisecond
	pollAtMost     = 2500 * time.Millisecond
	pollPerSlot    = 2500 * time.Microsecond
	lookAtLeast    = time.Second
	lookPerSlot    = 10 * time.Millisecond
	messagesEvery  = time.Second
	terminateEvery = time.Second
)

// pollInterval is the mean time between two tries of a waiting session.
func pollInterval(slots int32) time.Duration {
	return min(pollAtMost, max(pollAtLeast, time.Duration(slots)*pollPerSlot))
}

// LookInterval is how often a working session should call Superseded: 1 s up to 100 slots, 10 s for 1000.
func LookInterval(slots int32) time.Duration {
	return max(lookAtLeast, time.Duration(slots)*lookPerSlot)
}
