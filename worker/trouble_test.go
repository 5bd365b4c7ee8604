package worker_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/hack/postgres"
)

// A search and a second look that each stay within the batch's time may take longer than the hand-over time together: so it
// is where all rows are done, as at the end of a job.
func TestSlowSearchesComplete(t *testing.T) {
	t.Parallel()
	j := newJob(t, nil, 10, plain)
	j.exec("CREATE FUNCTION nap() RETURNS boolean LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.3); RETURN false; END'")
	j.plan.Table.Pending = "NOT done OR nap()"
	j.plan.Batch.TimeoutSeconds, j.plan.HandoverSeconds = 4, 5
	j.exec("UPDATE t SET done = true")
	j.publish(1)
	j.start(0)
	j.complete()
}

// While the table is locked nothing can be counted, but who works what can still be told.
func TestLockedTableDoesNotSilenceTheCoordinator(t *testing.T) {
	t.Parallel()
	j := newJob(t, nil, 20000, slow)
	j.publish(2)
	j.start(0, 1)
	j.inForce()
	before, _ := j.report()
	j.exec("BEGIN; LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
	j.exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE '%coordinator of%'")
	j.publish(1)
	j.eventually("a report on the new plan", time.Minute, func() bool {
		r, _ := j.report()
		return r.Epoch == j.plan.Epoch && r.Epoch > before.Epoch
	})
	j.exec("ROLLBACK")
	j.inForce()
}

// What a condition stumbles over is the content of a row, and belongs neither in a log nor in the report.
func TestO06ConditionThatFailsIsReportedWithoutTheRow(t *testing.T) {
	t.Parallel()
	j := newJob(t, nil, 100, plain)
	j.exec("ALTER TABLE t ADD secret text DEFAULT 'Bob Smith'")
	j.plan.Table.Pending = "NOT done AND secret::int > 0"
	j.publish(1)
	j.start(0)
	j.eventually("the failing condition is reported", time.Minute, func() bool {
		r, _ := j.report()
		return r.Problem != nil && r.Problem.Reason == v1alpha1.ReasonInvalidSQL && !strings.Contains(r.Problem.Message, "Bob")
	})
	j.stop(0)
	log, err := os.ReadFile(filepath.Join(j.dir, "worker-0.log"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(log), "Bob") {
		t.Errorf("a row's content is in the log:\n%s", log)
	}
}

// A report that somebody removed comes back although there is no news.
func TestRemovedReportIsWrittenAgain(t *testing.T) {
	t.Parallel()
	j := newJob(t, nil, 100, plain)
	j.exec("ALTER TABLE t ADD CONSTRAINT c CHECK (id <> 7 OR NOT done)")
	j.publish(1)
	j.start(0)
	stalled := func() bool {
		r, _ := j.report()
		return r.Problem != nil && r.Problem.Reason == v1alpha1.ReasonRowsFailing && r.Processed == 99 && r.RowsPerSecond == 0
	}
	j.eventually("only the bad row is left, and all is quiet", 90*time.Second, stalled)
	maps, name := j.client.CoreV1().ConfigMaps("default"), v1alpha1.ReportName(j.name)
	if err := maps.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}}
	if _, err := maps.Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	j.eventually("the report is back", time.Minute, stalled)
}

// The workers' role may not see what kind of session those of other roles are; they take up room all the same.
func TestConnectionsOfOtherRolesAreCounted(t *testing.T) {
	t.Parallel()
	j := newJob(t, nil, 5000, slow)
	role := "app_" + postgres.DatabaseName(j.uri)
	j.exec("CREATE ROLE " + role + " LOGIN; GRANT ALL ON t, ledger TO " + role)
	const others = 20
	for range others {
		j.connect()
	}
	j.secret(map[string]string{"uri": strings.Replace(j.uri, "postgres@", role+"@", 1)})
	j.publish(1)
	j.start(0)
	j.eventually("the room is reported", time.Minute, func() bool {
		r, _ := j.report()
		return r.Connections != nil
	})
	if r, _ := j.report(); r.Connections.Free > r.Connections.Limit-others {
		t.Errorf("room for %d of %d, with %d others connected", r.Connections.Free, r.Connections.Limit, others)
	}
	j.stop(0)
	j.exec("DROP OWNED BY " + role + "; DROP ROLE " + role)
}
