package preflight

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/hack/postgres"
)

func TestMain(m *testing.M) { postgres.Main(m) }

const setup = `
	CREATE TABLE images (id bigint PRIMARY KEY, thumb text, kind text, n int UNIQUE, "order" int);
	CREATE VIEW pictures AS SELECT * FROM images;
	CREATE MATERIALIZED VIEW frozen AS SELECT * FROM images;
	CREATE SEQUENCE numbers;
	CREATE EXTENSION file_fdw; CREATE SERVER files FOREIGN DATA WRAPPER file_fdw;
	CREATE FOREIGN TABLE remote (id bigint) SERVER files OPTIONS (filename '/dev/null');
	CREATE DOMAIN ident AS bigint NOT NULL; CREATE DOMAIN small AS smallint;
	CREATE TABLE keys (
		a_uuid uuid PRIMARY KEY, a_text text NOT NULL UNIQUE, a_numeric numeric(10,2) NOT NULL UNIQUE, a_float float8 NOT NULL UNIQUE,
		an_array bigint[] NOT NULL UNIQUE, money money NOT NULL UNIQUE, an_oid oid NOT NULL UNIQUE, bytes bytea NOT NULL UNIQUE,
		a_domain ident UNIQUE, a_small small NOT NULL UNIQUE, nullable int UNIQUE, twice int NOT NULL, partly int NOT NULL, pair int NOT NULL, UNIQUE (pair, twice));
	CREATE UNIQUE INDEX ON keys (partly) WHERE partly > 0; CREATE UNIQUE INDEX ON keys (abs(twice));
	CREATE EXTENSION citext; CREATE DOMAIN number AS numeric(20,0); CREATE TYPE mood AS ENUM ('ok');
	CREATE COLLATION ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
	CREATE TABLE more (
		whole number NOT NULL UNIQUE, wide numeric NOT NULL UNIQUE, real real NOT NULL UNIQUE, mood mood NOT NULL UNIQUE, name name NOT NULL UNIQUE,
		cased citext NOT NULL UNIQUE, alike text COLLATE ci NOT NULL UNIQUE, local varchar(9) COLLATE "en-x-icu" NOT NULL UNIQUE,
		fixed char(5) NOT NULL UNIQUE, plain text COLLATE "C" NOT NULL UNIQUE, posix text COLLATE "POSIX" NOT NULL UNIQUE,
		indexed text COLLATE "en-x-icu" NOT NULL UNIQUE, patterned text COLLATE "en-x-icu" NOT NULL UNIQUE,
		day date NOT NULL UNIQUE, at timestamp NOT NULL UNIQUE, tz timestamptz NOT NULL UNIQUE, long interval NOT NULL UNIQUE);
	CREATE INDEX ON more (indexed COLLATE "C", day); CREATE INDEX ON more (patterned text_pattern_ops); CREATE INDEX ON more (patterned COLLATE "C") WHERE day IS NULL;
	CREATE TABLE nan (id numeric(9,0) PRIMARY KEY); INSERT INTO nan VALUES (1), ('NaN');
	CREATE TABLE parent (id int PRIMARY KEY); CREATE TABLE child () INHERITS (parent);
	CREATE TABLE halves (id int NOT NULL, region text) PARTITION BY LIST (region);
	CREATE TABLE halves_a PARTITION OF halves (PRIMARY KEY (id)) FOR VALUES IN ('a'); CREATE TABLE halves_b PARTITION OF halves (PRIMARY KEY (id)) FOR VALUES IN ('b');
	INSERT INTO halves VALUES (1, 'a'), (1, 'b');
	CREATE TABLE compound (tenant int, id int, PRIMARY KEY (tenant, id));
	CREATE SCHEMA "My.Sch";
	CREATE TABLE "My.Sch"."Order.Items" ("Id" int PRIMARY KEY, "sel ect" text, "a""b" int NOT NULL UNIQUE, "%s;--" int NOT NULL UNIQUE);
	CREATE TABLE parted (id int, region text, done bool) PARTITION BY LIST (region);
	CREATE TABLE ranged (id int PRIMARY KEY, done bool) PARTITION BY RANGE (id); CREATE TABLE ranged_1 PARTITION OF ranged FOR VALUES FROM (0) TO (100);
	CREATE TABLE secured (id int PRIMARY KEY, done bool); ALTER TABLE secured ENABLE ROW LEVEL SECURITY; ALTER TABLE secured FORCE ROW LEVEL SECURITY;
	CREATE POLICY p ON secured USING (id > 0);
	CREATE TABLE ledger (n int);
	DROP ROLE IF EXISTS plain; CREATE ROLE plain LOGIN;
	GRANT SELECT, UPDATE ON secured, ranged, keys TO plain; GRANT SELECT ON images TO plain;
	GRANT SELECT (id, done), UPDATE (done) ON parted TO plain`

