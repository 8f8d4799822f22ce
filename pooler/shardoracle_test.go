package pooler

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"neki/internal/pgerr"
)

const oracleTopology = `{
 "databases": {"DB": {"default_shard_group": "main", "schemas": {"public": {
   "tables": {
     "t": {"shard_group": "data", "shard_index": "by_k"}, "u": {"shard_group": "data", "shard_index": "by_tk"},
     "w": {"shard_group": "data", "shard_index": "by_name"}
   },
   "reference_tables": {"ref": {"shard_groups": ["data"]}}
 }}}},
 "shard_groups": [{"uid": "main", "key_ranges": [{"shard_uid": "sh1"}]}, RANGES],
 "shard_indexes": {"by_k": {"type": "xxhash", "columns": ["k"]}, "by_tk": {"type": "xxhash", "columns": ["tk"]},
   "by_name": {"type": "xxhash", "columns": ["name"]}},
 "authoritative_shard_group": "main"
}`

const oneRange = `{"uid": "data", "key_ranges": [{"shard_uid": "sh1"}]}`

const fourRanges = `{"uid": "data", "key_ranges": [
  {"shard_uid": "sh1", "end": "4000000000000000"}, {"shard_uid": "sh2", "start": "4000000000000000", "end": "8000000000000000"},
  {"shard_uid": "sh3", "start": "8000000000000000", "end": "c000000000000000"}, {"shard_uid": "sh4", "start": "c000000000000000"}]}`

const oracleSchema = `CREATE TABLE t (k int PRIMARY KEY, v text COLLATE "C", n int8, d numeric, at timestamp, b bool);
CREATE TABLE u (tk int8 NOT NULL, id int NOT NULL, v text COLLATE "C", n int, x text, PRIMARY KEY (tk, id));
CREATE TABLE w (name text COLLATE "C" PRIMARY KEY, n int, tk int);
CREATE TABLE ref (id int PRIMARY KEY, label text COLLATE "C", n numeric(8,2));
CREATE TABLE home (id int PRIMARY KEY, v text COLLATE "C", n int)`

// TestShardOracle runs random statements on plain Postgres and through the gateway, with all on one shard and on four: both
// answer alike, or the gateway says that it can't. NEKI_ORACLE_STATEMENTS and NEKI_ORACLE_SEED make it longer, or another.
func TestShardOracle(t *testing.T) {
	count, seed := envInt("NEKI_ORACLE_STATEMENTS", 2000), uint64(envInt("NEKI_ORACLE_SEED", 1))
	for _, c := range []struct {
		name, ranges string
		shards       int
	}{{"one", oneRange, 1}, {"four", fourRanges, 4}} {
		t.Run(c.name, func(t *testing.T) {
			s := startShards(t, c.shards, strings.Replace(oracleTopology, "RANGES", c.ranges, 1), gatewayOptions{})
			s.everywhere(oracleSchema)
			s.learn()
			o := &oracle{
				t: t, s: s, rand: rand.New(rand.NewPCG(seed, uint64(c.shards))), plain: s.plain.PgConn(),
				conn: s.connect("").PgConn(), refused: map[string]int{},
			}
			o.load()
			for o.run < count && !t.Failed() {
				o.step()
			}
			o.report()
		})
	}
}

func envInt(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return otherwise
}

type oracle struct {
	t           *testing.T
	s           *shards
	rand        *rand.Rand
	plain, conn *pgconn.PgConn
	run, errors int
	refused     map[string]int
	first       map[string]string
	last        string
}

// oracleAnswer is what a statement gave.
type oracleAnswer struct {
	rows       []string
	tag, state string
	message    string
}

