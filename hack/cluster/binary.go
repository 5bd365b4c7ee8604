package cluster

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// buildFlags make the servers static and independent of the place they are built in. The version is set because
// without it the servers complain that they cannot read their own.
var buildFlags = []string{
	"-trimpath", "-buildvcs=false",
	"-ldflags=-s -w -X k8s.io/component-base/version.gitVersion=" + Version +
		" -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=37",
}

// EnsureBinary returns the path of the binary that holds all servers, and builds it first if the cache has none for
// this source, these flags and this Go. That takes about ten minutes on two cores the first time, and
// progress is told how far it is. Of several callers at once, in one process or many, one builds and the others wait.
func EnsureBinary(ctx context.Context, progress io.Writer) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	source := filepath.Join(root, "hack", "cluster", "kube")
	key, err := buildKey(source)
	if err != nil {
		return "", err
	}
	dir, err := cacheDir("kube", key)
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "kube")
	if exists(path) {
		return path, nil
	}
	unlock, err := lockFile(ctx, filepath.Join(dir, "lock"), func() {
		fmt.Fprintln(progress, "Waiting for another process that builds the Kubernetes servers")
	})
	if err != nil {
		return "", err
	}
	defer unlock()
	if exists(path) { // built while we waited
		return path, nil
	}
	if err := build(ctx, source, path, progress); err != nil {
		return "", err
	}
	return path, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// buildKey names a binary by everything it depends on.
func buildKey(source string) (string, error) {
	sum := sha256.New()
	fmt.Fprintln(sum, runtime.Version(), runtime.GOOS, runtime.GOARCH, buildFlags)
	err := filepath.WalkDir(source, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		fmt.Fprintln(sum, entry.Name(), len(text))
		sum.Write(text)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("read the source of the Kubernetes servers: %w", err)
	}
	return hex.EncodeToString(sum.Sum(nil))[:16], nil
}

// build compiles to a name of its own first, so that a build that is cut off leaves no half binary.
func build(ctx context.Context, source, path string, progress io.Writer) error {
	todo, err := staleCount(ctx, source)
	if err != nil {
		return err
	}
	meter := newMeter(progress, todo)
	partial := path + ".partial"
	cmd := goCommand(ctx, source, append(append([]string{"build", "-v"}, buildFlags...), "-o", partial, ".")...)
	output, err := cmd.StderrPipe()
	if err != nil {
		return fmt.Errorf("build the Kubernetes servers: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("build the Kubernetes servers: %w", err)
	}
	// With -v, go prints the import path of each package that it compiles; what is not one says what went wrong.
	var complaints []string
	for lines := bufio.NewScanner(output); lines.Scan(); {
		if line := lines.Text(); strings.ContainsAny(line, " \t") {
			complaints = append(complaints, line)
		} else {
			meter.add()
		}
	}
	err = cmd.Wait()
	meter.finish()
	if err != nil {
		return fmt.Errorf("build the Kubernetes servers: %w\n%s", err, strings.Join(complaints, "\n"))
	}
	if err := os.Rename(partial, path); err != nil {
		return fmt.Errorf("keep the Kubernetes servers: %w", err)
	}
	return nil
}

// staleCount says how many packages a build would have to compile.
func staleCount(ctx context.Context, source string) (int, error) {
	cmd := goCommand(ctx, source, append(append([]string{"list"}, buildFlags...), "-deps", "-f", "{{if .Stale}}{{.ImportPath}}{{end}}", ".")...)
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("list the packages of the Kubernetes servers: %w\n%s", err, complaints.String())
	}
	return len(strings.Fields(string(out))), nil
}

func goCommand(ctx context.Context, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=")
	return cmd
}

// lockFile takes an exclusive lock that ends with the process at the latest. waiting is called once if another holds it.
func lockFile(ctx context.Context, path string, waiting func()) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open lock file: %w", err)
	}
	poll := time.NewTicker(200 * time.Millisecond)
	defer poll.Stop()
	for told := false; ; {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { file.Close() }, nil
		}
		if err != syscall.EWOULDBLOCK && err != syscall.EINTR {
			file.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if !told {
			waiting()
			told = true
		}
		select {
		case <-ctx.Done():
			file.Close()
			return nil, fmt.Errorf("wait for the lock %s: %w", path, ctx.Err())
		case <-poll.C:
		}
	}
}
