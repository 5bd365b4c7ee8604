package database

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/onsi/gomega"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/hack/postgres"
)

// mount writes a Secret as the kubelet does: files behind a link that is swapped as a whole.
func mount(t *testing.T, values map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	remount(t, dir, "..v1", values)
	return dir
}

func remount(t *testing.T, dir, version string, values map[string]string) {
	t.Helper()
	if err := os.Mkdir(filepath.Join(dir, version), 0o755); err != nil {
		t.Fatal(err)
	}
	for key, value := range values {
		if err := os.WriteFile(filepath.Join(dir, version, key), []byte(value), 0o644); err != nil {
			t.Fatal(err)
		}
		link := filepath.Join(dir, key)
		_ = os.Remove(link)
		if err := os.Symlink(filepath.Join("..data", key), link); err != nil {
			t.Fatal(err)
		}
	}
	next := filepath.Join(dir, "..next")
	if err := os.Symlink(version, next); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, filepath.Join(dir, "..data")); err != nil {
		t.Fatal(err)
	}
}

var passwords = []string{
	`p@ss:w/ord?#[]%41&=+ '"\`, "100%", "%zz", "ünï", strings.Repeat("x", 200), "", " blanks ", "a=b host=evil", `\'`,
}

func TestK01PasswordsAreTakenLiterally(t *testing.T) {
	for _, password := range passwords {
		t.Run(password, func(t *testing.T) {
			g := gomega.NewWithT(t)
			c, err := Config(mount(t, map[string]string{
				"host": "db.example", "port": "6432", "database": "my db", "username": "a@b", "password": password,
			}), "", "uri")
			g.Expect(err).NotTo(gomega.HaveOccurred())
			g.Expect([]any{c.Host, c.Port, c.Database, c.User, c.Password}).To(gomega.Equal([]any{"db.example", uint16(6432), "my db", "a@b", password}))

			u := url.URL{Scheme: "postgres", Host: "db.example:6432", User: url.UserPassword("a@b", password), Path: "/my db"}
			c, err = Config(mount(t, map[string]string{"uri": u.String() + "?sslmode=disable", "host": "ignored", "user": "ignored"}), "", "uri")
			g.Expect(err).NotTo(gomega.HaveOccurred())
			g.Expect([]any{c.Host, c.Port, c.Database, c.User, c.Password}).To(gomega.Equal([]any{"db.example", uint16(6432), "my db", "a@b", password}))
			g.Expect(c.TLSConfig).To(gomega.BeNil())
		})
	}
}

func TestK01AgainstAServer(t *testing.T) {
	server := postgres.StartForTest(t, postgres.Options{Password: "super"})
	admin := postgres.Connect(t, server.URI("postgres"))
	for _, password := range passwords {
		if password == "" {
			continue
		}
		t.Run(password, func(t *testing.T) {
			var quoted string
			if err := admin.QueryRow(t.Context(), "SELECT quote_literal($1)", password).Scan(&quoted); err != nil {
				t.Fatal(err)
			}
			if _, err := admin.Exec(t.Context(), `DROP ROLE IF EXISTS "a@b"; CREATE ROLE "a@b" LOGIN PASSWORD `+quoted); err != nil {
				t.Fatal(err)
			}
			parsed, _ := url.Parse(server.URI("postgres"))
			secret := map[string]string{"host": parsed.Hostname(), "port": parsed.Port(), "dbname": "postgres", "user": "a@b", "password": password + "\n", "sslmode": "disable"}
			c, err := Config(mount(t, secret), "", "uri")
			if err != nil {
				t.Fatal(err)
			}
			conn, err := pgx.ConnectConfig(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			_ = conn.Close(t.Context())

			secret["password"] = "canary-" + password
			if c, err = Config(mount(t, secret), "", "uri"); err != nil {
				t.Fatal(err)
			}
			_, err = pgx.ConnectConfig(t.Context(), c)
			problem := Problem(err)
			if problem.Reason != v1alpha1.ReasonAuthFailed || !problem.Stalled || strings.Contains(problem.Message, "canary") || !strings.Contains(problem.Message, "a@b") {
				t.Errorf("wrong password: %+v", problem)
			}
		})
	}
}

func TestK02NewlinesAndBlanks(t *testing.T) {
	base := map[string]string{"host": "h", "user": "u", "password": "pw", "dbname": "d"}
	cases := []struct {
		name, key, value string
		want             string // in the message; empty: no error
	}{
		{"newline", "password", "pw\n", ""},
		{"carriage return", "password", "pw\r\n", ""},
		{"newline after the user", "user", "u\n", ""},
		{"blanks around the host", "host", " h ", "key host of the database Secret begins or ends with a blank"},
		{"byte order mark", "user", "\ufeffu", "key user of the database Secret begins with a byte order mark"},
		{"byte order mark before the password", "password", "\ufeffpw", "key password"},
		{"NUL", "password", "a\x00b", "key password of the database Secret holds a NUL character"},
		{"line break inside", "host", "h\nx", "key host of the database Secret holds a line break"},
		{"empty host", "host", "\n", "key host of the database Secret is empty"},
		{"bad port", "port", "54x2", "port or an sslmode"},
		{"bad sslmode", "sslmode", "on", "port or an sslmode"},
		{"newline after the URI", "uri", "postgres://u:pw@h/d\n", ""},
		{"JDBC", "uri", "jdbc:postgresql://u:canary@h/d", "must begin with postgres://"},
		{"bad escape", "uri", "postgres://u:canary%zz@h/d", "percent-encoded"},
		{"slash in the password", "uri", "postgres://u:cana/ry@h/d", "percent-encoded"},
		{"no host", "uri", "postgres://u:canary@/d", "names no host"},
		{"no user", "uri", "postgres://h/d", "names no user"},
		{"only a scheme", "uri", "postgres://", "names no user"},
		{"keywords", "uri", "host=h user=u password='pw' dbname=d", ""},
		{"keywords without a host", "uri", "user=u password=canary", "names no host"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			values := map[string]string{c.key: c.value}
			for key, value := range base {
				if _, ok := values[key]; !ok {
					values[key] = value
				}
			}
			config, err := Config(mount(t, values), "", "uri")
			if c.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				if config.Host != "h" || config.User != "u" || config.Password != "pw" || config.Database != "d" {
					t.Errorf("got host %q user %q password %q database %q", config.Host, config.User, config.Password, config.Database)
				}
				return
			}
			var configError *ConfigError
			if !errors.As(err, &configError) || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want %q", err, c.want)
			}
			if strings.Contains(err.Error(), "canary") || strings.Contains(err.Error(), "pw") {
				t.Errorf("a value is in the message: %v", err)
			}
			if p := Problem(err); p.Reason != v1alpha1.ReasonInvalidSecret || !p.Stalled || Classify(err) != ClassConfig {
				t.Errorf("problem %+v class %v", p, Classify(err))
			}
		})
	}
}

