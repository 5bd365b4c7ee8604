package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// The table's rows are about 100 bytes before the UPDATE.
const (
	create    = "CREATE TABLE images (id bigint PRIMARY KEY, data text NOT NULL, thumb text, times int NOT NULL DEFAULT 0) WITH (autovacuum_enabled = off)"
	fill      = "INSERT INTO images SELECT g, repeat(md5(g::text), 2) FROM generate_series(1, $1::bigint) g"
	assign    = "UPDATE images SET thumb = md5(data), times = times + 1"
	byKeys    = assign + " WHERE id = ANY ($1)"
	byRange   = assign + " WHERE id BETWEEN $1 AND $2"
	unworked  = "thumb IS NULL"
	wrongRows = "SELECT count(*) FROM images WHERE thumb IS DISTINCT FROM md5(data) OR times <> 1"
)

// table is what is worked on.
type table struct {
	options
	uri   string
	admin *pgx.Conn
	epoch int64 // of the last measurement of workers
}

func newTable(ctx context.Context, uri string, o options) (*table, error) {
	admin, err := pgx.Connect(ctx, uri)
	if err != nil {
		return nil, err
	}
	t := &table{options: o, uri: uri, admin: admin}
	return t, t.exec(ctx, create)
}

func (t *table) exec(ctx context.Context, sql string, args ...any) error {
	if _, err := t.admin.Exec(ctx, sql, args...); err != nil {
		return fmt.Errorf("%s: %w", sql, err)
	}
	return nil
}

// describe prints what the figures depend on.
func (t *table) describe(ctx context.Context, out io.Writer) error {
	var version, set string
	if err := t.admin.QueryRow(ctx, "SELECT current_setting('server_version')").Scan(&version); err != nil {
		return err
	}
	if err := t.admin.QueryRow(ctx, `SELECT string_agg(name || '=' || current_setting(name), ' ' ORDER BY name) FROM pg_settings
		WHERE source = 'configuration file' AND context <> 'internal' AND name !~ '^(listen|port|unix|log)'`).Scan(&set); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "PostgreSQL %s on %d CPUs, shared with the clients\n%s; autovacuum off for the table\n%d rows, batches of %d, median of %d runs in turns\n%s; pending: %s\n\n",
		version, runtime.NumCPU(), set, t.rows, t.batch, t.runs, byKeys, unworked)
	return err
}

// refill makes the table as new: no dead rows, nothing to be written by a checkpoint.
func (t *table) refill(ctx context.Context) error {
	if err := t.exec(ctx, "TRUNCATE images"); err != nil {
		return err
	}
	if err := t.exec(ctx, fill, t.rows); err != nil {
		return err
	}
	if err := t.exec(ctx, "VACUUM (FREEZE, ANALYZE) images"); err != nil {
		return err
	}
	return t.exec(ctx, "CHECKPOINT")
}

// session is one of the n; it does its part of the rows in work.
type session struct {
	pid   uint32
	work  func(context.Context) error
	close func()
}

// measure takes the time of n sessions, connected already, over a new table.
func (t *table) measure(ctx context.Context, n int32, figures *[]figure, open func(context.Context, int32) ([]session, error)) error {
	if err := t.refill(ctx); err != nil {
		return err
	}
	sessions, err := open(ctx, n)
	defer func() {
		for _, s := range sessions {
			s.close()
		}
	}()
	if err != nil {
		return err
	}
	before := cpuTime(sessions)
	began := time.Now()
	working, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var group sync.WaitGroup
	for _, s := range sessions {
		group.Go(func() {
			if err := s.work(working); err != nil {
				cancel(err)
			}
		})
	}
	group.Wait()
	if err := context.Cause(working); err != nil {
		return err
	}
	*figures = append(*figures, figure{took: time.Since(began), cpu: cpuTime(sessions) - before})
	var wrong int64
	if err := t.admin.QueryRow(ctx, wrongRows).Scan(&wrong); err != nil {
		return err
	}
	if wrong > 0 {
		return fmt.Errorf("%d rows were not processed exactly once", wrong)
	}
	return nil
}

// cpuTime of the server's processes of the sessions, as Linux counts it: in hundredths of a second.
func cpuTime(sessions []session) time.Duration {
	const tick = time.Second / 100
	var sum time.Duration
	for _, s := range sessions {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.pid))
		if err != nil {
			return 0
		}
		// After the name, which may contain anything: utime and stime are the 12th and 13th field.
		_, rest, _ := strings.Cut(string(stat), ") ")
		for _, field := range strings.Fields(rest)[11:13] {
			ticks, err := strconv.Atoi(field)
			if err != nil {
				return 0
			}
			sum += time.Duration(ticks) * tick
		}
	}
	return sum
}
