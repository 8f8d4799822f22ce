package pooler

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
)

// step is bytes that a client sends in one write, after which it reads until quiet or until that many ReadyForQuery.
type step struct {
	send  []byte
	ready int // ReadyForQuery to wait for; 0: read what comes within a moment
}

func q(sql string) []byte { return msgOf('Q', sql) }

func msgOf(typ byte, parts ...any) []byte {
	var b bytes.Buffer
	for _, p := range parts {
		switch v := p.(type) {
		case string:
			b.WriteString(v)
			b.WriteByte(0)
		case []byte:
			b.Write(v)
		case int:
			_ = binary.Write(&b, binary.BigEndian, int16(v))
		case int32:
			_ = binary.Write(&b, binary.BigEndian, v)
		case byte:
			b.WriteByte(v)
		}
	}
	return append(binary.BigEndian.AppendUint32([]byte{typ}, uint32(b.Len()+4)), b.Bytes()...)
}

func parse(name, sql string) []byte { return msgOf('P', name, sql, 0) }

func bindTo(portal, name string, params ...string) []byte {
	parts := []any{portal, name, 0, len(params)}
	for _, p := range params {
		parts = append(parts, int32(len(p)), []byte(p))
	}
	return msgOf('B', append(parts, 0)...)
}

func execute(portal string, rows int32) []byte { return msgOf('E', portal, rows) }
func describe(kind byte, name string) []byte   { return msgOf('D', kind, name) }
func closing(kind byte, name string) []byte    { return msgOf('C', kind, name) }
func data(text string) []byte                  { return msgOf('d', []byte(text)) }

var (
	syncMsg  = msgOf('S')
	flushMsg = msgOf('H')
	copyDone = msgOf('c')
)

