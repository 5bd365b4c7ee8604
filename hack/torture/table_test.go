package main

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/jackc/pgx/v5"

	"shardedjob.dev/hack/postgres"
	"shardedjob.dev/worker/preflight"
)

// Every kind of table can be made, suits a job, and has room for late rows.
func TestTables(t *testing.T) {
	conn := postgres.Connect(t, postgres.StartForTest(t, postgres.Options{Settings: settings}).URI("postgres"))
	for i, key := range keyTypes {
		for _, parted := range []bool{false, true} {
			table := table{schema: fmt.Sprintf("s%d%v", i, parted), rows: leastRows, key: key, extremes: true, parted: parted}
			if err := table.create(t.Context(), conn, 1); err != nil {
				t.Errorf("%s: %v", table, err)
				continue
			}
			checkTable(t, conn, table)
		}
	}
}

func checkTable(t *testing.T, conn *pgx.Conn, table table) {
	t.Helper()
	checked, problem, err := preflight.Check(t.Context(), conn, table.spec("NOT done"), ways[0].statement(rand.New(rand.NewPCG(1, 1))))
	if err != nil || problem != nil {
		t.Errorf("%s is refused: %v %v", table, problem, err)
		return
	}
	if checked.KeyType != table.key.known || checked.By != table.key.by {
		t.Errorf("%s is of type %s, by %s", table, checked.KeyType, checked.By)
	}
	for q := int64(1); q <= 10; q++ {
		number, _ := table.lateKey(q)
		if _, err := conn.Exec(t.Context(), insert, number); err != nil {
			t.Errorf("%s: late row %d: %v", table, number, err)
		}
	}
	var rows int
	if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM t WHERE NOT late").Scan(&rows); err != nil || rows != table.total() {
		t.Errorf("%s has %d rows, %v, want %d", table, rows, err, table.total())
	}
}
