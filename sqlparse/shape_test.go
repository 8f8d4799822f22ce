package sqlparse

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestShapeText(t *testing.T) {
	tests := []struct{ sql, want string }{
		{"", ""},
		{" ; -- x\n ;", ""},
		{"SELECT  1 -- x", "select ?i"},
		{"select/* a */1;", "select ?i"},
		{"select 1; ; Select 'a' ;", "select ?i; select ?s"},
		{`select "A".B, é FROM "t"`, `select "A".b, é from "t"`},
		{"select * from t where a=1 and b= 'x' or c=1.5", "select * from t where a = ?i and b = ?s or c = ?n"},
		{"select 3000000000, 99999999999999999999, 0x1F, 1e3", "select ?l, ?n, ?i, ?n"},
		{"select E'a', $$b$$, 'c'\n'd', b'1', x'f'", "select ?s, ?s, ?s, ?b, ?x"},
		{"select -2147483648, -2147483647, 9223372036854775808, -1", "select - 2147483648, - ?i, 9223372036854775808, - ?i"},
		{"select U&'a' UESCAPE '!', N'b'", "select U&'a' uescape '!', N'b'"},
		{"select null, true, false, default", "select null, true, false, default"},
		{"select a from t where b in (1, 2,3)", "select a from t where b in (?i...)"},
		{"select a from t where b in (1)", "select a from t where b in (?i...)"},
		{"select a from t where b not in ('a', 'b') and c in (1, 'a')", "select a from t where b not in (?s...) and c in (?i, ?s)"},
		{"select a from t where b in (1, -2)", "select a from t where b in (?i, - ?i)"},
		{"select a from t where b in (1, f(2))", "select a from t where b in (?i, f(?i))"},
		{"select a from t where b in (1, (2))", "select a from t where b in (?i, (?i))"},
		{"select a from t where b in ($1, 2)", "select a from t where b in ($1, ?i)"},
		{"select a from t where (b, c) in ((1, 2), (3, 4))", "select a from t where (b, c) in ((?i, ?i), (?i, ?i))"},
		{"select a from t where b in (1 , 2 + 3)", "select a from t where b in (?i, ?i + ?i)"},
		{"select a from t where b in (select 5)", "select a from t where b in (select ?i)"},
		{"select a from t order by 1, 2 desc limit 5 offset 6", "select a from t order by 1, 2 desc limit 5 offset 6"},
		{"select a from t where b = 7 order by c fetch first 5 rows only", "select a from t where b = ?i order by c fetch first 5 rows only"},
		{"select a from (select b from c where d = 5 order by 1 limit 3) e where f = 6", "select a from (select b from c where d = ?i order by 1 limit 3) e where f = ?i"},
		{"select 5, a from t where b = 6 order by 2", "select 5, a from t where b = ?i order by 2"},
		{"select 5, a from t where b = 6 order by a", "select ?i, a from t where b = ?i order by a"},
		{"select a % 2, count(*) from t where b = 6 group by a % 2 having count(*) > 7", "select a % 2, count(*) from t where b = ?i group by a % 2 having count(*) > 7"},
		{"select a, count(*) from t group by a having count(*) > 7", "select a, count(*) from t group by a having count(*) > ?i"},
		{"select distinct on (1) a, 'x' from t where b = 6", "select distinct on (1) a, 'x' from t where b = ?i"},
		{"select a from t union select 5 order by 1", "select a from t union select 5 order by 1"},
		{"select string_agg(a, ',' order by b) from t where c = 'x'", "select string_agg(a, ?s order by b) from t where c = ?s"},
		{"select date '2020-01-01', interval '1' day, timestamp with time zone 'now', double precision '1.5', interval(3) '1'", "select date '2020-01-01', interval '1' day, timestamp with time zone 'now', double precision '1.5', interval(3) '1'"},
		{"select pg_catalog.int4 '5', \"my type\" 'x', f(1) 'x', bit(3) b'101'", "select pg_catalog.int4 '5', \"my type\" 'x', f(?i) 'x', bit(3) b'101'"},
		{"select '1'::numeric(10,2), cast('2' as varchar(5)), '3'::my.t(4)[5], 'a'::timestamp(3) without time zone, 5", "select ?s::numeric(10, 2), cast(?s as varchar(5)), ?s::my.t(4)[5], ?s::timestamp(3) without time zone, ?i"},
		{"select x::int in (1, 2), x::int + 5, x::int[3]", "select x::int in (?i...), x::int + ?i, x::int[3]"},
		{"select current_timestamp(3), localtime(0)", "select current_timestamp(3), localtime(0)"},
		{"with x as (select 5), y as materialized (select 6), z as not materialized (select 7) select 8", "with x as (select ?i), y as materialized(select ?i), z as not materialized(select ?i) select ?i"},
		{"select * from f(5) as (a numeric(10,2)), g(6) as t(b varchar(3)), h(7) u where c = 8", "select * from f(?i) as (a numeric(10, 2)), g(?i) as t(b varchar(3)), h(?i) u where c = ?i"},
		{"select a at time zone 'UTC', extract(year from 'x'), substring(a from 1 for 2)", "select a at time zone 'UTC', extract(year from ?s), substring(a from ?i for ?i)"},
		{"select set_config('a', 'b', false), 'c'", "select set_config('a', 'b', false), ?s"},
		{"select pg_catalog.nextval('a'), \"setval\"('b', 5), current_setting ('x')", "select pg_catalog.nextval('a'), \"setval\"('b', 5), current_setting('x')"},
		{"select f(nextval('a'), 5)", "select f(nextval('a'), ?i)"},
		{"select * from neki.replicas where role = 'x'", "select * from neki.replicas where role = 'x'"},
		{"select 'a', __neki.list_shards()", "select 'a', __neki.list_shards()"},
		{`select 'a' from "neki".x`, `select 'a' from "neki".x`},
		{`select 'a' from U&"x"`, `select 'a' from U&"x"`},
		{"update pg_settings set setting = 'a' where name = 'b'", "update pg_settings set setting = 'a' where name = 'b'"},
		{"insert into t (a, b) values (1, 'x'), (2, 'y') on conflict (a) do update set b = 'z' returning 5", "insert into t(a, b) values (?i, ?s), (?i, ?s) on conflict(a) do update set b = ?s returning ?i"},
		{"update t set a = 1, b = b || 'x' where c = 2", "update t set a = ?i, b = b || ?s where c = ?i"},
		{"delete from t where a like '%x' escape '!'", "delete from t where a like ?s escape ?s"},
		{"merge into t using u on t.a = 5 when matched and b = 'x' then update set c = 6", "merge into t using u on t.a = ?i when matched and b = ?s then update set c = ?i"},
		{"(select 1) union (select 'a')", "(select ?i) union (select ?s)"},
		{"values (1, 'a')", "values (?i, ?s)"},
		{"table t", "table t"},
		{"explain select 1", "explain select ?i"},
		{"explain analyze verbose select 1", "explain analyze verbose select ?i"},
		{"explain (format 'json', costs 1) select 1", "explain(format 'json', costs 1) select ?i"},
		{"explain (select 1)", "explain(select ?i)"},
		{"explain create table a as select 1", "explain create table a as select 1"},
		{"explain execute a(1)", "explain execute a(1)"},
		{"set a = 'x'", "set a = 'x'"},
		{"SET A TO 1; select 2", "set a to 1; select ?i"},
		{"prepare p as select 1", "prepare p as select 1"},
		{"create table a as select 1", "create table a as select 1"},
		{"copy (select 1) to stdout", "copy(select 1) to stdout"},
		{"declare c cursor for select 1", "declare c cursor for select 1"},
		{"call p(1)", "call p(1)"},
		{"create rule r as on insert to t do also (insert into u values (1); delete from v)", "create rule r as on insert to t do also(insert into u values (1); delete from v)"},
		{"create function f() begin atomic select 1; select case when a then 2 end; end; select 3", "create function f() begin atomic select 1; select case when a then 2 end; end; select ?i"},
		{"select a.b.c[1:2], (d).e, f.*, g->>'h', i ? 'j', k @> '{}'", "select a.b.c[?i : ?i], (d).e, f.*, g ->> ?s, i ? ?s, k @> ?s"},
		{"select a+-1, a - -1, a--x\n-1", "select a + - ?i, a - - ?i, a - ?i"},
		{"select $1, f(a => 1, b := 2)", "select $1, f(a => ?i, b := ?i)"},
		{"select a.limit, b.order, 5 from t where c.by = 6", "select a.limit, b.order, ?i from t where c.by = ?i"},
		{"select case when a = 1 then 'x' else 'y' end, 'z'", "select case when a = ?i then ?s else ?s end, ?s"},
		{"select a from t where b between 1 and 2 and c is distinct from 3", "select a from t where b between ?i and ?i and c is distinct from ?i"},
		{"select a from t limit 5 for update", "select a from t limit 5 for update"},
		{
			"select a is distinct from 'x', 'y' from t where b = 'z' order by c is distinct from d, 1",
			"select a is distinct from 'x', 'y' from t where b = ?s order by c is distinct from d, 1",
		},
		{"select set, 'x' as where, 'y' from t where a = 'b' group by set, 'x'", "select set, 'x' as where, 'y' from t where a = ?s group by set, 'x'"},
		{
			"select a from t group by b || 'x' union select 'y' from u where c = 'd' order by values, 1",
			"select a from t group by b || 'x' union select 'y' from u where c = ?s order by values, 1",
		},
		{"insert into t select 'a' from u where b = 'c' order by 1 on conflict do nothing", "insert into t select 'a' from u where b = ?s order by 1 on conflict do nothing"},
		{"update t set a = 'x' where b = 'y' returning 'z'", "update t set a = ?s where b = ?s returning ?s"},
		{"select query_to_xml('select 1', true, true, '')", "select query_to_xml(?s, true, true, ?s)"},
		{"select row_number() over (partition by a order by b) from t where c = 5", "select row_number() over(partition by a order by b) from t where c = ?i"},
	}
	s := NewShaper(7)
	for _, tt := range tests {
		got, err := s.Shape(tt.sql)
		if err != nil {
			t.Errorf("%s: %v", tt.sql, err)
			continue
		}
		if diff := cmp.Diff(tt.want, string(got.Text)); diff != "" {
			t.Errorf("%s: %s", tt.sql, diff)
		}
	}
}

