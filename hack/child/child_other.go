//go:build !linux

package child

import (
	"os/exec"
	"syscall"
)

// Bind gives the command a process group, so that Ctrl-C in a terminal goes to us alone. Only Linux can send a child a signal when
// its parent dies; elsewhere it has to be stopped.
func Bind(cmd *exec.Cmd, _ syscall.Signal) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
}

// Start starts a command.
func Start(cmd *exec.Cmd) error { return cmd.Start() }
