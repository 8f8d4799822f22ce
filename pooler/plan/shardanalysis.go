package plan

import (
	"slices"

	"neki/catalog"
	"neki/sqlparse"
)

// analysis finds where the rows of a statement's tables are. It reads the tree and changes nothing of it.
type analysis struct {
	schema     schemaReader
	text       string
	shape      *sqlparse.Shape // nil: literals stand for themselves
	facts      []columnFact
	tables     []*occurrence
	references []*tableShape // with copies on several shards
	queries    map[*sqlparse.SelectStmt]*query
	items      map[*sqlparse.RangeVar]*item
	err        error // the first thing that makes planning impossible
}

// occurrence is one naming of a table that has a place of its own: sharded, or on a single shard.
type occurrence struct {
	table       *tableShape
	shard       string      // of one that is not sharded
	pins        [][]KeyExpr // conditions on its key that all hold
	anchor      column      // a column of a level around it that its key equals
	anchorLevel *level
	written     bool
	elsewhere   bool // not all of its rows are where it lies: tables inherit from it
}

func (t *occurrence) pinTo(keys []KeyExpr) {
	for _, have := range t.pins {
		if slices.Equal(have, keys) {
			return
		}
	}
	t.pins = append(t.pins, keys)
}

// query is an analysed SELECT, VALUES, set operation, or a change of rows in WITH.
type query struct {
	stmt        *sqlparse.SelectStmt
	level       *level // nil for set operations
	from        []*joined
	left, right *query // of a set operation
	outs        []columnFact
	open        bool // its columns are not all known
	rows        rows
	outer       bool // it names columns of queries around it
	usesCTE     bool // it may name a query of a WITH around it
	anchored    bool // all its sharded rows are on the shard of the row around it
	aggregates  bool // it has aggregates or GROUP BY
	byGroup     bool // ... and every group is on one shard
	windows     bool
	// Whether the rows that DISTINCT compares, and those of every window's partition, are on one shard each.
	distinctByKey, windowsByKey bool
}

func (a *analysis) fail(err error) {
	if a.err == nil {
		a.err = err
	}
}

// addColumns makes columns of facts and gives the first.
func (a *analysis) addColumns(facts []columnFact) column {
	first := column(len(a.facts))
	a.facts = append(a.facts, facts...)
	return first
}

func (a *analysis) fromItem(l *level, n *sqlparse.Node) *joined {
	switch n := n.GetNode().(type) {
	case *sqlparse.Node_RangeVar:
		return a.addItem(l, a.rangeVar(l, n.RangeVar), nil)
	case *sqlparse.Node_RangeSubselect:
		parent := l.parent
		if n.RangeSubselect.Lateral {
			parent = l
		}
		q := a.query(n.RangeSubselect.Subquery.GetSelectStmt(), parent, l.ctes)
		it := a.queryItem(q, n.RangeSubselect.Alias)
		if n.RangeSubselect.Lateral && q.anchored && len(q.rows.tables) > 0 {
			it.rows = rows{}
		}
		it.lateral = n.RangeSubselect.Lateral
		return a.addItem(l, it, nil)
	case *sqlparse.Node_JoinExpr:
		return a.join(l, n.JoinExpr)
	case *sqlparse.Node_RangeFunction:
		return a.addItem(l, a.functionItem(n.RangeFunction), nil)
	}
	return a.addItem(l, &item{open: true, rows: rows{kind: scattered}}, nil)
}

func (a *analysis) addItem(l *level, it *item, node *sqlparse.Node) *joined {
	l.items = append(l.items, it)
	return &joined{item: it, node: node}
}

// functionItem is a function in FROM: the same on every shard, as far as its text tells. Its columns are named by the alias.
func (a *analysis) functionItem(n *sqlparse.RangeFunction) *item {
	it := &item{alias: n.Alias.GetAliasname(), open: true}
	if names := nameParts(n.Alias.GetColnames()); len(names) > 0 {
		facts := make([]columnFact, len(names))
		for i, name := range names {
			facts[i].name = name
		}
		it.names, it.first, it.open = names, a.addColumns(facts), false
	} else if call := singleCall(n); call != nil {
		it.alias = firstOf(it.alias, lastName(call.Funcname))
		it.names, it.first = []string{it.alias}, a.addColumns([]columnFact{{name: it.alias}})
	}
	return it
}

