package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"shardedjob.dev/hack/child"
)

// account is whom the servers run as. PostgreSQL and PgBouncer refuse root, so root steps down to the user
// postgres that Debian's package makes; anybody else stays who they are.
type account struct {
	credential *syscall.Credential // nil: ourselves
	uid, gid   int
}

func serverAccount() (account, error) {
	if os.Geteuid() != 0 {
		return account{uid: os.Geteuid(), gid: os.Getegid()}, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return account{}, fmt.Errorf("PostgreSQL refuses to run as root, and there is no user postgres to run it as: %w", err)
	}
	uid, errUID := strconv.ParseUint(u.Uid, 10, 32)
	gid, errGID := strconv.ParseUint(u.Gid, 10, 32)
	if err := errors.Join(errUID, errGID); err != nil {
		return account{}, fmt.Errorf("reading the ids of user postgres: %w", err)
	}
	return account{
		credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)},
		uid:        int(uid),
		gid:        int(gid),
	}, nil
}

// chown gives path and everything below it to the account; a no-op unless we are root.
func (a account) chown(path string) error {
	if a.credential == nil {
		return nil
	}
	return filepath.WalkDir(path, func(p string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(p, a.uid, a.gid)
	})
}

// command prepares a program that runs as the account in dir, with an environment that no PG* variable of
// ours reaches.
func (a account) command(ctx context.Context, dir, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "HOME=" + dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: a.credential}
	return cmd
}

// run runs a program of the account to its end and quotes what it said if it failed.
func (a account) run(ctx context.Context, dir string, env []string, program string, args ...string) error {
	cmd := a.command(ctx, dir, program, args...)
	cmd.Env = append(cmd.Env, env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", filepath.Base(program), err, lastLines(string(out), 8))
	}
	return nil
}

// process is a server that we started, and whose end we see.
type process struct {
	pid  int
	done chan struct{} // closed when the process has ended
}

// startProcess starts a program whose output is appended to logPath, and that gets signal ifOrphaned when our
// own process dies in any way, where the system can do that.
func startProcess(a account, dir, logPath string, ifOrphaned syscall.Signal, program string, args ...string) (*process, error) {
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("opening the server's log: %w", err)
	}
	cmd := a.command(context.Background(), dir, program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	child.Bind(cmd, ifOrphaned)
	err = child.Start(cmd)
	_ = log.Close() // the child has its own
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", program, err)
	}
	p := &process{pid: cmd.Process.Pid, done: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // its exit code says nothing that its log does not say better
		close(p.done)
	}()
	return p, nil
}

func (p *process) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// stop sends sig and waits for the end; after patience it kills.
func (p *process) stop(sig syscall.Signal, patience time.Duration) error {
	if !p.running() {
		return nil
	}
	if err := syscall.Kill(p.pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("sending %v to process %d: %w", sig, p.pid, err)
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(patience):
		p.kill()
		return fmt.Errorf("process %d had not ended %v after %v and was killed", p.pid, patience, sig)
	}
}

// kill ends the process and its children at once, as a machine that loses power does. The children of a
// PostgreSQL would otherwise go on with what they are at, and a new server could not start beside them.
func (p *process) kill() {
	children := childrenOf(p.pid)
	_ = syscall.Kill(p.pid, syscall.SIGKILL)
	for _, pid := range children {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	<-p.done
	for _, pid := range children {
		for alive(pid) {
			time.Sleep(time.Millisecond)
		}
	}
}

// childrenOf lists the processes whose parent is pid.
func childrenOf(pid int) []int {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil
	}
	var children []int
	for _, path := range stats {
		child, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			continue
		}
		if _, parent, ok := procStat(child); ok && parent == pid {
			children = append(children, child)
		}
	}
	return children
}

func alive(pid int) bool {
	state, _, ok := procStat(pid)
	return ok && state != "Z" && state != "X"
}

// procStat reads the state and the parent of a process; its name, in parentheses before them, may hold anything.
func procStat(pid int) (state string, parent int, ok bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", 0, false
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 2 {
		return "", 0, false
	}
	parent, err = strconv.Atoi(fields[1])
	return fields[0], parent, err == nil
}
