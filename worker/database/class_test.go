package database

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/hack/postgres"
)

func TestClassify(t *testing.T) {
	pg := func(code string) error {
		return fmt.Errorf("run: %w", &pgconn.PgError{Code: code, Severity: "ERROR"})
	}
	cases := map[Class][]error{
		ClassOutage: {
			io.ErrUnexpectedEOF, context.DeadlineExceeded, &net.DNSError{Name: "x"}, errors.New("anything"),
			pg("08006"), pg("57P01"), pg("57P02"), pg("57P03"), pg("53100"), pg("53300"), pg("40001"), pg("40P01"), pg("55P03"),
			pg("25006"), pg("58030"), pg("72000"), pg("25P03"),
			&pgconn.PgError{Code: "57014", Message: "canceling statement due to user request"},
			&pgconn.PgError{Code: "XX000", Severity: "FATAL"},
		},
		ClassConfig: {
			&ConfigError{}, pg("28P01"), pg("28000"), pg("3D000"), pg("42501"), pg("42P01"), pg("42703"), pg("42883"), pg("42601"), pg("0A000"), pg("2D000"),
		},
		ClassRow: {
			pg("22012"), pg("22P02"), pg("22001"), pg("23505"), pg("23514"), pg("23503"), pg("P0001"), pg("2F002"), pg("21000"),
			pg("54000"), pg("XX000"), pg("XX001"), pg("40002"), pg("53400"), pg("MY001"), pg("HV000"),
		},
		ClassTimeout: {&pgconn.PgError{Code: "57014", Message: "canceling statement due to statement timeout"}, pg("25P04")},
	}
	for class, errs := range cases {
		for _, err := range errs {
			if got := Classify(err); got != class {
				t.Errorf("%v is %v, want %v", err, got, class)
			}
		}
	}
}

func TestProblemsOfConnecting(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := listener.Addr().(*net.TCPAddr).Port
	_ = listener.Close()
	server := postgres.ForTest(t)
	cases := []struct {
		name    string
		uri     string
		reason  string
		stalled bool
		text    string
	}{
		{"nobody listens", fmt.Sprintf("postgres://u:canary@127.0.0.1:%d/d?sslmode=disable", closed), v1alpha1.ReasonDatabaseUnreachable, false, fmt.Sprint(closed)},
		{"no such host", "postgres://u:canary@nowhere.invalid/d", v1alpha1.ReasonDatabaseUnreachable, false, "nowhere.invalid"},
		{"no such database", server.URI("missing"), v1alpha1.ReasonDatabaseMissing, true, "missing"},
		{"no such role", strings.Replace(server.URI("postgres"), "postgres@", "nobody@", 1), v1alpha1.ReasonAuthFailed, true, "nobody"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := pgx.Connect(t.Context(), c.uri)
			if err == nil {
				t.Fatal("connected")
			}
			p := Problem(err)
			if p.Reason != c.reason || p.Stalled != c.stalled || !strings.Contains(p.Message, c.text) || strings.Contains(p.Message, "canary") {
				t.Errorf("got %+v", p)
			}
		})
	}
}

func TestO6NoRowContentInMessages(t *testing.T) {
	ctx := t.Context()
	conn := postgres.Connect(t, postgres.ForTest(t).NewDB(t))
	if _, err := conn.Exec(ctx, `
		CREATE TABLE t (id int PRIMARY KEY, v text, n numeric(3), short varchar(3), CONSTRAINT no_canary CHECK (v <> 'canary'), UNIQUE (v));
		INSERT INTO t VALUES (1, 'x'), (2, 'canary2');
		CREATE FUNCTION raise(text, text) RETURNS int LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''canary %'', $1 USING ERRCODE = $2, DETAIL = ''canary''; END';
		CREATE FUNCTION run(text) RETURNS int LANGUAGE plpgsql AS 'BEGIN EXECUTE $1; RETURN 1; END'`); err != nil {
		t.Fatal(err)
	}
	for sql, want := range map[string]string{
		"UPDATE t SET v = 'canary' WHERE id = 1":                  `check_violation (constraint "no_canary") (table "t")`,
		"UPDATE t SET v = 'canary2' WHERE id = 1":                 `unique_violation (constraint "t_v_key")`,
		"UPDATE t SET n = ('canary' || v)::int WHERE id = 1":      "invalid_text_representation",
		"UPDATE t SET short = 'canary' WHERE id = 1":              "string_data_right_truncation",
		"UPDATE t SET id = NULL WHERE v = 'canary2'":              `not_null_violation (column "id")`,
		"SELECT 1 / (id - 1) FROM t":                              "division by zero",
		"SELECT raise('canary', 'P0001')":                         "raise_exception",
		"SELECT raise('canary', '42P01')":                         "undefined_table",
		"SELECT raise('canary', '42501')":                         "insufficient_privilege",
		"SELECT raise('canary', '57014')":                         "query_canceled",
		"SELECT raise('canary', 'MY001')":                         "error MY001",
		"SELECT run('SELECT canary')":                             "undefined_column",
		"SELECT run('canary')":                                    "syntax_error",
		"SELECT run('SELECT ''canary''::int')":                    "invalid_text_representation",
		"SELECT ('{\"a\": canary}' || substr(v, 9))::json FROM t": "invalid_text_representation",
		"UPDATE t SET n = 99999 + id":                             "numeric_value_out_of_range",
	} {
		t.Run(sql, func(t *testing.T) {
			_, err := conn.Exec(ctx, sql)
			if err == nil {
				t.Fatal("no error")
			}
			for _, text := range []string{Describe(err), Problem(err).Message} {
				if !strings.Contains(text, want) {
					t.Errorf("got %q, want %q", text, want)
				}
				if strings.Contains(strings.ReplaceAll(text, `"no_canary"`, ""), "canary") {
					t.Errorf("row content in %q", text)
				}
			}
		})
	}
	_, err := conn.Exec(ctx, "SELECT missing FROM t")
	if text := Describe(err); !strings.Contains(text, `column "missing" does not exist`) {
		t.Errorf("the user's own SQL may be quoted: %q", text)
	}
}