func cat(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

// sequence is a conversation whose answers must be those of Postgres, message by message.
type sequence struct {
	name  string
	steps []step
}

var sequences = []sequence{
	{"empty queries", []step{{q(""), 1}, {q(";"), 1}, {q(";;"), 1}, {q("/* c */"), 1}, {q("-- c"), 1}}},
	{"a string with an error", []step{
		{q("insert into t values (10); select 1/0; insert into t values (11)"), 1}, {q("select count(*) from t"), 1},
	}},
	{"commit within a string", []step{{q("insert into t values (10); commit; select 1/0"), 1}, {q("select count(*) from t"), 1}}},
	{"a block in a string that fails", []step{
		{q("begin; insert into t values (10); select 1/0; commit"), 1}, {q("select 1"), 1}, {q("rollback"), 1}, {q("select count(*) from t"), 1},
	}},
	{"a syntax error runs nothing", []step{{q("insert into t values (10); selct 1"), 1}, {q("select count(*) from t"), 1}}},
	{"error position", []step{{q("select   nosuch from t"), 1}, {q("select 'ä', nosuch"), 1}}},
	{"one statement", []step{{cat(parse("", "select $1::int + 1"), bindTo("", "", "41"), describe('P', ""), execute("", 0), syncMsg), 1}}},
	{"the unnamed statement lives on", []step{
		{cat(parse("", "select 7"), describe('S', ""), syncMsg), 1},
		{cat(bindTo("", ""), execute("", 0), syncMsg), 1},
		{cat(bindTo("", ""), execute("", 0), syncMsg), 1},
	}},
	{"two unnamed statements in one pipeline", []step{{cat(
		parse("", "select 1"), bindTo("", ""), execute("", 0), parse("", "select 'two'"), bindTo("", ""), execute("", 0), syncMsg), 1}}},
	{"the old unnamed statement before the new one", []step{
		{cat(parse("", "select 1"), syncMsg), 1},
		{cat(bindTo("", ""), execute("", 0), parse("", "select 2"), bindTo("", ""), execute("", 0), syncMsg), 1},
	}},
	{"a query drops the unnamed statement", []step{
		{cat(parse("", "select 1"), syncMsg), 1}, {q("select 2"), 1}, {cat(bindTo("", ""), execute("", 0), syncMsg), 1},
	}},
	{"named statements", []step{
		{cat(parse("s1", "select $1::text"), describe('S', "s1"), syncMsg), 1},
		{cat(bindTo("", "s1", "x"), execute("", 0), syncMsg), 1},
		{cat(parse("s1", "select 2"), syncMsg), 1}, // 42P05
		{cat(closing('S', "s1"), parse("s1", "select 3"), bindTo("", "s1"), execute("", 0), syncMsg), 1},
		{cat(closing('S', "s1"), closing('S', "never"), syncMsg), 1},
		{cat(bindTo("", "s1"), syncMsg), 1}, // 26000
	}},
	{"a failed Parse leaves the name free", []step{
		{cat(parse("s1", "selct"), syncMsg), 1}, {cat(closing('S', "s1"), syncMsg), 1}, {cat(parse("s1", "select 1"), bindTo("", "s1"), execute("", 0), syncMsg), 1},
	}},
	{"an unknown statement and portal", []step{{cat(bindTo("", "no"), syncMsg), 1}, {cat(execute("no", 0), syncMsg), 1}, {cat(describe('S', "no"), syncMsg), 1}}},
	{"errors in mid-pipeline", []step{{cat(
		parse("", "select 1/0"), bindTo("", ""), execute("", 0), parse("", "select 2"), bindTo("", ""), execute("", 0), syncMsg,
		parse("", "select 3"), bindTo("", ""), execute("", 0), syncMsg), 2}}},
	{"an implicit transaction is undone", []step{
		{cat(parse("", "insert into t values (10)"), bindTo("", ""), execute("", 0), parse("", "insert into t values (1)"), bindTo("", ""), execute("", 0), syncMsg), 1},
		{q("select count(*) from t"), 1},
	}},
	{"an unknown statement undoes the segment", []step{
		{cat(parse("", "insert into t values (10)"), bindTo("", ""), execute("", 0), bindTo("", "nosuch"), execute("", 0), syncMsg), 1},
		{q("select count(*) from t"), 1},
	}},
	{"a temp table within a segment", []step{{cat(
		parse("", "create temp table x on commit drop as select 1 as a"), bindTo("", ""), execute("", 0),
		parse("", "select a from x"), bindTo("", ""), execute("", 0), syncMsg), 1}}},
	{"row limits", []step{
		{cat(parse("", "select g from generate_series(1, 5) g"), bindTo("", ""), execute("", 2), flushMsg), 0},
		{cat(execute("", 2), flushMsg), 0},
		{cat(execute("", 2), syncMsg), 1},
	}},
	{"named portals in a block", []step{
		{q("begin"), 1},
		{cat(parse("", "select g from generate_series(1, 4) g"), bindTo("p1", ""), bindTo("p2", ""), execute("p1", 1), syncMsg), 1},
		{cat(execute("p2", 2), execute("p1", 1), syncMsg), 1},
		{cat(describe('P', "p1"), closing('P', "p1"), syncMsg), 1},
		{q("commit"), 1},
		{cat(execute("p2", 1), syncMsg), 1},
	}},
	{"many Syncs in one write", []step{{cat(
		parse("", "select 1"), bindTo("", ""), execute("", 0), syncMsg, parse("", "select pg_sleep(0.05)"), bindTo("", ""), execute("", 0), syncMsg,
		parse("", "select 2"), bindTo("", ""), execute("", 0), syncMsg, syncMsg), 4}}},
	{"a query and a segment in one write", []step{{cat(q("set work_mem = '3MB'"), parse("", "show work_mem"), bindTo("", ""), execute("", 0), syncMsg), 2}}},
	{"a query behind a segment without Sync", []step{{cat(parse("", "select 1"), bindTo("", ""), execute("", 0), q("select 2")), 1}, {syncMsg, 1}}},
	{"an error reported at Flush", []step{{cat(parse("", "selct 1"), flushMsg), 0}, {cat(bindTo("", ""), execute("", 0), flushMsg), 0}, {syncMsg, 1}}},
	{"an error in a block", []step{
		{q("begin"), 1}, {cat(parse("", "select nosuch"), syncMsg), 1}, {cat(parse("", "select 1"), syncMsg), 1}, {q("rollback"), 1},
	}},
	{"copy in", []step{{q("copy t from stdin"), 0}, {cat(data("20\n"), data("21\n"), copyDone), 1}, {q("select count(*) from t"), 1}}},
	{"copy in that the client gives up", []step{{q("copy t from stdin"), 0}, {cat(data("20\n"), msgOf('f', "no more")), 1}, {q("select count(*) from t"), 1}}},
	{"copy in with a bad line", []step{{q("copy t from stdin"), 0}, {cat(data("20\nx\n"), copyDone), 1}, {q("select count(*) from t"), 1}}},
	{"copy in with late messages", []step{
		{q("copy t from stdin"), 0}, {data("x\n"), 0}, {cat(data("20\n"), data("21\n"), copyDone), 0}, {q("select 1"), 1},
	}},
	{"copy and select in one string", []step{{q("copy t from stdin; select count(*) from t"), 0}, {cat(data("20\n"), copyDone), 1}}},
	{"copy in by the extended protocol", []step{
		{cat(parse("", "copy t from stdin"), bindTo("", ""), execute("", 0), syncMsg), 0},
		{cat(data("20\n"), flushMsg, data("21\n"), copyDone, syncMsg), 1},
		{q("select count(*) from t"), 1},
	}},
	{"copy in by the extended protocol that fails", []step{
		{cat(parse("", "copy t from stdin"), bindTo("", ""), execute("", 0), syncMsg), 0},
		{cat(data("x\n"), data("21\n"), copyDone, syncMsg), 1},
		{q("select count(*) from t"), 1},
	}},
	{"several statements in a Parse", []step{{cat(parse("", "select 1; select 2"), syncMsg), 1}, {cat(parse("", "select 1; selct"), syncMsg), 1}}},
	{"an execute within a copy", []step{{cat(parse("", "copy t from stdin"), bindTo("", ""), execute("", 0), execute("", 0), syncMsg), 0}}},
	{"a query behind a copy that the client gives up", []step{
		{cat(parse("", "copy t from stdin"), bindTo("", ""), execute("", 0), msgOf('f', "no more"), q("select 1"), syncMsg), 1},
		{cat(parse("", "copy t from stdin"), bindTo("", ""), execute("", 0), data("20\n"), copyDone, q("select count(*) from t")), 1},
		{syncMsg, 1},
	}},
	{"an own portal is run twice", []step{
		{cat(parse("", "prepare p as select 1"), bindTo("", ""), execute("", 0), execute("", 0), syncMsg), 1},
		{cat(parse("", "prepare p2 as select 2"), bindTo("", ""), execute("", 0), bindTo("", "p2"), execute("", 0), syncMsg), 1},
	}},
	{"bytes that are no text in a malformed Parse", []step{{cat(parse("", "select \x8c 1"), syncMsg), 1}, {cat(msgOf('P', "", "select \x8c 1", 0, byte(0)), syncMsg), 1}}},
	{"copy out", []step{
		{q("copy (select g from generate_series(1, 3) g) to stdout"), 1},
		{cat(parse("", "copy t to stdout"), bindTo("", ""), execute("", 0), syncMsg), 1},
	}},
	{"messages of a copy outside of one", []step{{cat(data("x"), copyDone, msgOf('f', "x"), q("select 1")), 1}}},
	{"notices", []step{{q("do $$ begin raise notice 'one'; raise warning 'two'; end $$; select 1"), 1}}},
	{"settings", []step{
		{q("set search_path = 'a b', public; show search_path"), 1},
		{q("set time zone 'Asia/Tokyo'"), 1},
		{q("show timezone"), 1},
		{q("set application_name = ''"), 1},
		{q("show application_name"), 1},
		{q("reset all"), 1},
		{q("show timezone"), 1},
		{q("set nosuch = 1"), 1},
	}},
	{"settings before a late begin", []step{
		{q("set work_mem = '3MB'; begin; select 1/0"), 1},
		{q("rollback"), 1},
		{q("show work_mem"), 1},
		{q("begin; set work_mem = '3MB'; begin; rollback"), 1},
		{q("show work_mem"), 1},
		{q("set work_mem = '3MB'; begin; set work_mem = '5MB'; commit; select 1/0"), 1},
		{q("show work_mem"), 1},
	}},
	{"transaction control without a transaction", []step{{q("commit"), 1}, {q("rollback"), 1}, {q("savepoint s"), 1}, {q("begin; begin; commit"), 1}}},
	{"Flush behind a statement that the server knows", []step{
		{cat(parse("s1", "select 1"), syncMsg), 1},
		{cat(closing('S', "s1"), syncMsg), 1},
		{cat(parse("s1", "select 1"), flushMsg), 0},
		{syncMsg, 1},
		{cat(closing('S', "s1"), flushMsg), 0},
		{cat(parse("s1", "select 1"), parse("s1", "deallocate s1"), syncMsg), 1},
	}},
	{"SQL prepare", []step{{q("prepare p as select $1::int"), 1}, {q("execute p(5)"), 1}, {q("deallocate p"), 1}, {q("execute p(5)"), 1}}},
	{"cursors", []step{{q("begin; declare c cursor for select g from generate_series(1, 3) g"), 1}, {q("fetch 2 from c"), 1}, {q("close c; commit"), 1}}},
	{"discard all in a block", []step{{q("begin"), 1}, {q("discard all"), 1}, {q("rollback"), 1}, {q("discard all"), 1}}},
	{"function call", []step{{msgOf('F', int32(1397) /* abs(int4) */, 1, 0, 1, int32(2), []byte("-3"), 0), 1}}},
}

// TestSequences has every conversation with Postgres and with gateways before it, of one server connection and of many,
// and compares the answers.
func TestSequences(t *testing.T) { compareSequences(t, sequences) }

// TestMalformedMessages does so with messages that no client should send.
func TestMalformedMessages(t *testing.T) { compareSequences(t, malformedSequences) }

// poolSizes are those that conversations are compared with.
var poolSizes = []int{1, 20}

func compareSequences(t *testing.T, sequences []sequence) {
	for _, size := range poolSizes {
		t.Run(fmt.Sprintf("pool of %d", size), func(t *testing.T) {
			b := newBothWays(t, size)
			for _, tc := range sequences {
				t.Run(strings.ReplaceAll(tc.name, " ", "_"), func(t *testing.T) { b.compare(t, tc.steps) })
			}
		})
	}
}

// bothWays has conversations with Postgres, and with a gateway before it.
type bothWays struct {
	g       *gateway
	direct  *pgx.ConnConfig
	through *pgx.ConnConfig
	admin   *pgx.Conn
}

func newBothWays(t testing.TB, poolSize int) *bothWays {
	return newBothWaysOf(t, startGateway(t, gatewayOptions{parameters: poolOf(poolSize)}))
}

func newBothWaysOf(t testing.TB, g *gateway) *bothWays {
	b := &bothWays{g: g}
	b.through = b.g.config("")
	var err error
	if b.direct, err = pgx.ParseConfig(b.g.group.Primary.DSN()); err != nil {
		t.Fatal(err)
	}
	if b.admin, err = pgx.ConnectConfig(context.Background(), b.direct); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.admin.Close(context.Background()) })
	return b
}

