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
