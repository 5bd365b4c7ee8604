package cluster

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
)

func TestControlPlane(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	cp, err := StartControlPlane(ctx, Options{CRDs: []string{"testdata/crd.yaml"}})
	g.Expect(err).NotTo(HaveOccurred())
	stopped := false
	t.Cleanup(func() {
		if !stopped {
			_ = cp.Stop()
		}
	})
	client := kubernetes.NewForConfigOrDie(cp.Config())

	t.Run("runs the StatefulSet and garbage collection controllers", func(t *testing.T) {
		g := NewWithT(t)
		g.SetDefaultEventuallyTimeout(time.Minute)
		replicas := int32(2)
		labels := map[string]string{"app": "pair"}
		set, err := client.AppsV1().StatefulSets("default").Create(ctx, &appsv1.StatefulSet{
			ObjectMeta: metav1.ObjectMeta{Name: "pair"},
			Spec: appsv1.StatefulSetSpec{
				Replicas: &replicas, PodManagementPolicy: appsv1.ParallelPodManagement, Selector: &metav1.LabelSelector{MatchLabels: labels},
				Template: corev1.PodTemplateSpec{
					ObjectMeta: metav1.ObjectMeta{Labels: labels},
					Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "none"}}},
				},
			},
		}, metav1.CreateOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		owner := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: set.Name, UID: set.UID}
		_, err = client.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: "owned", OwnerReferences: []metav1.OwnerReference{owner}},
		}, metav1.CreateOptions{})
		g.Expect(err).NotTo(HaveOccurred())

		pods := func() (names []string) {
			list, err := client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
			g.Expect(err).NotTo(HaveOccurred())
			for _, pod := range list.Items {
				names = append(names, pod.Name)
			}
			return names
		}
		g.Eventually(pods).Should(ConsistOf("pair-0", "pair-1"))

		g.Expect(client.AppsV1().StatefulSets("default").Delete(ctx, set.Name, metav1.DeleteOptions{})).To(Succeed())
		g.Eventually(pods).Should(BeEmpty())
		g.Eventually(func() bool {
			_, err := client.CoreV1().ConfigMaps("default").Get(ctx, "owned", metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		}).Should(BeTrue(), "the ConfigMap goes with its owner")
	})

	t.Run("collects the children of custom resources at once", func(t *testing.T) {
		g := NewWithT(t)
		owners := dynamic.NewForConfigOrDie(cp.Config()).Resource(schema.GroupVersionResource{Group: "test.shardedjob.dev", Version: "v1", Resource: "owners"}).Namespace("default")
		owner, err := owners.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "test.shardedjob.dev/v1", "kind": "Owner", "metadata": map[string]any{"name": "custom"},
		}}, metav1.CreateOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		_, err = client.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Name: "child", OwnerReferences: []metav1.OwnerReference{{APIVersion: "test.shardedjob.dev/v1", Kind: "Owner", Name: "custom", UID: owner.GetUID()}},
		}}, metav1.CreateOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(owners.Delete(ctx, "custom", metav1.DeleteOptions{})).To(Succeed())
		g.Eventually(func() bool {
			_, err := client.CoreV1().ConfigMaps("default").Get(ctx, "child", metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		}).WithTimeout(time.Minute).Should(BeTrue())
	})

	t.Run("enforces pod security", func(t *testing.T) {
		g := NewWithT(t)
		_, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: "strict", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
		}}, metav1.CreateOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Eventually(func() string {
			_, err := client.CoreV1().Pods("strict").Create(ctx, &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: "root"},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "none"}}},
			}, metav1.CreateOptions{})
			g.Expect(err).To(HaveOccurred())
			return err.Error()
		}).WithTimeout(time.Minute).Should(ContainSubstring("violates PodSecurity"))
	})

	t.Run("the API server goes away and comes back", func(t *testing.T) {
		g := NewWithT(t)
		quick := cp.Config()
		quick.Timeout = time.Second
		client := kubernetes.NewForConfigOrDie(quick)
		ask := func() error {
			_, err := client.CoreV1().Namespaces().Get(ctx, "strict", metav1.GetOptions{})
			return err
		}
		g.Expect(cp.PauseAPIServer()).To(Succeed())
		g.Expect(ask()).To(MatchError(Or(ContainSubstring("deadline exceeded"), ContainSubstring("Timeout"))))
		g.Expect(cp.ResumeAPIServer()).To(Succeed())
		g.Eventually(ask).WithTimeout(time.Minute).Should(Succeed())

		g.Expect(cp.StopAPIServer()).To(Succeed())
		g.Expect(ask()).To(MatchError(ContainSubstring("connection refused")))
		g.Expect(cp.StartAPIServer(ctx)).To(Succeed())
		g.Eventually(ask).WithTimeout(time.Minute).Should(Succeed())
	})

	t.Run("stops and leaves nothing", func(t *testing.T) {
		g := NewWithT(t)
		var ids []identity
		for _, p := range []*process{cp.etcd, cp.apiserver, cp.controllers} {
			id, err := readIdentity(p.pidPath())
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(id.alive()).To(BeTrue(), p.name)
			ids = append(ids, id)
		}
		g.Expect(cp.Stop()).To(Succeed())
		stopped = true
		for _, id := range ids {
			g.Expect(id.alive()).To(BeFalse())
		}
		g.Expect(cp.Dir()).NotTo(BeADirectory())
	})
}

