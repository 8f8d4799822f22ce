package plan

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"neki/exec"
	"neki/exec/build"
	"neki/internal/datum"
	"neki/internal/pgerr"
	"neki/sqlparse"
)

// legSource is a leg as a relation of the engine.
type legSource struct {
	leg     int
	columns []exec.Column
}

func (s *legSource) Columns() []exec.Column { return s.columns }

// Open asks the run's LegOpener.
func (s *legSource) Open(_ context.Context, need exec.Need) (exec.Node, error) {
	opener, ok := need.Env.Caller.(LegOpener)
	if !ok {
		return nil, pgerr.New(pgerr.InternalError, "a leg is read outside of its statement")
	}
	return opener.OpenLeg(s.leg, need)
}

// engine makes of a query one over legs, which exec/build can build: relations and subqueries whose rows the shards can give
// become legs, the rest of the tree stays as it is. The tree is changed in place.
type engine struct {
	*sharding
	prefix   string // of the legs' names
	legs     []Leg
	used     map[string]bool // names that columns are referred to by
	all      bool            // some place needs all columns
	inside   int             // depth of subqueries that may run again for each row around them
	bytewise bool            // no text of the legs has an order of its own
	failed   error
}

// legName is the relation that stands for leg i.
func (e *engine) legName(i int) string { return fmt.Sprintf("%s%d", e.prefix, i) }

// Resolve implements build.Resolver.
func (e *engine) Resolve(schema, name string) (exec.Source, bool) {
	for i := range e.legs {
		if schema == "" && name == e.legName(i) {
			return &legSource{leg: i, columns: e.legs[i].Columns}, true
		}
	}
	return nil, false
}

// engineQuery plans a query by the engine.
func (s *sharding) engineQuery() error {
	e := s.newEngine()
	e.collectNames()
	stmt := s.query.stmt
	e.process(s.query, stmt, true)
	if e.failed != nil {
		return e.failed
	}
	return e.finish(stmt, nil)
}

func (s *sharding) newEngine() *engine {
	e := &engine{sharding: s, prefix: "__neki_leg", used: map[string]bool{}, bytewise: true}
	for strings.Contains(s.st.Text, e.prefix) {
		e.prefix += "_"
	}
	return e
}

// finish builds the engine's query over the legs.
func (e *engine) finish(stmt *sqlparse.SelectStmt, steps []string) error {
	oids, uses := engineParams(stmt)
	spec, err := build.Query(statementOf(stmt, e.st.Text), e, oids)
	if err != nil {
		return errEngine(err)
	}
	if err := e.checkOrder(spec); err != nil {
		return err
	}
	if text, err := sqlparse.DeparseNode(selectNode(stmt)); err == nil && steps == nil {
		steps = []string{text}
	}
	e.reach(&Spread{Legs: e.legs, Spec: spec, Params: uses, Steps: steps})
	return nil
}

// engineParams finds the parameters that the engine itself needs. The rest have a type that nobody asks for.
func engineParams(s *sqlparse.SelectStmt) (oids []uint32, uses []int) {
	sqlparse.Walk(selectNode(s), func(node any) bool {
		if p, ok := node.(*sqlparse.ParamRef); ok && p.Number > 0 && p.Number < maxParams {
			i := int(p.Number) - 1
			for len(oids) <= i {
				oids = append(oids, datum.TextOID)
			}
			oids[i] = 0
			if !slices.Contains(uses, i) {
				uses = append(uses, i)
			}
		}
		return true
	})
	return oids, uses
}

// maxParams is more than Bind can give.
const maxParams = 1 << 16

// errEngine is the error of what the engine can't do. What is wrong with the statement itself is told as it is.
func errEngine(err error) error {
	e := pgerr.From(err)
	switch e.Code {
	case pgerr.UndefinedColumn, pgerr.UndefinedTable, pgerr.AmbiguousColumn, pgerr.GroupingError, pgerr.DatatypeMismatch, pgerr.StatementTooComplex:
		return err
	}
	return unplanned(numberEngine, "a query over several shards that needs more than the gateway's engine has").
		WithDetail("%s", e.Message).
		WithHint("Restrict it to one shard by the shard key, or join the tables by their shard keys.")
}

