package main

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// largeRows of a thousand bytes are the 100 MB result.
const largeRows = 100_000

// meter takes the CPU that a process uses between start and stop, less what it would have used idle.
type meter struct {
	pid     int
	idleCPU float64
	began   time.Time
	before  time.Duration
}

func startMeter(pid int, idleCPU float64) (*meter, error) {
	before, err := cpuOf(pid)
	return &meter{pid, idleCPU, time.Now(), before}, err
}

func (m *meter) stop() (time.Duration, error) {
	after, err := cpuOf(m.pid)
	idle := time.Duration(m.idleCPU * float64(time.Since(m.began)))
	return max(0, after-m.before-idle), err
}

// pgbenchRun is the outcome of one pgbench.
type pgbenchRun struct {
	transactions int
	tps          float64
	latency      time.Duration
	cpu          time.Duration // the proxy's, per transaction
}

var (
	processed = regexp.MustCompile(`number of transactions actually processed: (\d+)`)
	rate      = regexp.MustCompile(`(?m)^tps = ([0-9.]+)`)
	average   = regexp.MustCompile(`latency average = ([0-9.]+) ms`)
)

// pgbench runs select-only transactions; pid is the proxy's, 0 when there is none.
func (b *bed) pgbench(ctx context.Context, d database, pid int, idle float64, mode string, clients, seconds int) (pgbenchRun, error) {
	return b.pgbenchScript(ctx, d, pid, idle, mode, clients, seconds, "")
}

// pgbenchScript runs transactions of a file; "" is select-only.
func (b *bed) pgbenchScript(ctx context.Context, d database, pid int, idle float64, mode string, clients, seconds int, script string) (pgbenchRun, error) {
	work := []string{"-S"}
	if script != "" {
		work = []string{"-f", script}
	}
	cmd := exec.CommandContext(ctx, filepath.Join(b.bin, "pgbench"), append(work, "-n", "-M", mode, "-c", strconv.Itoa(clients),
		"-j", strconv.Itoa(min(clients, 2)), "-T", strconv.Itoa(seconds),
		"-h", d.host, "-p", strconv.Itoa(d.port), "-U", d.user, d.name)...)
	cmd.Env = append(os.Environ(), "PGPASSWORD="+d.password, "PGSSLMODE="+cmp.Or(d.tls, "disable"), "PGSSLROOTCERT=")
	var m *meter
	var err error
	if pid != 0 {
		if m, err = startMeter(pid, idle); err != nil {
			return pgbenchRun{}, err
		}
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return pgbenchRun{}, fmt.Errorf("pgbench -M %s -c %d: %w: %s", mode, clients, err, out)
	}
	var r pgbenchRun
	var cpu time.Duration
	if m != nil {
		if cpu, err = m.stop(); err != nil {
			return r, err
		}
	}
	n, tps, ms := processed.FindSubmatch(out), rate.FindSubmatch(out), average.FindSubmatch(out)
	if n == nil || tps == nil || ms == nil {
		return r, fmt.Errorf("pgbench: no figures in %q", out)
	}
	r.transactions, _ = strconv.Atoi(string(n[1])) // the patterns admit numbers only
	r.tps, _ = strconv.ParseFloat(string(tps[1]), 64)
	latency, _ := strconv.ParseFloat(string(ms[1]), 64)
	r.latency = time.Duration(latency * float64(time.Millisecond))
	if r.transactions == 0 {
		return r, errors.New("pgbench processed no transaction")
	}
	r.cpu = cpu / time.Duration(r.transactions)
	return r, nil
}

// crowd is many connections that do nothing.
type crowd []*pgconn.PgConn

