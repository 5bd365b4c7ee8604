package shard

import (
	"testing"

	"shardedjob.dev/hack/postgres"
)

func TestTheStatementMaySort(t *testing.T) {
	conn := postgres.Connect(t, postgres.ForTest(t).NewDB(t))
	exec(t, conn, "CREATE TABLE t (id int PRIMARY KEY)")
	r := NewReader(Table{Schema: "public", Name: "t", Key: "id", KeyType: "integer", Pending: "current_setting('enable_sort') = 'off'"}, 1, 0)
	exec(t, conn, "INSERT INTO t VALUES (1), (2)")
	for _, setting := range []string{"on", "off"} {
		exec(t, conn, "SET enable_sort = "+setting+"; BEGIN")
		if keys := keysOf(t, conn, r.NextBatch(9, Range{After: ptr("1")}, nil)); len(keys) != 1 {
			t.Errorf("the selection may sort: %v", keys)
		}
		var after string
		if err := conn.QueryRow(t.Context(), "SHOW enable_sort").Scan(&after); err != nil || after != setting {
			t.Errorf("%s has become %s, %v", setting, after, err)
		}
		exec(t, conn, "ROLLBACK")
	}
}