func TestCheck(t *testing.T) {
	// A server of its own: roles belong to the whole server.
	server := postgres.StartForTest(t, postgres.Options{})
	uri := server.NewDB(t)
	super := postgres.Connect(t, uri)
	if _, err := super.Exec(t.Context(), setup); err != nil {
		t.Fatal(err)
	}
	plain := postgres.Connect(t, strings.Replace(uri, "postgres@", "plain@", 1))

	images := v1alpha1.TableSpec{Schema: "public", Name: "images", Key: "id", Pending: "thumb IS NULL"}
	type edit func(*v1alpha1.TableSpec)
	table := func(schema, name, key string) edit {
		return func(s *v1alpha1.TableSpec) { s.Schema, s.Name, s.Key, s.Pending = schema, name, key, "true" }
	}
	key := func(key string) edit { return table("public", "keys", key) }
	more := func(key string) edit { return table("public", "more", key) }
	byValue := func(key string) edit {
		return func(s *v1alpha1.TableSpec) { more(key)(s); s.ShardBy = v1alpha1.ShardByValue }
	}
	pending := func(sql string) edit { return func(s *v1alpha1.TableSpec) { s.Pending = sql } }
	where := func(sql string) edit { return func(s *v1alpha1.TableSpec) { s.Where = sql } }
	const update = "UPDATE images SET thumb = 'x' WHERE id = ANY($1)"
	const nothing = "SELECT count(*) FROM unnest($1)"
	cases := []struct {
		name      string
		conn      *pgx.Conn
		edit      edit
		statement string
		reason    string
		text      string // in the message; with no reason: in the Table
	}{
		{"fine", super, nil, update, "", "bigint"},
		{"smallint domain", super, key("a_small"), nothing, "", "smallint"},
		{"domain NOT NULL", super, key("a_domain"), nothing, "", "bigint"},
		{"F01 upper case and dots", super, table("My.Sch", "Order.Items", "Id"), `UPDATE "Order.Items" SET "sel ect" = '' WHERE "Id" = ANY($1)`, "", "integer"},
		{"F01 quote in the key", super, table("My.Sch", "Order.Items", `a"b`), nothing, "", "integer"},
		{"F01 percent and semicolon", super, table("My.Sch", "Order.Items", "%s;--"), nothing, "", "integer"},
		{"F06 partitioned by the key", super, table("public", "ranged", "id"), nothing, "", "integer"},
		{"no schema", super, table("publik", "images", "id"), update, v1alpha1.ReasonTableMissing, `did you mean "public"?`},
		{"no table", super, table("public", "image", "id"), update, v1alpha1.ReasonTableMissing, `did you mean "images"?`},
		{"other case", super, table("public", "Images", "id"), update, v1alpha1.ReasonTableMissing, "upper and lower case differ"},
		{"other schema", super, table("public", "Order.Items", "id"), update, v1alpha1.ReasonTableMissing, `in schema "My.Sch"`},
		{"no column", super, table("public", "images", "idd"), update, v1alpha1.ReasonColumnMissing, `did you mean "id"?`},
		{"F05 view", super, table("public", "pictures", "id"), update, v1alpha1.ReasonNotATable, "is a view"},
		{"F05 materialized view", super, table("public", "frozen", "id"), update, v1alpha1.ReasonNotATable, "is a materialized view"},
		{"F05 sequence", super, table("public", "numbers", "last_value"), update, v1alpha1.ReasonNotATable, "is a sequence"},
		{"F05 index", super, table("public", "images_pkey", "id"), update, v1alpha1.ReasonNotATable, "is an index"},
		{"F05 foreign table", super, table("public", "remote", "id"), update, v1alpha1.ReasonNotATable, "is a foreign table"},
		{"E07 numeric", super, key("a_numeric"), update, v1alpha1.ReasonUnsuitableKey, "of type numeric(10,2), which has room for fractions"},
		{"E07 float", super, key("a_float"), update, v1alpha1.ReasonUnsuitableKey, "of type double precision"},
		{"E07 array", super, key("an_array"), update, v1alpha1.ReasonUnsuitableKey, "of type bigint[]"},
		{"E07 money", super, key("money"), update, v1alpha1.ReasonUnsuitableKey, "of type money"},
		{"E07 oid", super, key("an_oid"), update, v1alpha1.ReasonUnsuitableKey, "of type oid"},
		{"E07 enum", super, more("mood"), nothing, v1alpha1.ReasonUnsuitableKey, "of type mood, which cannot be a key"},
		{"E07 name", super, more("name"), nothing, v1alpha1.ReasonUnsuitableKey, "of type name"},
		{"E07 interval", super, more("long"), nothing, v1alpha1.ReasonUnsuitableKey, "of type interval"},
		{"E07 uuid", super, key("a_uuid"), nothing, "", "uuid"},
		{"E07 text", super, key("a_text"), nothing, "", "text"},
		{"E07 bytea", super, key("bytes"), nothing, "", "bytea"},
		{"char", super, more("fixed"), nothing, "", "bpchar"},
		{"date", super, more("day"), nothing, "", "date"},
		{"timestamp", super, more("at"), nothing, "", "timestamp"},
		{"timestamptz", super, more("tz"), nothing, "", "timestamptz"},
		{"D10 numeric without places", super, more("whole"), nothing, "", "numeric"},
		{"D10 numeric with any", super, more("wide"), nothing, v1alpha1.ReasonUnsuitableKey, "of type numeric, which has room for fractions"},
		{"D10 float", super, more("real"), nothing, v1alpha1.ReasonUnsuitableKey, "of type real, which cannot be a key"},
		{"D10 NaN", super, table("public", "nan", "id"), nothing, v1alpha1.ReasonUnsuitableKey, "is NaN, which is no number"},
		{"D08 equal in another case", super, more("cased"), nothing, v1alpha1.ReasonUnsuitableKey, "of type citext, which cannot be a key"},
		{"D08 nondeterministic", super, more("alike"), nothing, v1alpha1.ReasonUnsuitableKey, "collation public.ci, by which different texts are equal"},
		{"D08 linguistic", super, more("local"), nothing, "", "varchar"},
		{"value of a text", super, byValue("plain"), nothing, v1alpha1.ReasonUnsuitableKey, "of type text, and table.shardBy: Value is for smallint"},
		{"value of a numeric", super, byValue("whole"), nothing, v1alpha1.ReasonUnsuitableKey, "leave shardBy out, or set Hash"},
		{"F06 unique in each partition alone", super, table("public", "halves", "id"), nothing, v1alpha1.ReasonUnsuitableKey, "not unique"},
		{"F06 inheritance", super, table("public", "parent", "id"), nothing, v1alpha1.ReasonUnsuitableKey, "other tables inherit from"},
		{"F09 part of the primary key", super, table("public", "compound", "id"), nothing, v1alpha1.ReasonUnsuitableKey, "not unique"},
		{"nullable", super, key("nullable"), update, v1alpha1.ReasonUnsuitableKey, "may be NULL"},
		{"D07 not unique", super, key("twice"), update, v1alpha1.ReasonUnsuitableKey, "not unique"},
		{"partial index", super, key("partly"), update, v1alpha1.ReasonUnsuitableKey, "not unique"},
		{"unique with another column", super, key("pair"), update, v1alpha1.ReasonUnsuitableKey, "not unique"},
		{"F06 partitioned without a key", super, table("public", "parted", "id"), nothing, v1alpha1.ReasonUnsuitableKey, "NULL"},
		{"no UPDATE", plain, nil, nothing, v1alpha1.ReasonMissingPrivileges, "lacks UPDATE"},
		{"no SELECT", plain, table("public", "ledger", "n"), nothing, v1alpha1.ReasonUnsuitableKey, "NULL"},
		{"no USAGE", plain, table("My.Sch", "Order.Items", "Id"), nothing, v1alpha1.ReasonMissingPrivileges, "lacks USAGE"},
		{"statement needs more", plain, table("public", "ranged", "id"), "INSERT INTO ledger SELECT unnest($1)", v1alpha1.ReasonMissingPrivileges, "permission denied for table ledger"},
		{"F04 row security", plain, table("public", "secured", "id"), nothing, v1alpha1.ReasonRowSecurity, "BYPASSRLS"},
		{"F04 a superuser sees all", super, table("public", "secured", "id"), nothing, "", "integer"},
		{"pending with a comment", super, pending("thumb IS NULL -- so far"), update, "", "bigint"},
		{"pending with a wrong column", super, pending("thum IS NULL"), update, v1alpha1.ReasonColumnMissing, `column "thum" does not exist`},
		{"pending position", super, pending("thum IS NULL"), update, v1alpha1.ReasonColumnMissing, "at character 1"},
		{"pending is no condition", super, pending("thumb"), update, v1alpha1.ReasonInvalidSQL, "not one boolean"},
		{"pending closes the parenthesis", super, pending("true) OR (true"), update, v1alpha1.ReasonInvalidSQL, "table.pending"},
		{"pending with a second column", super, pending("true, true"), update, v1alpha1.ReasonInvalidSQL, "not one boolean"},
		{"pending with an alias", super, pending("true AS x"), update, v1alpha1.ReasonInvalidSQL, "table.pending"},
		{"pending with FROM", super, pending("true FROM images WHERE true --"), update, v1alpha1.ReasonInvalidSQL, "table.pending"},
		{"pending with a second command", super, pending("true; DROP TABLE images"), update, v1alpha1.ReasonInvalidSQL, "table.pending"},
		{"pending with a parameter", super, pending("id = $1"), update, v1alpha1.ReasonInvalidSQL, "parameter"},
		{"pending with an aggregate", super, pending("count(*) > 1"), update, v1alpha1.ReasonInvalidSQL, "table.pending"},
		{"open comment", super, pending("true /* "), update, v1alpha1.ReasonInvalidSQL, "table.pending"},
		{"where", super, where("kynd = 'photo'"), update, v1alpha1.ReasonColumnMissing, "table.where"},
		{"where without FROM", super, where("kinds.kind = 'photo'"), update, v1alpha1.ReasonInvalidSQL, "missing FROM-clause entry"},
		{"statement names another table", super, nil, "UPDATE imags SET thumb = '' WHERE id = ANY($1)", v1alpha1.ReasonTableMissing, `process.sql.statement: relation "imags" does not exist`},
		{"F08 trailing semicolon", super, nil, update + ";", "", "bigint"},
		{"F08 trailing comment", super, nil, update + " -- note", "", "bigint"},
		{"F08 comments before", super, nil, "/* a /* nested */ ; */ -- and\n " + update, "", "bigint"},
		{"F08 dollars and percents", super, nil, "UPDATE images SET thumb = $$100% ? ; $1$$ WHERE id = ANY($1)", "", "bigint"},
		{"F08 WITH", super, nil, "WITH x AS (UPDATE images SET thumb = '' WHERE id = ANY($1) RETURNING id) INSERT INTO ledger SELECT id FROM x", "", "bigint"},
		{"F08 two commands", super, nil, update + "; " + update, v1alpha1.ReasonInvalidSQL, "several commands"},
		{"F08 COMMIT behind", super, nil, update + "; COMMIT", v1alpha1.ReasonInvalidSQL, "several commands"},
		{"F08 COMMIT", super, nil, "COMMIT -- $1", v1alpha1.ReasonInvalidSQL, "COMMIT does not work here"},
		{"F08 SET ROLE", super, nil, "/* $1 */ set role plain", v1alpha1.ReasonInvalidSQL, "SET does not work here"},
		{"F08 DISCARD ALL", super, nil, "DISCARD ALL -- $1", v1alpha1.ReasonInvalidSQL, "DISCARD does not work here"},
		{"no parameter", super, nil, "UPDATE images SET thumb = '$1'", v1alpha1.ReasonInvalidSQL, "does not use $1"},
		{"second parameter", super, nil, "UPDATE images SET thumb = $2 WHERE id = ANY($1)", v1alpha1.ReasonInvalidSQL, "there is only $1"},
		{"not an array", super, nil, "UPDATE images SET thumb = '' WHERE id = $1", v1alpha1.ReasonInvalidSQL, "bigint = bigint[]"},
		{"missing function", super, nil, "UPDATE images SET thumb = nope(id) WHERE id = ANY($1)", v1alpha1.ReasonInvalidSQL, "nope(bigint) does not exist"},
		{"empty", super, nil, "-- $1", v1alpha1.ReasonInvalidSQL, "process.sql.statement is empty"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			spec := images
			if c.edit != nil {
				c.edit(&spec)
			}
			got, problem, err := Check(t.Context(), c.conn, spec, c.statement)
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case c.reason == "" && problem != nil:
				t.Errorf("refused: %+v", problem)
			case c.reason == "" && (got.KeyType != c.text || got.OID == 0 || got.KeyArrayOID == 0):
				t.Errorf("got %+v", got)
			case c.reason != "" && problem == nil:
				t.Errorf("accepted: %+v", got)
			case c.reason != "" && (problem.Reason != c.reason || !strings.Contains(problem.Message, c.text) || !problem.Stalled):
				t.Errorf("got %+v, want %s with %q", problem, c.reason, c.text)
			}
		})
	}
}

