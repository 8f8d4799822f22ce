package build_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"neki/internal/pgerr"
)

var (
	randomQueries = flag.Int("queries", 4000, "how many random queries TestRandomQueries compares")
	randomSeed    = flag.Uint64("queryseed", 1, "seed of TestRandomQueries")
)

// TestRandomQueries runs generated queries in the engine and in Postgres: rows, names, types and SQLSTATEs must agree,
// unless the engine refuses. An error while rows are computed may depend on the order of evaluation, which SQL leaves
// open: there one side may fail with class 22 where the other does not, but such queries must stay few.
func TestRandomQueries(t *testing.T) {
	o := newOracle(t)
	refused, failed, open, different := 0, 0, 0, 0
	reasons := map[string]int{}
	for i := range *randomQueries {
		g := &generator{rng: rand.New(rand.NewPCG(*randomSeed, uint64(i)))}
		sql, ordered := g.statement()
		pg, own := o.postgres(sql), o.engine(sql)
		diff, no := compare(pg, own, ordered)
		switch {
		case no:
			refused++
			reasons[own.text[:strings.LastIndex(own.text, " (at")]]++
		case pg.code == "57014", own.code == pgerr.OutOfMemory: // a product of many tables
			open++
		case diff != "" && strings.HasPrefix(pg.code+own.code, "22") && (pg.code == "" || own.code == "" || own.code[:2] == "22"):
			open++
		case diff != "":
			different++
			t.Errorf("query %d: %s\n %s", i, sql, diff)
		case pg.code != "" && pg.code != pgerr.FeatureNotSupported:
			failed++
		}
		if different > 20 {
			break
		}
	}
	t.Logf("%d queries: %d fail alike, %d refused, %d open", *randomQueries, failed, refused, open)
	for reason, n := range reasons {
		t.Logf("refused %d times: %s", n, reason)
	}
	if refused*20 > *randomQueries || open*20 > *randomQueries || failed*3 > *randomQueries {
		t.Errorf("too many of them say nothing: %d refused, %d open, %d failed", refused, open, failed)
	}
}

type kind int

const (
	kInt kind = iota
	kBig
	kSmall
	kNumeric
	kFloat
	kText
	kBool
	kTz
	kTimestamp
	kDate
	kInterval
	kLSN
	kInts
	kTexts
	kinds
)

// sqlType names the kinds.
var sqlType = [kinds]string{
	"int", "bigint", "smallint", "numeric", "float8", "text", "bool", "timestamptz", "timestamp",
	"date", "interval", "pg_lsn", "int[]", "text[]",
}

// stable kinds have one form per value: equal values can't differ in text.
var stable = []kind{kInt, kBig, kText, kBool, kDate, kInt, kText, kLSN, kTimestamp, kInts}

type col struct {
	text string
	kind kind
}

type generator struct {
	rng    *rand.Rand
	scopes [][]col
	names  int
	ctes   map[string][]kind
}

func (g *generator) n(n int) int { return g.rng.IntN(n) }

func pick[T any](g *generator, list ...T) T { return list[g.n(len(list))] }

func (g *generator) name(prefix string) string {
	g.names++
	return fmt.Sprintf("%s%d", prefix, g.names)
}

func (g *generator) statement() (sql string, ordered bool) {
	with := ""
	if g.n(5) == 0 {
		name := g.name("w")
		types := g.types(1+g.n(3), true)
		var names []string
		for i := range types {
			names = append(names, fmt.Sprintf("c%d", i+1))
		}
		with = "WITH " + name + "(" + strings.Join(names, ", ") + ") AS (" + g.query(2, types, false) + ") "
		g.ctes = map[string][]kind{name: types}
	}
	ordered = g.n(3) == 0
	types := g.types(1+g.n(4), ordered || g.n(2) == 0)
	body := ""
	if onlyStable(types) && g.n(5) == 0 {
		op := pick(g, "UNION", "UNION ALL", "INTERSECT", "EXCEPT", "INTERSECT ALL", "EXCEPT ALL")
		body = g.query(2, types, false) + " " + op + " " + g.query(2, types, false)
		ordered = ordered && g.n(2) == 0
	} else {
		body = g.query(3, types, true)
	}
	if ordered {
		var keys []string
		for i := range types {
			keys = append(keys, fmt.Sprintf("%d%s%s", i+1, pick(g, "", "", " DESC", " ASC"), pick(g, "", "", " NULLS FIRST", " NULLS LAST")))
		}
		body += " ORDER BY " + strings.Join(keys, ", ")
		if g.n(2) == 0 {
			body += fmt.Sprintf(" LIMIT %d", g.n(6))
		}
		if g.n(4) == 0 {
			body += fmt.Sprintf(" OFFSET %d", g.n(3))
		}
	}
	return with + body, ordered
}