func singleCall(n *sqlparse.RangeFunction) *sqlparse.FuncCall {
	if len(n.Functions) != 1 {
		return nil
	}
	items := n.Functions[0].GetList().GetItems()
	if len(items) == 0 {
		return nil
	}
	return items[0].GetFuncCall()
}

func lastName(list []*sqlparse.Node) string {
	if len(list) == 0 {
		return ""
	}
	return list[len(list)-1].GetString_().GetSval()
}

// rangeVar makes the item of a relation's name.
func (a *analysis) rangeVar(l *level, n *sqlparse.RangeVar) *item {
	if n.Schemaname == "" {
		if q := l.ctes[n.Relname]; q != nil {
			it := a.queryItem(q, n.Alias)
			it.alias, it.cte = firstOf(n.Alias.GetAliasname(), n.Relname), true
			a.items[n] = it
			return it
		}
	}
	it := a.tableItem(n, false)
	a.items[n] = it
	return it
}

// tableItem makes the item of a table or view.
func (a *analysis) tableItem(n *sqlparse.RangeVar, written bool) *item {
	it := &item{alias: firstOf(n.Alias.GetAliasname(), n.Relname), schema: n.Schemaname}
	t, found, err := a.schema.relation(n.Schemaname, n.Relname)
	if err != nil {
		a.fail(err)
	}
	if !found || err != nil {
		it.open, it.rows = true, rows{kind: scattered}
		return it
	}
	it.table, it.schema = t, t.schema
	if n.Alias != nil {
		it.schema = ""
	}
	if t.query != nil {
		a.viewItem(it, t)
	} else {
		a.placeItem(it, t, n.Inh, written)
	}
	rename(it, n.Alias)
	return it
}

// placeItem fills in the columns and the place of a table; inh: the tables that inherit from it are meant, too.
func (a *analysis) placeItem(it *item, t *tableShape, inh, written bool) {
	facts := make([]columnFact, len(t.columns))
	key := t.keyColumn()
	for i := range t.columns {
		c := &t.columns[i]
		facts[i] = columnFact{name: c.Name, typ: c.Type.OID, key: c.key, notNull: c.NotNull, bytewise: c.bytewise}
		it.names = append(it.names, c.Name)
		if c == key && facts[i].key != 0 {
			facts[i].place, facts[i].solid = t.place, true // a row without a key is refused
		}
	}
	it.first, it.open = a.addColumns(facts), t.system
	switch p := t.place; {
	case p.Reference:
		it.rows = rows{kind: anywhere, copies: p.Copies}
		a.references = append(a.references, t)
		return
	case !p.Sharded():
		it.rows = rows{kind: oneShard, shard: p.Shards()[0]}
	default:
		it.rows = rows{kind: byKey, place: p}
	}
	elsewhere := inh && t.inherits
	if elsewhere {
		it.rows.kind = scattered
	}
	it.rows.tables = []int{len(a.tables)}
	a.tables = append(a.tables, &occurrence{table: t, shard: it.rows.shard, anchor: noColumn, written: written, elsewhere: elsewhere})
}

// viewItem reads a view as the query that it is.
func (a *analysis) viewItem(it *item, t *tableShape) {
	inner := &analysis{schema: a.schema, facts: a.facts, tables: a.tables, references: a.references, queries: a.queries, items: a.items}
	q := inner.query(t.query.GetSelectStmt(), nil, nil)
	a.facts, a.tables, a.references = inner.facts, inner.tables, inner.references
	if inner.err != nil {
		a.fail(inner.err)
	}
	a.fillFrom(it, q)
	for i := range t.columns {
		if i < len(it.names) {
			it.names[i] = t.columns[i].Name
		}
	}
}

func (a *analysis) queryItem(q *query, alias *sqlparse.Alias) *item {
	it := &item{alias: alias.GetAliasname()}
	a.fillFrom(it, q)
	rename(it, alias)
	return it
}

func (a *analysis) fillFrom(it *item, q *query) {
	it.query, it.open, it.rows = q, q.open, q.rows
	it.first = a.addColumns(q.outs)
	for _, f := range q.outs {
		it.names = append(it.names, f.name)
	}
}

func rename(it *item, alias *sqlparse.Alias) {
	it.names = slices.Clone(it.names)
	for i, name := range nameParts(alias.GetColnames()) {
		if i < len(it.names) {
			it.names[i] = name
		}
	}
}

