package coordinator

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"time"

	"github.com/jackc/pgx/v5"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/worker/fence"
)

const (
	// progressEvery is how often a report is written when only its figures changed.
	progressEvery = 5 * time.Second
	// saveTimeout bounds a write to the API server; the next tick tries again.
	saveTimeout = 5 * time.Second
	// tickTimeout bounds all statements of a tick but the check of the whole table.
	tickTimeout = 20 * time.Second
	// lastTick is how long a tick may still take once the worker has to stop.
	lastTick = 2 * time.Second
	// countEvery is how often the pending rows are counted anew. In between, processed rows are subtracted.
	countEvery = 10 * time.Minute
	// countRetry is the pause after a count that failed, because the table is locked for example.
	countRetry = time.Minute
	// withoutStore is how long a coordinator may be without the store before it gives up the seat: others may reach it.
	withoutStore = 20 * time.Second
	// storeEvery is how often the store is asked whether the report is still there when there is nothing to write.
	storeEvery = 30 * time.Second
	// checkEvery is how often a drained table is checked again when the check found rows.
	checkEvery = 5 * time.Second
	// checkTimeout bounds the check that nothing is pending: without a partial index it reads the whole table.
	checkTimeout = 30 * time.Minute
	// roomEvery is how often the server's free connections are counted.
	roomEvery = 15 * time.Second
)

// desk is the coordinator's work, from the moment it got the seat.
type desk struct {
	*Candidate
	session *fence.Session
	beats   *inbox

	tally   *tally
	pace    pace
	counts  *Counts // as the database has them
	written *v1alpha1.Report
	raw     string // as it was written
	savedAt time.Time
	seenAt  time.Time // when it was last known to be in the store
	behind  bool      // somebody else may have written to the store
	reached time.Time // when it was last reached, or the seat was taken
	saveDue time.Time // after a failure: when to try the store again
	backoff wait.Backoff

	counted     bool
	pending     int64     // as last counted
	countDue    time.Time // when to count again
	atCount     int64     // processed rows when it was counted
	checkedAt   time.Time
	connections *v1alpha1.Connections
	roomAt      time.Time
	warnings    []string  // about the table
	warnedFor   int64     // the epoch they were found under
	warnDue     time.Time // when to look again
}

// tick looks at the world once and writes the report if it has news. An error means that the session is of no use any
// more. When the worker stops, only the check of the whole table is broken off: the rest is short, or the server is not
// there, and canceling a statement would end the session before its last word.
func (d *desk) tick(stop context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(stop), tickTimeout)
	defer cancel()
	defer context.AfterFunc(stop, func() { time.AfterFunc(lastTick, cancel) })()
	changed := d.Feed.Changed()
	plan, _ := d.Feed.Current()
	if time.Since(d.reached) > withoutStore {
		return errNoStore
	}
	if d.tally == nil && !d.load(ctx) {
		return d.session.Ping(ctx)
	}
	locks, err := fence.Holders(ctx, d.session.Conn(), d.Group)
	if err != nil {
		return err
	}
	for _, b := range d.beats.take() {
		d.tally.add(b)
	}
	v := view{
		job: d.Job, plan: plan, now: time.Now(), own: d.beats.own, adopted: d.beats.adopted, batchLimit: batchLimit(plan),
		holders: slotHolders(d.Job, d.Group, locks),
	}
	report := compose(v)
	report.Coordinator = d.Pod
	report.CompleteTime = completion(d.written, report)
	for _, h := range locks {
		if h.Kind() == fence.KindEpoch && h.Ours && h.Identity.GroupHash == d.Group.Hash() {
			report.HighestEpoch = max(report.HighestEpoch, h.Epoch())
		}
	}
	if err := d.askTable(ctx, v.now, plan); err != nil {
		return err
	}
	if err := d.countConnections(ctx, v.now); err != nil {
		return err
	}
	report.Connections = d.connections
	report.Warnings = warnings(report.Warnings, d.warnings)
	if table := d.Table(); table != nil {
		report.By = table.By()
	}
	if report.CompleteTime == nil && !plan.Forget && v.drained(v.slots()) && v.now.Sub(d.checkedAt) >= checkEvery {
		// The check may take long; so what is known goes first.
		d.figures(&report, v.now)
		d.save(context.WithoutCancel(stop), report, v.now)
		if report.CompleteTime, err = d.checkComplete(stop, plan, changed); err != nil {
			return err
		}
	}
	d.figures(&report, v.now)
	d.save(context.WithoutCancel(stop), report, v.now)
	return nil
}

// leave writes what has been counted since the last report.
func (d *desk) leave(ctx context.Context) error {
	if d.tally == nil || d.written == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), saveTimeout)
	defer cancel()
	// The other workers' last beats arrive with this answer.
	if err := d.session.Ping(ctx); err != nil {
		return err
	}
	for _, b := range d.beats.take() {
		d.tally.add(b)
	}
	report := *d.written
	d.figures(&report, time.Now())
	return d.put(ctx, report)
}

