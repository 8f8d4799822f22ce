package plan

import (
	"slices"
	"strings"

	"neki/catalog"
	"neki/internal/datum"
	"neki/internal/pgerr"
	"neki/sqlparse"
)

// tableShape is what the planner needs to know of a relation.
type tableShape struct {
	schema, name string
	kind         RelKind
	columns      []columnShape
	query        *sqlparse.Node // of a view
	place        *catalog.Table // where its rows are
	rel          *Rel
	system       bool // of the system's schemas: its columns are not known here
	inherits     bool // tables inherit from it that are placed elsewhere
}

// columnShape is a column of a relation.
type columnShape struct {
	*Column
	base     datum.Type // of a domain, else the zero Type
	key      uint32     // the type as catalog.Index knows it; 0: its equality is not that of bytes, or it can't be a key
	bytewise bool       // its values are ordered by the engine as by the server
}

func (t *tableShape) column(name string) *columnShape {
	if i := t.columnIndex(name); i >= 0 {
		return &t.columns[i]
	}
	return nil
}

func (t *tableShape) columnIndex(name string) int {
	for i := range t.columns {
		if t.columns[i].Name == name {
			return i
		}
	}
	return -1
}

// keyColumn gives the column by which the table is sharded; nil when it is not, or when the column is not there.
func (t *tableShape) keyColumn() *columnShape {
	if t.place == nil || !t.place.Sharded() || t.place.Index == nil {
		return nil
	}
	return t.column(t.place.Index.Column)
}

// schemaReader finds relations as a name in a statement does; found is false when there is none.
type schemaReader interface {
	relation(schema, name string) (t *tableShape, found bool, err error)
	lookupTable(g *catalog.GSI) *catalog.Table
}

// unplanned is the error of what can't be done over shards.
func unplanned(number int, format string, args ...any) *pgerr.Error {
	return pgerr.New(pgerr.NotImplemented, "not implemented: [%d] "+format, append([]any{number}, args...)...)
}

// placedSchema joins what a database has with where the topology places it.
type placedSchema struct {
	table      *RelTable
	topology   *catalog.Topology
	database   string
	searchPath []string
	depth      int // of views within views
}

// maxViewDepth bounds views of views; Postgres's own bound is its stack.
const maxViewDepth = 50

func (s *placedSchema) relation(schema, name string) (*tableShape, bool, error) {
	rel := s.table.Rel(schema, name, s.searchPath)
	if rel == nil {
		return s.systemRelation(schema, name)
	}
	t := &tableShape{schema: rel.Schema, name: rel.Name, kind: rel.Kind, rel: rel}
	for i := range rel.Columns {
		t.columns = append(t.columns, s.column(&rel.Columns[i]))
	}
	if rel.Kind == RelView {
		return t, true, s.view(t)
	}
	place, err := s.place(rel)
	if err != nil {
		return nil, false, err
	}
	if place.Lookup && place.LookupOf.Enabled { // else it is being filled
		return nil, false, pgerr.New(pgerr.FeatureNotSupported, "relation \"%s\" is the lookup table of a global secondary index", name).
			WithHint("It follows the table that it indexes; use that one.")
	}
	t.place = place
	t.inherits = s.inherits(rel, place)
	return t, true, nil
}

// systemRelation finds relations of the system's schemas, which no RelTable has.
func (s *placedSchema) systemRelation(schema, name string) (*tableShape, bool, error) {
	switch {
	case schema == systemSchema || schema == "information_schema":
	case schema == "" && strings.HasPrefix(name, "pg_"):
		schema = systemSchema
	default:
		return nil, false, nil
	}
	place, err := s.topology.Place(s.database, schema, name)
	if err != nil {
		return nil, false, err
	}
	return &tableShape{schema: schema, name: name, kind: RelOrdinary, place: place, system: true}, true, nil
}

func (s *placedSchema) column(c *Column) columnShape {
	out := columnShape{Column: c, bytewise: true}
	if t := s.table.Type(c.Type.OID); t != nil {
		out.base = t.Base
	}
	if c.Deterministic {
		out.key = s.table.KeyOID(c.Type.OID)
		if catalog.FamilyOf(out.key) == catalog.FamilyNone {
			out.key = 0
		}
	}
	if c.Collation != 0 {
		out.bytewise = c.Deterministic && slices.Contains(byteCollations, c.CollationName)
	}
	return out
}

// byteCollations order by bytes: those of C.UTF-8 by code points, which is the same in UTF-8.
var byteCollations = []string{"C", "POSIX", "C.UTF-8", "C.utf8", "ucs_basic"}

// inherits reports whether rows of tables below one are not where its own are.
func (s *placedSchema) inherits(rel *Rel, place *catalog.Table) bool {
	for _, oid := range rel.Children {
		child := s.table.RelByOID(oid)
		if child == nil {
			return true
		}
		other, err := s.place(child)
		if err != nil || s.inherits(child, place) {
			return true
		}
		if other.Group != place.Group || other.Reference != place.Reference || place.Sharded() && !catalog.Colocated(other, place) {
			return true
		}
	}
	return false
}

// place gives the place of a relation. A partition or inheriting table that the document doesn't list lies as its parent.
func (s *placedSchema) place(rel *Rel) (*catalog.Table, error) {
	for len(rel.Parents) > 0 && s.topology.Table(s.database, rel.Schema, rel.Name) == nil {
		parent := s.table.RelByOID(rel.Parents[0])
		if parent == nil {
			break
		}
		rel = parent
	}
	return s.topology.Place(s.database, rel.Schema, rel.Name)
}

// view reads a view's definition.
func (s *placedSchema) view(t *tableShape) error {
	if s.depth++; s.depth > maxViewDepth {
		return pgerr.New(pgerr.StatementTooComplex, "views are nested too deeply")
	}
	st, err := sqlparse.Parse(t.rel.View)
	if err != nil || st.Tree == nil || st.Tree.Stmts[0].Stmt.GetSelectStmt() == nil {
		return unplanned(numberUnknownRelation, "the view \"%s\" over shards", t.name).
			WithDetail("Its definition can't be read.")
	}
	t.query = st.Tree.Stmts[0].Stmt
	return nil
}

// orderedAlike reports whether values of a type that has no collation are ordered alike by the engine and by a server.
func orderedAlike(oid uint32) bool {
	switch oid {
	case datum.BoolOID, datum.Int2OID, datum.Int4OID, datum.Int8OID, datum.Float4OID, datum.Float8OID, datum.NumericOID,
		datum.DateOID, datum.TimestampOID, datum.TimestamptzOID, datum.IntervalOID, datum.UUIDOID, datum.OIDOID, datum.LSNOID:
		return true
	}
	return false
}
