//go:build !linux

package cluster

import (
	"errors"
	"os/exec"
	"runtime"
	"syscall"
)

func attributes(bool) *syscall.SysProcAttr { return nil }

// launch refuses: who a process is, and its end with ours, is read and set in ways of Linux.
func launch(*exec.Cmd) error {
	return errors.New("the local cluster needs Linux, and this is " + runtime.GOOS)
}
