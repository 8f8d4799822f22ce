package build

import (
	"context"
	"unicode/utf8"

	"neki/exec"
	"neki/internal/datum"
	"neki/internal/pgerr"
	"neki/sqlparse"
)

// Resolver gives relations. Schema is "" for an unqualified name.
type Resolver interface {
	Resolve(schema, name string) (exec.Source, bool)
}

// RelationNames may be implemented by a Resolver, to hint at the nearest name.
type RelationNames interface {
	RelationNames(schema string) []string
}

// Functions may be implemented by a Resolver that has functions of its own.
type Functions interface {
	Functions(schema, name string) []Function
}

// Function is a function of a resolver. One of Scalar and Table is set.
type Function struct {
	Args     []uint32
	ArgNames []string // for name => value; may be nil
	Usage    string   // how it is declared, for the HINT of a call that does not match; may be empty
	Required int      // arguments that must be given; later ones are NULL when left out
	Result   uint32   // of Scalar
	Scalar   func(ctx context.Context, env *exec.Env, args []datum.Datum) (datum.Datum, error)
	Columns  []exec.Column // of Table
	Table    func(ctx context.Context, env *exec.Env, args []datum.Datum) (exec.Source, error)
}

// Query builds a SELECT, VALUES or set operation. paramOIDs are the types the client gave for $1, $2, ...; 0 (or a
// shorter list) leaves a type to be inferred. Errors are *pgerr.Error with Position.
func Query(stmt *sqlparse.Statement, r Resolver, paramOIDs []uint32) (*exec.Spec, error) {
	if stmt.Tree == nil || len(stmt.Tree.Stmts) != 1 || stmt.Tree.Stmts[0].Stmt.GetSelectStmt() == nil {
		return nil, pgerr.New(pgerr.FeatureNotSupported, "only SELECT and VALUES can be run here")
	}
	b := &builder{resolver: r, text: stmt.Text, params: append([]uint32(nil), paramOIDs...)}
	b.subNames = map[*sqlparse.SubLink]string{}
	spec, err := b.statement(stmt.Tree.Stmts[0].Stmt.GetSelectStmt())
	if err != nil {
		return nil, b.positioned(err)
	}
	return spec, nil
}

// builder is the state of one Query call.
type builder struct {
	resolver Resolver
	text     string
	params   []uint32 // 0: not known yet
	depth    int
	subNames map[*sqlparse.SubLink]string // column names of the scalar subqueries built so far
}

func (b *builder) statement(stmt *sqlparse.SelectStmt) (*exec.Spec, error) {
	q, err := b.query(stmt, &level{}, false)
	if err != nil {
		return nil, err
	}
	for i, oid := range b.params {
		if oid == 0 || oid == datum.UnknownOID {
			return nil, pgerr.New(pgerr.IndeterminateDatatype, "could not determine data type of parameter $%d", i+1)
		}
	}
	for _, c := range q.columns {
		if !datum.Known(c.Type.OID) {
			return nil, pgerr.New(pgerr.FeatureNotSupported, "a result of type %s is not supported", typeName(c.Type.OID))
		}
	}
	return exec.NewSpec(q.op, q.columns, b.params), nil
}

// located is an error with the byte offset it points at; positioned makes a character position of it.
type located struct {
	err    *pgerr.Error
	offset int32
}

func (e *located) Error() string { return e.err.Error() }
func (e *located) Unwrap() error { return e.err }

func errAt(offset int32, code, format string, args ...any) *located {
	return &located{pgerr.New(code, format, args...), offset}
}

func (e *located) hint(format string, args ...any) *located {
	return &located{e.err.WithHint(format, args...), e.offset}
}

// at gives any error a place, unless it has one.
func at(err error, offset int32) error {
	if err == nil {
		return nil
	}
	if _, ok := err.(*located); ok {
		return err
	}
	return &located{pgerr.From(err), offset}
}

func (b *builder) positioned(err error) error {
	e, ok := err.(*located)
	if !ok {
		return pgerr.From(err)
	}
	if e.offset < 0 || int(e.offset) > len(b.text) {
		return e.err
	}
	return e.err.WithPosition(int32(utf8.RuneCountInString(b.text[:e.offset])) + 1)
}

func unsupported(offset int32, format string, args ...any) error {
	e := errAt(offset, pgerr.FeatureNotSupported, format, args...)
	e.err.Message += " is not supported by the gateway's query engine"
	return e
}

// maxDepth bounds the nesting of what is built; the parser bounds it too, less strictly.
const maxDepth = 1000

func (b *builder) enter() error {
	if b.depth++; b.depth > maxDepth {
		return pgerr.New(pgerr.StatementTooComplex, "stack depth limit exceeded")
	}
	return nil
}

func (b *builder) leave() { b.depth-- }
