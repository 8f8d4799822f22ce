package exec

import (
	"context"
	"errors"
	"io"
	"testing"

	"neki/internal/datum"
	"neki/internal/pgerr"
)

var int4 = datum.Of(datum.Int4OID)

// failing is a source that fails after some rows.
type failing struct {
	batches int
	closed  *int
}

func (s failing) Columns() []Column { return []Column{{"n", int4}} }

func (s failing) Open(context.Context, Need) (Node, error) {
	return &failingNode{left: s.batches, closed: s.closed, out: NewBatch(1)}, nil
}

type failingNode struct {
	left   int
	closed *int
	out    *Batch
}

var errSource = errors.New("the source broke")

func (n *failingNode) Next(context.Context) (*Batch, error) {
	if n.left == 0 {
		return nil, errSource
	}
	n.left--
	n.out.Reset()
	n.out.Append(datum.Int(int64(n.left)))
	return n.out, nil
}

func (n *failingNode) Close() error {
	*n.closed++
	return nil
}

func ref(i int) Expr { return &ColumnRef{Index: i, Typ: int4} }

// TestSourceErrorsComeThrough: each operator gives its source's error and closes it.
func TestSourceErrorsComeThrough(t *testing.T) {
	for name, over := range map[string]func(in Operator) Operator{
		"filter":    func(in Operator) Operator { return &Filter{in, &NullTest{Arg: ref(0), Negate: true}} },
		"project":   func(in Operator) Operator { return &Project{in, []Expr{ref(0)}} },
		"sort":      func(in Operator) Operator { return &Sort{in, []SortKey{{Expr: ref(0)}}} },
		"aggregate": func(in Operator) Operator { return &Aggregate{Input: in, Keys: []Expr{ref(0)}} },
		"unique":    func(in Operator) Operator { return &Unique{in, []Expr{ref(0)}} },
		"limit":     func(in Operator) Operator { return &Limit{Input: in} },
		"append":    func(in Operator) Operator { return &Append{[]Operator{in}} },
		"except":    func(in Operator) Operator { return &SetOperation{Left: in, Right: in, Keys: []Expr{ref(0)}} },
		"join":      func(in Operator) Operator { return &Join{Left: in, Right: in} },
		"window":    func(in Operator) Operator { return &Window{Input: in} },
	} {
		closed := 0
		scan := &Scan{Source: failing{3, &closed}, Used: []bool{true}}
		_, err := NewSpec(over(scan), []Column{{"n", int4}}, nil).All(t.Context(), &Env{Budget: NewBudget(1 << 20)})
		if !errors.Is(err, errSource) || closed == 0 {
			t.Errorf("%s: %v, closed %d times", name, err, closed)
		}
	}
}

// TestCloseEarly: a node may be closed before its end, twice, and gives its memory back.
func TestCloseEarly(t *testing.T) {
	closed := 0
	rows := &Append{}
	for range 100 {
		rows.Inputs = append(rows.Inputs, &Values{[][]Expr{{&Const{Value: datum.Text("some text"), Typ: datum.Of(datum.TextOID)}}}})
	}
	sort := &Sort{rows, []SortKey{{Expr: &ColumnRef{Typ: datum.Of(datum.TextOID)}}}}
	scan := &Scan{Source: failing{3, &closed}, Used: []bool{true}}
	env := &Env{Budget: NewBudget(1 << 20)}
	node, err := NewSpec(&Join{Kind: LeftJoin, Left: scan, Right: sort}, make([]Column, 2), nil).Open(t.Context(), env)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := node.Next(t.Context()); err != nil || b.Len() == 0 || b.Width() != 2 {
		t.Fatalf("%v, %v", b, err)
	}
	for range 2 {
		if err := node.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := node.Next(t.Context()); err != io.EOF {
		t.Errorf("after Close: %v", err)
	}
	if closed != 1 || env.Budget.Used() != 0 {
		t.Errorf("closed %d times, %d bytes kept", closed, env.Budget.Used())
	}
}

func TestTableRowsMustFit(t *testing.T) {
	for _, row := range [][]any{{}, {1, 2}, {"x"}, {struct{}{}}} {
		source := NewTable([]Column{{"n", int4}}, func(context.Context) ([][]any, error) { return [][]any{row}, nil })
		_, err := NewSpec(&Scan{Source: source}, source.Columns(), nil).All(t.Context(), &Env{})
		if err == nil {
			t.Errorf("%v was taken", row)
		}
	}
}

// TestFilterDoesNotAllocate: the path of a merged row through a comparison costs no memory.
func TestFilterDoesNotAllocate(t *testing.T) {
	lookup, _ := Lookup("int4gt")
	cond := NewFunc(">", "int4gt", lookup, true, datum.Of(datum.BoolOID), ref(0), &Const{Value: datum.Int(5), Typ: int4})
	env := &Env{}
	f := &frame{run: &run{ctx: t.Context(), env: env, session: env.session()}}
	row := []datum.Datum{datum.Int(7)}
	if n := testing.AllocsPerRun(100, func() {
		if ok, err := holds(f, cond, row); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}); n > 0 {
		t.Errorf("%v allocations a row", n)
	}
}

func TestBudgetIsShared(t *testing.T) {
	b := NewBudget(100 << 10)
	one, two := account{budget: b}, account{budget: b}
	if err := one.take(60 << 10); err != nil {
		t.Fatal(err)
	}
	if err := two.take(60 << 10); pgerr.Code(err) != pgerr.OutOfMemory {
		t.Errorf("got %v", err)
	}
	one.close()
	if err := two.take(60 << 10); err != nil {
		t.Error(err)
	}
	two.close()
	if b.Used() != 0 {
		t.Errorf("%d bytes are left", b.Used())
	}
}
