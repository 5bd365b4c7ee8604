// Package shard says which rows belong to a slot and reads the ones that still need work.
//
// Slot k of n is the rows whose key, or a hash of it, leaves remainder k. PostgreSQL's remainder has the sign of the
// dividend, MOD(-7, 3) is -1, so the rule is MOD(key, n) IN (k, k - n). The key is never added to: the least and the
// greatest integer belong to exactly one slot, as all others do.
//
// A Reader picks the next pending rows of its slot, upward through the keys, and locks them with a re-check, so that
// what the application has just finished is not worked again. An empty batch is the end of a sweep and never the end
// of the work: that is only what Pending, a statement without locks, says.
package shard

import (
	"errors"
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
	// KeyType is the SQL name of the key's type: the base type, if it is a domain.
	KeyType string
	// KeyTypeOID and KeyArrayOID are the OIDs of KeyType and of its array type.
	KeyTypeOID, KeyArrayOID uint32
	// Collation is the SQL name of the collation by which keys of a text type are ordered, one that compares bytes. Empty:
	// "C".
	Collation string
	// By is what picks the slot of a key: v1alpha1.ShardByHash, else the key itself.
	By v1alpha1.ShardBy
	// Spec is what the user wrote.
	Spec v1alpha1.TableSpec
	// Warning is a sentence about what makes the work slow, or nothing.
	Warning string
}

// NewTable takes over what the user wrote; the rest is for the preflight check to fill in.
func NewTable(spec v1alpha1.TableSpec) Table {
	schema := spec.Schema
	if schema == "" {
		schema = "public"
	}
	return Table{Schema: schema, Name: spec.Name, Key: spec.Key, Where: spec.Where, Pending: spec.Pending, By: spec.ShardBy, Spec: spec}
}

// Quoted is the table's name as SQL.
func (t Table) Quoted() string { return pgx.Identifier{t.Schema, t.Name}.Sanitize() }

// QuotedKey is the key column's name as SQL.
func (t Table) QuotedKey() string { return pgx.Identifier{t.Key}.Sanitize() }

// Column is the key column's full name, which no name of a result's column can stand in for: a bare name in ORDER BY
// would be the result's, and sort the text of the keys.
func (t Table) Column() string { return pgx.Identifier{t.Schema, t.Name, t.Key}.Sanitize() }

// Scope is the SQL condition that is true of rows in scope. The line break keeps a comment at the end of the user's SQL from
// eating the parenthesis.
func (t Table) Scope() string {
	if t.Where == "" {
		return "true"
	}
	return "(" + t.Where + "\n)"
}

// Need is the SQL condition that is true of rows in scope that still need work.
func (t Table) Need() string {
	need := "(" + t.Pending + "\n)"
	if t.Where != "" {
		need = t.Scope() + " AND " + need
	}
	return need
}

// Like says whether rows are worked in the same way as those of another table: all that was found of them is the same but
// the warning.
func (t Table) Like(other Table) bool {
	other.Warning = t.Warning
	return t == other
}

// ErrChanged means that the table is no longer as it was checked: its name leads to another one, its key has another
// type, or row security has begun to hide rows. Nothing that is known of the table holds; check it again.
var ErrChanged = errors.New("the table has changed since it was checked")

// whichTable is SQL of the OID of the table that a name, $1, leads to; NULL: none, or one of which rows may be hidden.
const whichTable = "CASE WHEN NOT row_security_active(to_regclass($1)::oid) THEN to_regclass($1)::oid END"

// QueueCheck adds to a round trip, behind what locks the table, a check that it is still the one that was checked. It
// fails with ErrChanged.
func (t Table) QueueCheck(b *pgx.Batch) {
	b.Queue("SELECT "+whichTable, t.Quoted()).QueryRow(func(row pgx.Row) error {
		var now *uint32
		if err := row.Scan(&now); err != nil {
			return fmt.Errorf("look which table is %s: %w", t.Quoted(), err)
		}
		return t.is(now)
	})
}

func (t Table) is(oid *uint32) error {
	if oid == nil || *oid != t.OID {
		return ErrChanged
	}
	return nil
}