// prepare makes the table that conversations are about.
func (b *bothWays) prepare(t testing.TB) {
	t.Helper()
	const sql = "set lock_timeout = '5s'; drop table if exists t, t2; drop sequence if exists q; create table t (k int primary key); insert into t values (1), (2)"
	if _, err := trySimple(b.admin, sql); err != nil {
		t.Fatal(err)
	}
}

func (b *bothWays) compare(t testing.TB, steps []step) {
	t.Helper()
	b.prepare(t)
	want := converse(t, b.direct, steps)
	b.prepare(t)
	got := converse(t, b.through, steps)
	for i := range steps {
		if got[i] != want[i] {
			t.Errorf("step %d: %q\n  gateway  %s\n  postgres %s", i+1, steps[i].send, got[i], want[i])
		}
	}
}

// converse runs a conversation and gives the answers to each step in a readable form.
func converse(t testing.TB, cfg *pgx.ConnConfig, steps []step) []string {
	t.Helper()
	c := newWireClient(t, cfg)
	defer c.conn.Close()
	out := make([]string, len(steps))
	for i, s := range steps {
		out[i] = c.ask(s.ready, s.send)
	}
	return out
}

// moment is how long an answer may take where no ReadyForQuery ends it.
const moment = 600 * time.Millisecond

