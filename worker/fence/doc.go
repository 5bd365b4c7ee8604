// Package fence keeps two workers from ever working one row at once, by PostgreSQL advisory locks and nothing else.
//
// A worker has one [Session] and does all its work on it. The session's locks are the fence: if the session is gone,
// the locks are free and, for the same reason, nothing more can be committed on it. So nothing here reconnects.
//
// A worker that wants slot k of a plan with n slots first claims the group and the table for its job ([Session.Join]),
// then enters ([Session.Enter]): takes the epoch lock of its plan, looks who is there under another plan, waits for the older
// ones, and takes the slot lock. It works batch by batch, and before each COMMIT makes sure of its locks
// ([Session.CheckLocks]). At a new plan, heard of from the API or seen in the locks ([Session.Superseded]), it leaves
// ([Session.Leave]) at a batch boundary and enters again.
//
// A slot whose own worker is not there may be adopted by another worker, on a session of its own. The own worker that comes back
// asks for the slot by its intent lock, and the adopter leaves at its next batch boundary ([Session.Wanted]).
//
// The idea of a slot held by pg_try_advisory_lock, and of rows with MOD(id, n) = k, is from R. Smith, "Leader Election With
// Ruby & PostgreSQL" (2012); namespaced keys, epochs and the wait between them are added.
package fence
