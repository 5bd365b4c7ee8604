package cursor

import (
	"os"
	"strings"
	"sync"
	"testing"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/hack/postgres"
)

func TestManyWorkersPrepareAtOnce(t *testing.T) {
	b := &bench{TB: t, uri: postgres.ForTest(t).NewDB(t)}
	b.conn = b.connect()
	start := make(chan struct{})
	var group sync.WaitGroup
	for range 24 {
		conn := b.connect()
		group.Go(func() {
			<-start
			if problem, err := Prepare(t.Context(), conn); problem != nil || err != nil {
				t.Errorf("%+v %v", problem, err)
			}
		})
	}
	close(start)
	group.Wait()
	b.want("SELECT count(*)::text FROM pg_class WHERE relnamespace = 'shardedjob'::regnamespace AND relkind = 'r'", "3")
	b.want(`SELECT string_agg(format('%s.%s', attrelid::regclass, attname), ' ') FROM pg_attribute JOIN pg_class c ON c.oid = attrelid
		WHERE relnamespace = 'shardedjob'::regnamespace AND relkind = 'r' AND attnum > 0 AND col_description(attrelid, attnum) IS NULL`, "NULL")
	b.want("SELECT count(obj_description(oid))::text FROM pg_class WHERE relnamespace = 'shardedjob'::regnamespace AND relkind = 'r'", "3")
	b.want("SELECT (obj_description('shardedjob'::regnamespace) LIKE 'ShardedJob%')::text", "true")
}

// TestPrivileges goes through what a role may have, from nothing to all that is there.
func TestPrivileges(t *testing.T) {
	server := postgres.StartForTest(t, postgres.Options{}) // roles belong to the whole server
	super := &bench{TB: t, uri: server.NewDB(t)}
	super.conn = super.connect()
	super.exec("CREATE ROLE plain LOGIN; CREATE ROLE \"Odd role\" LOGIN; CREATE ROLE dba")
	for _, c := range []struct {
		name, role, setup string
		refusal           string // the cure that the problem names; empty: there is no problem
	}{
		{"nothing", "plain", "SELECT", `CREATE SCHEMA shardedjob AUTHORIZATION "plain"; or GRANT CREATE ON DATABASE "%s" TO "plain"`},
		{"odd name", "Odd role", "SELECT", `AUTHORIZATION "Odd role"`},
		{"CREATE on the database", "plain", `GRANT CREATE ON DATABASE "%s" TO plain`, ""},
		{"a schema of its own", "plain", "CREATE SCHEMA shardedjob AUTHORIZATION plain", ""},
		{"schema of another with CREATE", "plain", "CREATE SCHEMA shardedjob; GRANT USAGE, CREATE ON SCHEMA shardedjob TO plain", ""},
		{"schema of another without CREATE", "plain", "CREATE SCHEMA shardedjob; GRANT USAGE ON SCHEMA shardedjob TO plain",
			`GRANT USAGE, CREATE ON SCHEMA shardedjob TO "plain"; or make them as in the README and GRANT SELECT, INSERT, UPDATE, DELETE ON shardedjob.job, shardedjob.slot, shardedjob.row_failure TO "plain"`},
		{"one table is missing", "plain", schemaSQL + "; DROP TABLE shardedjob.slot; GRANT USAGE, CREATE ON SCHEMA shardedjob TO plain; GRANT ALL ON ALL TABLES IN SCHEMA shardedjob TO plain", ""},
		{"all is there, without a privilege", "plain", schemaSQL,
			`user "plain" lacks USAGE on schema shardedjob, DELETE on shardedjob.job, INSERT on shardedjob.job, `},
		{"all is there, without DELETE on one", "plain", schemaSQL + "; " + grants + "; REVOKE DELETE ON shardedjob.row_failure FROM plain",
			`lacks DELETE on shardedjob.row_failure: GRANT USAGE ON SCHEMA shardedjob TO "plain"; GRANT SELECT, INSERT, UPDATE, DELETE ON shardedjob.job, shardedjob.slot, shardedjob.row_failure TO "plain"`},
		{"all is there, and the least", "plain", schemaSQL + "; " + grants, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := &bench{TB: t, uri: server.NewDB(t)}
			b.conn = b.connect()
			database := postgres.DatabaseName(b.uri)
			b.exec(strings.ReplaceAll(c.setup, "%s", database))
			b.exec("CREATE TABLE t (id int PRIMARY KEY, times int NOT NULL DEFAULT 0, kind text); INSERT INTO t SELECT generate_series(1, 9); GRANT SELECT, UPDATE ON t TO PUBLIC; REVOKE CREATE ON SCHEMA public FROM PUBLIC")
			b.table = b.checked()
			b.conn = postgres.Connect(t, strings.Replace(b.uri, "postgres@", strings.ReplaceAll(c.role, " ", "%20")+"@", 1))
			for range 2 {
				problem, err := Prepare(t.Context(), b.conn)
				switch {
				case err != nil:
					t.Fatal(err)
				case (problem != nil) != (c.refusal != ""):
					t.Fatalf("problem %+v", problem)
				case problem == nil:
				case problem.Reason != v1alpha1.ReasonMissingPrivileges || !problem.Stalled || !strings.Contains(problem.Message, strings.ReplaceAll(c.refusal, "%s", database)):
					t.Errorf("problem %+v", problem)
				}
			}
			if c.refusal == "" {
				// A whole life with what the role has.
				b.work(plan(1, 2))
				if _, err := Remaining(t.Context(), b.conn, plan(1, 2), b.table, 1e9); err != nil {
					t.Error(err)
				}
				if err := Forget(t.Context(), b.conn, plan(1, 2)); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// grants are the least privileges.
const grants = "GRANT USAGE ON SCHEMA shardedjob TO plain; GRANT SELECT, INSERT, UPDATE, DELETE ON shardedjob.job, shardedjob.slot, shardedjob.row_failure TO plain"

func TestTheReadmeShowsTheSQL(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{schemaSQL, "GRANT USAGE ON SCHEMA shardedjob TO ", "GRANT " + privileges + " ON " + tables + " TO "} {
		if !strings.Contains(string(readme), sql) {
			t.Errorf("the README lacks:\n%.200s", sql)
		}
	}
}

func TestParagraphsAreObjects(t *testing.T) {
	paragraphs := strings.Split(schemaSQL, "\n\n")
	if len(paragraphs) != len(objects) {
		t.Fatalf("%d paragraphs", len(paragraphs))
	}
	for i, object := range objects {
		if !strings.Contains(strings.SplitN(paragraphs[i], "\n", 2)[0], object) {
			t.Errorf("paragraph %d is not about %s", i, object)
		}
	}
}
