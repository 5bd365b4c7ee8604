package shard

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"shardedjob.dev/hack/postgres"
)

func TestMain(m *testing.M) { postgres.Main(m) }

func exec(t testing.TB, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// owner is the slot of a key among n: the remainder, made positive.
func owner(key int64, n int32) int32 {
	return int32((key%int64(n) + int64(n)) % int64(n))
}

// edges are the keys around which things break, for a type with so many bits.
func edges(bits int) []int64 {
	least, greatest := int64(math.MinInt64)>>(64-bits), int64(math.MaxInt64)>>(64-bits)
	var keys []int64
	for d := range int64(4) {
		keys = append(keys, least+d, greatest-d)
	}
	for key := int64(-1100); key <= 1100; key++ {
		keys = append(keys, key)
	}
	return keys
}

func TestC01C02D11ServerAgreesOnEveryKey(t *testing.T) {
	conn := postgres.Connect(t, postgres.ForTest(t).NewDB(t))
	for keyType, bits := range map[string]int{"smallint": 16, "integer": 32, "bigint": 64} {
		t.Run(keyType, func(t *testing.T) {
			table := Table{Schema: "public", Name: "t_" + keyType, Key: "key", KeyType: keyType, Pending: "true"}
			exec(t, conn, fmt.Sprintf("CREATE TABLE %s (key %s PRIMARY KEY)", table.Quoted(), keyType))
			exec(t, conn, fmt.Sprintf("INSERT INTO %s SELECT unnest($1::bigint[])", table.Quoted()), edges(bits))
			for _, n := range []int32{1, 2, 3, 7, 64, 999, 1000} {
				var slots []string
				for k := range n {
					slots = append(slots, fmt.Sprintf("SELECT %s::bigint, %d FROM %s WHERE %s", table.QuotedKey(), k, table.Quoted(), table.Predicate(n, k)))
				}
				if n > 64 { // planning 1000 branches is slow; the first, the last and one between will do
					slots = []string{slots[0], slots[n/2], slots[n-1]}
				}
				rows, err := conn.Query(t.Context(), strings.Join(slots, " UNION ALL "))
				if err != nil {
					t.Fatal(err)
				}
				owned := map[int64]int{}
				var key int64
				var k int32
				if _, err := pgx.ForEachRow(rows, []any{&key, &k}, func() error {
					owned[key]++
					if owner(key, n) != k {
						t.Errorf("key %d of %d slots is in %d, not %d", key, n, k, owner(key, n))
					}
					return nil
				}); err != nil {
					t.Fatal(err)
				}
				for _, key := range edges(bits) {
					if o := owner(key, n); n > 64 && o != 0 && o != n/2 && o != n-1 {
						continue
					}
					if owned[key] != 1 {
						t.Errorf("key %d of %d slots is in %d of them", key, n, owned[key])
					}
				}
			}
		})
	}
}

func ptr(key Key) *Key { return &key }

// selected are the keys that a selection finds; their locks are let go of.
func selected(t *testing.T, conn *pgx.Conn, s Selection) []Key {
	t.Helper()
	exec(t, conn, "BEGIN")
	defer exec(t, conn, "ROLLBACK")
	return keysOf(t, conn, s)
}

func keysOf(t *testing.T, conn *pgx.Conn, s Selection) []Key {
	t.Helper()
	var b pgx.Batch
	var keys []Key
	s.Queue(&b, &keys)
	if err := conn.SendBatch(t.Context(), &b).Close(); err != nil {
		t.Fatal(err)
	}
	return keys
}

// sweepUp reads a slot to its end.
func sweepUp(t *testing.T, conn *pgx.Conn, r *Reader, limit int) []Key {
	t.Helper()
	var all []Key
	var after *Key
	for {
		keys := selected(t, conn, r.NextBatch(limit, Range{After: after}, nil))
		if len(keys) == 0 {
			return all
		}
		all = append(all, keys...)
		after = ptr(keys[len(keys)-1])
	}
}

func TestD01D09D11SweepsMissNothing(t *testing.T) {
	conn := postgres.Connect(t, postgres.ForTest(t).NewDB(t))
	for name, keys := range map[string][]int64{
		"gap":           {1, 100000},
		"islands":       {1, 2, 3, 4, 5, 5000001, 5000002, 5000003},
		"negative":      {-5, -1, 0, 1, 2},
		"only zero":     {0},
		"only negative": {-3, -2, -1},
		"edges":         {math.MinInt64, math.MinInt64 + 1, math.MaxInt64 - 1, math.MaxInt64},
	} {
		t.Run(name, func(t *testing.T) {
			exec(t, conn, "DROP TABLE IF EXISTS t; CREATE TABLE t (id bigint PRIMARY KEY, done boolean NOT NULL DEFAULT false)")
			exec(t, conn, "INSERT INTO t SELECT unnest($1::bigint[])", keys)
			table := Table{Schema: "public", Name: "t", Key: "id", KeyType: "bigint", Pending: "NOT done -- comment"}
			for _, n := range []int32{1, 2, 3} {
				for _, limit := range []int{1, 2, 1000} {
					found := map[Key]bool{}
					for k := range n {
						for _, key := range sweepUp(t, conn, NewReader(table, n, k), limit) {
							found[key] = true
						}
					}
					if len(found) != len(keys) {
						t.Errorf("n %d limit %d: found %v of %v", n, limit, found, keys)
					}
				}
			}
		})
	}
}

func TestReaderLeavesOutLockedAndExcluded(t *testing.T) {
	uri := postgres.ForTest(t).NewDB(t)
	conn, other := postgres.Connect(t, uri), postgres.Connect(t, uri)
	exec(t, conn, "CREATE TABLE t (id int PRIMARY KEY, done boolean NOT NULL DEFAULT false); INSERT INTO t SELECT generate_series(1, 10)")
	r := NewReader(Table{Schema: "public", Name: "t", Key: "id", KeyType: "integer", Where: "id <> 9 -- not nine", Pending: "NOT done /* so */"}, 2, 1)
	tx, err := other.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), "UPDATE t SET done = true WHERE id = 3"); err != nil {
		t.Fatal(err)
	}
	if keys := selected(t, conn, r.NextBatch(10, Range{After: ptr("1"), UpTo: ptr("8")}, []Key{"1", "5"})); fmt.Sprint(keys) != "[7]" {
		t.Errorf("got %v", keys)
	}
	if taken := selected(t, conn, r.Take([]Key{"1", "2", "3", "9"})); fmt.Sprint(taken) != "[1]" {
		t.Errorf("took %v", taken)
	}
	if left, err := r.StillPending(t.Context(), conn, []Key{"1", "2", "3", "9"}); err != nil || fmt.Sprint(left) != "[1 3]" {
		t.Errorf("left %v, %v", left, err)
	}
	if pending, err := r.Pending(t.Context(), conn, Range{}, []Key{"1", "5", "7"}); err != nil || !pending {
		t.Errorf("the locked row is pending: %v, %v", pending, err)
	}
	if pending, err := r.Pending(t.Context(), conn, Range{}, []Key{"1", "3", "5", "7"}); err != nil || pending {
		t.Errorf("all are excluded: %v, %v", pending, err)
	}
	window, err := r.Window(t.Context(), conn, ptr("2"), 4)
	if err != nil || *window.After != "2" || *window.UpTo != "6" {
		t.Errorf("window %v, %v", window, err)
	}
	if window, err = r.Window(t.Context(), conn, ptr("8"), 4); err != nil || window.UpTo != nil {
		t.Errorf("window at the end %v, %v", window, err)
	}
}

