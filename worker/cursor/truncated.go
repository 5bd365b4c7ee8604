package cursor

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/worker/shard"
)

// tree is a common table expression: table $1 and its partitions, or children by inheritance, as they are now.
const tree = `tree(oid) AS (SELECT $1::oid UNION SELECT i.inhrelid FROM tree JOIN pg_inherits i ON i.inhparent = tree.oid)`

// An incarnation is what tells the rows of a table from those that it holds after it was emptied.
type incarnation struct {
	storage  string
	sequence *int64 // value of the sequence that the key owns; nil: none was drawn
	counts   bool   // it has such a sequence, an ascending one that the role may read
}

func readIncarnation(ctx context.Context, q shard.Querier, t shard.Table) (in incarnation, err error) {
	err = q.QueryRow(ctx, `
		WITH RECURSIVE `+tree+`, owned AS (
			SELECT s.seqrelid FROM pg_depend d JOIN pg_sequence s ON s.seqrelid = d.objid
			  JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
			 WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass AND d.deptype IN ('a', 'i')
			   AND d.refobjid = $1 AND a.attname = $2 AND s.seqincrement > 0 AND NOT s.seqcycle
			   AND has_sequence_privilege(s.seqrelid, 'SELECT, USAGE') LIMIT 1
		)
		SELECT (SELECT md5(string_agg(oid || ':' || coalesce(pg_relation_filenode(oid), 0), ' ' ORDER BY oid)) FROM tree),
		       (SELECT pg_sequence_last_value(seqrelid) FROM owned), EXISTS (SELECT FROM owned)`,
		t.OID, t.Key).Scan(&in.storage, &in.sequence, &in.counts)
	return in, wrap("look at the files of "+t.Quoted(), err)
}

// Check says whether the table still holds the rows that the progress was made on. It returns a problem if it was truncated
// since: keys may then be used again, and rows with such keys would count as done. That a table was rewritten, by VACUUM FULL
// for example, is no matter. It also returns one if the table's name leads to another table now, and fails with
// shard.ErrChanged if it leads nowhere. The connection must not be in a transaction.
func Check(ctx context.Context, conn *pgx.Conn, p Plan, t shard.Table) (*v1alpha1.Problem, error) {
	job, err := readJob(ctx, conn, p.Group, "")
	if err != nil || job == nil || job.scope == nil || job.CompletedAt != nil {
		return nil, err
	}
	var now *uint32
	if err := conn.QueryRow(ctx, "SELECT to_regclass($1)::oid", t.Quoted()).Scan(&now); err != nil {
		return nil, wrap("look which table is "+t.Quoted(), err)
	}
	if now == nil {
		return nil, shard.ErrChanged
	}
	current := newScope(t)
	current.oid = *now
	if problem := job.scope.differs(p.Group, current); problem != nil {
		return problem, nil
	}
	problem, _, err := job.check(ctx, conn, p, t)
	return problem, err
}

func (j *Job) check(ctx context.Context, q shard.Querier, p Plan, t shard.Table) (*v1alpha1.Problem, incarnation, error) {
	now, err := readIncarnation(ctx, q, t)
	if err != nil || j.CompletedAt != nil || j.storage == now.storage {
		return nil, now, err
	}
	truncated := now.counts && j.sequence != nil && (now.sequence == nil || *now.sequence < *j.sequence)
	if !truncated {
		if truncated, err = j.below(ctx, q, p, t); err != nil {
			return nil, now, err
		}
	}
	if !truncated {
		return nil, now, nil
	}
	return problem(v1alpha1.ReasonTableChanged, "table %s was truncated since consumer group %q made its progress, and new rows would count as done: %s",
		t.Quoted(), p.Group, cure), now, nil
}

// below says whether rows are left, but only where every row counts as done or is known to have failed, and none of the
// witnesses. A rewritten table has some of those, or rows that are still to be worked. A key whose sequence is not behind says it better.
func (j *Job) below(ctx context.Context, q shard.Querier, p Plan, t shard.Table) (bool, error) {
	if j.Horizon == nil {
		return false, nil
	}
	counted := "false"
	if j.sequence != nil && (integer(t.KeyType) || t.KeyType == "numeric") {
		counted = fmt.Sprintf("%d >= %s", *j.sequence, t.KeyValue("$2"))
	}
	value := t.KeyValue("cursor")
	var below bool
	err := q.QueryRow(ctx, fmt.Sprintf(`
		WITH highest AS (
			SELECT %[1]s AS key FROM shardedjob.slot WHERE consumer_group = $1 AND cursor IS NOT NULL ORDER BY %[1]s DESC LIMIT 1
		)
		SELECT NOT (%[2]s) AND EXISTS (SELECT FROM highest)
		   AND NOT EXISTS (SELECT FROM %[3]s WHERE %[4]s >= (SELECT key FROM highest))
		   AND NOT EXISTS (SELECT FROM %[3]s WHERE %[7]s = ANY ((SELECT witnesses FROM shardedjob.job WHERE consumer_group = $1)::%[8]s[]))
		   AND EXISTS (SELECT FROM %[3]s WHERE %[5]s
		                  AND %[6]s NOT IN (SELECT key FROM shardedjob.row_failure WHERE consumer_group = $1))
		   AND $2::text IS NOT NULL`,
		value, counted, t.Quoted(), t.Order(t.Column()), t.Scope(), t.KeyText(t.Column()),
		t.Column(), t.KeyType),
		p.Group, string(*j.Horizon)).Scan(&below)
	return below, wrap("look for rows of "+t.Quoted()+" that are not done", err)
}
