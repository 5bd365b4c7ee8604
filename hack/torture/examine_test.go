package main

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"shardedjob.dev/hack/postgres"
	"shardedjob.dev/hack/torture/schedule"
	"shardedjob.dev/worker/fence"
)

// bench is a job whose rows a test processes by hand.
type bench struct {
	*job
	t    *testing.T
	conn *pgx.Conn
}

func newBench(t *testing.T) *bench {
	server := postgres.StartForTest(t, postgres.Options{Settings: settings})
	s := &scene{out: t.Output(), began: time.Now(), uri: server.NewDB(t), leftoverPatience: time.Second, score: map[schedule.Kind]tally{}}
	l := newLane(s, 0, ways[0])
	s.lanes = []*lane{l}
	j := &job{scene: s, lane: l, name: "pending-1", group: fence.NewGroup("default/pending-1"), dir: t.TempDir()}
	j.table = table{schema: "pending_1", rows: leastRows, key: keyTypes[0], extremes: true}
	if err := j.createTable(t.Context()); err != nil {
		t.Fatal(err)
	}
	b := &bench{job: j, t: t, conn: postgres.Connect(t, s.uri)}
	b.exec("SET search_path = pending_1")
	return b
}

func (b *bench) exec(sql string) {
	b.t.Helper()
	if _, err := b.conn.Exec(b.t.Context(), sql); err != nil {
		b.t.Fatalf("%s: %v", sql, err)
	}
}

// hold takes the locks of a slot under a plan, instead of those held.
func (b *bench) hold(slot, slots int32, epoch int64) {
	b.t.Helper()
	key, err := fence.EpochKey(b.group, epoch, slots)
	if err != nil {
		b.t.Fatal(err)
	}
	k := fence.SlotKey(b.group, slot)
	b.exec(fmt.Sprintf("SELECT pg_advisory_unlock_all(), pg_advisory_lock_shared(%d, %d), pg_advisory_lock(%d, %d)", key.Class, key.Object, k.Class, k.Object))
}

// process does what a statement does.
func (b *bench) process(where string) {
	b.t.Helper()
	b.exec("UPDATE t SET n = n + 1, done = true WHERE NOT app AND NOT outside AND n = 0 AND " + where)
}

// audited lets the locks go and audits.
func (b *bench) audited() account {
	b.t.Helper()
	b.exec("SELECT pg_advisory_unlock_all()")
	if err := b.audit(b.t.Context()); err != nil {
		b.t.Fatal(err)
	}
	return b.lane.sum
}

func TestAuditOfAGoodJob(t *testing.T) {
	b := newBench(t)
	random := rand.New(rand.NewPCG(1, 1))
	b.hold(0, 2, 1)
	b.process("MOD(id, 2) = 0 AND id < 0")
	for range 400 {
		if err := b.useRow(t.Context(), b.conn, random); err != nil {
			t.Fatal(err)
		}
	}
	b.process("MOD(id, 2) = 0")
	b.hold(1, 2, 1)
	b.process("MOD(id, 2) IN (1, -1)")
	b.report.CompleteTime = &metav1.Time{Time: time.Now().Add(time.Hour)}
	a := b.audited()
	if b.failed() || a.rows != leastRows+4 || a.late < 20 || a.processed < leastRows-300 || a.processed >= a.rows+a.late || a.batches != 3 {
		t.Errorf("the audit says %+v and finds %q", a, b.findings)
	}
}

func TestAuditFindsWhatIsWrong(t *testing.T) {
	b := newBench(t)
	b.exec("INSERT INTO t (id) VALUES (2), (6)")
	b.exec("INSERT INTO arrival VALUES (2), (6)")
	b.exec("UPDATE t SET app = true, done = true WHERE id = -4")
	b.hold(0, 1, 4)
	b.process("id NOT IN (-400, 2, 6)")                                // -400 and the late ones are lost
	b.exec("UPDATE t SET n = n + 1 WHERE id IN (-40, -80)")            // doubled
	b.exec("UPDATE t SET n = n + 1 WHERE id = -4")                     // overwritten
	b.exec("UPDATE t SET n = n + 1 WHERE id = -28")                    // trespassed
	b.exec("UPDATE ledger SET id = -401 WHERE id = -200")              // -200 disagrees, and -401 is unheard of
	b.exec("DELETE FROM t WHERE id = -140")                            // vanished
	b.exec("INSERT INTO departure VALUES (-160, false, false, false)") // restored
	b.hold(1, 3, 5)                                                    // -400 belongs to slot 2 of 3
	b.exec("UPDATE t SET n = n WHERE id = -400")                       // no matter
	b.exec("SELECT pg_advisory_unlock_all()")
	b.exec("UPDATE t SET n = n + 1 WHERE id = -40") // without a lock
	b.report.CompleteTime = &metav1.Time{Time: time.Now().Add(time.Hour)}
	a := b.audited()
	want := map[verdict]int{lost: 3, doubled: 2, overwritten: 1, disagreeing: 1, vanished: 2, trespassed: 1, restored: 1, unfenced: 1}
	if !maps.Equal(a.wrong, want) {
		t.Errorf("the audit finds %v, want %v", a.wrong, want)
	}
	if a.rows != leastRows+4-1 || !b.failed() {
		t.Errorf("%d rows are accounted for, and the findings are %q", a.rows, b.findings)
	}
}

func TestAuditFindsStraysAndLeftovers(t *testing.T) {
	b := newBench(t)
	b.hold(1, 3, 5)
	b.process("id BETWEEN -16 AND -4")
	b.exec("SET application_name = '" + b.sessions() + "0:00000000 default/pending-1'")
	b.exec("BEGIN")
	b.exec("INSERT INTO side VALUES (100)")
	b.exec("PREPARE TRANSACTION 'pending-1 7'")
	if err := b.audit(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.exec("ROLLBACK PREPARED 'pending-1 7'")
	var want int
	if err := b.conn.QueryRow(t.Context(), "SELECT count(*) FROM t WHERE n > 0 AND MOD(id, 3) NOT IN (1, -2)").Scan(&want); err != nil {
		t.Fatal(err)
	}
	if got := b.lane.sum.wrong[strayed]; got != want || want == 0 {
		t.Errorf("%d strays, want %d", got, want)
	}
	last := b.findings[len(b.findings)-1]
	for _, what := range []string{"session ", "advisory lock ", "prepared transaction pending-1 7"} {
		if !strings.Contains(last, what) {
			t.Errorf("no %q among what is left: %s", what, last)
		}
	}
}
