package adminsql

import (
	"context"
	"slices"
	"unicode/utf8"

	"neki/exec"
	"neki/exec/build"
	"neki/internal/datum"
	"neki/internal/pgerr"
	"neki/sqlparse"
)

// resolver gives build the relations and functions of one statement and notes which it took.
type resolver struct {
	schema      *Schema
	unqualified bool // an unqualified name may be one of schema neki
	used        []*Relation
}

// relation and function find what a name of the statement means; known is false for what is not ours.
func (q *resolver) relation(schema, name string) (r *Relation, known bool) {
	if schema == "" && q.unqualified {
		schema = SchemaName
	}
	return q.schema.Relation(schema, name)
}

func (q *resolver) function(schema, name string) (r *Relation, known bool) {
	if schema == "" && q.unqualified {
		schema = SchemaName
	}
	return q.schema.Function(schema, name)
}

// checkUse refuses what is no plain read of the schema's own relations and functions.
func (q *resolver) checkUse(stmt *sqlparse.Statement) error {
	for _, r := range stmt.Relations {
		if _, known := q.relation(r.Schema, r.Name); r.Write && (known || Owns(r.Schema) && !stmt.Kind.IsDML()) {
			return notWritable(r)
		}
	}
	for _, r := range stmt.Relations {
		if err := q.checkRelation(stmt, r); err != nil {
			return err
		}
	}
	for _, f := range stmt.Functions {
		if _, known := q.function(f.Schema, f.Name); Owns(f.Schema) && !known {
			return q.schema.unknownFunction(f.Schema, f.Name, functionPosition(stmt, f))
		}
	}
	switch {
	case stmt.Effects.Any(sqlparse.EffectLocks):
		return pgerr.New(pgerr.WrongObjectType, "cannot lock rows in relations of schema neki").
			WithHint("Leave out FOR UPDATE or FOR SHARE.")
	case stmt.Kind != sqlparse.KindSelect || stmt.Effects.Any(sqlparse.EffectWrites|sqlparse.EffectTempObject):
		return pgerr.New(pgerr.FeatureNotSupported, "cannot execute %s on relations of schema neki", stmt.Tag).
			WithHint("Only SELECT and CALL are answered.")
	}
	return nil
}

func (q *resolver) checkRelation(stmt *sqlparse.Statement, r sqlparse.RelRef) error {
	if _, known := q.relation(r.Schema, r.Name); known {
		return nil
	}
	if Owns(r.Schema) {
		return q.schema.unknownRelation(r.Schema, r.Name).WithPosition(relationPosition(stmt, r))
	}
	return notImplemented(notImplementedJoin, "a join of the schema neki with a table of the shards").
		WithDetail("%s belongs to a shard.", r).
		WithHint("Select from each by itself.").
		WithPosition(relationPosition(stmt, r))
}

// notWritable is 42809: the relations only show what is so.
func notWritable(r sqlparse.RelRef) error {
	return pgerr.New(pgerr.WrongObjectType, "cannot change %s", r).
		WithDetail("The relations of the schema neki are made by the gateway.").
		WithHint("\\df neki.* lists the procedures that act on the cluster.")
}

// relationPosition gives where a relation is first named, in characters from 1; 0 when it is not found.
func relationPosition(stmt *sqlparse.Statement, r sqlparse.RelRef) int32 {
	var position int32
	sqlparse.Walk(stmt.Tree, func(n any) bool {
		v, ok := n.(*sqlparse.RangeVar)
		if ok && position == 0 && v.GetSchemaname() == r.Schema && v.GetRelname() == r.Name {
			position = charPosition(stmt.Text, v.GetLocation())
		}
		return position == 0
	})
	return position
}

// functionPosition does so for a function.
func functionPosition(stmt *sqlparse.Statement, f sqlparse.FuncRef) int32 {
	var position int32
	sqlparse.Walk(stmt.Tree, func(n any) bool {
		if c, ok := n.(*sqlparse.FuncCall); ok && position == 0 {
			if schema, name := functionName(c); schema == f.Schema && name == f.Name {
				position = charPosition(stmt.Text, c.GetLocation())
			}
		}
		return position == 0
	})
	return position
}

func functionName(c *sqlparse.FuncCall) (schema, name string) {
	parts := c.GetFuncname()
	if len(parts) > 1 {
		schema = parts[len(parts)-2].GetString_().GetSval()
	}
	if len(parts) > 0 {
		name = parts[len(parts)-1].GetString_().GetSval()
	}
	return schema, name
}

// charPosition turns a byte offset of the parser into a position as ErrorResponse has it.
func charPosition(text string, offset int32) int32 {
	if offset < 0 || int(offset) > len(text) {
		return 0
	}
	return int32(utf8.RuneCountInString(text[:offset])) + 1
}

// Resolve implements build.Resolver.
func (q *resolver) Resolve(schema, name string) (exec.Source, bool) {
	r, ok := q.relation(schema, name)
	if !ok {
		return nil, false
	}
	q.use(r)
	return r.source(nil), true
}

// Functions implements build.Functions.
func (q *resolver) Functions(schema, name string) []build.Function {
	r, ok := q.function(schema, name)
	if !ok {
		return nil
	}
	q.use(r)
	if r.overloads != nil {
		return r.overloads
	}
	f := build.Function{
		Columns: r.execColumns(), Usage: r.FullName() + "(" + signature(r.Args) + ")",
		Table: func(_ context.Context, _ *exec.Env, args []datum.Datum) (exec.Source, error) {
			values, err := goValues(r.Args, args)
			if err != nil {
				return nil, err
			}
			return r.source(values), nil
		},
	}
	for _, a := range r.Args {
		f.Args, f.ArgNames = append(f.Args, a.Type), append(f.ArgNames, a.Name)
		if a.Default == nil && !a.Null {
			f.Required++
		}
	}
	if r.Scalar {
		f.Table, f.Columns = nil, nil
		f.Result, f.Scalar = r.Columns[0].Type, r.scalar
	}
	return []build.Function{f}
}

// scalar gives the one value of a function that is no set.
func (r *Relation) scalar(ctx context.Context, env *exec.Env, args []datum.Datum) (datum.Datum, error) {
	sess, err := caller(env)
	if err != nil {
		return datum.Null, err
	}
	values, err := goValues(r.Args, args)
	if err != nil {
		return datum.Null, err
	}
	rows, err := r.rows(ctx, sess, values)
	if err != nil {
		return datum.Null, err
	}
	return datum.FromGo(r.Columns[0].Type, rows[0][0])
}

func (q *resolver) use(r *Relation) {
	if !slices.Contains(q.used, r) {
		q.used = append(q.used, r)
	}
}

// noRelations resolves nothing: the arguments of a CALL stand alone.
type noRelations struct{}

func (noRelations) Resolve(string, string) (exec.Source, bool) { return nil, false }

// source gives the relation, or a function for its arguments, to the engine. Whose rows they are, the run says.
func (r *Relation) source(args []any) exec.Source {
	return exec.NewTableFunc(r.execColumns(), func(ctx context.Context, need exec.Need) ([][]any, error) {
		sess, err := caller(need.Env)
		if err != nil {
			return nil, err
		}
		return r.rows(ctx, sess, args)
	})
}

func (r *Relation) execColumns() []exec.Column {
	columns := make([]exec.Column, len(r.Columns))
	for i, c := range r.Columns {
		columns[i] = exec.Column{Name: c.Name, Type: datum.Of(c.Type)}
	}
	return columns
}