func (g *generator) types(n int, mustBeStable bool) []kind {
	out := make([]kind, n)
	for i := range out {
		if out[i] = kind(g.n(int(kinds))); mustBeStable {
			out[i] = pick(g, stable...)
		}
	}
	return out
}

func onlyStable(types []kind) bool {
	for _, t := range types {
		switch t {
		case kNumeric, kFloat, kInterval, kTz, kTexts, kSmall:
			return false
		}
	}
	return true
}

// query gives a SELECT with columns of the given kinds.
func (g *generator) query(depth int, types []kind, top bool) string {
	if g.n(12) == 0 {
		return g.values(types)
	}
	g.scopes = append(g.scopes, nil)
	defer func() { g.scopes = g.scopes[:len(g.scopes)-1] }()
	from := g.from(depth)
	where := ""
	if g.n(2) == 0 && from != "" {
		where = " WHERE " + g.expr(kBool, depth)
	}
	if g.n(4) == 0 && from != "" {
		return g.grouped(depth, types, from+where)
	}
	distinct := ""
	if onlyStable(types) && g.n(6) == 0 {
		distinct = "DISTINCT "
	}
	var list []string
	for i, t := range types {
		e := g.expr(t, depth)
		if g.n(3) == 0 && top {
			e += fmt.Sprintf(" AS c%d", i+1)
		}
		list = append(list, e)
	}
	return "SELECT " + distinct + strings.Join(list, ", ") + from + where
}

func (g *generator) values(types []kind) string {
	var rows []string
	for range 1 + g.n(3) {
		var row []string
		for _, t := range types {
			row = append(row, g.literal(t, true))
		}
		rows = append(rows, "("+strings.Join(row, ", ")+")")
	}
	return "VALUES " + strings.Join(rows, ", ")
}

// grouped makes a GROUP BY: keys of kinds with one form, and aggregates.
func (g *generator) grouped(depth int, types []kind, rest string) string {
	inner := g.scopes[len(g.scopes)-1]
	var keys []string
	var keyColumns []col
	for range g.n(3) {
		k := pick(g, stable...)
		e := g.expr(k, 1)
		if strings.Contains(e, "SELECT") || !strings.ContainsAny(e, ".") || !strings.HasPrefix(e, "r") && !strings.HasPrefix(e, "s") || strings.ContainsAny(e, " (") {
			continue
		}
		keys = append(keys, e)
		keyColumns = append(keyColumns, col{e, k})
	}
	var list []string
	for _, t := range types {
		if e := keyOf(keyColumns, t); e != "" && g.n(2) == 0 {
			list = append(list, e)
			continue
		}
		list = append(list, g.aggregate(t, depth))
	}
	sql := "SELECT " + strings.Join(list, ", ") + rest
	if len(keys) > 0 {
		sql += " GROUP BY " + strings.Join(keys, ", ")
	}
	if g.n(4) == 0 {
		sql += " HAVING count(*) " + pick(g, ">", "<=", "<>") + fmt.Sprint(g.n(4))
	}
	g.scopes[len(g.scopes)-1] = inner
	return sql
}

func keyOf(columns []col, t kind) string {
	for _, c := range columns {
		if c.kind == t {
			return c.text
		}
	}
	return ""
}

