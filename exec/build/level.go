package build

import (
	"neki/exec"
	"neki/internal/pgerr"
)

// namedColumn is a column that can be named; expr computes it from the level's input row.
type namedColumn struct {
	name string
	expr exec.Expr
}

// relation is what stands under one name in FROM.
type relation struct {
	schema, alias string
	table         string // what an alias hides; "" for what is no table
	columns       []namedColumn
}

// namespace is what FROM gives: relations by name, and the columns as * and bare names see them (those merged by USING
// once).
type namespace struct {
	relations []*relation
	columns   []namedColumn
}

// level is one SELECT while it is built. A boundary is run in a frame of its own: what it names of the levels around
// it becomes an argument. Other levels share the frame of their parent and see what that sees outside of itself.
type level struct {
	parent   *level
	boundary bool
	ns       *namespace
	args     []exec.Expr // in the parent's terms
	keys     []string    // of args
	ctes     []*cte
	place    string // clause being built when aggregates are not allowed there, e.g. "WHERE"
	inAgg    bool   // within an aggregate's arguments
	windows  bool   // window functions are allowed
	hasAgg   bool
	local    bool // reads CTEs of the levels around it
	defs     map[string]*windowDef
}

// inner makes the level of a subquery in an expression (or of a LATERAL item).
func (l *level) inner() *level { return &level{parent: l, boundary: true} }

// beside makes the level of a subquery that shares the frame: in FROM, in WITH, a branch of a set operation.
func (l *level) beside() *level { return &level{parent: l} }

// find looks a column up. relName is "" for a bare name. known says that the relation exists though the column does not.
func (l *level) find(schema, relName, name string, offset int32) (e exec.Expr, known bool, err error) {
	if l.ns != nil {
		e, known, err = l.ns.find(schema, relName, name, offset)
		if e != nil || known || err != nil {
			return e, known, err
		}
	}
	return l.findOutside(schema, relName, name, offset)
}

func (l *level) findOutside(schema, relName, name string, offset int32) (exec.Expr, bool, error) {
	if l.parent == nil {
		return nil, false, nil
	}
	if !l.boundary {
		return l.parent.findOutside(schema, relName, name, offset)
	}
	e, known, err := l.parent.find(schema, relName, name, offset)
	if e == nil || err != nil {
		return nil, known, err
	}
	return l.argument(e), true, nil
}

// argument gives the Arg by which this boundary gets the parent's expression.
func (l *level) argument(e exec.Expr) exec.Expr {
	key := exec.Key(e)
	for i, k := range l.keys {
		if k == key {
			return &exec.Arg{Index: i, Typ: e.Type()}
		}
	}
	l.args, l.keys = append(l.args, e), append(l.keys, key)
	return &exec.Arg{Index: len(l.args) - 1, Typ: e.Type()}
}

func (ns *namespace) find(schema, relName, name string, offset int32) (exec.Expr, bool, error) {
	columns := ns.columns
	known := false
	if relName != "" {
		rel, err := ns.relation(schema, relName, offset)
		if rel == nil || err != nil {
			return nil, false, err
		}
		columns, known = rel.columns, true
	}
	var found exec.Expr
	for _, c := range columns {
		if c.name != name {
			continue
		}
		if found != nil {
			return nil, true, errAt(offset, pgerr.AmbiguousColumn, "column reference \"%s\" is ambiguous", name)
		}
		found = c.expr
	}
	return found, known || found != nil, nil
}

func (ns *namespace) relation(schema, name string, offset int32) (*relation, error) {
	var found *relation
	for _, r := range ns.relations {
		if r.alias != name || schema != "" && r.schema != schema {
			continue
		}
		if found != nil {
			return nil, errAt(offset, "42P09", "table reference \"%s\" is ambiguous", name)
		}
		found = r
	}
	return found, nil
}

// names collects the columns that can be seen, for hints.
func (l *level) names() []string {
	var out []string
	for ; l != nil; l = l.parent {
		if l.ns == nil {
			continue
		}
		for _, c := range l.ns.columns {
			out = append(out, c.name)
		}
	}
	return out
}

// within runs fn while the level builds the clause called place.
func (l *level) within(place string, fn func() error) error {
	old := l.place
	l.place = place
	defer func() { l.place = old }()
	return fn()
}
