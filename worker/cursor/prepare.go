package cursor

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/worker/database"
	"shardedjob.dev/worker/internal/sleep"
)

// schemaSQL makes all that is kept, in one paragraph for each object. The README shows it.
//
//go:embed schema.sql
var schemaSQL string

// objects are the paragraphs of schemaSQL: the schema, then its tables.
var objects = []string{"shardedjob", "job", "slot", "row_failure"}

// tables that schemaSQL makes, and what a worker needs on them.
const (
	tables     = "shardedjob.job, shardedjob.slot, shardedjob.row_failure"
	privileges = "SELECT, INSERT, UPDATE, DELETE"
)

// format is the version of what is written. A job row with a greater one belongs to workers that are newer than this.
const format = 1

// Many workers come at once: they get in each other's way where they make the same thing, and one round later all is there.
const (
	makeTries = 20
	makePause = 50 * time.Millisecond
)

// Prepare makes the schema and its tables where they are missing. It returns a problem if the role may not, or lacks a
// privilege on them. It makes nothing and needs no CREATE privilege if all is there. The connection must not be in a transaction.
func Prepare(ctx context.Context, conn *pgx.Conn) (*v1alpha1.Problem, error) {
	for try := 1; ; try++ {
		found, err := look(ctx, conn)
		if err != nil {
			return nil, err
		}
		if len(found.objects) == len(objects) {
			return found.privileges(conn), nil
		}
		if problem := found.mayMake(conn); problem != nil {
			return problem, nil
		}
		// Several statements in one message are one transaction.
		_, err = conn.PgConn().Exec(ctx, found.missing()).ReadAll()
		if err == nil {
			continue
		}
		if !raced(err) || try == makeTries {
			return judged(err, "make schema shardedjob")
		}
		if !sleep.For(ctx, makePause) {
			return nil, fmt.Errorf("make schema shardedjob: %w", ctx.Err())
		}
	}
}

// judged makes an error into a problem where a person must act.
func judged(err error, doing string) (*v1alpha1.Problem, error) {
	if database.Classify(err) == database.ClassConfig {
		if problem := database.Problem(err); problem.Reason == v1alpha1.ReasonMissingPrivileges {
			return problem, nil
		}
	}
	return nil, fmt.Errorf("%s: %w", doing, err)
}

// raced says whether somebody else was making the same thing: IF NOT EXISTS looks first and makes then.
func raced(err error) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return false
	}
	switch pg.Code {
	case "23505", "42P06", "42P07", "42710", "40P01": // a catalog's unique index, or what it says of schema, table, object; deadlock
		return true
	}
	return pg.Code == "XX000" && strings.Contains(pg.Message, "concurrently")
}

// presence is what is there of the schema and what the role may do.
type presence struct {
	objects                              []string // that are there
	mayUse, mayMakeSchema, mayMakeTables bool
	lacking                              []string // privileges on tables
	database                             string
}

// look asks the catalogs, which everybody may read, and so needs no privilege itself.
func look(ctx context.Context, conn *pgx.Conn) (p presence, err error) {
	err = conn.QueryRow(ctx, `
		WITH found AS (
			SELECT c.oid, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
			 WHERE n.nspname = 'shardedjob' AND c.relname = ANY ($1)
		)
		SELECT ARRAY(SELECT 'shardedjob' WHERE n.oid IS NOT NULL UNION ALL SELECT relname::text FROM found),
		       coalesce(has_schema_privilege(n.oid, 'USAGE'), false),
		       has_database_privilege(current_database(), 'CREATE'),
		       coalesce(has_schema_privilege(n.oid, 'CREATE'), false),
		       ARRAY(SELECT p || ' on shardedjob.' || relname FROM found, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) p
		              WHERE NOT has_table_privilege(found.oid, p) ORDER BY relname, p),
		       current_database()
		  FROM (SELECT) one LEFT JOIN pg_namespace n ON n.nspname = 'shardedjob'`, objects[1:]).Scan(
		&p.objects, &p.mayUse, &p.mayMakeSchema, &p.mayMakeTables, &p.lacking, &p.database)
	if err != nil {
		return p, fmt.Errorf("look for schema shardedjob: %w", err)
	}
	return p, nil
}

// missing is the part of schemaSQL that makes what is not there. What is there may belong to somebody else, and cannot be commented on.
func (p presence) missing() string {
	var sql strings.Builder
	for i, paragraph := range strings.Split(schemaSQL, "\n\n") {
		if !slices.Contains(p.objects, objects[i]) {
			sql.WriteString(paragraph)
		}
	}
	return sql.String()
}

// mayMake is a problem if what is missing may not be made.
func (p presence) mayMake(conn *pgx.Conn) *v1alpha1.Problem {
	user := conn.Config().User
	role := pgx.Identifier{user}.Sanitize()
	schema := slices.Contains(p.objects, objects[0])
	switch {
	case !schema && !p.mayMakeSchema:
		return lacks("user %q may not make the schema in which progress is kept, since table.pending is not set: CREATE SCHEMA shardedjob AUTHORIZATION %s; or GRANT CREATE ON DATABASE %s TO %s",
			user, role, pgx.Identifier{p.database}.Sanitize(), role)
	case schema && (!p.mayUse || !p.mayMakeTables):
		return lacks("user %q may not make the tables in schema shardedjob: GRANT USAGE, CREATE ON SCHEMA shardedjob TO %s; or make them as in the README and GRANT %s ON %s TO %s",
			user, role, privileges, tables, role)
	}
	return nil
}

// privileges is a problem if the role cannot use what is there.
func (p presence) privileges(conn *pgx.Conn) *v1alpha1.Problem {
	lacking := p.lacking
	if !p.mayUse {
		lacking = append([]string{"USAGE on schema shardedjob"}, lacking...)
	}
	if len(lacking) == 0 {
		return nil
	}
	user := conn.Config().User
	role := pgx.Identifier{user}.Sanitize()
	return lacks("user %q lacks %s: GRANT USAGE ON SCHEMA shardedjob TO %s; GRANT %s ON %s TO %s",
		user, strings.Join(lacking, ", "), role, privileges, tables, role)
}

func lacks(format string, args ...any) *v1alpha1.Problem {
	return problem(v1alpha1.ReasonMissingPrivileges, format, args...)
}

func problem(reason, format string, args ...any) *v1alpha1.Problem {
	return &v1alpha1.Problem{Reason: reason, Message: fmt.Sprintf(format, args...), Stalled: true}
}
