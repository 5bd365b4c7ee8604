// Package coordinator chooses one worker to speak for all of them, and is what that worker then does.
//
// There are two seats, each an advisory lock of the group: the coordinator's and its deputy's. A worker that sees an
// empty seat opens a second session and tries for it, so that the choice ends at the first try that succeeds, is unique
// because the lock is, and can be seen by everybody in pg_locks. The deputy polls the coordinator's lock, which is why a
// successor is there within a second even when all other workers are in the middle of long batches. The sessions of the
// two are the only ones beside the one that each worker works on.
//
// The coordinator listens to the workers' heartbeats, looks at who holds which lock, and writes the report. The locks are
// the facts; heartbeats only add what locks cannot show.
//
// After "Primary node election in distributed computing": any number of nodes, termination, uniqueness, agreement. Its
// weakness, up to twice the lease until a new node is chosen, is not there, since a lock ends with its session.
package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/worker/database"
	"shardedjob.dev/worker/fence"
	"shardedjob.dev/worker/heartbeat"
	"shardedjob.dev/worker/internal/sleep"
	"shardedjob.dev/worker/planfeed"
)

// Role is a worker's part in the coordination.
type Role string

// The roles.
const (
	RoleNone        Role = "none"
	RoleDeputy      Role = "deputy"
	RoleCoordinator Role = "coordinator"
)

// The seats, as values of the coordinator lock.
const (
	seatCoordinator = 0
	seatDeputy      = 1
)

const (
	// deputyPoll is how often the deputy tries the coordinator's lock.
	deputyPoll = 500 * time.Millisecond
	// tick is how often the coordinator looks at the locks. Heartbeats arrive with the answer.
	tick = time.Second
	// tryJitter spreads the workers that have all seen the same empty seat.
	tryJitter = 300 * time.Millisecond
)

// retry is the pause after a failure, longer each time, so that a server in trouble, or without a free connection, is left alone.
var retry = wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 0.5, Steps: 1 << 30, Cap: 15 * time.Second}

// errNoStore ends the service of a coordinator that nobody hears.
var errNoStore = errors.New("the report cannot be reached; leaving the seat to others")

// rest is the pause after which a candidate that had no store asks whether it is back, longer each time.
var rest = wait.Backoff{Duration: 5 * time.Second, Factor: 2, Jitter: 0.5, Steps: 1 << 30, Cap: time.Minute}

// goodService is how long a session has to last for the pauses to begin anew.
const goodService = 30 * time.Second

// frozenAfter ends the session of a coordinator whose process stands still, so that the deputy can take over: one at work
// says something every second, and waits for the API server no longer than half of this.
const frozenAfter = "SET idle_session_timeout = '15s'"

// SeatName goes before the job's name in the application name of a seat's session, for people who look at
// pg_stat_activity. A session starts out as the deputy's.
func SeatName(r Role) string { return string(r) + " of " }

// showRole renames the session.
const showRole = "SELECT set_config('application_name', replace(current_setting('application_name'), $1, $2), false)"

// Table answers what only the database knows. A nil Table means that it is not known yet.
type Table interface {
	// By is what of a key picks its slot.
	By() v1alpha1.ShardBy
	// Completed is when nothing was left to do under the plan, over all slots; nil if something is. It may take long.
	Completed(ctx context.Context, s *fence.Session, plan v1alpha1.Plan) (*time.Time, error)
	// CountPending counts or, where that takes too long, estimates the rows that are pending.
	CountPending(ctx context.Context, s *fence.Session, plan v1alpha1.Plan) (int64, error)
	// Counts are the rows done and failed as the database knows them; nil where only the workers count.
	Counts(ctx context.Context, s *fence.Session) (*Counts, error)
	// Warnings are sentences for people about the table in so many slots.
	Warnings(ctx context.Context, s *fence.Session, slots int32) ([]string, error)
}

// Counts are numbers of rows.
type Counts struct {
	Processed, Failed int64
}

