package pooler

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"neki/internal/pgwire"
	"neki/internal/testpg"
)

// caseIdleInTransaction: statements that take long are not idleness; a client that does nothing is.
func caseIdleInTransaction(t *testing.T, b *bothWays) {
	p := b.g.server.Parameters()
	was := p.IdleInTransaction
	p.IdleInTransaction = time.Second
	b.g.server.SetParameters(p)
	defer func() { p.IdleInTransaction = was; b.g.server.SetParameters(p) }()
	a := newWireClient(t, b.g.config(""))
	for i := range 1000 {
		long := "0"
		if i%500 == 0 {
			long = "1.3"
		}
		got := a.ask(4, q("begin"), q("select pg_sleep("+long+")"), q("select 'on' from pg_sleep("+long+")"), q("rollback"))
		if !strings.Contains(got, "on") || !strings.HasSuffix(got, `Z{"I"}`) {
			t.Fatal(got)
		}
	}
	a.ask(1, q("begin"))
	if got := listen(a.conn, 1); !strings.Contains(got, "SFATAL|VFATAL|C25P03") || !strings.HasSuffix(got, "(EOF)") {
		t.Error(got)
	}
}

// caseSlowCopyOut: a client that does not read stalls its server, and costs the gateway no memory.
func caseSlowCopyOut(t *testing.T, b *bothWays) {
	const rows, width = 200_000, 1000
	a := newWireClient(t, b.g.config(""))
	before := heapInUse()
	a.send(q(fmt.Sprintf("copy (select repeat('x', %d) from generate_series(1, %d)) to stdout", width, rows)))
	eventually(t, "the server waits for the client", func() bool {
		return b.g.group.Primary.Text("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'copy (select repeat%' AND wait_event = 'ClientWrite'") == "1"
	})
	if after := heapInUse(); after > before+16<<20 {
		t.Errorf("%d bytes in use, %d before", after, before)
	}
	got := 0
	for {
		_ = a.conn.SetReadDeadline(time.Now().Add(20 * time.Second))
		typ, body, err := readFrame(a.conn)
		if err != nil {
			t.Fatal(err)
		}
		if typ == 'd' && len(body) == width+1 {
			got++
		}
		if typ == 'Z' {
			break
		}
	}
	if got != rows {
		t.Errorf("%d rows of %d", got, rows)
	}
}

func heapInUse() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapInuse
}

func caseManySmallRows(t *testing.T, b *bothWays) {
	const rows = 100_000
	var all bytes.Buffer
	all.Write(q("copy t from stdin"))
	for i := range rows {
		all.Write(data(fmt.Sprintf("%d\n", 100+i)))
	}
	all.Write(copyDone)
	a := newWireClient(t, b.g.config(""))
	if got := a.ask(1, all.Bytes()); !strings.Contains(got, fmt.Sprintf("COPY %d", rows)) {
		t.Error(got)
	}
	if got := a.ask(1, q("select count(*), max(k) from t")); !strings.Contains(got, fmt.Sprint(rows+2)) || !strings.Contains(got, fmt.Sprint(99+rows)) {
		t.Error(got)
	}
	if got := a.ask(1, q("copy t from stdin"), data("1\n"), copyDone); !strings.Contains(got, "C23505") {
		t.Error(got)
	}
}

// caseFailedCopy: a COPY that fails says in which line, and the session's temporary table is still there.
func caseFailedCopy(t *testing.T, b *bothWays) {
	b.ways(t, "a failed copy", func(cfg *pgx.ConnConfig) string {
		c := newWireClient(t, cfg)
		defer c.conn.Close()
		out := []string{c.ask(1, q("create temp table mine (k int); insert into mine values (7)"))}
		out = append(out, c.ask(1, q("copy mine from stdin"), data("8\nx\n"), copyDone))
		out = append(out, c.ask(1, q("select k from mine")), c.ask(1, q("begin")))
		out = append(out, c.ask(1, q("copy mine from stdin"), data("9\t1\n"), copyDone))
		out = append(out, c.ask(1, q("select k from mine")), c.ask(1, q("rollback")), c.ask(1, q("select k from mine")))
		all := strings.Join(out, "\n")
		if !strings.Contains(all, "C22P02") || !strings.Contains(all, "WCOPY mine, line 2") {
			t.Error(all)
		}
		return all
	})
}

