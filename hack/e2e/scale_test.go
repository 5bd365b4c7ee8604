//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	. "github.com/onsi/gomega"
)

func TestScaleUpAndDown(t *testing.T) {
	t.Parallel()
	j := newJob(t, 300_000, slow)
	j.start(2)
	first := j.uids()
	for _, n := range []int{5, 3, 4} {
		j.untilProcessed(3000)
		j.scale(n)
		j.await("Ready")
		status := j.get().Status
		j.Expect(status.Partition.Slots).To(BeEquivalentTo(n))
		j.Expect(status.Coordinator).To(HavePrefix("work-"))
	}
	uids := j.uids()
	j.Expect(uids).To(HaveLen(4))
	for name, uid := range first {
		j.Expect(uids).To(HaveKeyWithValue(name, uid))
	}
	j.finish()
	j.Expect(j.kubectl("get", "sj")).To(ContainSubstring("Complete"))
}

// TestSwitchOver measures how long slots pause when the table is partitioned anew.
func TestSwitchOver(t *testing.T) {
	t.Parallel()
	j := newJob(t, 300_000, "UPDATE items SET done = 'one' FROM (SELECT pg_sleep(0.3)) pause WHERE id = ANY($1)")
	j.batch = 500
	j.start(4)
	j.untilProcessed(10_000)
	j.scale(6)
	j.await("Ready")
	figure(t, "memory of a worker: %.0f MB", residentMB(j.processOf(j.uids()["work-0"], "/worker")))
	j.finish()
	// All keys of a batch have one remainder. Under the new partition it is that of 6.
	var gaps, batches []float64
	j.withDB(func(ctx context.Context, conn *pgx.Conn) {
		rows, err := conn.Query(ctx, `WITH batch AS (
				SELECT pid, max(at) AS at, count(DISTINCT ((id % 6) + 6) % 6) = 1 AS new FROM audit GROUP BY pid, xmin::text HAVING count(*) > 10),
			step AS (SELECT new AND NOT lag(new) OVER w AS switch, extract(epoch FROM at - lag(at) OVER w)::float8 AS seconds FROM batch WINDOW w AS (PARTITION BY pid ORDER BY at))
			SELECT coalesce(switch, false), seconds FROM step WHERE seconds IS NOT NULL ORDER BY seconds`)
		j.Expect(err).NotTo(HaveOccurred())
		var switched bool
		var seconds float64
		_, err = pgx.ForEachRow(rows, []any{&switched, &seconds}, func() error {
			if switched {
				gaps = append(gaps, seconds)
			} else {
				batches = append(batches, seconds)
			}
			return nil
		})
		j.Expect(err).NotTo(HaveOccurred())
	})
	j.Expect(gaps).To(HaveLen(4), "each of the four workers switched once")
	slices.Sort(gaps)
	figure(t, "pause of a slot at a switch-over 4 → 6, from commit to commit: %.0f ms median, %.0f ms worst; a batch: %.0f ms median",
		1000*gaps[len(gaps)/2], 1000*gaps[len(gaps)-1], 1000*batches[len(batches)/2])
}

func TestNewStatement(t *testing.T) {
	t.Parallel()
	j := newJob(t, 300_000, slow)
	j.start(3)
	before := j.uids()
	for _, word := range []string{"two", "three", "four"} {
		j.untilProcessed(2000)
		j.statement = fmt.Sprintf("UPDATE items SET done = '%s' FROM (SELECT pg_sleep(0.1)) pause WHERE id = ANY($1)", word)
		j.apply()
		j.await("Ready")
		returned := j.now()
		j.untilProcessed(1000)
		j.Expect(j.count("SELECT count(*) FROM audit WHERE at > $1 AND done <> $2", returned, word)).To(BeZero(),
			"rows processed by an old statement after kubectl wait returned")
	}
	j.Expect(j.uids()).To(Equal(before), "no pod restarts for a statement")
	j.finish()
}

// now is the database's time.
func (j *job) now() (now time.Time) {
	j.Helper()
	j.withDB(func(ctx context.Context, conn *pgx.Conn) {
		j.Expect(conn.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&now)).To(Succeed())
	})
	return now
}

func TestSuspendAndZero(t *testing.T) {
	t.Parallel()
	j := newJob(t, 300_000, slow)
	j.start(2)
	patch := func(suspend bool) {
		j.kubectl("patch", "sj/work", "--type=merge", "-p", fmt.Sprintf(`{"spec":{"suspend":%t}}`, suspend))
	}
	for _, pause := range []struct {
		name     string
		off, on  func()
		expected string
	}{
		{"suspend", func() { patch(true) }, func() { patch(false) }, "True Suspended"},
		{"replicas 0", func() { j.scale(0) }, func() { j.scale(2) }, "False NotSuspended"},
	} {
		j.untilProcessed(2000)
		pause.off()
		j.await("Ready")
		j.Expect(j.condition("Ready")).To(HavePrefix("True Paused"), pause.name)
		j.Expect(j.condition("Suspended")).To(HavePrefix(pause.expected), pause.name)
		j.Expect(j.uids()).To(BeEmpty(), pause.name)
		j.Expect(j.count("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())")).To(BeZero(), pause.name)
		processed := j.processed()
		j.Consistently(j.processed).WithTimeout(3 * time.Second).Should(Equal(processed))
		pause.on()
		j.await("Ready")
	}
	j.finish()
}
