package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// identity names one process for good. A pid alone does not: after its process has ended it may be given to a stranger, and
// after a restart of the machine it surely is. So it goes with the time the process started at, in clock ticks since the machine did, and with
// the name that the kernel gives to that start of the machine.
type identity struct {
	pid   int
	start uint64
	boot  string
}

func (id identity) String() string { return fmt.Sprintf("%d %d %s\n", id.pid, id.start, id.boot) }

func identify(pid int) (identity, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return identity{}, fmt.Errorf("identify process %d: %w", pid, err)
	}
	_, start, err := readStat(pid)
	return identity{pid: pid, start: start, boot: strings.TrimSpace(string(boot))}, err
}

func readIdentity(path string) (id identity, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return id, err
	}
	if _, err := fmt.Sscan(string(text), &id.pid, &id.start, &id.boot); err != nil {
		return id, fmt.Errorf("read pid file %s: %w", path, err)
	}
	return id, nil
}

// readStat reads state and start time of a process. The name before them is in parentheses and may itself hold some.
func readStat(pid int) (state string, start uint64, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", 0, fmt.Errorf("identify process %d: %w", pid, err)
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 20 {
		return "", 0, fmt.Errorf("identify process %d: %d fields in its stat", pid, len(fields))
	}
	start, err = strconv.ParseUint(fields[19], 10, 64)
	return fields[0], start, err
}

// alive is false also for a process that has ended and that its parent has not asked after yet.
func (id identity) alive() bool {
	now, err := identify(id.pid)
	if err != nil || now != id {
		return false
	}
	state, _, err := readStat(id.pid)
	return err == nil && state != "Z" && state != "X"
}

// signal fails with os.ErrProcessDone if the process has ended. It holds the process (by a pidfd where the kernel has
// them) before it looks who that is, so it never reaches a stranger.
func (id identity) signal(sig syscall.Signal) error {
	held, err := os.FindProcess(id.pid)
	if err != nil {
		return err
	}
	defer func() { _ = held.Release() }()
	if !id.alive() {
		return os.ErrProcessDone
	}
	return held.Signal(sig)
}

// stop returns when the process has ended, by SIGTERM or, grace later, by SIGKILL.
func (id identity) stop(grace time.Duration) error {
	for _, step := range []struct {
		sig  syscall.Signal
		wait time.Duration
	}{{syscall.SIGTERM, grace}, {syscall.SIGKILL, 10 * time.Second}} {
		if step.wait == 0 {
			continue
		}
		if err := id.signal(step.sig); errors.Is(err, os.ErrProcessDone) {
			return nil
		} else if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), step.wait)
		err := poll(ctx, 10*time.Millisecond, func() (bool, error) { return !id.alive(), nil })
		cancel()
		if err == nil {
			return nil
		}
	}
	return fmt.Errorf("process %d is still there after SIGKILL", id.pid)
}
