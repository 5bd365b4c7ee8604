package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"

	"shardedjob.dev/hack/cluster"
	"shardedjob.dev/hack/postgres"
	"shardedjob.dev/hack/torture/schedule"
)

// scene is what all jobs share, and what has been found out.
type scene struct {
	options
	out       io.Writer
	began     time.Time
	keep      bool   // the folder is the user's
	program   string // the worker
	nowhere   string // kubeconfig of an API server that is not there
	server    *postgres.Server
	uri       string
	api       *cluster.ControlPlane
	client    kubernetes.Interface
	listeners []net.Listener // at the ends of cables
	cables    []cable
	lanes     []*lane
	calm      chan struct{} // closed when the faults are over
	// leftoverPatience is how long the server may take to notice that a client has gone: what it looks for every five seconds
	// while it works, or waits for the client.
	leftoverPatience time.Duration

	serverBroken, apiBroken sync.Mutex // held by the fault that breaks it
	printing                sync.Mutex

	mu        sync.Mutex
	faultsEnd time.Time
	findings  []string
	score     map[schedule.Kind]tally
}

// tally counts faults of a kind.
type tally struct{ injected, missed int }

// database is where all jobs work.
const database = "torture"

// settings of the server: the commit times tell the audit what was there when; deadlocks and recoveries are to be short.
var settings = map[string]string{
	"track_commit_timestamp": "on",
	"deadlock_timeout":       "200ms",
	"checkpoint_timeout":     "30s",
	"max_connections":        "150",
}

// longAfter is when the faults are over as long as they have not begun.
const longAfter = 24 * time.Hour

// newScene starts the servers and builds the worker. If it fails, what it had begun is taken down.
func newScene(ctx context.Context, o options, out io.Writer) (s *scene, err error) {
	s = &scene{
		options: o, out: out, began: time.Now(), keep: o.dir != "", faultsEnd: time.Now().Add(longAfter), calm: make(chan struct{}),
		leftoverPatience: 15 * time.Second, score: map[schedule.Kind]tally{},
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close(true))
		}
	}()
	if s.dir, err = makeFolder(o.dir); err != nil {
		return s, fmt.Errorf("make the folder: %w", err)
	}
	transcript, err := os.Create(filepath.Join(s.dir, "torture.log"))
	if err != nil {
		return s, fmt.Errorf("make the transcript: %w", err)
	}
	s.out = io.MultiWriter(out, transcript)
	if err := s.build(ctx); err != nil {
		return s, err
	}
	if s.server, err = postgres.Start(ctx, o.serverOptions()); err != nil {
		return s, err
	}
	if err := s.server.CreateDatabase(ctx, database); err != nil {
		return s, err
	}
	s.uri = s.server.URI(database)
	if s.api, err = cluster.StartControlPlane(ctx, cluster.Options{Progress: out}); err != nil {
		return s, err
	}
	if err := s.reachAPI(); err != nil {
		return s, err
	}
	for i, w := range o.ways {
		l := newLane(s, i, w)
		s.lanes = append(s.lanes, l)
		if err := l.addMachines(ctx); err != nil {
			return s, err
		}
	}
	return s, nil
}

// makeFolder makes the user's folder, which must not be there yet, or a temporary one.
func makeFolder(dir string) (string, error) {
	if dir == "" {
		return os.MkdirTemp("", "shardedjob-torture-")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	return dir, os.Mkdir(dir, 0o755)
}

// build compiles the worker as its image has it.
func (s *scene) build(ctx context.Context) error {
	s.program = filepath.Join(s.dir, "worker")
	args := []string{"build", "-o", s.program}
	if s.race {
		args = append(args, "-race")
	}
	if out, err := exec.CommandContext(ctx, "go", append(args, "shardedjob.dev/worker/cmd/worker")...).CombinedOutput(); err != nil {
		return fmt.Errorf("build the worker: %w: %s", err, out)
	}
	return nil
}

// apiTimeout bounds a request of operator or kubelet.
const apiTimeout = 3 * time.Second

func (s *scene) reachAPI() (err error) {
	config := s.api.Config()
	config.Timeout = apiTimeout
	if s.client, err = kubernetes.NewForConfig(config); err != nil {
		return fmt.Errorf("make the client: %w", err)
	}
	s.nowhere = filepath.Join(s.dir, "nowhere.kubeconfig")
	return s.writeKubeconfig(nowhere, s.nowhere)
}

// close takes everything down. The folder stays if it is the user's, or if the run has failed.
func (s *scene) close(good bool) error {
	var errs []error
	for _, l := range s.listeners {
		errs = append(errs, l.Close())
	}
	for _, c := range s.cables {
		errs = append(errs, c.Close())
	}
	if s.api != nil {
		errs = append(errs, s.api.Stop())
	}
	if s.server != nil {
		if !good {
			log, err := os.ReadFile(s.server.LogFile())
			if err == nil {
				err = os.WriteFile(filepath.Join(s.dir, "postgres.log"), log, 0o644)
			}
			errs = append(errs, err)
		}
		errs = append(errs, s.server.Close())
	}
	if good && !s.keep {
		errs = append(errs, os.RemoveAll(s.dir))
	}
	return errors.Join(errs...)
}

func (s *scene) schedulePath() string { return filepath.Join(s.dir, "schedule.txt") }

func (s *scene) writeSchedule(faults []schedule.Fault) error {
	var text strings.Builder
	fmt.Fprintln(&text, s.replay())
	for _, f := range faults {
		fmt.Fprintln(&text, f)
	}
	if err := os.WriteFile(s.schedulePath(), []byte(text.String()), 0o644); err != nil {
		return fmt.Errorf("write the schedule: %w", err)
	}
	return nil
}
