package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Node is the one node of a local cluster, with everything that belongs to it below one folder. There can be
// only one on a machine at a time. The methods of different processes may be called at once: they take turns.
type Node struct {
	dir string
	out io.Writer
}

// DirVariable is the environment variable that names another folder for the node than one in the user's cache.
const DirVariable = "SHARDEDJOB_CLUSTER_DIR"

// nodeName is the name of the node in Kubernetes.
const nodeName = "local"

// NewNode returns the node of this user, up or not. What it does is told to out, in lines for a person.
func NewNode(out io.Writer) (*Node, error) {
	dir := os.Getenv(DirVariable)
	if dir == "" {
		cache, err := cacheDir()
		if err != nil {
			return nil, err
		}
		dir = filepath.Join(cache, "cluster")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("find the folder of the cluster: %w", err)
	}
	return &Node{dir: dir, out: out}, nil
}

func (n *Node) path(parts ...string) string {
	return filepath.Join(append([]string{n.dir}, parts...)...)
}

// Kubeconfig returns the path of the kubeconfig of the cluster's administrator. The file is there while the node is up.
func (n *Node) Kubeconfig() string { return n.path("control-plane", "kubeconfig") }

// Dir returns the folder of the node, with the logs of the servers in it and in its folder control-plane.
func (n *Node) Dir() string { return n.dir }

// Config returns a client configuration for the cluster's administrator, without a limit on requests.
func (n *Node) Config() (*rest.Config, error) { return loadConfig(n.Kubeconfig()) }

// Kubectl prepares a kubectl command against this cluster. It is the kubectl of the same version, not the machine's.
func (n *Node) Kubectl(ctx context.Context, args ...string) (*exec.Cmd, error) {
	binary, err := EnsureBinary(ctx, n.out)
	if err != nil {
		return nil, err
	}
	return exec.CommandContext(ctx, binary, append([]string{"kubectl", "--kubeconfig=" + n.Kubeconfig()}, args...)...), nil
}

// Up returns when the node is ready to run pods. Where it is up already it does nothing; what is left of one that is only
// half alive is taken down first. It installs Debian packages that are missing, and needs root.
func (n *Node) Up(ctx context.Context) error {
	unlock, err := n.begin(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if n.ready(ctx) == nil {
		fmt.Fprintf(n.out, "The cluster is up already: %s\n", n.Kubeconfig())
		return nil
	}
	if err := n.refuseOthers(ctx); err != nil {
		return err
	}
	if err := n.down(ctx); err != nil {
		return err
	}
	if err := n.installPackages(ctx); err != nil {
		return err
	}
	binary, err := EnsureBinary(ctx, n.out)
	if err != nil {
		return err
	}
	started := time.Now()
	if err := n.up(ctx, binary); err != nil {
		// Also when it was ctx that ended.
		return errors.Join(fmt.Errorf("bring the cluster up: %w", err), n.down(context.WithoutCancel(ctx)))
	}
	fmt.Fprintf(n.out, "The cluster is up after %s: %s\n", time.Since(started).Round(100*time.Millisecond), n.Kubeconfig())
	return nil
}

func (n *Node) up(ctx context.Context, binary string) error {
	fmt.Fprintln(n.out, "Starting Kubernetes", Version)
	if err := os.MkdirAll(n.path("control-plane"), 0o755); err != nil {
		return fmt.Errorf("make the folder of the cluster: %w", err)
	}
	if err := n.saveSysctls(); err != nil {
		return err
	}
	if err := n.addBridge(ctx); err != nil {
		return err
	}
	cp := &ControlPlane{dir: n.path("control-plane"), host: BridgeIP, node: true}
	if err := cp.start(ctx, binary, nil); err != nil {
		return err
	}
	if err := n.startContainerd(ctx); err != nil {
		return err
	}
	if err := n.loadPause(ctx); err != nil {
		return err
	}
	if err := n.startAgents(binary, cp); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	var last error
	if err := poll(ctx, 100*time.Millisecond, func() (bool, error) { last = n.ready(ctx); return last == nil, nil }); err != nil {
		return fmt.Errorf("%w: %w%s%s", err, last, n.process("kubelet").logTail(), n.process("kube-proxy").logTail())
	}
	return nil
}

// client gives up on each request soon, since the API server may be gone.
func (n *Node) client() (*kubernetes.Clientset, error) {
	config, err := n.Config()
	if err != nil {
		return nil, err
	}
	config.Timeout = 5 * time.Second
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	return client, nil
}

// ready returns what is missing until pods can run.
func (n *Node) ready(ctx context.Context) error {
	for _, p := range n.processes() {
		if !p.alive() {
			return fmt.Errorf("%s does not run", p.name)
		}
	}
	client, err := n.client()
	if err != nil {
		return err
	}
	node, err := client.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("ask for the node: %w", err)
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady && condition.Status != corev1.ConditionTrue {
			return fmt.Errorf("the node is not ready: %s", condition.Message)
		}
	}
	if len(node.Status.Conditions) == 0 || len(node.Spec.Taints) > 0 {
		return errors.New("the node takes no pods yet")
	}
	return serviceRoutes(ctx)
}

// Alive says whether the node is up and takes pods.
func (n *Node) Alive(ctx context.Context) bool { return n.ready(ctx) == nil }

// process is one of the servers that are not of the control plane.
func (n *Node) process(name string) *process {
	return &process{name: name, dir: n.dir, detached: true}
}

// controlPlane is the running control plane, as far as stopping it needs.
func (n *Node) controlPlane() *ControlPlane {
	cp := &ControlPlane{dir: n.path("control-plane"), node: true}
	cp.etcd, cp.apiserver, cp.controllers = cp.server("etcd", "", nil), cp.server("kube-apiserver", "", nil), cp.server("kube-controller-manager", "", nil)
	return cp
}

// processes are all servers, in the order of their start.
func (n *Node) processes() []*process {
	cp := n.controlPlane()
	return []*process{cp.etcd, cp.apiserver, cp.controllers, n.process("containerd"), n.process("kubelet"), n.process("kube-scheduler"), n.process("kube-proxy")}
}

// Status returns one line for each server and one for the node.
func (n *Node) Status(ctx context.Context) (lines []string) {
	for _, p := range n.processes() {
		state := "down"
		if p.alive() {
			state = "up"
		}
		lines = append(lines, fmt.Sprintf("%-24s %s", p.name, state))
	}
	if err := n.ready(ctx); err != nil {
		return append(lines, fmt.Sprintf("%-24s not ready: %s", "node", err))
	}
	return append(lines, fmt.Sprintf("%-24s ready", "node"), fmt.Sprintf("%-24s %s", "kubeconfig", n.Kubeconfig()))
}

// begin checks what Up and Down need, and takes their turn.
func (n *Node) begin(ctx context.Context) (unlock func(), err error) {
	if err := checkHost(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(n.dir), 0o755); err != nil {
		return nil, fmt.Errorf("make the folder of the cluster: %w", err)
	}
	return lockFile(ctx, n.dir+".lock", func() { fmt.Fprintln(n.out, "Waiting for another process that starts or stops the cluster") })
}