func (o *oracle) ask(conn *pgconn.PgConn, sql string, extended bool) oracleAnswer {
	ctx, cancel := context.WithTimeout(o.t.Context(), 30*time.Second)
	defer cancel()
	var a oracleAnswer
	var r *pgconn.Result
	if extended {
		text, params := withParameter(sql)
		r = conn.ExecParams(ctx, text, params, nil, nil, []int16{1}).Read()
	} else {
		results, err := conn.Exec(ctx, sql).ReadAll()
		switch {
		case err != nil:
			r = &pgconn.Result{Err: err}
		case len(results) != 1:
			o.t.Fatalf("%d results of %s", len(results), sql)
		default:
			r = results[0]
		}
	}
	if r.Err != nil {
		a.state, a.message = pgerr.Code(r.Err), r.Err.Error()
		var pg *pgconn.PgError
		if ok := asPgError(r.Err, &pg); ok {
			a.state, a.message = pg.Code, pg.Message+" "+pg.Detail
		}
		return a
	}
	a.tag = r.CommandTag.String()
	var head strings.Builder
	for _, f := range r.FieldDescriptions {
		fmt.Fprintf(&head, "%s/%d ", f.Name, f.DataTypeOID)
	}
	a.message = head.String()
	for _, row := range r.Rows {
		var b strings.Builder
		for _, cell := range row {
			if cell == nil {
				b.WriteString("NULL|")
			} else {
				fmt.Fprintf(&b, "%q|", cell)
			}
		}
		a.rows = append(a.rows, b.String())
	}
	return a
}

var keyValue = regexp.MustCompile(`(\.k|\.tk|\.id) = (\d+)`)

// withParameter makes a parameter of every other statement's first key.
func withParameter(sql string) (string, [][]byte) {
	m := keyValue.FindStringSubmatchIndex(sql)
	if m == nil || len(sql)%2 == 0 {
		return sql, nil
	}
	return sql[:m[4]] + "$1" + sql[m[5]:], [][]byte{[]byte(sql[m[4]:m[5]])}
}

func asPgError(err error, to **pgconn.PgError) bool {
	for err != nil {
		if pg, ok := err.(*pgconn.PgError); ok { //nolint:errorlint // unwrapped here
			*to = pg
			return true
		}
		u, ok := err.(interface{ Unwrap() error })
		if !ok {
			return false
		}
		err = u.Unwrap()
	}
	return false
}

// compare runs a statement on both sides.
func (o *oracle) compare(sql string, ordered bool) {
	o.run++
	extended := o.rand.IntN(2) == 0
	got := o.ask(o.conn, sql, extended)
	if got.state == pgerr.NotImplemented || got.state == pgerr.FeatureNotSupported {
		o.refused[got.message]++
		if o.first == nil {
			o.first = map[string]string{}
		}
		if o.first[got.message] == "" {
			o.first[got.message] = sql
			if strings.Contains(got.message, "[111]") {
				o.t.Logf("before [111]: %s", o.last)
			}
		}
		return
	}
	o.last = fmt.Sprint(extended, got.state, " ", sql)
	want := o.ask(o.plain, sql, extended)
	if !ordered {
		slices.Sort(got.rows)
		slices.Sort(want.rows)
	}
	if want.state != "" {
		o.errors++
	}
	if got.state != want.state || got.tag != want.tag || !slices.Equal(got.rows, want.rows) || want.state == "" && got.message != want.message {
		o.t.Errorf("statement %d, extended %v:\n%s\ngateway:  %s %s %s\n  %s\npostgres: %s %s %s\n  %s", o.run, extended, sql,
			got.state, got.tag, got.message, strings.Join(got.rows, "\n  "), want.state, want.tag, want.message, strings.Join(want.rows, "\n  "))
		for _, again := range []bool{false, true, extended} {
			got = o.ask(o.conn, sql, again)
			o.t.Logf("again, extended %v: %s %s %s %d rows", again, got.state, got.tag, got.message, len(got.rows))
		}
	}
}

func (o *oracle) report() {
	total := 0
	for _, n := range o.refused {
		total += n
	}
	o.t.Logf("%d statements, %d errors, %d refused (%.1f %%)", o.run, o.errors, total, 100*float64(total)/float64(o.run))
	for m, n := range o.refused {
		o.t.Logf("%4d %s\n     e.g. %s", n, m, o.first[m])
	}
	if total*10 > o.run {
		o.t.Errorf("more than a tenth refused")
	}
}

func (o *oracle) load() {
	for i := range 40 {
		o.both("INSERT INTO t VALUES (%d, %s, %s, %s, %s, %s)", i, o.text(), o.num(), o.dec(), o.time(), o.pick("true", "false", "NULL"))
		o.both("INSERT INTO u VALUES (%d, %d, %s, %s, %s)", o.rand.IntN(40), i, o.text(), o.num(), o.text())
		if i < 15 {
			o.both("INSERT INTO w VALUES ('w%d', %s, %d)", i, o.num(), o.rand.IntN(40))
			o.both("INSERT INTO ref VALUES (%d, %s, %s)", i, o.text(), o.dec())
			o.both("INSERT INTO home VALUES (%d, %s, %s)", i, o.text(), o.num())
		}
	}
}

