// Package worker is the loop that joins the fence, the partition and the processing, in each pod of a ShardedJob.
//
// A Worker follows the plan: it opens one session, checks the table, takes its slot's lock by the entry protocol, works
// batch after batch on that session, and lets go at a batch boundary when the plan changes or the pod has to stop. When
// the session is lost, everything begins again from the entry protocol. Beside the loop run the feed that brings the plan,
// the candidate for coordinator, and the probes.
package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/worker/coordinator"
	"shardedjob.dev/worker/database"
	"shardedjob.dev/worker/fence"
	"shardedjob.dev/worker/heartbeat"
	"shardedjob.dev/worker/internal/sleep"
	"shardedjob.dev/worker/planfeed"
)

// Config is what a worker is told when it starts. Everything that can change comes with the plan.
type Config struct {
	// Namespace and Job name the ShardedJob, JobUID is its UID.
	Namespace, Job string
	JobUID         types.UID
	// Pod is the name of the worker's pod, whose last part is the ordinal, and PodUID its UID.
	Pod, PodUID string
	// PlanFile is the mounted plan.
	PlanFile string
	// DatabaseDir and CADir are the mounted Secrets; URIKey is the key that holds the connection URI.
	DatabaseDir, CADir, URIKey string
	// ListenAddress of the probes.
	ListenAddress string
	// Client reaches the API server.
	Client kubernetes.Interface
	Log    *slog.Logger
}

// A Worker works the slot of its pod's ordinal.
type Worker struct {
	cfg     Config
	ordinal int32
	run     string // names this start of the process
	log     *slog.Logger
	feed    *planfeed.Feed
	state   state
	kept    memory
	adopter *adopter
	lineage lineage
	notices *noticeBoard
	metrics *metrics
	store   *reportStore

	mu        sync.Mutex
	candidate *coordinator.Candidate // once the group is known
	table     *table                 // once it is checked
}

// New makes a worker, or says what of the configuration is missing.
func New(cfg Config) (*Worker, error) {
	for name, value := range map[string]string{
		v1alpha1.EnvPodName: cfg.Pod, v1alpha1.EnvPodUID: cfg.PodUID, v1alpha1.EnvPodNamespace: cfg.Namespace,
		v1alpha1.EnvJobName: cfg.Job, v1alpha1.EnvJobUID: string(cfg.JobUID), v1alpha1.EnvURIKey: cfg.URIKey,
	} {
		if value == "" {
			return nil, fmt.Errorf("environment variable %s is not set; the operator's pod template sets it", name)
		}
	}
	ordinal, err := podOrdinal(cfg.Job, cfg.Pod)
	if err != nil {
		return nil, err
	}
	w := &Worker{cfg: cfg, ordinal: ordinal, log: cfg.Log, feed: planfeed.New(cfg.JobUID)}
	w.run = fmt.Sprintf("%08x", rand.Uint32())
	w.state.beat = heartbeat.Beat{Ordinal: ordinal, Slot: ordinal, Run: w.run, State: v1alpha1.SlotWaiting}
	w.store = &reportStore{client: cfg.Client, namespace: cfg.Namespace, name: v1alpha1.ReportName(cfg.Job)}
	w.notices = newNoticeBoard(w.store, ordinal, cfg.Pod, cfg.JobUID, cfg.Log)
	w.adopter = newAdopter(w)
	w.metrics = newMetrics(w)
	return w, nil
}

// podOrdinal reads the ordinal off the pod's name, <job>-<ordinal>. The host name would be the node's with hostNetwork.
func podOrdinal(job, pod string) (int32, error) {
	suffix, ok := strings.CutPrefix(pod, job+"-")
	ordinal, err := strconv.ParseInt(suffix, 10, 32)
	if !ok || err != nil || ordinal < 0 || v1alpha1.PodName(job, int32(ordinal)) != pod {
		return 0, fmt.Errorf("pod name %q is not %s-<ordinal>", pod, job)
	}
	return int32(ordinal), nil
}

// Run works until the context ends; then it finishes the batch, lets go of its locks and returns. An error means that it
// could not even begin.
func (w *Worker) Run(ctx context.Context) error {
	w.log.Info("Starting", "job", w.cfg.Namespace+"/"+w.cfg.Job, "pod", w.cfg.Pod, "ordinal", w.ordinal)
	// What runs beside the loop outlives it, so that the last heartbeat still reaches a coordinator in this process.
	aside, stop := context.WithCancel(context.WithoutCancel(ctx))
	var group sync.WaitGroup
	failed := make(chan error, 2)
	loop, stopLoop := context.WithCancel(ctx)
	defer stopLoop()
	spawn := func(f func(context.Context) error) {
		group.Go(func() {
			if err := f(aside); err != nil {
				failed <- err
				stopLoop()
			}
		})
	}
	spawn(w.serveHTTP)
	spawn(func(ctx context.Context) error {
		return planfeed.WatchAPI(ctx, w.feed, w.cfg.Client, w.cfg.Namespace, v1alpha1.PlanName(w.cfg.Job), w.log)
	})
	spawn(func(ctx context.Context) error {
		planfeed.WatchFile(ctx, w.feed, w.cfg.PlanFile, w.log)
		return nil
	})
	spawn(func(ctx context.Context) error { w.notices.run(ctx); return nil })

	w.follow(loop)
	if plan, ok := w.feed.Current(); ok && loop.Err() == nil {
		w.standFor(plan, func(f func(context.Context)) {
			group.Go(func() { f(aside) })
		})
	}
	group.Go(func() { w.adopter.run(loop) })
	w.loop(loop)
	stop()
	group.Wait()
	select {
	case err := <-failed:
		return err
	default:
		w.log.Info("Stopped", "processed", w.state.processed()+w.adopter.state.processed())
		return nil
	}
}

