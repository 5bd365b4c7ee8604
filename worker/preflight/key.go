package preflight

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"shardedjob.dev/api/v1alpha1"
)

// integers are the key types that MOD partitions, by OID.
var integers = map[uint32]string{21: "smallint", 23: "integer", 20: "bigint"}

func checkKey(ctx context.Context, conn *pgx.Conn, t *Table) (*v1alpha1.Problem, error) {
	var declared string
	var notNull bool
	var number int16
	// A domain's base type is found by walking down; NOT NULL may stand at the column or at any domain of the chain.
	err := conn.QueryRow(ctx, `
		WITH RECURSIVE chain AS (
			SELECT a.attnum, format_type(a.atttypid, a.atttypmod) AS declared, a.attnotnull AS not_null, a.atttypid AS type
			  FROM pg_attribute a
			 WHERE a.attrelid = $1 AND a.attname = $2 AND a.attnum > 0 AND NOT a.attisdropped
			UNION ALL
			SELECT c.attnum, c.declared, c.not_null OR t.typnotnull, t.typbasetype
			  FROM chain c JOIN pg_type t ON t.oid = c.type WHERE t.typtype = 'd'
		)
		SELECT c.attnum, c.declared, c.not_null, t.oid, t.typarray
		  FROM chain c JOIN pg_type t ON t.oid = c.type WHERE t.typtype <> 'd'`,
		t.OID, t.Key).Scan(&number, &declared, &notNull, &t.KeyTypeOID, &t.KeyArrayOID)
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
	keyType, ok := integers[t.KeyTypeOID]
	if !ok {
		return problem(v1alpha1.ReasonUnsuitableKey,
			"key %q is of type %s; only smallint, integer and bigint can be partitioned by value", t.Key, declared), nil
	}
	t.KeyType = keyType
	if !notNull {
		return problem(v1alpha1.ReasonUnsuitableKey,
			"key %q of %s may be NULL, and such rows would belong to no worker: ALTER TABLE %s ALTER COLUMN %s SET NOT NULL",
			t.Key, t.Quoted(), t.Quoted(), t.QuotedKey()), nil
	}
	return checkUnique(ctx, conn, t, number)
}

// checkUnique asks for an index that enforces uniqueness of the key alone, for every row: valid, whole and without
// expressions. On a partitioned table such an index spans all partitions.
func checkUnique(ctx context.Context, conn *pgx.Conn, t *Table, column int16) (*v1alpha1.Problem, error) {
	var unique bool
	err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_index
		WHERE indrelid = $1 AND indisunique AND indisvalid AND indisready AND indpred IS NULL AND indexprs IS NULL
		  AND indnkeyatts = 1 AND indkey[0] = $2)`, t.OID, column).Scan(&unique)
	if err != nil {
		return nil, fmt.Errorf("look for a unique index on %q of %s: %w", t.Key, t.Quoted(), err)
	}
	if unique {
		return nil, nil
	}
	return problem(v1alpha1.ReasonUnsuitableKey,
		"key %q of %s is not unique: it needs a primary key or a valid unique index, not a partial one, on this column alone",
		t.Key, t.Quoted()), nil
}
