package netns

import (
	"testing"

	"shardedjob.dev/hack/postgres"
)

// PostgresForTest starts a server for one test, which clients inside reach by URIAt(cable.Outside().String(), …). By its own
// settings it would keep the session of a lost client for two hours.
func PostgresForTest(t testing.TB) *postgres.Server {
	t.Helper()
	return postgres.StartForTest(t, postgres.Options{
		ListenAddresses: []string{"0.0.0.0"}, AllowedCIDRs: []string{Block}, Password: "far away",
		Settings: map[string]string{
			"tcp_keepalives_idle": "7200", "tcp_user_timeout": "0", "client_connection_check_interval": "0",
			"authentication_timeout": "5s", // a client that is lost while it logs in holds up DROP DATABASE
		},
	})
}
