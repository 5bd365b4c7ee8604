package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/jackc/pgx/v5"
)

const (
	leastRows = 1000
	buckets   = 4
)

// keyType is a type of key, with its least and greatest values.
type keyType struct {
	name     string
	extremes []string
}

var keyTypes = []keyType{
	{"bigint", []string{"-9223372036854775808", "-9223372036854775807", "9223372036854775806", "9223372036854775807"}},
	{"integer", []string{"-2147483648", "-2147483647", "2147483646", "2147483647"}},
}

// table is what one job works on, in a schema of its own.
//
// The keys that are there from the start are of the form 4i or 4i+1, around zero and, the upper half of them, from far on. Those that are
// inserted later are 4i+2, in the gaps, or beyond all others. None comes twice, so that a key stands for one row.
type table struct {
	schema   string
	rows     int // at the start
	key      keyType
	extremes bool // the type's least and greatest keys are there too
}

// far is where the upper half of the keys begins, and beyond where keys are inserted above all others; both fit integer.
const (
	far    = 1_000_000_000
	beyond = 2_000_000_000
)

// newTable draws a table of the way's next job.
func newTable(schema string, most int, random *rand.Rand) table {
	return table{
		schema: schema, rows: max(leastRows, most/8+random.IntN(most-most/8)),
		key: keyTypes[random.IntN(len(keyTypes))], extremes: random.IntN(2) == 0,
	}
}

// The columns of t: n is how often the row was processed; done is what pending asks for; app says that the application has done the row's
// work before a worker came to it; late, that the row was not there at the start.
//
// The trigger notes for each statement that processed rows which of them, by which session, and which slot and plan that session
// held locks for. arrival and departure note rows that the application inserts and deletes, in the same transaction; the
// commit time of an arrival is that of its row, however late.
const ddl = `
CREATE SCHEMA %[1]s;
SET search_path = %[1]s;
CREATE TABLE t (id %[2]s PRIMARY KEY, n int NOT NULL DEFAULT 0, done boolean NOT NULL DEFAULT false, app boolean NOT NULL DEFAULT false,
	late boolean NOT NULL DEFAULT true, note text);
CREATE TABLE batch (id bigint GENERATED ALWAYS AS IDENTITY, pid int DEFAULT pg_backend_pid(), slot int, slots int, epoch int, rows int);
CREATE TABLE ledger (id %[2]s NOT NULL, batch bigint NOT NULL);
CREATE TABLE arrival (id %[2]s PRIMARY KEY);
CREATE TABLE departure (id %[2]s PRIMARY KEY, late boolean, app boolean, n int);
CREATE TABLE side (bucket int PRIMARY KEY, hits bigint NOT NULL DEFAULT 0);
CREATE SEQUENCE late_keys;
INSERT INTO side SELECT g FROM generate_series(0, %[4]d - 1) g;
INSERT INTO t (id, late) SELECT CASE WHEN i < 0 THEN 0 ELSE %[5]d END + 4 * i + (i %% 3 = 0)::int, false
	FROM generate_series(-%[3]d / 2, %[3]d - %[3]d / 2 - 1) i;
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql SET search_path = %[1]s AS $$
DECLARE the bigint;
BEGIN
	IF NOT EXISTS (SELECT FROM after a JOIN before b USING (id) WHERE a.n <> b.n) THEN
		RETURN NULL;
	END IF;
	INSERT INTO batch (slot, slots, epoch, rows)
	SELECT max(value) FILTER (WHERE kind = 1), max(value & 1023) FILTER (WHERE kind = 2), max(value >> 10) FILTER (WHERE kind = 2),
		(SELECT count(*) FROM after a JOIN before b USING (id) WHERE a.n <> b.n)
	  FROM (SELECT objid::bigint >> 29 AS kind, objid::bigint & (1 << 29) - 1 AS value FROM pg_locks
	         WHERE locktype = 'advisory' AND objsubid = 2 AND pid = pg_backend_pid() AND classid::bigint = TG_ARGV[0]::bigint) l
	RETURNING id INTO the;
	INSERT INTO ledger SELECT id, the FROM after a JOIN before b USING (id) WHERE a.n <> b.n;
	RETURN NULL;
END $$;
CREATE TRIGGER note AFTER UPDATE ON t REFERENCING OLD TABLE AS before NEW TABLE AS after
	FOR EACH STATEMENT EXECUTE FUNCTION note(%[6]d);`

// create makes the table; class is the first half of the lock keys of the group that will work it.
func (t table) create(ctx context.Context, conn *pgx.Conn, class int32) error {
	sql := fmt.Sprintf(ddl, t.schema, t.key.name, t.rows, buckets, far, uint32(class))
	if t.extremes {
		sql += fmt.Sprintf("INSERT INTO t (id, late) SELECT unnest('{%s}'::%s[]), false;", strings.Join(t.key.extremes, ","), t.key.name)
	}
	if _, err := conn.Exec(ctx, sql+"ANALYZE t"); err != nil {
		return fmt.Errorf("make table %s: %w", t.schema, err)
	}
	return nil
}

// total is how many rows are there at the start.
func (t table) total() int {
	if t.extremes {
		return t.rows + len(t.key.extremes)
	}
	return t.rows
}
