package model

import (
	"bytes"
	"fmt"
	"hash/maphash"
	"slices"
)

// A Result says what was explored.
type Result struct {
	States, Edges, Depth int
	Kinds                uint64     // of steps that were taken, by their bits
	Violation            *Violation // nil if all is well
}

// Explore visits every reachable state breadth first and stops at the first that breaks a property; then it checks that each
// can finish. It gives up with an error at maxStates: what is not exhaustive proves nothing.
func Explore(c Config, maxStates int) (Result, error) {
	m, err := New(c)
	if err != nil {
		return Result{}, err
	}
	g := &graph{m: m, states: newStateSet(m.width())}
	g.add(new(State), -1, Step{})
	var next []Next
	for i := 0; i < g.states.len(); i++ {
		s := m.decode(g.states.at(i))
		next = m.Steps(&s, next[:0])
		g.row = append(g.row, uint32(len(g.edges)))
		for k := range next {
			to, fresh := g.add(&next[k].State, i, next[k].Step)
			g.kinds |= 1 << next[k].Step.Kind
			if !next[k].Step.fault() {
				g.edges = append(g.edges, uint32(to))
			}
			g.count++
			if fresh {
				if p := m.broken(&next[k].State); p != 0 {
					return g.result(&Violation{p, g.trace(to)}), nil
				}
			}
		}
		if g.states.len() > maxStates {
			return g.result(nil), fmt.Errorf("model: more than %d states", maxStates)
		}
	}
	g.row = append(g.row, uint32(len(g.edges)))
	if m.Check&Finishes != 0 {
		if i := g.stuck(); i >= 0 {
			return g.result(&Violation{Finishes, g.trace(i)}), nil
		}
	}
	return g.result(nil), nil
}

// A graph is the explored part: states in the order they were found, how each was found first, and the edges
// that are no faults.
type graph struct {
	m      *Model
	states *stateSet
	parent []int32
	how    []Step
	edges  []uint32
	row    []uint32 // edges of state i are edges[row[i]:row[i+1]]
	count  int
	kinds  uint64
	buf    []byte
}

func (g *graph) add(s *State, parent int, how Step) (int, bool) {
	g.buf = g.m.encode(g.buf[:0], s)
	i, fresh := g.states.add(g.buf)
	if fresh {
		g.parent = append(g.parent, int32(parent))
		g.how = append(g.how, how)
	}
	return i, fresh
}

func (g *graph) trace(i int) (t []Step) {
	for ; g.parent[i] >= 0; i = int(g.parent[i]) {
		t = append(t, g.how[i])
	}
	slices.Reverse(t)
	return t
}

func (g *graph) result(v *Violation) Result {
	return Result{States: g.states.len(), Edges: g.count, Kinds: g.kinds, Depth: len(g.trace(g.states.len() - 1)), Violation: v}
}

// stuck returns the first state from which no finished one can be reached, or -1: a search backward from the end.
func (g *graph) stuck() int {
	n := g.states.len()
	from := make([]uint32, n+1) // backward edges of state i are back[from[i]:from[i+1]]
	for _, to := range g.edges {
		from[to+1]++
	}
	for i := range n {
		from[i+1] += from[i]
	}
	back, at := make([]uint32, len(g.edges)), slices.Clone(from[:n])
	for i := range n {
		for _, to := range g.edges[g.row[i]:g.row[i+1]] {
			back[at[to]] = uint32(i)
			at[to]++
		}
	}
	good, todo := make([]bool, n), []uint32(nil)
	for i := range n {
		if s := g.m.decode(g.states.at(i)); g.m.finished(&s) {
			good[i], todo = true, append(todo, uint32(i))
		}
	}
	for len(todo) > 0 {
		i := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, j := range back[from[i]:from[i+1]] {
			if !good[j] {
				good[j], todo = true, append(todo, j)
			}
		}
	}
	return slices.Index(good, false)
}

// A stateSet numbers encoded states in the order they come: a hash table of indexes into one array of bytes.
type stateSet struct {
	width int
	bytes []byte
	table []uint64 // low half of the hash, then index + 1; a power of two long, at most half full
	seed  maphash.Seed
}

func newStateSet(width int) *stateSet {
	return &stateSet{width: width, table: make([]uint64, 1<<12), seed: maphash.MakeSeed()}
}

func (t *stateSet) len() int        { return len(t.bytes) / t.width }
func (t *stateSet) at(i int) []byte { return t.bytes[i*t.width : (i+1)*t.width] }

func (t *stateSet) add(b []byte) (index int, fresh bool) {
	hash := maphash.Bytes(t.seed, b) << 32
	p := t.find(hash, b)
	if e := t.table[p]; e != 0 {
		return int(uint32(e)) - 1, false
	}
	t.bytes = append(t.bytes, b...)
	t.table[p] = hash | uint64(t.len())
	if 2*t.len() > len(t.table) {
		old := t.table
		t.table = make([]uint64, 2*len(old))
		for _, e := range old {
			if e != 0 {
				t.table[t.find(e, nil)] = e
			}
		}
	}
	return t.len() - 1, true
}

// find returns the place of b in the table, or the empty one where it belongs; without b, the latter.
func (t *stateSet) find(hash uint64, b []byte) int {
	mask := len(t.table) - 1
	for p := int(hash>>32) & mask; ; p = (p + 1) & mask {
		e := t.table[p]
		if e == 0 || b != nil && e>>32 == hash>>32 && bytes.Equal(t.at(int(uint32(e))-1), b) {
			return p
		}
	}
}
