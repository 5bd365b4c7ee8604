//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"shardedjob.dev/hack/stage"
)

var (
	scene *stage.Stage

	// audited and wrong count rows over all tests: those looked at, and those that were processed 0 or 2+ times.
	audited, wrong atomic.Int64

	figuresMu sync.Mutex
	figures   []string
)

// figure keeps something measured for the end of the run.
func figure(t *testing.T, format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	t.Log(line)
	figuresMu.Lock()
	defer figuresMu.Unlock()
	figures = append(figures, line)
}

func TestMain(m *testing.M) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	code, err := run(ctx, m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(ctx context.Context, m *testing.M) (code int, err error) {
	if scene, err = stage.Up(ctx, os.Stdout); err != nil {
		return 1, err
	}
	defer func() {
		if downErr := scene.Down(ctx); err == nil {
			err = downErr
		}
	}()
	// The testing package does not know of ctx: when a person has enough, the scene must still be taken down.
	done := make(chan int, 1)
	go func() { done <- m.Run() }()
	select {
	case code = <-done:
	case <-ctx.Done():
		return 1, ctx.Err()
	}
	for _, line := range figures {
		fmt.Println("figure:", line)
	}
	fmt.Printf("figure: rows processed 0 or 2+ times over all tests: %d of %d\n", wrong.Load(), audited.Load())
	if wrong.Load() > 0 {
		code = 1
	}
	return code, nil
}
