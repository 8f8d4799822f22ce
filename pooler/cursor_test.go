package pooler

import (
	"encoding/binary"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"neki/internal/pgerr"
)

// TestCursorsOverShards: DECLARE, FETCH, MOVE and CLOSE of rows that lie on several shards, message by message as Postgres.
func TestCursorsOverShards(t *testing.T) {
	s := startTwoShards(t, gatewayOptions{})
	const declare = "DECLARE c CURSOR FOR SELECT k, v FROM t ORDER BY k"
	one := func(sql string) step { return step{q(sql), 1} }
	fetchBy := func(sql string, format int) []byte {
		return cat(parse("", sql), msgOf('B', "", "", 0, 0, 1, format), describe('P', ""), execute("", 0), syncMsg)
	}
	setup := "DELETE FROM t; INSERT INTO t (k, v) VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, 'd'), (5, 'e'), (6, 'f')"
	s.compareOverShards(t, setup, []sequence{
		{"forward", []step{
			one("BEGIN"), one(declare), one("FETCH c"), one("FETCH 2 FROM c"), one("FETCH FORWARD 1 IN c"), one("FETCH ALL FROM c"), one("FETCH c"),
			one("CLOSE c"), one("FETCH c"), one("ROLLBACK"),
		}},
		{"move", []step{one("BEGIN"), one(declare), one("MOVE 2 FROM c"), one("FETCH RELATIVE 2 FROM c"), one("MOVE ALL IN c"), one("COMMIT")}},
		{"changes in between are not seen", []step{
			one("BEGIN"), one(declare), one("INSERT INTO t (k, v) VALUES (7, 'g'), (8, 'h')"), one("FETCH 3 FROM c"), one("UPDATE t SET v = 'x'"),
			one("FETCH ALL FROM c"), one("COMMIT"), one("SELECT k, v FROM t ORDER BY k"),
		}},
		{"two at once", []step{
			one("BEGIN; " + declare + "; DECLARE d CURSOR FOR SELECT k FROM t ORDER BY k DESC"), one("FETCH 2 FROM c"), one("FETCH 2 FROM d"),
			one("FETCH 2 FROM c"), one("FETCH 2 FROM d"), one("CLOSE ALL"), one("FETCH d"), one("ROLLBACK"),
		}},
		{"scroll", []step{
			one("BEGIN"), one("DECLARE c SCROLL CURSOR FOR SELECT k FROM t ORDER BY k"), one("FETCH LAST FROM c"), one("FETCH PRIOR FROM c"),
			one("FETCH BACKWARD 2 FROM c"), one("FETCH FIRST FROM c"), one("FETCH ABSOLUTE 3 FROM c"), one("FETCH RELATIVE -1 FROM c"),
			one("FETCH 0 FROM c"), one("FETCH ABSOLUTE -2 FROM c"), one("FETCH ALL FROM c"), one("FETCH BACKWARD ALL FROM c"), one("FETCH BACKWARD 1 FROM c"),
			one("MOVE FORWARD 2 FROM c"), one("FETCH -1 FROM c"), one("MOVE ABSOLUTE 0 FROM c"), one("FETCH 1 FROM c"), one("FETCH 3 FROM c"),
			one("FETCH 9 FROM c"), one("FETCH PRIOR FROM c"), one("COMMIT"),
		}},
		{"no way back", []step{
			one("BEGIN"), one("DECLARE c NO SCROLL CURSOR FOR SELECT k FROM t ORDER BY k"), one("FETCH 2 FROM c"), one("FETCH PRIOR FROM c"), one("ROLLBACK"),
		}},
		{"with hold", []step{
			one("BEGIN"), one("DECLARE c CURSOR WITH HOLD FOR SELECT k FROM t ORDER BY k"), one("FETCH 2 FROM c"), one("COMMIT"), one("DELETE FROM t"),
			one("FETCH 2 FROM c"), one("CLOSE c"), one("CLOSE c"),
		}},
		{"with hold outside of a transaction", []step{
			one("DECLARE c CURSOR WITH HOLD FOR SELECT k FROM t ORDER BY k"), one("FETCH 2 FROM c"), one("BEGIN; ROLLBACK"), one("FETCH 1 FROM c"),
			one("DISCARD ALL"), one("FETCH 1 FROM c"),
		}},
		{"with hold, rolled back", []step{
			one("BEGIN"), one("DECLARE c CURSOR WITH HOLD FOR SELECT k FROM t ORDER BY k"), one("ROLLBACK"), one("FETCH 1 FROM c"),
		}},
		{"outside of a transaction", []step{one(declare), one("SELECT 1")}},
		{"twice", []step{one("BEGIN"), one(declare), one(declare), one("ROLLBACK")}},
		{"the name of another", []step{one("BEGIN"), one(declare), one("DECLARE c CURSOR FOR SELECT 1"), one("ROLLBACK")}},
		{"savepoints", []step{
			one("BEGIN"), one(declare), one("SAVEPOINT s"), one("DECLARE d CURSOR FOR SELECT k FROM t ORDER BY k"), one("FETCH 1 FROM d"), one("FETCH 1 FROM c"),
			one("ROLLBACK TO s"), one("FETCH 1 FROM c"), one("FETCH 1 FROM d"), one("ROLLBACK"),
		}},
		{"a failed transaction", []step{
			one("BEGIN"), one(declare), one("FETCH 1 FROM c"), one("SAVEPOINT s"), one("SELECT 1/0"), one("FETCH 1 FROM c"), one("ROLLBACK TO s"), one("FETCH 1 FROM c"),
			one("COMMIT"), one("FETCH 1 FROM c"),
		}},
		{"commit with rows left", []step{
			one("BEGIN"), one("UPDATE t SET v = 'x' WHERE k < 3"), one(declare), one("FETCH 1 FROM c"), one("COMMIT"), one("SELECT k, v FROM t ORDER BY k"),
		}},
		{"close with rows left", []step{
			one("BEGIN"), one("UPDATE t SET v = 'x' WHERE k < 3"), one(declare), one("FETCH 1 FROM c"), one("CLOSE c"), one("COMMIT"), one("SELECT k, v FROM t ORDER BY k"),
		}},
		{"by the engine", []step{
			one("BEGIN"), one("DECLARE c CURSOR FOR SELECT v, count(*) FROM t GROUP BY v ORDER BY count(*), min(k)"), one("FETCH 2 FROM c"), one("FETCH ALL FROM c"), one("COMMIT"),
		}},
		{"of one shard", []step{one("BEGIN"), one("DECLARE c CURSOR FOR SELECT v FROM t WHERE k = 2"), one("FETCH ALL FROM c"), one("COMMIT")}},
		{"binary", []step{
			one("BEGIN"), one("DECLARE c BINARY CURSOR FOR SELECT k, v FROM t ORDER BY k"), one("FETCH 1 FROM c"), {fetchBy("FETCH 1 FROM c", 0), 1}, one("COMMIT"),
		}},
		{"extended", []step{
			one("BEGIN"),
			{cat(parse("", "DECLARE c CURSOR FOR SELECT k FROM t WHERE k > $1 ORDER BY k"), bindTo("", "", "2"), describe('P', ""), execute("", 0), syncMsg), 1},
			{cat(parse("f", "FETCH 2 FROM c"), describe('S', "f"), syncMsg), 1},
			{cat(bindTo("", "f"), execute("", 0), syncMsg), 1},
			{fetchBy("FETCH 1 FROM c", 1), 1},
			{fetchBy("MOVE 1 FROM c", 1), 1},
			{fetchBy("CLOSE c", 0), 1},
			one("COMMIT"),
		}},
		{"extended, a row limit of FETCH", []step{
			one("BEGIN"), one(declare), {cat(parse("", "FETCH ALL FROM c"), bindTo("", ""), execute("", 4), execute("", 4), syncMsg), 1}, one("COMMIT"),
		}},
		{"an error on the way", []step{
			one("BEGIN"), one("DECLARE c CURSOR FOR SELECT 1 / (k - 100) FROM t ORDER BY k"), one("FETCH 1 FROM c"), one("COMMIT"),
		}},
	})
	conn := s.connect("")
	simple(t, conn, "BEGIN")
	simple(t, conn, "DECLARE c CURSOR FOR SELECT '(1,1)'::point FROM t")
	r := conn.PgConn().ExecParams(t.Context(), "FETCH c", nil, nil, nil, []int16{1}).Read()
	if pgerr.Code(r.Err) != pgerr.NotImplemented || !strings.Contains(r.Err.Error(), "[120]") {
		t.Errorf("a point in binary: %v", r.Err)
	}
	simple(t, conn, "ROLLBACK")
}

