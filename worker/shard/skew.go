package shard

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"shardedjob.dev/api/v1alpha1"
)

// A sample is of so many rows, as far as the statistics tell how many are in a block of the table, and of no more blocks.
const (
	sampleRows   = 4000
	sampleBlocks = 400
	skewTimeout  = 2 * time.Second
)

// Skew says how the rows of a sample fill the slots.
type Skew struct {
	By    v1alpha1.ShardBy
	Slots int32
	// Rows that were sampled, 0 if it took too long; Filled are the slots that hold some, Largest is the most that one holds.
	Rows    int64
	Filled  int32
	Largest int64
}

// MeasureSkew samples rows in scope from blocks all over the table, within two seconds. The connection must not be in a
// transaction.
func MeasureSkew(ctx context.Context, conn *pgx.Conn, t Table, n int32) (Skew, error) {
	s := Skew{By: t.By, Slots: n}
	err := pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, fmt.Sprintf("SET LOCAL statement_timeout = %d", skewTimeout.Milliseconds())); err != nil {
			return err
		}
		var blocks, rows, counted float64 // of the table; rows in those blocks that the statistics counted
		if err := tx.QueryRow(ctx, `
			SELECT coalesce(sum(pg_relation_size(oid)), 0) / current_setting('block_size')::int, coalesce(sum(greatest(reltuples, 0)), 0), coalesce(sum(greatest(relpages, 0)), 0)
			  FROM pg_class WHERE relkind = 'r' AND (oid = $1 OR oid IN (SELECT relid FROM pg_partition_tree($1::oid::regclass)))`, t.OID).Scan(&blocks, &rows, &counted); err != nil {
			return err
		}
		return tx.QueryRow(ctx, fmt.Sprintf(`
			SELECT coalesce(sum(rows), 0)::bigint, count(*)::int, coalesce(max(rows), 0) FROM (
				SELECT %s AS slot, count(*) AS rows FROM %s TABLESAMPLE SYSTEM (%g) WHERE %s GROUP BY 1) AS slots`,
			t.SlotOf(t.Column(), fmt.Sprint(n)), t.Quoted(), samplePercent(blocks, rows, counted), t.Scope())).Scan(&s.Rows, &s.Filled, &s.Largest)
	})
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "57014" {
		return Skew{By: t.By, Slots: n}, nil
	}
	if err != nil {
		return Skew{}, fmt.Errorf("sample how keys fill the slots: %w", err)
	}
	return s, nil
}

// samplePercent is the share of the blocks to read.
func samplePercent(blocks, rows, counted float64) float64 {
	perBlock := 200.0 // few columns
	if rows > 0 && counted > 0 {
		perBlock = rows / counted
	}
	want := min(sampleRows/perBlock, sampleBlocks)
	return min(100, 100*max(want, 20)/max(blocks, 1))
}

// Warning is a sentence about slots that stay empty, or one that holds half as much again as its share, as far as chance does not
// explain it; else nothing.
func (s Skew) Warning() string {
	if s.Slots < 2 || s.Rows == 0 {
		return ""
	}
	n, rows := float64(s.Slots), float64(s.Rows)
	// Of rows that fall where they like: the mean, and six deviations beyond it, which a million tables do not show once.
	share := rows / n
	empty := n * math.Pow(1-1/n, rows)
	tooMany := empty + 6*math.Sqrt(empty) + 0.5
	tooLarge := share + 6*math.Sqrt(share) + 4
	if float64(s.Slots-s.Filled) < tooMany && (float64(s.Largest) < tooLarge || float64(s.Largest) <= 1.5*share) {
		return ""
	}
	keys := "keys fill"
	if empty >= 1 {
		keys = fmt.Sprintf("%d sampled keys fill", s.Rows)
	}
	warning := fmt.Sprintf("%s %d of %d slots; the largest holds %.0f %% of the sampled rows", keys, s.Filled, s.Slots, 100*float64(s.Largest)/rows)
	if s.By != v1alpha1.ShardByHash {
		warning += ": set table.shardBy: Hash in a ShardedJob made anew, which goes on where this one is"
	}
	return warning
}
