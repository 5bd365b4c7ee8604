package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// checkHost says at once what to do where the node cannot run.
func checkHost() error {
	switch {
	case runtime.GOOS != "linux":
		return fmt.Errorf("the local cluster needs Linux and this is %s: use a Linux machine, or run the demo on a cluster you have with DEMO_CONTEXT=<name>", runtime.GOOS)
	case os.Geteuid() != 0:
		return errors.New("the local cluster needs root: become root and run it again, or run the demo on a cluster you have with DEMO_CONTEXT=<name>")
	}
	return nil
}

// sbin is where Debian keeps the tools of root. They may be missing in PATH after su.
var sbin = []string{"/usr/local/sbin", "/usr/sbin", "/sbin"}

// cniDirs is where distributions put the network plugins.
var cniDirs = []string{"/usr/lib/cni", "/opt/cni/bin"}

// find returns the path of a tool, or "".
func find(tool string) string {
	if path, err := exec.LookPath(tool); err == nil {
		return path
	}
	for _, dir := range sbin {
		if path := filepath.Join(dir, tool); exists(path) {
			return path
		}
	}
	return ""
}

// cniDir returns the folder with the network plugins, or "".
func cniDir() string {
	for _, dir := range cniDirs {
		if exists(filepath.Join(dir, "bridge")) && exists(filepath.Join(dir, "host-local")) && exists(filepath.Join(dir, "loopback")) {
			return dir
		}
	}
	return ""
}

// fullPath is our PATH with the folders of root, for programs that look for others.
func fullPath() string { return "PATH=" + os.Getenv("PATH") + ":" + strings.Join(sbin, ":") }

// run runs a tool to its end. What it says is in the error.
func run(ctx context.Context, tool string, args ...string) error {
	_, err := output(ctx, tool, args...)
	return err
}

func output(ctx context.Context, tool string, args ...string) (string, error) {
	path := find(tool)
	if path == "" {
		return "", fmt.Errorf("%s is not installed", tool)
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), fullPath(), "DEBIAN_FRONTEND=noninteractive")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", tool, strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return string(out), nil
}

// missingPackages names the Debian packages whose tools are not there. Docker brings a containerd and a runc of its own, whose
// packages exclude Debian's: so it goes by the tools.
func missingPackages() (missing []string) {
	for _, tool := range []struct{ name, pkg string }{
		{"containerd", "containerd"}, {"runc", "runc"}, {"nft", "nftables"}, {"conntrack", "conntrack"},
		{"iptables", "iptables"}, {"ip", "iproute2"}, {"umount", "mount"},
	} {
		if find(tool.name) == "" {
			missing = append(missing, tool.pkg)
		}
	}
	if cniDir() == "" {
		missing = append(missing, "containernetworking-plugins")
	}
	return missing
}

// installPackages installs what is missing, and never removes anything for it.
func (n *Node) installPackages(ctx context.Context) error {
	missing := missingPackages()
	if len(missing) == 0 {
		return nil
	}
	if find("apt-get") == "" {
		return fmt.Errorf("these are not installed, and there is no apt-get to install them: %s", strings.Join(missing, ", "))
	}
	fmt.Fprintln(n.out, "Installing", strings.Join(missing, ", "))
	allow, err := forbidServices()
	if err != nil {
		return err
	}
	defer allow()
	install := append([]string{"install", "-y", "--no-install-recommends", "--no-remove"}, missing...)
	if err := run(ctx, "apt-get", install...); err != nil {
		// The usual reason is a list of packages that is older than what the servers have.
		if err := run(ctx, "apt-get", "update"); err != nil {
			return err
		}
		if err := run(ctx, "apt-get", install...); err != nil {
			return err
		}
	}
	if find("systemctl") != "" {
		for _, pkg := range missing {
			if pkg == "containerd" { // nor at the next start of the machine
				_ = run(ctx, "systemctl", "disable", "containerd.service") // no unit is fine too
			}
		}
	}
	if missing = missingPackages(); len(missing) > 0 {
		return fmt.Errorf("still not installed: %s", strings.Join(missing, ", "))
	}
	return nil
}

// policy is the program that Debian asks whether an installed service may start; 101 is its no.
const policy = "/usr/sbin/policy-rc.d"

// forbidServices keeps packages from starting services: we run a containerd of our own. It leaves a policy that is
// there alone.
func forbidServices() (allow func(), err error) {
	file, err := os.OpenFile(policy, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if errors.Is(err, os.ErrExist) {
		return func() {}, nil
	}
	if err == nil {
		_, err = file.WriteString("#!/bin/sh\nexit 101\n")
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		return nil, fmt.Errorf("keep packages from starting services: %w", err)
	}
	return func() { _ = os.Remove(policy) }, nil
}
