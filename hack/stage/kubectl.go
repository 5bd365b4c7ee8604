package stage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"shardedjob.dev/hack/cluster"
)

// Kubectl is kubectl against one cluster. It names kubeconfig and context in each call: the environment variable KUBECONFIG is
// neither read nor written.
type Kubectl struct {
	// Program is the path of kubectl, with words that come before all others.
	Program []string
	// Kubeconfig is the path of the kubeconfig.
	Kubeconfig string
	// Context is the context in it; empty: the current one.
	Context string
}

// nodeKubectl is the kubectl of the local node, of the same version as its servers.
func nodeKubectl(ctx context.Context, node *cluster.Node) (Kubectl, error) {
	binary, err := cluster.EnsureBinary(ctx, os.Stderr)
	return Kubectl{Program: []string{binary, "kubectl"}, Kubeconfig: node.Kubeconfig()}, err
}

// Words are what to type before what one wants of kubectl.
func (k Kubectl) Words() []string {
	words := append(slices.Clone(k.Program), "--kubeconfig="+k.Kubeconfig)
	if k.Context != "" {
		words = append(words, "--context="+k.Context)
	}
	return words
}

// Command prepares a kubectl that ctx ends. It is in a process group of its own, so that a Ctrl-C in the terminal is not for it.
func (k Kubectl) Command(ctx context.Context, args ...string) *exec.Cmd {
	words := append(k.Words(), args...)
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(variable string) bool { return strings.HasPrefix(variable, "KUBECONFIG=") })
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = 2 * time.Second
	return cmd
}

// Output runs kubectl with stdin and returns what it prints. An error quotes what it complains of.
func (k Kubectl) Output(ctx context.Context, stdin string, args ...string) (string, error) {
	cmd := k.Command(ctx, args...)
	var out, complaints bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &complaints
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(complaints.String()))
	}
	return out.String(), nil
}

// UserKubectl is the user's kubectl with a context of their default kubeconfig.
func UserKubectl(context string) (Kubectl, error) {
	path, err := exec.LookPath("kubectl")
	if err != nil {
		return Kubectl{}, errors.New("there is no kubectl in PATH: install it")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return Kubectl{}, fmt.Errorf("find the default kubeconfig: %w", err)
	}
	return Kubectl{Program: []string{path}, Kubeconfig: filepath.Join(home, ".kube", "config"), Context: context}, nil
}
