package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/hack/postgres"
	"shardedjob.dev/hack/torture/schedule"
	"shardedjob.dev/worker/coordinator"
)

// inject carries out a fault, mends it when its time is over, and says whether there was anything to break.
func (s *scene) inject(ctx context.Context, f schedule.Fault) bool {
	if f.Job < 0 {
		return s.injectShared(ctx, f)
	}
	l := s.lanes[f.Job]
	if f.Kind == schedule.Scale {
		l.mu.Lock()
		l.slots = f.Slots
		l.mu.Unlock()
	}
	j, through := l.current()
	if j == nil {
		return false
	}
	defer through()
	return j.inject(ctx, f, rand.New(rand.NewPCG(f.Seed, 0)))
}

// injectShared breaks what serves all jobs, unless it is still broken: on a busy machine it takes longer to come back than scheduled.
func (s *scene) injectShared(ctx context.Context, f schedule.Fault) bool {
	broken := &s.serverBroken
	if f.Kind == schedule.APIStop || f.Kind == schedule.APIFreeze {
		broken = &s.apiBroken
	}
	if !broken.TryLock() {
		return false
	}
	defer broken.Unlock()
	var err error
	switch f.Kind {
	case schedule.Restart:
		err = s.server.Restart(ctx, postgres.Fast)
	case schedule.Crash:
		err = s.server.Restart(ctx, postgres.Immediate)
	case schedule.APIStop:
		if err = s.api.StopAPIServer(); err == nil {
			s.hold(f.Hold)
			err = s.startAPI(ctx)
		}
	case schedule.APIFreeze:
		if err = s.api.PauseAPIServer(); err == nil {
			s.hold(f.Hold)
			err = s.api.ResumeAPIServer()
		}
	default:
		s.wrong("%s: nobody knows how to do that", f)
	}
	if err != nil && ctx.Err() == nil {
		s.wrong("%s: %v", f, err)
	}
	return err == nil
}

// startAPI starts the API server again. On a busy machine it may fail to be up in its time.
func (s *scene) startAPI(ctx context.Context) (err error) {
	const tries = 3
	for range tries {
		if err = s.api.StartAPIServer(ctx); err == nil || ctx.Err() != nil {
			return err
		}
		if err := s.api.StopAPIServer(); err != nil {
			return err
		}
	}
	return err
}

// inject breaks what belongs to one job.
func (j *job) inject(ctx context.Context, f schedule.Fault, random *rand.Rand) bool {
	switch f.Kind {
	case schedule.Kill:
		return j.taken(f, func() bool { return j.kill(f.Pod, f.Hold) })
	case schedule.Stop, schedule.Freeze:
		return j.taken(f, func() bool { return j.freeze(f.Pod, f.Hold, j.hold) })
	case schedule.Cut:
		return j.taken(f, func() bool { return j.cut(ctx, f) })
	case schedule.Terminate:
		return j.taken(f, func() bool { return j.terminate(ctx, fmt.Sprintf("%s%d:%%", j.sessions(), f.Pod)) })
	case schedule.Unseat:
		return j.terminate(ctx, j.sessions()+"% "+coordinator.SeatName(coordinator.RoleCoordinator)+"%")
	case schedule.Scale:
		j.scale(f.Slots)
	case schedule.Reload:
		j.reload(func(p *v1alpha1.Plan) {
			p.Batch.Rows = batchRows(random)
			p.Process.SQL = &v1alpha1.SQLProcess{Statement: j.lane.way.statement(random)}
		})
	case schedule.Suspend:
		before := j.wished()
		j.scale(0)
		j.hold(surplusDelay + f.Hold)
		j.scale(max(1, before))
	case schedule.Comeback:
		return j.comeBack(f, random)
	case schedule.LosePlan:
		return j.losePlan(ctx, f)
	case schedule.RestorePlan:
		return j.restorePlan(ctx, random)
	case schedule.Recreate:
		return j.recreate(ctx, f)
	case schedule.LockRows:
		return j.lockRows(ctx, f, random)
	case schedule.LockTable:
		return j.lockTable(ctx, f)
	case schedule.Deadlock:
		return j.deadlock(ctx, f, random)
	case schedule.LateCommit:
		return j.lateCommit(ctx, f, random)
	case schedule.Prepare:
		return j.prepare(ctx, f, random)
	case schedule.Index:
		return j.buildIndex(ctx)
	case schedule.Vacuum:
		return j.run(ctx, "VACUUM (ANALYZE) "+j.table.schema+".t")
	default:
		j.wrong("%s: nobody knows how to do that", f)
		return false
	}
	return true
}

