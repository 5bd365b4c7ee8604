// Package model is a small explicit-state model of the protocol by which workers share a table: the order in which they take, look
// at and let go of PostgreSQL advisory locks, and what they write down of what is done. It is pure, does no I/O and runs in the unit
// tests, so that the argument "no row is worked by two workers, none is lost, and the job can always finish" is checked over
// every interleaving instead of believed.
//
// # State
//
// A [State] is what can be told apart by somebody: for each worker its place in the entry protocol, the plan it has heard
// of, the one it has seen in the locks, the one it has entered under, the sessions it waits for and what it has read; for each database
// session the advisory locks it holds and its open transaction; the plans published so far; the rows that are done; and the [Database],
// which outlives all sessions. Locks belong to sessions, not to workers. A worker
// has one session; the one before it may live on in the server (abandoned: its client was killed, cut off or replaced), with
// its locks, and a COMMIT that was already sent may still take effect.
//
// # Steps
//
// A step is one statement that the server runs atomically, or one thing that happens to the world. Workers connect, claim the
// table (owner and conflict lock), enter (epoch lock, look, wait or terminate, slot lock), work batch by batch, and hand
// over at a batch boundary: steps.go, look.go and batch.go. The controller publishes plans, the watch delivers them late. A worker in a
// pause closes its session. Faults may happen before
// every step, without a limit: a client dies and comes back with the oldest plan (the mounted one), a session is ended, the
// database restarts: faults.go. A batch reads the pending rows by a plain select and applies its effect without a
// re-check, the weakest thing a user may write, so that the locks alone must keep effects single; [Config].SkipLocked
// is the other way.
//
// # Two plans of one epoch
//
// A controller that has lost its status may publish one epoch with two slot counts. A [Mark] compares by epoch and then by
// slots, so whoever has fewer slots counts as older: it lets go of slot and epoch, and the other keeps its epoch lock and waits
// for it, or ends it. The one that yields does not follow, since nobody can know which of the two is right. It asks for a
// plan above both, and the controller publishes one; until then it may try again, and gets in once its rival is gone. An epoch may also
// go back. Then workers follow the higher one, report it, and the controller goes above it.
//
// # A plan that only those without a slot have heard of
//
// Whoever cannot reach the API server learns of a plan from the locks of those that work under it. If the workers of a smaller plan
// are all cut off there is nobody to see. So a worker without a slot is a herald: it takes its plan's epoch lock as long as it sees an
// older one.
//
// # Cursors
//
// With [Config].Cursors the rows do not remember that they are done. After the slot's lock come step 4, which moves the durable epoch up
// and makes the plan's [Layer] with it, or is refused, and step 5, which reads; a crash may come between each two. A batch commits
// effects, failures and the cursor together, if the cursor is where it was: cursor.go. Layers are the memory of plans: how they start,
// are merged and dropped is in layers.go.
//
// # Adoption
//
// A [Seat] that adopts is the second session of a pod. It enters like any other, for whichever slot nobody holds, and goes when the
// slot's own worker asks by its intent, or to serve another one: adopt.go. Which adopter serves which slot, and after what time, is left
// open, so that any choice is explored. The sessions of one pod share nothing here and may end apart, which is more than can happen.
//
// # Late commits
//
// With [Config].Inserts a key is handed out when its [Writer] begins, and its row is there when that commits, later than rows with
// higher keys, or never. No cursor passes a horizon, found by a read of the last key between lists of those who hold a lock on the
// table: horizon.go.
//
// # Properties
//
// In every reachable state: no effect is committed twice; no two sessions have open work on one row; no session works on
// a row that is done; no two sessions hold
// slots, under whatever plans, that share a key; no two conflicting jobs are at one table; Complete is said only when
// nothing is pending, nor will be; no cursor has passed a row that is neither done nor kept apart as failed; and with cursors no plan
// is at work once a newer one was. And from every reachable state, if faults stop, some path leads to the end: rows done, newest plan in
// force, each slot held once, older layers gone. Since every step can happen again and again, a fair random schedule then gets there with
// probability one.
// [Explore] visits all states breadth first, so that the trace of a violation is the shortest; [Walk] tries
// instances that are too large for that, of which [RandomConfig] and [RandomCursors] make any number. A test that fails names the seed,
// with which the same path is walked again; -walks walks more of them. A [Mistake] is a wrong protocol that must be caught.
//
// # What is left out, and why that is sound
//
//   - Time. A stopped process (SIGSTOP) is one that takes no step for long, and every delay of every process is explored; timeouts
//     are steps that may happen at any moment, too early or too late included.
//   - A client with a dead session does nothing to the database until it notices, so it notices at once. For effects outside
//     the database (http, exec) this is no longer true: they are at-least-once and need a step of their own. That no session works on a
//     row that is done is what keeps them from being repeated without a crash.
//   - pg_terminate_backend is asynchronous. Here it ends the session at once, but "a session is ended" is
//     possible at every moment anyway, and nobody but the look at pg_locks tells a worker that it is over.
//   - pg_locks shows advisory locks consistently (it holds all lock partitions while it copies them, and advisory locks are
//     never taken by the fast path), so a look is one step. Statements that take only shared locks nobody can refuse, and that
//     a look by one peer cannot tell apart (owner and conflict lock), are one step.
//   - It does not show locks of tables so: those of the fast path are copied process by process. A writer that is missed begins after
//     the list was begun, so after the last key was read, and gets a higher key.
//   - An ended session has rolled back before its advisory locks are free, and a commit is visible before they are: this is
//     the order of PostgreSQL's shutdown and commit code. So it is for a writer's lock on the table.
//   - "Sessions seen at the first look are gone" is taken at its weakest: a session stops being waited for at the very moment it
//     lets go of its smaller epoch lock, as if the poll never slept. A slower poll allows fewer steps, not more.
//   - A worker claims its group first and the table with it later, and lets go of the one to take both. Only a newcomer does, which
//     holds neither epoch nor slot, so that here it claims both at once.
//   - Step 4 is atomic: it holds the group's row, so that others come after it, and stops the cursors of older plans, for which it waits
//     for batches that are about to commit, before it reads them.
//   - Asking goes by heartbeat, coordinator and controller, all of which may be slow: here the plan above is published at any
//     moment after. Where another plan is to come anyway, that one settles it.
//   - Ordinals are pods that exist for ever; a missing pod is one that takes no step, or has no [Seat]. The coordinator's lock decides
//     nothing about rows.
//   - Rows that are deleted, or that others have locked, are rows that fail: kept apart, or done.
//   - One server. A second one that also believes to be the primary has its own lock table and its own rows.
package model
