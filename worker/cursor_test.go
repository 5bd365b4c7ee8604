package worker_test

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/hack/postgres"
)

// withoutPending keeps the job's progress in cursors.
func withoutPending(j *job) *job {
	j.plan.Table.Pending = ""
	j.plan.Batch.Rows = 50
	return j
}

func TestCursorBackfillCompletes(t *testing.T) {
	t.Parallel()
	j := withoutPending(newJob(t, nil, 5000, plain))
	j.publish(3)
	j.start(0, 1, 2)
	if r := j.complete(); r.Processed != 5000 || r.Failed != 0 || r.By != v1alpha1.ShardByValue {
		t.Errorf("report says %d processed, %d failed, by %q; want 5000, 0, Value", r.Processed, r.Failed, r.By)
	}
	j.stop(0, 1, 2)
	j.eventually("no lock is left", 10*time.Second, func() bool { return j.locks() == 0 })
}

func TestCursorRepartitionInMidTable(t *testing.T) {
	t.Parallel()
	j := withoutPending(newJob(t, nil, 20000, slow))
	j.publish(2)
	j.start(0, 1, 2, 3, 4)
	j.underWay(100)
	for _, slots := range []int32{5, 3, 1, 4, 2, 5} {
		j.publish(slots)
		j.underWay(200)
	}
	j.signal(1, syscall.SIGKILL)
	<-j.pods[1].exited
	j.publish(3)
	j.start(1)
	j.underWay(200)
	j.reload(func(p *v1alpha1.Plan) { p.Batch.Rows = 1000 })
	if r := j.complete(); r.Processed != 20000 {
		t.Errorf("report says %d processed, want 20000: the tables count, not the workers", r.Processed)
	}
}

// All sessions have ended, and one worker comes back with a plan that is old, while the API server is away: the table itself
// tells it so.
func TestLoneWorkerWithAnOldPlan(t *testing.T) {
	t.Parallel()
	j := withoutPending(newJob(t, nil, 6000, slow))
	j.publish(2)
	j.mount()
	j.publish(3)
	j.start(0, 1, 2)
	j.inForce()
	j.underWay(500)
	for ordinal := range int32(3) {
		j.signal(ordinal, syscall.SIGKILL)
		<-j.pods[ordinal].exited
	}
	j.eventually("all sessions have ended", 20*time.Second, func() bool { return j.locks() == 0 })
	j.startWith(1, j.withoutAPI)
	j.eventually("the worker follows the database", 30*time.Second, func() bool {
		st := j.status(1)
		return st.Epoch == j.plan.Epoch && st.Slots == 3 && st.State == v1alpha1.SlotWorking
	})
	j.start(0, 2)
	j.mount()
	j.complete()
}

func TestD13ProgressSurvivesTheJob(t *testing.T) {
	t.Parallel()
	j := withoutPending(newJob(t, nil, 6000, slow))
	j.plan.Group, j.plan.Epoch = "progress/kept", 4
	j.publish(2)
	j.start(0, 1)
	j.underWay(1000)
	j.stop(0, 1)
	half := j.count("SELECT count(*) FROM ledger")

	again := func() *job {
		next := newJobOn(t, j)
		next.plan.Epoch = 0 // a new object knows nothing of the group's epochs
		next.publish(3)
		next.start(0, 1, 2)
		next.eventually("the workers ask for a plan above the group's epoch", time.Minute, func() bool {
			r, _ := next.report()
			return r.HighestEpoch > next.plan.Epoch
		})
		r, _ := next.report()
		next.plan.Epoch = r.HighestEpoch
		next.publish(3)
		return next
	}
	second := again()
	second.complete()
	if n := j.count("SELECT count(*) FROM ledger"); half >= 6000 || n != 6000 {
		t.Errorf("%d rows were done before and %d after, want 6000 at the end", half, n)
	}
	second.stop(0, 1, 2)
	first, _ := second.report()

	third := again()
	if r := third.complete(); r.CompleteTime.After(first.CompleteTime.Time) {
		t.Errorf("complete since %s, want since %s", r.CompleteTime, first.CompleteTime)
	}
}

