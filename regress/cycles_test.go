package regress

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// Cycles of TestCycles: as many as CI has time for, or NEKI_CYCLES of them.
const (
	fewCycles     = 400
	cyclesAtOnce  = 8
	heapAllowance = 24 << 20 // bytes held beyond the start's, for what caches and pools may keep
)

// endings are the ways that a client leaves in the middle of something.
var endings = map[string]func(ctx context.Context, conn *pgconn.PgConn) error{
	"terminate": func(ctx context.Context, conn *pgconn.PgConn) error {
		if _, err := conn.ExecParams(ctx, "SELECT count(*) FROM cycles WHERE k = $1", [][]byte{[]byte("1")}, nil, nil, nil).Close(); err != nil {
			return err
		}
		return conn.Close(ctx)
	},
	"reset": func(ctx context.Context, conn *pgconn.PgConn) error {
		if _, err := conn.Exec(ctx, "SELECT 1").ReadAll(); err != nil {
			return err
		}
		return reset(conn)
	},
	"in a result": func(_ context.Context, conn *pgconn.PgConn) error {
		return sendAndReset(conn, 'D', "SELECT i, repeat('x', 500) FROM generate_series(1, 100000) i")
	},
	"in COPY FROM": func(_ context.Context, conn *pgconn.PgConn) error {
		return sendAndReset(conn, 'G', "COPY cycles FROM STDIN")
	},
	"in COPY TO": func(_ context.Context, conn *pgconn.PgConn) error {
		return sendAndReset(conn, 'd', "COPY (SELECT i, repeat('x', 500) FROM generate_series(1, 100000) i) TO STDOUT")
	},
	"in a transaction": func(ctx context.Context, conn *pgconn.PgConn) error {
		if _, err := conn.Exec(ctx, "BEGIN; INSERT INTO cycles VALUES (1); SAVEPOINT s").ReadAll(); err != nil {
			return err
		}
		return reset(conn)
	},
	"pinned": func(ctx context.Context, conn *pgconn.PgConn) error {
		if _, err := conn.Exec(ctx, "CREATE TEMP TABLE mine (k int); LISTEN cycles; SELECT pg_advisory_lock_shared(77)").ReadAll(); err != nil {
			return err
		}
		return reset(conn)
	},
	"cancel": func(ctx context.Context, conn *pgconn.PgConn) error {
		return errors.Join(conn.CancelRequest(ctx), conn.Close(ctx))
	},
}

