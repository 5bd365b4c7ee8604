package coordinator

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// outage is a store that cannot be reached before some time.
type outage struct{ until time.Time }

func (o outage) Load(context.Context) (map[string]string, error) {
	if time.Now().Before(o.until) {
		return nil, errors.New("connection refused")
	}
	return nil, nil
}

func (o outage) Save(context.Context, map[string]string) error { return errors.New("not asked for") }

// A candidate that gave up its seat stands again soon after an outage: it may be the only one.
func TestL11CandidateWaitsForTheStore(t *testing.T) {
	for _, away := range []time.Duration{time.Second, 20 * time.Second, 2 * time.Minute, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			c := NewCandidate(Config{Store: outage{began.Add(away)}})
			c.awaitStore(t.Context())
			if waited := time.Since(began); waited < max(away, 5*time.Second) || waited > away+min(away+5*time.Second, 90*time.Second)*3/2 {
				t.Errorf("away for %s: stood again after %s", away, waited)
			}
		})
	}
}
