package worker_test

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/hack/postgres"
	"shardedjob.dev/worker/coordinator"
)

func TestBackfillCompletes(t *testing.T) {
	t.Parallel()
	j := newJob(t, nil, 5000, plain)
	j.publish(3)
	j.start(0, 1, 2)
	r := j.complete()
	if r.Processed != 5000 || r.Failed != 0 {
		t.Errorf("report says %d processed and %d failed, want 5000 and 0", r.Processed, r.Failed)
	}
	for ordinal := range int32(3) {
		slot := j.count("SELECT count(*) FROM ledger WHERE app LIKE '%:' || $1::int || ':%' AND MOD(id, 3) NOT IN ($1, $1 - 3)", ordinal)
		if slot != 0 {
			t.Errorf("worker %d processed %d rows of other slots", ordinal, slot)
		}
	}
	j.stop(0, 1, 2)
	j.eventually("no lock is left", 10*time.Second, func() bool { return j.locks() == 0 })
}

func TestC03RepartitionInMidRun(t *testing.T) {
	t.Parallel()
	j := newJob(t, nil, 24000, slow)
	j.plan.Batch.Rows = 20
	j.publish(2)
	j.start(0, 1, 2, 3, 4)
	j.underWay(100)
	for _, slots := range []int32{5, 3, 1, 4} {
		j.publish(slots)
		j.inForce()
		j.underWay(100)
	}
	j.reload(func(p *v1alpha1.Plan) { p.Batch.Rows = 500 })
	r := j.complete()
	if r.Processed != 24000 {
		t.Errorf("report says %d processed, want 24000", r.Processed)
	}
	// Each worker kept its one session over all hand-overs.
	if n := j.count("SELECT count(*) FROM (SELECT app FROM ledger GROUP BY app HAVING count(DISTINCT pid) > 1) d"); n != 0 {
		t.Errorf("%d workers changed their session", n)
	}
}

func TestC04FlappingPlans(t *testing.T) {
	t.Parallel()
	j := newJob(t, nil, 6000, slow)
	j.publish(2)
	j.start(0, 1, 2, 3, 4)
	j.underWay(100)
	for i := range 20 {
		j.publish([]int32{5, 1, 4, 2, 3}[i%5])
		before := j.count("SELECT count(*) FROM ledger")
		j.eventually("a plan that lasts for moments still gets work done", 20*time.Second, func() bool {
			return j.count("SELECT count(*) FROM ledger") > before
		})
	}
	j.complete()
}

func TestKilledWorkerComesBack(t *testing.T) {
	t.Parallel()
	j := newJob(t, nil, 8000, slow)
	j.publish(3)
	j.start(0, 1, 2)
	j.underWay(500)
	j.signal(1, syscall.SIGKILL)
	<-j.pods[1].exited
	j.start(1)
	took := j.inForce()
	t.Logf("slot 1 is held again %s after its process was started anew", took.Round(time.Millisecond))
	r := j.complete()
	if r.Processed > 8000 || r.Processed < 7000 {
		t.Errorf("report says %d processed, want 8000 less what the killed worker had no time to tell", r.Processed)
	}
}

// A stopped process cannot hold up a re-partition for two seconds longer than the hand-over time, and commits nothing later. A
// busy machine gets three tries for the two seconds.
func TestC13StoppedWorkerIsEnded(t *testing.T) {
	t.Parallel()
	const handover = 3
	for name, change := range map[string]func(*job){"pending": func(*job) {}, "cursors": func(j *job) { withoutPending(j) }} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			took := time.Hour
			for try := 0; try < 3 && took > (handover+2)*time.Second; try++ {
				j := newJob(t, nil, 12000, slow)
				change(j)
				j.plan.HandoverSeconds, j.plan.Batch.TimeoutSeconds = handover, 2
				took = j.repartitionPastStopped()
				t.Logf("the re-partition took %s, with a hand-over time of %d s", took, handover)
			}
			if took > (handover+2)*time.Second {
				t.Errorf("the re-partition took %s, want at most %d s", took, handover+2)
			}
		})
	}
}

