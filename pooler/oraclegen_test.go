package pooler

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A value in a generated text stands between NUL bytes, so that a run can make a literal or a parameter of it:
// type, value and whether it needs its type said.
const (
	valueMark = "\x00"
	valueSep  = "\x1f"
)

// selection is a generated SELECT in parts, so that one that fails can be made smaller.
type selection struct {
	with     []string
	distinct string
	list     []string
	from     string
	joins    []string
	where    []string
	group    []string
	having   string
	window   string
	order    []string
	limit    string
	offset   string
	lock     string
	ops      []string // " UNION ALL SELECT ...", and the like
	ordered  bool     // the order is total
}

func (s *selection) String() string {
	var b strings.Builder
	if len(s.with) > 0 {
		b.WriteString("WITH " + strings.Join(s.with, ", ") + " ")
	}
	b.WriteString("SELECT " + s.distinct + strings.Join(s.list, ", "))
	if s.from != "" {
		b.WriteString(" FROM " + s.from + strings.Join(s.joins, ""))
	}
	if len(s.where) > 0 {
		b.WriteString(" WHERE " + strings.Join(s.where, " AND "))
	}
	if len(s.group) > 0 {
		b.WriteString(" GROUP BY " + strings.Join(s.group, ", "))
	}
	b.WriteString(s.having + s.window + strings.Join(s.ops, ""))
	if len(s.order) > 0 {
		b.WriteString(" ORDER BY " + strings.Join(s.order, ", "))
	}
	b.WriteString(s.limit + s.offset + s.lock)
	return b.String()
}

// smaller gives the selections with one part less.
func (s *selection) smaller() []*selection {
	var out []*selection
	add := func(change func(*selection)) {
		c := *s
		change(&c)
		out = append(out, &c)
	}
	without := func(list []string, i int) []string { return append(slices.Clone(list[:i]), list[i+1:]...) }
	for i := range s.ops {
		add(func(c *selection) { c.ops = without(s.ops, i) })
	}
	for i := range s.joins {
		add(func(c *selection) { c.joins = without(s.joins, i) })
	}
	for i := range s.where {
		add(func(c *selection) { c.where = without(s.where, i) })
	}
	for i := range s.order {
		add(func(c *selection) { c.order = without(s.order, i) })
	}
	for i := range s.list {
		if len(s.list) > 1 && len(s.ops) == 0 {
			add(func(c *selection) { c.list = without(s.list, i) })
		}
	}
	for i := range s.with {
		add(func(c *selection) { c.with = without(s.with, i) })
	}
	for i := range s.group {
		add(func(c *selection) { c.group = without(s.group, i) })
	}
	for _, part := range []func(*selection) *string{
		func(c *selection) *string { return &c.having }, func(c *selection) *string { return &c.limit },
		func(c *selection) *string { return &c.offset }, func(c *selection) *string { return &c.distinct },
		func(c *selection) *string { return &c.lock },
	} {
		if *part(s) != "" {
			add(func(c *selection) { *part(c) = "" })
		}
	}
	return out
}

// scope is what a generated expression may name.
type scope []scopeColumn

type scopeColumn struct {
	text string
	kind kind
	key  bool // the shard key, of the kind's common values
}

// rel is a relation in FROM.
type rel struct {
	table *worldTable
	alias string
}

func (r rel) columns() scope {
	var out scope
	for i, c := range r.table.columns {
		key := i == 0 && r.table.keyed || c.name == "wk"
		out = append(out, scopeColumn{r.alias + "." + c.name, c.kind, key})
	}
	return out
}

func (w *worldSchema) n(n int) int               { return w.rand.IntN(n) }
func (w *worldSchema) maybe(n int) bool          { return w.rand.IntN(n) == 0 }
func (w *worldSchema) rel(a string) rel          { return rel{w.tables[w.pickInt(0, 0, 0, 1, 1, 2, 3, 4)], a} }
func (w *worldSchema) tableOf(i int) *worldTable { return w.tables[i] }

func (w *worldSchema) pick(list ...string) string { return list[w.n(len(list))] }
func (w *worldSchema) pickInt(list ...int) int    { return list[w.n(len(list))] }

