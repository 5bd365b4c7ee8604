// Package cluster runs a real Kubernetes on one Linux machine, without Docker and without an image registry.
//
// It comes in two sizes:
//
//   - [StartControlPlane] starts etcd, the API server and the controllers on loopback, each time anew and in
//     a folder of its own, in about five seconds and without root. Pods are objects that nobody runs. Tests of
//     the operator use it, because what an operator gets wrong is how it lives with the StatefulSet controller, the
//     garbage collector and admission, and none of these are in a fake client.
//   - [Node.Up] adds a scheduler, kube-proxy, a kubelet and containerd on a bridge of its own, and so makes a node that runs
//     pods. It needs root, and stays until [Node.Down].
//
// The servers are one binary, built by [EnsureBinary] from the module in the folder kube and kept in the user's
// cache. The only ports that are opened are on loopback and on the bridge.
package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
)

// Version is the Kubernetes that the servers are built from, as they report it themselves. The module in the folder kube
// requires the same.
const Version = "v1.37.2"

const (
	// BridgeIP is the machine's own address on the bridge of the node: where pods reach servers that run on
	// the machine itself, such as PostgreSQL. 198.18.0.0/15 is set aside for tests (RFC 2544), so it is never a real neighbor.
	BridgeIP = "198.18.0.1"
	// PodCIDR holds the addresses of pods, and BridgeIP.
	PodCIDR = "198.18.0.0/16"
	// ServiceCIDR holds the addresses of services.
	ServiceCIDR = "198.19.0.0/16"

	firstServiceIP = "198.19.0.1" // what the service called kubernetes gets
)

var moduleLine = regexp.MustCompile(`(?m)^module shardedjob\.dev\s*$`)

// Root finds the folder of the repository: the nearest one, from the working directory upwards, whose go.mod
// is that of this module. Tests run in the folder of their package, and so find it from anywhere.
func Root() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the repository: %w", err)
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		switch {
		case err == nil && moduleLine.Match(text):
			return dir, nil
		case err != nil && !errors.Is(err, os.ErrNotExist):
			return "", fmt.Errorf("find the repository: %w", err)
		case dir == filepath.Dir(dir):
			return "", fmt.Errorf("find the repository: no go.mod of module shardedjob.dev in %s or above it", start)
		}
	}
}

// cacheDir makes and returns a folder of ours inside the user's cache folder.
func cacheDir(parts ...string) (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the cache folder: %w", err)
	}
	dir := filepath.Join(append([]string{base, "shardedjob"}, parts...)...)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make the cache folder: %w", err)
	}
	return dir, nil
}
