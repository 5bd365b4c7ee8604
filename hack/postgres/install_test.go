package postgres

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestParseVersion(t *testing.T) {
	for _, tc := range []struct {
		name, line, full string
		major            int
		bad              bool
	}{
		{"Debian", "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n", "15.18", 15, false},
		{"plain", "postgres (PostgreSQL) 18.0", "18.0", 18, false},
		{"beta", "postgres (PostgreSQL) 19beta1", "19beta1", 19, false},
		{"another program", "pgbouncer 1.18", "", 0, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			major, full, err := parseVersion(tc.line)
			if major != tc.major || full != tc.full || (err != nil) != tc.bad {
				t.Errorf("got %d, %q, %v", major, full, err)
			}
		})
	}
}

func TestKeepMainClusterAway(t *testing.T) {
	const want = "create_main_cluster = false\n"
	for _, tc := range []struct{ name, before, after string }{
		{"Debian's comment", "# Create a \"main\" cluster\n#create_main_cluster = true\nssl = on\n", "# Create a \"main\" cluster\n" + want + "ssl = on\n"},
		{"switched on", "create_main_cluster = true\n", want},
		{"not mentioned", "ssl = on\n", "ssl = on\n" + want},
		{"switched off already", want, want},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "createcluster.conf")
			if err := os.WriteFile(path, []byte(tc.before), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := keepMainClusterAway(path); err != nil {
				t.Fatal(err)
			}
			if got, _ := os.ReadFile(path); string(got) != tc.after {
				t.Errorf("got %q, want %q", got, tc.after)
			}
		})
	}
}

func TestForbidServices(t *testing.T) {
	for _, tc := range []struct {
		name, before string
		stays        bool
	}{
		{"no policy", "", false},
		{"somebody else's policy", "#!/bin/sh\nexit 0\n", true},
		{"ours, left by a killed run", forbidding, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "policy-rc.d")
			if tc.before != "" {
				if err := os.WriteFile(path, []byte(tc.before), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			allow, err := forbidServices(path)
			if err != nil {
				t.Fatal(err)
			}
			during, _ := os.ReadFile(path)
			if want := map[bool]string{true: tc.before, false: forbidding}[tc.stays]; string(during) != want {
				t.Errorf("the policy is %q, want %q", during, want)
			}
			allow()
			if _, err := os.Stat(path); (err == nil) != tc.stays {
				t.Errorf("afterwards: %v", err)
			}
		})
	}
}

func TestLockFileExcludes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := lockFile(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := lockFile(ctx, path); err == nil {
		t.Fatal("the lock was given twice")
	}
	unlock()
	again, err := lockFile(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	again()
}

func TestLastLines(t *testing.T) {
	if got := lastLines("a\n\nb\n  c\n\n", 2); got != "b\nc" {
		t.Errorf("got %q", got)
	}
}