// join makes a join of the tree.
func (a *analysis) join(l *level, n *sqlparse.JoinExpr) *joined {
	j := &joined{left: a.fromItem(l, n.Larg), right: a.fromItem(l, n.Rarg), kind: n.Jointype, on: conjuncts(n.Quals, nil)}
	if j.kind == sqlparse.JoinType_JOIN_LEFT || j.kind == sqlparse.JoinType_JOIN_FULL {
		pad(j.right)
	}
	if j.kind == sqlparse.JoinType_JOIN_RIGHT || j.kind == sqlparse.JoinType_JOIN_FULL {
		pad(j.left)
	}
	names := nameParts(n.UsingClause)
	if n.IsNatural {
		names = a.commonColumns(j)
	}
	for _, name := range names {
		x, y := a.findIn(l, j.left, name), a.findIn(l, j.right, name)
		if x == noColumn || y == noColumn {
			continue
		}
		j.using = append(j.using, [2]column{x, y})
		a.merge(l, j.kind, name, x, y)
	}
	if n.Alias != nil { // its columns have new names
		for _, it := range j.items(nil) {
			it.open = true
		}
		l.items = append(l.items, &item{alias: n.Alias.Aliasname, open: true})
	}
	return j
}

// pad notes that a side's columns may be NULL for want of a partner.
func pad(j *joined) {
	for _, it := range j.items(nil) {
		it.padded = true
	}
}

// merge makes the column that USING shows for two.
func (a *analysis) merge(l *level, kind sqlparse.JoinType, name string, x, y column) {
	if l.merged == nil {
		l.merged = map[string]column{}
	}
	switch kind { //nolint:exhaustive // the rest show the left one
	case sqlparse.JoinType_JOIN_RIGHT:
		l.merged[name] = y
	case sqlparse.JoinType_JOIN_FULL:
		f := a.facts[x]
		f.notNull = false
		if f.place == nil || a.facts[y].place == nil {
			f.place = nil
		}
		f.solid = false
		l.merged[name] = a.addColumns([]columnFact{f})
	default:
		l.merged[name] = x
	}
}

func (a *analysis) findIn(l *level, j *joined, name string) column {
	items := j.items(nil)
	if c, ok := l.merged[name]; ok {
		for _, p := range j.using {
			if p[0] == c || p[1] == c {
				return c
			}
		}
	}
	found := noColumn
	for _, it := range items {
		if it.open {
			return noColumn
		}
		if c := it.find(name); c != noColumn && found == noColumn {
			found = c
		}
	}
	return found
}

func (a *analysis) commonColumns(j *joined) []string {
	var out []string
	for _, left := range j.left.items(nil) {
		for _, name := range left.names {
			for _, right := range j.right.items(nil) {
				if slices.Contains(right.names, name) && !slices.Contains(out, name) {
					out = append(out, name)
				}
			}
		}
	}
	return out
}

// anchor notes for l's tables the column of a level around it that their key equals.
func (a *analysis) anchor(l *level) {
	if l.rows.kind == byKey { // what is joined by key is where the one is whose key is known
		a.anchorBy(l, l.located, l.rows.tables)
		return
	}
	for _, it := range l.items {
		if it.rows.kind != byKey {
			continue
		}
		var located []column
		for i := range it.names {
			if c := it.first + column(i); a.facts[c].place != nil {
				located = append(located, c)
			}
		}
		a.anchorBy(l, located, it.rows.tables)
	}
}

func (a *analysis) anchorBy(l *level, located []column, tables []int) {
	for _, c := range located {
		outer, at := a.outerKey(l, c)
		if outer == noColumn {
			continue
		}
		for _, t := range tables {
			if a.tables[t].anchor == noColumn {
				a.tables[t].anchor, a.tables[t].anchorLevel = outer, at
			}
		}
		return
	}
}

func (a *analysis) outerKey(l *level, c column) (column, *level) {
	for at := l.parent; at != nil; at = at.parent {
		for _, it := range at.items {
			for i := range it.names {
				o := it.first + column(i)
				place := a.facts[o].place
				inner := a.facts[c].place
				if inner == nil {
					continue
				}
				if place != nil && a.comparable(c, o) && l.same.equal(c, o) && catalog.Colocated(place, inner) {
					return o, at
				}
			}
		}
	}
	return noColumn, nil
}

// allAnchored reports whether every table of some rows is on the shard of a row around.
func (a *analysis) allAnchored(r rows) bool {
	for _, t := range r.tables {
		if a.tables[t].anchor == noColumn {
			return false
		}
	}
	return true
}