// load takes over from the predecessor. Without its counters the rows done so far would be forgotten, so nothing is written
// before that has worked once.
func (d *desk) load(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, saveTimeout)
	defer cancel()
	data, err := d.Store.Load(ctx)
	if err != nil {
		d.Log.Warn("Cannot read the last report", "error", err)
		return false
	}
	d.tally = decodeTally(d.UID, data[CountersKey])
	// A report that cannot be used is as good as none: it is written anew.
	d.written, _, _ = v1alpha1.DecodeReport(d.UID, data)
	d.raw, d.seenAt = data[v1alpha1.ReportKey], time.Now()
	d.reached = d.seenAt
	return true
}

// askTable renews what only the database knows.
func (d *desk) askTable(ctx context.Context, now time.Time, plan v1alpha1.Plan) error {
	if err := d.countDone(ctx); err != nil {
		return err
	}
	if err := d.countRows(ctx, now, plan); err != nil {
		return err
	}
	return d.lookForWarnings(ctx, now, plan)
}

// countDone asks for the rows that the database itself knows to be done.
func (d *desk) countDone(ctx context.Context) error {
	table := d.Table()
	if table == nil {
		return nil
	}
	counts, err := table.Counts(ctx, d.session)
	if err != nil {
		return d.putUp("count the rows that are done", err)
	}
	d.counts = counts
	return nil
}

// processed is the database's count where it has one, else the sum of what the workers say.
func (d *desk) processed() int64 {
	if d.counts != nil {
		return d.counts.Processed
	}
	return d.tally.processed()
}

// lookForWarnings looks at the table now and then, and anew for each partition.
func (d *desk) lookForWarnings(ctx context.Context, now time.Time, plan v1alpha1.Plan) error {
	table := d.Table()
	if table == nil || plan.Slots == 0 || d.warnedFor == plan.Epoch && now.Before(d.warnDue) {
		return nil
	}
	d.warnedFor, d.warnDue = plan.Epoch, now.Add(countEvery)
	found, err := table.Warnings(ctx, d.session, plan.Slots)
	if err != nil {
		return d.putUp("look how evenly the slots are filled", err)
	}
	d.warnings = found
	return nil
}

// countRows counts the pending rows now and then.
func (d *desk) countRows(ctx context.Context, now time.Time, plan v1alpha1.Plan) error {
	table := d.Table()
	if table == nil || now.Before(d.countDue) {
		return nil
	}
	n, err := table.CountPending(ctx, d.session, plan)
	if err != nil {
		d.countDue = now.Add(countRetry)
		return d.putUp("count the pending rows", err)
	}
	d.counted, d.pending, d.countDue, d.atCount = true, n, now.Add(countEvery), d.processed()
	return nil
}

// putUp lets the coordinator go on without an answer of the table, which may be locked, changed or gone: the workers say
// so, and somebody has to pass it on. Only the loss of the session is returned.
func (d *desk) putUp(doing string, err error) error {
	if d.session.Conn().IsClosed() {
		return fmt.Errorf("%s: %w", doing, err)
	}
	d.Log.Warn("Cannot "+doing, "error", describe(err))
	return nil
}

// checkComplete makes the check that alone can complete a job, and returns when it found nothing pending. A new plan breaks
// it off, together with the session, so that whoever takes the seat then reports on that plan at once.
func (d *desk) checkComplete(ctx context.Context, plan v1alpha1.Plan, changed <-chan struct{}) (*metav1.Time, error) {
	table := d.Table()
	if table == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	go func() {
		select {
		case <-ctx.Done():
		case <-changed:
			cancel()
		}
	}()
	at, err := table.Completed(ctx, d.session, plan)
	d.checkedAt = time.Now()
	if err != nil {
		return nil, d.putUp("check that nothing is pending", err)
	}
	if at == nil {
		return nil, nil
	}
	d.Log.Info("Nothing is pending any more", "since", *at)
	return &metav1.Time{Time: at.Truncate(time.Second)}, nil
}

// figures fills in progress.
func (d *desk) figures(r *v1alpha1.Report, now time.Time) {
	r.Processed = d.processed()
	r.RowsPerSecond = d.pace.rate(now, r.Processed)
	if d.counts != nil {
		r.Failed = d.counts.Failed
	}
	if d.counted {
		remaining := max(d.pending-(r.Processed-d.atCount), 0)
		if r.CompleteTime != nil {
			remaining = 0
		}
		r.Remaining = &remaining
	}
}