func (o *oracle) both(format string, args ...any) {
	o.t.Helper()
	sql := fmt.Sprintf(format, args...)
	o.compare(sql, false)
}

func (o *oracle) pick(list ...string) string { return list[o.rand.IntN(len(list))] }
func (o *oracle) text() string {
	return o.pick("'a'", "'b'", "'c'", "'ab'", "'B'", "''", "NULL", "'x y'", "'ü'", "'a'")
}

func (o *oracle) num() string { return o.pick("0", "1", "2", "3", "5", "7", "-1", "NULL", "100") }

func (o *oracle) dec() string      { return o.pick("0", "1.5", "2.25", "-3.10", "1000.001", "NULL", "7") }
func (o *oracle) key() string      { return strconv.Itoa(o.rand.IntN(45)) }
func (o *oracle) maybe(n int) bool { return o.rand.IntN(n) == 0 }
func (o *oracle) time() string {
	return o.pick("'2024-01-02 03:04:05.09186'", "'2024-01-02 03:04:05.9'", "'1999-12-31'", "NULL", "'2024-06-01 00:00:00'")
}

// rel is a relation of a generated query.
type rel struct {
	table, alias, key    string
	texts, nums, numeric []string // columns of each family
}

func (o *oracle) rel(alias string) rel {
	switch o.rand.IntN(7) {
	case 0, 1, 2:
		return rel{"t", alias, "k", []string{"v"}, []string{"k", "n"}, []string{"d"}}
	case 3, 4:
		return rel{"u", alias, "tk", []string{"v", "x"}, []string{"tk", "id", "n"}, nil}
	case 5:
		return rel{"ref", alias, "id", []string{"label"}, []string{"id"}, []string{"n"}}
	}
	return o.other(alias)
}

func (o *oracle) other(alias string) rel {
	if o.maybe(2) {
		return rel{"w", alias, "tk", []string{"name"}, []string{"n", "tk"}, nil}
	}
	return rel{"home", alias, "id", []string{"v"}, []string{"id", "n"}, nil}
}

func (r rel) c(name string) string { return r.alias + "." + name }

func (o *oracle) numCol(rels []rel) string {
	r := rels[o.rand.IntN(len(rels))]
	return r.c(r.nums[o.rand.IntN(len(r.nums))])
}

func (o *oracle) textCol(rels []rel) string {
	r := rels[o.rand.IntN(len(rels))]
	return r.c(r.texts[o.rand.IntN(len(r.texts))])
}

// scalar gives an expression over one row.
func (o *oracle) scalar(rels []rel) string {
	switch o.rand.IntN(9) {
	case 0, 1, 2:
		return o.numCol(rels)
	case 3, 4:
		return o.textCol(rels)
	case 5:
		return o.numCol(rels) + o.pick(" + ", " - ", " * ") + o.pick("1", "2", o.numCol(rels))
	case 6:
		return "coalesce(" + o.textCol(rels) + ", 'none')"
	case 7:
		return "CASE WHEN " + o.cond(rels, 0) + " THEN " + o.numCol(rels) + " ELSE 0 END"
	}
	return "length(" + o.textCol(rels) + ")"
}

