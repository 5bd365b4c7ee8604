package cluster

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// podsGrace is how long pods may take to end before the node goes down.
const podsGrace = 3 * time.Second

// Down ends all pods and servers and takes back what they changed on the machine. It returns when nothing is left
// but the binaries in the cache and the Debian packages. Where no node is up it does nothing. It needs root.
func (n *Node) Down(ctx context.Context) error {
	unlock, err := n.begin(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if !exists(n.dir) {
		fmt.Fprintln(n.out, "No cluster is up")
	}
	return n.down(ctx)
}

// down works as well on what is left of a node, in whatever state: each step looks at what is there, and
// none is left out because one before it failed.
func (n *Node) down(ctx context.Context) error {
	cp := n.controlPlane()
	var errs []error
	if exists(n.dir) {
		fmt.Fprintln(n.out, "Taking the cluster down")
		// Nobody may put new pods in the place of those that end.
		errs = append(errs, cp.controllers.stop(0), n.process("kube-scheduler").stop(0))
		n.deletePods(ctx)
		errs = append(errs, n.process("kubelet").stop(5*time.Second), n.process("kube-proxy").stop(5*time.Second))
		errs = append(errs, cp.apiserver.stop(0), cp.etcd.stop(0))
		errs = append(errs, n.killContainers(ctx), n.process("containerd").stop(10*time.Second))
		errs = append(errs, n.unmount(ctx))
	}
	errs = append(errs, n.removeBridge(ctx), n.restoreSysctls())
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("take the cluster down: %w", err)
	}
	if err := os.RemoveAll(n.dir); err != nil {
		return fmt.Errorf("remove the folder of the cluster: %w", err)
	}
	n.removeElsewhere()
	return nil
}

// deletePods lets the kubelet end all pods. What it does not manage in time, killContainers does.
func (n *Node) deletePods(ctx context.Context) {
	if !n.process("kubelet").alive() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, podsGrace+20*time.Second)
	defer cancel()
	err := func() error {
		client, err := n.client()
		if err != nil {
			return err
		}
		grace := int64(podsGrace / time.Second)
		asked := map[string]bool{}
		return poll(ctx, 200*time.Millisecond, func() (bool, error) {
			pods, err := client.CoreV1().Pods(corev1.NamespaceAll).List(ctx, metav1.ListOptions{})
			if err != nil {
				return false, err
			}
			for _, pod := range pods.Items {
				if uid := string(pod.UID); !asked[uid] {
					asked[uid] = true
					_ = client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &grace}) // it may have gone
				}
			}
			return len(pods.Items) == 0, nil
		})
	}()
	if err != nil {
		fmt.Fprintf(n.out, "Pods could not be deleted in order (%s); their processes are ended instead\n", err)
	}
}

// killContainers ends the containers that the kubelet left, and the shims that hold them, which outlive containerd.
func (n *Node) killContainers(ctx context.Context) error {
	containers, err := os.ReadDir(n.path("runc", imageNamespace))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("list containers: %w", err)
	}
	for _, container := range containers {
		if err := run(ctx, "runc", "--root", n.path("runc", imageNamespace), "delete", "--force", container.Name()); err != nil {
			return err
		}
	}
	shims, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return fmt.Errorf("list processes: %w", err)
	}
	for _, file := range shims {
		words, _ := os.ReadFile(file) // it may have ended
		if !bytes.Contains(words, []byte("containerd-shim")) || !bytes.Contains(words, []byte(n.socket())) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			continue
		}
		if id, err := identify(pid); err == nil {
			if err := id.stop(2 * time.Second); err != nil {
				return fmt.Errorf("stop a container's shim: %w", err)
			}
		}
	}
	return nil
}

// unmount takes off whatever is mounted below our folder, the deepest first, and fails if something stays: removing the
// folder would then remove what is mounted.
func (n *Node) unmount(ctx context.Context) error {
	mounts, err := mountsBelow(n.dir)
	if err != nil {
		return err
	}
	for _, mount := range slices.Backward(mounts) {
		if err := run(ctx, "umount", mount); err != nil {
			return err
		}
	}
	if mounts, err = mountsBelow(n.dir); err == nil && len(mounts) > 0 {
		err = fmt.Errorf("still mounted: %s", strings.Join(mounts, ", "))
	}
	return err
}

// mountsBelow lists mount points in the order they were mounted.
func mountsBelow(dir string) (mounts []string, err error) {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	// Spaces and the like stand there as octal numbers.
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	for lines := bufio.NewScanner(bytes.NewReader(table)); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); len(fields) > 4 {
			if point := unescape.Replace(fields[4]); strings.HasPrefix(point, dir+"/") {
				mounts = append(mounts, point)
			}
		}
	}
	return mounts, nil
}
