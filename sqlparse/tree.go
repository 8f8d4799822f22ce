package sqlparse

import (
	"reflect"

	"google.golang.org/protobuf/proto"
)

// sameTree reports whether two trees mean the same: they are equal but for the places in their texts. An enumeration or
// a number that is zero in want stands for any in got, because trees that were made, not parsed, leave out defaults.
func sameTree(want, got any) bool {
	return sameStruct(reflect.ValueOf(want), reflect.ValueOf(got))
}

// sameStruct compares two pointers to structs of one type.
func sameStruct(want, got reflect.Value) bool {
	if emptyNode(want) || emptyNode(got) {
		return emptyNode(want) == emptyNode(got)
	}
	if want.Type() != got.Type() {
		return false
	}
	t := want.Type().Elem()
	for i := range t.NumField() {
		f := t.Field(i)
		if !f.IsExported() || f.Name == "Location" && f.Type.Kind() == reflect.Int32 ||
			f.Name == "StmtLocation" || f.Name == "StmtLen" || f.Name == "Version" {
			continue
		}
		if !sameField(want.Elem().Field(i), got.Elem().Field(i)) {
			return false
		}
	}
	return true
}

// emptyNode reports a nil pointer, or a Node that holds nothing: lists have those for NULL.
func emptyNode(v reflect.Value) bool {
	if v.IsNil() {
		return true
	}
	n, ok := v.Interface().(*Node)
	return ok && n.Node == nil
}

func sameField(want, got reflect.Value) bool {
	switch want.Kind() {
	case reflect.Pointer:
		return sameStruct(want, got)
	case reflect.Slice:
		if want.Len() != got.Len() {
			return false
		}
		for i := range want.Len() {
			if !sameField(want.Index(i), got.Index(i)) {
				return false
			}
		}
		return true
	case reflect.Interface:
		if want.IsNil() || got.IsNil() {
			return want.IsNil() == got.IsNil()
		}
		return want.Elem().Type() == got.Elem().Type() && sameStruct(want.Elem(), got.Elem())
	case reflect.Int32, reflect.Int64, reflect.Uint32, reflect.Uint64:
		return want.IsZero() || want.Equal(got)
	default:
		return want.Equal(got)
	}
}

// Clone copies a tree.
func Clone(n *Node) *Node {
	if n == nil {
		return nil
	}
	return proto.Clone(n).(*Node)
}

// Become makes of a query, in place, another one. The other must not be used afterwards.
func Become(s, other *SelectStmt) {
	proto.Reset(s)
	proto.Merge(s, other)
}
