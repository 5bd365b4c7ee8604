package shard

import (
	"encoding/hex"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/hack/postgres"
)

// hostile settings change how values are written and how ambiguous texts are read.
const hostile = `SET DateStyle = 'SQL, DMY'; SET TimeZone = 'Asia/Kolkata'; SET bytea_output = 'escape'; SET extra_float_digits = -15;
	SET IntervalStyle = 'sql_standard'; SET standard_conforming_strings = off; SET lc_monetary = 'C'`

// inputs draws a key of each type as people may write it, and names some that break things.
var inputs = map[string]struct {
	column string
	draw   *rapid.Generator[string]
	edges  []string
}{
	"smallint":    {"smallint", decimal(rapid.Int16()), []string{"-32768", "32767", "0"}},
	"integer":     {"integer", decimal(rapid.Int32()), []string{"-2147483648", "2147483647", "-1"}},
	"bigint":      {"bigint", decimal(rapid.Int64()), []string{"-9223372036854775808", "9223372036854775807", "-7"}},
	"numeric":     {"numeric(60,0)", rapid.StringMatching(`-?[0-9]{1,60}`), []string{"0", "-1", "1000000000000000000000000000000000000000", "NaN"}},
	"uuid":        {"uuid", rapid.StringMatching(`[0-9a-f]{32}`), []string{strings.Repeat("0", 32), strings.Repeat("F", 32)}},
	"text":        {"text", letters, []string{"", "NULL", `\`, `"`, "'", "{}", " ", "a ", "A", "é", "e\u0301", "\n", "%s", "$1"}},
	"varchar":     {`varchar COLLATE "en-x-icu"`, letters, []string{"", "a", "A", "_x", "-y", "é"}},
	"bpchar":      {"char(12)", rapid.StringMatching(`[a-c '"\\\\]{0,12}`), []string{"", "  a", "a", "NULL"}},
	"bytea":       {"bytea", rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return `\x` + hex.EncodeToString(b) }), []string{`\x`, `\x00`, `\x5c`, `\xff22`}},
	"date":        {"date", rapid.Map(rapid.IntRange(-2_400_000, 2_000_000), func(days int) string { return stamp(int64(days)*86400, "2006-01-02") }), []string{"infinity", "-infinity", "4714-11-24 BC", "5874897-12-31", "0001-01-01", "0012-11-10"}},
	"timestamp":   {"timestamp", instants, []string{"infinity", "-infinity", "4714-11-24 BC", "294276-12-31 23:59:59.999999", "2024-02-29 00:00:00.000001"}},
	"timestamptz": {"timestamptz", instants, []string{"infinity", "-infinity", "4714-11-24 00:00 BC UTC", "294276-12-31 23:59:59.999999 UTC", "1900-01-01 00:00:00.5+05:53:28"}},
}

var (
	letters  = rapid.Map(rapid.String(), func(s string) string { return strings.ReplaceAll(s, "\x00", "0") }) // NUL is no character of a text
	instants = rapid.Map(rapid.Int64Range(-60_000_000_000, 250_000_000_000), func(s int64) string { return stamp(s, "2006-01-02 15:04:05.000000Z07:00") })
)

func decimal[T int16 | int32 | int64](g *rapid.Generator[T]) *rapid.Generator[string] {
	return rapid.Map(g, func(i T) string { return fmt.Sprint(i) })
}

func stamp(seconds int64, layout string) string {
	at := time.Unix(seconds, (seconds%1000000)*1000).UTC()
	if year := at.Year(); year < 1 {
		return at.AddDate(1-2*year, 0, 0).Format(layout) + " BC"
	}
	return at.Format(layout)
}

// keysTable makes a table that has a key only.
func keysTable(t testing.TB, conn *pgx.Conn, keyType, column string, by v1alpha1.ShardBy) Table {
	t.Helper()
	table := Table{Schema: "public", Name: "t_" + keyType, Key: "order", KeyType: keyType, Pending: "true", By: by}
	exec(t, conn, fmt.Sprintf("CREATE TABLE %s (%s %s PRIMARY KEY)", table.Quoted(), table.QuotedKey(), column))
	return table
}

// TestEveryKeyHasOneSlotAndOneText draws keys of every type and numbers of slots.
func TestEveryKeyHasOneSlotAndOneText(t *testing.T) {
	uri := postgres.ForTest(t).NewDB(t)
	friendly, conn := postgres.Connect(t, uri), postgres.Connect(t, uri)
	exec(t, conn, hostile)
	var tables []Table
	for _, keyType := range slices.Sorted(maps.Keys(inputs)) {
		tables = append(tables, keysTable(t, conn, keyType, inputs[keyType].column, v1alpha1.ShardByHash))
		if keyTypes[keyType].Integer {
			byValue := tables[len(tables)-1]
			byValue.By = v1alpha1.ShardByValue
			tables = append(tables, byValue)
		}
	}
	check := func(table Table, n int32, keys []string) {
		t.Helper()
		exec(t, conn, "DELETE FROM "+table.Quoted())
		exec(t, friendly, fmt.Sprintf("INSERT INTO %s SELECT key::%s FROM unnest($1::text[]) AS key ON CONFLICT DO NOTHING", table.Quoted(), table.KeyType), keys)
		checkSlots(t, conn, table, n)
		checkTexts(t, friendly, conn, table)
		if t.Failed() {
			t.Fatalf("%s by %s, %d slots, keys %q", table.KeyType, table.By, n, keys)
		}
	}
	for _, table := range tables {
		for _, n := range []int32{1, 3, v1alpha1.MaxSlots} {
			check(table, n, inputs[table.KeyType].edges)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		table := rapid.SampledFrom(tables).Draw(t, "table")
		n := rapid.OneOf(rapid.Int32Range(1, 8), rapid.Int32Range(1, v1alpha1.MaxSlots)).Draw(t, "n")
		check(table, n, rapid.SliceOfN(inputs[table.KeyType].draw, 1, 40).Draw(t, "keys"))
	})
}

