//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"shardedjob.dev/hack/postgres"
	"shardedjob.dev/hack/stage"
)

// TestKill kills processes of workers, the coordinator's too.
func TestKill(t *testing.T) {
	t.Parallel()
	j := newJob(t, 300_000, slow)
	j.start(3)
	uids := j.uids()
	for _, victim := range []string{"work-0", "work-1", "work-2"} {
		j.untilProcessed(1000)
		var ordinal int
		_, err := fmt.Sscanf(victim, "work-%d", &ordinal)
		j.Expect(err).NotTo(HaveOccurred())
		pid, killed := j.processOf(uids[victim], "/worker"), j.now()
		j.Expect(syscall.Kill(pid, syscall.SIGKILL)).To(Succeed())
		j.Eventually(func() int {
			return j.count("SELECT count(*) FROM audit WHERE at > $1::timestamptz + interval '0.15 s' AND ((id % 3) + 3) % 3 = $2", killed, ordinal)
		}).Should(BeNumerically(">", 0))
		figure(t, "from SIGKILL of %s until its slot works again: %d ms", victim,
			j.count("SELECT (extract(epoch FROM min(at) - $1::timestamptz) * 1000)::int FROM audit WHERE at > $1::timestamptz + interval '0.15 s' AND ((id % 3) + 3) % 3 = $2", killed, ordinal))
	}
	j.Expect(j.uids()).To(Equal(uids), "containers restart, pods stay")
	j.finish()
}

func TestCoordinator(t *testing.T) {
	t.Parallel()
	j := newJob(t, 300_000, slow)
	j.start(3)
	// The coordinator's seat is the first object of its kind, the deputy's the second.
	const seat = `SELECT coalesce(max(a.pid), 0) FROM pg_stat_activity a JOIN pg_locks l USING (pid)
		WHERE l.locktype = 'advisory' AND l.objid::bigint = 4::bigint << 29 AND a.application_name LIKE '% coordinator of %' AND a.datname = current_database()`
	chief := j.get().Status.Coordinator
	j.Expect(chief).To(HavePrefix("work-"))
	for pod := range j.uids() {
		var seen struct{ Role, Coordinator string }
		raw := j.kubectl("get", "--raw", fmt.Sprintf("/api/v1/namespaces/%s/pods/%s:8080/proxy/statusz", j.namespace, pod))
		j.Expect(json.Unmarshal([]byte(raw), &seen)).To(Succeed())
		j.Expect(seen.Coordinator).To(Equal(chief))
		j.Expect(seen.Role == "coordinator").To(Equal(pod == chief), "%s: %s", pod, raw)
	}
	old := j.count(seat)
	j.Expect(old).NotTo(BeZero(), "visible in pg_stat_activity")
	j.Expect(syscall.Kill(j.processOf(j.uids()[chief], "/worker"), syscall.SIGKILL)).To(Succeed())
	killed := time.Now()
	j.Eventually(func() int { return j.count(seat) }).WithPolling(20 * time.Millisecond).ShouldNot(Or(BeZero(), Equal(old)))
	figure(t, "coordinator fail-over after SIGKILL: %d ms", time.Since(killed).Milliseconds())
	j.await("Ready")
	j.finish()
}

func TestPodDeletion(t *testing.T) {
	t.Parallel()
	j := newJob(t, 300_000, slow)
	j.start(3)
	for _, args := range [][]string{
		{"delete", "pod", "work-1"},
		{"delete", "pod", "work-2", "--force", "--grace-period=0"},
		{"delete", "pods", "--all", "--wait=false"},
	} {
		j.untilProcessed(1000)
		before := j.uids()
		j.kubectl(args...)
		j.Eventually(j.uids).ShouldNot(Equal(before))
		j.untilProcessed(1000)
	}
	j.await("Ready")
	j.finish()
}

// TestDatabaseRestart has a server of its own.
func TestDatabaseRestart(t *testing.T) {
	t.Parallel()
	server, err := stage.StartServer(t.Context())
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = server.Close() })
	j := newJobOn(t, server, 300_000, slow)
	j.start(3)
	before := j.uids()
	for _, mode := range []postgres.Mode{postgres.Fast, postgres.Immediate} {
		j.untilProcessed(2000)
		j.Expect(server.Stop(mode)).To(Succeed())
		j.Eventually(func() string { return j.condition("DatabaseReachable") }).Should(HavePrefix("False DatabaseUnreachable"))
		j.Expect(j.condition("Ready")).To(HavePrefix("False"))
		j.Expect(j.condition("Stalled")).To(HavePrefix("False"), "an outage passes by itself")
		j.Expect(server.Restart(context.WithoutCancel(t.Context()), mode)).To(Succeed())
		j.await("Ready")
	}
	j.Expect(j.uids()).To(Equal(before))
	j.finish()
}

func TestDeleteAndApplyAgain(t *testing.T) {
	t.Parallel()
	j := newJob(t, 300_000, slow)
	j.start(3)
	for _, args := range [][]string{
		{"delete", "sj/work"},
		{"delete", "sj/work", "--wait=false"},
		{"delete", "sj/work", "--cascade=foreground"},
	} {
		j.untilProcessed(1000)
		old := j.get().UID
		j.kubectl(args...)
		j.Eventually(func() error { _, err := j.try(j.manifest(), "apply", "-f", "-"); return err }).Should(Succeed())
		j.Eventually(func() any { return j.get().UID }).ShouldNot(Equal(old))
		j.scale(3)
		j.await("Ready")
	}
	j.finish()
}
