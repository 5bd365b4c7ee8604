package shard

import (
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"shardedjob.dev/api/v1alpha1"
)

// Key is a key in the text form that Table.KeyText selects, which depends on no setting of a session. Equal keys of one
// column are equal texts. What comes before what only the database says, by Table.Order.
type Key string

// Array is the keys as an array literal of SQL, to be sent as a parameter in text format.
func Array(keys []Key) string {
	var b strings.Builder
	b.WriteByte('{')
	for i, key := range keys {
		if i > 0 {
			b.WriteByte(',')
		}
		if key != "" && strings.Trim(string(key), "-0123456789") == "" {
			b.WriteString(string(key))
			continue
		}
		// In quotes nothing is a delimiter, a brace, blank or NULL.
		b.WriteByte('"')
		for j := range len(key) {
			if key[j] == '"' || key[j] == '\\' {
				b.WriteByte('\\')
			}
			b.WriteByte(key[j])
		}
		b.WriteByte('"')
	}
	b.WriteByte('}')
	return b.String()
}

// Keys reads the one column of a result, which KeyText selected.
func Keys(rows pgx.Rows) ([]Key, error) {
	defer rows.Close()
	var keys []Key
	for rows.Next() {
		keys = append(keys, Key(rows.RawValues()[0])) // text is the same in both formats of the protocol
	}
	return keys, rows.Err()
}

// A KeyType is a type of the database that keys may have.
type KeyType struct {
	OID uint32
	// Integer types can be sharded by value.
	Integer bool
	// Text types are ordered by their bytes, whatever the collation of the column.
	Text bool

	text string // SQL of the text form of %[1]s, which a cast to the type reads back
	hash string // SQL of a bigint that equal values of %[1]s share, the same on all servers
}

// Hash functions are those of hash partitions, whose values cannot change from one version to the next because rows
// would be in the wrong partition. Those of bytea, date and timestamptz cannot be called in all versions: a text or a
// value that is equal where these are equal stands for them.
const (
	hashText    = `hashtextextended(%[1]s::text COLLATE pg_catalog."C", 0)`
	hashInteger = "hashint8extended(%[1]s::bigint, 0)"
	plainText   = "%[1]s::text"
	// JSON has one form for times, which no setting changes.
	jsonText = "(to_json(%[1]s) #>> '{}')"
	bytesHex = `(E'\\x' || encode(%[1]s, 'hex'))`
)

// keyTypes are all, by name.
var keyTypes = map[string]KeyType{
	"smallint":  {OID: 21, Integer: true, text: plainText, hash: hashInteger},
	"integer":   {OID: 23, Integer: true, text: plainText, hash: hashInteger},
	"bigint":    {OID: 20, Integer: true, text: plainText, hash: hashInteger},
	"numeric":   {OID: 1700, text: plainText, hash: "hash_numeric_extended(%[1]s, 0)"},
	"uuid":      {OID: 2950, text: plainText, hash: "uuid_hash_extended(%[1]s, 0)"},
	"text":      {OID: 25, Text: true, text: plainText, hash: hashText},
	"varchar":   {OID: 1043, Text: true, text: plainText, hash: hashText},
	"bpchar":    {OID: 1042, Text: true, text: plainText, hash: hashText}, // a cast to text drops the blanks that do not count
	"bytea":     {OID: 17, text: bytesHex, hash: fmt.Sprintf(hashText, bytesHex)},
	"date":      {OID: 1082, text: jsonText, hash: fmt.Sprintf(hashText, jsonText)},
	"timestamp": {OID: 1114, text: jsonText, hash: "timestamp_hash_extended(%[1]s, 0)"},
	"timestamptz": {OID: 1184, text: "CASE WHEN isfinite(%[1]s) THEN " + fmt.Sprintf(jsonText, "%[1]s AT TIME ZONE 'UTC'") + " || ' UTC' ELSE %[1]s::text END",
		hash: "timestamp_hash_extended(%[1]s AT TIME ZONE 'UTC', 0)"},
}

// KeyTypeOf is the SQL name of the type with an OID, and what it is, if keys may have it.
func KeyTypeOf(oid uint32) (name string, _ KeyType, ok bool) {
	for name, k := range keyTypes {
		if k.OID == oid {
			return name, k, true
		}
	}
	return "", KeyType{}, false
}

func (t Table) keyType() KeyType { return keyTypes[t.KeyType] }

// typed is a key-typed expression as one of the base type.
func (t Table) typed(expr string) string { return fmt.Sprintf("(%s)::%s", expr, t.KeyType) }

// KeyText is SQL of the text form of a key-typed expression.
func (t Table) KeyText(expr string) string { return fmt.Sprintf(t.keyType().text, t.typed(expr)) }

// KeyValue is SQL that makes a key of a text, a parameter for example, to be compared with what Order gives.
func (t Table) KeyValue(text string) string {
	value := fmt.Sprintf("((%s)::text)::%s", text, t.KeyType)
	if t.keyType().Text {
		value += " COLLATE " + t.collation()
	}
	return "(" + value + ")"
}

// Order is SQL by which keys are sorted and compared: a key-typed expression, texts by their bytes.
func (t Table) Order(expr string) string {
	if t.keyType().Text {
		return fmt.Sprintf("(%s) COLLATE %s", expr, t.collation())
	}
	return expr
}

func (t Table) collation() string {
	if t.Collation == "" {
		return `pg_catalog."C"`
	}
	return t.Collation
}

// number is SQL of the integer whose remainder picks the slot of a key-typed expression.
func (t Table) number(expr string) string {
	if t.By == v1alpha1.ShardByHash {
		return fmt.Sprintf(t.keyType().hash, t.typed(expr))
	}
	return expr
}

// SlotOf is SQL of the slot, 0 to n - 1, of a key-typed expression among n slots. n is SQL too.
func (t Table) SlotOf(expr, n string) string {
	// Only remainders are added up: no key is too great for it.
	return fmt.Sprintf("MOD(MOD((%[1]s)::bigint, (%[2]s)::bigint) + (%[2]s)::bigint, (%[2]s)::bigint)::integer", t.number(expr), n)
}

// Predicate is the SQL condition that is true of the keys of slot k of n. The modulus is written as a value of the
// integer's own type, where n up to v1alpha1.MaxSlots fits, so that nothing is widened or cast per row.
func (t Table) Predicate(n, k int32) string {
	if n == 1 {
		return "true"
	}
	as := "bigint"
	if t.By != v1alpha1.ShardByHash {
		as = t.KeyType
	}
	return fmt.Sprintf("MOD(%[1]s, %[2]d::%[5]s) IN (%[3]d::%[5]s, %[4]d::%[5]s)", t.number(t.QuotedKey()), n, k, k-n, as)
}
