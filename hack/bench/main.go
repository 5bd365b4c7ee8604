// Bench measures what the fence costs: the rows per second of a backfill by n workers, against the same UPDATE by n plain
// sessions that share the table in contiguous ranges, in batches of the same size, on the same server, in turns.
//
//	go run ./hack/bench -rows 1000000 -slots 1,2,4
//
// A worker here is what it is in a pod, without Kubernetes: a fenced session and the Runner of its slot. It finds its
// rows, locks them with a re-check, runs the statement, looks whether it left rows pending, checks its locks and
// commits; the peer knows its rows beforehand and does none of that. The UPDATE is a light one, since a heavy one would
// hide the difference. Each measurement begins with a new, vacuumed table and is checked for rows that were missed or
// done twice.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"time"

	"shardedjob.dev/hack/postgres"
)

// settings keep what is not measured out of the figures. Autovacuum is off for the table alone, see refill.
var settings = map[string]string{
	"shared_buffers":     "512MB",
	"max_wal_size":       "16GB",
	"checkpoint_timeout": "1h",
	"fsync":              "off",
}

type options struct {
	rows, batch, runs int
	slots             []int32
	settings          map[string]string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	o, err := parse(os.Args[1:])
	if err == nil {
		err = run(ctx, o, os.Stdout)
	}
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func parse(args []string) (options, error) {
	o := options{slots: []int32{1, 2, 4}, settings: settings}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.IntVar(&o.rows, "rows", 1_000_000, "rows of the table")
	flags.IntVar(&o.batch, "batch", 500, "rows of a batch")
	flags.IntVar(&o.runs, "runs", 3, "measurements of each kind; the median counts")
	flags.Func("slots", "numbers of workers (default 1,2,4)", func(list string) error {
		o.slots = nil
		for text := range strings.SplitSeq(list, ",") {
			n, err := strconv.ParseInt(text, 10, 32)
			if err != nil || n < 1 {
				return fmt.Errorf("%q is no number of workers", text)
			}
			o.slots = append(o.slots, int32(n))
		}
		return nil
	})
	flags.Func("set", "a setting of the server, as name=value; may be given several times", func(pair string) error {
		name, value, ok := strings.Cut(pair, "=")
		if !ok {
			return errors.New("not of the form name=value")
		}
		o.settings[name] = value
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if o.rows < 1 || o.batch < 1 || o.runs < 1 || flags.NArg() > 0 {
		return o, errors.New("rows, batch and runs must be greater than 0, and nothing may follow the flags")
	}
	return o, nil
}

func run(ctx context.Context, o options, out io.Writer) (err error) {
	server, err := postgres.Start(ctx, postgres.Options{Settings: o.settings})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	t, err := newTable(ctx, server.URI("postgres"), o)
	if err != nil {
		return err
	}
	defer func() { _ = t.admin.Close(context.WithoutCancel(ctx)) }()
	if err := t.describe(ctx, out); err != nil {
		return err
	}
	fmt.Fprintln(out, "   n  workers rows/s  plain rows/s  ratio  workers CPU µs/row  plain CPU µs/row")
	for _, n := range o.slots {
		var ours, plain []figure
		for i := range o.runs {
			// Whoever is first now is second in the next turn.
			turns := []func() error{
				func() error { return t.measure(ctx, n, &ours, t.workers) },
				func() error { return t.measure(ctx, n, &plain, t.plain) },
			}
			if i%2 == 1 {
				slices.Reverse(turns)
			}
			for _, turn := range turns {
				if err := turn(); err != nil {
					return fmt.Errorf("with %d sessions: %w", n, err)
				}
			}
		}
		a, b := median(ours), median(plain)
		fmt.Fprintf(out, "%4d  %14.0f  %12.0f  %5.2f  %18.1f  %16.1f\n", n, a.rate(o.rows), b.rate(o.rows), a.rate(o.rows)/b.rate(o.rows),
			a.perRow(o.rows), b.perRow(o.rows))
	}
	return nil
}

// figure is one measurement.
type figure struct {
	took time.Duration
	cpu  time.Duration // of the server's side of the sessions; 0 where /proc does not tell
}

func (f figure) rate(rows int) float64 { return float64(rows) / f.took.Seconds() }

// perRow is the CPU time of the server in microseconds.
func (f figure) perRow(rows int) float64 { return float64(f.cpu.Microseconds()) / float64(rows) }

func median(figures []figure) figure {
	slices.SortFunc(figures, func(a, b figure) int { return cmp.Compare(a.took, b.took) })
	return figures[len(figures)/2]
}
