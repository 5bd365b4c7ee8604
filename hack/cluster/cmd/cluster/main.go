// Command cluster starts and stops the local Kubernetes cluster of this project: one node, on this machine, without Docker.
//
//	cluster build               build the Kubernetes servers into the user's cache, if they are not there
//	cluster up                  start the node, or find it up
//	cluster down                stop it and leave nothing
//	cluster status              one line for each server
//	cluster load IMAGE.tar...   give it images, as docker-archives
//	cluster kubectl ...         kubectl against it
//	cluster env                 where its kubeconfig, folder and servers are
//
// Run it inside the repository. Up and down need root on Linux.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"

	"shardedjob.dev/hack/cluster"
)

const usage = "usage: cluster build | up | down | status | load IMAGE.tar... | kubectl ... | env"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := do(ctx, os.Args[1:], os.Stdout)
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.Exited() {
		os.Exit(exit.ExitCode()) // kubectl has said what is wrong
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

func do(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 0 {
		return errors.New(usage)
	}
	node, err := cluster.NewNode(os.Stderr)
	if err != nil {
		return err
	}
	switch verb, rest := args[0], args[1:]; verb {
	case "build":
		_, err := cluster.EnsureBinary(ctx, os.Stderr)
		return err
	case "up":
		if err := node.Up(ctx); err != nil {
			return err
		}
		return explain(ctx, node, out)
	case "down":
		return node.Down(ctx)
	case "status":
		fmt.Fprintln(out, strings.Join(node.Status(ctx), "\n"))
		return nil
	case "load":
		for _, path := range rest {
			if err := node.LoadImage(ctx, path); err != nil {
				return err
			}
		}
		return nil
	case "kubectl":
		kubectl, err := node.Kubectl(ctx, rest...)
		if err != nil {
			return err
		}
		kubectl.Stdin, kubectl.Stdout, kubectl.Stderr = os.Stdin, out, os.Stderr
		return kubectl.Run()
	case "env":
		binary, err := cluster.EnsureBinary(ctx, os.Stderr)
		fmt.Fprintf(out, "kubeconfig=%s\nfolder=%s\nservers=%s\n", node.Kubeconfig(), node.Dir(), binary)
		return err
	default:
		return fmt.Errorf("no command %q; %s", verb, usage)
	}
}

// explain says how to talk to the cluster, with the machine's own kubectl if it has one.
func explain(ctx context.Context, node *cluster.Node, out io.Writer) error {
	if _, err := exec.LookPath("kubectl"); err == nil {
		fmt.Fprintf(out, "kubectl --kubeconfig %s get pods --all-namespaces\n", node.Kubeconfig())
		return nil
	}
	kubectl, err := node.Kubectl(ctx)
	if err == nil {
		fmt.Fprintf(out, "%s get pods --all-namespaces\n", strings.Join(kubectl.Args, " "))
	}
	return err
}