// checkOrder refuses what depends on an order or a case of text that only the server knows.
func (e *engine) checkOrder(spec *exec.Spec) error {
	var bad string
	spec.Inspect(func(x exec.Expr, ordered bool) {
		switch x := x.(type) {
		case *exec.Func:
			if caseProcs[x.Proc] || !e.bytewise && orderProcs[x.Proc] {
				bad = x.Name
			}
		case *exec.AggregateCall:
			if (x.Name == "min" || x.Name == "max") && !e.bytewise && collates(x.Typ.OID) {
				bad = x.Name
			}
		}
		if ordered && !e.bytewise && collates(x.Type().OID) {
			bad = firstOf(bad, "ORDER BY")
		}
	})
	if bad == "" {
		return nil
	}
	return errTextOrder(bad)
}

func errTextOrder(what string) error {
	return unplanned(numberTextOrder, "%s of text over several shards", what).
		WithDetail("It depends on the collation, and the gateway knows only the order of bytes (\"C\").").
		WithHint("Add COLLATE \"C\" to the column's definition, or restrict the query to one shard.")
}

// collates reports whether values of a type are ordered by a collation.
func collates(oid uint32) bool {
	if elem := datum.Elem(oid); elem != 0 {
		oid = elem
	}
	return isText(oid) || oid == datum.BPCharOID || oid == datum.UnknownOID
}

// orderProcs compare text by its collation; caseProcs depend on the locale's cases and classes.
var (
	orderProcs = map[string]bool{
		"text_lt": true, "text_le": true, "text_gt": true, "text_ge": true, "bpcharlt": true, "bpcharle": true, "bpchargt": true,
		"bpcharge": true, "array_lt": true, "array_le": true, "array_gt": true, "array_ge": true, "bttextcmp": true,
		"text_larger": true, "text_smaller": true, "record_lt": true, "record_gt": true, "record_le": true, "record_ge": true,
	}
	caseProcs = map[string]bool{
		"upper": true, "lower": true, "initcap": true, "texticlike": true, "texticnlike": true, "nameiclike": true, "nameicnlike": true,
		"textregexeq": true, "textregexne": true, "texticregexeq": true, "texticregexne": true, "textregexreplace": true,
		"textregexreplace_noopt": true, "regexp_match": true, "regexp_matches": true, "regexp_split_to_array": true,
	}
)

// collectNames notes by which names columns are referred to anywhere in the statement.
func (e *engine) collectNames() {
	sqlparse.Walk(e.st.Tree, func(node any) bool {
		switch n := node.(type) {
		case *sqlparse.ColumnRef:
			for _, f := range n.Fields {
				if f.GetAStar() != nil {
					e.all = true
				}
				e.used[f.GetString_().GetSval()] = true
			}
		case *sqlparse.JoinExpr:
			e.all = e.all || n.IsNatural
			for _, name := range nameParts(n.UsingClause) {
				e.used[name] = true
			}
		}
		return true
	})
}

func (e *engine) fail(err error) {
	if e.failed == nil {
		e.failed = err
	}
}

// process rewrites a query. top: it is the statement itself, whose whole is not for a leg.
func (e *engine) process(q *query, s *sqlparse.SelectStmt, top bool) {
	if q == nil {
		e.fail(unplanned(numberEngine, "this query over several shards"))
		return
	}
	if !top && e.whole(q, s) {
		return
	}
	if len(s.LockingClause) > 0 || s.IntoClause != nil {
		e.fail(unplanned(numberLocking, "row locks of a query that is put together from several shards").
			WithHint("Lock the rows by a query that names the shard key."))
		return
	}
	e.processWith(s)
	if s.Op != sqlparse.SetOperation_SETOP_NONE {
		e.process(q.left, s.Larg, false)
		e.process(q.right, s.Rarg, false)
		e.sublinks(s.SortClause)
		return
	}
	if e.aggregate(q, s) {
		return
	}
	if q.level != nil {
		e.pushConditions(q.level, s)
	}
	for _, n := range s.FromClause {
		e.fromNode(q.level, n)
	}
	e.sublinks(s.FromClause, s.TargetList, []*sqlparse.Node{s.WhereClause, s.HavingClause, s.LimitCount, s.LimitOffset},
		s.GroupClause, s.SortClause, s.DistinctClause, s.ValuesLists, s.WindowClause)
}

