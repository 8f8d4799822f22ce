package adminsql

import (
	"context"

	"github.com/jackc/pgx/v5/pgtype"

	"neki/exec/build"
	"neki/internal/datum"
	"neki/internal/pgerr"
)

// Names of the two schemas the gateway answers itself, and of the roles that open them.
const (
	SchemaName     = "neki"   // relations and procedures
	MetaSchemaName = "__neki" // function forms the commercial system documents
	ViewerRole     = "neki_viewer"
	OperatorRole   = "neki_operator"
)

// PGLSNOID is pg_lsn's OID, which pgtype does not name.
const PGLSNOID = 3220

// Column is one result column of a Relation.
type Column struct {
	Name    string
	Type    uint32 // OID of a Postgres built-in type
	Comment string
}

// Argument is one named argument of a Procedure or of a function-like Relation.
type Argument struct {
	Name    string
	Type    uint32
	Default *string // text form of the default; nil = the argument must be given, unless it may be NULL
	Null    bool    // it may be NULL, and is when it is not given
	InOut   bool    // of a procedure: it is given back, in the row that the CALL gives
	Comment string
}

// Relation is a read-only table of facts, or a set-returning function when Function is set.
type Relation struct {
	Schema   string
	Name     string
	Comment  string
	Columns  []Column
	Function bool
	Args     []Argument // of a function
	Open     bool       // readable by all; rows limits what each sees
	Operator bool       // needs the rights of a procedure: it changes something
	Scalar   bool       // of a function: it gives one value, and may stand outside of FROM

	rows      func(ctx context.Context, sess Session, args []any) ([][]any, error)
	overloads []build.Function // of a function that takes values of several types, instead of rows
}

// Procedure is an action. It is idempotent: the same call twice does no harm.
type Procedure struct {
	Name    string
	Comment string
	Args    []Argument // with one that is InOut, the CALL gives a row with call.operation in it

	// run gets the arguments in order, each a Go value of its type (string, int32, bool ...) or nil for NULL.
	run func(ctx context.Context, c *call) error
}

// Schema holds every Relation and Procedure. It is immutable.
type Schema struct {
	in         Inputs
	relations  []*Relation
	procedures []*Procedure
	byName     map[string]*Relation  // "schema.name"
	procByName map[string]*Procedure // name in schema neki
}

// New makes the schema over its inputs. An input that is nil makes the relations that need it answer 55000.
func New(in Inputs) *Schema {
	s := &Schema{in: in, byName: map[string]*Relation{}, procByName: map[string]*Procedure{}}
	s.relations = s.defineRelations()
	s.procedures = s.defineProcedures()
	for _, r := range s.relations {
		s.byName[r.Schema+"."+r.Name] = r
	}
	for _, p := range s.procedures {
		s.procByName[p.Name] = p
	}
	return s
}

// Relations lists all relations and functions, in name order within their schema.
func (s *Schema) Relations() []*Relation { return s.relations }

// Procedures lists all procedures in name order.
func (s *Schema) Procedures() []*Procedure { return s.procedures }

// HasRelation, HasFunction and HasProcedure tell the planner the names of schema neki.
func (s *Schema) HasRelation(name string) bool {
	_, ok := s.Relation(SchemaName, name)
	return ok
}

// HasFunction reports whether schema neki has a set-returning function of that name.
func (s *Schema) HasFunction(name string) bool {
	_, ok := s.Function(SchemaName, name)
	return ok
}

// HasProcedure reports whether schema neki has a procedure of that name.
func (s *Schema) HasProcedure(name string) bool {
	_, ok := s.Procedure(name)
	return ok
}

// RelationNames lists the relations of schema neki: names that a table of a user's could have too.
func (s *Schema) RelationNames() []string {
	var names []string
	for _, r := range s.relations {
		if r.Schema == SchemaName && !r.Function {
			names = append(names, r.Name)
		}
	}
	return names
}

// Relation finds a relation (not a function) by schema and name.
func (s *Schema) Relation(schema, name string) (*Relation, bool) {
	r, ok := s.byName[schema+"."+name]
	if !ok || r.Function {
		return nil, false
	}
	return r, true
}

// Function finds a set-returning function by schema and name.
func (s *Schema) Function(schema, name string) (*Relation, bool) {
	r, ok := s.byName[schema+"."+name]
	if !ok || !r.Function {
		return nil, false
	}
	return r, true
}

// Procedure finds a procedure of schema neki by name.
func (s *Schema) Procedure(name string) (*Procedure, bool) {
	p, ok := s.procByName[name]
	return p, ok
}

// Owns reports whether schema is one the gateway answers itself.
func Owns(schema string) bool { return schema == SchemaName || schema == MetaSchemaName }

// Rows gives the relation's rows as this session may see them: one Go value a column (string, int32, int64, float64,
// bool, time.Time, time.Duration, []string) or nil for NULL. The caller has checked the rights.
func (r *Relation) Rows(ctx context.Context, sess Session, args ...any) ([][]any, error) {
	return r.rows(ctx, sess, args)
}

// FullName is the name as messages and HINTs show it.
func (r *Relation) FullName() string { return r.Schema + "." + r.Name }

// TypeName gives the SQL name of the types that relations and procedures use.
func TypeName(oid uint32) string {
	switch oid {
	case pgtype.TextOID:
		return "text"
	case pgtype.Int4OID:
		return "int4"
	case pgtype.Int8OID:
		return "int8"
	case pgtype.Float8OID:
		return "float8"
	case pgtype.BoolOID:
		return "bool"
	case pgtype.IntervalOID:
		return "interval"
	case pgtype.TimestamptzOID:
		return "timestamptz"
	case pgtype.TextArrayOID:
		return "text[]"
	case pgtype.JSONBOID:
		return "jsonb"
	case PGLSNOID:
		return "pg_lsn"
	case datum.AnyElementOID:
		return "anyelement"
	}
	return ""
}

// unknownRelation is 42P01 with the nearest name.
func (s *Schema) unknownRelation(schema, name string) *pgerr.Error {
	err := pgerr.New(pgerr.UndefinedTable, "relation \"%s.%s\" does not exist", schema, name)
	if schema == SchemaName {
		if f, ok := s.Function(schema, name); ok {
			return err.WithHint("%s is a function: write %s(...).", f.FullName(), f.FullName())
		}
		if _, ok := s.Procedure(name); ok {
			return err.WithHint("neki.%s is a procedure: use CALL neki.%s(...).", name, name)
		}
	}
	if near := pgerr.Nearest(name, s.RelationNames()); near != "" {
		return err.WithHint("Perhaps you meant the relation \"neki.%s\".", near)
	}
	return err.WithHint("\\dv neki.* lists the relations.")
}
