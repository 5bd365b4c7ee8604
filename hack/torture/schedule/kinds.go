package schedule

import (
	"maps"
	"slices"
	"time"
)

// Kind is a kind of fault.
type Kind string

// The kinds of faults. What Hold means is said where it is more than "for that long".
const (
	Kill        Kind = "kill"         // SIGKILL of a worker; Hold: until it is started again
	Stop        Kind = "stop"         // SIGSTOP of a worker, then SIGCONT
	Freeze      Kind = "freeze"       // the same, for longer than the hand-over time
	Cut         Kind = "cut"          // the cable to a worker's machine carries nothing, and is mended
	Terminate   Kind = "terminate"    // pg_terminate_backend of a worker's session
	Unseat      Kind = "unseat"       // pg_terminate_backend of the coordinator's session
	Restart     Kind = "restart"      // fast restart of the database server
	Crash       Kind = "crash"        // immediate restart of the database server, which has to recover
	Scale       Kind = "scale"        // a plan with another n, 0 pauses; Hold: how long a pause lasts
	Flap        Kind = "flap"         // many of those in quick succession; in the schedule they stand as such
	Reload      Kind = "reload"       // a plan with another batch size or statement
	Suspend     Kind = "suspend"      // a plan with no slots, and all pods gone
	APIStop     Kind = "api-stop"     // the API server ends, and is started again
	APIFreeze   Kind = "api-freeze"   // the API server accepts connections and does not answer
	Comeback    Kind = "comeback"     // all workers are killed; one comes back with an old plan and no API server; Hold: how long it is alone
	LosePlan    Kind = "lose-plan"    // the plan's ConfigMap is deleted, and made anew
	RestorePlan Kind = "restore-plan" // the plan's ConfigMap is an old one again, and the operator has forgotten the newer
	Recreate    Kind = "recreate"     // the job is deleted and made again, for the same consumer group
	LockRows    Kind = "lock-rows"    // a transaction keeps rows locked
	LockTable   Kind = "lock-table"   // a transaction keeps a SHARE lock on the table
	Deadlock    Kind = "deadlock"     // transactions that take what a batch takes, the other way round
	LateCommit  Kind = "late-commit"  // rows that are inserted long before they are committed
	Prepare     Kind = "prepare"      // the same with a prepared transaction
	Index       Kind = "create-index" // CREATE INDEX CONCURRENTLY, and DROP INDEX CONCURRENTLY
	Vacuum      Kind = "vacuum"       // VACUUM ANALYZE
)

// Scope says what a fault is about.
type Scope int

// The scopes.
const (
	Everything Scope = iota // all jobs: what is broken serves them all
	Job                     // one job
	Pod                     // one pod of one job
)

// trait is what is known of a kind beforehand.
type trait struct {
	scope       Scope
	weight      int
	least, most time.Duration // of Hold
	// beyondHandover adds the hand-over time to Hold.
	beyondHandover bool
	// thing must be whole for the fault to happen, and is broken for the time of Hold and rest.
	thing string
	rest  time.Duration
}

// traits by kind. Restarts are rare: nothing goes on while the server is down.
var traits = map[Kind]trait{
	Kill:        {scope: Pod, weight: 150, most: 2 * time.Second},
	Stop:        {scope: Pod, weight: 100, least: 50 * time.Millisecond, most: 2 * time.Second},
	Freeze:      {scope: Pod, weight: 30, least: time.Second, most: 8 * time.Second, beyondHandover: true},
	Cut:         {scope: Pod, weight: 30, least: time.Second, most: 20 * time.Second},
	Terminate:   {scope: Pod, weight: 150},
	Unseat:      {scope: Job, weight: 40},
	Restart:     {weight: 8, thing: "server", rest: 10 * time.Second},
	Crash:       {weight: 8, thing: "server", rest: 10 * time.Second},
	Scale:       {scope: Job, weight: 120, least: 200 * time.Millisecond, most: 2 * time.Second, thing: "plan"},
	Flap:        {scope: Job, weight: 20, least: time.Second, most: 3 * time.Second, thing: "plan"},
	Reload:      {scope: Job, weight: 60},
	Suspend:     {scope: Job, weight: 8, least: time.Second, most: 4 * time.Second, thing: "plan", rest: time.Second},
	APIStop:     {weight: 4, least: 2 * time.Second, most: 8 * time.Second, thing: "API server", rest: 10 * time.Second},
	APIFreeze:   {weight: 8, least: 2 * time.Second, most: 15 * time.Second, thing: "API server", rest: 10 * time.Second},
	Comeback:    {scope: Job, weight: 10, least: 2 * time.Second, most: 6 * time.Second, thing: "plan", rest: 3 * time.Second},
	LosePlan:    {scope: Job, weight: 8, least: 500 * time.Millisecond, most: 4 * time.Second, thing: "plan"},
	RestorePlan: {scope: Job, weight: 8, thing: "plan"},
	Recreate:    {scope: Job, weight: 6, most: 2 * time.Second, thing: "plan", rest: 3 * time.Second},
	LockRows:    {scope: Job, weight: 60, least: 200 * time.Millisecond, most: 4 * time.Second},
	LockTable:   {scope: Job, weight: 15, least: 100 * time.Millisecond, most: 2 * time.Second, thing: "table"},
	Deadlock:    {scope: Job, weight: 60, least: 50 * time.Millisecond, most: 500 * time.Millisecond},
	LateCommit:  {scope: Job, weight: 60, least: 500 * time.Millisecond, most: 8 * time.Second},
	Prepare:     {scope: Job, weight: 20, least: 500 * time.Millisecond, most: 8 * time.Second},
	Index:       {scope: Job, weight: 8, thing: "index", rest: 5 * time.Second},
	Vacuum:      {scope: Job, weight: 8, thing: "index", rest: time.Second},
}

// Kinds are all of them, in alphabetical order.
func Kinds() []Kind { return slices.Sorted(maps.Keys(traits)) }

// Known says whether there is such a kind.
func (k Kind) Known() bool { _, ok := traits[k]; return ok }
