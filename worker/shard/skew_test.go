package shard

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/hack/postgres"
)

func TestSkewIsMeasured(t *testing.T) {
	conn := postgres.Connect(t, postgres.ForTest(t).NewDB(t))
	const value, hash = v1alpha1.ShardByValue, v1alpha1.ShardByHash
	for name, c := range map[string]struct {
		keys    string // of g, 1 to rows
		rows    int
		by      v1alpha1.ShardBy
		n       int32
		where   string
		warning string
	}{
		"in tens":              {"10 * g", 100, value, 4, "", "keys fill 2 of 4 slots; the largest holds 50 % of the sampled rows: set table.shardBy: Hash"},
		"in tens, by hash":     {"10 * g", 100, hash, 4, "", ""},
		"in tens, another n":   {"10 * g", 100, value, 3, "", ""},
		"big, in tens":         {"10 * g", 200_000, value, 4, "", "keys fill 2 of 4 slots; the largest holds 50 %"},
		"in tens, many slots":  {"10 * g", 200_000, value, 1000, "", "keys fill 100 of 1000 slots"},
		"one slot too full":    {"CASE WHEN g % 2 = 0 THEN 7 * g ELSE g END", 7000, value, 7, "", "keys fill 7 of 7 slots; the largest holds 57 %"},
		"one of two too full":  {"CASE WHEN g % 20 = 0 THEN 2 * g - 1 ELSE 2 * g END", 2000, value, 2, "", "keys fill 2 of 2 slots; the largest holds 95 %"},
		"in a row":             {"g", 100, value, 4, "", ""},
		"in a row, many slots": {"g", 200_000, value, 1000, "", ""},
		"hashed, many slots":   {"g", 200_000, hash, 1000, "", ""},
		"few":                  {"10 * g", 6, value, 4, "", ""},
		"fewer than slots":     {"g", 10, value, 1000, "", ""},
		"none":                 {"g", 0, value, 4, "", ""},
		"one slot":             {"10 * g", 100, value, 1, "", ""},
		"in scope":             {"g", 1000, value, 4, "id % 4 = 3 -- so", "keys fill 1 of 4 slots; the largest holds 100 %"},
		"takes too long":       {"10 * g", 100, value, 4, "pg_sleep(0.1) IS NOT NULL", ""},
	} {
		t.Run(name, func(t *testing.T) {
			exec(t, conn, "DROP TABLE IF EXISTS t; CREATE TABLE t (id bigint NOT NULL)")
			exec(t, conn, fmt.Sprintf("INSERT INTO t SELECT %s FROM generate_series(1, %d) g", c.keys, c.rows))
			table := Table{Schema: "public", Name: "t", Key: "id", KeyType: "bigint", By: c.by, Where: c.where}
			if err := conn.QueryRow(t.Context(), "SELECT 't'::regclass::oid").Scan(&table.OID); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			skew, err := MeasureSkew(t.Context(), conn, table, c.n)
			if err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); took > 2*skewTimeout || skew.Rows > 10_000 {
				t.Errorf("took %v for %d rows", took, skew.Rows)
			}
			if got := skew.Warning(); (got == "") != (c.warning == "") || !strings.Contains(got, c.warning) {
				t.Errorf("warning %q of %+v", got, skew)
			}
		})
	}
}

func TestSkewOfPartitions(t *testing.T) {
	conn := postgres.Connect(t, postgres.ForTest(t).NewDB(t))
	exec(t, conn, `CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id);
		CREATE TABLE a PARTITION OF t FOR VALUES FROM (0) TO (100000); CREATE TABLE b PARTITION OF t FOR VALUES FROM (100000) TO (1000000);
		INSERT INTO t SELECT 6 * g FROM generate_series(0, 100000) g; ANALYZE t`)
	table := Table{Schema: "public", Name: "t", Key: "id", KeyType: "integer"}
	if err := conn.QueryRow(t.Context(), "SELECT 't'::regclass::oid").Scan(&table.OID); err != nil {
		t.Fatal(err)
	}
	skew, err := MeasureSkew(t.Context(), conn, table, 9)
	if err != nil || skew.Filled != 3 || skew.Rows < 1000 || skew.Rows > 10_000 {
		t.Errorf("%+v, %v", skew, err)
	}
}

// TestChanceIsNoSkew throws rows into slots as a fair hash does.
func TestChanceIsNoSkew(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int32Range(1, v1alpha1.MaxSlots).Draw(t, "n")
		rows := rapid.IntRange(0, 5000).Draw(t, "rows")
		state := rapid.Uint64().Draw(t, "seed")
		counts := make([]int64, n)
		for range rows {
			state = state*6364136223846793005 + 1442695040888963407
			counts[(state>>33)%uint64(n)]++
		}
		s := Skew{By: v1alpha1.ShardByHash, Slots: n, Rows: int64(rows)}
		for _, c := range counts {
			s.Largest = max(s.Largest, c)
			if c > 0 {
				s.Filled++
			}
		}
		if w := s.Warning(); w != "" {
			t.Fatalf("%+v: %s", s, w)
		}
	})
}
