package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// OldestVersion is the oldest major version of PostgreSQL that Ensure accepts.
const OldestVersion = 15

// Ensure returns the folder of the newest installed PostgreSQL server programs (postgres, initdb, pg_basebackup).
// Where there are none of at least OldestVersion, it installs Debian's package, which needs root; it starts no service
// and makes no cluster of the distribution. What the package manager prints goes to progress, which may be nil.
func Ensure(ctx context.Context, progress io.Writer) (binDir string, err error) {
	if dir, ok := findServer(ctx); ok {
		return dir, nil
	}
	if !canInstall() {
		return "", fmt.Errorf("no PostgreSQL server of version %d or newer found in /usr/lib/postgresql or PATH: install one (Debian: apt-get install postgresql)", OldestVersion)
	}
	err = withInstallLock(ctx, func() error {
		if _, ok := findServer(ctx); ok { // another process was faster
			return nil
		}
		if err := aptInstall(ctx, progress, "postgresql-common"); err != nil {
			return err
		}
		if err := keepMainClusterAway("/etc/postgresql-common/createcluster.conf"); err != nil {
			return err
		}
		return aptInstall(ctx, progress, "postgresql")
	})
	if err != nil {
		return "", fmt.Errorf("installing PostgreSQL: %w", err)
	}
	dir, ok := findServer(ctx)
	if !ok {
		return "", fmt.Errorf("the package postgresql was installed but brought no server of version %d or newer", OldestVersion)
	}
	return dir, nil
}

// findServer looks where Debian puts its servers, newest first, and then in PATH.
func findServer(ctx context.Context) (string, bool) {
	candidates, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil {
		candidates = nil
	}
	if path, err := exec.LookPath("initdb"); err == nil {
		if program, err := filepath.EvalSymlinks(path); err == nil {
			candidates = append(candidates, filepath.Dir(program))
		}
	}
	best, bestMajor := "", OldestVersion-1
	for _, dir := range candidates {
		if !hasPrograms(dir) {
			continue
		}
		if major, _, err := serverVersion(ctx, dir); err == nil && major > bestMajor {
			best, bestMajor = dir, major
		}
	}
	return best, best != ""
}

func hasPrograms(dir string) bool {
	for _, name := range []string{"postgres", "initdb", "pg_basebackup"} {
		if _, err := exec.LookPath(filepath.Join(dir, name)); err != nil {
			return false
		}
	}
	return true
}

var versionPattern = regexp.MustCompile(`\(PostgreSQL\) ((\d+)\S*)`)

// serverVersion asks the server program in binDir for its version, for example 15 and "15.18".
func serverVersion(ctx context.Context, binDir string) (major int, full string, err error) {
	out, err := exec.CommandContext(ctx, filepath.Join(binDir, "postgres"), "--version").Output()
	if err != nil {
		return 0, "", fmt.Errorf("asking for the version of %s: %w", filepath.Join(binDir, "postgres"), err)
	}
	return parseVersion(string(out))
}

func parseVersion(line string) (major int, full string, err error) {
	m := versionPattern.FindStringSubmatch(line)
	if m == nil {
		return 0, "", fmt.Errorf("not a PostgreSQL version: %q", strings.TrimSpace(line))
	}
	major, err = strconv.Atoi(m[2])
	return major, m[1], err
}

// canInstall says whether packages can be installed here: as root, on a Debian.
func canInstall() bool {
	_, err := exec.LookPath("apt-get")
	return err == nil && os.Geteuid() == 0
}

// withInstallLock runs install while no other process of this package does: test packages run in parallel.
func withInstallLock(ctx context.Context, install func() error) error {
	dir, err := cacheDir()
	if err != nil {
		return err
	}
	unlock, err := lockFile(ctx, filepath.Join(dir, "install.lock"))
	if err != nil {
		return err
	}
	defer unlock()
	return install()
}

// aptInstall installs Debian packages without starting their services.
func aptInstall(ctx context.Context, progress io.Writer, packages ...string) error {
	allow, err := forbidServices("/usr/sbin/policy-rc.d")
	if err != nil {
		return err
	}
	defer allow()
	if err := aptGet(ctx, progress, "update"); err != nil {
		return err
	}
	return aptGet(ctx, progress, append([]string{"install", "-y", "--no-install-recommends"}, packages...)...)
}

// aptGet runs apt-get. It waits its turn when somebody else holds the package manager's locks: for the lists'
// lock apt-get itself does not wait.
func aptGet(ctx context.Context, progress io.Writer, args ...string) error {
	if progress == nil {
		progress = io.Discard
	}
	for {
		var out bytes.Buffer
		cmd := exec.CommandContext(ctx, "apt-get", append([]string{"-q", "-o", "DPkg::Lock::Timeout=300"}, args...)...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
		cmd.Stdout = io.MultiWriter(&out, progress)
		cmd.Stderr = cmd.Stdout
		err := cmd.Run()
		if err == nil {
			return nil
		}
		if !strings.Contains(out.String(), "Could not get lock") {
			return fmt.Errorf("apt-get %s: %w: %s", strings.Join(args, " "), err, lastLines(out.String(), 8))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("apt-get %s: waiting for another package manager: %w", strings.Join(args, " "), ctx.Err())
		case <-time.After(time.Second):
		}
	}
}

// forbidding is a policy for Debian's package scripts: start no service.
const forbidding = "#!/bin/sh\n# Written by shardedjob.dev/hack/postgres while it installs.\nexit 101\n"

// forbidServices tells Debian's package scripts to start nothing, until the returned function is called. A policy
// that is there already stays, unless it is one that we left when we were killed.
func forbidServices(path string) (allow func(), err error) {
	old, err := os.ReadFile(path)
	switch {
	case err == nil && string(old) != forbidding:
		return func() {}, nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("reading the policy on starting services: %w", err)
	}
	if err := os.WriteFile(path, []byte(forbidding), 0o755); err != nil {
		return nil, fmt.Errorf("forbidding that packages start services: %w", err)
	}
	return func() { _ = os.Remove(path) }, nil
}

var mainClusterLine = regexp.MustCompile(`(?m)^[ \t]*#?[ \t]*create_main_cluster[ \t]*=.*$`)

// keepMainClusterAway sets create_main_cluster = false in Debian's createcluster.conf, so that the package
// postgresql does not initialize a cluster that nobody uses.
func keepMainClusterAway(path string) error {
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("reading %s: %w", path, err)
	}
	const line = "create_main_cluster = false"
	updated := mainClusterLine.ReplaceAll(old, []byte(line))
	if bytes.Equal(updated, old) && !mainClusterLine.Match(old) {
		updated = append(old, []byte(line+"\n")...)
	}
	if err := os.WriteFile(path, updated, 0o644); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}

// cacheDir is the folder that outlives a run: the locks and the initialized template live there.
func cacheDir() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil { // no HOME, as under some service managers
		base = filepath.Join(os.TempDir(), fmt.Sprintf("cache-%d", os.Getuid()))
	}
	dir := filepath.Join(base, "shardedjob", "postgres")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("making the cache folder: %w", err)
	}
	return dir, nil
}

// lockFile takes an exclusive lock on path, which it creates, and waits for it until ctx ends. The kernel
// gives the lock back when the process dies.
func lockFile(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening lock file: %w", err)
	}
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return nil, errors.Join(fmt.Errorf("locking %s: %w", path, err), f.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("waiting for the lock on %s: %w", path, ctx.Err()), f.Close())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// lastLines returns the last n lines of text that are not empty, as a quote for an error.
func lastLines(text string, n int) string {
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
