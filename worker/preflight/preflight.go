// Package preflight checks, before the first row is touched, that a table can be worked as the user asks: that it is a
// table, that its key can be partitioned, that the role sees and may change every row, and that the user's SQL can be
// prepared. What is wrong is said in one sentence that names the cure, because a person has to act.
package preflight

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/worker/database"
	"shardedjob.dev/worker/shard"
)

// Table is what the check found.
type Table = shard.Table

// Check looks at the table and the user's SQL. It returns a problem if a person must act, and an error if it could not
// find out. The connection must not be in a transaction; nothing is changed, and the search path is left as the user's
// statements will have it.
func Check(ctx context.Context, conn *pgx.Conn, spec v1alpha1.TableSpec, statement string) (Table, *v1alpha1.Problem, error) {
	t := shard.NewTable(spec)
	for _, step := range []func(context.Context, *pgx.Conn, *Table) (*v1alpha1.Problem, error){
		checkRelation, checkKey, checkPrivileges, checkValues,
		func(ctx context.Context, conn *pgx.Conn, t *Table) (*v1alpha1.Problem, error) {
			return nil, SearchPath(ctx, conn, t.Schema)
		},
		checkConditions,
		func(ctx context.Context, conn *pgx.Conn, t *Table) (*v1alpha1.Problem, error) {
			return Statement(ctx, conn, *t, statement)
		},
	} {
		problem, err := step(ctx, conn, &t)
		if err != nil || problem != nil {
			return Table{}, problem, err
		}
	}
	return t, nil, nil
}

// SearchPath sets the session's search path to the table's schema, then the role's own.
func SearchPath(ctx context.Context, conn *pgx.Conn, schema string) error {
	// The role's own is what a reset gives; a second call does not stack the schema.
	_, err := conn.Exec(ctx, `SELECT set_config('search_path',
		concat_ws(', ', quote_ident($1), nullif((SELECT reset_val FROM pg_settings WHERE name = 'search_path'), '')), false)`, schema)
	if err != nil {
		return fmt.Errorf("set the search path: %w", err)
	}
	return nil
}

// kinds are the relations that rows cannot be locked in, or that have no key of their own.
var kinds = map[string]string{
	"v": "a view", "m": "a materialized view", "f": "a foreign table", "S": "a sequence", "i": "an index",
	"I": "a partitioned index", "c": "a composite type", "t": "a TOAST table",
}

func checkRelation(ctx context.Context, conn *pgx.Conn, t *Table) (*v1alpha1.Problem, error) {
	var kind string
	err := conn.QueryRow(ctx, `SELECT c.oid, c.relkind::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = $1 AND c.relname = $2`, t.Schema, t.Name).Scan(&t.OID, &kind)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return missingRelation(ctx, conn, t)
	case err != nil:
		return nil, fmt.Errorf("look for table %s: %w", t.Quoted(), err)
	}
	if what, ok := kinds[kind]; ok {
		return problem(v1alpha1.ReasonNotATable, "%s is %s, not a table", t.Quoted(), what), nil
	}
	var usable bool
	if err := conn.QueryRow(ctx, "SELECT has_schema_privilege($1, 'USAGE')", t.Schema).Scan(&usable); err != nil {
		return nil, fmt.Errorf("look at the privileges on schema %q: %w", t.Schema, err)
	}
	if !usable {
		return lacks(conn, "USAGE", "SCHEMA "+pgx.Identifier{t.Schema}.Sanitize()), nil
	}
	return nil, nil
}

func missingRelation(ctx context.Context, conn *pgx.Conn, t *Table) (*v1alpha1.Problem, error) {
	schemas, err := names(ctx, conn, "SELECT nspname::text FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema'")
	if err != nil {
		return nil, err
	}
	found := false
	for _, schema := range schemas {
		found = found || schema == t.Schema
	}
	if !found {
		return problem(v1alpha1.ReasonTableMissing, "there is no schema %q%s", t.Schema, didYouMean(t.Schema, schemas)), nil
	}
	tables, err := names(ctx, conn, `SELECT c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = $1 AND c.relkind IN ('r', 'p', 'v', 'm', 'f') LIMIT 10000`, t.Schema)
	if err != nil {
		return nil, err
	}
	hint := didYouMean(t.Name, tables)
	if hint == "" {
		elsewhere, err := names(ctx, conn, `SELECT n.nspname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
			WHERE c.relname = $1 AND c.relkind IN ('r', 'p') AND n.nspname !~ '^pg_' ORDER BY 1 LIMIT 1`, t.Name)
		if err != nil {
			return nil, err
		}
		if len(elsewhere) > 0 {
			hint = fmt.Sprintf("; there is one in schema %q", elsewhere[0])
		}
	}
	return problem(v1alpha1.ReasonTableMissing, "there is no table %q in schema %q%s", t.Name, t.Schema, hint), nil
}

func checkPrivileges(ctx context.Context, conn *pgx.Conn, t *Table) (*v1alpha1.Problem, error) {
	var mayRead, mayLock, hidden bool
	err := conn.QueryRow(ctx, `SELECT has_any_column_privilege($1::oid, 'SELECT'), has_any_column_privilege($1::oid, 'UPDATE'),
		row_security_active($1::oid)`, t.OID).Scan(&mayRead, &mayLock, &hidden)
	if err != nil {
		return nil, fmt.Errorf("look at the privileges on %s: %w", t.Quoted(), err)
	}
	switch {
	case !mayRead:
		return lacks(conn, "SELECT", t.Quoted()), nil
	case !mayLock:
		// Rows are locked with FOR NO KEY UPDATE while they are worked.
		return lacks(conn, "UPDATE", t.Quoted()), nil
	case hidden:
		return problem(v1alpha1.ReasonRowSecurity,
			"row security on %s applies to user %q and may hide rows from it: use a role that owns the table or has BYPASSRLS", t.Quoted(), conn.Config().User), nil
	}
	return nil, nil
}

func lacks(conn *pgx.Conn, privilege, on string) *v1alpha1.Problem {
	user := conn.Config().User
	return problem(v1alpha1.ReasonMissingPrivileges, "user %q lacks %s on %s: GRANT %s ON %s TO %s", user, privilege,
		strings.TrimPrefix(on, "SCHEMA "), privilege, on, pgx.Identifier{user}.Sanitize())
}

// judge makes an error of the database into a problem where it is the user's SQL, names or privileges, and passes all
// others on.
func judge(err error, what string) (*v1alpha1.Problem, error) {
	if database.Classify(err) == database.ClassOutage || database.Classify(err) == database.ClassTimeout {
		return nil, fmt.Errorf("check %s: %w", what, err)
	}
	reason := database.Problem(err).Reason
	switch reason {
	case v1alpha1.ReasonMissingPrivileges, v1alpha1.ReasonTableMissing, v1alpha1.ReasonColumnMissing:
	default:
		reason = v1alpha1.ReasonInvalidSQL
	}
	return problem(reason, "%s: %s", what, describe(err)), nil
}

func names(ctx context.Context, conn *pgx.Conn, sql string, args ...any) ([]string, error) {
	rows, err := conn.Query(ctx, sql, args...)
	if err != nil {
		return nil, fmt.Errorf("look for names alike: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("look for names alike: %w", err)
	}
	return found, nil
}

func problem(reason, format string, args ...any) *v1alpha1.Problem {
	return &v1alpha1.Problem{Reason: reason, Message: fmt.Sprintf(format, args...), Stalled: true}
}
