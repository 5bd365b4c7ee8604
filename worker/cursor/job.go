package cursor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/worker/shard"
)

// Job is the row of a group.
type Job struct {
	// Epoch and Slots of the newest plan that anybody entered.
	Epoch int64
	Slots int32
	// Horizon is the greatest key to be worked; nil with HorizonAt set: the table was empty.
	Horizon *shard.Key
	// HorizonAt is when the horizon was found; nil: not yet.
	HorizonAt *time.Time
	// CompletedAt is when everything was done; nil: not yet.
	CompletedAt *time.Time

	format   int32
	scope    *scope // nil: none yet, or forgotten
	storage  string // fingerprint of the table's files
	sequence *int64 // the greatest value seen of the sequence that the key owns; nil: it has none, or gave no value
}

// scope is what the progress was made on.
type scope struct {
	oid                        uint32
	table, key, keyType, where string
}

func newScope(t shard.Table) scope {
	return scope{oid: t.OID, table: t.Quoted(), key: t.Key, keyType: t.KeyType, where: t.Where}
}

// ReadJob reads the row of a group; nil: there is none, or no schema.
func ReadJob(ctx context.Context, q shard.Querier, group string) (*Job, error) {
	var there bool
	if err := q.QueryRow(ctx, "SELECT to_regclass('shardedjob.job') IS NOT NULL").Scan(&there); err != nil || !there {
		return nil, wrap("look for the job", err)
	}
	return readJob(ctx, q, group, "")
}

func readJob(ctx context.Context, q shard.Querier, group, locking string) (*Job, error) {
	var j Job
	var s scope
	var oid *uint32
	err := q.QueryRow(ctx, `
		SELECT epoch, slots, horizon, horizon_at, completed_at, format, coalesce(storage, ''), sequence_value,
		       table_oid, coalesce(table_name, ''), coalesce(key_column, ''), coalesce(key_type, ''), coalesce(in_scope, '')
		  FROM shardedjob.job WHERE consumer_group = $1`+locking, group).Scan(
		&j.Epoch, &j.Slots, &j.Horizon, &j.HorizonAt, &j.CompletedAt, &j.format, &j.storage, &j.sequence,
		&oid, &s.table, &s.key, &s.keyType, &s.where)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, wrap("read the job", err)
	}
	if oid != nil {
		s.oid = *oid
		j.scope = &s
	}
	return &j, nil
}

// at says whether the durable epoch is exactly the plan's.
func (j *Job) at(p Plan) bool { return j.Epoch == p.Epoch && j.Slots == p.Slots }

// admit says why a plan for a table may not work on: the database is beyond it, or the progress is of something else.
func (j *Job) admit(p Plan, t shard.Table) (*v1alpha1.Problem, error) {
	if j.format > format {
		return problem(v1alpha1.ReasonScopeChanged, "consumer group %q keeps its progress in format %d, and these workers know %d: upgrade them", p.Group, j.format, format), nil
	}
	if j.Epoch > p.Epoch || j.Epoch == p.Epoch && j.Slots > p.Slots {
		return nil, &StaleError{Epoch: j.Epoch, Slots: j.Slots}
	}
	if j.scope == nil {
		return nil, nil
	}
	return j.scope.differs(p.Group, newScope(t)), nil
}

// cure ends the sentence about progress that does not fit.
const cure = "use another consumerGroup, or annotate the job with " + v1alpha1.AnnotationForget + "=true to drop that progress"

// differs is a problem where the progress was made on something else. Integer types are alike, and a renamed table is the same.
func (s scope) differs(group string, now scope) *v1alpha1.Problem {
	changed := func(what, was, is string) *v1alpha1.Problem {
		return problem(v1alpha1.ReasonScopeChanged, "the progress of consumer group %q was made with %s %s, not %s: %s", group, what, was, is, cure)
	}
	switch {
	case s.oid != now.oid && s.table == now.table:
		return problem(v1alpha1.ReasonTableChanged, "table %s was dropped and made again, or another has got its name, since consumer group %q made its progress: %s", now.table, group, cure)
	case s.oid != now.oid:
		return changed("table", s.table, now.table)
	case s.key != now.key:
		return changed("table.key", fmt.Sprintf("%q", s.key), fmt.Sprintf("%q", now.key))
	case s.keyType != now.keyType && (!integer(s.keyType) || !integer(now.keyType)):
		return changed("a key of type", s.keyType, now.keyType)
	case s.where != now.where:
		return changed("table.where", orNone(s.where), orNone(now.where))
	}
	return nil
}

func integer(keyType string) bool {
	return keyType == "smallint" || keyType == "integer" || keyType == "bigint"
}

func orNone(where string) string {
	if where == "" {
		return "(none)"
	}
	return "(" + where + ")"
}

func wrap(doing string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", doing, err)
}
