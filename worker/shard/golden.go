package shard

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// Golden values of the hash of keys. Slots would change their rows if a server hashed otherwise, one of another byte order
// for example, so each is checked against them before it is trusted.
var golden = map[string]map[Key]int64{
	"bigint": {
		"0": 4154612158245552303, "1": -3670598878359251130, "-1": -1888257769727981238, "32767": 1790040721271588170, "-32768": 8455483389771436374,
		"2147483647": -9109110466470504941, "9223372036854775807": 1977219185673256887, "-9223372036854775808": -9109110466470504941,
	},
	"smallint": {"0": 4154612158245552303, "1": -3670598878359251130, "-1": -1888257769727981238, "32767": 1790040721271588170, "-32768": 8455483389771436374},
	"integer":  {"0": 4154612158245552303, "1": -3670598878359251130, "-1": -1888257769727981238, "2147483647": -9109110466470504941, "-2147483648": 1977219185673256887},
	"numeric":  {"0": -1, "1": -7507508252608306360, "100": 2026427994494054899, "99999999999999999999999999999999999999": -1925741174996242661},
	"uuid": {
		"00000000-0000-0000-0000-000000000000": -6859010066814654381, "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11": 7543054272012930821,
		"ffffffff-ffff-ffff-ffff-ffffffffffff": 293445543803463785,
	},
	"text":    goldenText,
	"varchar": goldenText,
	"bpchar":  goldenText,
	"bytea":   {`\x`: 3297386160333072935, `\x00ff`: 5916785742948554862, `\x0123456789abcdef0123`: -8055831088939315470},
	"date": {
		"2000-01-01": -2030839749300222620, "1969-12-31": 3889450393437050052, "4713-01-01 BC": 9174578920432255297, "infinity": -6636799094885287731,
	},
	"timestamp":   goldenTime(""),
	"timestamptz": goldenTime(" UTC"),
}

// ASCII only: it is the same in all encodings of a server.
var goldenText = map[Key]int64{
	"": -6939563903564495251, "a": 3591986179850072241, "A": -6263114432574939154, "a text of more than twelve bytes": 2533051960042466613,
}

func goldenTime(zone Key) map[Key]int64 {
	return map[Key]int64{
		"2000-01-01T00:00:00" + zone: 4154612158245552303, "1969-12-31T23:59:59.999999" + zone: 6801555395704667277,
		"4713-01-01T00:00:00 BC" + zone: -6219762611620019816, "infinity": 1977219185673256887, "-infinity": -9109110466470504941,
	}
}

// HashesAsPinned says whether the server hashes keys of the table's type as others do.
func HashesAsPinned(ctx context.Context, q Querier, t Table) (bool, error) {
	var values []string
	for key, hash := range golden[t.KeyType] {
		values = append(values, fmt.Sprintf("(E'%s', %d::bigint)", strings.ReplaceAll(string(key), `\`, `\\`), hash))
	}
	slices.Sort(values) // one text, so that it is prepared once
	sql := fmt.Sprintf("SELECT coalesce(bool_and(%s = hash), false) FROM (VALUES %s) AS golden (key, hash)",
		fmt.Sprintf(t.keyType().hash, t.KeyValue("key")), strings.Join(values, ", "))
	var same bool
	if err := q.QueryRow(ctx, sql).Scan(&same); err != nil {
		return false, fmt.Errorf("check how the server hashes keys: %w", err)
	}
	return same, nil
}
