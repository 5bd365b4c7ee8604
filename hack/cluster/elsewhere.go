package cluster

import (
	"os"
	"path/filepath"
	"strings"
)

// deviceSocket is where a kubelet, wherever its own folder is, waits for device plugins.
const deviceSocket = "/var/lib/kubelet/device-plugins/kubelet.sock"

// logLinks is where the kubelet makes a link to each container's log.
const logLinks = "/var/log/containers"

// networkResults is where the CNI library notes what it did for each sandbox of each network, for the way back.
const networkResults = "/var/lib/cni/results"

// removeElsewhere removes what the servers put outside of our folder, where they cannot be told another. Of files it takes
// those that are surely ours or dead, and of folders those that are empty.
func (n *Node) removeElsewhere() {
	if exists(deviceSocket) && dialUnix(deviceSocket) != nil {
		_ = os.Remove(deviceSocket)
	}
	ours, _ := filepath.Glob(filepath.Join(networkResults, networkName+"-*-eth0"))
	for _, file := range ours {
		sandbox := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), networkName+"-"), "-eth0")
		_ = os.Remove(file)
		_ = os.Remove(filepath.Join(networkResults, "cni-loopback-"+sandbox+"-lo"))
	}
	links, _ := filepath.Glob(filepath.Join(logLinks, "*"))
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && strings.HasPrefix(target, n.dir+"/") {
			_ = os.Remove(link)
		}
	}
	for _, pattern := range []string{
		filepath.Dir(deviceSocket), "/var/lib/kubelet", networkResults, "/var/lib/cni/cache", "/var/lib/cni", logLinks,
		"/run/containerd/s", "/run/containerd/fifo", "/run/containerd", "/sys/fs/cgroup/" + imageNamespace, "/sys/fs/cgroup/*/" + imageNamespace,
	} {
		paths, _ := filepath.Glob(pattern)
		for _, path := range paths {
			if info, err := os.Lstat(path); err == nil && info.IsDir() {
				_ = os.Remove(path) // fails, as it should, if something is in it
			}
		}
	}
}
