package cursor

import (
	"fmt"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/worker/shard"
)

// A Layer is what was done under one plan: every row up to the cursor of the row's slot.
type Layer struct {
	Slots int32
	By    v1alpha1.ShardBy
	// Cursors by slot; nil: nothing done.
	Cursors []*shard.Key
}

// arguments collects the parameters of a statement.
type arguments []any

// add takes a parameter and returns what stands for it in the SQL.
func (a *arguments) add(value any) string {
	*a = append(*a, value)
	return fmt.Sprintf("$%d", len(*a))
}

// key is add for a key that may be missing.
func (a *arguments) key(k *shard.Key) string { return a.add((*string)(k)) }

// open is the SQL condition that is true of keys which the layer does not cover. The cursors are made keys once for the
// statement, not for each row.
func (l Layer) open(t shard.Table, args *arguments) string {
	cursors := make([]*string, len(l.Cursors))
	for i, c := range l.Cursors {
		cursors[i] = (*string)(c)
	}
	theirs := t
	theirs.By = l.By
	return fmt.Sprintf("coalesce(%s > (SELECT array_agg(%s ORDER BY sj_slot) FROM unnest(%s::text[]) WITH ORDINALITY AS sj_had(sj_cursor, sj_slot))[%s + 1], true)",
		t.Order(t.Column()), t.KeyValue("sj_cursor"), args.add(cursors), theirs.SlotOf(t.Column(), fmt.Sprint(l.Slots)))
}

// layers groups rows of table slot, which come in the order of epoch, slots, slot.
type layers struct {
	all          []Layer
	epoch, slots int64
}

func (l *layers) add(epoch int64, slots, slot int32, by string, cursor *shard.Key) {
	if len(l.all) == 0 || l.epoch != epoch || l.slots != int64(slots) {
		l.epoch, l.slots = epoch, int64(slots)
		l.all = append(l.all, Layer{Slots: slots, By: v1alpha1.ShardBy(by), Cursors: make([]*shard.Key, slots)})
	}
	l.all[len(l.all)-1].Cursors[slot] = cursor
}
