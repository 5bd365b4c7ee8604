package process

import (
	"context"

	"shardedjob.dev/worker/database"
	"shardedjob.dev/worker/shard"
)

// A search for pending rows that the statement timeout broke off is repeated in windows of so many rows, and of half as
// many each time that this takes too long as well.
const (
	firstWindow = 200_000
	leastWindow = 10
)

// sweep is where the slot is being read: upward from the lowest key, again and again.
type sweep struct {
	after    *shard.Key // everything up to here has been looked at
	window   int        // rows of the table searched at a time; 0: all that follow
	progress bool       // rows were taken since the sweep began
	behind   bool       // rows up to after may be pending: they were locked, or came to be after the sweep passed
}

// next is the range to look at.
func (w *sweep) next(ctx context.Context, q shard.Querier, reader *shard.Reader) (shard.Range, error) {
	if w.window == 0 {
		return shard.Range{After: w.after}, nil
	}
	return reader.Window(ctx, q, w.after, w.window)
}

// moveTo notes that the rows up to key have been taken.
func (w *sweep) moveTo(key shard.Key) { w.after, w.progress = &key, true }

// absorb takes a timeout of a search as a reason to search in smaller windows, and returns all other errors.
func (w *sweep) absorb(err error) error {
	if database.Classify(err) != database.ClassTimeout || w.window == leastWindow {
		return err
	}
	if w.window == 0 {
		w.window = firstWindow
		w.behind = w.behind || w.after != nil
	} else {
		w.window = max(leastWindow, w.window/2)
	}
	return nil
}

// toCheck is the range in which to look, without locks, whether rows are pending, when none could be taken from in. An
// unbounded sweep looks everywhere, since it then knows at once whether the slot is drained.
func (w *sweep) toCheck(in shard.Range) shard.Range {
	if w.window == 0 {
		return shard.Range{}
	}
	return in
}

// verdict is what an empty range means.
type verdict int

const (
	sweepOn      verdict = iota // look further, or again from the lowest key on
	sweepBlocked                // rows are pending, and none could be taken in a whole sweep
	sweepDrained                // nothing is pending
)

// rest moves on from a range without a row to take; left says whether rows were pending where toCheck said to look.
func (w *sweep) rest(in shard.Range, left bool) verdict {
	w.behind = w.behind || left
	if in.UpTo != nil {
		w.after = in.UpTo
		return sweepOn
	}
	ended := *w
	*w = sweep{window: w.window}
	switch {
	case !ended.behind:
		return sweepDrained
	case ended.progress:
		return sweepOn
	default:
		return sweepBlocked
	}
}