func listen(conn net.Conn, ready int) string {
	var out []string
	for {
		limit := moment
		if ready > 0 {
			limit = 10 * time.Second
		}
		_ = conn.SetReadDeadline(time.Now().Add(limit))
		var head [5]byte
		if _, err := io.ReadFull(conn, head[:]); err != nil {
			if ready > 0 {
				out = append(out, "("+err.Error()+")")
			}
			return strings.Join(out, " ")
		}
		body := make([]byte, binary.BigEndian.Uint32(head[1:])-4)
		if _, err := io.ReadFull(conn, body); err != nil {
			return strings.Join(append(out, err.Error()), " ")
		}
		out = append(out, readable(head[0], body))
		if head[0] == 'Z' && ready > 0 {
			if ready--; ready == 0 {
				return strings.Join(out, " ")
			}
		}
	}
}

// readable shows a message; of errors and notices all but the server's source lines.
func readable(typ byte, body []byte) string {
	switch typ {
	case 'E', 'N':
		var fields []string
		for _, f := range bytes.Split(body, []byte{0}) {
			if len(f) > 0 && f[0] != 'L' && f[0] != 'F' && f[0] != 'R' {
				fields = append(fields, string(f))
			}
		}
		return fmt.Sprintf("%c{%s}", typ, strings.Join(fields, "|"))
	case 'T':
		return "T{" + strings.Join(columnsOf(body), "|") + "}"
	}
	return fmt.Sprintf("%c{%q}", typ, body)
}

// columnsOf shows a RowDescription but for the tables: their OIDs differ between runs, and rows that are put together from
// several shards come from none.
func columnsOf(body []byte) []string {
	var d pgproto3.RowDescription
	if err := d.Decode(body); err != nil {
		return []string{err.Error()}
	}
	out := make([]string, len(d.Fields))
	for i, f := range d.Fields {
		out[i] = fmt.Sprintf("%s %d %d %d %d", f.Name, f.DataTypeOID, f.DataTypeSize, f.TypeModifier, f.Format)
	}
	return out
}
