package worker_test

import (
	"testing"
	"time"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/worker/fence"
)

// A table of the same name is another one: it is checked and claimed before a row of it is touched.
func TestF07MissingTableIsSaidAndAnotherClaimed(t *testing.T) {
	t.Parallel()
	j := newJob(t, nil, 20000, slow)
	claims := func() int {
		return j.count("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid::bigint::bit(32)::int = $1",
			fence.ConflictClass(uint32(j.count("SELECT 't'::regclass::oid::bigint"))))
	}
	j.publish(2)
	j.start(0, 1)
	j.inForce()
	if claims() == 0 {
		t.Error("the table is not claimed")
	}
	j.exec("ALTER TABLE t RENAME TO t_old")
	j.eventually("the table is missed", time.Minute, func() bool {
		r, _ := j.report()
		return r.Problem != nil && r.Problem.Reason == v1alpha1.ReasonTableMissing && r.Problem.Stalled && r.CompleteTime == nil
	})
	j.exec(`BEGIN; TRUNCATE ledger; CREATE TABLE t (LIKE t_old INCLUDING ALL); INSERT INTO t SELECT generate_series(1, 400);
		CREATE TRIGGER note AFTER UPDATE ON t FOR EACH ROW EXECUTE FUNCTION note(); COMMIT`)
	j.complete()
	if claims() == 0 {
		t.Error("the other table is not claimed")
	}
}

// A table that goes away when nothing is left to do in a slot is missed too, and not only where a batch fails.
func TestF07MissingTableIsSaidAtRest(t *testing.T) {
	t.Parallel()
	j := withoutPending(newJob(t, nil, 100, plain))
	j.plan.AdoptAfterSeconds = 3600 // nobody works the other slot
	j.publish(2)
	j.start(0)
	j.eventually("the slot is drained", time.Minute, func() bool { return j.slot(0).State == v1alpha1.SlotDrained })
	j.exec("ALTER TABLE t RENAME TO t_old")
	j.eventually("the table is missed", time.Minute, func() bool {
		r, _ := j.report()
		return r.Problem != nil && r.Problem.Reason == v1alpha1.ReasonTableMissing && r.Problem.Stalled
	})
	j.exec("ALTER TABLE t_old RENAME TO t")
	j.start(1)
	j.complete()
}
