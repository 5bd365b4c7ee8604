package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// onConnection calls f with a session of its own.
func (s *scene) onConnection(ctx context.Context, f func(context.Context, *pgx.Conn) error) error {
	config, err := pgx.ParseConfig(s.uri)
	if err != nil {
		return err
	}
	config.ConnectTimeout = 5 * time.Second
	config.RuntimeParams["application_name"] = "app"
	config.RuntimeParams["lock_timeout"] = "5s"
	config.RuntimeParams["statement_timeout"] = "60s"
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return f(ctx, conn)
}

// passing are the errors, by code, that the faults themselves bring about: the server stops or starts, sessions are ended, deadlocks
// and timeouts.
var passing = map[string]bool{
	"57P01": true, "57P02": true, "57P03": true, "57014": true, "40P01": true, "40001": true, "55P03": true, "53300": true,
}

// passes says whether an error is of that kind, or one of the connection.
func passes(err error) bool {
	var server *pgconn.PgError
	var scan pgx.ScanArgError
	if errors.As(err, &server) {
		return passing[server.Code]
	}
	return !errors.As(err, &scan)
}

// persist calls f until it succeeds, over all restarts of both servers.
func (s *scene) persist(ctx context.Context, doing string, f func(context.Context) error) error {
	const limit = 3 * time.Minute
	for began := time.Now(); ; pause(ctx, 200*time.Millisecond) {
		err := f(ctx)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil, !passes(err), time.Since(began) > limit:
			return fmt.Errorf("%s: %w", doing, err)
		}
	}
}

// trouble calls f with a session whose search path is the job's schema, and says whether it came so far. What the faults bring about
// is no matter; any other error is a finding, about the torture itself.
func (j *job) trouble(ctx context.Context, f func(context.Context, *pgx.Conn) error) (begun bool) {
	err := j.onConnection(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, "SET search_path = "+j.table.schema); err != nil {
			return err
		}
		begun = true
		return f(ctx, conn)
	})
	if err != nil && !passes(err) && ctx.Err() == nil {
		j.wrong("job %s: the application cannot use its table: %v", j.name, err)
	}
	return begun
}

// transaction is trouble in a transaction, which is committed unless f has ended it or fails.
func (j *job) transaction(ctx context.Context, f func(context.Context, pgx.Tx) error) bool {
	return j.trouble(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		tx, err := conn.Begin(ctx)
		if err != nil {
			return err
		}
		if err := f(ctx, tx); err != nil {
			return err // the session ends, and the transaction with it
		}
		if conn.PgConn().TxStatus() == 'I' {
			return nil
		}
		return tx.Commit(ctx)
	})
}

// run is trouble of one statement.
func (j *job) run(ctx context.Context, sql string) bool {
	return j.trouble(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, sql)
		return err
	})
}