// value gives a value of a kind; typed: its place does not tell its type.
func (w *worldSchema) value(k kind, typed bool) string {
	return w.valueOf(k, kindFacts[k].pool[w.n(len(kindFacts[k].pool))], typed)
}

func (w *worldSchema) valueOf(k kind, value string, typed bool) string {
	mark := ""
	if typed {
		mark = "t"
	}
	return valueMark + strconv.Itoa(int(k)) + valueSep + value + valueSep + mark + valueMark
}

// keyValue gives a value of the common shard key.
func (w *worldSchema) keyValue() string {
	return w.valueOf(w.tables[0].key().kind, w.keys[w.n(len(w.keys))], false)
}

// valueFor gives a value for a column, or NULL.
func (w *worldSchema) valueFor(c scopeColumn) string {
	switch {
	case c.key:
		return w.keyValue()
	case w.maybe(10):
		return "NULL"
	}
	return w.value(c.kind, false)
}

// column gives a column of a kind, "" if there is none.
func (w *worldSchema) column(s scope, k kind) string {
	var fit []string
	for _, c := range s {
		if c.kind == k {
			fit = append(fit, c.text)
		}
	}
	if len(fit) == 0 {
		return ""
	}
	return fit[w.n(len(fit))]
}

// any gives any column.
func (w *worldSchema) any(s scope) scopeColumn { return s[w.n(len(s))] }

// stable gives any column whose equal values look alike, and whose order the gateway knows.
func (w *worldSchema) stable(s scope) scopeColumn {
	for range 50 {
		if c := w.any(s); kindFacts[c.kind].stable && (c.kind != kLoc || w.maybe(8)) {
			return c
		}
	}
	return scopeColumn{text: "1", kind: kInt}
}

// expr gives an expression and its kind.
func (w *worldSchema) expr(s scope, depth int) (string, kind) {
	k := w.any(s).kind
	return w.exprOf(s, k, depth), k
}

// exprOf gives an expression of a kind.
func (w *worldSchema) exprOf(s scope, k kind, depth int) string {
	col := w.column(s, k)
	if col == "" || depth <= 0 || w.maybe(2) {
		if col != "" && !w.maybe(6) {
			return col
		}
		return w.value(k, true)
	}
	d := depth - 1
	switch w.n(5) {
	case 0:
		return "CASE WHEN " + w.cond(s, 0) + " THEN " + w.exprOf(s, k, d) + w.pick(" END", " ELSE "+w.exprOf(s, k, d)+" END")
	case 1:
		return "coalesce(" + col + ", " + w.value(k, true) + ")"
	case 2:
		if kindFacts[k].stable && k != kLoc {
			return w.pick("nullif(", "greatest(", "least(") + w.exprOf(s, k, d) + ", " + w.value(k, true) + ")"
		}
	}
	return w.call(s, k, col, d)
}

// call gives an operator or function of a kind.
func (w *worldSchema) call(s scope, k kind, col string, d int) string {
	e := func(k kind) string { return w.exprOf(s, k, d) }
	switch k { //nolint:exhaustive // the rest have no functions here
	case kInt:
		return w.pick("("+col+" "+w.pick("+", "-", "*")+" "+w.pick("1", "2")+")", "length("+e(kText)+")", "abs("+col+")", "("+col+" % 7)",
			"extract(year from "+e(kDate)+")::int", "cardinality("+e(kInts)+")", "position('a' in "+e(kText)+")", "octet_length("+e(kBytes)+")")
	case kBig:
		return w.pick("("+col+" + "+e(kInt)+")", "abs("+col+")", e(kInt)+"::int8")
	case kNum:
		return w.pick("("+col+w.pick(" + ", " - ", " * ")+e(kNum)+")", "round("+col+", 1)", "("+col+" / 4)", e(kInt)+"::numeric", "abs("+col+")")
	case kText:
		return w.pick("("+col+" || "+w.value(kText, true)+")", "substr("+col+", 1, 1)", "coalesce("+col+", 'none')", "replace("+col+", 'a', 'b')",
			"left("+col+", 1)", "lpad("+col+", 3, '*')", e(kInt)+"::text", e(kDate)+"::text", "md5("+col+")", "to_char("+e(kStamp)+", 'YYYY-MM-DD HH24:MI')", e(kNum)+"::text", e(kEnum)+"::text")
	case kBool:
		return "(" + w.cond(s, 0) + ")"
	case kDate:
		return w.pick("("+col+" + 1)", e(kStamp)+"::date", "("+col+" - 30)")
	case kStamp:
		return w.pick("date_trunc('day', "+col+")", "("+col+" + interval '1 day')", e(kTz)+"::timestamp")
	case kTz:
		return w.pick("date_trunc('month', "+col+")", "("+col+" - interval '90 minutes')", e(kDate)+"::timestamptz")
	case kInts:
		return w.pick("("+col+" || 4)", "array_remove("+col+", 2)")
	case kFloat:
		return w.pick("("+col+" * 2)", e(kInt)+"::float8", "("+col+" + 0.5)")
	case kJSON:
		return "(" + col + " -> 'a')"
	}
	return col
}