// repartitionPastStopped stops the process of one of two workers, says how long it takes until a third works under the next plan,
// and lets the job complete.
func (j *job) repartitionPastStopped() (took time.Duration) {
	j.t.Helper()
	j.publish(2)
	j.start(0, 1, 2)
	j.eventually("worker 1 works, and worker 2 is there", time.Minute, func() bool {
		return j.count("SELECT count(*) FROM ledger WHERE app LIKE '%:1:%'") > 0 && j.status(2).SessionPID != 0
	})
	zombie := j.status(1).SessionPID
	const byZombie = "SELECT count(*) FROM ledger WHERE pid = $1"
	j.signal(1, syscall.SIGSTOP)
	before := j.count(byZombie, zombie)
	published := j.count("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint")
	j.publish(3)
	// Slot 1's own worker is the stopped one, so under the new plan the other two are held. Worker 2 has no slot under the old.
	j.eventually("the other slots go on", 40*time.Second, func() bool {
		r, _ := j.report()
		return r.Epoch == j.plan.Epoch && r.SlotCounts.Working >= 2 && j.count("SELECT count(*) FROM ledger WHERE app LIKE '%:2:%'") > 0
	})
	took = time.Duration(j.count("SELECT (extract(epoch FROM min(at)) * 1000)::bigint FROM ledger WHERE app LIKE '%:2:%'")-published) * time.Millisecond
	if took < time.Duration(j.plan.HandoverSeconds)*time.Second {
		j.t.Errorf("the re-partition took %s: it did not wait for the stopped worker", took)
	}
	j.signal(1, syscall.SIGCONT)
	j.inForce()
	j.reload(func(p *v1alpha1.Plan) { p.Batch.Rows = 1000 })
	j.complete()
	if n := j.count(byZombie, zombie); n > before+100 {
		j.t.Errorf("the stopped worker's session processed %d rows more, want at most the batch that was on the server", n-before)
	}
	return took
}

func TestA02ServerRestartsInMidRun(t *testing.T) {
	t.Parallel()
	server := postgres.StartForTest(t, postgres.Options{})
	j := newJob(t, server, 8000, slow)
	j.publish(3)
	j.start(0, 1, 2)
	for _, mode := range []postgres.Mode{postgres.Fast, postgres.Immediate} {
		j.underWay(500)
		if err := server.Restart(t.Context(), mode); err != nil {
			t.Fatal(err)
		}
		j.connect()
	}
	j.complete()
}

func TestB09DatabaseDownAtTheStart(t *testing.T) {
	t.Parallel()
	server := postgres.StartForTest(t, postgres.Options{})
	j := newJob(t, server, 1000, plain)
	if err := server.Stop(postgres.Fast); err != nil {
		t.Fatal(err)
	}
	j.publish(2)
	j.start(0, 1)
	j.eventually("both workers say that the database is away", 30*time.Second, func() bool {
		_, notices := j.report()
		return notices[0].Reason == v1alpha1.ReasonDatabaseUnreachable && notices[1].Reason == v1alpha1.ReasonDatabaseUnreachable
	})
	if err := server.Restart(t.Context(), postgres.Fast); err != nil {
		t.Fatal(err)
	}
	j.connect()
	j.complete()
	j.eventually("the notices are taken down", 30*time.Second, func() bool {
		_, notices := j.report()
		return len(notices) == 0
	})
}

func TestCoordinatorFailsOver(t *testing.T) {
	t.Parallel()
	j := newJob(t, nil, 60000, slow)
	j.publish(3)
	j.start(0, 1, 2)
	agreed := func(ordinals ...int32) (chief int32, ok bool) {
		name := j.status(ordinals[0]).Coordinator
		for _, o := range ordinals {
			st := j.status(o)
			if st.Coordinator != name {
				return -1, false
			}
			if st.Role == coordinator.RoleCoordinator && st.Pod == name {
				chief, ok = o, true
			}
		}
		return chief, ok
	}
	var chief int32
	j.eventually("all workers agree on a coordinator", 20*time.Second, func() (ok bool) {
		chief, ok = agreed(0, 1, 2)
		return ok
	})
	j.inForce()
	j.signal(chief, syscall.SIGKILL)
	<-j.pods[chief].exited
	rest := []int32{0, 1, 2}
	rest = append(rest[:chief], rest[chief+1:]...)
	took := j.eventually("the others agree on another coordinator", 20*time.Second, func() bool {
		_, ok := agreed(rest...)
		return ok
	})
	t.Logf("another coordinator after %s", took.Round(time.Millisecond))
	j.eventually("the new one reports that a slot is not held", 20*time.Second, func() bool {
		r, _ := j.report()
		return r.Coordinator != v1alpha1.PodName(j.name, chief) && r.SlotCounts.Working == 2
	})
	if n := j.count("SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE '% coordinator of %' AND datname = current_database()"); n < 1 {
		t.Errorf("no coordinator in pg_stat_activity")
	}
}