// TestCursorOverManyRows streams: what is not asked for stays on the shards.
func TestCursorOverManyRows(t *testing.T) {
	s := startTwoShards(t, gatewayOptions{})
	conn := s.connect("")
	var data strings.Builder
	for i := range 20000 {
		fmt.Fprintf(&data, "%d\tsome text\n", i)
	}
	if got := copiedIn(conn, "COPY t (k, v) FROM STDIN", strings.NewReader(data.String())); got != "COPY 20000" {
		t.Fatal(got)
	}
	simple(t, conn, "BEGIN")
	simple(t, conn, "DECLARE c CURSOR FOR SELECT k FROM t")
	seen := 0
	for {
		rows := simple(t, conn, "FETCH 1700 FROM c")
		if seen += len(rows); len(rows) == 0 {
			break
		}
	}
	if seen != 20000 {
		t.Errorf("%d rows", seen)
	}
	simple(t, conn, "COMMIT")
	if _, err := trySimple(conn, "FETCH c"); pgerr.Code(err) != pgerr.InvalidCursorName {
		t.Errorf("behind the transaction: %v", err)
	}
}

// TestClientGoneWithCursor: a client that leaves while rows of several shards are still to come, of a cursor in a transaction
// or of a portal outside of one, leaves no connection in use and no goroutine.
func TestClientGoneWithCursor(t *testing.T) {
	s := startTwoShards(t, gatewayOptions{parameters: poolOf(1)})
	conn := s.connect("")
	var data strings.Builder
	for i := range 20000 {
		fmt.Fprintf(&data, "%d\tsome text that takes a while\n", i)
	}
	if got := copiedIn(conn, "COPY t (k, v) FROM STDIN", strings.NewReader(data.String())); got != "COPY 20000" {
		t.Fatal(got)
	}
	_ = conn.Close(t.Context())
	portal := cat(parse("", "SELECT t.k, t.v, r.n FROM t CROSS JOIN (VALUES (1), (2), (3)) r(n)"), bindTo("", ""), execute("", 1))
	declare := q("BEGIN; DECLARE c CURSOR FOR SELECT k, v FROM t; FETCH 1 FROM c")
	for _, leave := range []struct {
		name string
		say  []byte
		end  byte // of the answer
		bye  []byte
	}{
		{"cursor, reset", declare, 'Z', nil},
		{"cursor, terminate", declare, 'Z', msgOf('X')},
		{"portal, reset", cat(portal, msgOf('H')), 's', nil},
		{"portal in a transaction", cat(parse("", "BEGIN"), bindTo("", ""), execute("", 0), portal, msgOf('H')), 's', msgOf('X')},
	} {
		w := newWireClient(t, s.config(""))
		w.send(leave.say)
		w.await(leave.end)
		if leave.bye != nil {
			w.send(leave.bye)
		}
		_ = w.conn.Close()
		eventually(t, leave.name+": its session has ended", func() bool { return s.server.sessions.len() == 0 })
		next := s.connect("")
		if got := one(t, next, "SELECT count(*) FROM t"); got != "20000" {
			t.Errorf("%s: %s rows", leave.name, got)
		}
		_ = next.Close(t.Context())
	}
}

// await reads messages up to one of a type.
func (r *wireClient) await(typ byte) {
	r.t.Helper()
	_ = r.conn.SetReadDeadline(time.Now().Add(time.Minute))
	head := make([]byte, 5)
	for head[0] != typ {
		_, err := io.ReadFull(r.conn, head)
		if err == nil {
			_, err = io.CopyN(io.Discard, r.conn, int64(binary.BigEndian.Uint32(head[1:]))-4)
		}
		if err != nil {
			r.t.Fatalf("before a message of type %q: %v", typ, err)
		}
	}
}
