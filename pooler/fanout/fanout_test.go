package fanout

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"neki/catalog"
	"neki/exec"
	"neki/internal/datum"
	"neki/internal/pgerr"
	"neki/internal/testpg"
	"neki/pooler/backend"
	"neki/settings"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patient is a session that waits as long as it takes.
type patient struct{ ticket *backend.Ticket }

func (p patient) Ticket() *backend.Ticket { return p.ticket }
func (patient) Queued() error             { return nil }
func (patient) InterruptCause() error     { return nil }
func (patient) Waiting(int, bool)         {}

// connect leases n connections to one server.
func connect(t *testing.T, n int) []*backend.ServerConn {
	t.Helper()
	server := testpg.Start(t, testpg.HBA("host all all 127.0.0.1/32 trust"))
	params := settings.DefaultParameters()
	interner := settings.NewInterner(1 << 20)
	pools := backend.NewPools(backend.Config{
		Parameters: func() *settings.Parameters { return &params }, Defaults: interner.Empty(), Log: slog.New(slog.DiscardHandler),
	})
	t.Cleanup(pools.Close)
	node := &catalog.Node{ID: "n1", Host: server.Host(), Port: server.Port()}
	var out []*backend.ServerConn
	for range n {
		sc, err := pools.Pool(node, testpg.Superuser, "postgres").Acquire(interner.Empty(), patient{backend.NewTicket()}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { sc.Release(time.Now()) })
		out = append(out, sc)
	}
	return out
}

func queries(conns []*backend.ServerConn, sql ...string) []Request {
	reqs := make([]Request, len(conns))
	for i, sc := range conns {
		reqs[i] = Request{Conn: sc, Out: backend.AppendQuery(nil, sql[i%len(sql)])}
	}
	return reqs
}