// Store keeps the report where the operator finds it.
type Store interface {
	// Load returns what a predecessor left: its report and its counters, as it saved them.
	Load(ctx context.Context) (map[string]string, error)
	// Save writes the keys given and leaves others alone. It fails if somebody else has written since the last Load or
	// Save; Load again then.
	Save(ctx context.Context, data map[string]string) error
}

// Config is what a candidate needs.
type Config struct {
	// Job is the ShardedJob's name, UID its UID, Pod the name of this worker's pod.
	Job string
	UID types.UID
	Pod string
	// Group is the consumer group.
	Group fence.Group
	// Connect opens a session for the seat; notifications that arrive on it are handed to the function.
	Connect func(ctx context.Context, notify func(*pgconn.Notification)) (*fence.Session, error)
	// Table returns the table, nil while it is not known.
	Table func() Table
	// Feed holds the plan.
	Feed *planfeed.Feed
	// Store keeps the report.
	Store Store
	Log   *slog.Logger
}

// Candidate is a worker's side of the election. Only Run, Vacancy and Role may be called, from any goroutine.
type Candidate struct {
	Config
	vacant chan struct{}

	mu   sync.Mutex
	role Role
}

// NewCandidate makes a candidate; Run lets it stand.
func NewCandidate(cfg Config) *Candidate {
	return &Candidate{Config: cfg, vacant: make(chan struct{}, 1), role: RoleNone}
}

// Role is the worker's part right now.
func (c *Candidate) Role() Role {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.role
}

func (c *Candidate) setRole(r Role) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.role = r
}

// Vacancy tells the candidate that a seat is empty. It never blocks.
func (c *Candidate) Vacancy() {
	select {
	case c.vacant <- struct{}{}:
	default:
	}
}

// Vacant says whether one of the two seats is empty among the group's locks, and who is the coordinator, if known.
func Vacant(holders []fence.Holder) (vacant bool, coordinator *fence.Holder) {
	taken := 0
	for i, h := range holders {
		if h.Kind() != fence.KindCoordinator {
			continue
		}
		taken++
		if h.Value() == seatCoordinator {
			coordinator = &holders[i]
		}
	}
	return taken < 2, coordinator
}

// Run stands for the seats, and serves in the one it gets, until the context ends.
func (c *Candidate) Run(ctx context.Context) {
	backoff := retry
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.vacant:
		}
		if !sleep.For(ctx, rand.N(tryJitter)) {
			return
		}
		began := time.Now()
		err := c.stand(ctx)
		if err == nil || time.Since(began) > goodService {
			backoff = retry
		}
		if err != nil && ctx.Err() == nil {
			c.Log.Warn("Coordination interrupted", "error", describe(err))
			if errors.Is(err, errNoStore) {
				c.awaitStore(ctx)
			} else {
				sleep.For(ctx, backoff.Step())
			}
		}
	}
}

// awaitStore leaves the seats to others until the store can be reached from here. There may be no others.
func (c *Candidate) awaitStore(ctx context.Context) {
	pauses := rest
	for sleep.For(ctx, pauses.Step()) {
		load, cancel := context.WithTimeout(ctx, saveTimeout)
		_, err := c.Store.Load(load)
		cancel()
		if err == nil {
			return
		}
	}
}

// describe makes an error fit for the log: what the server says may quote the content of a row.
func describe(err error) string {
	var server *pgconn.PgError
	if errors.As(err, &server) {
		return database.Describe(err)
	}
	return err.Error()
}

