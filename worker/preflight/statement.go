package preflight

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/worker/database"
)

// checkConditions prepares where and pending, each alone, so that the message tells them apart and neither can reach
// out of the parentheses that it will stand in.
func checkConditions(ctx context.Context, conn *pgx.Conn, t *Table) (*v1alpha1.Problem, error) {
	for _, c := range []struct{ field, sql string }{{"table.where", t.Where}, {"table.pending", t.Pending}} {
		if c.sql == "" {
			continue
		}
		if found, err := checkCondition(ctx, conn, t, c.field, c.sql); found != nil || err != nil {
			return found, err
		}
	}
	return nil, nil
}

func checkCondition(ctx context.Context, conn *pgx.Conn, t *Table, field, condition string) (*v1alpha1.Problem, error) {
	// Unparenthesised first: "true) OR (true" is an expression only inside parentheses.
	bare := fmt.Sprintf("SELECT %s\n FROM %s", condition, t.Quoted())
	d, err := describeSQL(ctx, conn, bare, nil)
	if err != nil {
		return judge(shift(err, len("SELECT ")), field)
	}
	const boolean = 16
	if len(d.ParamOIDs) > 0 {
		return problem(v1alpha1.ReasonInvalidSQL, "%s uses a parameter such as $1, which only the statement has", field), nil
	}
	if len(d.Fields) != 1 || d.Fields[0].DataTypeOID != boolean {
		return problem(v1alpha1.ReasonInvalidSQL, "%s is not one boolean SQL condition, for example: thumb IS NULL", field), nil
	}
	// As it will be used. EXPLAIN checks the privileges on columns too.
	prefix := fmt.Sprintf("EXPLAIN SELECT %s FROM %s WHERE (", t.QuotedKey(), t.Quoted())
	if err := run(ctx, conn, prefix+condition+"\n) FOR NO KEY UPDATE"); err != nil {
		return judge(shift(err, len(prefix)), field)
	}
	return nil, nil
}

// transaction matches statements that would end or nest the transaction, or undo the session's settings and locks.
var transaction = regexp.MustCompile(`(?i)^(begin|start|commit|end|rollback|abort|savepoint|release|prepare\s+transaction|set|reset|discard|lock|listen|unlisten|deallocate|do|copy|vacuum)\b`)

// explainable matches statements whose privileges EXPLAIN checks, without running them.
var explainable = regexp.MustCompile(`(?i)^(select|insert|update|delete|merge|with|values)\b`)

// Statement checks that the user's statement is a single command with $1 as its only parameter, that it can be planned,
// and that the role has the privileges that it needs.
func Statement(ctx context.Context, conn *pgx.Conn, t Table, statement string) (*v1alpha1.Problem, error) {
	const what = "process.sql.statement"
	command := skipComments(statement)
	if command == "" {
		return problem(v1alpha1.ReasonInvalidSQL, "%s is empty", what), nil
	}
	if word := transaction.FindString(command); word != "" {
		return problem(v1alpha1.ReasonInvalidSQL, "%s: %s does not work here, since the statement runs inside the worker's own transaction with the keys as $1", what, strings.ToUpper(word)), nil
	}
	d, err := describeSQL(ctx, conn, statement, []uint32{t.KeyArrayOID})
	if err != nil {
		var pg *pgconn.PgError
		if errors.As(err, &pg) && pg.Code == "42601" && strings.Contains(pg.Routine, "exec_parse_message") {
			return problem(v1alpha1.ReasonInvalidSQL, "%s holds several commands: only one is possible; put them into a function, or into one command with WITH", what), nil
		}
		return judge(err, what)
	}
	if n := len(d.ParamOIDs); n != 1 {
		return problem(v1alpha1.ReasonInvalidSQL, "%s uses parameters up to $%d: there is only $1, the array of keys", what, n), nil
	}
	// A declared parameter counts even if it is not used, a $1 inside a text or comment for example.
	if d, err := describeSQL(ctx, conn, statement, nil); err == nil && len(d.ParamOIDs) == 0 {
		return problem(v1alpha1.ReasonInvalidSQL, "%s does not use $1, so each batch would process all rows", what), nil
	}
	if !explainable.MatchString(command) {
		return nil, nil
	}
	const prefix = "EXPLAIN "
	if err := run(ctx, conn, prefix+statement, t.KeyArrayOID); err != nil {
		return judge(shift(err, len(prefix)), what)
	}
	return nil, nil
}

// describeSQL parses without running.
func describeSQL(ctx context.Context, conn *pgx.Conn, sql string, params []uint32) (*pgconn.StatementDescription, error) {
	// The unnamed statement: the next one replaces it.
	return conn.PgConn().Prepare(ctx, "", sql, params)
}

// run runs one command with empty arrays for its parameters, by the protocol that takes no second one.
func run(ctx context.Context, conn *pgx.Conn, sql string, params ...uint32) error {
	values := make([][]byte, len(params))
	for i := range values {
		values[i] = []byte("{}")
	}
	return conn.PgConn().ExecParams(ctx, sql, values, params, nil, nil).Read().Err
}

// describe is database.Describe, and where the error is in the user's SQL.
func describe(err error) string {
	text := database.Describe(err)
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Position > 0 {
		text += fmt.Sprintf(" at character %d", pg.Position)
	}
	return text
}

// shift counts an error's position from the start of the user's part of the SQL.
func shift(err error, prefix int) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Position > 0 {
		moved := *pg
		moved.Position = max(pg.Position-int32(prefix), 1)
		return &moved
	}
	return err
}

// skipComments cuts blanks and comments off the front of a statement.
func skipComments(sql string) string {
	for {
		sql = strings.TrimLeft(sql, " \t\r\n\f(")
		switch {
		case strings.HasPrefix(sql, "--"):
			_, sql, _ = strings.Cut(sql, "\n")
		case strings.HasPrefix(sql, "/*"):
			sql = afterBlock(sql)
		default:
			return sql
		}
	}
}

// afterBlock is what follows a block comment, which may nest.
func afterBlock(sql string) string {
	depth := 0
	for i := 0; i+1 < len(sql); i++ {
		switch sql[i : i+2] {
		case "/*":
			depth, i = depth+1, i+1
		case "*/":
			depth, i = depth-1, i+1
			if depth == 0 {
				return sql[i+1:]
			}
		}
	}
	return ""
}
