package cursor

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/hack/postgres"
	"shardedjob.dev/worker/shard"
)

func TestMain(m *testing.M) { postgres.Main(m) }

const group = "media/thumbnails"

// statement is not idempotent: a row that is worked twice shows it.
const statement = "UPDATE t SET times = times + 1 WHERE id = ANY ($1)"

// bench is a database with a table t to work on.
type bench struct {
	testing.TB
	uri   string
	conn  *pgx.Conn // the application's, not a worker's
	table shard.Table
}

// shared is the one database of all tests that need none of their own, since to make one takes longer than most tests.
var shared struct {
	once sync.Once
	uri  string
	err  error
}

// newBench makes table t with a key of the given type, and the schema of the cursors, where nothing else is.
func newBench(t testing.TB, keyType string) *bench {
	t.Helper()
	server := postgres.ForTest(t)
	shared.once.Do(func() {
		shared.uri, shared.err = server.URI("shared"), server.CreateDatabase(t.Context(), "shared")
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return benchAt(t, shared.uri, keyType)
}

func benchAt(t testing.TB, uri, keyType string) *bench {
	t.Helper()
	b := &bench{TB: t, uri: uri}
	b.conn = b.connect()
	b.exec("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
	b.exec(fmt.Sprintf("CREATE TABLE t (id %s PRIMARY KEY, times int NOT NULL DEFAULT 0, kind text NOT NULL DEFAULT 'photo')", keyType))
	b.prepare()
	b.exec("TRUNCATE " + tables)
	b.table = b.checked()
	return b
}

func (b *bench) prepare() {
	b.Helper()
	if problem, err := Prepare(b.Context(), b.conn); problem != nil || err != nil {
		b.Fatalf("prepare: %+v %v", problem, err)
	}
}

// checked is what the preflight check would find of table t.
func (b *bench) checked() shard.Table {
	b.Helper()
	t := shard.NewTable(v1alpha1.TableSpec{Name: "t", Key: "id"})
	var typ uint32
	if err := b.conn.QueryRow(b.Context(), "SELECT attrelid, atttypid FROM pg_attribute WHERE attrelid = 't'::regclass AND attname = 'id'").Scan(&t.OID, &typ); err != nil {
		b.Fatal(err)
	}
	t.KeyType, _, _ = shard.KeyTypeOf(typ)
	t.By = v1alpha1.ShardByHash
	if integer(t.KeyType) {
		t.By = v1alpha1.ShardByValue
	}
	return t
}

func (b *bench) connect() *pgx.Conn { return postgres.Connect(b, b.uri) }

func (b *bench) exec(sql string, args ...any) {
	b.Helper()
	exec(b, b.conn, sql, args...)
}

func exec(t testing.TB, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func (b *bench) text(sql string) string {
	b.Helper()
	var text *string
	if err := b.conn.QueryRow(b.Context(), sql).Scan(&text); err != nil {
		b.Fatalf("%s: %v", sql, err)
	}
	if text == nil {
		return "NULL"
	}
	return *text
}

func (b *bench) want(sql, want string) {
	b.Helper()
	if got := b.text(sql); got != want {
		b.Errorf("%s: %s, not %s", sql, got, want)
	}
}

func (b *bench) wantAllOnce() {
	b.Helper()
	if bad := b.text("SELECT string_agg(id::text || ' x ' || times, ', ') FROM (SELECT id, times FROM t WHERE times <> 1 ORDER BY id LIMIT 10) x"); bad != "NULL" {
		b.Errorf("rows that were not worked exactly once: %s", bad)
	}
}

func plan(epoch int64, slots int32) Plan { return Plan{Group: group, Epoch: epoch, Slots: slots} }

// enter makes the plan the durable one.
func (b *bench) enter(conn *pgx.Conn, p Plan) {
	b.Helper()
	if problem, err := Enter(b.Context(), conn, p, b.table); problem != nil || err != nil {
		b.Fatalf("enter %v: %+v %v", p, problem, err)
	}
}

// horizon finds the horizon of a table that nobody is writing.
func (b *bench) horizon(conn *pgx.Conn, p Plan) {
	b.Helper()
	if wait, err := NewHorizon(p, b.table).Step(b.Context(), conn); wait != nil || err != nil {
		b.Fatalf("the horizon: %+v %v", wait, err)
	}
}

// open enters a plan, with its horizon, and opens a slot of it.
func (b *bench) open(conn *pgx.Conn, p Plan, slot int32) *Slot {
	b.Helper()
	b.enter(conn, p)
	b.horizon(conn, p)
	s, err := Open(b.Context(), conn, p, b.table, slot)
	if err != nil {
		b.Fatalf("open slot %d of %v: %v", slot, p, err)
	}
	return s
}

// errCrash ends a batch instead of COMMIT.
var errCrash = errors.New("crash")

// batch works one batch of a selection in one transaction. What change, which may be nil, makes of it is worked, and an error of
// its ends it instead of COMMIT.
func (b *bench) batch(conn *pgx.Conn, s *Slot, selection Selection, change func(*Batch, *Move) error) (Batch, error) {
	var found Batch
	var advance *Advance
	err := pgx.BeginFunc(b.Context(), conn, func(tx pgx.Tx) error {
		var trip pgx.Batch
		selection.Queue(&trip, &found)
		if err := tx.SendBatch(b.Context(), &trip).Close(); err != nil {
			return err
		}
		move := found.Move()
		var crash error
		if change != nil {
			crash = change(&found, &move)
		}
		if len(found.Keys) > 0 {
			if _, err := tx.Exec(b.Context(), strings.Replace(statement, "$1", "$1::"+b.table.KeyType+"[]", 1), shard.Array(found.Keys)); err != nil {
				return err
			}
		}
		advance = s.Advance(move)
		trip = pgx.Batch{}
		advance.Queue(&trip)
		if err := tx.SendBatch(b.Context(), &trip).Close(); err != nil {
			return err
		}
		return crash
	})
	if err == nil {
		advance.Committed()
	}
	return found, err
}

// next works the next batch of a slot.
func (b *bench) next(conn *pgx.Conn, s *Slot, limit int) Batch {
	b.Helper()
	found, err := b.batch(conn, s, s.Next(limit), nil)
	if err != nil {
		b.Fatalf("batch of slot %d: %v", s.number, err)
	}
	return found
}

// drain works a slot to its end, and the failures of the group that are tried again as if all were due.
func (b *bench) drain(conn *pgx.Conn, s *Slot, limit int) {
	b.Helper()
	for range 10_000 {
		if !s.AtEnd() {
			b.next(conn, s, limit)
			continue
		}
		b.exec("UPDATE shardedjob.row_failure SET due_at = now()")
		due, err := s.Due(b.Context(), conn, limit)
		if err != nil {
			b.Fatal(err)
		}
		if len(due) == 0 {
			return
		}
		if _, err := b.batch(conn, s, s.Take(keysOf(due)), nil); err != nil {
			b.Fatal(err)
		}
	}
	b.Fatalf("slot %d does not come to its end", s.number)
}

func keysOf(failures []Failure) (keys []shard.Key) {
	for _, f := range failures {
		keys = append(keys, f.Key)
	}
	return keys
}

// complete expects the job to be complete, or not.
func (b *bench) complete(conn *pgx.Conn, p Plan, want bool) {
	b.Helper()
	at, problem, err := Complete(b.Context(), conn, p, b.table)
	if problem != nil || err != nil || (at != nil) != want {
		b.Errorf("complete %v at %v, not %v: %+v %v", p, at, want, problem, err)
	}
}

func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	late := time.After(30 * time.Second)
	for !condition() {
		select {
		case <-poll.C:
		case <-late:
			t.Fatalf("not in time: %s", what)
		}
	}
}