// cond gives a condition. depth: of subqueries.
func (w *worldSchema) cond(s scope, depth int) string {
	if depth > 0 && w.maybe(4) {
		return w.subquery(s, depth)
	}
	c := w.any(s)
	if w.maybe(3) {
		if key := w.keyOf(s); key.text != "" {
			return w.keyCond(key)
		}
	}
	switch w.n(11) {
	case 0, 1, 2:
		if kindFacts[c.kind].stable && c.kind != kLoc {
			return c.text + w.pick(" = ", " < ", " > ", " <> ", " >= ", " IS DISTINCT FROM ") + w.value(c.kind, c.kind == kBool)
		}
		return c.text + w.pick(" IS NULL", " IS NOT NULL")
	case 3:
		return c.text + w.pick(" IS NULL", " IS NOT NULL")
	case 4:
		return "(" + w.cond(s, depth) + " OR " + w.cond(s, depth) + ")"
	case 5:
		return "NOT (" + w.cond(s, depth) + ")"
	case 6:
		if kindFacts[c.kind].stable && c.kind != kBool {
			return c.text + w.pick(" IN (", " NOT IN (") + w.value(c.kind, false) + ", " + w.value(c.kind, false) + ")"
		}
	case 7:
		return w.exprOf(s, kText, 0) + w.pick(" LIKE ", " NOT LIKE ") + w.pick("'a%'", "'%b'", "'_'")
	case 8:
		return w.exprOf(s, kInt, 1) + " BETWEEN " + w.value(kInt, true) + " AND 20"
	case 9:
		d := w.any(s)
		if d.kind == c.kind && kindFacts[c.kind].stable && c.kind != kLoc {
			return c.text + w.pick(" = ", " < ") + d.text
		}
	}
	return w.special(s)
}

// special gives conditions of single types.
func (w *worldSchema) special(s scope) string {
	if c := w.column(s, kInts); c != "" && w.maybe(2) {
		return w.pick("2 = ANY ("+c+")", c+" @> ARRAY[1]", c+"[1] > 1")
	}
	if c := w.column(s, kJSON); c != "" && w.maybe(2) {
		return w.pick(c+" ->> 'a' = '1'", c+" @> '{\"a\": 1}'", c+" ? 'b'")
	}
	if c := w.column(s, kNum); c != "" {
		return c + w.pick(" > ", " <= ", " = ") + w.pick("1.5", "7", "0")
	}
	return w.exprOf(s, kInt, 1) + w.pick(" > ", " < ", " = ") + w.value(kInt, false)
}

// keyOf gives a column of the common shard key.
func (w *worldSchema) keyOf(s scope) scopeColumn {
	var fit []scopeColumn
	for _, c := range s {
		if c.key {
			fit = append(fit, c)
		}
	}
	if len(fit) == 0 {
		return scopeColumn{}
	}
	return fit[w.n(len(fit))]
}

