package cursor

import (
	"testing"
)

func TestAJobFromStartToEnd(t *testing.T) {
	for _, keyType := range []string{"smallint", "integer", "bigint", "numeric(20,0)", "uuid", "text", "varchar(40)", "bytea", "timestamptz", "date"} {
		t.Run(keyType, func(t *testing.T) {
			b := newBench(t, keyType)
			b.exec("INSERT INTO t (id) SELECT " + map[string]string{
				"uuid":        "md5(g::text)::uuid",
				"text":        "chr(50 + g % 70) || g || E' \\'\"{}, NULL\\\\'",
				"varchar(40)": "chr(50 + g % 70) || g",
				"bytea":       "decode(md5(g::text), 'hex')",
				"timestamptz": "'2020-01-01 00:00 UTC'::timestamptz + g * interval '1.000001 day'",
				"date":        "'2020-01-01'::date + g",
			}[keyType] + orElse(keyType) + " FROM generate_series(1, 500) g")
			for i, n := range []int32{3, 5, 2} {
				p := plan(int64(i+1), n)
				for k := range n {
					s := b.open(b.conn, p, k)
					if i < 2 {
						b.next(b.conn, s, 30)
						b.complete(b.conn, p, false)
					} else {
						b.drain(b.conn, s, 70)
					}
				}
			}
			b.complete(b.conn, plan(3, 2), true)
			b.wantAllOnce()
			if totals, err := Count(t.Context(), b.conn, group); err != nil || totals != (Totals{Processed: 500}) {
				t.Errorf("totals %+v %v", totals, err)
			}
		})
	}
}

func orElse(keyType string) string {
	switch keyType {
	case "smallint", "integer", "bigint", "numeric(20,0)":
		return "g - 250"
	}
	return ""
}