func (e *engine) processWith(s *sqlparse.SelectStmt) {
	for _, n := range s.GetWithClause().GetCtes() {
		c := n.GetCommonTableExpr()
		sub := c.Ctequery.GetSelectStmt()
		if sub == nil {
			e.fail(unplanned(numberChangeInWith, "a change of rows inside a query over several shards"))
			return
		}
		recursive := s.WithClause.Recursive && mentions(c.Ctequery, c.Ctename)
		if recursive {
			e.inside++
		}
		e.process(e.a.queries[sub], sub, recursive)
		if recursive {
			e.inside--
		}
	}
}

// sublinks processes the subqueries in expressions.
func (e *engine) sublinks(lists ...[]*sqlparse.Node) {
	for _, list := range lists {
		for _, n := range list {
			if n == nil {
				continue
			}
			sqlparse.Walk(n, func(node any) bool {
				switch node := node.(type) {
				case *sqlparse.SubLink:
					if node.Testexpr != nil {
						e.sublinks([]*sqlparse.Node{node.Testexpr})
					}
					sub := node.Subselect.GetSelectStmt()
					e.inside++
					e.process(e.a.queries[sub], sub, false)
					e.inside--
					return false
				case *sqlparse.RangeSubselect:
					return false // done with FROM
				}
				return true
			})
		}
	}
}

// whole makes a leg of a query that the shards can run by themselves. It reports whether it did.
func (e *engine) whole(q *query, s *sqlparse.SelectStmt) bool {
	if q.rows.kind == scattered || q.outer || q.usesCTE || len(q.rows.tables) == 0 && !e.reads(s) {
		return false
	}
	if len(s.LockingClause) > 0 || s.IntoClause != nil {
		return false
	}
	columns, ok := e.columnsOf(s)
	if !ok {
		return false
	}
	text, err := sqlparse.DeparseNode(selectNode(s))
	if err != nil {
		return false
	}
	i := e.addLeg(Leg{SQL: text, Route: e.routeOf(q.rows), Columns: columns})
	e.noteOrder(columns, q)
	overwrite(s, e.legName(i), columns)
	return true
}

// reads reports whether a query names a relation.
func (e *engine) reads(s *sqlparse.SelectStmt) bool {
	found := false
	sqlparse.Walk(selectNode(s), func(node any) bool {
		_, is := node.(*sqlparse.RangeVar)
		found = found || is
		return !found
	})
	return found
}

// noteOrder notes whether texts of a leg are ordered by bytes.
func (e *engine) noteOrder(columns []exec.Column, q *query) {
	for i, c := range columns {
		if collates(c.Type.OID) && !(q != nil && i < len(q.outs) && q.outs[i].bytewise) && !e.database() {
			e.bytewise = false
		}
	}
}

// database reports whether all text columns of the tables named are ordered by bytes: then so is what is made of them.
func (e *engine) database() bool {
	for i := range e.a.facts {
		f := &e.a.facts[i]
		if collates(f.typ) && !f.bytewise {
			return false
		}
	}
	return true
}

// overwrite makes of a query SELECT of all of a leg's columns.
func overwrite(s *sqlparse.SelectStmt, leg string, columns []exec.Column) {
	fresh := emptySelect()
	fresh.FromClause = []*sqlparse.Node{rangeOf(leg, nil)}
	for _, c := range columns {
		fresh.TargetList = append(fresh.TargetList, target("", columnNode(c.Name)))
	}
	names := map[string]bool{}
	for _, c := range columns {
		if names[c.Name] || c.Name == "?column?" { // can't be told apart: by place
			fresh.TargetList = []*sqlparse.Node{target("", &sqlparse.Node{Node: &sqlparse.Node_ColumnRef{
				ColumnRef: &sqlparse.ColumnRef{Fields: []*sqlparse.Node{{Node: &sqlparse.Node_AStar{AStar: &sqlparse.A_Star{}}}}},
			}})}
			break
		}
		names[c.Name] = true
	}
	sqlparse.Become(s, fresh)
}

func rangeOf(name string, alias *sqlparse.Alias) *sqlparse.Node {
	return &sqlparse.Node{Node: &sqlparse.Node_RangeVar{RangeVar: &sqlparse.RangeVar{
		Relname: name, Inh: true, Relpersistence: "p", Alias: alias,
	}}}
}