func TestCounts(t *testing.T) {
	conn := postgres.Connect(t, postgres.ForTest(t).NewDB(t))
	exec(t, conn, "CREATE TABLE t (id int PRIMARY KEY, done boolean NOT NULL DEFAULT false); INSERT INTO t SELECT g, g > 30 FROM generate_series(1, 100) g; ANALYZE t")
	table := Table{Schema: "public", Name: "t", Key: "id", KeyType: "integer", Where: "id <= 90", Pending: "NOT done"}
	if err := conn.QueryRow(t.Context(), "SELECT 't'::regclass::oid").Scan(&table.OID); err != nil {
		t.Fatal(err)
	}
	minute := time.Minute
	if c, err := CountPending(t.Context(), conn, table, minute); err != nil || c != (Count{Rows: 30}) {
		t.Errorf("pending %v, %v", c, err)
	}
	if any, err := AnyPending(t.Context(), conn, table); err != nil || !any {
		t.Errorf("any %v, %v", any, err)
	}
	table.Pending = "pg_sleep(0.05) IS NULL OR NOT done"
	if c, err := CountPending(t.Context(), conn, table, 1); err != nil || !c.Estimate || c.Rows < 1 {
		t.Errorf("estimate %v, %v", c, err)
	}
	table.Pending = "id < 0"
	if any, err := AnyPending(t.Context(), conn, table); err != nil || any {
		t.Errorf("none %v, %v", any, err)
	}
}
