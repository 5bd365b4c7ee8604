package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"shardedjob.dev/hack/child"
)

// process is one server: its program, its log and, in a pid file, who it is. Programs that outlive us are found again
// through the pid file.
type process struct {
	name string // also the name of its log and pid file
	path string
	args []string
	env  []string // beside our own; the later wins
	dir  string   // where log and pid file are

	// detached servers go on after us. The others die with us, however we end.
	detached bool

	exited chan struct{} // closed when our child has ended; nil if it is not our child
}

func (p *process) logPath() string { return filepath.Join(p.dir, p.name+".log") }
func (p *process) pidPath() string { return filepath.Join(p.dir, p.name+".pid") }

// start starts the program with its output going to the end of its log.
func (p *process) start() error {
	log, err := os.OpenFile(p.logPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	defer log.Close()
	if runtime.GOOS != "linux" { // who a process is, is read from /proc
		return fmt.Errorf("start %s: the local cluster needs Linux, and this is %s", p.name, runtime.GOOS)
	}
	cmd := &exec.Cmd{
		Path: p.path, Args: append([]string{p.name}, p.args...), Dir: p.dir, Env: append(os.Environ(), p.env...),
		Stdout: log, Stderr: log,
	}
	if p.detached {
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	} else {
		child.Bind(cmd, syscall.SIGKILL)
	}
	if err := child.Start(cmd); err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	p.exited = make(chan struct{})
	go func() {
		_ = cmd.Wait() // how it ended stands in its log
		close(p.exited)
	}()
	id, err := identify(cmd.Process.Pid)
	if err == nil {
		err = os.WriteFile(p.pidPath(), []byte(id.String()), 0o644)
	}
	if err != nil {
		_ = cmd.Process.Kill()
		<-p.exited
		return fmt.Errorf("start %s: %w%s", p.name, err, p.logTail())
	}
	return nil
}

// awaitReady returns when probe does without an error, at the latest when ctx ends or the program does.
func (p *process) awaitReady(ctx context.Context, probe func(context.Context) error) error {
	var last error
	err := poll(ctx, 50*time.Millisecond, func() (bool, error) {
		if !p.alive() {
			return false, errors.New("it ended by itself")
		}
		last = probe(ctx)
		return last == nil, nil
	})
	if err == nil {
		return nil
	}
	if last != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w; last answer: %w", err, last)
	}
	return fmt.Errorf("wait for %s: %w%s", p.name, err, p.logTail())
}

// alive says whether the program of the pid file runs.
func (p *process) alive() bool {
	id, err := readIdentity(p.pidPath())
	return err == nil && id.alive()
}

// signal sends one signal to the program.
func (p *process) signal(sig syscall.Signal) error {
	id, err := readIdentity(p.pidPath())
	if err == nil {
		err = id.signal(sig)
	}
	if err != nil {
		return fmt.Errorf("signal %s: %w", p.name, err)
	}
	return nil
}

// stop asks the program to end, makes it end after grace, and returns when it has. No program is no error.
func (p *process) stop(grace time.Duration) error {
	id, err := readIdentity(p.pidPath())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = id.stop(grace)
	}
	if err != nil {
		return fmt.Errorf("stop %s: %w", p.name, err)
	}
	if p.exited != nil {
		<-p.exited
	}
	return os.Remove(p.pidPath())
}

// logTail quotes the end of the log, to be appended to an error.
func (p *process) logTail() string {
	text, err := os.ReadFile(p.logPath())
	if err != nil || len(text) == 0 {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return fmt.Sprintf("\nthe end of %s:\n%s", p.logPath(), strings.Join(lines[max(0, len(lines)-15):], "\n"))
}

// poll calls done at once and then every period, until it says so, fails, or ctx ends.
func poll(ctx context.Context, period time.Duration, done func() (bool, error)) error {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}
