package check

import (
	"slices"
	"testing"
	"time"

	"neki/catalog"
)

func at(began, ended int) Span {
	return Span{time.Duration(began) * time.Millisecond, time.Duration(ended) * time.Millisecond}
}

// want demands exactly these kinds of violations; none at all for a good history.
func want(t *testing.T, found []Violation, kinds ...string) {
	t.Helper()
	var got []string
	for _, v := range found {
		if !slices.Contains(got, v.Kind) {
			got = append(got, v.Kind)
		}
	}
	slices.Sort(got)
	slices.Sort(kinds)
	if !slices.Equal(got, kinds) {
		t.Errorf("found %v, want kinds %v", found, kinds)
	}
}

func TestSet(t *testing.T) {
	inserts := []Insert{
		{Span: at(0, 5), Key: 1},
		{Span: at(1, 6), Key: 2, Outcome: Unknown},
		{Span: at(2, 7), Key: 3, Outcome: Failed},
		{Span: at(8, 20), Key: 4},
	}
	read := func(keys ...int64) []SetRead { return []SetRead{{Span: at(10, 15), Where: "a", Keys: keys}} }
	for name, c := range map[string]struct {
		reads []SetRead
		kinds []string
	}{
		"all":                 {read(1, 2, 4), nil},
		"unknown not there":   {read(1), nil},
		"acknowledged, lost":  {read(2, 4), []string{"acknowledged and lost"}},
		"failed, there":       {read(1, 3), []string{"failed and there"}},
		"twice":               {read(1, 1), []string{"twice"}},
		"out of nowhere":      {read(1, 9), []string{"never inserted"}},
		"a later read counts": {append(read(1), SetRead{Span: at(21, 22), Where: "b", Keys: []int64{1}}), []string{"acknowledged and lost"}},
	} {
		t.Run(name, func(t *testing.T) { want(t, Set(inserts, c.reads), c.kinds...) })
	}
}

func TestEpochs(t *testing.T) {
	want(t, Epochs([]Insert{
		{Span: at(0, 1), Key: 1, Timeline: 1},
		{Span: at(1, 5), Key: 2, Timeline: 2},
		{Span: at(4, 6), Key: 3, Timeline: 1},
		{Span: at(7, 8), Key: 4, Timeline: 1, Outcome: Unknown},
		{Span: at(7, 8), Key: 5, Timeline: 2},
	}))
	want(t, Epochs([]Insert{{Span: at(1, 5), Key: 2, Timeline: 2}, {Span: at(6, 7), Key: 3, Timeline: 1}}), "two leaders")
}

func TestRegisters(t *testing.T) {
	write := func(s Span, v int64, o Outcome) RegisterOp {
		return RegisterOp{Span: s, Kind: Write, New: v, Outcome: o}
	}
	read := func(s Span, v int64) RegisterOp { return RegisterOp{Span: s, Client: 1, Kind: Read, Value: v} }
	swap := func(s Span, from, to int64, done bool) RegisterOp {
		return RegisterOp{Span: s, Client: 2, Kind: Swap, Old: from, New: to, Swapped: done}
	}
	for name, c := range map[string]struct {
		ops  []RegisterOp
		kind []string
	}{
		"in turn":            {[]RegisterOp{write(at(0, 1), 7, OK), read(at(2, 3), 7), swap(at(4, 5), 7, 8, true), read(at(6, 7), 8)}, nil},
		"concurrent":         {[]RegisterOp{write(at(0, 5), 7, OK), read(at(1, 2), 0), read(at(3, 4), 7)}, nil},
		"stale read":         {[]RegisterOp{write(at(0, 1), 7, OK), read(at(2, 3), 0)}, []string{"not linearizable"}},
		"lost write":         {[]RegisterOp{write(at(0, 1), 7, OK), write(at(2, 3), 8, OK), read(at(4, 5), 7)}, []string{"not linearizable"}},
		"back and forth":     {[]RegisterOp{write(at(0, 9), 7, OK), read(at(1, 2), 7), read(at(3, 4), 0)}, []string{"not linearizable"}},
		"unknown, late":      {[]RegisterOp{write(at(0, 1), 7, Unknown), read(at(2, 3), 0), read(at(4, 5), 7)}, nil},
		"unknown, never":     {[]RegisterOp{write(at(0, 1), 7, Unknown), read(at(2, 3), 0)}, nil},
		"failed, and seen":   {[]RegisterOp{write(at(0, 1), 7, Failed), read(at(2, 3), 7)}, []string{"not linearizable"}},
		"swap of another":    {[]RegisterOp{write(at(0, 1), 7, OK), swap(at(2, 3), 6, 8, true)}, []string{"not linearizable"}},
		"swap not done":      {[]RegisterOp{write(at(0, 1), 7, OK), swap(at(2, 3), 7, 8, false)}, []string{"not linearizable"}},
		"two swaps from one": {[]RegisterOp{swap(at(0, 9), 0, 1, true), swap(at(0, 9), 0, 2, true)}, []string{"not linearizable"}},
	} {
		t.Run(name, func(t *testing.T) { want(t, Registers(c.ops, 10*time.Second), c.kind...) })
	}
}

