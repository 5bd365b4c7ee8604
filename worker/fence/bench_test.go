package fence

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"shardedjob.dev/hack/postgres"
)

// BenchmarkEnter is the entry of a session with nobody to wait for.
func BenchmarkEnter(b *testing.B) {
	uri, g := database(b), NewGroup("a/b")
	s := open(b, uri, g, 0)
	c := claim(g, 0, 1, 1)
	join(b, s, c)
	for b.Loop() {
		if err := s.Enter(b.Context(), c, nil); err != nil {
			b.Fatal(err)
		}
		if err := s.Leave(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCheckLocks is what each batch pays, alone and in one round trip with another statement, beside the
// locks of many other sessions.
func BenchmarkCheckLocks(b *testing.B) {
	for _, others := range []int{0, 1000} {
		uri, g := database(b), NewGroup("a/b")
		s := open(b, uri, g, 0)
		enter(b, s, claim(g, 0, 1, 1))
		exec(b, postgres.Connect(b, uri), fmt.Sprintf("SELECT pg_advisory_lock(1, k) FROM generate_series(1, %d) k", others))
		tx, err := s.Conn().Begin(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprintf("alone, %d other locks", others), func(b *testing.B) {
			for b.Loop() {
				if err := s.CheckLocks(b.Context(), tx); err != nil {
					b.Fatal(err)
				}
			}
		})
		for _, check := range []bool{false, true} {
			b.Run(fmt.Sprintf("batch with check %t, %d other locks", check, others), func(b *testing.B) {
				for b.Loop() {
					batch := &pgx.Batch{}
					batch.Queue("SELECT 1")
					if check {
						s.QueueCheck(batch)
					}
					if err := tx.SendBatch(b.Context(), batch).Close(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
		b.Run(fmt.Sprintf("look, %d other locks", others), func(b *testing.B) {
			for b.Loop() {
				if _, err := Holders(b.Context(), tx, g); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("wanted, %d other locks", others), func(b *testing.B) {
			for b.Loop() {
				if _, err := s.Wanted(b.Context(), adoption(g, 0, 1, 1, 2)); err != nil {
					b.Fatal(err)
				}
			}
		})
		if err := tx.Rollback(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkHandover switches from 4 to 6 slots while four sessions are in batches of 500 ms, at random phases. It reports
// how long a slot was not worked: from the end of its last batch under the old plan until it may be worked under the new.
func BenchmarkHandover(b *testing.B) {
	const batch = 500 * time.Millisecond
	uri, g := database(b), NewGroup("a/b")
	var sessions [6]*Session
	for k := range sessions {
		sessions[k] = open(b, uri, g, int32(k))
		join(b, sessions[k], claim(g, int32(k), 1, 6))
	}
	var mu sync.Mutex
	var pauses []time.Duration
	epoch := int64(0)
	for b.Loop() {
		epoch += 2
		for k := range 4 {
			enter(b, sessions[k], claim(g, int32(k), epoch, 4))
		}
		var group sync.WaitGroup
		for k, s := range sessions {
			remaining := rand.N(batch)
			group.Go(func() {
				stopped := time.Now()
				if k < 4 {
					if _, err := s.Conn().Exec(b.Context(), "SELECT pg_sleep($1)", remaining.Seconds()); err != nil {
						b.Error(err)
					}
					stopped = time.Now()
					if err := s.Leave(b.Context()); err != nil {
						b.Error(err)
					}
				}
				if err := s.Enter(b.Context(), claim(g, int32(k), epoch+1, 6), nil); err != nil {
					b.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				if k < 4 {
					pauses = append(pauses, time.Since(stopped))
				}
			})
		}
		group.Wait()
		for _, s := range sessions {
			if err := s.Leave(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	}
	slices.Sort(pauses)
	b.ReportMetric(float64(pauses[len(pauses)/2].Milliseconds()), "ms-median")
	b.ReportMetric(float64(pauses[len(pauses)-1].Milliseconds()), "ms-worst")
}
