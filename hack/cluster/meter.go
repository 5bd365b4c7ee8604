package cluster

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// meter shows how far the build is: a bar on a terminal, else a plain line now and then.
type meter struct {
	out   io.Writer
	total int
	start time.Time
	bar   *progressbar.ProgressBar // nil where out is no terminal
	stop  chan struct{}
	ended sync.WaitGroup

	mu   sync.Mutex
	done int
}

const (
	meterTitle  = "Building the Kubernetes servers, kept for later runs"
	meterPeriod = 15 * time.Second // between plain lines
)

func newMeter(out io.Writer, total int) *meter {
	m := &meter{out: out, total: total, start: time.Now(), stop: make(chan struct{})}
	period := meterPeriod
	if file, ok := out.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		m.bar = progressbar.NewOptions(total, progressbar.OptionSetWriter(out), progressbar.OptionSetDescription(meterTitle),
			progressbar.OptionShowCount(), progressbar.OptionSetItsString("packages"), progressbar.OptionFullWidth(),
			progressbar.OptionThrottle(200*time.Millisecond))
		period = time.Second
	} else {
		fmt.Fprintf(out, "%s: %d packages to compile\n", meterTitle, total)
	}
	m.ended.Go(func() {
		tick := time.NewTicker(period)
		defer tick.Stop()
		for {
			select {
			case <-m.stop:
				return
			case <-tick.C:
				m.show()
			}
		}
	})
	return m
}

func (m *meter) add() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done++
}

// show is called in time rather than for each package: the clock must go on while the linker, which comes last and says nothing, works.
func (m *meter) show() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.bar != nil {
		_ = m.bar.Set(min(m.done, m.total)) // a terminal that is gone is no reason to stop a build
		return
	}
	fmt.Fprintf(m.out, "  %d of %d packages compiled, %s\n", m.done, m.total, time.Since(m.start).Round(time.Second))
}

func (m *meter) finish() {
	close(m.stop)
	m.ended.Wait()
	if m.bar != nil {
		_ = m.bar.Exit()
	}
	fmt.Fprintf(m.out, "\nBuilt for %s\n", time.Since(m.start).Round(time.Second))
}