// caseLeaveManyTransactions: clients that leave in a transaction, one after the other, leave nothing behind.
func caseLeaveManyTransactions(t *testing.T, b *bothWays) {
	const clients, at = 10_000, 8
	keys, others := superuserKeys(t, b.g), b.g.server.sessions.len()
	before := heapInUse()
	var all sync.WaitGroup
	for range at {
		all.Go(func() {
			for range clients / at {
				if err := leaveInTransaction(b.g.addr, keys); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	eventually(t, "all sessions have ended", func() bool { return b.g.server.sessions.len() <= others })
	eventually(t, "no transaction is left", func() bool {
		return b.g.group.Primary.Text("SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in%'") == "0"
	})
	if after := heapInUse(); after > before+24<<20 {
		t.Errorf("%d bytes in use, %d before", after, before)
	}
	if got := one(t, b.g.connect(""), "SELECT count(*) FROM t"); got != "2" {
		t.Errorf("%s rows", got)
	}
}

func leaveInTransaction(addr string, keys *pgwire.Keys) error {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if _, err := pgwire.Connect(ctx, conn, pgwire.BackendLogin{User: testpg.Superuser, Database: "postgres", Keys: keys}); err != nil {
		return err
	}
	if _, err := conn.Write(cat(q("begin"), q("insert into t values (10)"), msgOf('X'))); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, conn)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return nil
}

// caseMemory has a client make every text another one, lists of every length, and prepared statements without end: what the
// gateway keeps is bounded in bytes. NEKI_LONG=1 sends 100 000 texts and prepares a million times.
func caseMemory(t *testing.T, b *bothWays) {
	texts, statements := 10_000, 10_000
	if os.Getenv("NEKI_LONG") != "" {
		texts, statements = 100_000, 1_000_000
	}
	a := newWireClient(t, b.g.config(""))
	traces := func(i int) []byte {
		return q(fmt.Sprintf("/*trace=%016x-%d*/ select 1", uint64(i)*0x9e3779b97f4a7c15, i))
	}
	lists := func(i int) []byte {
		return q("select 1 where (1, 2) in (" + strings.TrimSuffix(strings.Repeat("(3, 4),", 1+i*3%600), ",") + ")")
	}
	prepared := func(i int) []byte {
		name := fmt.Sprintf("s%d", i%3)
		return cat(parse(name, fmt.Sprintf("select %d as c%d", i, i%5000)), closing('S', name), syncMsg)
	}
	prepare := func(i int) []byte {
		return q(fmt.Sprintf("prepare p as select %d; execute p; deallocate p", i))
	}
	for _, load := range []struct {
		name string
		n    int
		make func(i int) []byte
	}{
		{"traces", texts, traces}, {"lists", 200, lists}, {"prepared", statements, prepared}, {"prepare", 1_000, prepare},
	} {
		a.many(load.n/4, load.make) // caches fill up
		before := heapInUse()
		a.many(load.n, load.make)
		if after := heapInUse(); after > before+24<<20 {
			t.Errorf("%s: %d bytes in use, %d before", load.name, after, before)
		}
	}
}

// many sends n requests, a hundred at a time, each of which is answered by one ReadyForQuery and no error.
func (r *wireClient) many(n int, request func(i int) []byte) {
	r.t.Helper()
	buf := make([]byte, 64<<10)
	for at := 0; at < n; at += 100 {
		var out []byte
		ready := 0
		for i := at; i < min(at+100, n); i++ {
			out = append(out, request(i)...)
			ready++
		}
		r.send(out)
		if err := r.skip(buf, ready); err != nil {
			r.t.Fatal(err)
		}
	}
}

// skip reads answers up to that many ReadyForQuery.
func (r *wireClient) skip(buf []byte, ready int) error {
	_ = r.conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	held := 0
	for ready > 0 {
		n, err := r.conn.Read(buf[held:])
		if err != nil {
			return err
		}
		have := buf[:held+n]
		for len(have) >= 5 {
			size := int(binary.BigEndian.Uint32(have[1:])) + 1
			if len(have) < size {
				break
			}
			switch have[0] {
			case 'E':
				return fmt.Errorf("%s", readable('E', have[5:size]))
			case 'Z':
				ready--
			}
			have = have[size:]
		}
		held = copy(buf, have)
	}
	return nil
}
