//go:build e2e

package e2e

import (
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"shardedjob.dev/api/v1alpha1"
)

// newCursorJob keeps the progress in cursors.
func newCursorJob(t *testing.T, rows int, statement string) *job {
	t.Helper()
	j := newJob(t, rows, statement)
	j.table = cursors
	return j
}

func TestCursorsOverScales(t *testing.T) {
	t.Parallel()
	j := newCursorJob(t, 300_000, slow)
	j.start(2)
	for i, n := range []int{5, 3, 1, 4} {
		j.untilProcessed(2000)
		j.scale(n)
		j.untilProcessed(1000)
		victim := j.uids()["work-0"]
		if i%2 == 1 {
			j.Expect(syscall.Kill(j.processOf(victim, "/worker"), syscall.SIGKILL)).To(Succeed())
		}
	}
	j.await("Ready")
	j.Expect(j.get().Status.Partition.By).To(BeEquivalentTo("Value"))
	j.finish()
	j.Expect(j.get().Status.Progress.Processed).To(BeEquivalentTo(j.rows), "the tables count, whoever was killed")
}

// The progress belongs to the consumer group: a job that is made again goes on, and is Complete at once when all is done.
func TestProgressOutlivesTheJob(t *testing.T) {
	t.Parallel()
	j := newCursorJob(t, 300_000, slow)
	j.start(3)
	j.untilProcessed(3000)
	j.kubectl("delete", "sj/work")
	j.start(2)
	j.finish()
	completed := j.get().Status.CompletionTime

	j.kubectl("delete", "sj/work")
	j.apply()
	j.await("Complete")
	j.Expect(j.get().Status.CompletionTime.Time).To(BeTemporally("~", completed.Time, time.Second))
	j.Expect(j.condition("Complete")).To(ContainSubstring("since"))
	j.expectOnce("")

	j.kubectl("annotate", "sj/work", "shardedjob.dev/forget=true")
	j.kubectl("wait", `--for=jsonpath={.status.conditions[?(@.type=="Ready")].reason}=Forgotten`, "sj/work", "--timeout=180s")
	j.kubectl("delete", "sj/work")
	j.exec("ALTER TABLE items DISABLE TRIGGER audit; UPDATE items SET done = NULL; ALTER TABLE items ENABLE TRIGGER audit; TRUNCATE audit")
	j.apply()
	j.expectExactlyOnce()
}

// One of five pods can never be made; the others work its slot too.
func TestOnePodMissingForEver(t *testing.T) {
	t.Parallel()
	j := newCursorJob(t, 60_000, slow)
	j.more = "  replicas: 5\n  fence: {adoptAfterSeconds: 3}\n"
	j.kubectl("create", "quota", "few", "--hard=pods=4")
	j.apply()
	orphans := func() (all []string) {
		pods := j.uids()
		for _, s := range j.get().Status.Slots {
			if _, ok := pods[v1alpha1.PodName("work", s.Ordinal)]; !ok && s.State == v1alpha1.SlotAdopted {
				all = append(all, s.Holder)
			}
		}
		return all
	}
	j.Eventually(orphans).Should(ConsistOf(HavePrefix("work-")), "the slot without a pod is worked by another")
	j.Expect(j.get().Status.SlotCounts.Adopted).To(BeEquivalentTo(1))
	j.Expect(j.condition("Ready")).To(And(HavePrefix("False PodsMissing"), ContainSubstring("exceeded quota: few")))
	j.finish()
	j.Eventually(func() int { return len(j.uids()) }).Should(BeZero(), "a complete job has no pods")
}
