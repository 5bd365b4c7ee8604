// Command pause does nothing until it is told to stop: it is the process that keeps a pod's namespaces, and so
// its address, while the pod's containers come and go.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	<-stop
}
