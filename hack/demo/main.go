// Command demo shows the whole thing at work: a real Kubernetes node and PostgreSQL on this machine, a table of a million rows, a ShardedJob
// that is applied, scaled 2 → 5 → 3 while it runs, and watched until it is Complete. Then it asks the database whether each row
// was processed exactly once, and takes everything down again.
//
//	DEMO_KEEP=1             leave everything up to look around, until Ctrl-C
//	DEMO_CONTEXT=<name>     run on another cluster: a context of ~/.kube/config; then also
//	DEMO_IMAGE=<name:tag>   the image, where that cluster can pull it
//	DEMO_DATABASE_URI=<uri> a database that pods and this machine can reach
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := run(ctx); err != nil {
		if ctx.Err() != nil && errors.Is(err, context.Canceled) {
			fmt.Fprintln(os.Stderr, "demo: stopped")
		} else {
			fmt.Fprintln(os.Stderr, "demo:", err)
		}
		os.Exit(1)
	}
}

// run sets the scene, plays on it, and takes it down, whatever happens.
func run(ctx context.Context) (err error) {
	began := time.Now()
	s, err := setUp(ctx)
	if err != nil {
		return err
	}
	up := time.Since(began)
	defer func() {
		heading("Taking everything down")
		err = errors.Join(err, s.down(ctx))
		fmt.Printf("Done after %s: %s to set the scene, %s for the job\n", since(began), up.Round(time.Second), s.took.Round(time.Second))
	}()
	if err := s.play(ctx); err != nil {
		return err
	}
	if os.Getenv("DEMO_KEEP") != "" {
		s.keep(ctx)
	}
	return nil
}

func since(t time.Time) time.Duration { return time.Since(t).Round(time.Second) }

func heading(format string, args ...any) {
	fmt.Printf("\n── %s ──\n", fmt.Sprintf(format, args...))
}