func TestShapeLiterals(t *testing.T) {
	const sql = "select 1_000, 'it''s', E'a\\n\\u00e9\\x41\\101\\'', $q$ b $q$, b'1'\n'0', 'c' -- x\n'd', 0x1F, 0b11, 1.5e3 from t where a in (7, 8) and b = -9"
	want := []string{"1000", "it's", "a\né" + "AA'", " b ", "10", "cd", "31", "3", "1.5e3", "7", "8", "9"}
	wantSlots := []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 10}
	sh, err := NewShaper(1).Shape(sql)
	if err != nil {
		t.Fatal(err)
	}
	var values []string
	var slots []int
	for _, l := range sh.Literals {
		values = append(values, string(l.AppendValue(nil, sql)))
		slots = append(slots, l.Slot)
	}
	if diff := cmp.Diff(want, values); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(wantSlots, slots); diff != "" {
		t.Error(diff)
	}
	if sh.Slots != 11 {
		t.Errorf("Slots = %d, want 11", sh.Slots)
	}
	if got := sh.Slot(sql, strings.Index(sql, "-9")); got != 11 {
		t.Errorf("Slot of the negative number = %d, want 11", got)
	}
	if got := sh.Slot(sql, 0); got != -1 {
		t.Errorf("Slot of a place without literal = %d, want -1", got)
	}
}

