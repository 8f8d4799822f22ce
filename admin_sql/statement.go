package adminsql

import (
	"cmp"
	"context"
	"slices"

	"neki/exec"
	"neki/exec/build"
	"neki/internal/pgerr"
	"neki/sqlparse"
)

// statement is the one Prepared.
type statement struct {
	schema    *Schema
	spec      *exec.Spec  // of a CALL: one row, its arguments; nil when it has none
	call      *Procedure  // nil for a query
	relations []*Relation // to check the rights of
}

// Prepare makes a statement ready that names relations, functions or procedures of the schema, or that needs none at
// all (SELECT current_setting('__neki.target')). An unqualified name may be one of schema neki when searchPath has that.
// paramTypes are the types the client gave for $1, $2, ..., 0 for those to infer. Nothing is run, but a session without
// the right is refused at once.
func (s *Schema) Prepare(
	sess Session, stmt *sqlparse.Statement, searchPath []string, paramTypes []uint32,
) (Prepared, error) {
	prepare := s.prepareQuery
	if stmt.Kind == sqlparse.KindCall {
		prepare = s.prepareCall
	}
	st, err := prepare(stmt, slices.Contains(searchPath, SchemaName), paramTypes)
	if err != nil {
		return nil, err
	}
	if err := st.checkRights(sess); err != nil {
		return nil, err
	}
	return st, nil
}

func (s *Schema) prepareQuery(stmt *sqlparse.Statement, unqualified bool, paramTypes []uint32) (*statement, error) {
	r := &resolver{schema: s, unqualified: unqualified}
	if err := r.checkUse(stmt); err != nil {
		return nil, err
	}
	spec, err := build.Query(stmt, r, paramTypes)
	if err != nil {
		return nil, err
	}
	return &statement{schema: s, spec: spec, relations: r.used}, nil
}

func (s *Schema) prepareCall(stmt *sqlparse.Statement, unqualified bool, paramTypes []uint32) (*statement, error) {
	p, ok := s.Procedure(stmt.Call.Name)
	if !ok || stmt.Call.Schema != SchemaName && !(unqualified && stmt.Call.Schema == "") {
		return nil, s.unknownProcedure(cmp.Or(stmt.Call.Schema, SchemaName), stmt.Call.Name)
	}
	if err := refuseSubquery(stmt); err != nil {
		return nil, err
	}
	nodes, err := p.matchArguments(stmt.Call.Args)
	if err != nil {
		return nil, err
	}
	st := &statement{schema: s, call: p}
	if len(nodes) > 0 {
		st.spec, err = build.Query(selectList(stmt.Text, nodes), noRelations{}, paramTypes)
	}
	return st, err
}

func (st *statement) Columns() []exec.Column {
	switch {
	case st.call == nil:
		return st.spec.Columns()
	case st.call.givesRow():
		return operationColumns()
	}
	return nil
}

func (st *statement) ParamTypes() []uint32 {
	if st.spec == nil {
		return nil
	}
	return st.spec.ParamTypes()
}

func (st *statement) Tag() string {
	if st.call != nil {
		return "CALL"
	}
	return "SELECT"
}

func (st *statement) Run(ctx context.Context, env *exec.Env, notice func(*pgerr.Error)) (exec.Node, error) {
	sess, err := caller(env)
	if err != nil {
		return nil, err
	}
	if err := st.checkRights(sess); err != nil {
		return nil, err
	}
	if st.call == nil {
		return st.spec.Open(ctx, env)
	}
	args, err := st.evaluate(ctx, env)
	if err != nil {
		return nil, err
	}
	if notice == nil {
		notice = func(*pgerr.Error) {}
	}
	c, err := st.schema.execute(ctx, st.call, sess, args, notice)
	if err != nil || !st.call.givesRow() {
		return nil, err
	}
	return operationRow(ctx, c.operation)
}

func (st *statement) checkRights(sess Session) error {
	if st.call != nil {
		return st.call.checkCall(sess)
	}
	for _, rel := range st.relations {
		if err := rel.checkRead(sess); err != nil {
			return err
		}
	}
	return nil
}

// evaluate computes the arguments of a CALL.
func (st *statement) evaluate(ctx context.Context, env *exec.Env) ([]any, error) {
	if st.spec == nil {
		return nil, nil
	}
	rows, err := st.spec.All(ctx, env)
	if err != nil {
		return nil, err
	}
	if len(rows) != 1 {
		return nil, pgerr.New(pgerr.InternalError, "the arguments of a CALL gave %d rows", len(rows))
	}
	return goValues(st.call.Args, rows[0])
}

// caller gives the session that a run is for.
func caller(env *exec.Env) (Session, error) {
	if env != nil {
		if sess, ok := env.Caller.(Session); ok {
			return sess, nil
		}
	}
	return nil, pgerr.New(pgerr.InternalError, "a neki relation was opened outside Prepared.Run")
}