// follow waits for the first plan.
func (w *Worker) follow(ctx context.Context) {
	for ctx.Err() == nil {
		changed := w.feed.Changed()
		if _, ok := w.feed.Current(); ok {
			return
		}
		w.log.Info("Waiting for a plan")
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
}

// standFor lets the worker stand for coordinator of the plan's group, which cannot change.
func (w *Worker) standFor(plan v1alpha1.Plan, spawn func(func(context.Context))) {
	group := fence.NewGroup(plan.Group)
	candidate := coordinator.NewCandidate(coordinator.Config{
		Job: w.cfg.Job, UID: w.cfg.JobUID, Pod: w.cfg.Pod, Group: group, Feed: w.feed, Store: w.store, Log: w.log,
		Connect: func(ctx context.Context, notify func(*pgconn.Notification)) (*fence.Session, error) {
			return w.connect(ctx, group, coordinator.SeatName(coordinator.RoleDeputy), notify)
		},
		Table: func() coordinator.Table {
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.table == nil {
				return nil
			}
			return w.table
		},
	})
	w.mu.Lock()
	w.candidate = candidate
	w.mu.Unlock()
	spawn(candidate.Run)
}

// connect opens a session with the credentials as they are now.
func (w *Worker) connect(ctx context.Context, group fence.Group, role string, notify func(*pgconn.Notification)) (*fence.Session, error) {
	conf, err := database.Config(w.cfg.DatabaseDir, w.cfg.CADir, w.cfg.URIKey)
	if err != nil {
		return nil, err
	}
	conf.ValidateConnect = w.lineage.guard(conf.ValidateConnect)
	if notify != nil {
		conf.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) { notify(n) }
	}
	name := fence.ApplicationName(group, w.ordinal, w.cfg.PodUID, role+w.cfg.Namespace+"/"+w.cfg.Job)
	return fence.Open(ctx, conf, fence.Options{ApplicationName: name, StatementTimeout: statementTimeout})
}

// Status is what the worker does right now.
func (w *Worker) Status() Status {
	st := Status{Job: w.cfg.Namespace + "/" + w.cfg.Job, Pod: w.cfg.Pod, Ordinal: w.ordinal, Role: coordinator.RoleNone}
	w.mu.Lock()
	if w.candidate != nil {
		st.Role = w.candidate.Role()
	}
	w.mu.Unlock()
	w.state.fill(&st)
	st.Processed += w.adopter.state.processed()
	st.Adopts, _ = w.adopter.assignment()
	return st
}

// reconnect is the pause between sessions: short at first, at most 15 s, and never the same for two workers.
var reconnect = wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 1 << 30, Cap: 15 * time.Second}

// goodSession is how long a session has to last for the pauses to begin anew.
const goodSession = 30 * time.Second

// loop holds one session after the other until the context ends.
func (w *Worker) loop(ctx context.Context) {
	backoff := reconnect
	for ctx.Err() == nil {
		changed := w.feed.Changed()
		plan, _ := w.feed.Current()
		w.state.follow(plan)
		if plan.Slots == 0 {
			// Paused: not even a session is kept.
			w.state.set(v1alpha1.SlotWaiting, "paused")
			w.state.problem(nil)
			w.notices.post(nil)
			w.state.session(0, true)
			select {
			case <-ctx.Done():
			case <-changed:
			}
			continue
		}
		began := time.Now()
		err := w.hold(ctx, plan)
		w.state.session(0, false)
		if err == nil || ctx.Err() != nil {
			continue
		}
		problem := sessionProblem(err)
		w.log.Warn("Session ended", "reason", problem.Reason, "message", problem.Message)
		w.state.set(v1alpha1.SlotWaiting, problem.Message)
		if time.Since(began) > goodSession {
			backoff = reconnect
		}
		pause := backoff.Step()
		if pause > time.Second {
			// A short break is not worth a word to the API server.
			w.notices.post(problem)
		}
		sleep.For(ctx, pause)
	}
}

// sessionProblem says what keeps the worker from having a session.
func sessionProblem(err error) *v1alpha1.Problem {
	var succeeded *succeededError
	switch {
	case errors.As(err, &succeeded):
		return &v1alpha1.Problem{Reason: v1alpha1.ReasonNotPrimary, Stalled: true, Message: succeeded.Error()}
	case errors.Is(err, fence.ErrNotPrimary):
		return &v1alpha1.Problem{Reason: v1alpha1.ReasonNotPrimary, Stalled: true,
			Message: "the database server is a standby or read-only; name the primary in the database Secret"}
	case errors.Is(err, fence.ErrTransactionPooling):
		return &v1alpha1.Problem{Reason: v1alpha1.ReasonTransactionPooling, Stalled: true,
			Message: "the connection goes through a pooler in transaction or statement mode, where session locks do not hold; connect to the server itself or to a pool in session mode"}
	case errors.Is(err, fence.ErrLockLost):
		return &v1alpha1.Problem{Reason: v1alpha1.ReasonLocksLost, Stalled: true,
			Message: "the session's advisory locks were gone before a batch could commit, so it was rolled back; the statement, or a trigger, must not call pg_advisory_unlock or pg_advisory_unlock_all"}
	default:
		return database.Problem(err)
	}
}