func TestRegistersOfManyKeys(t *testing.T) {
	ops := []RegisterOp{
		{Span: at(0, 1), Key: 1, Kind: Write, New: 7},
		{Span: at(2, 3), Key: 2, Kind: Read, Value: 0},
		{Span: at(2, 3), Key: 1, Kind: Read, Value: 7},
	}
	want(t, Registers(ops, time.Second))
	ops[2].Value = 0
	want(t, Registers(ops, time.Second), "not linearizable")
}

func add(key, v int64) ListOp { return ListOp{Append: true, Key: key, Value: v} }

func see(key int64, vs ...int64) ListOp { return ListOp{Key: key, List: vs} }

func txn(ops ...ListOp) ListTxn { return ListTxn{Ops: ops} }

func TestLists(t *testing.T) {
	failed, unknown := txn(add(1, 9)), txn(add(1, 8))
	failed.Outcome, unknown.Outcome = Failed, Unknown
	for name, c := range map[string]struct {
		txns  []ListTxn
		level Level
		final map[int64][]int64
		kinds []string
	}{
		"in turn": {
			[]ListTxn{txn(add(1, 1)), txn(see(1, 1), add(1, 2)), txn(see(1, 1, 2))}, Serializable, map[int64][]int64{1: {1, 2}}, nil,
		},
		"own append": {[]ListTxn{txn(add(1, 1), see(1, 1), add(1, 2), see(1, 1, 2))}, Serializable, nil, nil},
		"write skew": {
			[]ListTxn{txn(see(1), add(2, 1)), txn(see(2), add(1, 1)), txn(see(1, 1), see(2, 1))}, Serializable, nil, []string{"G2"},
		},
		"write skew in snapshots": {
			[]ListTxn{txn(see(1), add(2, 1)), txn(see(2), add(1, 1)), txn(see(1, 1), see(2, 1))}, Snapshot, nil, nil,
		},
		"lost update": {
			[]ListTxn{txn(see(1), add(1, 1)), txn(see(1), add(1, 2)), txn(see(1, 1, 2))}, Snapshot, nil, []string{"G-single"},
		},
		"dirty write": {
			[]ListTxn{txn(add(1, 1), add(2, 1)), txn(add(1, 2), add(2, 2)), txn(see(1, 1, 2), see(2, 2, 1))},
			Snapshot, nil,
			[]string{"G0", "G1c"},
		},
		"circular information": {
			[]ListTxn{txn(add(1, 1), see(2, 1)), txn(add(2, 1), see(1, 1))}, Snapshot, nil, []string{"G1c"},
		},
		"aborted read":      {[]ListTxn{failed, txn(see(1, 9))}, Snapshot, nil, []string{"G1a"}},
		"intermediate read": {[]ListTxn{txn(add(1, 1), add(1, 2)), txn(see(1, 1))}, Snapshot, nil, []string{"G1b"}},
		"unknown and there": {[]ListTxn{unknown, txn(see(1, 8))}, Serializable, map[int64][]int64{1: {8}}, nil},
		"unknown and not":   {[]ListTxn{unknown, txn(see(1))}, Serializable, map[int64][]int64{1: {}}, nil},
		"own append unseen": {[]ListTxn{txn(add(1, 1), see(1))}, Snapshot, nil, []string{"internal"}},
		"two orders": {
			[]ListTxn{txn(add(1, 1)), txn(add(1, 2)), txn(see(1, 1, 2)), txn(see(1, 2))},
			Snapshot, nil,
			[]string{"incompatible order"},
		},
		"lost":         {[]ListTxn{txn(add(1, 1)), txn(add(1, 2))}, Snapshot, map[int64][]int64{1: {2}}, []string{"acknowledged and lost"}},
		"from nowhere": {[]ListTxn{txn(see(1, 5))}, Snapshot, nil, []string{"never appended"}},
		"twice":        {[]ListTxn{txn(add(1, 1)), txn(see(1, 1, 1))}, Snapshot, nil, []string{"twice", "G-single"}},
	} {
		t.Run(name, func(t *testing.T) { want(t, Lists(c.txns, c.level, c.final), c.kinds...) })
	}
}

