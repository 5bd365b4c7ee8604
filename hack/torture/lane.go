package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"shardedjob.dev/hack/torture/schedule"
)

const (
	watchEvery = 2 * time.Second
	// patience is how long a job with no row left may take to complete under fire, before its faults are held back.
	patience = 8 * time.Second
	// lastStart is how long before the end of the faults the last job of a lane begins at the latest.
	lastStart = 10 * time.Second
)

// lane is the succession of jobs of one way to remember progress.
type lane struct {
	*scene
	index    int
	way      way
	random   *rand.Rand
	machines []*machine // by ordinal
	once     sync.Once
	begun    chan struct{} // closed when the first job has begun

	mu    sync.Mutex
	now   *job  // nil between two jobs
	calm  bool  // faults about the job are held back
	slots int32 // n as last wished for
	state progress
	sum   account
}

// progress is what a person wants to know of the job of a lane.
type progress struct {
	job             string
	slots           int32
	epoch           int64
	left, processed int64
}

func newLane(s *scene, index int, w way) *lane {
	return &lane{scene: s, index: index, way: w, slots: schedule.FirstSlots, begun: make(chan struct{}), random: rand.New(rand.NewPCG(s.seed, uint64(index)+1))}
}

// run runs one job after the other until the faults are over, at least one. An error is one of the torture itself.
func (l *lane) run(ctx context.Context) error {
	for round := 1; round == 1 || time.Until(l.end()) > lastStart; round++ {
		if err := l.round(ctx, round); err != nil {
			return err
		}
	}
	return nil
}

// round runs a job from its beginning to its audit.
func (l *lane) round(ctx context.Context, round int) error {
	j, err := newJob(ctx, l, round)
	if err != nil {
		return err
	}
	working, stop := context.WithCancel(ctx)
	defer stop()
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() { j.operate(working) })
	group.Go(func() { j.keepPods(working) })
	l.begin(j)
	application, stopApplication := context.WithCancel(working)
	defer stopApplication()
	group.Go(func() { j.useTable(application) })

	j.awaitCompletion(ctx)
	l.leave()
	stopApplication()
	if err := j.stopPods(ctx); err != nil {
		j.wrong("%v", err)
		j.killAll()
	}
	j.troubles.Wait()
	stop()
	group.Wait()
	if ctx.Err() != nil {
		return nil
	}
	if err := j.audit(ctx); err != nil {
		return err
	}
	return j.remove(ctx)
}

func (l *lane) begin(j *job) {
	l.mu.Lock()
	l.now, l.calm = j, false
	slots := l.slots
	l.mu.Unlock()
	j.scale(max(1, slots))
	l.once.Do(func() { close(l.begun) })
}

func (l *lane) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now, l.state = nil, progress{}
}

// current is the job that faults are about, nil while there is none. The caller says when it is through with it.
func (l *lane) current() (j *job, through func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.calm || l.now == nil {
		return nil, nil
	}
	l.now.troubles.Add(1)
	return l.now, l.now.troubles.Done
}

// awaitCompletion returns when the job is complete, or has not become so in time after the faults have stopped.
func (j *job) awaitCompletion(ctx context.Context) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	var empty time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-j.complete:
			return
		case <-tick.C:
		}
		left, err := j.look(ctx)
		switch {
		case err != nil || left > 0:
			empty = time.Time{}
		case empty.IsZero():
			empty = time.Now()
		}
		if over := time.Since(j.end()); over > j.settle {
			j.wrong("job %s is not complete %s after the faults have stopped; %d rows are left, its report is %+v", j.name, over.Round(time.Second), left, j.lastReport())
			return
		}
		j.quiet.Store(!empty.IsZero())
		j.lane.mu.Lock()
		j.lane.calm = !empty.IsZero() && time.Since(empty) > patience
		j.lane.mu.Unlock()
	}
}

// look finds out how many of the rows that were there at the start are still to do.
func (j *job) look(ctx context.Context) (left int64, err error) {
	var processed int64
	err = j.onConnection(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, fmt.Sprintf("SELECT (SELECT count(*) FROM %[1]s.t WHERE n = 0 AND NOT app AND NOT late AND NOT outside), (SELECT coalesce(sum(rows), 0) FROM %[1]s.batch)",
			j.table.schema)).Scan(&left, &processed)
	})
	if err != nil {
		return 0, err
	}
	j.mu.Lock()
	p := progress{job: j.name, slots: j.published.Slots, epoch: j.published.Epoch, left: left, processed: processed}
	j.mu.Unlock()
	j.lane.mu.Lock()
	defer j.lane.mu.Unlock()
	j.lane.state = p
	return left, nil
}
