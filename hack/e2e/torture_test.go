//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"shardedjob.dev/hack/postgres"
	"shardedjob.dev/hack/stage"
)

// tortureTime is how long faults are injected on the node. The long torture, without a node, is hack/torture.
const tortureTime = 75 * time.Second

// TestTorture injects faults at random into a job of each kind while a person keeps changing it.
func TestTorture(t *testing.T) {
	for _, c := range []struct{ name, table string }{{"pending", remembering}, {"cursors", cursors}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server, err := stage.StartServer(t.Context())
			NewWithT(t).Expect(err).NotTo(HaveOccurred())
			t.Cleanup(func() { _ = server.Close() })
			j := newJobOn(t, server, 400_000, slow)
			j.table, j.batch, j.timeout = c.table, 50, 2
			j.more = "  fence: {handoverSeconds: 4, adoptAfterSeconds: 2}\n"
			j.start(3)
			seed := uint64(time.Now().UnixNano())
			t.Logf("seed %d", seed)
			faults := j.torture(rand.New(rand.NewPCG(seed, 0)), server)
			j.kubectl("patch", "sj/work", "--type=merge", "-p", `{"spec":{"suspend":false,"replicas":3}}`)
			j.await("Ready")
			j.finish()
			figure(t, "torture on the node, %s: %d faults in %s", c.name, faults, tortureTime)
			j.Eventually(func() int {
				return j.count("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())")
			}).Should(BeZero(), "advisory locks left")
		})
	}
}

// torture injects one fault after the other and returns how many.
func (j *job) torture(dice *rand.Rand, server *postgres.Server) (faults int) {
	worker := func() int {
		for _, uid := range j.uids() { // in random order
			if pid := findProcess(uid, "/worker"); pid != 0 {
				return pid
			}
		}
		return 0
	}
	signal := func(signals ...syscall.Signal) {
		pid := worker()
		for i, s := range signals {
			if i > 0 {
				began, length := time.Now(), time.Duration(dice.IntN(6000))*time.Millisecond
				j.Eventually(func() time.Duration { return time.Since(began) }).WithPolling(50 * time.Millisecond).Should(BeNumerically(">=", length))
			}
			if pid != 0 {
				_ = syscall.Kill(pid, s) // it may have ended
			}
		}
	}
	for began := time.Now(); time.Since(began) < tortureTime; faults++ {
		before := j.processed()
		switch dice.IntN(8) {
		case 0, 1:
			signal(syscall.SIGKILL)
		case 2:
			signal(syscall.SIGSTOP, syscall.SIGCONT)
		case 3:
			j.exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'sj:%' AND random() < 0.5")
		case 4:
			j.kubectl("delete", "pod", "-l", "shardedjob.dev/job=work", "--wait=false", "--grace-period="+fmt.Sprint(dice.IntN(2)))
		case 5:
			j.Expect(server.Restart(context.WithoutCancel(j.Context()), []postgres.Mode{postgres.Fast, postgres.Immediate}[dice.IntN(2)])).To(Succeed())
		default:
			for range 1 + dice.IntN(3) {
				j.scale(1 + dice.IntN(5))
			}
		}
		if dice.IntN(2) == 0 { // let it get going again now and then
			j.Eventually(j.processed).Should(BeNumerically(">", before))
		}
	}
	return faults
}
