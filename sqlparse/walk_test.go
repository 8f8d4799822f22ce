package sqlparse

import (
	"reflect"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// countMessages counts the messages of a tree by protobuf's own reflection, without the Nodes that wrap.
func countMessages(m protoreflect.Message) int {
	n := 1
	if m.Descriptor().Name() == "Node" {
		n = 0
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Message() == nil:
		case f.IsList():
			for i := range v.List().Len() {
				n += countMessages(v.List().Get(i).Message())
			}
		default:
			n += countMessages(v.Message())
		}
		return true
	})
	return n
}

// TestWalkMissesNothing: Walk meets every message of every tree that the tests parse.
func TestWalkMissesNothing(t *testing.T) {
	for _, text := range corpus(t) {
		s, err := Parse(text)
		if err != nil || s.Tree == nil {
			continue
		}
		before, _ := proto.Marshal(s.Tree)
		got := 0
		Walk(s.Tree, func(any) bool { got++; return true })
		if want := countMessages(s.Tree.ProtoReflect()); got != want {
			t.Errorf("%s: Walk met %d of %d nodes", text, got, want)
		}
		if after, _ := proto.Marshal(s.Tree); string(before) != string(after) {
			t.Errorf("%s: Walk changed the tree", text)
		}
	}
}

// TestWalkKnowsEveryField: each field of each struct that can hold a node is walked.
func TestWalkKnowsEveryField(t *testing.T) {
	if n := len(nodeWrappers()); n < 250 {
		t.Fatalf("%d kinds of node only", n)
	}
	for _, w := range nodeWrappers() {
		held := w.Elem().Field(0).Type
		if !isMessage(held) {
			continue
		}
		m, ok := newMessage(held)
		if !ok {
			t.Errorf("%v is no message", held)
			continue
		}
		want := 0
		fields := m.Descriptor().Fields()
		oneofs := map[protoreflect.Name]bool{}
		for i := range fields.Len() {
			f := fields.Get(i)
			switch {
			case f.ContainingOneof() != nil:
				oneofs[f.ContainingOneof().Name()] = true
			case f.Message() != nil:
				want++
			}
		}
		if got := len(nodeFields()[held.Elem()]); got != want+len(oneofs) {
			t.Errorf("%v: %d fields are walked, want %d", held, got, want+len(oneofs))
		}
	}
}

func newMessage(pointer reflect.Type) (protoreflect.Message, bool) {
	m, ok := reflect.New(pointer.Elem()).Interface().(proto.Message)
	if !ok {
		return nil, false
	}
	return m.ProtoReflect(), true
}