func (w *worldSchema) keyCond(key scopeColumn) string {
	switch w.n(6) {
	case 0, 1, 2:
		return key.text + " = " + w.keyValue()
	case 3:
		return key.text + " IN (" + w.keyValue() + ", " + w.keyValue() + ", " + w.keyValue() + ")"
	case 4:
		return key.text + " = ANY (ARRAY[" + w.keyValue() + ", " + w.keyValue() + "]::" + kindFacts[key.kind].sql + "[])"
	}
	return key.text + " IS NOT DISTINCT FROM " + w.keyValue()
}

// subquery gives a condition with a subquery.
func (w *worldSchema) subquery(s scope, depth int) string {
	in := w.rel("s" + strconv.Itoa(depth))
	inner := in.columns()
	from := " FROM " + in.table.name + " " + in.alias
	c := w.stable(s)
	own, outer := w.keyOf(inner), w.keyOf(s)
	switch w.n(5) {
	case 0:
		if own.text != "" && outer.text != "" {
			return w.pick("EXISTS", "NOT EXISTS") + " (SELECT 1" + from + " WHERE " + own.text + " = " + outer.text + " AND " + w.cond(inner, depth-1) + ")"
		}
	case 1:
		if x := w.column(inner, c.kind); x != "" && c.kind != kLoc {
			return c.text + w.pick(" IN ", " IN ", " NOT IN ") + "(SELECT " + x + from + " WHERE " + w.cond(inner, depth-1) + ")"
		}
	case 2:
		return w.exprOf(s, kInt, 0) + w.pick(" < ", " = ", " >= ") + "(SELECT " + w.pick("max", "min", "count") + "(" + w.exprOf(inner, kInt, 0) + ")" + from + ")"
	case 3:
		if own.text != "" && outer.text != "" {
			return "(SELECT count(*)" + from + " WHERE " + own.text + " = " + outer.text + ") > 1"
		}
	}
	return w.pick("EXISTS", "NOT EXISTS") + " (SELECT" + from + " WHERE " + w.exprOf(inner, kInt, 0) + " = " + w.exprOf(s, kInt, 0) + ")"
}

// fromClause fills in FROM.
func (w *worldSchema) fromClause(q *selection, prefix string) scope {
	a := w.rel(prefix + "a")
	q.from = a.table.name + " " + a.alias
	all := a.columns()
	switch w.n(12) {
	case 0:
		q.from = "tu " + a.alias
		return w.viewColumns(a.alias)
	case 1:
		q.from = "(SELECT * FROM " + a.table.name + " " + a.alias + " WHERE " + w.cond(all, 0) + ") " + a.alias
	}
	for i := range w.pickInt(0, 0, 0, 1, 1, 1, 2) {
		b := w.rel(prefix + string(rune('b'+i)))
		cols := b.columns()
		left, right := w.keyOf(all), w.keyOf(cols)
		on := ""
		if left.text != "" && right.text != "" && !w.maybe(4) {
			on = left.text + " = " + right.text
		} else {
			on = w.exprOf(all, kInt, 0) + " = " + w.column(cols, kInt)
			if x, y := w.column(all, kText), w.column(cols, kText); w.maybe(2) && x != "" && y != "" {
				on = x + " = " + y
			}
		}
		if w.maybe(4) {
			on += " AND " + w.cond(cols, 0)
		}
		kind := w.pick("JOIN", "JOIN", "JOIN", "LEFT JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN")
		if kind == "FULL JOIN" { // Postgres wants it mergeable
			on = w.column(all, kInt) + " = " + w.column(cols, kInt)
		}
		if strings.HasPrefix(on, " ") {
			on = "true"
			kind = "JOIN"
		}
		q.joins = append(q.joins, " "+kind+" "+b.table.name+" "+b.alias+" ON "+on)
		all = append(all, cols...)
	}
	return all
}

func (w *worldSchema) viewColumns(alias string) scope {
	return scope{
		{alias + ".k", w.tables[0].key().kind, true}, {alias + ".id", kInt, false}, {alias + ".tn", kInt, false}, {alias + ".uv", kText, false},
	}
}

