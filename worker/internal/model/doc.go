// Package model is a small explicit-state model of the fence: the order in which workers take, look at and let go of
// PostgreSQL advisory locks. It is pure, does no I/O and runs in the unit tests, so that the argument "no row is worked
// by two workers, none is lost, and the job can always finish" is checked over every interleaving instead of believed.
//
// # State
//
// A [State] is what can be told apart by somebody: for each worker its place in the entry protocol, the plan it has heard
// of, the one it has seen in the locks, the one it has entered under and the sessions it waits for; for each database session the advisory locks it holds and its open
// transaction; the plans published so far; the rows that are done. Locks belong to sessions, not to workers. A worker
// has one session; the one before it may live on in the server (abandoned: its client was killed, cut off or replaced), with
// its locks, and a COMMIT that was already sent may still take effect.
//
// # Steps
//
// A step is one statement that the server runs atomically, or one thing that happens to the world. Workers connect, claim the
// table (owner and conflict lock), enter (epoch lock, look, wait or terminate, slot lock), work batch by batch, and hand
// over at a batch boundary: steps.go and batch.go. The controller publishes plans, the watch delivers them late. A worker in a
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
// plan above both, and the controller publishes one; until then it may try again, and gets in once its rival is gone.
//
// # Properties
//
// In every reachable state: no effect is committed twice; no two sessions have open work on one row; no two sessions hold
// slots, under whatever plans, that share a key; no two conflicting jobs are at one table; Complete is said only when
// nothing is pending. And from every reachable state, if faults stop, some path leads to the end: rows done, newest plan in
// force, each slot held once. Since every step can happen again and again, a fair random schedule then gets there with probability one.
// [Explore] visits all states breadth first, so that the trace of a violation is the shortest; [Walk] tries
// instances that are too large for that. A [Mistake] is a wrong protocol that must be caught.
//
// # What is left out, and why that is sound
//
//   - Time. A stopped process (SIGSTOP) is one that takes no step for long, and every delay of every process is explored; timeouts
//     are steps that may happen at any moment, too early or too late included.
//   - A client with a dead session does nothing to the database until it notices, so it notices at once. For effects outside
//     the database (http, exec) this is no longer true: they are at-least-once and need a step of their own.
//   - pg_terminate_backend is asynchronous. Here it ends the session at once, but "a session is ended" is
//     possible at every moment anyway, and nobody but the look at pg_locks tells a worker that it is over.
//   - pg_locks shows advisory locks consistently (it holds all lock partitions while it copies them, and advisory locks are
//     never taken by the fast path), so a look is one step. Statements that take only shared locks nobody can refuse, and that
//     a look by one peer cannot tell apart (owner and conflict lock), are one step.
//   - An ended session has rolled back before its advisory locks are free, and a commit is visible before they are: this is
//     the order of PostgreSQL's shutdown and commit code.
//   - "Sessions seen at the first look are gone" is taken at its weakest: a session stops being waited for at the very moment it
//     lets go of its smaller epoch lock, as if the poll never slept. A slower poll allows fewer steps, not more.
//   - A worker claims its group first and the table with it later, and lets go of the one to take both. Only a newcomer does, which
//     holds neither epoch nor slot, so that here it claims both at once.
//   - Asking goes by heartbeat, coordinator and controller, all of which may be slow: here the plan above is published at any
//     moment after. Where another plan is to come anyway, that one settles it.
//   - Ordinals are pods that exist for ever; a missing pod is one that takes no step. The coordinator's lock decides nothing about rows.
//   - One server. A second one that also believes to be the primary has its own lock table and its own rows.
//
// Cursors, done-layers, the durable epoch row, intents and adoption add fields to [State] and steps beside these; the
// explorer knows none of the protocol's steps.
package model
