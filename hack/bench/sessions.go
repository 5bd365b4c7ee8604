package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/worker/fence"
	"shardedjob.dev/worker/preflight"
	"shardedjob.dev/worker/process"
	"shardedjob.dev/worker/shard"
)

// plain opens n sessions without a fence. Each updates a contiguous part of the keys, known beforehand.
func (t *table) plain(ctx context.Context, n int32) (sessions []session, err error) {
	for k := range int(n) {
		conn, err := pgx.Connect(ctx, t.uri)
		if err != nil {
			return sessions, err
		}
		from, end := t.rows*k/int(n), t.rows*(k+1)/int(n)
		sessions = append(sessions, session{
			pid:   conn.PgConn().PID(),
			close: func() { _ = conn.Close(context.WithoutCancel(ctx)) },
			work: func(ctx context.Context) error {
				for first := from; first < end; first += t.batch {
					if _, err := conn.Exec(ctx, byRange, first+1, min(first+t.batch, end)); err != nil {
						return fmt.Errorf("update a range: %w", err)
					}
				}
				return nil
			},
		})
	}
	return sessions, nil
}

// workers opens n sessions that hold their slots. Each works its slot until nothing is pending there.
func (t *table) workers(ctx context.Context, n int32) (sessions []session, err error) {
	group := fence.NewGroup("bench/images")
	config, err := pgx.ParseConfig(t.uri)
	if err != nil {
		return nil, err
	}
	t.epoch++
	for k := range n {
		s, err := fence.Open(ctx, config, fence.Options{ApplicationName: fence.ApplicationName(group, k, "", group.Name())})
		if err != nil {
			return sessions, err
		}
		worker := session{pid: s.PID(), close: func() { _ = s.Close(context.WithoutCancel(ctx)) }}
		sessions = append(sessions, worker)
		spec := v1alpha1.TableSpec{Schema: "public", Name: "images", Key: "id", Pending: unworked}
		checked, problem, err := preflight.Check(ctx, s.Conn(), spec, byKeys)
		if err != nil {
			return sessions, err
		}
		if problem != nil {
			return sessions, fmt.Errorf("preflight: %s", problem.Message)
		}
		claim := fence.Claim{Group: group, UID: "bench", Ordinal: k, Slot: k, Epoch: t.epoch, Slots: n, TableOID: checked.OID, Handover: time.Minute}
		if err := s.Join(ctx, claim); err != nil {
			return sessions, err
		}
		if err := s.Enter(ctx, claim, nil); err != nil {
			return sessions, err
		}
		runner := process.NewRunner(shard.NewReader(checked, n, k), process.Settings{Statement: byKeys, Rows: t.batch, TimeoutSeconds: 20, MaxAttempts: 1})
		sessions[k].work = func(ctx context.Context) error { return drain(ctx, runner, s) }
	}
	return sessions, nil
}

func drain(ctx context.Context, runner *process.Runner, s *fence.Session) error {
	for {
		result, err := runner.Step(ctx, s)
		switch {
		case err != nil:
			return err
		case result.Problem != nil:
			return fmt.Errorf("the runner stops: %s", result.Problem.Message)
		case result.State == process.Drained:
			return nil
		}
	}
}