func TestSingleWorkerIsItsOwnCoordinator(t *testing.T) {
	t.Parallel()
	j := newJob(t, nil, 500, plain)
	j.publish(1)
	j.start(0)
	j.complete()
	if st := j.status(0); st.Role != coordinator.RoleCoordinator {
		t.Errorf("role %q, want coordinator", st.Role)
	}
}

func TestPlanIsReloadedWithoutLettingGo(t *testing.T) {
	t.Parallel()
	j := newJob(t, nil, 20000, slow)
	j.publish(2)
	j.start(0, 1)
	j.underWay(500)
	j.reload(func(p *v1alpha1.Plan) { p.Batch.Rows = 7 })
	j.inForce()
	at := j.count("SELECT count(*) FROM ledger")
	j.underWay(100)
	if n := j.count("SELECT coalesce(max(n), 0) FROM (SELECT count(*) n FROM (SELECT *, xmin::text x FROM ledger ORDER BY at OFFSET $1) l GROUP BY x) b", at+14); n > 7 {
		t.Errorf("a batch has %d rows after the limit was set to 7", n)
	}
	j.reload(func(p *v1alpha1.Plan) {
		p.Batch.Rows = 1000
		p.Process.SQL.Statement = "UPDATE t SET done = true, v = 2 WHERE id = ANY($1)"
	})
	j.inForce()
	// In force means that no row is processed by the old statement from now on.
	j.exec("UPDATE t SET v = 1 WHERE done AND v = 0")
	j.exec("DELETE FROM ledger WHERE id IN (SELECT id FROM t WHERE v = 1)")
	j.eventually("the job is complete", time.Minute, func() bool { r, _ := j.report(); return r.CompleteTime != nil })
	if n := j.count("SELECT count(*) FROM t WHERE v = 0"); n != 0 {
		t.Errorf("%d rows were processed by the old statement after the new one was in force", n)
	}
}

func TestJ02RowsFailing(t *testing.T) {
	t.Parallel()
	j := newJob(t, nil, 1000, "UPDATE t SET done = true, v = 1 / (CASE WHEN id IN (57, -31) AND v = 0 THEN 0 ELSE 1 END) WHERE id = ANY($1)")
	j.publish(2)
	j.start(0, 1)
	j.eventually("the failing rows are reported", time.Minute, func() bool {
		r, _ := j.report()
		return r.Problem != nil && r.Problem.Reason == v1alpha1.ReasonRowsFailing && r.Failed == 2
	})
	r, _ := j.report()
	if !r.Problem.Stalled || !strings.Contains(r.Problem.Message, "key ") || !strings.Contains(r.Problem.Message, "division by zero") {
		t.Errorf("problem %+v, want one that stalls, with a key and its reason", *r.Problem)
	}
	if r.CompleteTime != nil {
		t.Error("complete with rows failing")
	}
	if n := j.count("SELECT count(*) FROM t WHERE NOT done"); n != 2 {
		t.Errorf("%d rows are left, want the two that fail", n)
	}
	j.exec("ALTER TABLE t DISABLE TRIGGER note")
	j.exec("UPDATE t SET v = 1 WHERE NOT done") // somebody mends the rows
	j.exec("ALTER TABLE t ENABLE TRIGGER note")
	j.reload(func(p *v1alpha1.Plan) { p.Failure.MaxAttempts = 3 })
	j.complete()
}

// While the API server is away, a worker starts with the plan that is mounted, and follows the newer one that the locks
// of the others show.
func TestL11APIServerAway(t *testing.T) {
	t.Parallel()
	j := newJob(t, nil, 10000, slow)
	j.publish(2)
	j.start(0, 1)
	j.underWay(100)
	j.mount()
	j.startWith(2, j.withoutAPI)
	j.eventually("the worker has the mounted plan", 20*time.Second, func() bool { return j.status(2).Epoch == 1 })
	j.publish(3)
	j.eventually("all three slots are held", 30*time.Second, func() bool {
		r, _ := j.report()
		return r.Epoch == 2 && r.SlotCounts.Working == 3
	})
	if r, _ := j.report(); r.Generation != 0 {
		t.Errorf("generation %d is reported of a worker that cannot know it", r.Generation)
	}
	j.mount()
	j.complete()
	if n := j.count("SELECT count(*) FROM ledger WHERE app LIKE '%:2:%'"); n == 0 {
		t.Error("the worker without API server processed nothing")
	}
}

