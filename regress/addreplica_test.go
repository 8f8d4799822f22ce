package regress

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
)

const ciBulkMB = 100

// bulkMB is how much data the shard has to which a replica is added: 1 GB with NEKI_LONG.
func bulkMB() int {
	if os.Getenv("NEKI_LONG") != "" {
		return 1024
	}
	return ciBulkMB
}

// readsBelow is what a server's processes have read by system calls so far, those that have ended counted, too: their parent
// takes over what they read.
func readsBelow(t *testing.T, dir string) int64 {
	t.Helper()
	var sum int64
	pids := postgresBelow(dir)
	if len(pids) == 0 {
		t.Fatalf("no server runs in %s", dir)
	}
	for _, pid := range pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
		if errors.Is(err, os.ErrPermission) {
			t.Skip("may not see what another user's processes read: needs root")
		}
		_, rest, _ := strings.Cut(string(text), "rchar: ") // a process that has just ended has nothing to read
		line, _, _ := strings.Cut(rest, "\n")
		n, _ := strconv.ParseInt(line, 10, 64)
		sum += n
	}
	return sum
}

// load writes through the gateway: single statements, and transactions of two.
type load struct {
	acked, failed atomic.Int64
	firstError    atomic.Pointer[error]
	stop          context.CancelFunc
	done          sync.WaitGroup
}

func startLoad(t *testing.T, c *devCluster) *load {
	t.Helper()
	run(t, login(t, c), "CREATE TABLE written (id bigserial PRIMARY KEY, by int)")
	ctx, stop := context.WithCancel(context.Background())
	l := &load{stop: stop}
	for worker := range 4 {
		conn := login(t, c)
		l.done.Go(func() {
			for ctx.Err() == nil {
				if err := write(conn, worker); err != nil {
					l.failed.Add(1)
					l.firstError.CompareAndSwap(nil, &err)
				} else {
					l.acked.Add(1)
				}
				time.Sleep(20 * time.Millisecond)
			}
		})
	}
	t.Cleanup(l.end)
	return l
}

// write commits one row.
func write(conn *pgx.Conn, worker int) error {
	ctx := context.Background() // the end of the load ends no statement
	if worker%2 == 0 {
		_, err := conn.Exec(ctx, "INSERT INTO written (by) VALUES ($1)", worker)
		return err
	}
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx) //nolint:errcheck // the first error counts
	if _, err := tx.Exec(ctx, "INSERT INTO written (by) VALUES ($1)", worker); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, "UPDATE written SET by = -by WHERE id = currval('written_id_seq')"); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

func (l *load) end() {
	l.stop()
	l.done.Wait()
}

// check ends the load and says what its clients saw.
func (l *load) check(t *testing.T) {
	t.Helper()
	l.end()
	if err := l.firstError.Load(); err != nil {
		t.Errorf("%d statements failed, the first with %v", l.failed.Load(), *err)
	}
	t.Logf("%d commits acknowledged, %d failed", l.acked.Load(), l.failed.Load())
}

// fillShard makes a table of about so many megabytes.
func fillShard(t *testing.T, conn *pgx.Conn, megabytes int) {
	t.Helper()
	run(t, conn, "CREATE TABLE bulk (id bigint PRIMARY KEY, pad text) WITH (autovacuum_enabled = off)")
	const rowsOfOne = 1100 // of 900 bytes and their head
	for mb := 0; mb < megabytes; mb += 50 {
		run(t, conn, "INSERT INTO bulk SELECT i, repeat(md5(i::text), 28) FROM generate_series($1::bigint, $2::bigint) AS i",
			mb*rowsOfOne, min(mb+50, megabytes)*rowsOfOne-1)
	}
}

const endOfLog = "SELECT (pg_current_wal_lsn() - '0/0')::bigint"