func TestMissingSecretIsASentence(t *testing.T) {
	for name, c := range map[string]struct {
		dir  string
		want string
	}{
		"no mount":      {filepath.Join(t.TempDir(), "none"), "the database Secret is missing or empty"},
		"no folder":     {"", "the database Secret is missing"},
		"empty mount":   {t.TempDir(), "the database Secret is missing or empty"},
		"other keys":    {mount(t, map[string]string{"url": "x"}), "neither the key uri with a URI nor the key host"},
		"user left out": {mount(t, map[string]string{"host": "x"}), "no key user"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Config(c.dir, "", "uri")
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestB10IPv6(t *testing.T) {
	for _, c := range []struct{ key, value, port, host string }{
		{"host", "::1", "6432", "::1"},
		{"host", "[::1]", "6432", "::1"},
		{"host", "fd00::5", "6432", "fd00::5"},
		{"host", "fe80::1%eth0", "6432", "fe80::1%eth0"},
		{"uri", "postgres://u@[::1]:6432/d", "", "::1"},
		{"uri", "postgres://u@[fd00::5]:6432/d", "", "fd00::5"},
		{"uri", "host=::1 port=6432 user=u dbname=d", "", "::1"},
		{"host", "db:6432", "", ""},
		{"host", "[::1]:6432", "", ""},
		{"uri", "postgres://u@::1:6432/d", "", ""},
	} {
		t.Run(c.value, func(t *testing.T) {
			values := map[string]string{"user": "u", c.key: c.value}
			if c.port != "" {
				values["port"] = c.port
			}
			config, err := Config(mount(t, values), "", "uri")
			if c.host == "" {
				if p := Problem(err); err == nil || p.Reason != v1alpha1.ReasonInvalidSecret {
					t.Fatalf("got %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if config.Host != c.host || config.Port != 6432 {
				t.Errorf("got %s %d", config.Host, config.Port)
			}
		})
	}
}

func TestSeveralHosts(t *testing.T) {
	for _, values := range []map[string]string{
		{"host": "a,[::1],c", "port": "1,2,3", "user": "u", "sslmode": "prefer"},
		{"uri": "postgres://u@a:1,[::1]:2,c:3/d?sslmode=prefer"},
	} {
		config, err := Config(mount(t, values), "", "uri")
		if err != nil {
			t.Fatal(err)
		}
		all := endpoints(config)
		if len(all) != 3 || all[1].Host != "::1" || all[1].Port != 2 || all[2].Host != "c" {
			t.Errorf("got %+v", all)
		}
		if config.ValidateConnect == nil {
			t.Error("any of the hosts will do, also a standby")
		}
	}
}

func TestEnvironmentDoesNotLeakIn(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	if err := os.WriteFile(filepath.Join(home, ".pgpass"), []byte("*:*:*:*:canary\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"PGHOST": "canary", "PGPORT": "1", "PGUSER": "canary", "PGPASSWORD": "canary", "PGDATABASE": "canary", "PGSERVICE": "canary",
		"PGOPTIONS": "-c canary=1", "PGAPPNAME": "canary", "PGSSLMODE": "verify-full", "PGTZ": "canary", "PGSSLCERTMODE": "",
		"PGTARGETSESSIONATTRS": "standby", "PGCONNECT_TIMEOUT": "1",
	} {
		t.Setenv(name, value)
	}
	for _, values := range []map[string]string{{"host": "h", "user": "u"}, {"uri": "postgres://u@h"}, {"uri": "host=h user=u"}} {
		c, err := Config(mount(t, values), "", "uri")
		if err != nil {
			t.Fatal(err)
		}
		if c.Host != "h" || c.Port != 5432 || c.User != "u" || c.Password != "" || c.Database != "u" || len(c.RuntimeParams) > 0 || c.ValidateConnect != nil {
			t.Errorf("%v: got %s:%d %s %q %s %v", values, c.Host, c.Port, c.User, c.Password, c.Database, c.RuntimeParams)
		}
	}
}

func TestK05TheCAForbidsPlainConnections(t *testing.T) {
	authority, certificate, key := newCertificates(t)
	server := postgres.StartForTest(t, postgres.Options{Password: "super"})
	uri, _ := url.Parse(server.URI("postgres"))
	secret := map[string]string{"host": "127.0.0.1", "port": uri.Port(), "dbname": "postgres", "user": "postgres", "password": "super", "sslmode": "disable"}
	ca := mount(t, map[string]string{"ca.crt": authority})
	connect := func() error {
		config, err := Config(mount(t, secret), ca, "uri")
		if err != nil {
			return err
		}
		conn, err := pgx.ConnectConfig(t.Context(), config)
		if err == nil {
			_ = conn.Close(t.Context())
		}
		return err
	}
	if err := connect(); err == nil || !strings.Contains(Problem(err).Message, "does not offer TLS") {
		t.Fatalf("a server without TLS: %v", Problem(err))
	}

	admin := postgres.Connect(t, server.URI("postgres"))
	var data string
	if err := admin.QueryRow(t.Context(), "SHOW data_directory").Scan(&data); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(data, "PG_VERSION"))
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"server.crt": certificate, "server.key": key} {
		file := filepath.Join(data, name)
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		chownLike(t, file, info)
	}
	for _, sql := range []string{"ALTER SYSTEM SET ssl = on", "SELECT pg_reload_conf()"} {
		if _, err := admin.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	g := gomega.NewWithT(t)
	g.Eventually(connect, 10*time.Second, 50*time.Millisecond).Should(gomega.Succeed())

	secret["host"] = "localhost" // not in the certificate
	if p := Problem(connect()); !p.Stalled || !strings.Contains(p.Message, "certificate") {
		t.Errorf("another host name: %+v", p)
	}
	secret["host"] = "127.0.0.1"
	other, _, _ := newCertificates(t)
	remount(t, ca, "..v2", map[string]string{"ca.crt": other})
	if p := Problem(connect()); !p.Stalled || !strings.Contains(p.Message, "certificate") {
		t.Errorf("another authority: %+v", p)
	}
	remount(t, ca, "..v3", map[string]string{"ca.crt": other + authority})
	if err := connect(); err != nil {
		t.Errorf("both authorities: %v", err)
	}
	if _, err := Config(mount(t, secret), t.TempDir(), "uri"); err == nil {
		t.Error("an empty CA mount, as of a missing Secret, is no reason to do without")
	}
	remount(t, ca, "..v4", map[string]string{"ca.crt": "not PEM"})
	if _, err := Config(mount(t, secret), ca, "uri"); err == nil || !strings.Contains(err.Error(), "ca.crt") {
		t.Errorf("got %v", err)
	}
}

func newCertificates(t *testing.T) (authority, certificate, key string) {
	t.Helper()
	encode := func(kind string, der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	must := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<60))
	must(err)
	ca := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "test authority " + serial.String()}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, &caKey.PublicKey, caKey)
	must(err)
	serverKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "server"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	leafDER, err := x509.CreateCertificate(rand.Reader, leaf, ca, &serverKey.PublicKey, caKey)
	must(err)
	keyDER, err := x509.MarshalECPrivateKey(serverKey)
	must(err)
	return encode("CERTIFICATE", caDER), encode("CERTIFICATE", leafDER), encode("EC PRIVATE KEY", keyDER)
}