// every names all columns of a scope whose order is total up to equal rows.
func (w *worldSchema) every(s scope) string {
	var all []string
	for _, c := range s {
		if c.kind == kBytes || c.kind == kEnum || c.kind == kLoc { // the primary keys have none
			continue
		}
		if kindFacts[c.kind].stable || c.kind == kNum || c.kind == kFloat {
			all = append(all, c.text)
		}
	}
	return strings.Join(all, ", ")
}

// plainQuery gives a query, and the kinds of its columns.
func (w *worldSchema) plainQuery(depth int) (*selection, []kind) {
	q := &selection{}
	s := w.fromClause(q, "")
	if !w.maybe(3) {
		for range 1 + w.n(2) {
			q.where = append(q.where, w.cond(s, depth))
		}
	}
	var types []kind
	switch w.n(9) {
	case 0, 1, 2:
		types = w.grouped(q, s)
	case 3:
		types = w.windowed(q, s)
	case 4:
		types = w.distinctOn(q, s)
	default:
		for range 1 + w.n(3) {
			e, k := w.expr(s, 2)
			q.list, types = append(q.list, e), append(types, k)
		}
		if w.maybe(6) && allStable(types) {
			q.distinct = "DISTINCT "
		}
	}
	for i := range q.list {
		q.list[i] += " AS c" + strconv.Itoa(i+1)
	}
	return q, types
}

func allStable(types []kind) bool {
	return !slices.ContainsFunc(types, func(k kind) bool { return !kindFacts[k].stable })
}

// distinctOn gives the first row of each value.
func (w *worldSchema) distinctOn(q *selection, s scope) []kind {
	c := w.stable(s)
	if c.text == "1" || strings.Contains(w.every(s), "1.") {
		c = s[0]
	}
	q.distinct = "DISTINCT ON (" + c.text + ") "
	q.list = []string{c.text, w.exprOf(s, kInt, 0)}
	q.order = []string{c.text + w.pick("", " DESC"), w.every(s)}
	return []kind{c.kind, kInt}
}

// windowed gives a query with window functions.
func (w *worldSchema) windowed(q *selection, s scope) []kind {
	part := ""
	if c := w.stable(s); !w.maybe(3) && c.kind != kLoc {
		part = "PARTITION BY " + c.text + " "
	}
	if key := w.keyOf(s); key.text != "" && w.maybe(2) {
		part = "PARTITION BY " + key.text + " "
	}
	over := " OVER (" + part + "ORDER BY " + w.every(s) + ")"
	n := w.exprOf(s, kInt, 0)
	e, k := w.expr(s, 0)
	call, gives := "row_number()", kBig
	switch w.n(8) {
	case 0:
		call = w.pick("rank()", "dense_rank()")
	case 1:
		call = "sum(" + n + ")"
	case 2:
		call, gives = w.pick("lag(", "lead(", "first_value(")+n+")", kInt
	case 3:
		call, over = "count(*)", " OVER ("+strings.TrimSpace(part)+")"
	case 4:
		call, gives = w.pick("max(", "min(")+n+")", kInt
	case 5:
		call = "ntile(3)"
	}
	q.list = []string{e, call + over}
	return []kind{k, gives}
}

// grouped gives a query with aggregates.
func (w *worldSchema) grouped(q *selection, s scope) []kind {
	var types []kind
	for range w.n(3) {
		c := w.stable(s)
		e := c.text
		if e == "1" || slices.Contains(q.group, e) {
			continue
		}
		if c.kind == kDate && w.maybe(3) {
			e = "date_trunc('month', " + e + "::timestamp)"
			c.kind = kStamp
		} else if c.kind == kInt && w.maybe(4) {
			e = "(" + e + " % 3)"
		}
		q.group, q.list, types = append(q.group, e), append(q.list, e), append(types, c.kind)
	}
	for range 1 + w.n(2) {
		e, k := w.aggregate(s)
		if w.maybe(6) {
			q.list, types = append([]string{e}, q.list...), append([]kind{k}, types...)
			continue
		}
		q.list, types = append(q.list, e), append(types, k)
	}
	if w.maybe(4) {
		q.having = " HAVING count(*) > " + w.pick("0", "1", "3")
	}
	return types
}