func (g *generator) aggregate(t kind, depth int) string {
	depth = min(depth-1, 1)
	filter := ""
	if g.n(5) == 0 {
		filter = " FILTER (WHERE " + g.expr(kBool, 1) + ")"
	}
	distinct := pick(g, "", "", "DISTINCT ")
	switch t {
	case kBig:
		return pick(g, "count(*)", "count("+distinct+g.expr(pick(g, stable...), depth)+")", "sum("+g.expr(kInt, depth)+")") + filter
	case kNumeric:
		return pick(g, "sum", "avg") + "(" + distinct + g.expr(pick(g, kBig, kBig, kInt), depth) + ")" + filter + "::numeric"
	case kBool:
		return pick(g, "bool_and", "bool_or", "every") + "(" + g.expr(kBool, depth) + ")" + filter
	case kText:
		e := g.expr(kText, depth)
		if g.n(2) == 0 {
			return "string_agg(DISTINCT " + e + ", ',')" + filter
		}
		return pick(g, "min", "max") + "(" + e + ")" + filter
	case kInts:
		e := g.expr(kInt, depth)
		return "array_agg(" + pick(g, "DISTINCT "+e, e+" ORDER BY "+e, e+" ORDER BY "+e+" DESC NULLS LAST") + ")" + filter
	case kTexts:
		e := g.expr(kText, depth)
		return "array_agg(" + pick(g, "DISTINCT "+e, e+" ORDER BY "+e) + ")" + filter
	case kInterval, kFloat:
		return "CASE WHEN count(*) > 2 THEN " + g.literal(t, false) + " END"
	}
	return pick(g, "min", "max") + "(" + g.expr(t, depth) + ")" + filter
}