func TestSlotsAndOrderFollowTheKeysType(t *testing.T) {
	conn := postgres.Connect(t, postgres.StartForTest(t, postgres.Options{}).NewDB(t))
	if _, err := conn.Exec(t.Context(), setup); err != nil {
		t.Fatal(err)
	}
	const auto, value, hash = v1alpha1.ShardByAuto, v1alpha1.ShardByValue, v1alpha1.ShardByHash
	for name, c := range map[string]struct {
		table, key string
		ask, by    v1alpha1.ShardBy
		collation  string
		warning    string
	}{
		"integer":               {"images", "id", auto, value, "", ""},
		"integer, not said":     {"images", "id", "", value, "", ""},
		"integer by value":      {"images", "id", value, value, "", ""},
		"integer by hash":       {"images", "id", hash, hash, "", ""},
		"uuid":                  {"keys", "a_uuid", auto, hash, "", ""},
		"domain over numeric":   {"more", "whole", "", hash, "", ""},
		"time":                  {"more", "tz", hash, hash, "", ""},
		"C":                     {"more", "plain", auto, hash, `pg_catalog."C"`, ""},
		"POSIX":                 {"more", "posix", auto, hash, `pg_catalog."POSIX"`, ""},
		"linguistic":            {"more", "local", auto, hash, `pg_catalog."C"`, `CREATE INDEX CONCURRENTLY ON "public"."more" ("local" COLLATE "C")`},
		"linguistic with index": {"more", "indexed", auto, hash, `pg_catalog."C"`, ""},
		"indexes of no use":     {"more", "patterned", auto, hash, `pg_catalog."C"`, `("patterned" COLLATE "C")`},
	} {
		t.Run(name, func(t *testing.T) {
			spec := v1alpha1.TableSpec{Schema: "public", Name: c.table, Key: c.key, Pending: "true", ShardBy: c.ask}
			got, problem, err := Check(t.Context(), conn, spec, "SELECT count(*) FROM unnest($1)")
			if err != nil || problem != nil {
				t.Fatalf("%+v, %v", problem, err)
			}
			if got.By != c.by || got.Collation != c.collation || (got.Warning == "") != (c.warning == "") || !strings.Contains(got.Warning, c.warning) {
				t.Errorf("got %+v", got)
			}
		})
	}
}

func TestSearchPathIsTheSchemaThenTheRolesOwn(t *testing.T) {
	conn := postgres.Connect(t, postgres.ForTest(t).NewDB(t))
	for _, schema := range []string{`My"Sch`, "other"} {
		if err := SearchPath(t.Context(), conn, schema); err != nil {
			t.Fatal(err)
		}
		var path string
		if err := conn.QueryRow(t.Context(), "SHOW search_path").Scan(&path); err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf(`%s, "$user", public`, pgx.Identifier{schema}.Sanitize()); path != want && path != strings.ReplaceAll(want, `"other"`, "other") {
			t.Errorf("got %s, want %s", path, want)
		}
	}
}

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"a", "", 1}, {"images", "image", 1}, {"kitten", "sitting", 3}, {"ünï", "uni", 2}} {
		if got := distance(c.a, c.b); got != c.want {
			t.Errorf("%q to %q: got %d, want %d", c.a, c.b, got, c.want)
		}
	}
}
