//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	. "github.com/onsi/gomega"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/hack/postgres"
	"shardedjob.dev/hack/stage"
)

// How a batch of the table is processed. Slow is about 500 rows per second and worker.
const (
	quick = "UPDATE items SET done = 'one' WHERE id = ANY($1)"
	slow  = "UPDATE items SET done = 'one' FROM (SELECT pg_sleep(0.2)) pause WHERE id = ANY($1)"
)

// The two ways to remember which rows are done.
const (
	remembering = `{name: items, key: id, pending: "done IS NULL"}`
	cursors     = "{name: items, key: id}"
)

// fixture is a table, half of it with negative keys, and the audit of what is processed.
const fixture = `
	CREATE TABLE items (id bigint PRIMARY KEY, done text);
	INSERT INTO items SELECT g FROM generate_series(-%[1]d / 2, %[1]d - %[1]d / 2 - 1) g;
	CREATE TABLE audit (id bigint NOT NULL, done text, pid int NOT NULL, app text NOT NULL, at timestamptz NOT NULL);
	CREATE FUNCTION audit_items() RETURNS trigger LANGUAGE plpgsql AS
	  'BEGIN INSERT INTO audit SELECT id, done, pg_backend_pid(), current_setting(''application_name''), clock_timestamp() FROM processed; RETURN NULL; END';
	CREATE TRIGGER audit AFTER UPDATE ON items REFERENCING NEW TABLE AS processed FOR EACH STATEMENT EXECUTE FUNCTION audit_items();
	ANALYZE items`

// job is a ShardedJob named work in a namespace and on a database of its own.
type job struct {
	*testing.T
	Gomega
	namespace string
	uri       string
	rows      int
	judged    bool // the audit was asked

	// What the manifest says.
	table     string
	statement string
	batch     int
	timeout   int    // of a batch, in seconds
	more      string // further lines of the spec
}

// newJob makes namespace, table and Secret, and applies nothing yet.
func newJob(t *testing.T, rows int, statement string) *job {
	t.Helper()
	return newJobOn(t, scene.Server, rows, statement)
}

// newJobOn is newJob on a server of the test's own.
func newJobOn(t *testing.T, server *postgres.Server, rows int, statement string) *job {
	t.Helper()
	g := NewWithT(t)
	g.SetDefaultEventuallyTimeout(2 * time.Minute)
	g.SetDefaultEventuallyPollingInterval(500 * time.Millisecond)
	name := strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(t.Name(), "Test"), "/", "-"))
	j := &job{T: t, Gomega: g, namespace: name, rows: rows, table: remembering, statement: statement, batch: 100, timeout: 5}
	var err error
	j.uri, err = stage.NewDatabase(t.Context(), server, strings.ReplaceAll(name, "-", "_"))
	j.Expect(err).NotTo(HaveOccurred())
	j.exec(fmt.Sprintf(fixture, rows))
	j.kubectl("create", "namespace", name)
	t.Cleanup(func() {
		if t.Failed() {
			j.tell()
		}
		if !j.judged { // whatever else went wrong
			wrong.Add(int64(j.count("SELECT count(*) FROM (SELECT FROM audit GROUP BY id HAVING count(*) > 1) more")))
		}
		_, err := scene.Output(context.Background(), "", "delete", "namespace", name, "--wait=false")
		j.Expect(err).NotTo(HaveOccurred())
	})
	j.createSecret(j.uri)
	return j
}

func (j *job) createSecret(uri string) {
	j.Helper()
	j.kubectl("create", "secret", "generic", "db", "--from-literal=uri="+uri)
}

// manifest is what a user would have in a file. It leaves replicas to kubectl scale.
func (j *job) manifest() string {
	return fmt.Sprintf(`apiVersion: shardedjob.dev/v1alpha1
kind: ShardedJob
metadata: {name: work}
spec:
  database: {secretName: db}
  table: %s
  process: {sql: {statement: %q}}
  batch: {rows: %d, timeoutSeconds: %d}
%s`, j.table, j.statement, j.batch, j.timeout, j.more)
}

// try runs kubectl in the job's namespace.
func (j *job) try(stdin string, args ...string) (string, error) {
	return scene.Output(context.WithoutCancel(j.Context()), stdin, append([]string{"-n", j.namespace}, args...)...)
}

// kubectl runs kubectl, which must succeed.
func (j *job) kubectl(args ...string) string {
	j.Helper()
	out, err := j.try("", args...)
	j.Expect(err).NotTo(HaveOccurred())
	return out
}

func (j *job) apply() {
	j.Helper()
	_, err := j.try(j.manifest(), "apply", "-f", "-")
	j.Expect(err).NotTo(HaveOccurred())
}

func (j *job) scale(n int) {
	j.Helper()
	j.kubectl("scale", "sj/work", fmt.Sprintf("--replicas=%d", n))
}

// await waits for a condition as a user does.
func (j *job) await(condition string) {
	j.Helper()
	j.kubectl("wait", "--for=condition="+condition, "sj/work", "--timeout=180s")
}

// start applies the manifest and has n workers at work.
func (j *job) start(n int) {
	j.Helper()
	j.apply()
	j.scale(n)
	j.await("Ready")
}

