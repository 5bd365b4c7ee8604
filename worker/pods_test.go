package worker_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"shardedjob.dev/api/v1alpha1"
)

// A pod was deleted by force on a node that is cut off from the API server, and lives on beside the one that takes its
// place: the lock decides, and the newcomer says for whom it waits.
func TestC12TwoPodsOfOneName(t *testing.T) {
	t.Parallel()
	j := withoutPending(newJob(t, nil, 60000, slow))
	j.publish(2)
	j.start(0, 1)
	j.inForce()
	const old = 101 // under which the test keeps it
	j.pods[old] = j.pods[1]
	j.start(1)
	pid := j.status(old).SessionPID
	j.eventually("the newcomer says for whom it waits", time.Minute, func() bool {
		st := j.status(1)
		return st.State == v1alpha1.SlotWaiting && strings.HasPrefix(st.Message, fmt.Sprintf("waiting for slot 1, which pid %d (%s) holds, ", pid, v1alpha1.PodName(j.name, 1)))
	})
	j.underWay(500)
	const byOthers = "SELECT count(*) FROM ledger WHERE app LIKE '%:1:%' AND pid <> $1"
	if n := j.count(byOthers, pid); n != 0 {
		j.fail("%d rows were processed by the newcomer too", n)
	}
	j.signal(old, syscall.SIGKILL)
	<-j.pods[old].exited
	j.eventually("the newcomer has the slot", time.Minute, func() bool { return j.count(byOthers, pid) > 0 })
	j.reload(func(p *v1alpha1.Plan) { p.Batch.Rows = 1000 })
	j.complete()
}

// A surplus pod that is started again before it is deleted does no work, its own or another's, and does not crash.
func TestC14SurplusWorkerIsStartedAgain(t *testing.T) {
	t.Parallel()
	j := withoutPending(newJob(t, nil, 60000, slow))
	j.plan.AdoptAfterSeconds = 1
	j.publish(3)
	j.start(0, 1, 2)
	j.inForce()
	j.publish(2)
	j.inForce()
	j.stop(2)
	const bySurplus = "SELECT count(*) FROM ledger WHERE app LIKE '%:2:%'"
	before := j.count(bySurplus)
	j.start(2)
	j.eventually("it has a session and no slot", time.Minute, func() bool {
		st := j.status(2)
		return st.SessionPID != 0 && st.State == v1alpha1.SlotWaiting && st.Message == "no slot for ordinal 2 of 2" && st.Problem == nil
	})
	j.signal(1, syscall.SIGKILL)
	<-j.pods[1].exited
	j.eventually("the slot of another is adopted", time.Minute, func() bool {
		s := j.slot(1)
		return s.State == v1alpha1.SlotAdopted && s.Holder == v1alpha1.PodName(j.name, 0)
	})
	j.reload(func(p *v1alpha1.Plan) { p.Batch.Rows = 1000 })
	j.complete()
	const slots = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid::int8 >> 29 = 1 AND pid = $1"
	if n := j.count(slots, j.status(2).SessionPID); n != 0 {
		t.Errorf("it holds %d slots", n)
	}
	if n := j.count(bySurplus); n != before {
		t.Errorf("it processed %d rows", n-before)
	}
	j.stop(2)
}

// A worker is told to stop, or gets another plan, each time that it has begun a batch: the batch is finished, so that there is
// progress however often that happens.
func TestC05NeverLongerThanABatch(t *testing.T) {
	t.Parallel()
	j := withoutPending(newJob(t, nil, 600, "UPDATE t SET done = true FROM (SELECT pg_sleep(0.5)) s WHERE id = ANY($1)"))
	j.plan.Batch.Rows = 20
	j.publish(1)
	begun := 0
	for range 4 {
		for name, interrupt := range map[string]func(){
			"an eviction":  func() { j.stop(0) },
			"another plan": func() { j.publish(j.plan.Slots%2 + 1) },
		} {
			if j.pods[0] == nil {
				j.start(0)
			}
			before := j.count("SELECT count(*) FROM ledger")
			// Worker 1 is never there: its slot is not worked.
			j.eventually("another batch is on the server", time.Minute, func() bool {
				n := j.count("SELECT coalesce(max(extract(epoch FROM query_start) * 1000000), 0)::bigint FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'")
				another := n > begun
				begun = max(begun, n)
				return another
			})
			interrupt()
			j.eventually(name+" does not undo the batch", 10*time.Second, func() bool { return j.count("SELECT count(*) FROM ledger") >= before+20 })
		}
	}
	j.publish(1)
	if j.pods[0] == nil {
		j.start(0)
	}
	j.reload(func(p *v1alpha1.Plan) { p.Batch.Rows = 1000 })
	j.complete()
}

// The grace of a pod is over before its batch is, as where a template cuts it short: the batch is not done, and done later.
func TestC06KilledBeforeTheBatchIsFinished(t *testing.T) {
	t.Parallel()
	j := withoutPending(newJob(t, nil, 300, "UPDATE t SET done = true FROM (SELECT pg_sleep(2)) s WHERE id = ANY($1)"))
	j.plan.Batch.Rows = 100
	j.publish(1)
	for range 2 {
		j.start(0)
		j.eventually("a batch is on the server", time.Minute, func() bool {
			return j.count("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'") > 0
		})
		before := j.count("SELECT count(*) FROM ledger")
		j.signal(0, syscall.SIGTERM)
		j.signal(0, syscall.SIGKILL)
		<-j.pods[0].exited
		j.eventually("its session is gone", 20*time.Second, func() bool { return j.locks() == 0 })
		if n := j.count("SELECT processed FROM shardedjob.slot"); n != before || j.count("SELECT count(*) FROM ledger") != before {
			t.Errorf("%d rows are counted as done, want the %d that are", n, before)
		}
	}
	j.start(0)
	if r := j.complete(); r.Processed != 300 {
		t.Errorf("report says %d processed, want 300", r.Processed)
	}
}
