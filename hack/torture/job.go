package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/hack/torture/schedule"
	"shardedjob.dev/worker/fence"
)

// What the plans say, in seconds: short, so that much happens.
const (
	batchTimeout = 2
	handover     = 3
	adoptAfter   = 3
)

// largeBatch is the greatest batch.
const largeBatch = 500

// podGrace is how long a pod has from SIGTERM on, as the operator's template gives it.
const podGrace = (handover + 10) * time.Second

const namespace = "default"

// job is one ShardedJob with its table, its operator and its pods.
type job struct {
	*scene
	lane  *lane
	name  string
	group fence.Group
	dir   string
	table table

	troubles sync.WaitGroup // faults about this job that are under way
	quiet    atomic.Bool    // the application inserts no rows any more

	mu sync.Mutex
	// The operator's: what is wanted, what was published last, and all that was before.
	want      v1alpha1.Plan
	published v1alpha1.Plan
	history   []v1alpha1.Plan
	highest   int64         // epoch that the workers have reported
	version   string        // of the plan's ConfigMap; empty: not known
	lost      bool          // the ConfigMap is gone and nobody has noticed
	objects   int           // that the job has been, each with a UID of its own
	changed   chan struct{} // has one element if want may differ from published
	mountDue  time.Time     // when the kubelet brings the published plan to the pods
	report    v1alpha1.Report
	complete  chan struct{} // closed when the report says so
	// The kubelet's.
	pods     map[int32]*pod
	uids     map[int32]string // of the pods
	made     uint32           // pods, so far
	heldBack map[int32]time.Time
	grounded bool  // the kubelet does nothing
	replicas int32 // of the StatefulSet
	shrinkAt time.Time
	over     bool // it is being deleted
	// The faults that a slot's next commit ends, for the audit.
	marks []mark
}

// mark is a fault that took a slot from its worker.
type mark struct {
	kind schedule.Kind
	slot int32
	at   time.Time
}

// newJob makes the table, the report and the mounted files of a job. Nothing works on it yet, and there is no plan.
func newJob(ctx context.Context, l *lane, round int) (*job, error) {
	name := fmt.Sprintf("%s-%d", l.way.name, round)
	j := &job{
		scene: l.scene, lane: l, name: name, group: fence.NewGroup(namespace + "/" + name), dir: filepath.Join(l.dir, name),
		table:   newTable(strings.ReplaceAll(name, "-", "_"), l.rows, l.random),
		changed: make(chan struct{}, 1), complete: make(chan struct{}),
		pods: map[int32]*pod{}, uids: map[int32]string{}, heldBack: map[int32]time.Time{},
	}
	j.want = v1alpha1.Plan{
		FormatVersion: v1alpha1.PlanFormatVersion, UID: j.newUID(), Group: j.group.Name(), Generation: 1,
		HandoverSeconds: handover, AdoptAfterSeconds: adoptAfter, Mode: v1alpha1.ModeBackfill,
		Table:   j.table.spec(l.way.pending),
		Process: v1alpha1.ProcessSpec{SQL: &v1alpha1.SQLProcess{Statement: l.way.statement(l.random)}},
		Batch:   v1alpha1.BatchSpec{Rows: batchRows(l.random), TimeoutSeconds: batchTimeout},
		Failure: v1alpha1.FailureSpec{MaxAttempts: 5, WhenExhausted: v1alpha1.HoldExhausted},
	}
	if err := j.makeMounts(); err != nil {
		return nil, fmt.Errorf("make the mounts of job %s: %w", name, err)
	}
	if err := j.persist(ctx, "make the table of job "+name, j.createTable); err != nil {
		return nil, err
	}
	return j, j.persist(ctx, "make the report of job "+name, j.makeReport)
}

// newUID is another UID for the job's object. The job's mu is held, or nobody else has the job yet.
func (j *job) newUID() types.UID {
	j.objects++
	return types.UID(fmt.Sprintf("%08x-%04x", uint32(j.group.Hash()), j.objects))
}

// makeReport makes the report's ConfigMap, which workers only change.
func (j *job) makeReport(ctx context.Context) error {
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.ReportName(j.name), Namespace: namespace}}
	_, err := j.client.CoreV1().ConfigMaps(namespace).Create(ctx, cm, metav1.CreateOptions{})
	return ignore(err, apierrors.IsAlreadyExists)
}

// deleteConfigMaps deletes plan and report.
func (j *job) deleteConfigMaps(ctx context.Context) error {
	for _, name := range []string{v1alpha1.PlanName(j.name), v1alpha1.ReportName(j.name)} {
		err := j.client.CoreV1().ConfigMaps(namespace).Delete(ctx, name, metav1.DeleteOptions{})
		if err := ignore(err, apierrors.IsNotFound); err != nil {
			return err
		}
	}
	return nil
}

// ignore makes an error that is as good as success into none.
func ignore(err error, as func(error) bool) error {
	if as(err) {
		return nil
	}
	return err
}

// createTable can be called again after a failure whose outcome is not known.
func (j *job) createTable(ctx context.Context) error {
	return j.onConnection(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, "DROP SCHEMA IF EXISTS "+j.table.schema+" CASCADE"); err != nil {
			return err
		}
		return j.table.create(ctx, conn, j.group.Class())
	})
}

// batchRows is a batch size of chance: rather small, so that there are many transactions to break.
func batchRows(random *rand.Rand) int32 {
	return []int32{1 + random.Int32N(10), 50 + random.Int32N(100), 200, largeBatch}[random.IntN(4)]
}

// makeMounts makes the folders that pods see: all the same plan, each a Secret of its own.
func (j *job) makeMounts() error {
	if err := os.MkdirAll(filepath.Dir(j.planFile()), 0o755); err != nil {
		return err
	}
	for ordinal, m := range j.lane.machines {
		dir := j.databaseDir(int32(ordinal))
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "uri"), []byte(m.uri), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (j *job) planFile() string { return filepath.Join(j.dir, "plan", v1alpha1.PlanKey) }

func (j *job) databaseDir(ordinal int32) string {
	return filepath.Join(j.dir, fmt.Sprintf("database-%d", ordinal))
}

// remove removes what is not needed after the audit.
func (j *job) remove(ctx context.Context) error {
	err := j.persist(ctx, "drop the table of job "+j.name, func(ctx context.Context) error {
		return j.onConnection(ctx, func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, "DROP SCHEMA "+j.table.schema+" CASCADE")
			return err
		})
	})
	if err != nil {
		return err
	}
	return j.persist(ctx, "remove the ConfigMaps of job "+j.name, j.deleteConfigMaps)
}
