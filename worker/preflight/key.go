package preflight

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/worker/shard"
)

func checkKey(ctx context.Context, conn *pgx.Conn, t *Table) (*v1alpha1.Problem, error) {
	c, err := readColumn(ctx, conn, t)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		columns, err := names(ctx, conn, "SELECT attname::text FROM pg_attribute WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped", t.OID)
		if err != nil {
			return nil, err
		}
		return problem(v1alpha1.ReasonColumnMissing, "%s has no column %q%s", t.Quoted(), t.Key, didYouMean(t.Key, columns)), nil
	case err != nil:
		return nil, fmt.Errorf("look at column %q of %s: %w", t.Key, t.Quoted(), err)
	}
	if found := checkType(t, c); found != nil {
		return found, nil
	}
	if !c.notNull {
		return unsuitable("key %q of %s may be NULL, and such rows would belong to no worker: ALTER TABLE %s ALTER COLUMN %s SET NOT NULL",
			t.Key, t.Quoted(), t.Quoted(), t.QuotedKey()), nil
	}
	if found, err := checkUnique(ctx, conn, t, c.number); found != nil || err != nil {
		return found, err
	}
	return nil, checkOrder(ctx, conn, t, c)
}

// checkType takes over what the type says of keys, or says why it can hold none.
func checkType(t *Table, c column) *v1alpha1.Problem {
	name, keyType, ok := shard.KeyTypeOf(c.typeOID)
	const scale = 0x7ff // the bits of a numeric's modifier, less 4, that are its decimal places
	switch {
	case !ok:
		return unsuitable("key %q is of type %s, which cannot be a key: name a column that is an integer, numeric(p,0), uuid, text, bytea, date or timestamp, or add one, such as bigint GENERATED ALWAYS AS IDENTITY",
			t.Key, c.declared)
	case name == "numeric" && (c.modifier < 4 || (c.modifier-4)&scale != 0):
		return unsuitable("key %q is of type %s, which has room for fractions: ALTER TABLE %s ALTER COLUMN %s TYPE numeric(p,0), or bigint",
			t.Key, c.declared, t.Quoted(), t.QuotedKey())
	case !c.deterministic:
		return unsuitable("key %q has the collation %s, by which different texts are equal: ALTER TABLE %s ALTER COLUMN %s TYPE %s COLLATE \"C\", or another deterministic collation",
			t.Key, c.collation, t.Quoted(), t.QuotedKey(), c.declared)
	case t.By == v1alpha1.ShardByValue && !keyType.Integer:
		return unsuitable("key %q is of type %s, and table.shardBy: Value is for smallint, integer and bigint: leave shardBy out, or set Hash",
			t.Key, c.declared)
	}
	t.KeyType, t.KeyTypeOID, t.KeyArrayOID = name, c.typeOID, c.arrayOID
	switch {
	case t.By == v1alpha1.ShardByValue, t.By == v1alpha1.ShardByHash:
	case keyType.Integer:
		t.By = v1alpha1.ShardByValue
	default:
		t.By = v1alpha1.ShardByHash
	}
	return nil
}

// checkUnique asks for an index that enforces uniqueness of the key alone, for every row: valid, whole and without
// expressions. On a partitioned table such an index spans all partitions, but not the children of a table by inheritance.
func checkUnique(ctx context.Context, conn *pgx.Conn, t *Table, column int16) (*v1alpha1.Problem, error) {
	var unique, parent bool
	err := conn.QueryRow(ctx, `SELECT
		EXISTS (SELECT FROM pg_index
			WHERE indrelid = $1 AND indisunique AND indisvalid AND indisready AND indpred IS NULL AND indexprs IS NULL
			  AND indnkeyatts = 1 AND indkey[0] = $2),
		EXISTS (SELECT FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhparent WHERE c.oid = $1 AND c.relkind = 'r')`,
		t.OID, column).Scan(&unique, &parent)
	switch {
	case err != nil:
		return nil, fmt.Errorf("look for a unique index on %q of %s: %w", t.Key, t.Quoted(), err)
	case !unique:
		return unsuitable("key %q of %s is not unique: it needs a primary key or a valid unique index, not a partial one, on this column alone",
			t.Key, t.Quoted()), nil
	case parent:
		return unsuitable("key %q is not unique: other tables inherit from %s, and its indexes do not cover their rows: name each of these tables in a job of its own, or partition the table",
			t.Key, t.Quoted()), nil
	}
	return nil, nil
}

// checkOrder picks the collation by which keys of a text type are read, and warns where no index has that order. Other
// types have but one order, that of the unique index.
func checkOrder(ctx context.Context, conn *pgx.Conn, t *Table, c column) error {
	if c.collationOID == 0 {
		return nil
	}
	order := bytes
	if c.byBytes {
		order = c
	}
	t.Collation = order.collation
	var served bool
	err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_index i JOIN pg_opclass o ON o.oid = i.indclass[0] JOIN pg_opfamily f ON f.oid = o.opcfamily
		WHERE i.indrelid = $1 AND i.indisvalid AND i.indisready AND i.indpred IS NULL AND i.indkey[0] = $2 AND i.indcollation[0] = $3
		  AND f.opfname IN ('text_ops', 'bpchar_ops') AND f.opfmethod = (SELECT oid FROM pg_am WHERE amname = 'btree'))`,
		t.OID, c.number, order.collationOID).Scan(&served)
	if err != nil {
		return fmt.Errorf("look for an index in the order of %q of %s: %w", t.Key, t.Quoted(), err)
	}
	if !served {
		t.Warning = fmt.Sprintf(`no index of %s has key %q in the order of its bytes, so each batch sorts all rows: CREATE INDEX CONCURRENTLY ON %s (%s COLLATE "C")`,
			t.Quoted(), t.Key, t.Quoted(), t.QuotedKey())
	}
	return nil
}

// checkValues looks at what only the server itself can tell: how it hashes, and whether a key is no number.
func checkValues(ctx context.Context, conn *pgx.Conn, t *Table) (*v1alpha1.Problem, error) {
	if t.By == v1alpha1.ShardByHash {
		same, err := shard.HashesAsPinned(ctx, conn, *t)
		if err != nil {
			return nil, err
		}
		if !same {
			return unsuitable("this server hashes keys of type %s otherwise than others do, so slots by hash cannot be trusted: use an integer key with table.shardBy: Value", t.KeyType), nil
		}
	}
	if t.KeyType != "numeric" {
		return nil, nil
	}
	var nan bool
	if err := conn.QueryRow(ctx, fmt.Sprintf("SELECT EXISTS (SELECT FROM %s WHERE %s = 'NaN')", t.Quoted(), t.QuotedKey())).Scan(&nan); err != nil {
		return judge(err, "table.key")
	}
	if nan {
		return unsuitable("key %[1]q of %[2]s is NaN, which is no number, in one row: DELETE FROM %[2]s WHERE %[3]s = 'NaN', or give that row another key",
			t.Key, t.Quoted(), t.QuotedKey()), nil
	}
	return nil, nil
}

func unsuitable(format string, args ...any) *v1alpha1.Problem {
	return problem(v1alpha1.ReasonUnsuitableKey, format, args...)
}