func reset(conn *pgconn.PgConn) error {
	if tcp, ok := conn.Conn().(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	return conn.Conn().Close()
}

// sendAndReset runs SQL until the first message of the type has come, and goes.
func sendAndReset(conn *pgconn.PgConn, until byte, sql string) error {
	fe := conn.Frontend()
	fe.SendQuery(&pgproto3.Query{String: sql})
	if err := fe.Flush(); err != nil {
		return err
	}
	for {
		m, err := fe.Receive()
		if err != nil {
			return err
		}
		switch m := m.(type) {
		case *pgproto3.ErrorResponse:
			return pgconn.ErrorResponseToPgError(m)
		case *pgproto3.DataRow:
			if until == 'D' {
				return reset(conn)
			}
		case *pgproto3.CopyInResponse:
			return reset(conn)
		case *pgproto3.CopyData:
			return reset(conn)
		}
	}
}

// TestCycles connects, works and leaves in every way, over and over: nothing of it may stay.
func TestCycles(t *testing.T) {
	cycles := fewCycles
	if text := os.Getenv("NEKI_CYCLES"); text != "" {
		var err error
		if cycles, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	c := cluster(t)
	if c.profiles == "" {
		t.Skip("the cluster of NEKI_DEV_ENV does not say where its profiles are")
	}
	control := c.mustConnect(t)
	mustExec(t, control, "DROP TABLE IF EXISTS cycles")
	mustExec(t, control, "CREATE TABLE cycles (k int)")
	runCycles(t, c, min(fewCycles, cycles)/4) // pools and caches fill
	before := settled(t, c, figures{})
	runCycles(t, c, cycles)
	after := settled(t, c, before)
	t.Logf("%d cycles: before %v, after %v", cycles, before, after)
	if after.heap > before.heap+heapAllowance {
		t.Errorf("the heap grew from %.0f to %.0f bytes", before.heap, after.heap)
	}
	if n := mustQuery[int](t, control, "SELECT count(*) FROM cycles"); n != 0 {
		t.Errorf("%d rows of transactions that nobody committed", n)
	}
	if n := mustQuery[int](t, control, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 77"); n != 0 {
		t.Errorf("%d advisory locks are left", n)
	}
	mustExec(t, control, "DROP TABLE cycles")
}

func runCycles(t *testing.T, c *devCluster, cycles int) {
	t.Helper()
	var names []string
	for name := range endings {
		names = append(names, name)
	}
	var next atomic.Int64
	var workers sync.WaitGroup
	for range cyclesAtOnce {
		workers.Go(func() {
			for next.Add(1) <= int64(cycles) && !t.Failed() {
				name := names[rand.IntN(len(names))]
				if err := c.cycle(t.Context(), endings[name]); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
	workers.Wait()
}

func (c *devCluster) cycle(ctx context.Context, ending func(context.Context, *pgconn.PgConn) error) error {
	conn, err := c.connect(ctx, "sslmode=disable")
	if err != nil {
		return err
	}
	defer reset(conn.PgConn())
	if name, want := "neki.cycle", strconv.Itoa(rand.Int()); rand.IntN(2) == 0 {
		if _, err := conn.Exec(ctx, "SELECT set_config($1, $2, false)", name, want); err != nil {
			return err
		}
		var got string
		if err := conn.QueryRow(ctx, "SELECT current_setting($1)", name).Scan(&got); err != nil || got != want {
			return fmt.Errorf("the session's setting is %q, want %q: %w", got, want, err)
		}
	}
	return ending(ctx, conn.PgConn())
}

// figures are what a gateway holds.
type figures struct{ goroutines, clients, active, heap, backends float64 }

// settled waits until no more goroutines, clients and leased connections are there than before, and the pools hold no
// more than their capacity.
func settled(t *testing.T, c *devCluster, before figures) figures {
	t.Helper()
	control := c.mustConnect(t)
	var now figures
	last := -1.0
	waitFor(t, "the gateway holds nothing of those that left", func() bool {
		now = readFigures(t, c)
		now.backends = mustQuery[float64](t, control, "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'")
		calm := now.active == 0 && now.clients <= 4
		if before == (figures{}) {
			calm = calm && now.goroutines == last
			last = now.goroutines
			return calm
		}
		return calm && now.goroutines <= before.goroutines+4 && now.backends <= before.backends+float64(cyclesAtOnce)
	})
	return now
}

// readFigures collects the garbage before it looks: what nobody has collected yet is not held.
func readFigures(t *testing.T, c *devCluster) figures {
	t.Helper()
	collected, err := http.Get(c.profiles + "/heap?gc=1")
	if err != nil {
		t.Fatal(err)
	}
	if err := collected.Body.Close(); err != nil || collected.StatusCode != http.StatusOK {
		t.Fatalf("asking for a collection: %s, %v", collected.Status, err)
	}
	answer, err := http.Get(c.env["NEKI_HTTP"] + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	var f figures
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		name, text, _ := strings.Cut(lines.Text(), " ")
		value, _ := strconv.ParseFloat(text, 64)
		switch {
		case name == "go_goroutines":
			f.goroutines = value
		case name == "neki_gateway_clients":
			f.clients = value
		case name == "go_memstats_heap_alloc_bytes":
			f.heap = value
		case strings.HasPrefix(name, "neki_gateway_pool_active"):
			f.active += value
		}
	}
	return f
}
