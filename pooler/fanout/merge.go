package fanout

import (
	"container/heap"
	"context"
	"io"

	"neki/exec"
	"neki/internal/datum"
)

// Key is one key of the order that the legs' rows have.
type Key struct {
	Column           int
	OID              uint32
	Desc, NullsFirst bool
}

// Merge gives the rows of legs that are each in the order of keys, in that order; of equal rows those of the first leg
// come first. Of each leg no more is held than it is ahead.
func Merge(legs *Legs, width int, format Format, keys []Key, session *datum.Session, other func(Piece) error) exec.Node {
	m := &mergeNode{
		legs: legs, decoder: decoder{width: width, binary: format}, keys: keys, session: session,
	}
	for i := range legs.Len() {
		m.inputs = append(m.inputs, &input{cursor: cursor{legs: legs, which: i, other: orIgnore(other)}})
	}
	return m
}

type mergeNode struct {
	decoder
	legs    *Legs
	keys    []Key
	session *datum.Session
	inputs  []*input // a heap once begun, the one with the next row first
	begun   bool
}

// input is a leg with the row that is its next.
type input struct {
	cursor
	row  []datum.Datum
	keys []datum.Datum // decoded
}

// Next gives the next rows.
func (m *mergeNode) Next(ctx context.Context) (*exec.Batch, error) {
	if !m.begun {
		if err := m.begin(ctx); err != nil {
			return nil, err
		}
	}
	if len(m.inputs) == 0 {
		return nil, io.EOF
	}
	batch := exec.NewBatch(m.width)
	for len(m.inputs) > 0 && batch.Len() < rowsPerBatch {
		first := m.inputs[0]
		batch.Append(first.row...)
		more, err := m.advance(ctx, first)
		if err != nil {
			return nil, err
		}
		if more {
			heap.Fix((*inputHeap)(m), 0)
		} else {
			heap.Pop((*inputHeap)(m))
		}
	}
	return batch, nil
}

func (m *mergeNode) begin(ctx context.Context) error {
	m.begun = true
	var live []*input
	for _, in := range m.inputs {
		more, err := m.advance(ctx, in)
		if err != nil {
			return err
		}
		if more {
			live = append(live, in)
		}
	}
	m.inputs = live
	heap.Init((*inputHeap)(m))
	return nil
}

// advance reads the leg's next row; false when there is none.
func (m *mergeNode) advance(ctx context.Context, in *input) (more bool, err error) {
	frame, err := in.frame(ctx)
	if err == io.EOF {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if in.row == nil {
		in.row, in.keys = make([]datum.Datum, m.width), make([]datum.Datum, len(m.keys))
	}
	if err := m.decoder.row(frame, in.row); err != nil {
		return false, err
	}
	for i, k := range m.keys {
		if in.keys[i], err = in.row[k.Column].Decode(k.OID, m.session); err != nil {
			return false, err
		}
	}
	return true, nil
}

// Close ends the legs.
func (m *mergeNode) Close() error {
	m.legs.Close()
	return nil
}

// less orders two inputs by their next rows.
func (m *mergeNode) less(a, b *input) bool {
	for i := range m.keys {
		if c := m.keys[i].compare(a.keys[i], b.keys[i]); c != 0 {
			return c < 0
		}
	}
	return a.which < b.which
}

func (k *Key) compare(a, b datum.Datum) int {
	return datum.Order{OID: k.OID, Desc: k.Desc, NullsFirst: k.NullsFirst}.Compare(a, b)
}

// inputHeap is a mergeNode as container/heap sees it.
type inputHeap mergeNode

func (h *inputHeap) Len() int           { return len(h.inputs) }
func (h *inputHeap) Less(i, j int) bool { return (*mergeNode)(h).less(h.inputs[i], h.inputs[j]) }
func (h *inputHeap) Swap(i, j int)      { h.inputs[i], h.inputs[j] = h.inputs[j], h.inputs[i] }
func (h *inputHeap) Push(any)           {}

// Pop drops the first input, which heap.Pop has moved to the end.
func (h *inputHeap) Pop() any {
	last := len(h.inputs) - 1
	in := h.inputs[last]
	h.inputs = h.inputs[:last]
	return in
}
