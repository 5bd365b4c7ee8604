package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

const rows = 1_000_000

// table is what the job works on. Its trigger notes each row that is processed, in the transaction that processes it.
const table = `
CREATE TABLE photos (id bigint PRIMARY KEY, data text NOT NULL, thumb text);
INSERT INTO photos SELECT i, 'photo ' || i FROM generate_series(1, %d) i;
CREATE INDEX ON photos (id) WHERE thumb IS NULL;
CREATE TABLE audit (id bigint NOT NULL, at timestamptz NOT NULL);
CREATE FUNCTION audit_photos() RETURNS trigger LANGUAGE plpgsql AS
  'BEGIN INSERT INTO audit SELECT id, clock_timestamp() FROM processed; RETURN NULL; END';
CREATE TRIGGER audit AFTER UPDATE ON photos REFERENCING NEW TABLE AS processed
  FOR EACH STATEMENT EXECUTE FUNCTION audit_photos();
ANALYZE photos`

// job waits a little in each batch, as work that asks another service would, so that there is time to watch.
const job = `apiVersion: shardedjob.dev/v1alpha1
kind: ShardedJob
metadata:
  name: thumbnails
spec:
  replicas: 2
  database:
    secretName: photos-db
  table:
    name: photos
    key: id
    pending: thumb IS NULL
  process:
    sql:
      statement: >-
        UPDATE photos SET thumb = md5(data)
        FROM (SELECT pg_sleep(0.2)) pause
        WHERE id = ANY($1)
  batch:
    rows: 1000
`

// verdict says how often rows were processed.
const verdict = `SELECT n AS times_processed, count(*) AS rows
FROM (SELECT count(audit.id) AS n FROM photos LEFT JOIN audit USING (id) GROUP BY photos.id) each_row
GROUP BY n ORDER BY n`

// play shows the job's life. Each step is a command that a user would type.
func (s *scene) play(ctx context.Context) error {
	heading("A table of %d rows", rows)
	conn, err := pgx.Connect(ctx, s.uri)
	if err != nil {
		return fmt.Errorf("connect to the database: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	statements := strings.TrimSpace(fmt.Sprintf(table, rows))
	fmt.Println(statements)
	if _, err := conn.Exec(ctx, statements); err != nil {
		return fmt.Errorf("make the table: %w", err)
	}

	heading("A ShardedJob")
	fmt.Println("$ kubectl create secret generic photos-db --from-literal=uri=postgres://…")
	if _, err := s.Output(ctx, "", s.in("create", "secret", "generic", "photos-db", "--from-literal=uri="+s.uri)...); err != nil {
		return errors.New("kubectl create secret failed") // the command holds the password
	}
	fmt.Printf("$ cat job.yaml\n%s", job)
	began := time.Now()
	if err := s.kubectl(ctx, job, "apply", "-f", "-"); err != nil {
		return err
	}
	watching, stop := context.WithCancel(ctx)
	watch := s.Command(watching, s.in("get", "shardedjobs", "--watch")...)
	watch.Stdout, watch.Stderr = os.Stdout, os.Stderr
	fmt.Println("$ kubectl get shardedjobs --watch &")
	if err := watch.Start(); err != nil {
		stop()
		return fmt.Errorf("watch the job: %w", err)
	}
	defer func() { stop(); _ = watch.Wait() }()

	for i, step := range []struct{ replicas, untilPercent int }{{2, 15}, {5, 50}, {3, 0}} {
		if i > 0 {
			if err := s.kubectl(ctx, "", "scale", "shardedjob/thumbnails", fmt.Sprintf("--replicas=%d", step.replicas)); err != nil {
				return err
			}
		}
		if err := s.kubectl(ctx, "", "wait", "--for=condition=Ready", "shardedjob/thumbnails", "--timeout=120s"); err != nil {
			return err
		}
		if err := s.reach(ctx, step.untilPercent); err != nil {
			return err
		}
	}
	if err := s.kubectl(ctx, "", "wait", "--for=condition=Complete", "shardedjob/thumbnails", "--timeout=15m"); err != nil {
		return err
	}
	s.took = time.Since(began)
	stop()
	_ = watch.Wait() // it was ended by us

	heading("Was every row processed exactly once?")
	fmt.Println(verdict)
	var lines [][]int64
	query, err := conn.Query(ctx, verdict)
	if err == nil {
		lines, err = pgx.CollectRows(query, func(row pgx.CollectableRow) ([]int64, error) {
			line := make([]int64, 2)
			return line, row.Scan(&line[0], &line[1])
		})
	}
	if err != nil {
		return fmt.Errorf("ask for the verdict: %w", err)
	}
	fmt.Println(" times_processed |    rows\n-----------------+---------")
	for _, line := range lines {
		fmt.Printf("%16d | %7d\n", line[0], line[1])
	}
	if len(lines) != 1 || lines[0][0] != 1 || lines[0][1] != rows {
		return errors.New("not every row was processed exactly once")
	}
	fmt.Printf("Rows processed 0 or 2+ times: 0. %d rows in %s, 2 → 5 → 3 workers\n", rows, s.took.Round(100*time.Millisecond))
	return nil
}

// in adds the namespace, which a user would have as the default of the context.
func (s *scene) in(args ...string) []string {
	return append([]string{"--namespace=" + namespace}, args...)
}

// kubectl shows a command and then runs it.
func (s *scene) kubectl(ctx context.Context, stdin string, args ...string) error {
	fmt.Println("$ kubectl", strings.Join(args, " "))
	cmd := s.Command(ctx, s.in(args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("kubectl %s: %w", args[0], err)
	}
	return nil
}

// reach waits until so much is done, or all.
func (s *scene) reach(ctx context.Context, percent int) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		out, err := s.Output(ctx, "", s.in("get", "shardedjob/thumbnails", "-o", "jsonpath={.status.progress.percent}")...)
		if err != nil {
			return err
		}
		if have, err := strconv.Atoi(out); percent == 0 || err == nil && have >= percent {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// keep leaves everything up until a person has seen enough. PostgreSQL would end with us.
func (s *scene) keep(ctx context.Context) {
	heading("Everything stays up until you press Ctrl-C. Look around:")
	kubectl := strings.Join(append(s.Words(), s.in()...), " ")
	for _, command := range []string{"get shardedjobs,pods", "describe shardedjob thumbnails", "explain shardedjob.spec", "logs thumbnails-0"} {
		fmt.Println(kubectl, command)
	}
	fmt.Println("psql", s.uri)
	<-ctx.Done()
}
