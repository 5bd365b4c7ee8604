// Command kube is every server of a Kubernetes node, and kubectl, in one binary: etcd, kube-apiserver,
// kube-controller-manager, kube-scheduler, kube-proxy, kubelet. Which of them it is comes from the name it is
// called by, or from its first argument.
//
// They share nearly all of their code, so one binary is compiled and linked once where six would be linked six
// times; and it comes from the Go module proxy, where every machine that builds this project already gets the
// rest. It is a module of its own so that none of this enters the project's dependencies.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	_ "time/tzdata" // CronJob time zones

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client metrics
	_ "k8s.io/component-base/metrics/prometheus/version"  // version metric
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// servers makes the cobra command of each component that is one.
var servers = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllers.NewControllerManagerCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kube-proxy":              proxy.NewProxyCommand,
	"kubelet":                 func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
}

func main() {
	name := filepath.Base(os.Args[0])
	if !known(name) && len(os.Args) > 1 {
		name = os.Args[1]
		os.Args = append([]string{name}, os.Args[2:]...)
	}
	switch {
	case name == "etcd":
		etcdmain.Main(os.Args)
	case name == "kubectl":
		// As in kubectl's own main: verbosity has to be known before the command is built.
		_, _ = logs.GlogSetter(kubectl.GetLogVerbosity(os.Args))
		if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
			kubectlutil.CheckErr(err)
		}
	case servers[name] != nil:
		os.Exit(cli.Run(servers[name]()))
	default:
		fmt.Fprintf(os.Stderr, "kube: call it by the name of, or with a first argument out of: %s\n", strings.Join(names(), ", "))
		os.Exit(2)
	}
}

func known(name string) bool { return slices.Contains(names(), name) }

func names() []string {
	all := []string{"etcd", "kubectl"}
	for name := range servers {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}
