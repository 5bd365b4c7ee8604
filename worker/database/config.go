// Package database knows how to reach the user's PostgreSQL server and what its errors mean.
//
// Config reads the mounted Secret afresh, so that a rotated password needs no restart, and takes the connection from
// there alone: libpq's environment variables, password files and service files are for people at a terminal.
//
// Classify sorts errors by who is to blame, because an outage must not cost a row its attempts and a bad row must not
// stop the others. Problem makes one of them into a sentence for a person, and Describe into a clause. Neither ever
// says a password or the content of a row: PostgreSQL's own messages quote values, so they are used only where the
// text is known to hold none.
package database

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"shardedjob.dev/api/v1alpha1"
)

// defaultConnectTimeout bounds one attempt to connect to one address, unless the URI says otherwise.
const defaultConnectTimeout = 10 * time.Second

// ConfigError is a Secret that cannot be used. Its message names keys and never holds a value.
type ConfigError struct {
	// Reason is a Reason constant of the API.
	Reason string
	// Message is a sentence for a person.
	Message string
}

func (e *ConfigError) Error() string { return e.Message }

func invalid(format string, args ...any) *ConfigError {
	return &ConfigError{Reason: v1alpha1.ReasonInvalidSecret, Message: fmt.Sprintf(format, args...)}
}

// Config reads the connection from the Secret mounted at dir, and the CA bundle from the one at caDir.
//
// A Secret with the key uriKey is read from it alone: a postgres:// URI, or libpq's "host=… user=…" form. Else host, user
// (or username), and optionally port, dbname (or database; default: the user's name), password and sslmode are taken
// literally. Several hosts, separated by commas, are tried in order until one takes writes. Newlines at the end of a
// value are no part of it.
//
// Where caDir exists, its ca.crt is the only trusted authority, the host name is verified and the connection is never
// plain, whatever sslmode says. Further parameters of the URI stay in RuntimeParams, for the session to SET, since poolers
// refuse them in the startup packet. All errors are *ConfigError.
func Config(dir, caDir, uriKey string) (*pgx.ConnConfig, error) {
	secret, err := readSecret(dir)
	if err != nil {
		return nil, err
	}
	conninfo, err := secret.conninfo(uriKey)
	if err != nil {
		return nil, err
	}
	forgetEnvironment()
	config, err := pgx.ParseConfig(conninfo)
	if err != nil {
		// The error quotes parts of the connection string, and its redaction is a guess.
		return nil, secret.unusable(uriKey)
	}
	if err := complete(config); err != nil {
		return nil, err
	}
	if err := verify(config, caDir); err != nil {
		return nil, err
	}
	return config, nil
}

// complete refuses what is missing and sets what does not come from the Secret.
func complete(config *pgx.ConnConfig) error {
	switch {
	case config.User == unnamed:
		return invalid("the database Secret names no user")
	case config.Host == unnamed:
		return invalid("the database Secret names no host")
	}
	if config.Database == "" {
		config.Database = config.User
	}
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = defaultConnectTimeout
	}
	config.DialFunc = dialer(config.ConnectTimeout).DialContext
	if config.ValidateConnect == nil && len(endpoints(config)) > 1 {
		config.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	return nil
}

// verify makes every connection of config trust the bundle at caDir alone, if there is one.
func verify(config *pgx.ConnConfig, caDir string) error {
	if caDir == "" {
		return nil
	}
	if _, err := os.Stat(caDir); os.IsNotExist(err) {
		return nil
	}
	secret, err := readSecret(caDir)
	if err != nil {
		return invalid("the CA Secret is missing or empty")
	}
	bundle, ok := secret["ca.crt"]
	if !ok {
		return invalid("the CA Secret has no key ca.crt")
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(bundle)) {
		return invalid("key ca.crt of the CA Secret holds no certificate in PEM form")
	}
	var base *tls.Config
	if config.TLSConfig != nil {
		base = config.TLSConfig
	}
	// The fallbacks of sslmode prefer and allow are plain: only one for each host stays, and it is encrypted.
	var all []*pgconn.FallbackConfig
	for _, e := range endpoints(config) {
		if !strings.HasPrefix(e.Host, "/") {
			e.TLSConfig = &tls.Config{RootCAs: roots, ServerName: e.Host, MinVersion: tls.VersionTLS12}
			if base != nil {
				e.TLSConfig.Certificates, e.TLSConfig.NextProtos = base.Certificates, base.NextProtos
			}
		}
		all = append(all, e)
	}
	config.TLSConfig, config.Fallbacks = all[0].TLSConfig, all[1:]
	return nil
}

// endpoints lists the hosts and ports of config once each, in order.
func endpoints(config *pgx.ConnConfig) []*pgconn.FallbackConfig {
	all := []*pgconn.FallbackConfig{{Host: config.Host, Port: config.Port}}
	for _, f := range config.Fallbacks {
		if last := all[len(all)-1]; f.Host != last.Host || f.Port != last.Port {
			all = append(all, &pgconn.FallbackConfig{Host: f.Host, Port: f.Port})
		}
	}
	return all
}

var environment sync.Mutex

// forgetEnvironment removes libpq's variables from this process. The driver reads them before the connection
// string, and PGSERVICE cannot be overridden there.
func forgetEnvironment() {
	environment.Lock()
	defer environment.Unlock()
	for _, entry := range os.Environ() {
		if name, _, _ := strings.Cut(entry, "="); strings.HasPrefix(name, "PG") {
			_ = os.Unsetenv(name)
		}
	}
}