func (w *worldSchema) aggregate(s scope) (string, kind) {
	filter := ""
	if w.maybe(6) {
		filter = " FILTER (WHERE " + w.cond(s, 0) + ")"
	}
	distinct := w.pick("", "", "", "DISTINCT ")
	n, c := w.exprOf(s, kInt, 1), w.stable(s)
	switch w.n(13) {
	case 0, 1:
		return "count(*)" + filter, kBig
	case 2:
		return "count(" + distinct + c.text + ")" + filter, kBig
	case 3:
		return "sum(" + distinct + n + ")" + filter, kBig
	case 4:
		return "avg(" + distinct + n + ")" + filter, kNum
	case 5:
		if c.kind == kBool || c.kind == kUUID || c.kind == kBytes {
			c = scopeColumn{text: n, kind: kInt}
		}
		return w.pick("min", "max") + "(" + c.text + ")" + filter, c.kind
	case 6:
		return w.pick("bool_and", "bool_or") + "(" + n + " > 1)" + filter, kBool
	case 7:
		return "string_agg(" + w.exprOf(s, kText, 0) + ", ',' ORDER BY " + w.every(s) + ")" + filter, kText
	case 8:
		return w.pick("stddev", "var_pop", "variance", "stddev_pop") + "(" + n + ")" + filter, kNum
	case 9:
		return "array_agg(" + n + " ORDER BY " + w.every(s) + ")" + filter, kInts
	case 10:
		return w.pick("sum", "avg", "max", "min") + "(" + w.exprOf(s, kNum, 0) + ")" + filter, kNum
	case 11:
		return "jsonb_agg(" + n + " ORDER BY " + w.every(s) + ")" + filter, kJSON
	}
	return "string_agg(DISTINCT " + w.exprOf(s, kText, 0) + ", '-')" + filter, kText
}

// query gives a query of one of several forms.
func (w *worldSchema) query() *selection {
	q, types := w.plainQuery(1)
	switch w.n(9) {
	case 0:
		if other, more := w.plainQuery(0); slices.Equal(types, more) && allStable(types) && len(q.order)+len(other.order) == 0 {
			q.ops = []string{w.pick(" UNION ", " UNION ALL ", " INTERSECT ", " EXCEPT ", " EXCEPT ALL ") + other.String()}
		}
	case 1:
		outer := &selection{with: []string{"x AS (" + q.String() + ")"}, list: []string{"count(*)", "count(c1)"}, from: "x"}
		if w.maybe(2) {
			outer.list, outer.joins = []string{"count(*)"}, []string{" JOIN x y ON x.c1 = y.c1"}
			if !allStable(types) {
				outer.joins = nil
			}
		}
		return outer
	case 2:
		if allStable(types[:1]) {
			return &selection{list: []string{"s.c1", "count(*)"}, from: "(" + q.String() + ") s", group: []string{"s.c1"}}
		}
	case 3, 4, 5:
		if len(q.order) == 0 {
			w.order(q, types)
		}
	case 6:
		if q.distinct == "" && len(q.group) == 0 && w.maybe(4) {
			return w.recursive()
		}
	}
	return q
}

func (w *worldSchema) order(q *selection, types []kind) {
	for i, k := range types {
		switch k { //nolint:exhaustive // the rest have an order
		case kJSON, kSpan, kInts, kTexts:
			return
		case kLoc:
			if !w.maybe(4) {
				return
			}
		}
		q.order = append(q.order, strconv.Itoa(i+1)+w.pick("", "", " DESC", " NULLS FIRST", " DESC NULLS LAST"))
	}
	if q.ordered = allStable(types); q.ordered && w.maybe(2) {
		q.limit = " LIMIT " + w.pick("0", "1", "3", "10", w.valueOf(kBig, w.pick("1", "4"), false))
		if w.maybe(2) {
			q.offset = " OFFSET " + w.pick("0", "1", "5")
		}
	}
}

