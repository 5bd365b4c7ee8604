// Torture proves that no row is lost or doubled, whatever breaks: it runs real workers against a real PostgreSQL and a real
// Kubernetes API server, breaks them by a schedule that a seed makes, and counts how often each row was processed.
//
//	go run ./hack/torture -duration 10m -seed 42
//
// It plays the operator, who writes plans, and the kubelet, who starts workers with an environment and mounted files and
// starts them again when they die. The work is not idempotent: each row counts how often it was processed, and a trigger
// notes each time in a ledger. Beside the workers an application updates, deletes and inserts rows of the same tables.
// For each way to remember progress there is a job; when it is complete it is audited and the next begins, with a new table and a
// new consumer group, until the time is over. Then the faults stop, and the last jobs have to complete by themselves.
//
// A run that fails says how to replay its schedule. The faults are the same then and come at the same times; what the
// machine does between them is not.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"shardedjob.dev/hack/torture/schedule"
)

// options of a run.
type options struct {
	seed     uint64
	duration time.Duration
	every    time.Duration // mean time between two faults
	settle   time.Duration // for the last jobs to complete when the faults have stopped
	rows     int           // of the largest table
	pods     int32         // greatest n
	ways     []way
	kinds    []schedule.Kind
	race     bool // build the workers with the race detector
	dir      string
}

// errFailed says that the run itself went well, and showed that something is wrong.
var errFailed = errors.New("failed")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	o, err := parse(os.Args[1:])
	if err == nil {
		err = run(ctx, o, os.Stdout)
	}
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "torture:", err)
		os.Exit(1)
	}
}

func parse(args []string) (options, error) {
	o := options{ways: ways}
	flags := flag.NewFlagSet("torture", flag.ContinueOnError)
	flags.Uint64Var(&o.seed, "seed", 0, "seed of the schedule; 0: one of chance")
	flags.DurationVar(&o.duration, "duration", 10*time.Minute, "how long faults come")
	flags.DurationVar(&o.every, "every", 350*time.Millisecond, "mean time between two faults")
	flags.DurationVar(&o.settle, "settle", 5*time.Minute, "how long the last jobs may take to complete when the faults have stopped")
	flags.IntVar(&o.rows, "rows", 300_000, "rows of the largest table")
	pods := flags.Int("pods", 6, "greatest number of slots of a job")
	flags.BoolVar(&o.race, "race", false, "build the workers with the race detector")
	flags.StringVar(&o.dir, "dir", "", "folder to make and keep for logs and the schedule; default: a temporary one, kept if the run fails")
	flags.Func("ways", "ways to remember progress, for example pending; default: all", func(list string) error {
		o.ways = nil
		for name := range strings.SplitSeq(list, ",") {
			i := slices.IndexFunc(ways, func(w way) bool { return w.name == name })
			if i < 0 {
				return fmt.Errorf("there is no way %q", name)
			}
			o.ways = append(o.ways, ways[i])
		}
		return nil
	})
	flags.Func("kinds", "kinds of faults, for example kill,freeze; default: all, but cut only for root on Linux", func(list string) error {
		for name := range strings.SplitSeq(list, ",") {
			if kind := schedule.Kind(name); kind.Known() {
				o.kinds = append(o.kinds, kind)
			} else {
				return fmt.Errorf("there is no kind %q; there are %v", name, schedule.Kinds())
			}
		}
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 || o.duration <= 0 || o.every <= 0 || o.settle <= 0 || o.rows < leastRows || *pods < 1 || *pods > 100 {
		return o, fmt.Errorf("duration, every and settle must be greater than 0, rows at least %d, pods 1 to 100, and nothing may follow the flags", leastRows)
	}
	o.pods = int32(*pods)
	if len(o.kinds) == 0 {
		o.kinds = possibleKinds()
	}
	for o.seed == 0 {
		o.seed = uint64(rand.Uint32())
	}
	return o, nil
}

// possibleKinds are all kinds of faults that can be brought about here.
func possibleKinds() []schedule.Kind {
	return slices.DeleteFunc(schedule.Kinds(), func(k schedule.Kind) bool { return k == schedule.Cut && !canCut() })
}

// replay is the command that runs the same schedule.
func (o options) replay() string {
	words := []string{"go run ./hack/torture", fmt.Sprintf("-seed %d -duration %s -every %s -rows %d -pods %d", o.seed, o.duration, o.every, o.rows, o.pods)}
	if o.race {
		words = append(words, "-race")
	}
	var names []string
	for _, w := range o.ways {
		names = append(names, w.name)
	}
	words = append(words, "-ways "+strings.Join(names, ","))
	if !slices.Equal(o.kinds, schedule.Kinds()) {
		names = nil
		for _, k := range o.kinds {
			names = append(names, string(k))
		}
		words = append(words, "-kinds "+strings.Join(names, ","))
	}
	return strings.Join(words, " ")
}

// run sets the scene, plays the schedule on it, and says what came of it. The error is errFailed if a row was lost or
// doubled, or anything else was not as it has to be.
func run(ctx context.Context, o options, out io.Writer) (err error) {
	s, err := newScene(ctx, o, out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close(err == nil)) }()
	faults := schedule.New(schedule.Options{
		Seed: o.seed, Duration: o.duration, Every: o.every, Jobs: len(o.ways), Pods: o.pods,
		Handover: handover * time.Second, Kinds: o.kinds,
	})
	if err := s.writeSchedule(faults); err != nil {
		return err
	}
	s.say("Seed %d: %d faults in %s; the schedule is in %s", o.seed, len(faults), o.duration, s.schedulePath())
	if err := s.play(ctx, faults); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return errors.New("stopped")
	}
	s.summary()
	if s.failed() {
		s.sayReplay(faults)
		return errFailed
	}
	return nil
}