// get reads the job.
func (j *job) get() *v1alpha1.ShardedJob {
	j.Helper()
	got := &v1alpha1.ShardedJob{}
	j.Expect(json.Unmarshal([]byte(j.kubectl("get", "sj/work", "-o", "json")), got)).To(Succeed())
	return got
}

// condition reads one condition as "Status Reason: message".
func (j *job) condition(kind string) string {
	j.Helper()
	for _, c := range j.get().Status.Conditions {
		if c.Type == kind {
			return fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
		}
	}
	return ""
}

// uids are the pods' UIDs by name.
func (j *job) uids() map[string]string {
	j.Helper()
	uids := map[string]string{}
	out := j.kubectl("get", "pods", "-l", "shardedjob.dev/job=work", "-o", `jsonpath={range .items[*]}{.metadata.name} {.metadata.uid}{"\n"}{end}`)
	for line := range strings.Lines(out) {
		name, uid, _ := strings.Cut(strings.TrimSpace(line), " ")
		uids[name] = uid
	}
	return uids
}

// withDB opens a session as the administrator, whom a restart of the server ends.
func (j *job) withDB(do func(context.Context, *pgx.Conn)) {
	j.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(j.Context()), 30*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, j.uri)
	j.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = conn.Close(ctx) }()
	do(ctx, conn)
}

func (j *job) exec(statement string) {
	j.Helper()
	j.withDB(func(ctx context.Context, conn *pgx.Conn) {
		_, err := conn.Exec(ctx, statement)
		j.Expect(err).NotTo(HaveOccurred())
	})
}

// count asks for one number.
func (j *job) count(query string, args ...any) (n int) {
	j.Helper()
	j.withDB(func(ctx context.Context, conn *pgx.Conn) {
		j.Expect(conn.QueryRow(ctx, query, args...).Scan(&n)).To(Succeed())
	})
	return n
}

func (j *job) processed() int { j.Helper(); return j.count("SELECT count(*) FROM audit") }

// untilProcessed waits until so many more rows are processed than now.
func (j *job) untilProcessed(more int) {
	j.Helper()
	from := j.processed()
	j.Eventually(j.processed).Should(BeNumerically(">=", min(from+more, j.rows)))
}

// finish goes on with a quick statement and large batches, so that no test lasts longer than what it shows, to the end.
func (j *job) finish() {
	j.Helper()
	j.statement, j.batch = quick, 5000
	j.apply()
	j.expectExactlyOnce()
}

// expectExactlyOnce waits for Complete and asks the audit.
func (j *job) expectExactlyOnce() {
	j.Helper()
	j.await("Complete")
	j.expectOnce("")
}

// expectOnce asks the audit, of the rows for which a condition is true.
func (j *job) expectOnce(where string) {
	j.Helper()
	if where != "" {
		where = "WHERE " + where
	}
	never, more := 0, 0
	j.withDB(func(ctx context.Context, conn *pgx.Conn) {
		j.Expect(conn.QueryRow(ctx, `SELECT count(*) FILTER (WHERE n = 0), count(*) FILTER (WHERE n > 1)
			FROM (SELECT count(audit.id) AS n FROM items LEFT JOIN audit USING (id) `+where+` GROUP BY items.id) each_row`).Scan(&never, &more)).To(Succeed())
	})
	j.judged = true
	audited.Add(int64(j.rows))
	wrong.Add(int64(never + more))
	j.Expect([]int{never, more}).To(Equal([]int{0, 0}), "rows processed 0 and 2+ times")
}

// tell shows what a person would look at when something is wrong.
func (j *job) tell() {
	for _, args := range [][]string{
		{"get", "sj/work", "-o", "yaml"}, {"get", "pods", "-o", "wide"}, {"get", "configmap", "work-plan", "work-report", "-o", "jsonpath={.items[*].data}"},
		{"get", "events", "--sort-by=.lastTimestamp"}, {"logs", "-l", "shardedjob.dev/job=work", "--tail=15", "--prefix"},
		{"logs", "-n", "shardedjob-system", "deployment/shardedjob-controller-manager", "--tail=30"},
	} {
		out, err := j.try("", args...)
		j.Logf("$ kubectl %s\n%s%v", strings.Join(args, " "), out, err)
	}
}

// processOf is the pid, on this machine, of the program with that path in a pod: the kubelet puts the pod's UID into the names of its cgroups or mounts.
func (j *job) processOf(podUID, program string) int {
	j.Helper()
	pid := 0
	j.Eventually(func() int { pid = findProcess(podUID, program); return pid }).ShouldNot(BeZero())
	return pid
}

func findProcess(podUID, program string) int {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		words, _ := os.ReadFile(file) // it may have ended
		if name, _, _ := strings.Cut(string(words), "\x00"); name != program {
			continue
		}
		mounts, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "mountinfo"))
		if strings.Contains(string(mounts), podUID) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			return pid
		}
	}
	return 0
}

// residentMB is the resident memory of a process in MB.
func residentMB(pid int) float64 {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, _ := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			return kb / 1024
		}
	}
	return 0
}
