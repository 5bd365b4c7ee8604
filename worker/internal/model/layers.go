package model

// A Layer is the cursors of one plan: every row of slot k among the first Cursors[k] rows of the table is done, or kept
// apart as failed. A cursor of 0 is one that is not there: nothing is done.
type Layer struct {
	Epoch   uint8 // zero: there is no such layer
	Cursors [maxCursors]uint8
}

// Layers are the layers by their slot counts: a plan takes over the layer that has as many slots as itself.
type Layers [maxCursors + 1]Layer

// low is up to where a layer covers every row, if the mistake is not made of leaving out the slots that have no cursor.
func (m *Model) low(l *Layer, n int, present Mistake) uint8 {
	low, any := uint8(maxRows), false
	for _, c := range l.Cursors[:n] {
		if c != 0 || !m.wrong(present) {
			low, any = min(low, m.read(c)), true
		}
	}
	if !any {
		return 0
	}
	return low
}

// high is up to where a layer covers any row.
func high(l *Layer, n int) (high uint8) {
	for _, c := range l.Cursors[:n] {
		high = max(high, c)
	}
	return high
}

// read is what is made of a cursor that was read.
func (m *Model) read(c uint8) uint8 {
	if c == 0 && m.wrong(NullIsZero) {
		return m.zero
	}
	return c
}

// coveredBy is the set of rows that a layer covers.
func (m *Model) coveredBy(l *Layer, n int) (rows uint16) {
	for k, c := range l.Cursors[:n] {
		rows |= m.slotRows[n][k] & upTo(c)
	}
	return rows
}

// open makes the layer of plan p, all its cursors at once. Each starts where every row below is covered by one of the layers, or where
// the layer with as many slots was; that one is then a part of the new one.
func (m *Model) open(ls *Layers, p Mark) {
	start := uint8(0)
	fresh := Layer{Epoch: p.epoch()}
	for _, n := range m.counts {
		if l := &ls[n]; l.Epoch != 0 {
			start = max(start, m.low(l, n, PresentStart))
			if m.wrong(StartAtHighest) {
				start = max(start, high(l, n))
			}
			if m.wrong(MergeOtherCounts) {
				for k := range p.slots() {
					fresh.Cursors[k] = max(fresh.Cursors[k], l.Cursors[k])
				}
				*l = Layer{}
			}
		}
	}
	at := int(p.slots())
	for k := range at {
		fresh.Cursors[k] = max(fresh.Cursors[k], start, ls[at].Cursors[k])
	}
	ls[at] = fresh
	m.prune(ls, p, 0)
}

// prune deletes the cursors of other plans that plan p's layer has passed with all its slots: they cover nothing more. Slot k asks.
func (m *Model) prune(ls *Layers, p Mark, k uint8) {
	at := int(p.slots())
	low := m.low(&ls[at], at, PresentDrop)
	if m.wrong(DropByOneSlot) {
		low = ls[at].Cursors[k]
	}
	for _, n := range m.counts {
		if n == at {
			continue
		}
		for i, c := range ls[n].Cursors[:n] {
			if c <= low {
				ls[n].Cursors[i] = 0
			}
		}
		if high(&ls[n], n) == 0 {
			ls[n] = Layer{}
		}
	}
}

// covered is the set of rows that any layer covers.
func (m *Model) covered(ls *Layers) (rows uint16) {
	for _, n := range m.counts {
		rows |= m.coveredBy(&ls[n], n)
	}
	return rows
}

// others is the set of rows covered by the layers that are not plan p's.
func (m *Model) others(ls *Layers, p Mark) (rows uint16) {
	for _, n := range m.counts {
		l := &ls[n]
		if n == int(p.slots()) && l.Epoch == p.epoch() || m.wrong(OlderLayersOnly) && l.Epoch > p.epoch() {
			continue
		}
		rows |= m.coveredBy(l, n)
	}
	return rows
}