func (e *engine) addLeg(l Leg) int {
	l.Keep = e.inside > 0
	l.Name = e.legName(len(e.legs))
	e.legs = append(e.legs, l)
	return len(e.legs) - 1
}

// columnsOf infers the columns of a query that goes to the shards; ok is false when their types can't be told.
func (e *engine) columnsOf(s *sqlparse.SelectStmt) ([]exec.Column, bool) {
	spec, err := build.Query(statementOf(cloneSelect(s), ""), typedRelations{e.sharding}, nil)
	if err != nil {
		return nil, false
	}
	return spec.Columns(), true
}

// typedRelations are the database's relations, for their types.
type typedRelations struct{ s *sharding }

// typedSource is a relation that is never read.
type typedSource []exec.Column

func (t typedSource) Columns() []exec.Column { return t }

func (t typedSource) Open(context.Context, exec.Need) (exec.Node, error) {
	return nil, pgerr.New(pgerr.InternalError, "a relation is read that only has types")
}

// Resolve implements build.Resolver.
func (r typedRelations) Resolve(schema, name string) (exec.Source, bool) {
	t, found, err := r.s.schema.relation(schema, name)
	if err != nil || !found || t.system {
		return nil, false
	}
	return typedSource(t.engineColumns()), true
}

// engineColumns gives a table's columns in the types that queries show: of a domain, its base.
func (t *tableShape) engineColumns() []exec.Column {
	out := make([]exec.Column, len(t.columns))
	for i := range t.columns {
		c := &t.columns[i]
		out[i] = exec.Column{Name: c.Name, Type: c.Type}
		if c.base.OID != 0 {
			out[i].Type = c.base
		}
	}
	return out
}

// fromNode rewrites an item of FROM.
func (e *engine) fromNode(l *level, n *sqlparse.Node) {
	switch x := n.GetNode().(type) {
	case *sqlparse.Node_RangeVar:
		e.table(x.RangeVar)
	case *sqlparse.Node_RangeSubselect:
		sub := x.RangeSubselect.Subquery.GetSelectStmt()
		if x.RangeSubselect.Lateral {
			e.inside++
			defer func() { e.inside-- }()
		}
		e.process(e.a.queries[sub], sub, false)
	case *sqlparse.Node_JoinExpr:
		e.fromNode(l, x.JoinExpr.Larg)
		e.fromNode(l, x.JoinExpr.Rarg)
	case *sqlparse.Node_RangeFunction:
	default:
		e.fail(unplanned(numberEngine, "this kind of FROM item over several shards"))
	}
}

// table makes a leg of a relation, with the columns and conditions that it needs.
func (e *engine) table(n *sqlparse.RangeVar) {
	it := e.a.items[n]
	if it == nil || it.cte {
		return
	}
	if it.table == nil {
		e.fail(unplanned(numberUnknownRelation, "the relation \"%s\" in a query over several shards", n.Relname).
			WithDetail("The schema of the database doesn't have it: it may be a temporary table."))
		return
	}
	if it.rows.kind == scattered || it.table.system {
		e.fail(unplanned(numberInherited, "the relation \"%s\" in a query over several shards", n.Relname).
			WithDetail("Its rows can't be read from each shard by themselves."))
		return
	}
	s := emptySelect()
	from := sqlparse.Clone(&sqlparse.Node{Node: &sqlparse.Node_RangeVar{RangeVar: n}})
	s.FromClause = []*sqlparse.Node{from}
	var columns []exec.Column
	renamed := len(n.Alias.GetColnames()) > 0
	for i, c := range it.table.engineColumns() {
		name := it.names[i]
		if !e.all && !renamed && !e.used[c.Name] {
			continue
		}
		c.Name = name
		columns = append(columns, c)
		s.TargetList = append(s.TargetList, target("", columnNode(it.alias, name)))
		if collates(c.Type.OID) && !it.table.columns[i].bytewise {
			e.bytewise = false
		}
	}
	if len(columns) == 0 {
		columns = []exec.Column{{Name: "one", Type: datum.Of(datum.Int4OID)}}
		s.TargetList = []*sqlparse.Node{target("one", intConst(1))}
	}
	s.WhereClause = conjunction(it.pushed)
	text, err := sqlparse.DeparseNode(selectNode(s))
	if err != nil {
		e.fail(errDeparse(err))
		return
	}
	i := e.addLeg(Leg{SQL: text, Route: e.routeOf(it.rows), Columns: columns})
	n.Catalogname, n.Schemaname, n.Relname, n.Inh = "", "", e.legName(i), true
	n.Alias = &sqlparse.Alias{Aliasname: it.alias}
}

