package worker_test

import (
	"syscall"
	"testing"
	"time"

	"shardedjob.dev/api/v1alpha1"
)

// adoptedJob is a job whose slots are adopted soon.
func adoptedJob(t *testing.T, rows int, statement string) *job {
	t.Helper()
	j := newJob(t, nil, rows, statement)
	j.plan.AdoptAfterSeconds, j.plan.Batch.Rows = 1, 20
	return j
}

// slot is what the report says of a slot.
func (j *job) slot(k int32) v1alpha1.SlotStatus {
	j.t.Helper()
	r, _ := j.report()
	for _, s := range r.SlotStatuses {
		if s.Ordinal == k {
			return s
		}
	}
	return v1alpha1.SlotStatus{}
}

func TestMissingWorkersSlotIsWorkedByOthers(t *testing.T) {
	t.Parallel()
	j := adoptedJob(t, 4000, slow)
	j.publish(5)
	j.start(0, 1, 2, 3)
	j.eventually("slot 4 is adopted", time.Minute, func() bool {
		s := j.slot(4)
		return s.State == v1alpha1.SlotAdopted && s.Holder != ""
	})
	r, _ := j.report()
	if r.SlotCounts.Adopted != 1 {
		t.Errorf("counts %+v, want one slot adopted", r.SlotCounts)
	}
	if r := j.complete(); r.Processed != 4000 {
		t.Errorf("report says %d processed, want 4000", r.Processed)
	}
	j.stop(0, 1, 2, 3)
	j.eventually("no lock is left", 10*time.Second, func() bool { return j.locks() == 0 })
}

func TestOneWorkerFinishesTenSlots(t *testing.T) {
	t.Parallel()
	j := adoptedJob(t, 5000, plain)
	j.publish(10)
	j.start(3)
	j.complete()
	if n := j.count("SELECT count(DISTINCT pid) FROM ledger"); n > 2 {
		t.Errorf("the worker used %d sessions, want its own and the adopter's", n)
	}
}

// The owner gets its slot back within about one batch, though the adopter would have enough to do for long.
func TestAdoptedSlotIsHandedBack(t *testing.T) {
	t.Parallel()
	j := adoptedJob(t, 20000, slow)
	j.publish(3)
	j.start(0, 1)
	j.eventually("slot 2 is worked", time.Minute, func() bool {
		return j.count("SELECT count(*) FROM ledger WHERE MOD(id, 3) IN (2, -1)") > 100
	})
	j.start(2)
	took := j.eventually("slot 2 is worked by its own worker", time.Minute, func() bool {
		return j.count("SELECT count(*) FROM ledger WHERE app LIKE '%:2:%'") > 0
	})
	t.Logf("slot 2 was handed back %s after its worker's process started", took.Round(time.Millisecond))
	j.inForce()
	j.reload(func(p *v1alpha1.Plan) { p.Batch.Rows = 1000 })
	j.complete()
}

func TestRepartitionWhileSlotsAreAdopted(t *testing.T) {
	t.Parallel()
	j := adoptedJob(t, 12000, slow)
	j.publish(6)
	j.start(0, 1, 2)
	for _, slots := range []int32{4, 7, 2, 5} {
		j.underWay(200)
		j.eventually("every slot is worked", time.Minute, func() bool {
			r, _ := j.report()
			return r.Epoch == j.plan.Epoch && r.SlotCounts.Working+r.SlotCounts.Adopted == j.plan.Slots
		})
		j.publish(slots)
	}
	j.reload(func(p *v1alpha1.Plan) { p.Batch.Rows = 1000 })
	j.complete()
}

// The adopter of a killed worker's slots is killed too; whoever is left goes on.
func TestAdopterIsKilled(t *testing.T) {
	t.Parallel()
	j := adoptedJob(t, 6000, slow)
	j.publish(4)
	j.start(0, 1, 2)
	j.underWay(300)
	for _, ordinal := range []int32{1, 0} {
		j.signal(ordinal, syscall.SIGKILL)
		<-j.pods[ordinal].exited
		j.underWay(300)
	}
	j.reload(func(p *v1alpha1.Plan) { p.Batch.Rows = 1000 })
	j.complete()
}

// What an adopter has learned of a slot lasts for longer than a turn: batches that take too long would else be tried as
// they are, turn by turn, for ever.
func TestAdoptersLearnFromTurnToTurn(t *testing.T) {
	t.Parallel()
	j := withoutPending(adoptedJob(t, 200, "UPDATE t SET done = true FROM (SELECT pg_sleep(0.05 * cardinality($1))) s WHERE id = ANY($1)"))
	j.plan.Batch.TimeoutSeconds = 1
	j.publish(4)
	j.start(0)
	j.complete()
}

// A thousand slots, all but four of them orphans: each has its turn soon, and none is left to somebody else by all.
func TestThousandSlotsAndFourWorkers(t *testing.T) {
	t.Parallel()
	j := withoutPending(newJob(t, nil, 20000, plain))
	j.plan.AdoptAfterSeconds = 1
	j.publish(1000)
	j.start(0, 1, 2, 3)
	if r := j.complete(); r.Processed != 20000 {
		t.Errorf("report says %d processed, want 20000", r.Processed)
	}
	if n := j.count("SELECT count(*) FROM shardedjob.slot WHERE cursor IS NOT NULL"); n != 1000 {
		t.Errorf("%d of 1000 cursors have moved", n)
	}
}