// roomQuery counts the connections that the workers' role may still open: the server, the database and the role each have
// a limit. Of other roles' sessions only pg_read_all_stats may see the type.
const roomQuery = `
	SELECT least(server.max, nullif(d.datconnlimit, -1), nullif(r.rolconnlimit, -1)),
	       least(server.max - server.used, nullif(d.datconnlimit, -1) - in_db.used, nullif(r.rolconnlimit, -1) - by_role.used)
	  FROM (SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
	               - coalesce(current_setting('reserved_connections', true), '0')::int AS max,
	               (SELECT count(*)::int FROM pg_stat_activity WHERE datid IS NOT NULL AND coalesce(backend_type, 'client backend') = 'client backend') AS used) server,
	       (SELECT count(*)::int AS used FROM pg_stat_activity WHERE datname = current_database()) in_db,
	       (SELECT count(*)::int AS used FROM pg_stat_activity WHERE usename = session_user) by_role,
	       pg_database d, pg_roles r
	 WHERE d.datname = current_database() AND r.rolname = session_user`

// countConnections renews the count now and then. Small changes are not news.
func (d *desk) countConnections(ctx context.Context, now time.Time) error {
	if now.Sub(d.roomAt) < roomEvery {
		return nil
	}
	d.roomAt = now
	var c v1alpha1.Connections
	if err := d.session.Conn().QueryRow(ctx, roomQuery, pgx.QueryExecModeExec).Scan(&c.Limit, &c.Free); err != nil {
		return fmt.Errorf("count the free connections: %w", err)
	}
	c.Free = max(c.Free, 0)
	if d.connections != nil && d.connections.Limit == c.Limit {
		if change := d.connections.Free - c.Free; max(change, -change) < max(5, c.Limit/10) {
			return nil
		}
	}
	d.connections = &c
	return nil
}

// save writes the report if it has news: at once if something has changed, every few seconds if only figures have. A
// failure is not the session's fault; it is tried again after pauses that grow.
func (d *desk) save(ctx context.Context, r v1alpha1.Report, now time.Time) {
	if now.Before(d.saveDue) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, saveTimeout)
	defer cancel()
	if err := d.trySave(ctx, r, now); err != nil {
		d.saveDue = time.Now().Add(d.backoff.Step())
		d.Log.Warn("Cannot write the report", "error", err)
		return
	}
	d.backoff, d.reached = retry, time.Now()
}

func (d *desk) trySave(ctx context.Context, r v1alpha1.Report, now time.Time) error {
	check := d.behind
	if d.written != nil {
		if reflect.DeepEqual(r, *d.written) {
			if now.Sub(d.seenAt) < storeEvery {
				return nil
			}
			check = true // somebody may have removed it
		} else if reflect.DeepEqual(withoutFigures(r), withoutFigures(*d.written)) && now.Sub(d.savedAt) < progressEvery {
			return nil
		}
	}
	if check {
		data, err := d.Store.Load(ctx)
		if err != nil {
			return err
		}
		d.seenAt = now
		if d.written != nil && data[v1alpha1.ReportKey] == d.raw && reflect.DeepEqual(r, *d.written) {
			return nil
		}
		// What was read may be a successor's. Who has the seat after reading may write over it; a later successor's is refused.
		if err := d.session.Ping(ctx); err != nil {
			return err
		}
	}
	d.behind = true
	if err := d.put(ctx, r); err != nil {
		return err
	}
	d.behind = false
	d.written, d.savedAt = &r, now
	return nil
}

func (d *desk) put(ctx context.Context, r v1alpha1.Report) error {
	raw, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode the report: %w", err)
	}
	counters, err := d.tally.encode()
	if err != nil {
		return err
	}
	if err := d.Store.Save(ctx, map[string]string{v1alpha1.ReportKey: string(raw), CountersKey: counters}); err != nil {
		return err
	}
	d.raw, d.seenAt = string(raw), time.Now()
	return nil
}

// withoutFigures is what of a report is news at once.
func withoutFigures(r v1alpha1.Report) v1alpha1.Report {
	r.Processed, r.Failed, r.Remaining, r.RowsPerSecond, r.Warnings = 0, 0, nil, 0, nil
	slots := make([]v1alpha1.SlotStatus, len(r.SlotStatuses))
	for i, s := range r.SlotStatuses {
		// How long something is waited for is part of the message.
		s.Processed, s.Failed, s.Message = 0, 0, ""
		slots[i] = s
	}
	r.SlotStatuses = slots
	return r
}

// slotHolders picks who holds each slot, and under which epoch.
func slotHolders(job string, group fence.Group, locks []fence.Holder) map[int32]holder {
	epochs := map[int32]int64{} // by pid
	for _, h := range locks {
		if h.Kind() == fence.KindEpoch {
			epochs[h.PID] = h.Epoch()
		}
	}
	slots := map[int32]holder{}
	for _, h := range locks {
		if h.Kind() != fence.KindSlot {
			continue
		}
		who := holder{ordinal: -1, name: h.Who(), epoch: epochs[h.PID], pid: h.PID}
		if h.Ours && h.Identity.GroupHash == group.Hash() {
			who.ordinal, who.name = h.Identity.Ordinal, v1alpha1.PodName(job, h.Identity.Ordinal)
		}
		slots[int32(h.Value())] = who
	}
	return slots
}
