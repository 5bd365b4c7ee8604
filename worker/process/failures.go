package process

import (
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"shardedjob.dev/worker/shard"
)

// maxFailures bounds the failing keys that a worker remembers.
const maxFailures = 10_000

// A row that failed is tried again after firstRetry, then after twice as long each time, up to lastRetry. A random half
// of each pause is left out, so that workers do not meet on a common cause again and again.
const (
	firstRetry = time.Second
	lastRetry  = 5 * time.Minute
)

// Failure is a row that failed.
type Failure struct {
	Key      shard.Key
	Attempts int32
	// Reason is a clause for a person, without the content of the row.
	Reason string

	due       time.Time
	exhausted bool
	number    int // of its first failure
}

// Failures remembers the keys that failed, how often and when to try them again. It is kept in memory only: a worker
// that starts anew tries every pending row anew.
type Failures struct {
	maxAttempts int32
	byKey       map[shard.Key]*Failure
	exhausted   int
	number      int         // of the last key that failed for the first time
	keys        []shard.Key // in order of their first failure; nil: to be made
}

// NewFailures allows each key maxAttempts attempts.
func NewFailures(maxAttempts int32) *Failures {
	return &Failures{maxAttempts: maxAttempts, byKey: map[shard.Key]*Failure{}}
}

// Fail notes a failed attempt at a key and says whether it was the last.
func (f *Failures) Fail(key shard.Key, reason string, now time.Time) (exhausted bool) {
	failure := f.byKey[key]
	if failure == nil {
		f.number++
		failure = &Failure{Key: key, number: f.number}
		f.byKey[key] = failure
		f.keys = nil
	}
	failure.Attempts++
	failure.Reason = reason
	failure.due = now.Add(pauseAfter(failure.Attempts))
	if !failure.exhausted && failure.Attempts >= f.maxAttempts {
		failure.exhausted = true
		f.exhausted++
		return true
	}
	return false
}

// Postpone leaves a key for a moment without counting an attempt: somebody else has locked the row.
func (f *Failures) Postpone(key shard.Key, now time.Time) {
	if failure := f.byKey[key]; failure != nil {
		failure.due = now.Add(firstRetry)
	}
}

// Forget drops keys that succeeded or need no work any more.
func (f *Failures) Forget(keys ...shard.Key) {
	for _, key := range keys {
		failure := f.byKey[key]
		if failure == nil {
			continue
		}
		if failure.exhausted {
			f.exhausted--
		}
		delete(f.byKey, key)
		f.keys = nil
	}
}

// Due is the key whose next attempt has been due for longest.
func (f *Failures) Due(now time.Time) (key shard.Key, ok bool) {
	next := f.next()
	if next == nil || next.due.After(now) {
		return "", false
	}
	return next.Key, true
}

// NextDue is when the next attempt is due.
func (f *Failures) NextDue() (at time.Time, ok bool) {
	next := f.next()
	if next == nil {
		return time.Time{}, false
	}
	return next.due, true
}

func (f *Failures) next() *Failure {
	if f.Waiting() == 0 {
		return nil
	}
	var next *Failure
	for _, failure := range f.byKey {
		if failure.exhausted {
			continue
		}
		if next == nil || failure.due.Before(next.due) || failure.due.Equal(next.due) && failure.number < next.number {
			next = failure
		}
	}
	return next
}

// Keys are all keys that failed, those that did first before the others: what fresh batches leave out. The slice must not
// be changed.
func (f *Failures) Keys() []shard.Key {
	if f.keys == nil && len(f.byKey) > 0 {
		f.keys = slices.SortedFunc(maps.Keys(f.byKey), func(a, b shard.Key) int { return f.byKey[a].number - f.byKey[b].number })
	}
	return f.keys
}

// Waiting counts the keys that will be tried again.
func (f *Failures) Waiting() int { return len(f.byKey) - f.exhausted }

// Exhausted counts the keys that failed every attempt.
func (f *Failures) Exhausted() int { return f.exhausted }

// Full says that more failing keys cannot be remembered.
func (f *Failures) Full() bool { return len(f.byKey) >= maxFailures }

// Sample lists the first keys that failed, at most n, exhausted ones first.
func (f *Failures) Sample(n int) []Failure {
	var all []Failure
	for _, exhausted := range []bool{true, false} {
		for _, key := range f.Keys() {
			if len(all) == n {
				return all
			}
			if failure := f.byKey[key]; failure.exhausted == exhausted {
				all = append(all, *failure)
			}
		}
	}
	return all
}

// pauseAfter is the pause after so many failed attempts.
func pauseAfter(attempts int32) time.Duration {
	pause := lastRetry
	if attempts < 10 {
		pause = min(firstRetry<<(attempts-1), lastRetry)
	}
	return pause/2 + rand.N(pause/2)
}
