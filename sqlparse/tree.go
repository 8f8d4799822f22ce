package sqlparse

import (
	"reflect"

	"google.golang.org/protobuf/proto"
)

// sameTree reports whether two trees are equal but for the places in their texts. It changes both.
func sameTree(a, b *ParseResult) bool {
	clearLocations(a)
	clearLocations(b)
	return proto.Equal(a, b)
}

// clearLocations sets every location in a tree to zero.
func clearLocations(tree *ParseResult) {
	Walk(tree, func(node any) bool {
		v := reflect.ValueOf(node).Elem()
		for _, name := range [...]string{"Location", "StmtLocation", "StmtLen"} {
			if f := v.FieldByName(name); f.IsValid() && f.CanInt() {
				f.SetInt(0)
			}
		}
		return true
	})
}