// dyingVariable makes this test's program, run once more by itself, the one that is killed.
const dyingVariable = "CLUSTER_TEST_DYING"

// Killed with no chance to clean up, we still leave no server behind, and the next start removes our folder.
func TestServersEndWithUs(t *testing.T) {
	g := NewWithT(t)
	if dir := os.Getenv(dyingVariable); dir != "" {
		g.Expect(markOwned(dir)).To(Succeed())
		sleeper := &process{name: "sleep", path: "/bin/sleep", args: []string{"1000"}, dir: dir}
		g.Expect(sleeper.start()).To(Succeed())
		g.Expect(syscall.Kill(os.Getpid(), syscall.SIGKILL)).To(Succeed())
		select {}
	}
	t.Setenv("TMPDIR", t.TempDir())
	dir, err := os.MkdirTemp("", tempPrefix)
	g.Expect(err).NotTo(HaveOccurred())
	self := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestServersEndWithUs$")
	self.Env = append(os.Environ(), dyingVariable+"="+dir)
	g.Expect(self.Run()).To(MatchError(ContainSubstring("killed")))

	sleeper := &process{name: "sleep", dir: dir}
	g.Expect(sleeper.pidPath()).To(BeAnExistingFile())
	g.Eventually(sleeper.alive).WithTimeout(10 * time.Second).Should(BeFalse())
	sweep()
	g.Expect(dir).NotTo(BeADirectory())
}

func TestRoot(t *testing.T) {
	g := NewWithT(t)
	root, err := Root()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(filepath.Join(root, "hack", "cluster", "kube", "go.mod")).To(BeAnExistingFile())

	t.Chdir(os.TempDir())
	_, err = Root()
	g.Expect(err).To(MatchError(ContainSubstring("no go.mod of module shardedjob.dev")))
}

func TestIdentity(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	sleeper := &process{name: "sleep", path: "/bin/sleep", args: []string{"1000"}, dir: dir}
	g.Expect(sleeper.start()).To(Succeed())
	id, err := readIdentity(sleeper.pidPath())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(id.alive()).To(BeTrue())

	for name, stranger := range map[string]identity{
		"same pid, other start":       {id.pid, id.start + 1, id.boot},
		"same pid, machine restarted": {id.pid, id.start, "0"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(stranger.alive()).To(BeFalse())
			g.Expect(stranger.stop(time.Second)).To(Succeed())
			g.Expect(id.alive()).To(BeTrue(), "a stranger's end is not ours")
		})
	}
	g.Expect(sleeper.stop(time.Minute)).To(Succeed())
	g.Expect(id.alive()).To(BeFalse())
	g.Expect(sleeper.pidPath()).NotTo(BeAnExistingFile())
	g.Expect(sleeper.stop(0)).To(Succeed(), "stopping twice is no error")
}

// A server that cannot start says why: the end of its log is in the error.
func TestFailedStartQuotesTheLog(t *testing.T) {
	g := NewWithT(t)
	failing := &process{name: "failing", path: "/bin/sh", args: []string{"-c", "echo out of luck; exit 1"}, dir: t.TempDir()}
	err := failing.start()
	if err == nil {
		err = failing.awaitReady(t.Context(), func(context.Context) error { return context.Canceled })
	}
	g.Expect(err).To(MatchError(ContainSubstring("out of luck")))
}