// rowsOf reads a node to its end.
func rowsOf(ctx context.Context, n exec.Node) ([]string, error) {
	var out []string
	for {
		b, err := n.Next(ctx)
		if err == io.EOF {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		for i := range b.Len() {
			text := ""
			for _, d := range b.Row(i) {
				data, _, _ := d.Wire()
				text += string(data) + " "
			}
			out = append(out, text)
		}
	}
}

func TestMergeKeepsTheOrder(t *testing.T) {
	conns := connect(t, 3)
	legs := Start(queries(conns,
		"SELECT g, 'a' FROM generate_series(1, 10, 3) g UNION ALL SELECT NULL, 'a'",
		"SELECT g, 'b' FROM generate_series(2, 10, 3) g",
		"SELECT g, 'c' FROM generate_series(1, 10, 9) g"), false)
	key := []Key{{Column: 0, OID: datum.Int4OID}}
	got, err := rowsOf(t.Context(), Merge(legs, 2, nil, key, &datum.Session{}, nil))
	if err != nil {
		t.Fatal(err)
	}
	legs.Close()
	want := []string{"1 a ", "1 c ", "2 b ", "4 a ", "5 b ", "7 a ", "8 b ", "10 a ", "10 c ", " a "}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// rawRowsOf reads a RawMerge to its end.
func rawRowsOf(t *testing.T, m *RawMerge, width int, format Format) []string {
	t.Helper()
	var out []string
	for {
		rows, n, err := m.Next(t.Context())
		if err == io.EOF {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		for ; n > 0; n-- {
			size := int(binary.BigEndian.Uint32(rows[1:])) + 1
			if got := int(binary.BigEndian.Uint16(rows[5:])); got != width {
				t.Fatalf("a row has %d columns, want %d", got, width)
			}
			cells := make([]datum.Datum, width)
			if err := (&decoder{width: width, binary: format}).row(rows[:size], cells); err != nil {
				t.Fatal(err)
			}
			text := ""
			for _, d := range cells {
				data, _, _ := d.Wire()
				text += string(data) + " "
			}
			out = append(out, text)
			rows = rows[size:]
		}
		if len(rows) > 0 {
			t.Fatalf("%d bytes behind the last row", len(rows))
		}
	}
}

// TestRawMergeKeepsTheOrder: by keys of each kind, rows come in the order that Postgres gives them in, and so do those of
// more legs than a round of the tournament has.
func TestRawMergeKeepsTheOrder(t *testing.T) {
	conns := connect(t, 5)
	for _, test := range []struct {
		name, order string
		keys        []Key
	}{
		{"int", "a, d, b", []Key{{Column: 0, OID: datum.Int8OID}, {Column: 3, OID: datum.NumericOID}, {Column: 1, OID: datum.TextOID}}},
		{"descending", "a DESC, d, b", []Key{{Column: 0, OID: datum.Int8OID, Desc: true, NullsFirst: true}, {Column: 3, OID: datum.NumericOID}, {Column: 1, OID: datum.TextOID}}},
		{"nulls first", "a NULLS FIRST, d DESC NULLS LAST, b", []Key{
			{Column: 0, OID: datum.Int8OID, NullsFirst: true}, {Column: 3, OID: datum.NumericOID, Desc: true}, {Column: 1, OID: datum.TextOID},
		}},
		{"text", "b, a, d", []Key{{Column: 1, OID: datum.TextOID}, {Column: 0, OID: datum.Int8OID}, {Column: 3, OID: datum.NumericOID}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			const columns = `SELECT a, b, c, d FROM (SELECT CASE WHEN g % 7 > 0 THEN (g * 7919 % 41 - 20)::int8 * 400000000000000000 END a,
 (chr(97 + g % 11) || repeat('x', g % 300)) COLLATE "C" b, repeat('c', g % 50) c, g / 8.0 d, g FROM generate_series(1, 2000) g) x`
			var sql []string
			for i := range conns {
				sql = append(sql, fmt.Sprintf("%s WHERE g %% 5 = %d ORDER BY %s", columns, i, test.order))
			}
			legs := Start(queries(conns, sql...), false)
			got := rawRowsOf(t, MergeRaw(legs, 4, 3, nil, test.keys, &datum.Session{}, nil), 3, nil)
			legs.Close()
			whole := Start(queries(conns[:1], columns+" ORDER BY "+test.order), false)
			want := rawRowsOf(t, MergeRaw(whole, 4, 3, nil, nil, &datum.Session{}, nil), 3, nil)
			whole.Close()
			if d := cmp.Diff(want, got); d != "" || len(got) != 2000 {
				t.Errorf("%d rows: %s", len(got), d)
			}
		})
	}
}

func TestRawIntegers(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "-1": -1, "9223372036854775807": 1<<63 - 1, "-9223372036854775808": -1 << 63, "4294967295": 1<<32 - 1} {
		if n, ok := textInt([]byte(text)); !ok || n != want {
			t.Errorf("%q: %d, %v", text, n, ok)
		}
	}
	for _, text := range []string{"", "-", "1.5", "12345678901234567890", "x"} {
		if n, ok := textInt([]byte(text)); ok {
			t.Errorf("%q is taken for %d", text, n)
		}
	}
	for _, test := range []struct {
		oid  uint32
		cell []byte
		want int64
	}{
		{datum.Int2OID, []byte{255, 254}, -2},
		{datum.Int4OID, []byte{255, 255, 255, 255}, -1},
		{datum.OIDOID, []byte{255, 255, 255, 255}, 1<<32 - 1},
		{datum.Int8OID, []byte{128, 0, 0, 0, 0, 0, 0, 0}, -1 << 63},
	} {
		if n, ok := rawInt(test.oid, test.cell, true); !ok || n != test.want {
			t.Errorf("%d %v: %d, %v", test.oid, test.cell, n, ok)
		}
	}
	if _, ok := rawInt(datum.Int8OID, []byte{1}, true); ok {
		t.Error("an int8 of one byte")
	}
}

// TestReadersPace: a leg is only a few pieces ahead of its reader, however much its server has to say; closed early, the
// connection can be used again.
func TestReadersPace(t *testing.T) {
	conns := connect(t, 2)
	legs := Start(queries(conns, "SELECT repeat('x', 1000) FROM generate_series(1, 1000000)"), false)
	n := Merge(legs, 1, nil, nil, &datum.Session{}, nil)
	if _, err := n.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	for i, sc := range conns {
		if sc.Unfit() || sc.Status() != 'I' {
			t.Errorf("connection %d is unfit %v, status %c", i, sc.Unfit(), sc.Status())
		}
		rows, err := sc.Exec("SELECT 'still here'", make([]byte, 1024))
		if err != nil || fmt.Sprint(rows) != "[[still here]]" {
			t.Errorf("connection %d: %v, %v", i, rows, err)
		}
	}
}

func TestFirstErrorIsGiven(t *testing.T) {
	conns := connect(t, 2)
	legs := Start(queries(conns, "SELECT pg_sleep(60)", "SELECT 1/0"), true)
	begun := time.Now()
	_, err := rowsOf(t.Context(), Concat(legs, 1, nil, nil))
	if pgerr.Code(err) != pgerr.DivisionByZero {
		t.Errorf("got %v", err)
	}
	legs.Close()
	if d := time.Since(begun); d > 30*time.Second {
		t.Errorf("the other leg was not cancelled: %v", d)
	}
	if conns[0].Unfit() {
		t.Error("the cancelled connection is unfit")
	}
}

func TestLostConnection(t *testing.T) {
	conns := connect(t, 2)
	legs := Start(queries(conns, "SELECT 1", "SELECT pg_terminate_backend(pg_backend_pid())"), true)
	defer legs.Close()
	for {
		p, err := legs.Next(t.Context())
		if err != nil {
			t.Fatalf("no failure: %v", err)
		}
		if p.Kind == Failed {
			if p.Leg != 1 {
				t.Errorf("leg %d failed: %v", p.Leg, p.Err)
			}
			return
		}
	}
}

// TestLongRow: a row that comes in thousands of reads costs no more than its length.
func TestLongRow(t *testing.T) {
	conns := connect(t, 1)
	legs := Start(queries(conns, "SELECT repeat('x', 20000000)"), true)
	defer legs.Close()
	for {
		p, err := legs.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if p.Kind == Rows {
			if n := binary.BigEndian.Uint32(p.Data[7:]); n != 20000000 {
				t.Errorf("%d bytes", n)
			}
			return
		}
	}
}

// TestInOrder: a leg is not begun when the one before it has failed.
func TestInOrder(t *testing.T) {
	conns := connect(t, 3)
	if _, err := conns[0].Exec("CREATE TABLE ran (leg int)", make([]byte, 1024)); err != nil {
		t.Fatal(err)
	}
	legs := StartInOrder(queries(conns, "INSERT INTO ran VALUES (1)", "SELECT 1/0", "INSERT INTO ran VALUES (3)"))
	_, err := rowsOf(t.Context(), Concat(legs, 1, nil, nil))
	if pgerr.Code(err) != pgerr.DivisionByZero {
		t.Errorf("got %v", err)
	}
	legs.Close()
	rows, err := conns[2].Exec("SELECT leg FROM ran", make([]byte, 1024))
	if err != nil || fmt.Sprint(rows) != "[[1]]" {
		t.Errorf("ran: %v, %v", rows, err)
	}
}