// cond gives a condition over one row.
func (o *oracle) cond(rels []rel, depth int) string {
	r := rels[o.rand.IntN(len(rels))]
	switch o.rand.IntN(14) {
	case 0, 1:
		return r.c(r.key) + " = " + o.key()
	case 2:
		return r.c(r.key) + " IN (" + o.key() + ", " + o.key() + ", " + o.key() + ")"
	case 3:
		return o.numCol(rels) + o.pick(" < ", " > ", " <> ", " >= ") + o.num()
	case 4:
		return o.textCol(rels) + o.pick(" = ", " < ", " >= ") + o.pick("'a'", "'b'", "'x y'")
	case 5:
		return o.textCol(rels) + " LIKE 'a%'"
	case 6:
		return o.numCol(rels) + o.pick(" IS NULL", " IS NOT NULL")
	case 7:
		return "(" + o.cond(rels, depth) + " OR " + o.cond(rels, depth) + ")"
	case 8:
		return "NOT (" + o.cond(rels, depth) + ")"
	case 9:
		return o.numCol(rels) + " = " + o.numCol(rels)
	case 10:
		return r.c(r.key) + " = ANY ('{" + o.key() + "," + o.key() + "}')"
	}
	if depth == 0 {
		return o.numCol(rels) + " BETWEEN 1 AND 20"
	}
	in := o.rel("s" + strconv.Itoa(depth))
	inner := []rel{in}
	switch o.rand.IntN(4) {
	case 0:
		return o.pick("EXISTS", "NOT EXISTS") + " (SELECT 1 FROM " + in.table + " " + in.alias + " WHERE " + in.c(in.key) + " = " + r.c(r.key) + " AND " + o.cond(inner, depth-1) + ")"
	case 1:
		return o.numCol(rels) + o.pick(" IN ", " NOT IN ") + "(SELECT " + o.numCol(inner) + " FROM " + in.table + " " + in.alias + " WHERE " + o.cond(inner, depth-1) + ")"
	case 2:
		return o.numCol(rels) + " < (SELECT " + o.pick("max", "min") + "(" + o.numCol(inner) + ") FROM " + in.table + " " + in.alias + ")"
	}
	return o.pick("EXISTS", "NOT EXISTS") + " (SELECT FROM " + in.table + " " + in.alias + " WHERE " + o.numCol(inner) + " = " + o.numCol(rels) + ")"
}

// from gives a FROM clause.
func (o *oracle) from() (string, []rel) {
	a := o.rel("a")
	rels, text := []rel{a}, a.table+" a"
	for i := range o.pickInt(0, 0, 0, 1, 1, 1, 2) {
		b := o.rel(string(rune('b' + i)))
		on := rels[0].c(rels[0].key) + " = " + b.c(b.key)
		if o.maybe(2) {
			on = o.numCol(rels) + " = " + o.numCol([]rel{b})
		}
		if o.maybe(4) {
			on += " AND " + o.cond([]rel{b}, 0)
		}
		text += " " + o.pick("JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN") + " " + b.table + " " + b.alias + " ON " + on
		rels = append(rels, b)
	}
	return text, rels
}

func (o *oracle) pickInt(list ...int) int { return list[o.rand.IntN(len(list))] }

// query gives a query and whether its order is total.
func (o *oracle) query(depth int) (sql string, ordered bool, width int) {
	from, rels := o.from()
	where := ""
	if !o.maybe(3) {
		where = " WHERE " + o.cond(rels, depth)
		if o.maybe(2) {
			where += " AND " + o.cond(rels, depth)
		}
	}
	var list []string
	tail := ""
	switch o.rand.IntN(6) {
	case 0, 1:
		list, tail = o.grouped(rels)
	case 2:
		list = []string{o.scalar(rels), "row_number() OVER (PARTITION BY " + o.numCol(rels) + " ORDER BY " + o.everyColumn(rels) + ")"}
	default:
		for range 1 + o.rand.IntN(3) {
			list = append(list, o.scalar(rels))
		}
	}
	distinct := ""
	if o.maybe(6) {
		distinct = "DISTINCT "
	}
	for i := range list {
		list[i] += " AS c" + strconv.Itoa(i+1)
	}
	return "SELECT " + distinct + strings.Join(list, ", ") + " FROM " + from + where + tail, false, len(list)
}

func (o *oracle) everyColumn(rels []rel) string {
	var all []string
	for _, r := range rels {
		for _, c := range slices.Concat(r.nums, r.texts, r.numeric) {
			all = append(all, r.c(c))
		}
	}
	return strings.Join(all, ", ")
}

func (o *oracle) grouped(rels []rel) (list []string, tail string) {
	agg := func() string {
		n := o.numCol(rels)
		switch o.rand.IntN(9) {
		case 0:
			return "count(*)"
		case 1:
			return "count(" + o.pick("", "DISTINCT ") + n + ")"
		case 2:
			return "sum(" + n + ")"
		case 3:
			return "avg(" + n + ")"
		case 4:
			return o.pick("min", "max") + "(" + o.pick(n, o.textCol(rels)) + ")"
		case 5:
			return "bool_and(" + n + " > 1)"
		case 6:
			return "string_agg(" + o.textCol(rels) + ", ',' ORDER BY " + o.everyColumn(rels) + ")"
		case 7:
			return o.pick("stddev", "var_pop", "variance") + "(" + n + ")"
		}
		return "count(*) FILTER (WHERE " + o.cond(rels, 0) + ")"
	}
	var keys []string
	for range o.rand.IntN(3) {
		keys = append(keys, o.pick(o.numCol(rels), o.textCol(rels)))
	}
	list = append(slices.Clone(keys), agg())
	if o.maybe(2) {
		list = append(list, agg())
	}
	if len(keys) > 0 {
		tail = " GROUP BY " + strings.Join(keys, ", ")
	}
	if o.maybe(3) {
		tail += " HAVING count(*) > " + o.pick("0", "1", "3")
	}
	return list, tail
}

