package cluster

import (
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

// attributes put a detached server into a session of its own, and let the kernel kill any other when we end, even by
// SIGKILL. Those get a process group too, so that Ctrl-C in a terminal goes to us alone, who stop them in order.
func attributes(detached bool) *syscall.SysProcAttr {
	if detached {
		return &syscall.SysProcAttr{Setsid: true}
	}
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
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

// launch starts a command from a thread that lives as long as we do: the kernel takes the end of the starting *thread* for that
// of the parent (prctl(2), PR_SET_PDEATHSIG), and Go ends threads as it likes.
func launch(cmd *exec.Cmd) error {
	result := make(chan error)
	launcher() <- func() { result <- cmd.Start() }
	return <-result
}
