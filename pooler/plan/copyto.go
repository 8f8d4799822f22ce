package plan

import (
	"slices"
	"strings"

	"neki/internal/pgerr"
	"neki/sqlparse"
)

// copyTo plans COPY TO: of one shard's rows as the statement is; of several shards', the rows of the query are made as by
// themselves, and the gateway writes them.
func (m maker) copyTo(p *Plan, c *sqlparse.CopyStmt, schema *placedSchema) error {
	query := c.Query
	if query == nil {
		t, found, err := schema.relation(c.Relation.Schema, c.Relation.Name)
		if err != nil || !found || t.system {
			return err
		}
		if t.kind != RelOrdinary && t.kind != RelForeign { // a server says why
			return nil
		}
		if err := t.checkColumns(c.Columns); err != nil {
			return err
		}
		if query, err = sqlparse.Parse(selectCopied(t, c)); err != nil {
			return err
		}
	}
	inner, err := m.spreadInside(p, query)
	if err != nil || inner == nil {
		return err
	}
	if !c.Client {
		return unplanned(numberCopyTo, "COPY of rows of several shards to a file or program of a server").
			WithHint("Use COPY ... TO STDOUT, or psql's \\copy.")
	}
	return m.copySpread(p, c, query, inner)
}

// spreadInside plans a query that is part of p. It gives nil when one shard runs it: then p goes there.
func (m maker) spreadInside(p *Plan, query *sqlparse.Statement) (*Plan, error) {
	inner, err := m.insideFor(query)
	if err != nil || inner.Spread != nil {
		return inner, err
	}
	if inner.Route.Backend() && inner.Route.Kind != RouteAny {
		p.Route, p.planner = inner.Route, inner.planner
	}
	return nil, nil
}

// insideFor plans a query that is part of another statement, as it is run: on several shards, unless it is always on one.
func (m maker) insideFor(query *sqlparse.Statement) (*Plan, error) {
	inner, err := m.inside().plan(query)
	if err != nil || !inner.SpreadByText || inner.alwaysOne() {
		return inner, err
	}
	several := m.inside()
	several.spreads = true
	return several.plan(query)
}

// selectCopied gives the query of the rows of a table that COPY gives: none of tables that inherit from it.
func selectCopied(t *tableShape, c *sqlparse.CopyStmt) string {
	var columns []string
	for _, name := range copiedColumns(t, c) {
		columns = append(columns, sqlparse.QuoteIdent(name))
	}
	only := ""
	if len(t.rel.Children) > 0 {
		only = "ONLY "
	}
	return "SELECT " + strings.Join(columns, ", ") + " FROM " + only + qualifiedName(t)
}

// copySpread plans COPY of what a query over several shards gives.
func (m maker) copySpread(p *Plan, c *sqlparse.CopyStmt, query *sqlparse.Statement, inner *Plan) error {
	p.Route, p.planner, p.Pins = inner.Route, inner.planner, p.Pins|inner.Pins
	sp := inner.Spread
	if sp.Write && !returns(query) {
		return pgerr.New(pgerr.FeatureNotSupported, "COPY query must have a RETURNING clause")
	}
	if joinable(c) && sp.Spec == nil && !sp.Write && sp.Eval == nil && len(sp.Legs) == 1 && sp.Legs[0].passedOn() {
		p.Spread = &Spread{Legs: []Leg{{Route: sp.Legs[0].Route}}}
		return nil
	}
	out, err := copyOptions(c)
	if err != nil {
		return err
	}
	p.Spread, p.CopyOut = sp.ofQuery(query.Text), out
	return nil
}

// returns reports whether a change of rows has RETURNING.
func returns(query *sqlparse.Statement) bool {
	n := query.Tree.Stmts[0].Stmt
	return len(n.GetInsertStmt().GetReturningList())+len(n.GetUpdateStmt().GetReturningList())+len(n.GetDeleteStmt().GetReturningList()) > 0
}

// passedOn reports whether every shard runs the client's own query, and its rows are those of the answer.
func (l *Leg) passedOn() bool {
	return l.SQL == "" && l.Rows == nil && len(l.Merge) == 0 && l.Route.Kind == RouteScatter
}

// joinable reports whether the texts that several shards write make one when they are put one behind the other.
func joinable(c *sqlparse.CopyStmt) bool {
	for _, o := range c.Options {
		if o.Name == "header" || o.Name == "format" && !slices.Contains([]string{"text", "csv"}, o.Value) {
			return false
		}
	}
	return true
}
