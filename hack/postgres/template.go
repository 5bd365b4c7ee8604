package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// tempPrefix begins the name of every temporary folder, followed by the pid of the process that made it.
const tempPrefix = "shardedjob-postgres-"

// makeTemp makes a temporary folder that the account owns, and removes those that dead processes left behind.
func makeTemp(a account) (string, error) {
	sweep(a)
	dir, err := os.MkdirTemp("", fmt.Sprintf("%s%d-", tempPrefix, os.Getpid()))
	if err != nil {
		return "", fmt.Errorf("making a temporary folder: %w", err)
	}
	return dir, a.chown(dir)
}

// sweep removes the temporary folders of processes that are gone. It is a courtesy, so it stays silent.
func sweep(a account) {
	dirs, err := filepath.Glob(filepath.Join(os.TempDir(), tempPrefix+"*"))
	if err != nil {
		return
	}
	if _, _, ok := procStat(os.Getpid()); !ok {
		return // no /proc, so nobody could be seen to be alive
	}
	for _, dir := range dirs {
		owner, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), tempPrefix), "-")
		pid, err := strconv.Atoi(owner)
		if err != nil || alive(pid) || serverAlive(dir) || !ownedBy(dir, a.uid) {
			continue
		}
		_ = os.RemoveAll(dir)
	}
}

// serverAlive says whether the server of a folder still runs, by the pid in the first line of its postmaster.pid.
func serverAlive(dir string) bool {
	content, err := os.ReadFile(filepath.Join(dir, "data", "postmaster.pid"))
	if err != nil {
		return false
	}
	first, _, _ := strings.Cut(string(content), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(first))
	return err == nil && alive(pid)
}

// initialize fills data, which must not exist, with a fresh cluster. initdb takes a second or more, so it is
// done once for each server version and copied from then on.
func initialize(ctx context.Context, a account, binDir, data string) error {
	template, err := ensureTemplate(ctx, a, binDir)
	if err != nil {
		return err
	}
	if err := copyTree(template, data); err != nil {
		return fmt.Errorf("copying the initialized cluster: %w", err)
	}
	return a.chown(data)
}

func ensureTemplate(ctx context.Context, a account, binDir string) (string, error) {
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	_, version, err := serverVersion(ctx, binDir)
	if err != nil {
		return "", err
	}
	template := filepath.Join(cache, "template-"+version)
	unlock, err := lockFile(ctx, template+".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(template); err == nil {
		return template, nil
	}

	// The account cannot reach our cache folder, so initdb works in a temporary one.
	temp, err := makeTemp(a)
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(temp) }()
	made := filepath.Join(temp, "data")
	if err := a.run(ctx, temp, nil, filepath.Join(binDir, "initdb"),
		"-D", made, "-U", "postgres", "-E", "UTF8", "--no-locale", "-A", "trust", "--no-sync", "--no-instructions"); err != nil {
		return "", err
	}
	partial := template + ".partial"
	if err := os.RemoveAll(partial); err != nil {
		return "", fmt.Errorf("removing a half-made template: %w", err)
	}
	if err := copyTree(made, partial); err != nil {
		return "", fmt.Errorf("keeping the initialized cluster: %w", err)
	}
	if err := os.Rename(partial, template); err != nil {
		return "", fmt.Errorf("keeping the initialized cluster: %w", err)
	}
	return template, nil
}

// copyTree copies a data folder, which holds nothing but folders and plain files, with the narrow modes that
// the server insists on.
func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		if d.IsDir() {
			return os.Mkdir(target, 0o700)
		}
		return copyFile(path, target)
	})
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
