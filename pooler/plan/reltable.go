package plan

import (
	"slices"

	"neki/catalog"
	"neki/internal/datum"
)

// RelTable is the relations and types of a database at one time. It is immutable: its slices must not be written to.
type RelTable struct {
	byName map[Relation]*Rel
	byOID  map[uint32]*Rel
	types  map[uint32]*Type
	named  map[Relation]*Type
	bytes  int64
	sum    uint64
	schema int64
}

// RelKind is pg_class.relkind.
type RelKind byte

// The kinds of relations.
const (
	RelOrdinary     RelKind = 'r'
	RelPartitioned  RelKind = 'p'
	RelView         RelKind = 'v'
	RelMaterialized RelKind = 'm'
	RelForeign      RelKind = 'f'
	RelSequence     RelKind = 'S'
)

// Rel is a relation.
type Rel struct {
	OID          uint32
	Schema, Name string
	Kind         RelKind
	RowType      uint32
	Columns      []Column  // in the order of their numbers; dropped ones are left out
	PrimaryKey   []int16   // numbers of the columns, nil: none
	Unique       [][]int16 // of unique indexes that are whole (no expressions, no predicate), the primary key's too
	View         string    // definition of a view or materialized view, names qualified
	Parents      []uint32  // of a partition or an inheriting table
	Children     []uint32
	ReferencedBy []ForeignKey
	Unlogged     bool
	RowSecurity  bool
	Triggers     bool     // has some that are not internal
	Rules        bool     // has some besides a view's
	Sequence     *SeqRule // of a sequence
}

// Column is a column of a relation.
type Column struct {
	Name          string
	Num           int16
	Type          datum.Type
	Collation     uint32 // 0: its type has none
	CollationName string // as it orders and maps cases: the database's locale for "default"; such as C, en_US.utf8
	Deterministic bool   // equal texts are equal bytes
	NotNull       bool
	Default       string // expression, names qualified; "" none, and of a generated column
	Identity      byte   // 0, 'a' always, 'd' by default
	Generated     bool
	// Sequence is the one that identity, or a default of nextval alone, takes values from; the zero Relation: none.
	Sequence Relation
}

// HasDefault reports whether an INSERT may leave the column out and get something else than NULL.
func (c *Column) HasDefault() bool { return c.Default != "" || c.Identity != 0 }

// ForeignKey is one that points to a relation.
type ForeignKey struct {
	From               uint32 // the OID of the relation that has it
	OnDelete, OnUpdate string // pg_constraint.confdeltype and confupdtype: a, r, c, n or d
}

// SeqRule is how a sequence counts.
type SeqRule struct {
	Type                       uint32
	Start, Increment, Min, Max int64
	Cache                      int64
	Cycle                      bool
	OwnerTable                 Relation // the zero Relation: nobody's
}

// TypeKind is pg_type.typtype.
type TypeKind byte

// The kinds of types.
const (
	TypeBase       TypeKind = 'b'
	TypeComposite  TypeKind = 'c'
	TypeDomain     TypeKind = 'd'
	TypeEnum       TypeKind = 'e'
	TypePseudo     TypeKind = 'p'
	TypeRange      TypeKind = 'r'
	TypeMultirange TypeKind = 'm'
)

// Type is a type.
type Type struct {
	OID, Array, Elem uint32 // Elem: of an array
	Schema, Name     string
	Kind             TypeKind
	Size             int16
	Base             datum.Type // of a domain, the type below all domains
	Labels           []string   // of an enum, in their order
	Attributes       []Column   // of a composite: name, number, type, collation
}

// Rel gives the relation that a name means: of that schema, or the first in the search path. nil when there is none.
func (t *RelTable) Rel(schema, name string, searchPath []string) *Rel {
	if schema != "" {
		return t.byName[Relation{schema, name}]
	}
	for _, s := range searchPath {
		if r := t.byName[Relation{s, name}]; r != nil {
			return r
		}
	}
	return nil
}

// RelByOID gives the relation of that OID, nil when there is none.
func (t *RelTable) RelByOID(oid uint32) *Rel { return t.byOID[oid] }

// Type gives the type of that OID, nil when there is none. Types of pg_catalog are there too.
func (t *RelTable) Type(oid uint32) *Type { return t.types[oid] }

// TypeNamed gives the type that a name means, as Rel does.
func (t *RelTable) TypeNamed(schema, name string, searchPath []string) *Type {
	if schema != "" {
		return t.named[Relation{schema, name}]
	}
	for _, s := range searchPath {
		if typ := t.named[Relation{s, name}]; typ != nil {
			return typ
		}
	}
	return nil
}

// Rels lists the relations in no order.
func (t *RelTable) Rels(yield func(*Rel) bool) {
	for _, r := range t.byOID {
		if !yield(r) {
			return
		}
	}
}

// Bytes estimates what the table holds.
func (t *RelTable) Bytes() int64 { return t.bytes }

// Column gives the column of that name, nil when there is none.
func (r *Rel) Column(name string) *Column {
	for i := range r.Columns {
		if r.Columns[i].Name == name {
			return &r.Columns[i]
		}
	}
	return nil
}

// ColumnNum gives the column of that number, nil when there is none.
func (r *Rel) ColumnNum(num int16) *Column {
	for i := range r.Columns {
		if r.Columns[i].Num == num {
			return &r.Columns[i]
		}
	}
	return nil
}

// UniqueBy reports whether no two rows have equal values, none of them NULL, in the columns of those names.
func (r *Rel) UniqueBy(names ...string) bool {
	return slices.ContainsFunc(r.Unique, func(key []int16) bool {
		return !slices.ContainsFunc(key, func(num int16) bool {
			c := r.ColumnNum(num)
			return c == nil || !slices.Contains(names, c.Name)
		})
	})
}

// KeyOID gives the OID by which catalog.Index makes keys of a type: a domain's is that of its base type, an enum's
// anyenum.
func (t *RelTable) KeyOID(oid uint32) uint32 {
	typ := t.types[oid]
	if typ != nil && typ.Kind == TypeDomain {
		oid = typ.Base.OID
		typ = t.types[oid]
	}
	if typ != nil && typ.Kind == TypeEnum {
		return datum.AnyEnumOID
	}
	return oid
}

// CheckKey tells whether the index can make keys of the relation's column: 42703 when it has none of that name, 42804 when
// its type or its collation can't be.
func (t *RelTable) CheckKey(r *Rel, ix *catalog.Index) error {
	c := r.Column(ix.Column)
	if c == nil {
		return noKeyColumn(r, ix)
	}
	if err := ix.CheckType(t.KeyOID(c.Type.OID)); err != nil {
		return err
	}
	return checkCollation(c, ix)
}
