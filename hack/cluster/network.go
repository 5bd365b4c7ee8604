package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// bridge is the device that pods are plugged into. Its alias in the kernel says whose it is.
const (
	bridge      = "cni0"
	bridgeFiles = "/sys/class/net/" + bridge
	aliasPrefix = "shardedjob:"
)

// refuseOthers fails if another cluster is on this machine: its bridge, its rules, its kubelet. Two cannot share it.
func (n *Node) refuseOthers(ctx context.Context) error {
	owner, ok := bridgeOwner()
	if !ok {
		return fmt.Errorf("another Kubernetes or CNI network uses the bridge %s of this machine: take it down first", bridge)
	}
	if owner == "" && hasRules(ctx) {
		return errors.New("another kube-proxy has its rules in nftables on this machine: take its cluster down first")
	}
	if owner == "" && dialUnix(deviceSocket) == nil {
		return errors.New("another kubelet runs on this machine: take its cluster down first")
	}
	if owner == "" || owner == n.dir {
		return nil
	}
	other := &Node{dir: owner}
	for _, p := range other.processes() {
		if p.alive() {
			return fmt.Errorf("the cluster in %s is up: take it down first, with %s=%s", owner, DirVariable, owner)
		}
	}
	return nil
}

// bridgeOwner returns the folder of the node that the bridge belongs to, "" if there is no bridge, and false if it is not of our making.
func bridgeOwner() (dir string, ok bool) {
	alias, err := os.ReadFile(filepath.Join(bridgeFiles, "ifalias"))
	if errors.Is(err, os.ErrNotExist) {
		return "", true
	}
	return strings.CutPrefix(strings.TrimSpace(string(alias)), aliasPrefix)
}

// addBridge makes the bridge before anything else, because the API server listens on its address.
func (n *Node) addBridge(ctx context.Context) error {
	for _, args := range [][]string{
		{"link", "add", bridge, "alias", aliasPrefix + n.dir, "type", "bridge"},
		{"link", "set", bridge, "alias", aliasPrefix + n.dir},
		{"address", "add", BridgeIP + "/16", "dev", bridge},
		{"link", "set", bridge, "up"},
	} {
		if err := run(ctx, "ip", args...); err != nil {
			return err
		}
	}
	return nil
}

// removeBridge removes the bridge if it is ours, and with it the rules that kube-proxy made.
func (n *Node) removeBridge(ctx context.Context) error {
	owner, ok := bridgeOwner()
	if !ok || owner == "" {
		return nil
	}
	for _, family := range families {
		if _, err := output(ctx, "nft", "list", "table", family, proxyTable); err != nil {
			continue
		}
		if err := run(ctx, "nft", "delete", "table", family, proxyTable); err != nil {
			return err
		}
	}
	// The kernel takes the devices of a network namespace away some time after the namespace itself.
	devices, _ := filepath.Glob(filepath.Join(bridgeFiles, "brif", "*"))
	for _, device := range devices {
		if err := run(ctx, "ip", "link", "delete", filepath.Base(device)); err != nil && exists(device) {
			return err
		}
	}
	return run(ctx, "ip", "link", "delete", bridge)
}

const proxyTable = "kube-proxy"

var families = []string{"ip", "ip6"}

func hasRules(ctx context.Context) bool {
	if find("nft") == "" {
		return false
	}
	_, err := output(ctx, "nft", "list", "table", "ip", proxyTable)
	return err == nil
}

// serviceRoutes fails until kube-proxy has made the way from a pod to the API server.
func serviceRoutes(ctx context.Context) error {
	rules, err := output(ctx, "nft", "list", "table", "ip", proxyTable)
	if err == nil && !strings.Contains(rules, firstServiceIP) {
		err = errors.New("kube-proxy has no rule yet for the API server")
	}
	return err
}

// sysctls are the kernel settings that the servers change. They are put back on the way down.
var sysctls = []string{
	"net/ipv4/ip_forward", "net/ipv4/conf/all/route_localnet",
	"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
}

func sysctlPath(name string) string { return filepath.Join("/proc/sys", name) }

func (n *Node) savedPath(name string) string {
	return n.path("sysctls", strings.ReplaceAll(name, "/", "."))
}

func (n *Node) saveSysctls() error {
	if err := os.MkdirAll(n.path("sysctls"), 0o755); err != nil {
		return fmt.Errorf("keep kernel settings: %w", err)
	}
	for _, name := range sysctls {
		value, err := os.ReadFile(sysctlPath(name))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err == nil {
			err = os.WriteFile(n.savedPath(name), value, 0o644)
		}
		if err != nil {
			return fmt.Errorf("keep kernel setting %s: %w", name, err)
		}
	}
	return nil
}

// restoreSysctls writes only what has changed: a setting may be read-only here.
func (n *Node) restoreSysctls() error {
	for _, name := range sysctls {
		saved, err := os.ReadFile(n.savedPath(name))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		now, errNow := os.ReadFile(sysctlPath(name))
		if err = errors.Join(err, errNow); err == nil && string(now) != string(saved) {
			err = os.WriteFile(sysctlPath(name), saved, 0o644)
		}
		if err != nil {
			return fmt.Errorf("put kernel setting %s back: %w", name, err)
		}
	}
	return nil
}
