package shard

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"shardedjob.dev/hack/postgres"
)

func TestArrayIsWhatTheServerReads(t *testing.T) {
	conn := postgres.Connect(t, postgres.ForTest(t).NewDB(t))
	check := func(fail func(string, ...any), keys []Key) {
		var got []string
		if err := conn.QueryRow(t.Context(), "SELECT $1::text[]", Array(keys)).Scan(&got); err != nil {
			fail("%s: %v", Array(keys), err)
		}
		if !slices.EqualFunc(got, keys, func(a string, b Key) bool { return a == string(b) }) {
			fail("%q has become %q", keys, got)
		}
	}
	check(t.Fatalf, nil)
	check(t.Fatalf, []Key{"", "NULL", "null", `"`, `\`, `\x00`, "{", "}", ",", " a ", "\n", "-7", "é", `a"b\c`, "--", "1-2", "0"})
	rapid.Check(t, func(t *rapid.T) {
		// NUL is no character of a text.
		keys := rapid.SliceOfN(rapid.String().Filter(func(s string) bool { return !strings.Contains(s, "\x00") }), 0, 5).Draw(t, "keys")
		var all []Key
		for _, key := range keys {
			all = append(all, Key(key))
		}
		check(t.Fatalf, all)
	})
	if literal := Array([]Key{"1", "-2", "a"}); literal != `{1,-2,"a"}` {
		t.Errorf("numbers are not quoted: %s", literal)
	}
}

func TestSlotOfAgreesWithPredicate(t *testing.T) {
	conn := postgres.Connect(t, postgres.ForTest(t).NewDB(t))
	table := Table{Schema: "public", Name: "t", Key: "key", KeyType: "bigint"}
	exec(t, conn, "CREATE TABLE t (key bigint PRIMARY KEY)")
	exec(t, conn, "INSERT INTO t SELECT unnest($1::bigint[])", edges(64))
	for _, n := range []int32{1, 2, 3, 7, 64, 1000} {
		for _, k := range []int32{0, n / 2, n - 1} {
			var wrong int
			sql := fmt.Sprintf("SELECT count(*) FROM t WHERE (%s) <> (%s = %d)", table.Predicate(n, k), table.SlotOf("key", "$1::int"), k)
			if err := conn.QueryRow(t.Context(), sql, n).Scan(&wrong); err != nil || wrong > 0 {
				t.Errorf("slot %d of %d: %d keys are elsewhere, %v", k, n, wrong, err)
			}
		}
	}
}