func TestShapeRefuses(t *testing.T) {
	for _, sql := range []string{
		"select 'a", `select "a`, "select $a$ b", "/* a", "select 1a", "select \x00", "select \\", strings.Repeat("(", 3000),
		"select 1" + strings.Repeat("+1", 3000),
	} {
		if _, err := NewShaper(1).Shape(sql); !errors.Is(err, ErrUnparsable) {
			t.Errorf("%.20q: error %v, want ErrUnparsable", sql, err)
		}
	}
}

func TestShapeHashIsKeyed(t *testing.T) {
	a, b := NewShaper(1), NewShaper(2)
	x, errX := a.Shape("select 1")
	y, errY := b.Shape("select 1")
	if errX != nil || errY != nil {
		t.Fatal(errX, errY)
	}
	if x.Hash == y.Hash {
		t.Error("the hash doesn't depend on the seed")
	}
	hash := x.Hash
	if z, err := a.ShapeBytes([]byte("SELECT 2")); err != nil || z.Hash != hash {
		t.Errorf("another value has another hash (%v)", err)
	}
}

var benchTexts = []struct{ name, sql string }{
	{"simple", "SELECT abalance FROM pgbench_accounts WHERE aid = 12345"},
	{"update", "UPDATE pgbench_accounts SET abalance = abalance + 57 WHERE aid = 12345;"},
	{"join", "SELECT u.id, u.name, count(o.id) AS orders, sum(o.total) FROM users u JOIN orders o ON o.user_id = u.id LEFT JOIN regions r ON r.id = u.region_id " +
		"WHERE u.tenant_id = 42 AND o.state IN ('paid', 'shipped') AND o.created_at > now() - '1 day'::interval GROUP BY u.id, u.name ORDER BY orders DESC, u.name LIMIT 50"},
	{"group", "SELECT id % 2, 'x' FROM t WHERE k = 5 GROUP BY id % 2"},
	{"insert100", insertRows(100)},
}

func insertRows(n int) string {
	rows := make([]string, n)
	for i := range rows {
		rows[i] = fmt.Sprintf("(%d, 'name %d', %d.5, now())", i, i, i)
	}
	return "INSERT INTO t (a, b, c, d) VALUES " + strings.Join(rows, ", ")
}

func TestShapeDoesNotAllocate(t *testing.T) {
	s := NewShaper(1)
	for _, b := range benchTexts {
		text := []byte(b.sql)
		if n := testing.AllocsPerRun(100, func() {
			if _, err := s.ShapeBytes(text); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations, want none", b.name, n)
		}
	}
}

func BenchmarkShape(b *testing.B) {
	for _, bench := range benchTexts {
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(bench.sql)))
			s := NewShaper(1)
			for b.Loop() {
				if _, err := s.Shape(bench.sql); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkParse(b *testing.B) {
	for _, bench := range benchTexts {
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Parse(bench.sql); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
