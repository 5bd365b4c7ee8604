// Package shard says which rows belong to a slot and reads the ones that still need work.
//
// Slot k of n is the rows whose key leaves remainder k. PostgreSQL's remainder has the sign of the dividend, MOD(-7, 3)
// is -1, so the rule is MOD(key, n) IN (k, k - n). The key is never added to: the least and the greatest integer
// belong to exactly one slot, as all others do.
//
// A Reader picks the next pending rows of its slot, upward through the keys, and locks them with a re-check, so that
// what the application has just finished is not worked again. An empty batch is the end of a sweep and never the end
// of the work: that is only what Pending, a statement without locks, says.
package shard

import (
	"fmt"

	"github.com/jackc/pgx/v5"

	"shardedjob.dev/api/v1alpha1"
)

// Table is a checked table: names as the user wrote them, and what the database says of the key.
type Table struct {
	Schema, Name, Key string
	// Where and Pending are the user's SQL conditions; Where may be empty.
	Where, Pending string
	// OID of the table.
	OID uint32
	// KeyType is smallint, integer or bigint: the base type, if the key's is a domain.
	KeyType string
	// KeyTypeOID and KeyArrayOID are the OIDs of KeyType and of its array type.
	KeyTypeOID, KeyArrayOID uint32
}

// NewTable takes over what the user wrote; the rest is for the preflight check to fill in.
func NewTable(spec v1alpha1.TableSpec) Table {
	schema := spec.Schema
	if schema == "" {
		schema = "public"
	}
	return Table{Schema: schema, Name: spec.Name, Key: spec.Key, Where: spec.Where, Pending: spec.Pending}
}

// Quoted is the table's name as SQL.
func (t Table) Quoted() string { return pgx.Identifier{t.Schema, t.Name}.Sanitize() }

// QuotedKey is the key column's name as SQL.
func (t Table) QuotedKey() string { return pgx.Identifier{t.Key}.Sanitize() }

// Need is the SQL condition that is true of rows in scope that still need work. The line breaks keep a comment at the
// end of the user's SQL from eating the parenthesis.
func (t Table) Need() string {
	need := fmt.Sprintf("(%s\n)", t.Pending)
	if t.Where != "" {
		need = fmt.Sprintf("(%s\n) AND %s", t.Where, need)
	}
	return need
}

// Predicate is the SQL condition that is true of the keys of slot k of n. The modulus is written as a value of the key's
// type where it fits, which n up to v1alpha1.MaxSlots does, so that nothing is widened or cast per row.
func (t Table) Predicate(n, k int32) string {
	if n == 1 {
		return "true"
	}
	cast := t.KeyType
	if cast == "" {
		cast = "bigint"
	}
	return fmt.Sprintf("MOD(%[1]s, %[2]d::%[5]s) IN (%[3]d::%[5]s, %[4]d::%[5]s)", t.QuotedKey(), n, k, k-n, cast)
}

// Owner is the slot of a key among n, as Predicate says it.
func Owner(key int64, n int32) int32 {
	return int32((key%int64(n) + int64(n)) % int64(n))
}
