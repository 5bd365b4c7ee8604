package process

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkRows compares a Runner with the same UPDATE over contiguous ranges by a plain session, in rows per second.
//
//	go test ./worker/process -run - -bench Rows -benchtime 1x
func BenchmarkRows(b *testing.B) {
	const total = 200_000
	for _, size := range []int{500, 5000} {
		for _, n := range []int32{1, 4} {
			b.Run(fmt.Sprintf("rows=%d/slots=%d", size, n), func(b *testing.B) {
				for range b.N {
					bench := newBench(b, tableOf("bigint")+rows(1, total)+"ANALYZE t")
					start := time.Now()
					for from := 0; from < total; from += size {
						bench.exec("UPDATE t SET times = times + 1 WHERE id > $1 AND id <= $2", from, from+size)
					}
					plain := time.Since(start)
					bench = newBench(b, tableOf("bigint")+rows(1, total)+"ANALYZE t")
					w := bench.worker(spec, Settings{Statement: update, Rows: size}, n, 0)
					start = time.Now()
					if state := w.run(); state != Drained {
						b.Fatalf("ends in %v", state)
					}
					b.ReportMetric(total/plain.Seconds(), "plain-rows/s")
					b.ReportMetric(float64(w.done)/time.Since(start).Seconds(), "rows/s")
				}
			})
		}
	}
}
