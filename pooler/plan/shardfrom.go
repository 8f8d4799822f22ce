package plan

import (
	"slices"

	"neki/catalog"
	"neki/sqlparse"
)

// joined is a FROM item, or a join of two.
type joined struct {
	item        *item
	left, right *joined
	kind        sqlparse.JoinType
	on          []*sqlparse.Node // conditions
	using       [][2]column      // columns that USING or NATURAL makes equal
	node        *sqlparse.Node   // as it stands in the tree
}

// items gives the items of a join in their order.
func (j *joined) items(dst []*item) []*item {
	if j.item != nil {
		return append(dst, j.item)
	}
	return j.right.items(j.left.items(dst))
}

// from analyses a FROM list and the conditions of WHERE: what is equal, where the rows are, and what pins the tables.
func (a *analysis) from(l *level, list []*sqlparse.Node, where *sqlparse.Node) []*joined {
	var all []*joined
	for _, n := range list {
		all = append(all, a.fromItem(l, n))
	}
	a.applyBound(l)
	a.relate(l, all, conjuncts(where, nil))
	return all
}

// relate is from for items that are there already.
func (a *analysis) relate(l *level, all []*joined, where []*sqlparse.Node) {
	for _, n := range where {
		a.learn(l, l.same, n, true)
	}
	for _, j := range all {
		a.learnInner(l, j)
	}
	a.useIndexes(l)
	l.rows = rows{}
	for i, j := range all {
		side, located := a.joinRows(l, j)
		if i == 0 {
			l.rows, l.located = side, located
			continue
		}
		l.rows = a.combine(l, l.rows, side, l.located, located, sqlparse.JoinType_JOIN_INNER, nil)
		l.located = append(l.located, located...)
	}
	for _, j := range all {
		a.pin(l, j, l.same)
	}
	a.pinAnchored(l)
}

// learn takes what a condition says of equalities. Values of a condition that only pairs rows don't restrict them.
func (a *analysis) learn(l *level, to *classes, n *sqlparse.Node, values bool) {
	if c, keys, ok := a.restriction(l, n); ok {
		if values {
			to.restrict(c, keys)
		}
		return
	}
	if x, y, ok := a.pair(l, n); ok {
		to.unite(x, y)
	}
}

// pair reads a condition that two columns are equal.
func (a *analysis) pair(l *level, n *sqlparse.Node) (x, y column, ok bool) {
	e := n.GetAExpr()
	if e == nil || e.Kind != sqlparse.A_Expr_Kind_AEXPR_OP || !isEqual(e.Name) {
		return noColumn, noColumn, false
	}
	x, y = a.columnUnder(l, e.Lexpr), a.columnUnder(l, e.Rexpr)
	return x, y, x != noColumn && y != noColumn && a.comparable(x, y)
}

// comparable reports whether equal values of two columns have one key.
func (a *analysis) comparable(x, y column) bool {
	f, g := &a.facts[x], &a.facts[y]
	if f.key == 0 || g.key == 0 {
		return false
	}
	family := catalog.FamilyOf(f.key)
	return family != catalog.FamilyNone && family == catalog.FamilyOf(g.key) &&
		(family != catalog.FamilyEnum || f.typ == g.typ)
}

// learnInner takes the conditions of inner joins that hold in every row.
func (a *analysis) learnInner(l *level, j *joined) {
	if j.item != nil {
		return
	}
	switch j.kind {
	case sqlparse.JoinType_JOIN_INNER:
		for _, n := range j.on {
			a.learn(l, l.same, n, true)
		}
		for _, p := range j.using {
			if a.comparable(p[0], p[1]) {
				l.same.unite(p[0], p[1])
			}
		}
		a.learnInner(l, j.left)
		a.learnInner(l, j.right)
	case sqlparse.JoinType_JOIN_LEFT:
		a.learnInner(l, j.left)
	case sqlparse.JoinType_JOIN_RIGHT:
		a.learnInner(l, j.right)
	}
}

// joinRows says where the rows of a join are, and which of its columns have a place.
func (a *analysis) joinRows(l *level, j *joined) (rows, []column) {
	if it := j.item; it != nil {
		var located []column
		for i := range it.names {
			if c := it.first + column(i); a.facts[c].place != nil {
				located = append(located, c)
			}
		}
		return it.rows, located
	}
	left, atLeft := a.joinRows(l, j.left)
	right, atRight := a.joinRows(l, j.right)
	pairs := append([][2]column(nil), j.using...)
	for _, n := range j.on {
		if x, y, ok := a.pair(l, n); ok {
			pairs = append(pairs, [2]column{x, y})
		}
	}
	out := a.combine(l, left, right, atLeft, atRight, j.kind, pairs)
	located := append(slices.Clone(atLeft), atRight...)
	for _, p := range pairs { // of a LEFT JOIN with copies: their column, where it has a value, is that of the rows
		for range 2 {
			if j.kind != sqlparse.JoinType_JOIN_FULL && a.comparable(p[0], p[1]) &&
				a.at(l, located, p[0]) && !a.at(l, located, p[1]) && a.within(j, p[1]) && a.padded(j, p[1]) {
				located = append(located, p[1])
			}
			p[0], p[1] = p[1], p[0]
		}
	}
	return out, located
}

// within reports whether a column belongs to a join.
func (a *analysis) within(j *joined, c column) bool {
	for _, it := range j.items(nil) {
		if c >= it.first && c < it.first+column(len(it.names)) {
			return true
		}
	}
	return false
}