// The only worker with a slot in the new plan cannot reach the API server; the one without a slot tells it.
func TestWorkerWithoutASlotTellsOfTheNewPlan(t *testing.T) {
	t.Parallel()
	j := newJob(t, nil, 10000, slow)
	j.publish(2)
	j.mount()
	j.startWith(0, j.withoutAPI)
	j.start(1)
	j.inForce()
	j.publish(1)
	j.eventually("worker 0 has the new plan", 40*time.Second, func() bool {
		st := j.status(0)
		return st.Epoch == 2 && st.Slots == 1 && st.State != v1alpha1.SlotWaiting // it may have nothing left to do
	})
	j.mount()
	j.reload(func(p *v1alpha1.Plan) { p.Batch.Rows = 1000 })
	j.mount()
	j.complete()
}

func TestSIGTERMFinishesTheBatch(t *testing.T) {
	t.Parallel()
	j := newJob(t, nil, 2000, "UPDATE t SET done = true FROM (SELECT pg_sleep(1)) s WHERE id = ANY($1)")
	j.publish(1)
	j.start(0)
	j.eventually("a batch is on the server", 20*time.Second, func() bool {
		return j.count("SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND wait_event = 'PgSleep' AND datname = current_database()") > 0
	})
	before := j.count("SELECT count(*) FROM ledger")
	j.stop(0)
	if n := j.count("SELECT count(*) FROM ledger"); n != before+100 {
		t.Errorf("%d rows were processed after SIGTERM, want the batch of 100", n-before)
	}
	r, _ := j.report()
	if int(r.Processed) != before+100 {
		t.Errorf("the last report counts %d rows, want %d", r.Processed, before+100)
	}
}

// The user's SQL runs on the session that holds the locks, and must not be able to commit without them.
func TestStatementThatDropsTheLocksCommitsNothing(t *testing.T) {
	t.Parallel()
	statements := map[string]string{
		"at once":               "UPDATE t SET done = true FROM (SELECT pg_advisory_unlock_all()) s WHERE id = ANY($1)",
		"in a deferred trigger": plain,
	}
	for name, statement := range statements {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := newJob(t, nil, 300, statement)
			j.exec("CREATE FUNCTION drop_locks() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_unlock_all(); RETURN NULL; END'")
			if statement == plain {
				j.exec("CREATE CONSTRAINT TRIGGER d AFTER UPDATE ON t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION drop_locks()")
			}
			j.publish(1)
			j.start(0)
			j.eventually("the worker says that it lost its locks", 30*time.Second, func() bool {
				_, notices := j.report()
				return notices[0].Reason == v1alpha1.ReasonLocksLost && notices[0].Stalled
			})
			if n := j.count("SELECT count(*) FROM t WHERE done"); n != 0 {
				t.Errorf("%d rows were committed without the fence", n)
			}
		})
	}
}

func TestProblemsAreReported(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		change func(*job)
		want   string
		says   string
	}{
		"no such table":    {func(j *job) { j.plan.Table.Name = "tt" }, v1alpha1.ReasonTableMissing, `"t"`},
		"no such column":   {func(j *job) { j.plan.Table.Key = "idd" }, v1alpha1.ReasonColumnMissing, `"id"`},
		"broken pending":   {func(j *job) { j.plan.Table.Pending = "NOT" }, v1alpha1.ReasonInvalidSQL, "pending"},
		"broken statement": {func(j *job) { j.plan.Process.SQL.Statement = "UPDATE t SET x = 1 WHERE id = ANY($1)" }, v1alpha1.ReasonColumnMissing, "x"},
		"no statement":     {func(j *job) { j.plan.Process.SQL.Statement = "UPDATE t SET WHERE id = ANY($1)" }, v1alpha1.ReasonInvalidSQL, "syntax"},
		"a view": {func(j *job) {
			j.exec("CREATE VIEW w AS SELECT * FROM t")
			j.plan.Table.Name = "w"
		}, v1alpha1.ReasonNotATable, "view"},
		"no such database": {func(j *job) {
			j.secret(map[string]string{"uri": strings.Replace(j.uri, postgres.DatabaseName(j.uri), "nosuch", 1)})
		}, v1alpha1.ReasonDatabaseMissing, "nosuch"},
		"no key in the Secret": {func(j *job) { j.secret(map[string]string{"url": j.uri}) }, v1alpha1.ReasonInvalidSecret, "uri"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := newJob(t, nil, 10, plain)
			tt.change(j)
			j.publish(2)
			j.start(0, 1)
			var got v1alpha1.Problem
			j.eventually("the problem is reported", 30*time.Second, func() bool {
				r, notices := j.report()
				switch {
				case r.Problem != nil:
					got = *r.Problem
				case len(notices) == 2:
					got = notices[0].Problem
				}
				return got.Reason != ""
			})
			if got.Reason != tt.want || !got.Stalled || !strings.Contains(got.Message, tt.says) {
				t.Errorf("reported %+v, want %s with %q", got, tt.want, tt.says)
			}
			if n := j.count("SELECT count(*) FROM ledger"); n != 0 {
				t.Errorf("%d rows were processed all the same", n)
			}
		})
	}
}