// A replica is added (with NEKI_LONG another one is made anew, too) while clients write: none of them sees an error, and what
// the servers read shows that the backup was copied, and neither the primary nor another replica.
func TestAddReplicaUnderLoad(t *testing.T) {
	c := ownCluster(t, "--shards", "1", "--replicas", "2", "--backup-interval", "0")
	conn := login(t, c)
	fillShard(t, conn, bulkMB())
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute) // of 1 GB, on a machine that has other things to do
	defer cancel()
	if _, err := conn.Exec(ctx, "CALL neki.backup('sh1')"); err != nil {
		t.Fatal(err)
	}
	size := mustQuery[int64](t, conn, "SELECT size_bytes FROM neki.backups")
	primary := mustQuery[string](t, conn, "SELECT primary_node FROM neki.shards")
	others := rowsOf(t, conn, "SELECT node FROM neki.replicas ORDER BY node")
	l := startLoad(t, c)
	made := func(node, call string) {
		t.Helper()
		before, lsn := map[string]int64{}, mustQuery[int64](t, conn, endOfLog)
		for _, n := range append(others, primary) {
			if n != node {
				before[n] = readsBelow(t, filepath.Join(c.data, "nodes", n))
			}
		}
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		var id string
		if err := conn.QueryRow(ctx, call).Scan(&id); err != nil {
			t.Fatalf("%s: %v", call, err)
		}
		took, log := time.Since(began), mustQuery[int64](t, conn, endOfLog)-lsn
		step := mustQuery[string](t, conn, "SELECT step FROM neki.operations WHERE id = $1", id)
		if !strings.Contains(step, "restored from backup") {
			t.Errorf("%s: %s", call, step)
		}
		if got := mustQuery[int64](t, conn, "SELECT bytes_done FROM neki.operations WHERE id = $1", id); got < size {
			t.Errorf("%s: %d bytes restored, the backup has %d", call, got, size)
		}
		for n, was := range before {
			read := readsBelow(t, filepath.Join(c.data, "nodes", n)) - was
			t.Logf("%s in %v, of a backup of %d MB: %s read %d MB", call, took.Round(time.Millisecond), size>>20, n, read>>20)
			if most := size/4 + 4*log; read > most { // what was written meanwhile is sent to each, and archived
				t.Errorf("%s read %d MB, more than %d: it was copied", n, read>>20, most>>20)
			}
		}
	}
	made("sh1-d", "CALL neki.add_replica(shard => 'sh1')")
	others = append(others, "sh1-d")
	if bulkMB() > ciBulkMB { // one that left the cohort is taken back after half a minute
		made(others[0], "CALL neki.restore_replica('"+others[0]+"')")
	}
	l.check(t)
	if got := rowsOf(t, conn, "SELECT count(*), min(term), max(term) FROM neki.nodes WHERE state = 'serving'"); !cmp.Equal(got, []string{"4 1 1"}) {
		t.Errorf("instances that serve, and their terms: %q", got)
	}
	rows := mustQuery[int64](t, conn, "SELECT count(*) FROM written")
	if acked := l.acked.Load(); rows != acked {
		t.Errorf("%d commits were acknowledged, %d rows are there", acked, rows)
	}
	for _, node := range others {
		port := mustQuery[int](t, conn, "SELECT port FROM neki.nodes WHERE node = $1", node)
		direct := c.mustConnect(t, "port="+strconv.Itoa(port), "sslmode=prefer")
		waitFor(t, node+" has all rows", func() bool { return mustQuery[int64](t, direct, "SELECT count(*) FROM written") == rows })
		if got := mustQuery[int64](t, direct, "SELECT count(*) FROM bulk WHERE pad = repeat(md5(id::text), 28)"); got != int64(bulkMB()*1100) {
			t.Errorf("%s has %d rows of bulk", node, got)
		}
	}
	waitFor(t, "the data that was replaced is removed", func() bool {
		left, _ := filepath.Glob(filepath.Join(c.data, "nodes", "*", "data.fenced-*"))
		return len(left) == 0
	})
}
