package check

import "slices"

// Level is what a history must keep to.
type Level uint8

// The levels. A snapshot may show write skew (G2), which serializable transactions must not.
const (
	Snapshot Level = iota
	Serializable
)

// ListOp is an append of a value that nobody else appends to the key, or a read of the whole list.
type ListOp struct {
	Append bool
	Key    int64
	Value  int64   // of an append
	List   []int64 // of a read
}

// ListTxn is one transaction over lists.
type ListTxn struct {
	Ops     []ListOp
	Outcome Outcome
}

// Lists checks transactions over lists: from what was read it takes the order of versions of each key, from that who must
// come before whom, and it looks for circles. final, when given, is what is there at the end: it must hold every append
// that was acknowledged.
func Lists(txns []ListTxn, level Level, final map[int64][]int64) []Violation {
	l := lists{txns: txns, writer: map[version]int{}, order: map[int64][]int64{}}
	l.versions(final)
	for id := range txns {
		if txns[id].Outcome == OK {
			l.single(id)
		}
	}
	if final != nil {
		l.lost(final)
	}
	l.circles(level)
	return l.found.all
}

// version is a value in a key's list.
type version struct{ key, value int64 }

type lists struct {
	txns   []ListTxn
	writer map[version]int
	order  map[int64][]int64 // of each key the longest list that was read
	found  list
}

// versions learns who wrote what, and the longest list of each key.
func (l *lists) versions(final map[int64][]int64) {
	for id := range l.txns {
		for _, op := range l.txns[id].Ops {
			switch {
			case op.Append:
				l.writer[version{op.Key, op.Value}] = id
			case l.txns[id].Outcome == OK && len(op.List) > len(l.order[op.Key]):
				l.order[op.Key] = op.List
			}
		}
	}
	for key, got := range final {
		if len(got) >= len(l.order[key]) {
			l.order[key] = got
		}
		l.read(-1, key, got, nil)
	}
}

// single checks what one transaction read.
func (l *lists) single(id int) {
	own := map[int64][]int64{}
	for _, op := range l.txns[id].Ops {
		if op.Append {
			own[op.Key] = append(own[op.Key], op.Value)
			continue
		}
		l.read(id, op.Key, op.List, own[op.Key])
	}
}

// read checks one list: a beginning of the longest one, of values that were appended once, by transactions that did not
// fail, ending in the transaction's own appends, and before them in the last append of another.
func (l *lists) read(id int, key int64, got, own []int64) {
	if !slices.Equal(got, l.order[key][:min(len(got), len(l.order[key]))]) {
		l.found.add("incompatible order", "transaction %d read %v of key %d, another %v", id, got, key, l.order[key])
	}
	seen := map[int64]bool{}
	for _, v := range got {
		by, known := l.writer[version{key, v}]
		switch {
		case !known:
			l.found.add("never appended", "transaction %d read %d of key %d", id, v, key)
		case seen[v]:
			l.found.add("twice", "transaction %d read %d of key %d twice", id, v, key)
		case l.txns[by].Outcome == Failed:
			l.found.add("G1a", "transaction %d read %d of key %d, which transaction %d appended, which failed", id, v, key, by)
		}
		seen[v] = true
	}
	if len(own) > 0 && (len(got) < len(own) || !slices.Equal(got[len(got)-len(own):], own)) {
		l.found.add("internal", "transaction %d appended %v to key %d and then read %v", id, own, key, got)
		return
	}
	if before := got[:len(got)-min(len(own), len(got))]; len(before) > 0 {
		l.intermediate(id, key, before[len(before)-1])
	}
}

// intermediate checks that a value is the last one that its writer appended to the key.
func (l *lists) intermediate(id int, key, value int64) {
	by, known := l.writer[version{key, value}]
	if !known || by == id {
		return
	}
	for _, op := range slices.Backward(l.txns[by].Ops) {
		if op.Append && op.Key == key {
			if op.Value != value {
				l.found.add("G1b", "transaction %d read key %d up to %d, transaction %d went on to %d", id, key, value, by, op.Value)
			}
			return
		}
	}
}

// lost checks that all that was acknowledged is there at the end.
func (l *lists) lost(final map[int64][]int64) {
	for id := range l.txns {
		for _, op := range l.txns[id].Ops {
			if op.Append && l.txns[id].Outcome == OK && !slices.Contains(final[op.Key], op.Value) {
				l.found.add("acknowledged and lost", "key %d lacks %d of transaction %d", op.Key, op.Value, id)
			}
		}
	}
}

// circles looks for transactions that would each have to come before the other.
func (l *lists) circles(level Level) {
	g := newGraph(len(l.txns))
	next := map[version]int64{} // the value after a value
	for key, order := range l.order {
		for i := 1; i < len(order); i++ {
			next[version{key, order[i-1]}] = order[i]
			l.link(g, version{key, order[i-1]}, version{key, order[i]})
		}
	}
	for id := range l.txns {
		if l.txns[id].Outcome == OK {
			l.reads(g, id, next)
		}
	}
	for _, c := range g.cycles(ww) {
		l.found.add("G0", "transactions %v overwrote each other", c)
	}
	for _, c := range g.cycles(ww | wr) {
		l.found.add("G1c", "transactions %v depend on each other", c)
	}
	if l.missed(g) || level < Serializable {
		return
	}
	for _, c := range g.cycles(ww | wr | rw) {
		l.found.add("G2", "transactions %v can't be put into an order", c)
	}
}

func (l *lists) link(g *graph, before, after version) {
	a, known := l.writer[before]
	b, also := l.writer[after]
	if known && also {
		g.link(a, b, ww)
	}
}

// reads links a transaction with those whose appends it read, and with those that it did not see.
func (l *lists) reads(g *graph, id int, next map[version]int64) {
	for _, op := range l.txns[id].Ops {
		if op.Append {
			continue
		}
		unseen, there := int64(0), false
		if n := len(op.List); n > 0 {
			last := version{op.Key, op.List[n-1]}
			if by, known := l.writer[last]; known {
				g.link(by, id, wr)
			}
			unseen, there = next[last]
		} else if all := l.order[op.Key]; len(all) > 0 {
			unseen, there = all[0], true
		}
		if by, known := l.writer[version{op.Key, unseen}]; there && known {
			g.link(id, by, rw)
		}
	}
}

// missed looks for circles with one read that missed a write, which no snapshot shows.
func (l *lists) missed(g *graph) bool {
	before := len(l.found.all)
	for _, c := range g.cycles(ww | wr | rw) {
		for _, from := range c {
			for to, kinds := range g.out[from] {
				if kinds&rw != 0 && g.reaches(to, from, ww|wr) {
					l.found.add("G-single", "transaction %d missed a write of %d, on which it depends", from, to)
				}
			}
		}
	}
	return len(l.found.all) > before
}
