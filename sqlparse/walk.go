package sqlparse

import (
	"reflect"
	"sync"
)

// Walk visits the nodes below root in the order of the tree's fields, root included: pointers to the tree's structs
// (*SelectStmt, *A_Const ...), without the Node that wraps each. Children of a node are visited if visit returns true.
func Walk(root any, visit func(node any) bool) {
	root = unwrap(root)
	if root == nil || !visit(root) {
		return
	}
	children(root, func(child any) { Walk(child, visit) })
}

// unwrap gives what a *Node holds, any other value as it is, nil for an empty one.
func unwrap(node any) any {
	n, ok := node.(*Node)
	if !ok {
		return node
	}
	if n == nil || n.Node == nil {
		return nil
	}
	return reflect.ValueOf(n.Node).Elem().Field(0).Interface()
}

// fieldKind says how a struct's field holds other nodes.
type fieldKind uint8

const (
	fieldPointer fieldKind = iota // *Message
	fieldSlice                    // []*Message
	fieldOneof                    // interface of wrappers
)

// nodeField is a field that holds nodes.
type nodeField struct {
	index int
	kind  fieldKind
}

// nodeFields gives, for each struct of the tree, the fields that hold nodes. Reading types instead of listing them by
// hand means that no kind of node can be forgotten when the parser's version changes.
var nodeFields = sync.OnceValue(func() map[reflect.Type][]nodeField {
	table := map[reflect.Type][]nodeField{}
	addFields(table, reflect.TypeFor[ParseResult]())
	for _, w := range nodeWrappers() {
		addFields(table, w.Elem())
	}
	return table
})

// nodeWrappers lists the types *Node_X, which the generated code knows by the oneof of Node.
func nodeWrappers() []reflect.Type {
	var types []reflect.Type
	message := (&Node{}).ProtoReflect()
	fields := message.Descriptor().Fields()
	for i := range fields.Len() {
		n := &Node{}
		n.ProtoReflect().Mutable(fields.Get(i))
		types = append(types, reflect.TypeOf(n.Node))
	}
	return types
}

func addFields(table map[reflect.Type][]nodeField, t reflect.Type) {
	if _, ok := table[t]; ok {
		return
	}
	table[t] = nil
	var fields []nodeField
	for i := range t.NumField() {
		f := t.Field(i)
		if !f.IsExported() {
			continue
		}
		switch ft := f.Type; {
		case isMessage(ft):
			fields = append(fields, nodeField{i, fieldPointer})
			addFields(table, ft.Elem())
		case ft.Kind() == reflect.Slice && isMessage(ft.Elem()):
			fields = append(fields, nodeField{i, fieldSlice})
			addFields(table, ft.Elem().Elem())
		case ft.Kind() == reflect.Interface:
			fields = append(fields, nodeField{i, fieldOneof})
		}
	}
	table[t] = fields
}

func isMessage(t reflect.Type) bool {
	return t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Struct
}

// children calls yield for each node right below one, unwrapped.
func children(node any, yield func(child any)) {
	v := reflect.ValueOf(node).Elem()
	for _, f := range nodeFields()[v.Type()] {
		field := v.Field(f.index)
		switch f.kind {
		case fieldPointer:
			child(field, yield)
		case fieldSlice:
			for i := range field.Len() {
				child(field.Index(i), yield)
			}
		case fieldOneof:
			if field.IsNil() {
				continue
			}
			if held := field.Elem().Elem().Field(0); isMessage(held.Type()) {
				child(held, yield)
			}
		}
	}
}

func child(pointer reflect.Value, yield func(child any)) {
	if pointer.IsNil() {
		return
	}
	if n := unwrap(pointer.Interface()); n != nil {
		yield(n)
	}
}

// Rewrite replaces nodes below root, in place: where fn gives a node, that stands in its place and is not looked into;
// where it gives nil, what is below is. The root itself is not offered.
func Rewrite(root any, fn func(n *Node) *Node) {
	root = unwrap(root)
	if root == nil {
		return
	}
	v := reflect.ValueOf(root).Elem()
	for _, f := range nodeFields()[v.Type()] {
		field := v.Field(f.index)
		switch f.kind {
		case fieldPointer:
			rewriteField(field, fn)
		case fieldSlice:
			for i := range field.Len() {
				rewriteField(field.Index(i), fn)
			}
		case fieldOneof:
			if !field.IsNil() {
				if held := field.Elem().Elem().Field(0); isMessage(held.Type()) && !held.IsNil() {
					Rewrite(held.Interface(), fn)
				}
			}
		}
	}
}

func rewriteField(field reflect.Value, fn func(n *Node) *Node) {
	if field.IsNil() {
		return
	}
	n, ok := field.Interface().(*Node)
	if !ok {
		Rewrite(field.Interface(), fn)
		return
	}
	if n.Node == nil {
		return
	}
	if with := fn(n); with != nil {
		field.Set(reflect.ValueOf(with))
		return
	}
	Rewrite(n, fn)
}