// sessions is what the application names of the job's sessions begin with.
func (j *job) sessions() string { return fmt.Sprintf("sj:%016x:", j.group.Hash()) }

// taken marks a fault that takes the pod's slot from it, if it has one, so that the audit finds when the slot went on.
func (j *job) taken(f schedule.Fault, do func() bool) bool {
	m := mark{kind: f.Kind, slot: f.Pod, at: time.Now()}
	done := do()
	j.mu.Lock()
	defer j.mu.Unlock()
	if done && f.Pod < j.published.Slots {
		j.marks = append(j.marks, m)
	}
	return done
}

// terminate ends one session whose application name is like the pattern.
func (j *job) terminate(ctx context.Context, pattern string) (found bool) {
	done := j.trouble(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT count(pg_terminate_backend(pid)) > 0 FROM (SELECT pid FROM pg_stat_activity
			WHERE application_name LIKE $1 ORDER BY random() LIMIT 1) a`, pattern).Scan(&found)
	})
	return done && found
}

// wished is the n that is wanted.
func (j *job) wished() int32 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.want.Slots
}

// oldPlan picks a plan that is not the newest and has slots. Where there is none, it has a newer one made.
func (j *job) oldPlan(random *rand.Rand) (v1alpha1.Plan, bool) {
	const patience = 5
	for range patience {
		if old := j.oldPlans(); len(old) > 0 {
			return old[random.IntN(len(old))], true
		}
		j.scale(1 + j.wished()%j.options.pods)
		j.hold(time.Second)
	}
	return v1alpha1.Plan{}, false
}

func (j *job) oldPlans() (old []v1alpha1.Plan) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, p := range j.history {
		if p.Slots > 0 && p.Epoch < j.published.Epoch {
			old = append(old, p)
		}
	}
	return old
}

// comeBack ends all sessions. Then one worker comes back with an old plan, which is still mounted, and without the API server.
func (j *job) comeBack(f schedule.Fault, random *rand.Rand) bool {
	old, ok := j.oldPlan(random)
	if !ok {
		return false
	}
	j.killAll()
	defer j.release()
	j.mu.Lock()
	j.mountPlan(old)
	j.mountDue = time.Now().Add(f.Hold + mountDelay)
	err := j.startPod(random.Int32N(old.Slots), j.nowhere)
	j.mu.Unlock()
	if err != nil {
		j.wrong("job %s: %v", j.name, err)
	}
	j.hold(f.Hold)
	return err == nil
}

// losePlan deletes the plan's ConfigMap. The operator makes it anew when it notices.
func (j *job) losePlan(ctx context.Context, f schedule.Fault) bool {
	forget := func(lost bool) {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.lost, j.version = lost, ""
		j.wake()
	}
	forget(true)
	defer forget(false)
	if j.client.CoreV1().ConfigMaps(namespace).Delete(ctx, v1alpha1.PlanName(j.name), metav1.DeleteOptions{}) != nil {
		return false
	}
	j.hold(f.Hold)
	return true
}

// restorePlan brings back an old plan, as the restore of a backup does, and makes the operator forget all that came after it.
func (j *job) restorePlan(ctx context.Context, random *rand.Rand) bool {
	old, ok := j.oldPlan(random)
	if !ok || j.readPlan(ctx) != nil {
		return false
	}
	j.mu.Lock()
	version := j.version
	j.mu.Unlock()
	version, err := j.writePlan(ctx, old, version)
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.version = version; err != nil {
		return false
	}
	j.published, j.highest = old, 0
	j.mountDue = time.Now().Add(mountDelay)
	j.wake()
	return true
}

// recreate deletes the job with its pods, which have no time to let go, and makes it again: under another UID, with plans that
// begin anew.
func (j *job) recreate(ctx context.Context, f schedule.Fault) bool {
	j.mu.Lock()
	j.lost = true
	j.mu.Unlock()
	defer j.release()
	err := j.persist(ctx, "delete job "+j.name, j.deleteConfigMaps)
	if err == nil {
		j.killAll()
		j.hold(f.Hold)
		err = j.persist(ctx, "make job "+j.name+" again", j.makeReport)
	}
	if err != nil && ctx.Err() == nil {
		j.wrong("%v", err)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.want.UID = j.newUID()
	j.published, j.history, j.highest, j.report = v1alpha1.Plan{}, nil, 0, v1alpha1.Report{}
	j.lost, j.version = false, ""
	clear(j.uids)
	j.wake()
	return err == nil
}