// recursive gives WITH RECURSIVE over what is the same everywhere.
func (w *worldSchema) recursive() *selection {
	return &selection{
		with: []string{"RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5)"},
		list: []string{"n.i", "count(a.k)"}, from: "n LEFT JOIN t a ON a.tn = n.i", group: []string{"n.i"},
	}
}

// change is a generated change of rows.
func (w *worldSchema) change() string {
	i := w.pickInt(0, 0, 0, 0, 1, 1, 1, 2, 3, 4)
	t := w.tableOf(i)
	s := rel{t, t.name}.columns()
	switch w.n(12) {
	case 0, 1, 2, 3:
		return w.insert(t, 1+w.pickInt(0, 0, 1, 2))
	case 4, 5:
		return "DELETE FROM " + t.name + " WHERE " + w.rowCond(t, s) + w.returning(t)
	case 6:
		return w.insertSelect(t)
	case 7:
		return w.joinedChange()
	case 8:
		return w.changeInWith()
	}
	return "UPDATE " + t.name + " SET " + w.assignments(t, s, "") + " WHERE " + w.rowCond(t, s) + w.returning(t)
}

// rowCond picks few rows most times.
func (w *worldSchema) rowCond(t *worldTable, s scope) string {
	key := s[0]
	if t.name == "w" {
		key.kind = kText
		return w.pick(key.text+" = "+w.valueOf(kText, "w"+strconv.Itoa(w.n(20)), false), w.cond(s, 0)+" AND "+w.cond(s, 0))
	}
	if w.maybe(3) {
		return w.cond(s, w.n(2)) + " AND " + w.cond(s, 0)
	}
	if !t.keyed {
		return key.text + " = " + w.valueOf(kInt, strconv.Itoa(w.n(20)), false)
	}
	return w.keyCond(key)
}

func (w *worldSchema) returning(t *worldTable) string {
	s := rel{t, t.name}.columns()
	e, _ := w.expr(s, 1)
	return w.pick("", "", "", " RETURNING *", " RETURNING "+e+" AS r", " RETURNING "+s[0].text)
}

// assignments changes columns that are no part of the primary key.
func (w *worldSchema) assignments(t *worldTable, s scope, qualifier string) string {
	var out []string
	for i, c := range s {
		if slices.Contains(t.primary, t.columns[i].name) || !w.maybe(3) && len(out) > 0 {
			continue
		}
		value := w.valueFor(c)
		if c.kind == kInt && w.maybe(3) {
			value = qualifier + c.text + " % 1000 + 1"
		} else if c.kind == kText && w.maybe(4) {
			value = "left(" + qualifier + c.text + " || 'x', 5)"
		}
		if out = append(out, t.columns[i].name+" = "+value); len(out) == 2 {
			break
		}
	}
	return strings.Join(out, ", ")
}

// row gives the values of an INSERT's row for columns.
func (w *worldSchema) row(t *worldTable, columns []int) string {
	s := rel{t, t.name}.columns()
	var values []string
	for _, i := range columns {
		switch {
		case i == 0 && t.name == "w":
			values = append(values, w.valueOf(kText, "w"+strconv.Itoa(w.n(20)), false))
		case t.columns[i].name == "id":
			values = append(values, w.valueOf(kInt, strconv.Itoa(w.n(25)), false))
		case i > len(t.primary) && w.maybe(20):
			values = append(values, "DEFAULT")
		default:
			values = append(values, w.valueFor(s[i]))
		}
	}
	return "(" + strings.Join(values, ", ") + ")"
}

// someColumns names the primary key's columns and some others, maybe in another order.
func (w *worldSchema) someColumns(t *worldTable) (list string, columns []int) {
	if w.maybe(2) {
		for i := range t.columns {
			columns = append(columns, i)
		}
		return "", columns
	}
	for i := range t.columns {
		if i < len(t.primary) || w.maybe(2) {
			columns = append(columns, i)
		}
	}
	if w.maybe(2) {
		slices.Reverse(columns)
	}
	var names []string
	for _, i := range columns {
		names = append(names, t.columns[i].name)
	}
	return " (" + strings.Join(names, ", ") + ")", columns
}

