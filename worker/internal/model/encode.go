package model

// A state is encoded in as few whole bytes as its instance needs, each state in one way.

// encode appends s.
func (m *Model) encode(b []byte, s *State) []byte {
	for w := range m.Workers {
		k := &s.Workers[w]
		b = append(b, byte(k.Phase), k.View, byte(k.Follow), byte(k.Obey))
		for i := range m.waitBytes() {
			b = append(b, byte(k.Waits>>(8*i)))
		}
		if m.Cursors {
			b = append(b, k.Cursor, byte(k.Skip), byte(k.Skip>>8))
		}
		if m.Inserts > 0 {
			b = append(b, byte(k.Stage)|k.Writers<<4, k.Limit)
		}
	}
	for i := range 2 * len(m.Workers) {
		x := &s.Sessions[i]
		b = append(b, bit(x.Live)|bit(x.Slot)<<1|byte(x.Claim)<<2|byte(x.Txn)<<4|bit(x.Intent)<<6|bit(x.Failed)<<7,
			byte(x.Epoch), byte(x.Work), byte(x.Rows), byte(x.Rows>>8))
		if m.adopters {
			b = append(b, x.At)
		}
		if m.Cursors {
			b = append(b, x.From, x.To)
		}
	}
	b = append(b, s.Published[:]...)
	b = append(b, byte(s.Done), byte(s.Done>>8), bit(s.Doubled)|bit(s.Complete)<<1|bit(s.Asked[0])<<2|bit(s.Asked[1])<<3|bit(s.Back)<<4)
	if m.Cursors {
		b = m.encodeDatabase(b, &s.Database)
	}
	return b
}

func (m *Model) encodeDatabase(b []byte, d *Database) []byte {
	b = append(b, byte(d.Row), byte(d.Top))
	for _, n := range m.counts {
		b = append(append(b, d.Layers[n].Epoch), d.Layers[n].Cursors[:n]...)
	}
	if m.Failures {
		b = append(b, byte(d.Failed), byte(d.Failed>>8))
	}
	if m.wrong(EpochPerSlot) {
		for _, e := range d.PerSlot {
			b = append(b, byte(e))
		}
	}
	if m.Inserts > 0 {
		b = append(b, d.Horizon, d.Owed)
		for _, x := range d.Writers[:m.Inserts] {
			b = append(b, byte(x))
		}
	}
	return b
}

// waitBytes is how many bytes a set of sessions takes.
func (m *Model) waitBytes() int { return (2*len(m.Workers) + 7) / 8 }

// width is the number of bytes of an encoded state of this instance.
func (m *Model) width() int { return len(m.encode(nil, new(State))) }

// A decoder takes an encoded state apart.
type decoder []byte

func (d *decoder) byte() byte {
	b := (*d)[0]
	*d = (*d)[1:]
	return b
}

func (d *decoder) rows() uint16 { return uint16(d.byte()) | uint16(d.byte())<<8 }

// decode is the inverse of encode.
func (m *Model) decode(b []byte) (s State) {
	d := (*decoder)(&b)
	for w := range m.Workers {
		k := &s.Workers[w]
		k.Phase, k.View, k.Follow, k.Obey = Phase(d.byte()), d.byte(), Mark(d.byte()), Mark(d.byte())
		for i := range m.waitBytes() {
			k.Waits |= uint32(d.byte()) << (8 * i)
		}
		if m.Cursors {
			k.Cursor, k.Skip = d.byte(), d.rows()
		}
		if m.Inserts > 0 {
			f := d.byte()
			k.Search = Search{Stage: Stage(f & 15), Writers: f >> 4, Limit: d.byte()}
		}
	}
	for i := range 2 * len(m.Workers) {
		f := d.byte()
		x := &s.Sessions[i]
		*x = Session{Live: f&1 != 0, Slot: f&2 != 0, Claim: Claim(f >> 2 & 3), Txn: Txn(f >> 4 & 3), Intent: f&64 != 0, Failed: f&128 != 0,
			Epoch: Mark(d.byte()), Work: Mark(d.byte()), Rows: d.rows()}
		if m.adopters {
			x.At = d.byte()
		}
		if m.Cursors {
			x.From, x.To = d.byte(), d.byte()
		}
	}
	for j := range s.Published {
		s.Published[j] = d.byte()
	}
	s.Done = d.rows()
	f := d.byte()
	s.Doubled, s.Complete, s.Asked, s.Back = f&1 != 0, f&2 != 0, [maxJobs]bool{f&4 != 0, f&8 != 0}, f&16 != 0
	if m.Cursors {
		m.decodeDatabase(d, &s.Database)
	}
	return s
}

func (m *Model) decodeDatabase(d *decoder, s *Database) {
	s.Row, s.Top = Mark(d.byte()), Mark(d.byte())
	for _, n := range m.counts {
		s.Layers[n].Epoch = d.byte()
		for k := range n {
			s.Layers[n].Cursors[k] = d.byte()
		}
	}
	if m.Failures {
		s.Failed = d.rows()
	}
	if m.wrong(EpochPerSlot) {
		for k := range s.PerSlot {
			s.PerSlot[k] = Mark(d.byte())
		}
	}
	if m.Inserts > 0 {
		s.Horizon, s.Owed = d.byte(), d.byte()
		for i := range m.Inserts {
			s.Writers[i] = Writer(d.byte())
		}
	}
}
