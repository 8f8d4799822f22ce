package pooler

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// extendedly is a segment of the unnamed statement.
func extendedly(sql string, params ...string) []byte {
	return cat(parse("", sql), bindTo("", "", params...), describe('P', ""), execute("", 0), syncMsg)
}

// again repeats a step, so that the short way is taken.
func again(send []byte) []step { return []step{{send, 1}, {send, 1}, {send, 1}} }

func steps(lists ...[]step) []step {
	var all []step
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}

// plainSequences repeat plain statements, with what must not, or no longer, go the short way between them.
var plainSequences = []sequence{
	{"queries", steps(
		again(q("select k from t where k = 1")), again(q("select 10 / 2")), again(q("select 10 / 0")), again(q("select 10 / 5")),
		again(q("insert into t values (30)")), again(q("update t set k = 31 where k = 30")), again(q("delete from t where k = 31")),
		again(q("select nosuch from t")), again(q("select k from t where k = 1\x00")),
		[]step{{cat(q("select 10 / 2"), q("select 10 / 2")), 2}, {cat(q("select 10 / 0"), q("select 10 / 2")), 2}},
	)},
	{"queries and transactions", steps(
		again(q("select 10 / 2")), again(q("begin")), again(q("select 10 / 2")), again(q("select 10 / 0")), again(q("rollback")),
		again(q("select 10 / 2")), again(q("set work_mem = '3MB'")), again(q("select 10 / 2")), again(q("show work_mem")),
		again(q("select count(*) from t")), again(q("begin; select 1/0")), again(q("rollback")), again(q("select 10 / 2")),
	)},
	{"segments", steps(
		again(extendedly("select k from t where k = $1", "1")), again(extendedly("select k from t where k = $1", "2")),
		again(extendedly("select k from t where k = $1", "x")), again(extendedly("select k from t where k = $1", "1")),
		again(extendedly("select k from t where k = $1")), again(extendedly("select k from t where k = $1", "1", "2")),
		again(extendedly("select 1 / $1::int", "1")), again(extendedly("select 1 / $1::int", "0")), again(extendedly("select 1 / $1::int", "1")),
		again(cat(bindTo("", "", "1"), execute("", 0), syncMsg)), again(cat(bindTo("", "", "0"), execute("", 0), syncMsg)),
		again(cat(bindTo("", "", "1"), describe('P', ""), execute("", 0), syncMsg)), again(cat(describe('P', ""), syncMsg)),
		again(extendedly("selct")), again(cat(bindTo("", "", "1"), execute("", 0), syncMsg)),
	)},
	{"segments of other forms", steps(
		again(cat(parse("", "select g from generate_series(1, 5) g"), bindTo("", ""), execute("", 2), syncMsg)),
		again(cat(parse("", "select g from generate_series(1, 5) g"), bindTo("p", ""), execute("p", 2), syncMsg)),
		again(cat(parse("", "select g from generate_series(1, 5) g"), bindTo("", ""), execute("", 2), execute("", 2), syncMsg)),
		again(cat(parse("", "select g from generate_series(1, 5) g"), bindTo("", ""), execute("", 0), flushMsg, syncMsg)),
		again(cat(parse("", "select 1"), bindTo("", ""), syncMsg)), again(cat(execute("", 0), syncMsg)),
		[]step{{cat(extendedly("select 1"), extendedly("select 1"), extendedly("select 1")), 3}},
		[]step{{cat(extendedly("select 1"), parse("", "select 1")), 1}, {cat(bindTo("", ""), execute("", 0), syncMsg), 1}},
		again(cat(msgOf('B', "", "", 9), syncMsg)),
		again(cat(parse("", "select 1"), msgOf('B', "", "", 9), execute("", 0), syncMsg)),
	)},
	{"named statements", steps(
		[]step{{cat(parse("s1", "select k from t where k = $1"), syncMsg), 1}, {cat(parse("s2", "select 1 / $1::int"), syncMsg), 1}},
		again(cat(bindTo("", "s1", "1"), describe('P', ""), execute("", 0), syncMsg)), again(cat(bindTo("", "s2", "0"), execute("", 0), syncMsg)),
		again(cat(bindTo("", "s2", "1"), execute("", 0), syncMsg)), again(cat(bindTo("", "nosuch", "1"), execute("", 0), syncMsg)),
		again(cat(bindTo("", "s1", "1", "2"), execute("", 0), syncMsg)), again(cat(bindTo("", "s1", "1"), execute("", 0), syncMsg)),
		[]step{{cat(closing('S', "s1"), syncMsg), 1}}, again(cat(bindTo("", "s1", "1"), execute("", 0), syncMsg)),
		[]step{{cat(parse("s1", "select 'other', k from t where k = $1"), syncMsg), 1}},
		again(cat(bindTo("", "s1", "1"), execute("", 0), syncMsg)), again(q("deallocate all")), again(cat(bindTo("", "s1", "1"), execute("", 0), syncMsg)),
	)},
	{"tables that change", steps(
		[]step{{q("create table plain (a int); insert into plain values (1)"), 1}, {cat(parse("s1", "select * from plain"), syncMsg), 1}},
		again(q("select * from plain")), again(extendedly("select * from plain")), again(cat(bindTo("", "s1"), execute("", 0), syncMsg)),
		[]step{{q("alter table plain add b int"), 1}},
		again(cat(bindTo("", ""), execute("", 0), syncMsg)), again(q("select * from plain")),
		again(extendedly("select * from plain")), []step{{cat(bindTo("", "s1"), execute("", 0), syncMsg), 1}},
		[]step{{q("drop table plain"), 1}}, again(q("select * from plain")), again(extendedly("select * from plain")),
		again(cat(bindTo("", ""), execute("", 0), syncMsg)),
	)},
	{"settings between", steps(
		again(extendedly("select current_schema()")), []step{{q("set search_path = pg_catalog"), 1}}, again(extendedly("select current_schema()")),
		again(q("select current_schema()")), []step{{q("reset search_path"), 1}}, again(extendedly("select current_schema()")),
		again(q("select current_schema()")), again(q("select set_config('work_mem', '5MB', false)")), again(q("show work_mem")),
		again(extendedly("select set_config('work_mem', '7MB', false)")), again(q("show work_mem")),
		again(q("create temp table x (a int)")), again(extendedly("select count(*) from x")), again(q("select count(*) from x")),
	)},
}

