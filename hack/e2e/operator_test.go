//go:build e2e

package e2e

import (
	"context"
	"strings"
	"syscall"
	"testing"
	"time"

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

// TestIdleWritesNothing leaves a paused and a complete job alone for a while.
func TestIdleWritesNothing(t *testing.T) {
	done := newJob(t, 2_000, quick)
	done.apply()
	done.expectExactlyOnce()
	done.kubectl("scale", "sj/work", "--replicas=1")
	versions := func() string {
		return done.kubectl("get", "sj/work", "configmap/work-plan", "configmap/work-report", "statefulset/work", "-o",
			`jsonpath={range .items[*]}{.kind} {.metadata.resourceVersion}{"\n"}{end}`)
	}
	// What completion itself brings about comes to rest first.
	before := versions()
	restless := time.Now()
	done.Eventually(func() time.Duration {
		if now := versions(); now != before {
			before, restless = now, time.Now()
		}
		return time.Since(restless)
	}).WithPolling(time.Second).Should(BeNumerically(">", 10*time.Second))
	done.Consistently(versions).WithTimeout(65 * time.Second).WithPolling(5 * time.Second).Should(Equal(before))
	figure(t, "API writes of a complete job in 65 s: 0")
}