func (w *worldSchema) insert(t *worldTable, rows int) string {
	list, columns := w.someColumns(t)
	var all []string
	for range rows {
		all = append(all, w.row(t, columns))
	}
	return "INSERT INTO " + t.name + list + " VALUES " + strings.Join(all, ", ") + w.conflict(t) + w.returning(t)
}

func (w *worldSchema) conflict(t *worldTable) string {
	target := " ON CONFLICT (" + strings.Join(t.primary, ", ") + ") DO "
	s := rel{t, t.name}.columns()
	last := t.columns[len(t.columns)-1].name
	return w.pick("", "", target+"NOTHING", target+"UPDATE SET "+last+" = excluded."+last,
		target+"UPDATE SET "+w.assignments(t, s, "")+" WHERE "+w.cond(s, 0))
}

// insertSelect copies rows from one table to another, whose key may lie elsewhere.
func (w *worldSchema) insertSelect(to *worldTable) string {
	key := "a.k"
	from, a := "t a", rel{w.tables[0], "a"}.columns()
	switch {
	case to.name == "w":
		key = "'w' || a.tn"
	case !to.keyed:
		key = "a.tn"
	case w.maybe(2):
		from, a, key = "u a", rel{w.tables[1], "a"}.columns(), "a.tk"
	}
	columns, list := []string{to.columns[0].name}, []string{key}
	if to.name == "u" {
		columns, list = append(columns, "id"), append(list, w.value(kInt, true))
	}
	columns, list = append(columns, to.name+"n", to.name+"v"), append(list, w.exprOf(a, kInt, 1), w.exprOf(a, kText, 1))
	where := w.cond(a, 1)
	if !strings.HasSuffix(key, "k") {
		where = "a.tn IS NOT NULL AND " + where
	}
	conflict := " ON CONFLICT (" + strings.Join(to.primary, ", ") + ") DO NOTHING"
	distinct := ""
	if !to.keyed || from == "u a" { // which of equal keys comes first is open
		list, columns = list[:len(to.primary)], columns[:len(to.primary)]
		distinct = "DISTINCT "
	}
	return "INSERT INTO " + to.name + " (" + strings.Join(columns, ", ") + ") SELECT " + distinct + strings.Join(list, ", ") + " FROM " + from + " WHERE " + where + conflict
}

// joinedChange changes rows by those of another table.
func (w *worldSchema) joinedChange() string {
	t, u := rel{w.tables[0], "t"}.columns(), rel{w.tables[1], "u"}.columns()
	switch w.n(4) {
	case 0:
		return "UPDATE t SET tn = u.un, tv = u.uv FROM u WHERE u.tk = t.k AND u.id = " + w.valueOf(kInt, strconv.Itoa(w.n(25)), false) + w.pick("", " RETURNING t.k, u.id")
	case 1:
		return "DELETE FROM u USING t WHERE t.k = u.tk AND " + w.cond(t, 0) + " AND " + w.keyCond(u[0]) + w.pick("", " RETURNING u.*")
	case 2:
		return "UPDATE u SET uv = r.rv FROM r WHERE r.id = u.id AND " + w.keyCond(u[0])
	}
	return "DELETE FROM u WHERE " + w.keyCond(u[0]) + " AND " + w.pick("NOT EXISTS", "EXISTS") + " (SELECT FROM t WHERE t.k = u.tk AND " + w.cond(t, 0) + ")"
}

// changeInWith changes rows of one key within a query, and by MERGE.
func (w *worldSchema) changeInWith() string {
	key := w.keyValue()
	if w.maybe(2) {
		return "MERGE INTO t USING (SELECT * FROM u WHERE u.tk = " + key + " AND u.id = " + w.valueOf(kInt, strconv.Itoa(w.n(25)), false) +
			") s ON t.k = s.tk AND t.k = " + key + " WHEN MATCHED THEN UPDATE SET tn = s.un WHEN NOT MATCHED THEN INSERT (k, tv) VALUES (s.tk, s.uv)"
	}
	return fmt.Sprintf("WITH d AS (%s u WHERE tk = %s RETURNING *) SELECT count(*), sum(un) FROM d", w.pick("DELETE FROM"), key)
}