// wrapped gives a query of one of several forms.
func (o *oracle) wrapped() (string, bool) {
	sql, _, width := o.query(1)
	switch o.rand.IntN(8) {
	case 0:
		other, _, w := o.query(0)
		if w == width {
			return sql + o.pick(" UNION ", " UNION ALL ", " INTERSECT ", " EXCEPT ") + other, false
		}
	case 1:
		return "WITH x AS (" + sql + ") SELECT count(*), max(c1) FROM x", false
	case 2:
		return "SELECT s.c1, count(*) FROM (" + sql + ") s GROUP BY s.c1", false
	case 3, 4, 5:
		var by []string
		for i := range width {
			by = append(by, strconv.Itoa(i+1)+o.pick("", "", " DESC", " NULLS FIRST", " DESC NULLS LAST"))
		}
		sql += " ORDER BY " + strings.Join(by, ", ")
		if o.maybe(2) {
			sql += " LIMIT " + o.pick("0", "1", "3", "10")
			if o.maybe(2) {
				sql += " OFFSET " + o.pick("0", "1", "5")
			}
		}
		return sql, true
	}
	return sql, false
}

// step runs one statement.
func (o *oracle) step() {
	if o.rand.IntN(5) > 0 {
		sql, ordered := o.wrapped()
		o.compare(sql, ordered)
		return
	}
	o.compare(o.change(), false)
	if o.maybe(10) {
		for _, table := range []string{"t", "u", "w", "ref", "home"} {
			o.compare("SELECT * FROM "+table, false)
		}
	}
}

// change gives a change of rows.
func (o *oracle) change() string {
	a := rel{"t", "t", "k", []string{"v"}, []string{"k", "n"}, []string{"d"}}
	if o.maybe(3) {
		a = rel{"u", "u", "tk", []string{"v", "x"}, []string{"tk", "id", "n"}, nil}
	}
	one := []rel{a}
	returning := o.pick("", "", " RETURNING *")
	row := func() string {
		return fmt.Sprintf("(%s, %s, %s, %s, %s, %s)", o.key(), o.text(), o.num(), o.dec(), o.time(), o.pick("true", "false"))
	}
	switch o.rand.IntN(10) {
	case 8: // rows change their shard
		return "INSERT INTO u (tk, id, v) SELECT a.n, a.k + 5000, a.v FROM t a WHERE a.n IS NOT NULL AND " + o.cond([]rel{{"t", "a", "k", []string{"v"}, []string{"k", "n"}, []string{"d"}}}, 1) +
			" ON CONFLICT (tk, id) DO " + o.pick("NOTHING", "UPDATE SET v = excluded.v") + returning
	case 0:
		return "INSERT INTO t VALUES " + row() + returning
	case 1:
		return "INSERT INTO t VALUES " + row() + ", " + row() + ", " + row() + " ON CONFLICT (k) DO NOTHING" + returning
	case 2:
		return "INSERT INTO t VALUES " + row() + " ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = t.n + 1" + returning
	case 3:
		return "DELETE FROM " + a.table + " WHERE " + a.key + " = " + o.key() + returning
	case 4:
		return "UPDATE " + a.table + " SET v = " + o.text() + " WHERE " + o.cond(one, 1) + returning
	case 5:
		return "UPDATE t SET n = u.n FROM u WHERE u.tk = t.k AND u.id = " + o.key()
	case 6:
		return "UPDATE ref SET label = " + o.text() + " WHERE id = " + o.key() + returning
	case 7:
		return "INSERT INTO u (tk, id, v) VALUES (" + o.key() + ", " + o.key() + "00" + ", " + o.text() + ")" + returning
	}
	return "DELETE FROM u WHERE tk IN (" + o.key() + ", " + o.key() + ") AND NOT EXISTS (SELECT FROM t WHERE t.k = u.tk)"
}