// padded reports whether a column of an outer join is of the side that may be NULL for want of a partner; those of an inner
// join are all good.
func (a *analysis) padded(j *joined, c column) bool {
	switch j.kind {
	case sqlparse.JoinType_JOIN_LEFT:
		return a.within(j.right, c)
	case sqlparse.JoinType_JOIN_RIGHT:
		return a.within(j.left, c)
	}
	return true
}

// at reports whether a column is equal to one of those with a place.
func (a *analysis) at(l *level, located []column, c column) bool {
	return slices.ContainsFunc(located, func(p column) bool { return l.same.equal(p, c) })
}

// combine says where the rows of two sides' join are.
func (a *analysis) combine(l *level, left, right rows, atLeft, atRight []column, kind sqlparse.JoinType, pairs [][2]column) rows {
	out := rows{tables: append(slices.Clone(left.tables), right.tables...)}
	switch {
	case left.kind == scattered || right.kind == scattered:
		out.kind = scattered
	case left.kind == anywhere && right.kind == anywhere:
		out.copies = common(left.copies, right.copies)
		if out.copies != nil && len(out.copies) == 0 {
			out.kind = scattered
		}
	case left.kind == anywhere:
		out.kind, out.shard, out.place = right.kind, right.shard, right.place
		keepsLeft := kind == sqlparse.JoinType_JOIN_LEFT || kind == sqlparse.JoinType_JOIN_FULL
		if !covers(left.copies, right) || right.kind == byKey && keepsLeft {
			out.kind = scattered
		}
	case right.kind == anywhere:
		out.kind, out.shard, out.place = left.kind, left.shard, left.place
		keepsRight := kind == sqlparse.JoinType_JOIN_RIGHT || kind == sqlparse.JoinType_JOIN_FULL
		if !covers(right.copies, left) || left.kind == byKey && keepsRight {
			out.kind = scattered
		}
	case left.kind == oneShard && right.kind == oneShard && left.shard == right.shard:
		out.kind, out.shard = oneShard, left.shard
	case left.kind == byKey && right.kind == byKey && catalog.Colocated(left.place, right.place) &&
		a.meet(l, atLeft, atRight, pairs):
		out.kind, out.place = byKey, left.place
	default:
		out.kind = scattered
	}
	return out
}

// meet reports whether rows that are paired are on one shard: a column with a place equals one of the other side.
func (a *analysis) meet(l *level, atLeft, atRight []column, pairs [][2]column) bool {
	for _, p := range atLeft {
		for _, q := range atRight {
			if a.comparable(p, q) && l.same.equal(p, q) {
				return true
			}
		}
	}
	for _, p := range pairs {
		if !a.comparable(p[0], p[1]) {
			continue
		}
		if a.at(l, atLeft, p[0]) && a.at(l, atRight, p[1]) || a.at(l, atLeft, p[1]) && a.at(l, atRight, p[0]) {
			return true
		}
	}
	return false
}

// covers reports whether copies are on every shard that rows are on.
func covers(copies []string, r rows) bool {
	if copies == nil {
		return true
	}
	if r.kind == oneShard {
		return slices.Contains(copies, r.shard)
	}
	for _, s := range r.place.Group.Shards {
		if !slices.Contains(copies, s) {
			return false
		}
	}
	return true
}

// common intersects sets of shards; nil is all.
func common(a, b []string) []string {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	out := []string{}
	for _, s := range a {
		if slices.Contains(b, s) {
			out = append(out, s)
		}
	}
	return out
}

// pin applies what is known of keys to the tables below a join. same is what holds in the rows that count there.
func (a *analysis) pin(l *level, j *joined, same *classes) {
	if it := j.item; it != nil {
		a.pinItem(it, same)
		return
	}
	left, right := same, same
	switch j.kind {
	case sqlparse.JoinType_JOIN_LEFT:
		right = a.learnOn(l, j, same, true)
	case sqlparse.JoinType_JOIN_RIGHT:
		left = a.learnOn(l, j, same, true)
	case sqlparse.JoinType_JOIN_FULL:
		left = a.learnOn(l, j, same, false)
		right = left
	case sqlparse.JoinType_JOIN_INNER:
		if same != l.same {
			left = a.learnOn(l, j, same, true)
			right = left
		}
	}
	a.pin(l, j.left, left)
	a.pin(l, j.right, right)
}

func (a *analysis) learnOn(l *level, j *joined, same *classes, values bool) *classes {
	same = same.clone()
	for _, n := range j.on {
		a.learn(l, same, n, values)
	}
	for _, p := range j.using {
		if a.comparable(p[0], p[1]) {
			same.unite(p[0], p[1])
		}
	}
	return same
}

// pinItem pins the tables of an item by what its columns with a place are equal to.
func (a *analysis) pinItem(it *item, same *classes) {
	if it.rows.kind != byKey {
		return
	}
	for i := range it.names {
		c := it.first + column(i)
		if a.facts[c].place == nil {
			continue
		}
		for _, keys := range same.restrictions(c) {
			for _, t := range it.rows.tables {
				a.tables[t].pinTo(keys)
			}
		}
	}
}

// pinAnchored pins tables of subqueries whose key equals a column of this level.
func (a *analysis) pinAnchored(l *level) {
	for _, t := range a.tables {
		if t.anchor == noColumn || t.anchorLevel != l {
			continue
		}
		for _, keys := range l.same.restrictions(t.anchor) {
			t.pinTo(keys)
		}
	}
}
