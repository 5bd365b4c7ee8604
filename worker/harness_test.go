package worker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/hack/cluster"
	"shardedjob.dev/hack/postgres"
	"shardedjob.dev/worker"
)

// asWorker makes the test binary run a worker instead of tests, so that workers are real processes that can be
// killed and stopped, and are built with the race detector if the tests are.
const asWorker = "SHARDEDJOB_TEST_WORKER"

var api *cluster.ControlPlane

func TestMain(m *testing.M) {
	if raw := os.Getenv(asWorker); raw != "" {
		if err := runWorker(raw); err != nil {
			fmt.Fprintln(os.Stderr, "worker:", err)
			os.Exit(1)
		}
		return
	}
	code := 1
	err := func() (err error) {
		if api, err = cluster.StartControlPlane(context.Background(), cluster.Options{}); err != nil {
			return err
		}
		defer func() { _ = api.Stop() }()
		code = postgres.Run(m)
		return nil
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

// process is what the test binary is told when it runs as a worker.
type process struct {
	worker.Config
	Kubeconfig string

	start func(*exec.Cmd) error
	dial  func(ctx context.Context, network, address string) (net.Conn, error) // reaches it, nil as usual
}

func runWorker(raw string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var p process
	if err := json.Unmarshal([]byte(raw), &p); err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", p.Kubeconfig)
	if err != nil {
		return err
	}
	if p.Client, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	p.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	w, err := worker.New(p.Config)
	if err != nil {
		return err
	}
	return w.Run(ctx)
}

// job plays the operator for a set of workers: it owns the plan, and reads the report.
type job struct {
	t      *testing.T
	server *postgres.Server
	uri    string
	db     *pgx.Conn
	client kubernetes.Interface
	dir    string
	name   string
	plan   v1alpha1.Plan
	pods   map[int32]*pod
}

// pod is one worker process.
type pod struct {
	*exec.Cmd
	addr   string
	client http.Client
	exited chan struct{}
}

// rows is a table with so many rows, and a ledger in which a trigger notes each time that a row is processed.
const fixture = `
	CREATE TABLE t (id bigint PRIMARY KEY, done boolean NOT NULL DEFAULT false, v int NOT NULL DEFAULT 0);
	INSERT INTO t SELECT g FROM generate_series(-%[1]d / 2, %[1]d - %[1]d / 2 - 1) g;
	CREATE TABLE ledger (id bigint, pid int DEFAULT pg_backend_pid(), app text DEFAULT current_setting('application_name'), at timestamptz DEFAULT clock_timestamp());
	CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO ledger (id) VALUES (new.id); RETURN new; END';
	CREATE TRIGGER note AFTER UPDATE ON t FOR EACH ROW EXECUTE FUNCTION note();
	ANALYZE t`

// plain marks rows as done at once; slow takes a twentieth of a second for each batch.
const (
	plain = "UPDATE t SET done = true WHERE id = ANY($1)"
	slow  = "UPDATE t SET done = true FROM (SELECT pg_sleep(0.05)) s WHERE id = ANY($1)"
)

// newJob makes a table with so many rows and a plan for it, on a server of the test's own if it is given one.
func newJob(t *testing.T, server *postgres.Server, rows int, statement string) *job {
	t.Helper()
	if server == nil {
		server = postgres.ForTest(t)
	}
	j := &job{t: t, server: server, uri: server.NewDB(t)}
	j.connect()
	j.exec(fmt.Sprintf(fixture, rows))
	j.plan = v1alpha1.Plan{
		FormatVersion: v1alpha1.PlanFormatVersion,
		Generation:    1, HandoverSeconds: 15, AdoptAfterSeconds: 30, Mode: v1alpha1.ModeBackfill,
		Table:   v1alpha1.TableSpec{Schema: "public", Name: "t", Key: "id", Pending: "NOT done"},
		Process: v1alpha1.ProcessSpec{SQL: &v1alpha1.SQLProcess{Statement: statement}},
		Batch:   v1alpha1.BatchSpec{Rows: 100, TimeoutSeconds: 10},
		Failure: v1alpha1.FailureSpec{MaxAttempts: 2, WhenExhausted: v1alpha1.HoldExhausted},
	}
	return j.create()
}

// newJobOn makes another job with the same plan on the same table, as when it is deleted and made again.
func newJobOn(t *testing.T, old *job) *job {
	t.Helper()
	j := &job{t: t, server: old.server, uri: old.uri, db: old.db, plan: old.plan}
	return j.create()
}

// create gives a job a name and an identity of its own.
func (j *job) create() *job {
	t := j.t
	t.Helper()
	j.dir, j.pods = t.TempDir(), map[int32]*pod{}
	j.name = fmt.Sprintf("job-%d", time.Now().UnixNano()%1e9)
	j.plan.UID = types.UID(fmt.Sprintf("%08x-uid-of-%s", time.Now().UnixNano()%1e9, j.name))
	if j.plan.Group == "" {
		j.plan.Group = "default/" + j.name
	}
	var err error
	if j.client, err = kubernetes.NewForConfig(api.Config()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{v1alpha1.PlanName(j.name), v1alpha1.ReportName(j.name)} {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}}
		if _, err := j.client.CoreV1().ConfigMaps("default").Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	j.secret(map[string]string{"uri": j.uri})
	t.Cleanup(func() {
		for _, p := range j.pods {
			_ = p.Process.Kill()
			<-p.exited
		}
	})
	return j
}

// connect opens the test's own connection, again if need be.
func (j *job) connect() {
	j.t.Helper()
	j.db = postgres.Connect(j.t, j.uri)
}

func (j *job) exec(sql string) {
	j.t.Helper()
	if _, err := j.db.Exec(j.t.Context(), sql); err != nil {
		j.t.Fatalf("%s: %v", sql, err)
	}
}

// count runs a query for one number.
func (j *job) count(sql string, args ...any) int {
	j.t.Helper()
	var n int
	if err := j.db.QueryRow(j.t.Context(), sql, args...).Scan(&n); err != nil {
		j.t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// locks counts the advisory locks in the job's database.
func (j *job) locks() int {
	j.t.Helper()
	return j.count("SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database WHERE locktype = 'advisory' AND d.datname = current_database()")
}

// secret writes the database Secret as the kubelet would mount it.
func (j *job) secret(data map[string]string) {
	j.t.Helper()
	dir := filepath.Join(j.dir, "database")
	_ = os.RemoveAll(dir)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		j.t.Fatal(err)
	}
	for key, value := range data {
		if err := os.WriteFile(filepath.Join(dir, key), []byte(value), 0o644); err != nil {
			j.t.Fatal(err)
		}
	}
}

// publish makes the next plan with n slots.
func (j *job) publish(slots int32) {
	j.t.Helper()
	j.plan.Epoch++
	j.plan.Slots = slots
	j.write()
}

// reload changes the plan within its epoch.
func (j *job) reload(change func(*v1alpha1.Plan)) {
	j.t.Helper()
	j.plan.Generation++
	change(&j.plan)
	j.write()
}

func (j *job) write() {
	j.t.Helper()
	data, err := v1alpha1.EncodePlan(j.plan)
	if err != nil {
		j.t.Fatal(err)
	}
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.PlanName(j.name), Namespace: "default"}, Data: data}
	if _, err := j.client.CoreV1().ConfigMaps("default").Update(j.t.Context(), cm, metav1.UpdateOptions{}); err != nil {
		j.t.Fatal(err)
	}
}

// mount brings the plan to the mounted file, as the kubelet does some time after it was published.
func (j *job) mount() {
	j.t.Helper()
	data, err := v1alpha1.EncodePlan(j.plan)
	if err != nil {
		j.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(j.dir, v1alpha1.PlanKey), []byte(data[v1alpha1.PlanKey]), 0o644); err != nil {
		j.t.Fatal(err)
	}
}

// start starts the worker of an ordinal.
func (j *job) start(ordinals ...int32) {
	j.t.Helper()
	for _, ordinal := range ordinals {
		j.startWith(ordinal, func(*process) {})
	}
}

func (j *job) startWith(ordinal int32, change func(*process)) {
	j.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		j.t.Fatal(err)
	}
	addr := listener.Addr().String()
	_ = listener.Close()
	p := process{Kubeconfig: api.Kubeconfig(), start: (*exec.Cmd).Start, Config: worker.Config{
		Namespace: "default", Job: j.name, JobUID: j.plan.UID,
		Pod: v1alpha1.PodName(j.name, ordinal), PodUID: fmt.Sprintf("%08x", time.Now().UnixNano()%1e9),
		PlanFile: filepath.Join(j.dir, "plan.json"), DatabaseDir: filepath.Join(j.dir, "database"), CADir: filepath.Join(j.dir, "ca"),
		URIKey: "uri", ListenAddress: addr,
	}}
	change(&p)
	raw, err := json.Marshal(p)
	if err != nil {
		j.t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asWorker+"="+string(raw))
	log, err := os.OpenFile(filepath.Join(j.dir, fmt.Sprintf("worker-%d.log", ordinal)), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		j.t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := p.start(cmd); err != nil {
		j.t.Fatal(err)
	}
	running := &pod{Cmd: cmd, addr: addr, exited: make(chan struct{})}
	running.client = http.Client{Timeout: time.Second, Transport: &http.Transport{DialContext: p.dial, DisableKeepAlives: true}}
	go func() {
		_ = cmd.Wait()
		_ = log.Close()
		close(running.exited)
	}()
	j.pods[ordinal] = running
}

// withoutAPI starts a worker whose way to the API server is cut.
func (j *job) withoutAPI(p *process) {
	j.t.Helper()
	raw, err := os.ReadFile(api.Kubeconfig())
	if err != nil {
		j.t.Fatal(err)
	}
	p.Kubeconfig = filepath.Join(j.dir, "kubeconfig")
	host := strings.TrimPrefix(api.Config().Host, "https://")
	if err := os.WriteFile(p.Kubeconfig, []byte(strings.ReplaceAll(string(raw), host, "127.0.0.1:1")), 0o600); err != nil {
		j.t.Fatal(err)
	}
}

// signal sends a signal to a worker.
func (j *job) signal(ordinal int32, sig os.Signal) {
	j.t.Helper()
	if err := j.pods[ordinal].Process.Signal(sig); err != nil {
		j.t.Fatal(err)
	}
}

// stop ends workers as a kubelet does and waits for them.
func (j *job) stop(ordinals ...int32) {
	j.t.Helper()
	for _, ordinal := range ordinals {
		j.signal(ordinal, syscall.SIGTERM)
	}
	for _, ordinal := range ordinals {
		select {
		case <-j.pods[ordinal].exited:
		case <-time.After(30 * time.Second):
			j.fail("worker %d does not stop", ordinal)
		}
		if !j.pods[ordinal].ProcessState.Success() {
			j.fail("worker %d ended with %s", ordinal, j.pods[ordinal].ProcessState)
		}
		delete(j.pods, ordinal)
	}
}

// report reads the coordinator's report and the workers' notices; the report is empty while there is none.
func (j *job) report() (v1alpha1.Report, map[int32]v1alpha1.Notice) {
	j.t.Helper()
	cm, err := j.client.CoreV1().ConfigMaps("default").Get(j.t.Context(), v1alpha1.ReportName(j.name), metav1.GetOptions{})
	if err != nil {
		j.t.Fatal(err)
	}
	r, notices, err := v1alpha1.DecodeReport(j.plan.UID, cm.Data)
	if err != nil {
		j.t.Fatal(err)
	}
	if r == nil {
		r = &v1alpha1.Report{}
	}
	return *r, notices
}

// status asks a worker for its /statusz; it is empty while the worker does not answer.
func (j *job) status(ordinal int32) (st worker.Status) {
	p := j.pods[ordinal]
	resp, err := p.client.Get("http://" + p.addr + "/statusz")
	if err != nil {
		return st
	}
	defer func() { _ = resp.Body.Close() }()
	_ = json.NewDecoder(resp.Body).Decode(&st)
	return st
}

// eventually waits for a condition.
func (j *job) eventually(what string, limit time.Duration, ok func() bool) time.Duration {
	j.t.Helper()
	began := time.Now()
	for !ok() {
		if time.Since(began) > limit {
			j.fail("not within %s: %s", limit, what)
		}
		time.Sleep(20 * time.Millisecond)
	}
	return time.Since(began)
}

// fail ends the test with what is known.
func (j *job) fail(format string, args ...any) {
	j.t.Helper()
	r, notices := j.report()
	raw, _ := json.MarshalIndent(r, "", " ")
	j.t.Logf("report: %s\nnotices: %v", raw, notices)
	logs, _ := filepath.Glob(filepath.Join(j.dir, "worker-*.log"))
	for _, name := range logs {
		f, err := os.Open(name)
		if err != nil {
			continue
		}
		text, _ := io.ReadAll(io.LimitReader(f, 8000))
		_ = f.Close()
		j.t.Logf("%s:\n%s", filepath.Base(name), text)
	}
	j.t.Fatalf(format, args...)
}

// inForce waits until the report says that the plan is in force in all slots.
func (j *job) inForce() time.Duration {
	j.t.Helper()
	return j.eventually("the plan is in force", time.Minute, func() bool {
		r, _ := j.report()
		return r.Epoch == j.plan.Epoch && r.Generation >= j.plan.Generation && r.SlotCounts.Working == j.plan.Slots
	})
}

// underWay waits until some rows are done, and not all.
func (j *job) underWay(rows int) {
	j.t.Helper()
	before := j.count("SELECT count(*) FROM ledger")
	j.eventually("rows are processed", time.Minute, func() bool { return j.count("SELECT count(*) FROM ledger") >= before+rows })
}

// complete waits until the report says so, and checks that each row was processed exactly once.
func (j *job) complete() v1alpha1.Report {
	j.t.Helper()
	j.eventually("the job is complete", 2*time.Minute, func() bool {
		r, _ := j.report()
		return r.CompleteTime != nil
	})
	j.onceEach()
	r, _ := j.report()
	return r
}

// onceEach checks the ledger: every row exactly once.
func (j *job) onceEach() {
	j.t.Helper()
	if n := j.count("SELECT count(*) FROM t WHERE NOT done"); n != 0 {
		j.fail("%d rows are not processed", n)
	}
	if n := j.count("SELECT count(*) FROM (SELECT id FROM ledger GROUP BY id HAVING count(*) > 1) d"); n != 0 {
		j.fail("%d rows are processed twice or more", n)
	}
	if n := j.count("SELECT count(*) FROM t WHERE id NOT IN (SELECT id FROM ledger)"); n != 0 {
		j.fail("%d rows are marked but not in the ledger", n)
	}
}
