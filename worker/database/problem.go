package database

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"shardedjob.dev/api/v1alpha1"
)

// Problem makes an error into its reason and one sentence for a person. Host, port, user and database may be named,
// a password and the content of a row never are. Stalled is set where waiting does not help.
func Problem(err error) *v1alpha1.Problem {
	var config *ConfigError
	if errors.As(err, &config) {
		return &v1alpha1.Problem{Reason: config.Reason, Message: config.Message, Stalled: true}
	}
	where := peer(err)
	if errors.Is(err, pgconn.ErrReadOnlyConnection) || errors.Is(err, pgconn.ErrStandbyConnection) {
		return stalled(v1alpha1.ReasonNotPrimary, "%s is a standby or read-only", where)
	}
	if untrusted(err) {
		return stalled(v1alpha1.ReasonInvalidSecret, "%s has a certificate that the CA bundle does not vouch for, or that is for another host name", where)
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return ofServer(err, pg, where)
	}
	return passing(v1alpha1.ReasonDatabaseUnreachable, "%s cannot be reached: %s", where, Describe(err))
}

// ofServer is Problem for what the server says.
func ofServer(err error, pg *pgconn.PgError, where string) *v1alpha1.Problem {
	user, name := "the user", "the database"
	if c := connecting(err); c != nil {
		user, name = fmt.Sprintf("user %q", c.User), fmt.Sprintf("database %q", c.Database)
	}
	switch pg.Code {
	case "28P01":
		return stalled(v1alpha1.ReasonAuthFailed, "%s refuses the password of %s", where, user)
	case "28000":
		return stalled(v1alpha1.ReasonAuthFailed, "%s refuses %s: no such role, or pg_hba.conf does not let it in from here", where, user)
	case "3D000", "57P04":
		return stalled(v1alpha1.ReasonDatabaseMissing, "%s has no %s", where, name)
	case "53300":
		return passing(v1alpha1.ReasonTooManyConnections, "%s refuses further connections for %s", where, user)
	case "25006":
		return stalled(v1alpha1.ReasonNotPrimary, "%s is a standby or read-only", where)
	case "42501":
		return stalled(v1alpha1.ReasonMissingPrivileges, "%s", Describe(err))
	case "42703":
		return stalled(v1alpha1.ReasonColumnMissing, "%s", Describe(err))
	case "3F000", "42P01":
		if pg.Routine != "errorMissingRTE" { // a name that stands for no table of the statement
			return stalled(v1alpha1.ReasonTableMissing, "%s", Describe(err))
		}
	}
	switch Classify(err) {
	case ClassConfig:
		return stalled(v1alpha1.ReasonInvalidSQL, "%s", Describe(err))
	case ClassRow:
		return stalled(v1alpha1.ReasonRowsFailing, "%s", Describe(err))
	default:
		return passing(v1alpha1.ReasonDatabaseUnreachable, "%s: %s", where, Describe(err))
	}
}

// Describe says in one clause what happened, without a password or the content of a row. Of PostgreSQL's texts it
// takes only those that speak of names: errors that point into the user's own SQL, and missing privileges. Of all
// others it gives the name of the condition and the names of constraint, column and table.
func Describe(err error) string {
	var pg *pgconn.PgError
	switch {
	case errors.As(err, &pg):
		return describeServer(pg)
	case untrusted(err):
		return "the server's certificate is not trusted"
	case errors.Is(err, context.DeadlineExceeded):
		return "no answer in time"
	case errors.Is(err, context.Canceled):
		return "canceled"
	}
	var dns *net.DNSError
	if errors.As(err, &dns) {
		if dns.IsNotFound {
			return fmt.Sprintf("no such host %q", dns.Name)
		}
		return fmt.Sprintf("the name server does not answer for %q", dns.Name)
	}
	var op *net.OpError
	if errors.As(err, &op) {
		if op.Timeout() {
			return op.Op + ": no answer in time"
		}
		return op.Op + ": " + op.Err.Error()
	}
	if strings.Contains(err.Error(), "server refused TLS connection") {
		return "the server does not offer TLS"
	}
	return "the connection was lost"
}

func describeServer(pg *pgconn.PgError) string {
	clause := condition(pg.Code)
	if textIsSafe(pg) {
		clause = pg.Message
	}
	for _, name := range []struct{ kind, value string }{
		{"constraint", pg.ConstraintName}, {"column", pg.ColumnName}, {"table", pg.TableName},
	} {
		if name.value != "" && !strings.Contains(clause, strconv.Quote(name.value)) {
			clause += fmt.Sprintf(" (%s %q)", name.kind, name.value)
		}
	}
	return fmt.Sprintf("%s (SQLSTATE %s)", clause, pg.Code)
}

// textIsSafe says whether the message can hold no data. One that RAISE made can hold anything; so can one about SQL
// that a function put together, whose position is an internal one.
func textIsSafe(pg *pgconn.PgError) bool {
	if pg.Routine == "exec_stmt_raise" || pg.InternalQuery != "" {
		return false
	}
	switch {
	case strings.HasPrefix(pg.Code, "42"):
		// The position leads into the user's statement: the text quotes that. Outside functions (no Where) a name
		// that cannot be resolved comes from there too.
		return pg.Position > 0 || pg.Routine == "aclcheck_error" || (pg.Where == "" && pg.Routine != "")
	default:
		return wordless[pg.Code]
	}
}

// wordless are codes whose text, if the server itself made it, has no room for data.
var wordless = map[string]bool{
	"21000": true, "22012": true, "40001": true, "40P01": true, "53300": true,
	"55P03": true, "57014": true, "57P01": true, "57P02": true, "57P03": true,
}

// untrusted says whether the server's certificate was refused.
func untrusted(err error) bool {
	var verification *tls.CertificateVerificationError
	var authority x509.UnknownAuthorityError
	var host x509.HostnameError
	var certificate x509.CertificateInvalidError
	return errors.As(err, &verification) || errors.As(err, &authority) || errors.As(err, &host) || errors.As(err, &certificate)
}

// connecting is the configuration of a failed connect, if err is one.
func connecting(err error) *pgconn.Config {
	var connect *pgconn.ConnectError
	if errors.As(err, &connect) {
		return connect.Config
	}
	return nil
}

// peer names the server that err speaks of.
func peer(err error) string {
	c := connecting(err)
	if c == nil {
		return "the database server"
	}
	names := []string{net.JoinHostPort(c.Host, fmt.Sprint(c.Port))}
	for _, f := range c.Fallbacks {
		if name := net.JoinHostPort(f.Host, fmt.Sprint(f.Port)); name != names[len(names)-1] {
			names = append(names, name)
		}
	}
	return "the database server at " + strings.Join(names, ", ")
}

func stalled(reason, format string, args ...any) *v1alpha1.Problem {
	return &v1alpha1.Problem{Reason: reason, Message: fmt.Sprintf(format, args...), Stalled: true}
}

func passing(reason, format string, args ...any) *v1alpha1.Problem {
	return &v1alpha1.Problem{Reason: reason, Message: fmt.Sprintf(format, args...)}
}
