package preflight

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// column is what the catalog says of the key's column.
type column struct {
	number   int16
	declared string // its type, as people write it
	notNull  bool
	// Of its type or, if that is a domain, of the domain's base type.
	typeOID, arrayOID uint32
	modifier          int32
	// Of its collation, where the type has one.
	collation     string // its SQL name
	collationOID  uint32
	deterministic bool
	byBytes       bool // whether it compares bytes
}

// bytes is the collation "C", whose OID is fixed.
var bytes = column{collation: `pg_catalog."C"`, collationOID: 950}

// readColumn walks a domain down to its base type; NOT NULL may stand at the column or at any domain of the chain. The
// columns of the catalog that only newer servers have are read by way of JSON.
func readColumn(ctx context.Context, conn *pgx.Conn, t *Table) (c column, err error) {
	const query = `
		WITH RECURSIVE chain AS (
			SELECT a.attnum, format_type(a.atttypid, a.atttypmod) AS declared, a.attnotnull AS not_null, a.atttypid AS type,
			       a.atttypmod AS modifier, a.attcollation AS collation
			  FROM pg_attribute a
			 WHERE a.attrelid = $1 AND a.attname = $2 AND a.attnum > 0 AND NOT a.attisdropped
			UNION ALL
			SELECT c.attnum, c.declared, c.not_null OR t.typnotnull, t.typbasetype, greatest(c.modifier, t.typtypmod), c.collation
			  FROM chain c JOIN pg_type t ON t.oid = c.type WHERE t.typtype = 'd'
		)
		SELECT c.attnum, c.declared, c.not_null, t.oid, t.typarray, c.modifier,
		       coalesce(quote_ident(n.nspname) || '.' || quote_ident(l.collname), ''), c.collation, coalesce(l.collisdeterministic, true),
		       coalesce(CASE l.collprovider
		           WHEN 'b' THEN true
		           WHEN 'c' THEN l.collcollate IN ('C', 'POSIX')
		           WHEN 'd' THEN CASE coalesce(to_jsonb(d) ->> 'datlocprovider', 'c')
		               WHEN 'b' THEN true
		               WHEN 'c' THEN d.datcollate IN ('C', 'POSIX')
		           END
		       END, false)
		  FROM chain c JOIN pg_type t ON t.oid = c.type JOIN pg_database d ON d.datname = current_database()
		  LEFT JOIN pg_collation l ON l.oid = c.collation LEFT JOIN pg_namespace n ON n.oid = l.collnamespace
		 WHERE t.typtype <> 'd'`
	err = conn.QueryRow(ctx, query, t.OID, t.Key).Scan(&c.number, &c.declared, &c.notNull, &c.typeOID, &c.arrayOID, &c.modifier,
		&c.collation, &c.collationOID, &c.deterministic, &c.byBytes)
	return c, err
}
