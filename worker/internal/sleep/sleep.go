// Package sleep waits, but not beyond the end of a context.
package sleep

import (
	"context"
	"time"
)

// For waits and says whether the context still lives.
func For(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