func TestA06ConflictingJobs(t *testing.T) {
	t.Parallel()
	sameGroup := func(first, second *job) { second.plan.Group = first.plan.Group }
	tests := map[string]func(first, second *job){
		"two groups on one table": func(*job, *job) {},
		"two jobs of one group":   sameGroup,
		"two jobs of one group, with cursors": func(first, second *job) {
			withoutPending(first)
			withoutPending(second)
			sameGroup(first, second)
			second.plan.Epoch = 10 // above the group's by then, so that it finds out that all is done
		},
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first := newJob(t, nil, 3000, slow)
			second := newJob(t, first.server, 10, plain)
			second.secret(map[string]string{"uri": first.uri})
			change(first, second)
			first.publish(2)
			first.start(0, 1)
			first.underWay(100)
			second.publish(1)
			second.start(0)
			second.eventually("the newcomer reports the conflict", 30*time.Second, func() bool {
				r, notices := second.report()
				return (r.Problem != nil && r.Problem.Reason == v1alpha1.ReasonConflict) || notices[0].Reason == v1alpha1.ReasonConflict
			})
			if n := first.count("SELECT count(*) FROM ledger WHERE app NOT LIKE '%' || $1", first.name); n != 0 {
				t.Errorf("the newcomer processed %d rows", n)
			}
			first.complete()
			first.stop(0, 1)
			second.eventually("the newcomer goes on when the other is gone", 30*time.Second, func() bool {
				r, _ := second.report()
				return r.CompleteTime != nil
			})
		})
	}
}

// Groups with cursors are independent consumers: each works every row of the table, at the same time.
func TestTwoGroupsWithCursorsOnOneTable(t *testing.T) {
	t.Parallel()
	first := withoutPending(newJob(t, nil, 20000, slow))
	second := withoutPending(newJob(t, first.server, 10, slow))
	second.secret(map[string]string{"uri": first.uri})
	jobs := []*job{first, second}
	for _, j := range jobs {
		j.publish(2)
		j.start(0, 1)
	}
	first.eventually("both are under way", time.Minute, func() bool {
		return first.count("SELECT count(DISTINCT substring(app from '[^/]*$')) FROM ledger") == 2
	})
	for _, j := range jobs {
		j.eventually("the job is complete", 2*time.Minute, func() bool { r, _ := j.report(); return r.CompleteTime != nil })
		if n := first.count("SELECT count(*) FROM (SELECT id FROM t LEFT JOIN ledger USING (id) WHERE app LIKE '%' || $1 GROUP BY id HAVING count(*) = 1) once", j.name); n != 20000 {
			t.Errorf("%d rows were processed exactly once by %s, want 20000", n, j.name)
		}
	}
	if n := first.count("SELECT (max(first) < min(last))::int FROM (SELECT min(at) AS first, max(at) AS last FROM ledger GROUP BY substring(app from '[^/]*$')) g"); n != 1 {
		t.Error("one waited for the other")
	}
}

// The application may hold any advisory locks of its own.
func TestA06StrangersLocks(t *testing.T) {
	t.Parallel()
	j := newJob(t, nil, 500, plain)
	j.exec("SELECT pg_advisory_lock(k), pg_advisory_lock(k, k) FROM generate_series(0, 50) k")
	j.publish(2)
	j.start(0, 1)
	j.complete()
}

func TestC08ZeroAndBack(t *testing.T) {
	t.Parallel()
	j := newJob(t, nil, 4000, slow)
	j.publish(2)
	j.start(0, 1)
	j.underWay(200)
	j.publish(0)
	j.eventually("all locks are let go", 20*time.Second, func() bool { return j.locks() == 0 })
	before := j.count("SELECT count(*) FROM ledger")
	j.eventually("the workers have no session", 20*time.Second, func() bool {
		return j.status(0).SessionPID == 0 && j.status(1).SessionPID == 0
	})
	if n := j.count("SELECT count(*) FROM ledger"); n != before {
		t.Errorf("%d rows were processed while paused", n-before)
	}
	j.publish(1)
	j.complete()
}
