// Package child starts programs that do not outlive us.
package child

import (
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

// Bind makes the kernel send a signal to a command, yet to be started by Start, when we end, even by SIGKILL. The command gets
// a process group too, so that Ctrl-C in a terminal goes to us alone, who stop it in order.
func Bind(cmd *exec.Cmd, ifOrphaned syscall.Signal) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	cmd.SysProcAttr.Pdeathsig = ifOrphaned
}

var launcher = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread() // for good
		for f := range work {
			f()
		}
	}()
	return work
})

// Start starts a command from a thread that lives as long as we do: the kernel takes the end of the starting *thread* for that
// of the parent (prctl(2), PR_SET_PDEATHSIG), and Go ends threads as it likes.
func Start(cmd *exec.Cmd) error {
	result := make(chan error)
	launcher() <- func() { result <- cmd.Start() }
	return <-result
}
