package worker_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/hack/postgres"
)

// role makes a role that may do what the README lists and nothing else, has the job's workers use it, and returns its name. It
// goes with the server.
func (j *job) role() string {
	j.t.Helper()
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		j.t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(string(readme), -1)
	if len(blocks) != 2 {
		j.t.Fatalf("%d blocks of SQL in the README, want the tables and the privileges", len(blocks))
	}
	database := postgres.DatabaseName(j.uri)
	role := "app_" + database
	j.exec("CREATE ROLE " + role + " LOGIN")
	j.exec("REVOKE ALL ON DATABASE " + database + " FROM PUBLIC; GRANT CONNECT ON DATABASE " + database + " TO " + role)
	j.exec("REVOKE ALL ON SCHEMA public FROM PUBLIC; GRANT USAGE ON SCHEMA public TO " + role)
	j.exec("GRANT SELECT, UPDATE ON t TO " + role + "; GRANT INSERT ON ledger TO " + role) // the trigger's, which is part of the statement
	if j.plan.Table.Pending == "" {
		j.exec(blocks[0][1])
		j.exec(strings.ReplaceAll(blocks[1][1], " TO app;", " TO "+role+";"))
	}
	j.secret(map[string]string{"uri": strings.Replace(j.uri, "postgres@", role+"@", 1)})
	return role
}

// Whatever a job does in its life it does with the privileges that the README names.
func TestLeastPrivileges(t *testing.T) {
	t.Parallel()
	j := withoutPending(newJob(t, nil, 40000, slow))
	j.exec("CREATE SEQUENCE numbers OWNED BY t.id; ALTER TABLE t ALTER id SET DEFAULT nextval('numbers')") // which the role may not read
	j.role()
	j.plan.AdoptAfterSeconds, j.plan.HandoverSeconds, j.plan.Batch.TimeoutSeconds = 1, 3, 2
	writer := postgres.Connect(t, j.uri)
	for _, sql := range []string{"BEGIN", "UPDATE t SET v = 1 WHERE id = 7"} {
		if _, err := writer.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	j.publish(3)
	j.start(0, 1)
	j.eventually("a transaction of another role is waited for", time.Minute, func() bool {
		r, _ := j.report()
		return len(r.Warnings) > 0 && strings.HasPrefix(r.Warnings[0], "waiting for 1 transaction, pid ")
	})
	if _, err := writer.Exec(t.Context(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	j.eventually("slot 2 is adopted", time.Minute, func() bool { return j.slot(2).State == v1alpha1.SlotAdopted })
	j.publish(2)
	j.underWay(500)
	j.reload(func(p *v1alpha1.Plan) { p.Batch.Rows = 1000 })
	if r := j.complete(); r.Processed != 40000 || r.Problem != nil {
		t.Errorf("report %+v", r)
	}
	j.plan.Forget = true
	j.publish(1)
	j.eventually("the progress is forgotten", time.Minute, func() bool { r, _ := j.report(); return r.Forgotten })
	j.stop(0, 1)
}

// Where the rows remember what is done, nothing more is needed, and nothing is made in the database.
func TestLeastPrivilegesWithPending(t *testing.T) {
	t.Parallel()
	j := newJob(t, nil, 40000, slow)
	j.role()
	j.plan.AdoptAfterSeconds = 1
	const made = "SELECT (SELECT count(*) FROM pg_class) + (SELECT count(*) FROM pg_namespace WHERE nspname NOT LIKE 'pg_%') + (SELECT count(*) FROM pg_proc)"
	before := j.count(made)
	j.publish(3)
	j.start(0, 1)
	j.eventually("slot 2 is adopted", time.Minute, func() bool { return j.slot(2).State == v1alpha1.SlotAdopted })
	j.publish(2)
	j.underWay(500)
	j.reload(func(p *v1alpha1.Plan) { p.Batch.Rows = 1000 })
	j.complete()
	j.stop(0, 1)
	if n := j.count(made); n != before {
		t.Errorf("%d objects were made in the database", n-before)
	}
}

// The role may open fewer sessions than there are workers. Those that get none say so, and go on when there is room.
func TestG04RoleWithFewConnections(t *testing.T) {
	t.Parallel()
	const workers = 4
	j := withoutPending(newJob(t, nil, 40000, slow))
	role := j.role()
	j.exec("ALTER ROLE " + role + " CONNECTION LIMIT 3")
	j.publish(workers)
	j.start(0, 1, 2, 3)
	j.underWay(200)
	j.eventually("who has no connection says so", time.Minute, func() bool {
		_, notices := j.report()
		refused := 0
		for _, n := range notices {
			if n.Reason == v1alpha1.ReasonTooManyConnections && !n.Stalled {
				refused++
			}
		}
		return refused > 0
	})
	j.underWay(200)
	j.exec("ALTER ROLE " + role + " CONNECTION LIMIT -1")
	j.inForce()
	j.eventually("nobody complains", time.Minute, func() bool { _, notices := j.report(); return len(notices) == 0 })
	if n := j.count("SELECT count(*) FROM pg_stat_activity WHERE usename = $1", role); n > workers+2 {
		t.Errorf("%d sessions for %d workers, want one each, the coordinator's and its deputy's", n, workers)
	}
	j.reload(func(p *v1alpha1.Plan) { p.Batch.Rows = 1000 })
	j.complete()
	j.stop(0, 1, 2, 3)
}