func (g *generator) from(depth int) string {
	if g.n(10) == 0 {
		return ""
	}
	text := " FROM " + g.item(depth)
	for range g.n(3) - g.n(2) {
		if g.n(3) == 0 {
			text += ", " + g.item(depth)
			continue
		}
		join := pick(g, "JOIN", "LEFT JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "CROSS JOIN")
		before := len(g.scopes[len(g.scopes)-1])
		item := g.item(depth)
		text += " " + join + " " + item
		if join != "CROSS JOIN" {
			text += " ON " + g.joinCondition(before, join == "FULL JOIN")
		}
	}
	return text
}

// joinCondition equates a column of the left with one of the right; FULL JOIN takes nothing else in Postgres.
func (g *generator) joinCondition(before int, only bool) string {
	all := g.scopes[len(g.scopes)-1]
	for range 20 {
		a, b := all[g.n(before)], all[before+g.n(len(all)-before)]
		if a.kind == b.kind && a.kind != kInts && a.kind != kTexts {
			cond := a.text + " = " + b.text
			if !only && g.n(3) == 0 {
				cond += " AND " + g.expr(kBool, 1)
			}
			return cond
		}
	}
	if only {
		return "true"
	}
	return g.expr(kBool, 1)
}

func (g *generator) item(depth int) string {
	add := func(alias string, names []string, types []kind) {
		scope := &g.scopes[len(g.scopes)-1]
		for i, name := range names {
			*scope = append(*scope, col{alias + "." + name, types[i]})
		}
	}
	for name, types := range g.ctes {
		if g.n(2) == 0 {
			alias := g.name("r")
			add(alias, []string{"c1", "c2", "c3"}[:len(types)], types)
			return name + " AS " + alias
		}
	}
	switch {
	case g.n(3) > 0 || depth <= 1:
		if g.n(3) == 0 {
			alias := g.name("s")
			add(alias, []string{"shard", "profile", "n", "ready", "size", "prev", "opened"},
				[]kind{kText, kText, kInt, kBool, kNumeric, kText, kTz})
			return pick(g, "shards ", "neki.shards ") + alias
		}
		alias := g.name("r")
		add(alias, []string{"shard", "node", "n", "small", "big", "ok", "lag", "lsn", "weight", "load", "since", "at", "day", "tags", "nums"},
			[]kind{kText, kText, kInt, kSmall, kBig, kBool, kInterval, kLSN, kNumeric, kFloat, kTz, kTimestamp, kDate, kTexts, kInts})
		return pick(g, "replicas ", "neki.replicas AS ") + alias
	}
	saved := g.scopes
	g.scopes = nil // a subquery in FROM sees nothing beside it
	types := g.types(1+g.n(3), false)
	q := g.query(depth-1, types, false)
	g.scopes = saved
	alias := g.name("s")
	names := []string{"x", "y", "z"}[:len(types)]
	add(alias, names, types)
	return "(" + q + ") AS " + alias + "(" + strings.Join(names, ", ") + ")"
}

// column gives a visible column of a kind; now and then one of an outer query.
func (g *generator) column(t kind) string {
	for i := len(g.scopes) - 1; i >= 0; i-- {
		var fit []string
		for _, c := range g.scopes[i] {
			if c.kind == t {
				fit = append(fit, c.text)
			}
		}
		if len(fit) > 0 && (i == 0 || g.n(4) > 0) {
			return pick(g, fit...)
		}
	}
	return g.literal(t, false)
}

func (g *generator) literal(t kind, typed bool) string {
	if g.n(12) == 0 {
		return "NULL::" + sqlType[t]
	}
	switch t {
	case kInt:
		return pick(g, "0", "1", "2", "3", "-1", "7", "100", "2147483647")
	case kBig:
		return pick(g, "10::bigint", "9000000000", "-40::int8", "0::bigint")
	case kSmall:
		return pick(g, "1::smallint", "'-3'::int2", "100::smallint")
	case kNumeric:
		return pick(g, "1.5", "0.00", "-7.125", "100.0", "3.333", "12345678901234567890.5", "0.001")
	case kFloat:
		return pick(g, "0.5::float8", "'1.25'::float8", "-3e10::float8", "0::float8", "1e-7::float8", "100::float8")
	case kText:
		s := pick(g, "'sh1'", "'n2'", "'a'", "''", "'B'", "'äx'", "'x y'", "'%'", "'1'", "'primary'")
		if typed || g.n(2) == 0 {
			return s + "::text"
		}
		return s
	case kBool:
		return pick(g, "true", "false", "'t'::bool")
	case kTz:
		return pick(g, "'2024-03-01 12:00:00.25+00'::timestamptz", "'2024-03-31 02:30:00'::timestamptz", "timestamptz '2000-01-01'", "'2024-10-27 02:30'::timestamptz")
	case kTimestamp:
		return pick(g, "'2024-02-29 10:11:12.5'::timestamp", "timestamp '2024-03-31 02:30'", "'1999-12-31 23:59:59'::timestamp")
	case kDate:
		return pick(g, "'2024-02-29'::date", "date '1999-12-31'", "'2024-03-31'::date")
	case kInterval:
		return pick(g, "'1 day'::interval", "interval '1 mon 2 days 03:04:05.5'", "'-00:30'::interval", "'1 year'::interval", "'36:00:00'::interval")
	case kLSN:
		return pick(g, "'0/1000'::pg_lsn", "'1/AB'::pg_lsn")
	case kInts:
		// no empty constant: Postgres 15 takes (x >= ANY ('{}')) IS FALSE for strict and so makes an outer join an inner one
		return pick(g, "'{1,2,3}'::int[]", "ARRAY[1, NULL, -5]", "ARRAY[7]")
	}
	return pick(g, "'{a,b}'::text[]", "ARRAY['x', NULL, 'a']", "ARRAY['n1', 'sh1']::text[]")
}

func (g *generator) expr(t kind, depth int) string {
	if depth <= 0 || g.n(4) == 0 {
		if g.n(3) > 0 {
			return g.column(t)
		}
		return g.literal(t, false)
	}
	d := depth - 1
	switch g.n(14) {
	case 0:
		return "CASE WHEN " + g.expr(kBool, d) + " THEN " + g.expr(t, d) + pick(g, "", " ELSE "+g.expr(t, d)) + " END"
	case 1:
		return "coalesce(" + g.expr(t, d) + ", " + g.expr(t, d) + ")"
	case 2:
		if t != kNumeric && t != kInterval {
			return pick(g, "greatest", "least") + "(" + g.expr(t, d) + ", " + g.expr(t, d) + ")"
		}
	case 3:
		return "nullif(" + g.expr(t, d) + ", " + g.expr(t, d) + ")"
	case 4:
		if d > 0 {
			return g.scalarSubquery(t, d)
		}
	}
	switch t {
	case kInt:
		return g.intExpr(d)
	case kBig:
		return pick(g, "("+g.expr(kBig, d)+" "+pick(g, "+", "-", "*", "%")+" "+g.expr(kInt, d)+")", "abs("+g.expr(kBig, d)+")",
			"("+g.expr(kInt, d)+")::bigint", "round("+g.expr(kNumeric, d)+")::int8", "extract(epoch from "+g.expr(kInterval, d)+")::bigint")
	case kSmall:
		return pick(g, "abs("+g.expr(kSmall, d)+")", "("+g.expr(kInt, d)+" % 100)::smallint", "(- "+g.expr(kSmall, d)+")")
	case kNumeric:
		return g.numericExpr(d)
	case kFloat:
		return pick(g, "("+g.expr(kFloat, d)+" "+pick(g, "+", "-", "*", "/")+" "+g.expr(pick(g, kFloat, kInt, kNumeric, kBig), d)+")",
			"floor("+g.expr(kFloat, d)+")", "("+g.expr(kNumeric, d)+")::float8", "date_part('epoch', "+g.expr(kInterval, d)+")", "abs("+g.expr(kFloat, d)+")", "("+g.expr(kInt, d)+")::float8")
	case kText:
		return g.textExpr(d)
	case kBool:
		return g.boolExpr(d)
	case kInterval:
		return pick(g, "("+g.expr(kTimestamp, d)+" - "+g.expr(kTimestamp, d)+")", "("+g.expr(kTz, d)+" - "+g.expr(kTz, d)+")",
			"("+g.expr(kInterval, d)+" "+pick(g, "+", "-")+" "+g.expr(kInterval, d)+")", "("+g.expr(kInterval, d)+" * "+pick(g, "2", "1.5", "0.25", "-1")+")",
			"("+g.expr(kInterval, d)+" / "+pick(g, "2", "3", "7.5")+")", "date_trunc("+pick(g, "'hour'", "'day'", "'month'")+", "+g.expr(kInterval, d)+")", "(- "+g.expr(kInterval, d)+")",
			"age("+g.expr(kTimestamp, d)+", "+g.expr(kTimestamp, d)+")", "justify_days("+g.expr(kInterval, d)+")", "justify_hours("+g.expr(kInterval, d)+")")
	case kLSN:
		return pick(g, "("+g.expr(kLSN, d)+" + "+g.expr(kInt, d)+"::numeric)", "greatest("+g.expr(kLSN, d)+", '0/1')")
	case kInts:
		return pick(g, "("+g.expr(kInts, d)+" || "+g.expr(kInts, d)+")", "array_append("+g.expr(kInts, d)+", "+g.expr(kInt, d)+")", "ARRAY["+g.expr(kInt, d)+", "+g.expr(kInt, d)+"]",
			"("+g.expr(kInts, d)+")["+fmt.Sprint(g.n(3))+":"+fmt.Sprint(g.n(4))+"]", "array_remove("+g.expr(kInts, d)+", "+g.expr(kInt, d)+")")
	case kTexts:
		return pick(g, "("+g.expr(kTexts, d)+" || "+g.expr(kTexts, d)+")", "string_to_array("+g.expr(kText, d)+", "+pick(g, "','", "'a'", "NULL")+")", "ARRAY["+g.expr(kText, d)+"]::text[]", "array_prepend("+g.expr(kText, d)+"::text, "+g.expr(kTexts, d)+")")
	}
	return g.timeExpr(t, d)
}

func (g *generator) scalarSubquery(t kind, depth int) string {
	if g.n(2) == 0 || t == kInterval || t == kFloat || t == kNumeric || t == kTexts {
		return "(SELECT " + g.literal(t, true) + ")"
	}
	g.scopes = append(g.scopes, nil)
	defer func() { g.scopes = g.scopes[:len(g.scopes)-1] }()
	from := " FROM " + g.item(1)
	fn := "max"
	agg := fn + "(" + g.expr(t, 0) + ")"
	switch t {
	case kBool:
		agg = "bool_or(" + g.column(kBool) + ")"
	}
	own := g.scopes[len(g.scopes)-1]
	for _, c := range own { // an aggregate must be over its own query's columns
		if strings.Contains(agg, c.text) {
			return "(SELECT " + agg + from + " WHERE " + g.expr(kBool, 1) + ")"
		}
	}
	return "(SELECT " + g.literal(t, true) + from + " WHERE " + g.expr(kBool, 1) + " LIMIT 1)"
}

func (g *generator) intExpr(d int) string {
	return pick(g, "("+g.expr(kInt, d)+" "+pick(g, "+", "-", "*", "%", "/")+" "+g.expr(kInt, d)+")",
		"("+g.expr(kInt, d)+" "+pick(g, "+", "-", "*")+" "+g.expr(kSmall, d)+")", "length("+g.expr(kText, d)+")", "abs("+g.expr(kInt, d)+")",
		"strpos("+g.expr(kText, d)+", "+g.expr(kText, d)+")", "cardinality("+g.expr(kInts, d)+")", "("+g.expr(kInts, d)+")["+fmt.Sprint(g.n(4))+"]",
		"("+g.expr(kBool, d)+")::int", "("+g.expr(kDate, d)+" - "+g.expr(kDate, d)+")", "("+g.expr(kNumeric, d)+")::int", "("+g.expr(kFloat, d)+")::int", "extract("+pick(g, "year", "month", "day", "dow", "week", "quarter", "doy", "isodow", "isoyear", "century", "hour")+" from "+g.expr(pick(g, kTimestamp, kTz), d)+")::int",
		"array_length("+g.expr(kTexts, d)+", 1)", "(- "+g.expr(kInt, d)+")", "array_position("+g.expr(kInts, d)+", "+g.expr(kInt, d)+")", "("+g.expr(kInt, d)+" & "+g.expr(kInt, d)+")", "("+g.expr(kText, d)+")::int")
}

func (g *generator) numericExpr(d int) string {
	return pick(g, "("+g.expr(kNumeric, d)+" "+pick(g, "+", "-", "*", "/", "%")+" "+g.expr(pick(g, kNumeric, kInt, kBig), d)+")",
		"round("+g.expr(kNumeric, d)+", "+fmt.Sprint(g.n(4)-1)+")", "trunc("+g.expr(kNumeric, d)+", "+fmt.Sprint(g.n(3))+")", "ceil("+g.expr(kNumeric, d)+")", "floor("+g.expr(kNumeric, d)+")",
		"("+g.expr(kInt, d)+" / "+pick(g, "3.0", "7.00", "0.25", "1000.0")+")", "("+g.expr(kLSN, d)+" - "+g.expr(kLSN, d)+")", "("+g.expr(kFloat, d)+")::numeric", "abs("+g.expr(kNumeric, d)+")",
		"extract("+pick(g, "epoch", "second", "hour", "day", "month", "minute", "milliseconds")+" from "+g.expr(pick(g, kInterval, kTz, kTimestamp), d)+")", "("+g.expr(kNumeric, d)+")::numeric(12,"+fmt.Sprint(g.n(4))+")", "sign("+g.expr(kNumeric, d)+")", "sqrt(abs("+g.expr(kNumeric, d)+"))")
}

func (g *generator) textExpr(d int) string {
	any := pick(g, kInt, kBig, kNumeric, kFloat, kBool, kTz, kTimestamp, kDate, kInterval, kLSN, kInts, kTexts)
	return pick(g, "("+g.expr(kText, d)+" || "+g.expr(kText, d)+")", "("+g.expr(any, d)+")::text", "upper("+g.expr(kText, d)+")", "lower("+g.expr(kText, d)+")",
		"substr("+g.expr(kText, d)+", "+fmt.Sprint(g.n(4))+", "+fmt.Sprint(g.n(4))+")", "replace("+g.expr(kText, d)+", 'a', 'bb')", "left("+g.expr(kText, d)+", "+fmt.Sprint(g.n(5)-2)+")", "right("+g.expr(kText, d)+", "+fmt.Sprint(g.n(5)-2)+")",
		"trim("+g.expr(kText, d)+")", "concat("+g.expr(kText, d)+", "+g.expr(any, d)+")", "lpad("+g.expr(kText, d)+", 4, '*')", "split_part("+g.expr(kText, d)+", 'a', 1)", "array_to_string("+g.expr(pick(g, kInts, kTexts), d)+", '-', '?')",
		"reverse("+g.expr(kText, d)+")", "("+g.expr(kTexts, d)+")[1]", "format('%s/%s', "+g.expr(kText, d)+", "+g.expr(any, d)+")", "concat_ws('-', "+g.expr(kText, d)+", "+g.expr(any, d)+")", "md5("+g.expr(kText, d)+")", "('<' || "+g.expr(any, d)+")")
}

func (g *generator) boolExpr(d int) string {
	k := kind(g.n(int(kinds)))
	op := pick(g, "=", "<>", "<", "<=", ">", ">=")
	switch g.n(16) {
	case 0:
		return "(" + g.expr(kBool, d) + pick(g, " AND ", " OR ") + g.expr(kBool, d) + ")"
	case 1:
		return "(NOT " + g.expr(kBool, d) + ")"
	case 2:
		return "(" + g.expr(k, d) + pick(g, " IS NULL", " IS NOT NULL") + ")"
	case 3:
		return "(" + g.expr(kBool, d) + pick(g, " IS TRUE", " IS NOT TRUE", " IS FALSE", " IS UNKNOWN") + ")"
	case 4:
		return "(" + g.expr(k, d) + pick(g, " IS DISTINCT FROM ", " IS NOT DISTINCT FROM ") + g.expr(k, d) + ")"
	case 5:
		return "(" + g.expr(kText, d) + pick(g, " LIKE ", " NOT LIKE ", " ILIKE ") + pick(g, "'%1'", "'n_'", "'%a%'", "'sh%'", g.expr(kText, 0)) + ")"
	case 6:
		return "(" + g.expr(k, d) + pick(g, " BETWEEN ", " NOT BETWEEN ") + g.expr(k, d) + " AND " + g.expr(k, d) + ")"
	case 7:
		return "(" + g.expr(k, d) + pick(g, " IN (", " NOT IN (") + g.expr(k, d) + ", " + g.literal(k, false) + ", " + g.literal(k, false) + "))"
	case 8:
		return "(" + g.expr(kInt, d) + " " + op + pick(g, " ANY (", " ALL (") + g.expr(kInts, d) + "))"
	case 9:
		if d > 0 {
			k := pick(g, stable...)
			return "(" + g.expr(k, d) + pick(g, " IN (", " NOT IN (", " = ANY (", " < ALL (") + g.query(1, []kind{k}, false) + "))"
		}
	case 10:
		if d > 0 {
			return pick(g, "EXISTS (", "NOT EXISTS (") + g.query(1, []kind{kInt}, false) + ")"
		}
	case 11:
		a, b := pick(g, kInt, kBig, kSmall, kNumeric, kFloat), pick(g, kInt, kBig, kSmall, kNumeric, kFloat)
		return "(" + g.expr(a, d) + " " + op + " " + g.expr(b, d) + ")"
	case 12:
		a, b := pick(g, kDate, kTimestamp, kTz), pick(g, kDate, kTimestamp, kTz)
		return "(" + g.expr(a, d) + " " + op + " " + g.expr(b, d) + ")"
	case 13:
		k := pick(g, kInts, kTexts)
		return "(" + g.expr(k, d) + pick(g, " @> ", " <@ ", " && ") + g.expr(k, d) + ")"
	case 14:
		return "(" + g.expr(kText, d) + pick(g, " ~ ", " !~ ", " ~* ") + pick(g, "'^n'", "'[0-9]$'", "'a|b'", "'^.$'", "'(sh)+1?'") + ")"
	}
	return "(" + g.expr(k, d) + " " + op + " " + g.expr(k, d) + ")"
}

func (g *generator) timeExpr(t kind, d int) string {
	unit := pick(g, "'hour'", "'day'", "'week'", "'month'", "'quarter'", "'year'", "'decade'", "'minute'", "'second'")
	plus := "(" + g.expr(t, d) + pick(g, " + ", " - ") + g.expr(kInterval, d) + ")"
	switch t {
	case kTz:
		return pick(g, plus, "date_trunc("+unit+", "+g.expr(kTz, d)+")", "("+g.expr(kTimestamp, d)+")::timestamptz", "("+g.expr(kTimestamp, d)+" AT TIME ZONE 'America/New_York')", "("+g.expr(kDate, d)+")::timestamptz")
	case kTimestamp:
		return pick(g, plus, "date_trunc("+unit+", "+g.expr(kTimestamp, d)+")", "("+g.expr(kTz, d)+")::timestamp", "("+g.expr(kTz, d)+" AT TIME ZONE 'UTC')", "("+g.expr(kDate, d)+" + "+g.expr(kInterval, d)+")")
	}
	return pick(g, "("+g.expr(kDate, d)+pick(g, " + ", " - ")+fmt.Sprint(g.n(400))+")", "("+g.expr(kTz, d)+")::date", "("+g.expr(kTimestamp, d)+")::date")
}