func TestPlainStatementsAreAnsweredAsByPostgres(t *testing.T) { compareSequences(t, plainSequences) }

// TestPlainStatementsAtRandom repeats plain statements between others, in random order.
func TestPlainStatementsAtRandom(t *testing.T) {
	segment := func(sql string, param int) []byte { return extendedly(sql, fmt.Sprint(param)) }
	kinds := []func(n int) []byte{
		func(n int) []byte { return q(fmt.Sprintf("select 6 / %d", n)) },
		func(n int) []byte { return q(fmt.Sprintf("select k from t where k = %d", n)) },
		func(n int) []byte { return segment("select 6 / $1::int", n) },
		func(n int) []byte { return segment("select k from t where k = $1::int", n) },
		func(n int) []byte { return cat(bindTo("", "", fmt.Sprint(n)), execute("", 0), syncMsg) },
		func(n int) []byte {
			return cat(bindTo("", "s1", fmt.Sprint(n)), describe('P', ""), execute("", 0), syncMsg)
		},
		func(n int) []byte { return cat(parse("s1", fmt.Sprintf("select %d / $1::int", n)), syncMsg) },
		func(int) []byte { return cat(closing('S', "s1"), syncMsg) },
		func(n int) []byte {
			return q([]string{"begin", "commit", "rollback", "set work_mem = '3MB'", "reset all", "select 1; select 2"}[n])
		},
		func(n int) []byte {
			return cat(parse("", "select 5"), bindTo("", "", []string{"1"}[:n%2]...), execute("", 0), syncMsg)
		},
	}
	rng := rand.New(rand.NewPCG(11, 7))
	var list []sequence
	for i := range 12 {
		s := sequence{name: fmt.Sprintf("conversation %d", i)}
		for len(s.steps) < 60 {
			kind := kinds[rng.IntN(len(kinds))]
			for range 1 + rng.IntN(3) {
				s.steps = append(s.steps, step{kind(rng.IntN(6)), 1})
			}
		}
		list = append(list, s)
	}
	compareSequences(t, list)
}