func conjunction(list []*sqlparse.Node) *sqlparse.Node {
	switch len(list) {
	case 0:
		return nil
	case 1:
		return list[0]
	}
	return &sqlparse.Node{Node: &sqlparse.Node_BoolExpr{BoolExpr: &sqlparse.BoolExpr{
		Boolop: sqlparse.BoolExprType_AND_EXPR, Args: slices.Clone(list),
	}}}
}

// pushConditions moves conditions on a single table to its leg.
func (e *engine) pushConditions(l *level, s *sqlparse.SelectStmt) {
	var stay []*sqlparse.Node
	for _, n := range conjuncts(s.WhereClause, nil) {
		it := e.onlyItem(l, n)
		if it == nil || it.padded {
			stay = append(stay, n)
			continue
		}
		it.pushed = append(it.pushed, n)
	}
	s.WhereClause = conjunction(stay)
	for _, n := range s.FromClause {
		e.pushJoin(l, n, false)
	}
}

// pushJoin moves conditions of inner joins likewise, and those of a LEFT JOIN on what may be missing.
func (e *engine) pushJoin(l *level, n *sqlparse.Node, padded bool) {
	j := n.GetJoinExpr()
	if j == nil {
		return
	}
	left, right := j.Jointype == sqlparse.JoinType_JOIN_RIGHT, j.Jointype == sqlparse.JoinType_JOIN_LEFT
	inner := j.Jointype == sqlparse.JoinType_JOIN_INNER
	var stay []*sqlparse.Node
	for _, cond := range conjuncts(j.Quals, nil) {
		it := e.onlyItem(l, cond)
		switch {
		case it == nil,
			!(inner && !it.padded || right && j.Rarg.GetRangeVar() != nil && e.a.items[j.Rarg.GetRangeVar()] == it ||
				left && j.Larg.GetRangeVar() != nil && e.a.items[j.Larg.GetRangeVar()] == it):
			stay = append(stay, cond)
		default:
			it.pushed = append(it.pushed, cond)
		}
	}
	if j.Quals != nil {
		if j.Quals = conjunction(stay); j.Quals == nil {
			j.Quals = &sqlparse.Node{Node: &sqlparse.Node_AConst{AConst: &sqlparse.A_Const{
				Val: &sqlparse.A_Const_Boolval{Boolval: &sqlparse.Boolean{Boolval: true}},
			}}}
		}
	}
	e.pushJoin(l, j.Larg, padded)
	e.pushJoin(l, j.Rarg, padded)
}

// onlyItem gives the table of the level that a condition is about, when it is about no other and a shard can judge it.
func (e *engine) onlyItem(l *level, n *sqlparse.Node) *item {
	var found *item
	ok := true
	sqlparse.Walk(n, func(node any) bool {
		switch node := node.(type) {
		case *sqlparse.SubLink:
			ok = false
		case *sqlparse.FuncCall:
			if e.callVaries(node) != alike {
				ok = false
			}
		case *sqlparse.SQLValueFunction:
			ok = ok && !isTime(node.Op)
		case *sqlparse.ColumnRef:
			it := l.itemOf(&sqlparse.Node{Node: &sqlparse.Node_ColumnRef{ColumnRef: node}})
			if it == nil || it.table == nil || it.rows.kind == scattered || found != nil && found != it || it.cte {
				ok = false
			}
			found = it
		}
		return ok
	})
	if !ok {
		return nil
	}
	return found
}

// itemOf gives the item of the level that a column belongs to.
func (l *level) itemOf(n *sqlparse.Node) *item {
	c := l.columnOf(n)
	if c == noColumn {
		return nil
	}
	for _, it := range l.items {
		if c >= it.first && c < it.first+column(len(it.names)) {
			return it
		}
	}
	return nil
}