// A circle over a path longer than a call stack should be deep.
func TestLongCircle(t *testing.T) {
	const n = 200_000
	g := newGraph(n)
	for i := range n {
		g.link(i, (i+1)%n, wr)
	}
	if c := g.cycles(wr); len(c) != 1 || len(c[0]) != n {
		t.Errorf("%d circles", len(c))
	}
	if c := g.cycles(ww); len(c) != 0 {
		t.Errorf("%d circles of another kind", len(c))
	}
}

func TestBank(t *testing.T) {
	want(t, Bank([]Balance{{Sum: 100}}, 100))
	want(t, Bank([]Balance{{Sum: 100}, {Sum: 99}}, 100), "wrong sum")
	want(t, Bank([]Balance{{Sum: 100, Least: -1}}, 100), "overdrawn")
}

func TestDemands(t *testing.T) {
	rule := catalog.Rule{Term: 3, Leader: "a", Cohort: []string{"a", "b"}, W: 1, ModRev: 7}
	later := rule
	later.ModRev, later.Cohort = 8, []string{"a", "b", "c"}
	good := Demand{Node: "a", Before: rule, After: rule, OwnTerm: 3, Names: []string{"b"}, Acks: 1}
	for name, c := range map[string]struct {
		change func(*Demand)
		kinds  []string
	}{
		"as the rule says":       {func(*Demand) {}, nil},
		"nobody may acknowledge": {func(d *Demand) { d.Names = nil }, nil},
		"one too many":           {func(d *Demand) { d.Names = append(slices.Clone(d.Names), "c") }, []string{"unknown acknowledger"}},
		"while it changes":       {func(d *Demand) { d.Names, d.After = []string{"c"}, later }, nil},
		"no longer the leader":   {func(d *Demand) { d.Names, d.OwnTerm = []string{"c"}, 2 }, nil},
		"asynchronous":           {func(d *Demand) { d.None = true }, []string{"too few must acknowledge"}},
	} {
		t.Run(name, func(t *testing.T) {
			d := good
			c.change(&d)
			want(t, Demands([]Demand{d}), c.kinds...)
		})
	}
}

func TestHistory(t *testing.T) {
	h := func(term int64, leader string, tli, parent int32, lsn catalog.LSN) catalog.History {
		return catalog.History{Term: term, Leader: leader, Timeline: tli, Parent: parent, SwitchLSN: lsn}
	}
	now := catalog.Rule{Term: 3, Leader: "c"}
	first := h(1, "a", 1, 0, 0)
	for name, c := range map[string]struct {
		rows  []catalog.History
		kinds []string
	}{
		"one after the other":        {[]catalog.History{first, h(2, "b", 2, 1, 100), h(3, "c", 3, 2, 200)}, nil},
		"a promotion was given up":   {[]catalog.History{first, h(3, "c", 3, 2, 200)}, nil},
		"twice in a term":            {[]catalog.History{first, h(3, "b", 2, 1, 100), h(3, "c", 3, 2, 200)}, []string{"two records of a term"}},
		"the same timeline":          {[]catalog.History{first, h(2, "b", 2, 1, 100), h(3, "c", 2, 1, 200)}, []string{"timeline used twice"}},
		"back":                       {[]catalog.History{first, h(2, "b", 2, 1, 300), h(3, "c", 3, 2, 200)}, []string{"history goes back"}},
		"past the one before":        {[]catalog.History{first, h(2, "b", 2, 1, 100), h(3, "c", 3, 1, 100)}, []string{"a term's timeline was left out"}},
		"the last one has no record": {[]catalog.History{first, h(2, "b", 2, 1, 100)}, []string{"no record of the term"}},
	} {
		t.Run(name, func(t *testing.T) { want(t, History(c.rows, now), c.kinds...) })
	}
}

func TestSame(t *testing.T) {
	a, b := End{"a", 3, 100, "x"}, End{"b", 3, 100, "x"}
	want(t, Same(nil))
	want(t, Same([]End{a, b}))
	b.Rows = "y"
	want(t, Same([]End{a, b}), "members differ")
}
