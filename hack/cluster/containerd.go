package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"shardedjob.dev/hack/image"
)

// imageNamespace is where in containerd the kubelet looks for images.
const imageNamespace = "k8s.io"

// networkName is the name of the pods' network in the files of CNI.
const networkName = "shardedjob"

// pauseImage is the image of the process that holds a pod's namespaces.
const pauseImage = "shardedjob.dev/pause:dev"

func (n *Node) socket() string { return n.path("containerd", "containerd.sock") }

// containerdConfig has everything below our folder. restrict_oom_score_adj: on machines that forbid lowering the score every pod would
// fail. The plugin opt would make a folder of its own in /opt.
const containerdConfig = `version = 2
root = %[1]q
state = %[2]q
disabled_plugins = ["io.containerd.internal.v1.opt"]
[grpc]
  address = %[3]q
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %[4]q
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = %[5]q
    conf_dir = %[6]q
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = %[7]q
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
        Root = %[8]q
`

// networkConfig gives pods addresses on the bridge. They reach the machine and each other and, without masquerading, nothing else.
const networkConfig = `{
  "cniVersion": "0.4.0",
  "name": %q,
  "plugins": [{
    "type": "bridge", "bridge": %q, "isGateway": true, "hairpinMode": true,
    "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": %q, "gateway": %q}]], "routes": [{"dst": "0.0.0.0/0"}]}
  }]
}
`

func (n *Node) startContainerd(ctx context.Context) error {
	config := n.path("containerd", "config.toml")
	text := fmt.Sprintf(containerdConfig, n.path("containerd", "root"), n.path("containerd", "state"), n.socket(), pauseImage,
		cniDir(), n.path("cni"), n.snapshotter(ctx), n.path("runc"))
	network := fmt.Sprintf(networkConfig, networkName, bridge, n.path("cni-addresses"), PodCIDR, BridgeIP)
	for path, text := range map[string]string{config: text, n.path("cni", "10-shardedjob.conflist"): network} {
		if err := writeFile(path, text); err != nil {
			return err
		}
	}
	p := n.process("containerd")
	p.path, p.args, p.env = find("containerd"), []string{"--config", config}, []string{fullPath()}
	if err := p.start(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return p.awaitReady(ctx, func(ctx context.Context) error { return n.ctr(ctx, "version") })
}

func (n *Node) ctr(ctx context.Context, args ...string) error {
	return run(ctx, "ctr", append([]string{"--address", n.socket(), "--namespace", imageNamespace}, args...)...)
}

// snapshotter is overlayfs where our folder can hold the layers of one, else the slow one that copies.
func (n *Node) snapshotter(ctx context.Context) string {
	try := n.path("overlay-trial")
	defer os.RemoveAll(try)
	for _, dir := range []string{"lower", "upper", "work", "merged"} {
		if err := os.MkdirAll(filepath.Join(try, dir), 0o755); err != nil {
			return "native"
		}
	}
	merged := filepath.Join(try, "merged")
	if err := run(ctx, "mount", "-t", "overlay", "overlay", "-o", fmt.Sprintf("lowerdir=%[1]s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", try), merged); err != nil {
		return "native"
	}
	if err := run(ctx, "umount", merged); err != nil {
		return "native" // the way down tries again
	}
	return "overlayfs"
}

// loadPause builds and imports the image that every pod needs.
func (n *Node) loadPause(ctx context.Context) error {
	root, err := Root()
	if err != nil {
		return err
	}
	path := n.path("pause.tar")
	pause := image.Image{Name: pauseImage, Programs: []image.Program{{Package: "./hack/cluster/pause", Path: "/pause"}}}
	if err := image.Write(ctx, root, pause, path); err != nil {
		return err
	}
	return n.LoadImage(ctx, path)
}

// LoadImage gives the node the image in a docker-archive, as hack/image writes it. Pods use it by its
// name with imagePullPolicy IfNotPresent or Never; an image of the same name is replaced.
func (n *Node) LoadImage(ctx context.Context, path string) error {
	if err := n.ctr(ctx, "images", "import", path); err != nil {
		return fmt.Errorf("load image %s: %w", strconv.Quote(path), err)
	}
	return nil
}

func writeFile(path, text string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