// gather opens connections, a few at a time, until there are n.
func (c crowd) gather(ctx context.Context, d database, n int) (crowd, error) {
	config, err := d.config()
	if err != nil {
		return c, err
	}
	missing := n - len(c)
	opened := make([]*pgconn.PgConn, missing)
	errs := make([]error, missing)
	var next atomic.Int64
	var workers sync.WaitGroup
	for range 16 {
		workers.Go(func() {
			for i := next.Add(1) - 1; i < int64(missing); i = next.Add(1) - 1 {
				opened[i], errs[i] = pgconn.ConnectConfig(ctx, config.Copy())
			}
		})
	}
	workers.Wait()
	for _, conn := range opened {
		if conn != nil {
			c = append(c, conn)
		}
	}
	return c, errors.Join(errs...)
}

// query runs one statement on every connection, one after the other.
func (c crowd) query(ctx context.Context) error {
	for _, conn := range c {
		if _, err := conn.Exec(ctx, "SELECT 1").ReadAll(); err != nil {
			return err
		}
	}
	return nil
}

func (c crowd) leave(ctx context.Context) {
	for _, conn := range c {
		_ = conn.Close(ctx)
	}
}

// large reads the 100 MB result without decoding it and gives the proxy's CPU and the time.
func large(ctx context.Context, t *target) (cpu, took time.Duration, err error) {
	conn, err := t.main.connect(ctx)
	if err != nil {
		return 0, 0, err
	}
	hijacked, err := conn.Hijack()
	if err != nil {
		return 0, 0, err
	}
	defer hijacked.Conn.Close()
	m, err := startMeter(t.pid, t.idleCPU)
	if err != nil {
		return 0, 0, err
	}
	query, err := (&pgproto3.Query{String: "SELECT v FROM bench_large"}).Encode(nil)
	if err != nil {
		return 0, 0, err
	}
	begin := time.Now()
	if _, err := hijacked.Conn.Write(query); err != nil {
		return 0, 0, err
	}
	rows, err := drain(hijacked.Conn)
	took = time.Since(begin)
	if err == nil && rows != largeRows {
		err = fmt.Errorf("got %d rows, want %d", rows, largeRows)
	}
	cpu, cpuErr := m.stop()
	return cpu, took, errors.Join(err, cpuErr)
}

// drain reads messages up to ReadyForQuery, looking at their types and lengths only, and counts rows.
func drain(r io.Reader) (rows int, err error) {
	buf := make([]byte, 256<<10)
	have, skip := 0, 0
	for {
		n, err := r.Read(buf[have:])
		if err != nil {
			return rows, err
		}
		have += n
		at := min(skip, have)
		skip -= at
		for skip == 0 && have-at >= 5 {
			kind, size := buf[at], 1+int(binary.BigEndian.Uint32(buf[at+1:]))
			switch kind {
			case 'D':
				rows++
			case 'E':
				return rows, fmt.Errorf("the server answered an error: %q", buf[at:min(have, at+size)])
			case 'Z':
				return rows, nil
			}
			step := min(size, have-at)
			at, skip = at+step, size-step
		}
		have = copy(buf, buf[at:have])
	}
}

// connects opens and closes connections for a while, in several threads, and gives how many, and the proxy's CPU for one.
func connects(ctx context.Context, e *entrance, idle float64, wait time.Duration) (perSecond float64, cpu time.Duration, err error) {
	config, err := e.database.config()
	if err != nil {
		return 0, 0, err
	}
	m, err := startMeter(e.pid, idle)
	if err != nil {
		return 0, 0, err
	}
	var count atomic.Int64
	var workers sync.WaitGroup
	var failed atomic.Pointer[error]
	begin := time.Now()
	for range 8 {
		workers.Go(func() {
			for time.Since(begin) < wait && failed.Load() == nil {
				conn, err := pgconn.ConnectConfig(ctx, config.Copy())
				if err == nil {
					count.Add(1)
					err = conn.Close(ctx)
				}
				if err != nil {
					failed.Store(&err)
				}
			}
		})
	}
	workers.Wait()
	took := time.Since(begin)
	used, err := m.stop()
	if p := failed.Load(); p != nil {
		err = errors.Join(err, *p)
	}
	if err != nil {
		return 0, 0, err
	}
	n := count.Load()
	return float64(n) / took.Seconds(), used / time.Duration(max(n, 1)), nil
}
