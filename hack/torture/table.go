package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/jackc/pgx/v5"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/worker/shard"
)

const (
	leastRows = 1000
	buckets   = 4
)

// keyType is a type of key.
type keyType struct {
	declared string
	// known is how package shard calls it.
	known string
	// make is SQL that makes a key of the bigint $1, another one of each.
	make string
	// extremes are the least and greatest values.
	extremes []string
	by       v1alpha1.ShardBy
}

var keyTypes = []keyType{
	{"bigint", "bigint", "$1", []string{"-9223372036854775808", "-9223372036854775807", "9223372036854775806", "9223372036854775807"}, v1alpha1.ShardByValue},
	{"bigint", "bigint", "$1", []string{"-9223372036854775808", "9223372036854775807"}, v1alpha1.ShardByHash},
	{"integer", "integer", "$1::integer", []string{"-2147483648", "-2147483647", "2147483646", "2147483647"}, v1alpha1.ShardByValue},
	{"numeric(30,0)", "numeric", "$1 * 1e15::numeric(30,0)", []string{"-999999999999999999999999999999", "999999999999999999999999999999"}, v1alpha1.ShardByHash},
	{"uuid", "uuid", "md5($1::text)::uuid", []string{"00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"}, v1alpha1.ShardByHash},
	{`text COLLATE "C"`, "text", "'row ' || $1", []string{"", "􏿿"}, v1alpha1.ShardByHash},
	{"timestamptz", "timestamptz", "'epoch'::timestamptz + make_interval(secs => $1)", []string{"-infinity", "infinity"}, v1alpha1.ShardByHash},
}

// table is what one job works on, in a schema of its own.
//
// A key is made of a number. The numbers that are there from the start are of the form 4i or 4i+1, around zero and, the upper half of
// them, from far on. Those that are inserted later are 4i+2, in the gaps, or beyond all others. None comes twice, so that a key stands
// for one row.
type table struct {
	schema   string
	rows     int // at the start
	key      keyType
	extremes bool // the type's least and greatest keys are there too
	parted   bool // it is partitioned
}

// far is where the upper half of the numbers begins, and beyond where rows are inserted above all others; both fit integer.
const (
	far    = 1_000_000_000
	beyond = 2_000_000_000
)

// newTable draws a table of the way's next job.
func newTable(schema string, most int, random *rand.Rand) table {
	return table{
		schema: schema, rows: max(leastRows, most/8+random.IntN(most-most/8)),
		key: keyTypes[random.IntN(len(keyTypes))], extremes: random.IntN(2) == 0, parted: random.IntN(4) == 0,
	}
}

// The columns of t: n is how often the row was processed; done is what pending asks for; app says that the application has done the row's
// work before a worker came to it; late, that the row was not there at the start; outside, that it is not in the job's scope.
//
// The trigger notes for each statement that processed rows which of them, by which session, and which slot and plan that session
// held locks for. arrival and departure note rows that the application inserts and deletes, in the same transaction; the
// commit time of an arrival is that of its row, however late.
const ddl = `
CREATE SCHEMA %[1]s;
SET search_path = %[1]s;
CREATE FUNCTION key(bigint) RETURNS %[9]s LANGUAGE sql IMMUTABLE RETURN %[7]s;
CREATE FUNCTION key_of(text) RETURNS %[9]s LANGUAGE sql STABLE RETURN $1::%[9]s;
CREATE TABLE t (id %[2]s PRIMARY KEY, n int NOT NULL DEFAULT 0, done boolean NOT NULL DEFAULT false, app boolean NOT NULL DEFAULT false,
	late boolean NOT NULL DEFAULT true, outside boolean NOT NULL DEFAULT false, note text)%[8]s;
CREATE TABLE batch (id bigint GENERATED ALWAYS AS IDENTITY, pid int DEFAULT pg_backend_pid(), slot int, slots int, epoch int, rows int);
CREATE TABLE ledger (id %[2]s NOT NULL, batch bigint NOT NULL);
CREATE TABLE arrival (id %[2]s PRIMARY KEY);
CREATE TABLE departure (id %[2]s PRIMARY KEY, late boolean, outside boolean, app boolean, n int);
CREATE TABLE side (bucket int PRIMARY KEY, hits bigint NOT NULL DEFAULT 0);
CREATE SEQUENCE late_keys;
INSERT INTO side SELECT g FROM generate_series(0, %[4]d - 1) g;
INSERT INTO t (id, late, outside) SELECT key(CASE WHEN i < 0 THEN 0 ELSE %[5]d END + 4 * i + (i %% 3 = 0)::int), false, i %% 20 IN (7, -7)
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
	partitions := ""
	if t.parted {
		partitions = ` PARTITION BY RANGE (id);
CREATE TABLE low PARTITION OF t FOR VALUES FROM (MINVALUE) TO (key(0));
CREATE TABLE high PARTITION OF t FOR VALUES FROM (key(0)) TO (MAXVALUE)`
	}
	sql := fmt.Sprintf(ddl, t.schema, t.key.declared, t.rows, buckets, far, uint32(class), t.key.make, partitions, t.key.known)
	if t.extremes {
		sql += fmt.Sprintf(`INSERT INTO t (id, late) SELECT unnest('{"%s"}'::%s[]), false;`, strings.Join(t.key.extremes, `","`), t.key.known)
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

// spec is the table as a ShardedJob names it.
func (t table) spec(pending string) v1alpha1.TableSpec {
	return v1alpha1.TableSpec{Schema: t.schema, Name: "t", Key: "id", Where: "NOT outside", Pending: pending, ShardBy: t.key.by}
}

// shard is the table as package shard has it.
func (t table) shard() shard.Table {
	s := shard.NewTable(t.spec(""))
	s.KeyType = t.key.known
	return s
}

// String tells a person what is special about it.
func (t table) String() string {
	text := fmt.Sprintf("%s keys by %s", t.key.declared, t.key.by)
	if t.parted {
		text += ", partitioned"
	}
	return text
}
