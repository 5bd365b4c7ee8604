//go:build e2e

package e2e

import (
	"context"
	"strings"
	"syscall"
	"testing"

	. "github.com/onsi/gomega"

	"shardedjob.dev/hack/stage"
)

// The tests in this file take the operator away, and so run alone.

func operatorPod(g Gomega) (name, uid string) {
	out, err := scene.Output(context.Background(), "", "get", "pods", "-n", stage.Namespace, "-l", "app.kubernetes.io/component=controller",
		"-o", `jsonpath={range .items[*]}{.metadata.name} {.metadata.uid}{"\n"}{end}`)
	g.Expect(err).NotTo(HaveOccurred())
	name, uid, _ = strings.Cut(strings.TrimSpace(strings.SplitN(out, "\n", 2)[0]), " ")
	return name, uid
}

func TestOperatorDown(t *testing.T) {
	j := newJob(t, 300_000, slow)
	j.start(2)
	before := j.uids()
	scale := func(n string) {
		j.kubectl("scale", "-n", stage.Namespace, stage.Deployment, "--replicas="+n)
	}
	scale("0")
	t.Cleanup(func() { scale("1") })
	j.Eventually(func(g Gomega) { _, uid := operatorPod(g); g.Expect(uid).To(BeEmpty()) }).Should(Succeed())

	j.scale(4)
	j.untilProcessed(2000) // work goes on as it was
	scale("1")
	j.await("Ready")
	j.Expect(j.get().Status.Partition.Slots).To(BeEquivalentTo(4))
	after := j.uids()
	j.Expect(after).To(HaveLen(4))
	for name, uid := range before {
		j.Expect(after).To(HaveKeyWithValue(name, uid), "neither a restart of the operator nor scaling touches a pod that stays")
	}

	// Killed, this time, while it is in the middle of something.
	j.scale(3)
	_, uid := operatorPod(j)
	j.Expect(syscall.Kill(j.processOf(uid, "/manager"), syscall.SIGKILL)).To(Succeed())
	j.await("Ready")
	figure(t, "memory of the operator: %.0f MB", residentMB(j.processOf(uid, "/manager")))
	j.finish()
}

func TestOperatorRestartLeavesPods(t *testing.T) {
	j := newJob(t, 300_000, slow)
	j.start(3)
	before := j.uids()
	j.kubectl("rollout", "restart", "-n", stage.Namespace, stage.Deployment)
	j.kubectl("rollout", "status", "-n", stage.Namespace, stage.Deployment, "--timeout=120s")
	j.untilProcessed(2000)
	j.scale(4)
	j.await("Ready")
	after := j.uids()
	j.Expect(after).To(HaveLen(4))
	for name, uid := range before {
		j.Expect(after).To(HaveKeyWithValue(name, uid))
	}
	j.finish()
}
