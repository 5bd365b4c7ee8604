package worker_test

import (
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/hack/netns"
	"shardedjob.dev/hack/postgres"
)

// startFar starts a worker on a machine of its own, from where it reaches the database over a cable and the API server not at all.
func (j *job) startFar(ordinal int32) *netns.Cable {
	j.t.Helper()
	cable := netns.ForTest(j.t)
	dir := filepath.Join(j.dir, "far")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		j.t.Fatal(err)
	}
	uri := j.server.URIAt(cable.Outside().String(), postgres.DatabaseName(j.uri))
	if err := os.WriteFile(filepath.Join(dir, "uri"), []byte(uri), 0o600); err != nil {
		j.t.Fatal(err)
	}
	j.mount()
	j.startWith(ordinal, func(p *process) { p.DatabaseDir, p.start, p.dial = dir, cable.Start, cable.Dial })
	return cable
}

// startBoth starts worker 0, which becomes the coordinator, and then worker 1 at the end of a cable.
func (j *job) startBoth() *netns.Cable {
	j.t.Helper()
	j.publish(2)
	j.start(0)
	j.eventually("worker 0 is the coordinator", time.Minute, func() bool {
		r, _ := j.report()
		return r.Coordinator == v1alpha1.PodName(j.name, 0)
	})
	return j.startFar(1)
}

// cut cuts a cable.
func (j *job) cut(cable *netns.Cable) {
	j.t.Helper()
	if err := cable.Cut(j.t.Context()); err != nil {
		j.t.Fatal(err)
	}
}

// TestCutWorkers is of workers that lose the database's machine, which does not tell. All its parts run at once, since they
// do little but wait.
func TestCutWorkers(t *testing.T) {
	t.Parallel()
	server := netns.PostgresForTest(t)
	var all sync.WaitGroup
	for name, part := range map[string]func(*testing.T, *postgres.Server){
		"A03 another takes over, and gives back":     testCutAndMended,
		"A04 one session for life":                   testOneSessionForLife,
		"B08 stops in the middle of a batch":         testStopsWhileCut(v1alpha1.SlotWorking),
		"B08 stops when idle":                        testStopsWhileCut(v1alpha1.SlotDrained),
		"B08 stops though it has no session anymore": testStopsWhileCut(v1alpha1.SlotWaiting),
	} {
		all.Go(func() { t.Run(name, func(t *testing.T) { part(t, server) }) })
	}
	all.Wait()
}

func testCutAndMended(t *testing.T, server *postgres.Server) {
	j := newJob(t, server, 40000, slow)
	j.plan.AdoptAfterSeconds, j.plan.Batch.Rows = 1, 20
	cable := j.startBoth()
	j.inForce()

	j.cut(cable)
	const byAnother = "SELECT count(*) FROM ledger WHERE app LIKE '%:0:%' AND MOD(id, 2) <> 0"
	before := j.count(byAnother)
	took := j.eventually("the slot is worked by another", time.Minute, func() bool { return j.count(byAnother) > before })
	t.Logf("the slot was worked by another after %.1f s", took.Seconds())
	if took > 15*time.Second {
		t.Errorf("the slot was worked by another after %v only", took)
	}
	j.eventually("the report says so", time.Minute, func() bool { return j.slot(1).State == v1alpha1.SlotAdopted })
	j.eventually("the worker knows that it has no session", time.Minute, func() bool {
		st := j.status(1)
		return st.Slots == 2 && st.SessionPID == 0
	})

	if err := cable.Mend(t.Context()); err != nil {
		t.Fatal(err)
	}
	took = j.eventually("the slot is back with its own worker", time.Minute, func() bool { return j.slot(1).State == v1alpha1.SlotWorking })
	t.Logf("the slot was back %.1f s after the cable was mended", took.Seconds())
	j.reload(func(p *v1alpha1.Plan) { p.Batch.Rows = 1000 })
	j.mount()
	j.complete()
}

// A worker that has nothing to do outlives every timeout of its session.
func testOneSessionForLife(t *testing.T, server *postgres.Server) {
	j := newJob(t, server, 20, plain)
	j.startBoth()
	j.complete()
	const slots = `SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database
		WHERE locktype = 'advisory' AND d.datname = current_database() AND objid::int8 >> 29 = 1 AND pid IN ($1, $2)`
	first, second := j.status(0).SessionPID, j.status(1).SessionPID
	const longestTimeout = time.Minute
	began := time.Now()
	for range time.Tick(250 * time.Millisecond) {
		if n := j.count(slots, first, second); n != 2 {
			j.fail("%d of two slots are held by the workers' first sessions", n)
		}
		if a, b := j.status(0).SessionPID, j.status(1).SessionPID; a != first || b != second {
			j.fail("sessions %d and %d became %d and %d", first, second, a, b)
		}
		if time.Since(began) > longestTimeout+5*time.Second {
			return
		}
	}
}

// testStopsWhileCut tells a worker to stop, in a state in which it was cut off.
func testStopsWhileCut(state v1alpha1.SlotState) func(*testing.T, *postgres.Server) {
	return func(t *testing.T, server *postgres.Server) {
		j := newJob(t, server, 1000, "UPDATE t SET done = true FROM (SELECT pg_sleep(3)) s WHERE id = ANY($1)")
		j.plan.Batch.TimeoutSeconds, j.plan.HandoverSeconds = 4, 5
		grace := time.Duration(j.plan.HandoverSeconds+10) * time.Second
		if state == v1alpha1.SlotDrained {
			j.exec("UPDATE t SET done = true")
		}
		j.publish(1)
		cable := j.startFar(0)
		if state == v1alpha1.SlotDrained {
			j.eventually("the worker has nothing to do", time.Minute, func() bool { return j.status(0).State == v1alpha1.SlotDrained })
		} else {
			j.eventually("the worker is in the middle of a batch", time.Minute, func() bool {
				return j.count("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'") > 0
			})
		}
		j.cut(cable)
		if state == v1alpha1.SlotWaiting {
			j.eventually("the worker knows that it has no session", time.Minute, func() bool { return j.status(0).SessionPID == 0 })
		}
		j.signal(0, syscall.SIGTERM)
		told := time.Now()
		select {
		case <-j.pods[0].exited:
			t.Logf("it stopped within %.1f s", time.Since(told).Seconds())
		case <-time.After(grace):
			j.fail("it does not stop within %v", grace)
		}
	}
}