// Suspended in mid-table, resumed with a statement that always fails, and again with one that does not.
func TestD13SuspendedAndResumed(t *testing.T) {
	t.Parallel()
	j := withoutPending(newJob(t, nil, 20000, slow))
	j.plan.Failure.MaxAttempts = 1
	suspend := func() (processed int64) {
		t.Helper()
		j.publish(0)
		j.eventually("all locks are let go", 20*time.Second, func() bool { return j.locks() == 0 })
		return int64(j.count("SELECT processed + (SELECT sum(processed) FROM shardedjob.slot) FROM shardedjob.job"))
	}
	j.publish(2)
	j.start(0, 1)
	j.underWay(2000)
	first, done := suspend(), j.count("SELECT count(*) FROM ledger")

	j.plan.Process.SQL.Statement = "UPDATE t SET done = true WHERE id = ANY($1) AND 1 / (v - v) = 0"
	j.publish(2)
	j.eventually("rows fail", time.Minute, func() bool { return j.count("SELECT count(*) FROM shardedjob.row_failure") > 0 })
	second := suspend()
	if n := j.count("SELECT count(*) FROM ledger"); first != int64(done) || second != first || n != done {
		t.Errorf("%d rows were done and %d counted, then %d and %d", done, first, n, second)
	}

	j.plan.Process.SQL.Statement = plain
	j.publish(3)
	j.start(2)
	j.eventually("the report goes on where the count was", time.Minute, func() bool { r, _ := j.report(); return r.Epoch == j.plan.Epoch && r.Processed >= second })
	if r := j.complete(); r.Processed != 20000 || r.Failed != 0 {
		t.Errorf("report says %d processed and %d failed, want 20000 and 0", r.Processed, r.Failed)
	}
}

// A table that is emptied and filled with keys that the cursors have passed is not taken for done.
func TestD14TruncatedIsSaid(t *testing.T) {
	t.Parallel()
	j := withoutPending(newJob(t, nil, 20000, slow))
	j.publish(2)
	j.start(0, 1)
	j.underWay(2000)
	j.exec("TRUNCATE t; INSERT INTO t SELECT generate_series(-10000, -9901)")
	j.eventually("the report says so", time.Minute, func() bool {
		r, _ := j.report()
		if r.CompleteTime != nil {
			j.fail("complete with 100 open rows")
		}
		return r.Problem != nil && r.Problem.Reason == v1alpha1.ReasonTableChanged && r.Problem.Stalled && strings.Contains(r.Problem.Message, "was truncated")
	})
	if n := j.count("SELECT count(*) FROM t WHERE done"); n != 0 {
		t.Errorf("%d of the new rows were processed", n)
	}
}

func TestForgetStartsAnew(t *testing.T) {
	t.Parallel()
	j := withoutPending(newJob(t, nil, 500, plain))
	j.publish(2)
	j.start(0, 1)
	j.complete()
	j.plan.Forget = true
	j.publish(1)
	j.eventually("the progress is forgotten", time.Minute, func() bool { r, _ := j.report(); return r.Forgotten })
	if n := j.count("SELECT count(*) FROM shardedjob.slot"); n != 0 {
		t.Errorf("%d cursors are left", n)
	}
	j.stop(0, 1)
	j.exec("UPDATE t SET done = false; TRUNCATE ledger")
	// A new job of the group, which knows nothing of its epochs, has to be told of them.
	j.plan.Forget, j.plan.Epoch = false, 0
	next := newJobOn(t, j)
	next.publish(2)
	next.start(0, 1)
	next.eventually("the workers ask for a plan above the group's epoch", time.Minute, func() bool {
		r, _ := next.report()
		return r.HighestEpoch > next.plan.Epoch
	})
	r, _ := next.report()
	next.plan.Epoch = r.HighestEpoch
	next.publish(2)
	next.complete()
}

