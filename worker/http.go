package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"shardedjob.dev/worker/coordinator"
)

// metrics are a worker's own; progress of the whole job is in the ShardedJob's status.
type metrics struct {
	registry *prometheus.Registry
	batches  *prometheus.HistogramVec
}

func newMetrics(w *Worker) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		batches: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "shardedjob_batch_duration_seconds",
			Help:    "Time of a batch from BEGIN to COMMIT, by outcome.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 16),
		}, []string{"outcome"}),
	}
	counter := func(name, help string, value func(Status) float64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return value(w.Status()) })
	}
	gauge := func(name, help string, value func(Status) float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return value(w.Status()) })
	}
	m.registry.MustRegister(
		m.batches,
		counter("shardedjob_rows_processed_total", "Rows whose processing this worker has committed.",
			func(s Status) float64 { return float64(s.Processed) }),
		gauge("shardedjob_rows_failed", "Rows of the slot that failed every attempt.",
			func(s Status) float64 { return float64(s.Failed) }),
		gauge("shardedjob_plan_epoch", "Epoch of the plan that the worker follows.",
			func(s Status) float64 { return float64(s.Epoch) }),
		gauge("shardedjob_coordinator", "1 while this worker is the coordinator.", func(s Status) float64 {
			if s.Role == coordinator.RoleCoordinator {
				return 1
			}
			return 0
		}),
	)
	return m
}

// serveHTTP serves /healthz, /readyz, /statusz and /metrics until the context ends.
func (w *Worker) serveHTTP(ctx context.Context) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(rw http.ResponseWriter, _ *http.Request) { fmt.Fprintln(rw, "ok") })
	mux.HandleFunc("GET /readyz", func(rw http.ResponseWriter, _ *http.Request) {
		if !w.state.isReady() {
			http.Error(rw, "not connected to the database, or not checked yet; see /statusz", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(rw, "ok")
	})
	mux.HandleFunc("GET /statusz", func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "application/json")
		enc := json.NewEncoder(rw)
		enc.SetIndent("", "  ")
		_ = enc.Encode(w.Status()) // the client is gone
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(w.metrics.registry, promhttp.HandlerOpts{}))

	listener, err := net.Listen("tcp", w.cfg.ListenAddress)
	if err != nil {
		return fmt.Errorf("listen for probes: %w", err)
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go func() {
		<-ctx.Done()
		_ = server.Close()
	}()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve probes: %w", err)
	}
	return nil
}
