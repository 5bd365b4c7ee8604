package postgres

import (
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// defaultSettings make a server fast for tests and roomy enough for them.
var defaultSettings = map[string]string{
	"fsync":                     "off",
	"full_page_writes":          "off", // protects against a lost machine only, as fsync does
	"max_connections":           "200",
	"max_prepared_transactions": "20",
	"max_wal_senders":           "5",
	"wal_level":                 "replica",
	"log_line_prefix":           "%m [%p] %q%a@%d ",
}

// configure writes postgresql.conf and pg_hba.conf. Both are ours as a whole; ALTER SYSTEM still works over them.
func (s *Server) configure() error {
	settings := maps.Clone(defaultSettings)
	maps.Copy(settings, s.options.Settings)
	settings["listen_addresses"] = strings.Join(s.options.ListenAddresses, ",")
	settings["port"] = strconv.Itoa(s.port)
	settings["unix_socket_directories"] = s.dir
	files := map[string]string{
		"postgresql.conf": renderSettings(settings),
		"pg_hba.conf":     renderAccess(s.options.Password != "", s.options.AllowedCIDRs),
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(s.data(), name), []byte(content), 0o600); err != nil {
			return fmt.Errorf("configuring PostgreSQL: %w", err)
		}
	}
	return nil
}

func renderSettings(settings map[string]string) string {
	var b strings.Builder
	b.WriteString("# Written at each start by shardedjob.dev/hack/postgres.\n")
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&b, "%s = '%s'\n", name, strings.ReplaceAll(settings[name], "'", "''"))
	}
	return b.String()
}

// renderAccess trusts the socket, which lies in a folder that only the server's user can enter.
func renderAccess(password bool, cidrs []string) string {
	method := "trust"
	if password {
		method = "scram-sha-256"
	}
	var b strings.Builder
	b.WriteString("# Written at each start by shardedjob.dev/hack/postgres.\n")
	for _, database := range []string{"all", "replication"} {
		fmt.Fprintf(&b, "local %s all trust\n", database)
		for _, cidr := range []string{"127.0.0.0/8", "::1/128"} {
			fmt.Fprintf(&b, "host %s all %s %s\n", database, cidr, method)
		}
	}
	for _, cidr := range cidrs {
		fmt.Fprintf(&b, "host all all %s scram-sha-256\n", cidr)
	}
	return b.String()
}

// freePort finds a port that is free on all the addresses.
func freePort(addresses []string) (int, error) {
	const tries = 20
	var last error
	for range tries {
		first, err := net.Listen("tcp", net.JoinHostPort(addresses[0], "0"))
		if err != nil {
			return 0, fmt.Errorf("finding a free port: %w", err)
		}
		port := first.Addr().(*net.TCPAddr).Port
		open := []net.Listener{first}
		last = nil
		for _, address := range addresses[1:] {
			l, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(port)))
			if err != nil {
				last = err
				break
			}
			open = append(open, l)
		}
		for _, l := range open {
			_ = l.Close()
		}
		if last == nil {
			return port, nil
		}
	}
	return 0, fmt.Errorf("finding a port that is free on %s: %w", strings.Join(addresses, ", "), last)
}

func ownedBy(path string, uid int) bool {
	info, err := os.Lstat(path)
	if err != nil {
		return false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == uid
}

func fileSize(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// fileFrom reads a log from an offset on; what cannot be read is empty, since it is only quoted.
func fileFrom(path string, offset int64) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		return ""
	}
	content, err := io.ReadAll(f)
	if err != nil {
		return ""
	}
	return string(content)
}
