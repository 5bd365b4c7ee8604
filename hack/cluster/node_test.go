//go:build e2e

package cluster

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"shardedjob.dev/hack/image"
)

// TestNode brings a node up, runs a pod that talks to the API server through the service kubernetes with its
// service account, and looks for what is left after the way down.
func TestNode(t *testing.T) {
	g := NewWithT(t)
	g.SetDefaultEventuallyTimeout(2 * time.Minute)
	ctx := t.Context()
	before := machine(t)
	node := nodeUp(g, t)
	started, err := readIdentity(node.process("kubelet").pidPath())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(node.Up(ctx)).To(Succeed(), "again")
	g.Expect(readIdentity(node.process("kubelet").pidPath())).To(Equal(started), "the same node goes on")
	g.Expect(strings.Join(node.Status(ctx), "\n")).To(ContainSubstring("ready"))

	tar := filepath.Join(t.TempDir(), "askapi.tar")
	root, err := Root()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(image.Write(ctx, root, image.Image{
		Name:     "shardedjob.dev/askapi:test",
		Programs: []image.Program{{Package: "./hack/cluster/testdata/askapi", Path: "/askapi"}},
	}, tar)).To(Succeed())
	g.Expect(node.LoadImage(ctx, tar)).To(Succeed())

	config, err := node.Config()
	g.Expect(err).NotTo(HaveOccurred())
	client := kubernetes.NewForConfigOrDie(config)
	_, err = client.CoreV1().Pods("default").Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "askapi"},
		Spec: corev1.PodSpec{
			DNSPolicy:  corev1.DNSDefault,
			Containers: []corev1.Container{{Name: "main", Image: "shardedjob.dev/askapi:test", ImagePullPolicy: corev1.PullNever}},
		},
	}, metav1.CreateOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	logs := func() string {
		kubectl, err := node.Kubectl(ctx, "logs", "askapi")
		g.Expect(err).NotTo(HaveOccurred())
		out, _ := kubectl.CombinedOutput() // fails until the container runs
		return string(out)
	}
	g.Eventually(logs).WithPolling(500 * time.Millisecond).Should(ContainSubstring("system:serviceaccount:default:default"))

	g.Expect(node.Down(ctx)).To(Succeed())
	g.Expect(node.Dir()).NotTo(BeADirectory())
	expectUnchanged(g, before, machine(t))
	g.Expect(node.Down(ctx)).To(Succeed(), "again")
}

// nodeUp brings a node up in a folder of its own, and takes it down at the end at the latest.
func nodeUp(g *WithT, t *testing.T) *Node {
	t.Setenv(DirVariable, filepath.Join(t.TempDir(), "node"))
	node, err := NewNode(t.Output())
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = node.Down(context.Background()) })
	g.Expect(node.Up(t.Context())).To(Succeed())
	return node
}

// TestNodeIsTakenDownHalfDead kills what holds the node together and expects Down to clean up after it all the same.
func TestNodeIsTakenDownHalfDead(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	before := machine(t)
	node := nodeUp(g, t)
	config, err := node.Config()
	g.Expect(err).NotTo(HaveOccurred())
	client := kubernetes.NewForConfigOrDie(config)
	_, err = client.CoreV1().Pods("default").Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "pause"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: pauseImage}}},
	}, metav1.CreateOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func() corev1.PodPhase {
		pod, err := client.CoreV1().Pods("default").Get(ctx, "pause", metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		return pod.Status.Phase
	}).WithTimeout(2 * time.Minute).Should(Equal(corev1.PodRunning))

	for _, name := range []string{"kubelet", "containerd"} {
		g.Expect(node.process(name).stop(0)).To(Succeed())
	}
	g.Expect(node.controlPlane().etcd.stop(0)).To(Succeed())
	g.Expect(node.Down(ctx)).To(Succeed())
	expectUnchanged(g, before, machine(t))
}

// expectUnchanged compares what machine saw, and names what differs.
func expectUnchanged(g Gomega, before, after map[string]string) {
	for what := range before {
		g.Expect(after[what]).To(Equal(before[what]), "%s must be as before", what)
	}
}

// machine describes what a node could leave behind.
func machine(t *testing.T) map[string]string {
	t.Helper()
	seen := map[string]string{}
	for name, pattern := range map[string]string{
		"network devices":      "/sys/class/net/*",
		"network namespaces":   "/run/netns/*",
		"containerd":           "/run/containerd/*",
		"CNI":                  "/var/lib/cni/*",
		"kubelet":              "/var/lib/kubelet/*",
		"logs":                 "/var/log/containers/*",
		"pods' logs":           "/var/log/pods/*",
		"cgroups (v1)":         "/sys/fs/cgroup/*/k8s.io",
		"cgroups (v2)":         "/sys/fs/cgroup/k8s.io",
		"services of packages": policy,
	} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		seen[name] = strings.Join(paths, "\n")
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	seen["mounts"] = string(mounts)
	for _, name := range sysctls {
		value, _ := os.ReadFile(sysctlPath(name)) // not every kernel has each
		seen[name] = string(value)
	}
	seen["nftables"] = ""
	if find("nft") != "" { // Up installs it
		if seen["nftables"], err = output(t.Context(), "nft", "list", "tables"); err != nil {
			t.Fatal(err)
		}
	}
	seen["processes"] = strings.Join(serverProcesses(), "\n")
	return seen
}

// serverProcesses lists the running servers of a node by their names.
func serverProcesses() (names []string) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		words, _ := os.ReadFile(file) // it may have ended
		name, _, _ := strings.Cut(string(words), "\x00")
		switch name = filepath.Base(name); name {
		case "kubelet", "kube-proxy", "kube-scheduler", "containerd", "containerd-shim-runc-v2", "pause", "askapi":
			names = append(names, name)
		}
	}
	return names
}