// stand tries both seats once and serves in what it gets until the session or the context ends.
func (c *Candidate) stand(ctx context.Context) error {
	beats := newInbox()
	session, err := c.Connect(ctx, beats.receive)
	if err != nil {
		return fmt.Errorf("open the coordinator's session: %w", err)
	}
	defer c.setRole(RoleNone)
	defer func() { _ = session.Close(ctx) }()
	if _, err := session.Conn().Exec(ctx, frozenAfter); err != nil {
		return fmt.Errorf("set up the coordinator's session: %w", err)
	}
	got, err := session.TryLock(ctx, fence.CoordinatorKey(c.Group, seatCoordinator), fence.Exclusive)
	if err != nil {
		return err
	}
	if !got {
		if got, err = c.waitAsDeputy(ctx, session); err != nil || !got {
			return err
		}
	}
	if _, err := session.Conn().Exec(ctx, showRole, SeatName(RoleDeputy), SeatName(RoleCoordinator)); err != nil {
		return fmt.Errorf("name the coordinator's session: %w", err)
	}
	c.setRole(RoleCoordinator)
	c.Log.Info("Became coordinator")
	return c.serve(ctx, session, beats)
}

// paused says that the job wants no worker now: nobody holds a seat, or anything else.
func (c *Candidate) paused() bool {
	plan, _ := c.Feed.Current()
	return plan.Slots == 0
}

// waitAsDeputy takes the deputy's seat and waits in it for the coordinator's.
func (c *Candidate) waitAsDeputy(ctx context.Context, session *fence.Session) (bool, error) {
	deputy := fence.CoordinatorKey(c.Group, seatDeputy)
	if got, err := session.TryLock(ctx, deputy, fence.Exclusive); err != nil || !got {
		return false, err
	}
	c.setRole(RoleDeputy)
	for sleep.For(ctx, deputyPoll/2+rand.N(deputyPoll)) && !c.paused() {
		got, err := session.TryLock(ctx, fence.CoordinatorKey(c.Group, seatCoordinator), fence.Exclusive)
		if err != nil {
			return false, err
		}
		if got {
			return true, session.Unlock(ctx, deputy)
		}
	}
	return false, nil
}

// serve writes the report until the session or the context ends.
func (c *Candidate) serve(ctx context.Context, session *fence.Session, beats *inbox) error {
	channel := heartbeat.Channel(c.Group.Hash())
	if _, err := session.Conn().Exec(ctx, "LISTEN "+channel); err != nil {
		return fmt.Errorf("listen for heartbeats: %w", err)
	}
	desk := &desk{Candidate: c, session: session, beats: beats, backoff: retry, reached: time.Now()}
	for {
		if err := desk.tick(ctx); err != nil {
			return err
		}
		if !sleep.For(ctx, tick) || c.paused() {
			// A last word, so that what has been counted is not lost.
			return desk.leave(ctx)
		}
	}
}

// inbox keeps the newest beat of each slot's own worker, and of whoever has adopted it.
type inbox struct {
	own, adopted map[int32]heard // by slot
	fresh        []heartbeat.Beat
	last         map[int32]int // by seat: where in fresh its newest beat is
}

func newInbox() *inbox {
	return &inbox{own: map[int32]heard{}, adopted: map[int32]heard{}, last: map[int32]int{}}
}

// receive is called by the connection while it waits for an answer, so on the coordinator's own goroutine.
func (i *inbox) receive(n *pgconn.Notification) {
	b, err := heartbeat.Decode(n.Payload)
	if err != nil {
		return
	}
	by := i.own
	if b.Slot != b.Ordinal {
		by = i.adopted
	}
	by[b.Slot] = heard{Beat: b, at: time.Now()}
	// A later beat of one run says all that the earlier one did. Nobody takes any while the API server is away.
	if at, ok := i.last[seat(b)]; ok && i.fresh[at].Run == b.Run {
		i.fresh[at] = b
		return
	}
	i.last[seat(b)] = len(i.fresh)
	i.fresh = append(i.fresh, b)
}

// take returns the newest beat of each run since the last call, the runs of a seat in order.
func (i *inbox) take() []heartbeat.Beat {
	fresh := i.fresh
	i.fresh = nil
	clear(i.last)
	return fresh
}

// batchLimit is how long a worker may be silent because of a batch.
func batchLimit(p v1alpha1.Plan) time.Duration {
	return time.Duration(p.Batch.TimeoutSeconds) * time.Second
}