// A transaction that was open when the job began commits keys in the middle of the table, after longer than any timeout of
// the workers' sessions. The job waits for it, and says so.
func TestD04LateCommitIsWaitedFor(t *testing.T) {
	t.Parallel()
	j := withoutPending(newJob(t, nil, 1000, plain))
	late := postgres.Connect(t, j.uri)
	exec := func(sql string) {
		t.Helper()
		if _, err := late.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	exec("DELETE FROM t WHERE id = 7")
	exec("BEGIN")
	exec("INSERT INTO t VALUES (7)")
	j.publish(2)
	j.start(0, 1)
	open := func() (seconds int) {
		r, _ := j.report()
		if len(r.Warnings) > 0 {
			_, _ = fmt.Sscanf(r.Warnings[0], fmt.Sprintf("waiting for 1 transaction, pid %d, open for %%d s", late.PgConn().PID()), &seconds)
		}
		return seconds
	}
	j.eventually("the report says what is waited for", time.Minute, func() bool { return open() > 0 })
	first, second := j.status(0).SessionPID, j.status(1).SessionPID
	j.eventually("it has been so for a minute", 2*time.Minute, func() bool { return open() > 62 })
	if n := j.count("SELECT count(*) FROM ledger"); n != 0 {
		t.Errorf("%d rows were processed before the horizon was known", n)
	}
	if a, b := j.status(0).SessionPID, j.status(1).SessionPID; a != first || b != second {
		t.Errorf("sessions %d and %d became %d and %d", first, second, a, b)
	}
	exec("COMMIT")
	j.complete()
}

func TestCursorLeavesFailedRowsBehind(t *testing.T) {
	t.Parallel()
	j := withoutPending(newJob(t, nil, 3000, plain))
	j.exec("ALTER TABLE t ADD CONSTRAINT bad CHECK (NOT done OR id <> 57)")
	j.publish(2)
	j.start(0, 1)
	j.eventually("all others are done", time.Minute, func() bool {
		r, _ := j.report()
		return r.Problem != nil && r.Problem.Reason == v1alpha1.ReasonRowsFailing && strings.Contains(r.Problem.Message, "57")
	})
	if n := j.count("SELECT count(*) FROM t WHERE NOT done"); n != 1 {
		t.Errorf("%d rows are not done, want only the bad one", n)
	}
	j.exec("DELETE FROM t WHERE id = 57")
	j.complete()
}

// A row that somebody has locked for long is left behind and worked when it is free.
func TestG06LockedRowHoldsUpNothing(t *testing.T) {
	t.Parallel()
	j := withoutPending(newJob(t, nil, 3000, plain))
	lock := postgres.Connect(t, j.uri)
	tx, err := lock.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), "SELECT FROM t WHERE id = 57 FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	j.publish(2)
	j.start(0, 1)
	j.eventually("all others are done", time.Minute, func() bool { return j.count("SELECT count(*) FROM ledger") == 2999 })
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := j.complete(); r.Failed != 0 || r.Processed != 3000 {
		t.Errorf("report says %d processed and %d failed, want 3000 and 0", r.Processed, r.Failed)
	}
}

func TestJ07KilledInMidBatch(t *testing.T) {
	t.Parallel()
	j := withoutPending(newJob(t, nil, 6000, slow))
	j.publish(2)
	j.start(0, 1)
	for range 4 {
		j.underWay(300)
		for ordinal := range int32(2) {
			j.signal(ordinal, syscall.SIGKILL)
			<-j.pods[ordinal].exited
		}
		j.start(0, 1)
	}
	j.reload(func(p *v1alpha1.Plan) { p.Batch.Rows = 1000 })
	if r := j.complete(); r.Processed != 6000 {
		t.Errorf("report says %d processed, want 6000", r.Processed)
	}
}

// Keys with a common step fill half of the slots; the report says so, and Hash fills them all.
func TestSkewIsReported(t *testing.T) {
	t.Parallel()
	j := withoutPending(newJob(t, nil, 0, slow))
	j.exec("INSERT INTO t SELECT g * 10 FROM generate_series(1, 8000) g; ANALYZE t")
	j.publish(4)
	j.start(0, 1, 2, 3)
	j.eventually("the report warns", time.Minute, func() bool {
		r, _ := j.report()
		return len(r.Warnings) == 1 && strings.Contains(r.Warnings[0], "2 of 4 slots") && strings.Contains(r.Warnings[0], "table.shardBy: Hash")
	})
	j.reload(func(p *v1alpha1.Plan) { p.Batch.Rows = 1000 })
	j.complete()
}