// checkSlots asks each slot, by its predicate, for the rows that SlotOf says are its own, and for no others.
func checkSlots(t testing.TB, conn *pgx.Conn, table Table, n int32) {
	t.Helper()
	slots := map[int32]bool{0: true, n / 2: true, n - 1: true}
	for k := range min(n, 16) {
		slots[k] = true
	}
	var wrong []string
	for k := range slots {
		wrong = append(wrong, fmt.Sprintf("(%s) <> (slot = %d)", table.Predicate(n, k), k))
	}
	sql := fmt.Sprintf("SELECT count(*) FROM (SELECT *, %s AS slot FROM %s) x WHERE slot IS NULL OR slot NOT BETWEEN 0 AND %d OR %s",
		table.SlotOf(table.QuotedKey(), "$1::int"), table.Quoted(), n-1, strings.Join(wrong, " OR "))
	var rows int
	if err := conn.QueryRow(t.Context(), sql, pgx.QueryExecModeExec, n).Scan(&rows); err != nil || rows > 0 {
		t.Errorf("%d rows are in no slot of %d or in another than SlotOf says, %v", rows, n, err)
	}
}

// checkTexts reads the keys' texts under other settings than those under which they are given back.
func checkTexts(t *testing.T, reading, using *pgx.Conn, table Table) {
	t.Helper()
	r := NewReader(table, 1, 0)
	read := func(conn *pgx.Conn) []Key {
		keys, err := collect(conn.Query(t.Context(), fmt.Sprintf("SELECT %s FROM %s ORDER BY %s", r.text, table.Quoted(), r.order)))
		if err != nil {
			t.Fatal(err)
		}
		return keys
	}
	keys := read(reading)
	if other := read(using); !slices.Equal(keys, other) {
		t.Errorf("the texts depend on settings: %q and %q", keys, other)
	}
	if found, err := r.StillPending(t.Context(), using, keys); err != nil || !slices.Equal(found, keys) {
		t.Errorf("of %q are found again %q, %v", keys, found, err)
	}
	var swept []Key
	for in := (Range{}); ; {
		window, err := r.Window(t.Context(), using, in.After, 12)
		if err != nil {
			t.Fatal(err)
		}
		if window.UpTo == nil {
			swept = append(swept, selected(t, using, r.NextBatch(12, window, nil))...)
			break
		}
		swept = append(swept, selected(t, using, r.NextBatch(12, window, nil))...)
		in.After = window.UpTo
	}
	if !slices.Equal(swept, keys) {
		t.Errorf("of %q are swept %q", keys, swept)
	}
	left := selected(t, using, r.NextBatch(len(keys), Range{}, keys[1:]))
	if !slices.Equal(left, keys[:1]) {
		t.Errorf("all but the first are left out: %q", left)
	}
}

func TestHashesArePinned(t *testing.T) {
	conn := postgres.Connect(t, postgres.ForTest(t).NewDB(t))
	exec(t, conn, hostile)
	for keyType := range keyTypes {
		table := Table{KeyType: keyType, By: v1alpha1.ShardByHash}
		if len(golden[keyType]) < 3 {
			t.Errorf("%s has few golden values", keyType)
		}
		if same, err := HashesAsPinned(t.Context(), conn, table); err != nil || !same {
			t.Errorf("%s: %v, %v", keyType, same, err)
		}
	}
	for _, keyType := range []string{"smallint", "integer"} {
		for key, hash := range golden[keyType] {
			var wide int64
			if err := conn.QueryRow(t.Context(), "SELECT "+fmt.Sprintf(keyTypes["bigint"].hash, "$1::text::bigint"), string(key)).Scan(&wide); err != nil || wide != hash {
				t.Errorf("%s as %s has hash %d, as bigint %d, %v", key, keyType, hash, wide, err)
			}
		}
	}
}

// TestAnotherHashIsNoticed stands for a server that hashes otherwise.
func TestAnotherHashIsNoticed(t *testing.T) {
	conn := postgres.Connect(t, postgres.ForTest(t).NewDB(t))
	exec(t, conn, `CREATE SCHEMA other; CREATE FUNCTION other.uuid_hash_extended(uuid, bigint) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint';
		SET search_path = other, pg_catalog`)
	if same, err := HashesAsPinned(t.Context(), conn, Table{KeyType: "uuid", By: v1alpha1.ShardByHash}); err != nil || same {
		t.Errorf("%v, %v", same, err)
	}
}

// TestSlotsOfTheHashAreEven fills each of 7 slots with about a seventh of keys with a common step.
func TestSlotsOfTheHashAreEven(t *testing.T) {
	conn := postgres.Connect(t, postgres.ForTest(t).NewDB(t))
	table := keysTable(t, conn, "bigint", "bigint", v1alpha1.ShardByHash)
	exec(t, conn, fmt.Sprintf("INSERT INTO %s SELECT 70 * g FROM generate_series(1, 7000) g", table.Quoted()))
	rows, err := conn.Query(t.Context(), fmt.Sprintf("SELECT count(*) FROM %s GROUP BY %s", table.Quoted(), table.SlotOf(table.QuotedKey(), "7")))
	if err != nil {
		t.Fatal(err)
	}
	counts, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil || len(counts) != 7 {
		t.Fatalf("%v, %v", counts, err)
	}
	for _, n := range counts {
		if math.Abs(float64(n-1000)) > 150 {
			t.Errorf("uneven: %v", counts)
		}
	}
}
