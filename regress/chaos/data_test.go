package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"
)

// rewinding gives the pg_rewind that works for a node; 0 when there is none.
func rewinding(n *node) int {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		line, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err != nil || !strings.Contains(string(line), n.dir+"/") {
			continue
		}
		if program, _, _ := strings.Cut(string(line), "\x00"); filepath.Base(program) == "pg_rewind" {
			var pid int
			if _, err := fmt.Sscan(e.Name(), &pid); err == nil {
				return pid
			}
		}
	}
	return 0
}

// H6: pg_rewind is killed while it copies. The half-made data is not started; it is made anew without anybody's help.
func TestH6RewindKilled(t *testing.T) {
	long(t)
	c := oneShard(t)
	c.sample()
	w := insertsOf(c)
	old, term := c.leader(shard)
	c.diverge(old)
	c.loseHost(old)
	next, _ := c.laterLeader(shard, term, failoverLimit)
	c.rejoin(old)
	w.progress(10, failoverLimit)
	c.wal(old, next).slow(30 * time.Millisecond) // so that the copy takes a while
	c.startAgent(old)
	c.must(failoverLimit, "pg_rewind", func() error {
		pid := rewinding(old)
		if pid == 0 {
			return errors.New("it doesn't run")
		}
		return unix.Kill(pid, unix.SIGKILL)
	})
	c.wal(old, next).heal()
	c.mustBeWhole()
	w.progress(10, failoverLimit)
	w.finish()
}

// H6, too: a replica's control file is cut short. It is made anew without anybody's help.
func TestH6ControlFileTruncated(t *testing.T) {
	long(t)
	c := oneShard(t)
	w := insertsOf(c)
	leader, term := c.leader(shard)
	broken := c.others(leader)[0]
	c.loseHost(broken)
	if err := os.Truncate(filepath.Join(broken.data(), "global", "pg_control"), 100); err != nil {
		t.Fatal(err)
	}
	c.startAgent(broken)
	c.mustBeWhole()
	w.progress(10, failoverLimit)
	if _, after := c.leader(shard); after != term {
		t.Errorf("a replica was repaired, and term %d became %d", term, after)
	}
	w.finish()
}

// H15: a primary's disk stands still while commits are under way. Another leads; when the disk moves again, none of those
// commits is acknowledged.
func TestH15StalledInCommit(t *testing.T) {
	long(t)
	c := oneShard(t)
	c.sample()
	w := insertsOf(c)
	old, term := c.leader(shard)
	const sessions = 5
	answers := make(chan error, sessions)
	var open []*direct
	for range sessions {
		open = append(open, c.direct(old))
	}
	c.cutWAL(old)
	for i, d := range open {
		go func() { answers <- d.write(int64(i), failoverLimit) }()
	}
	pause(300 * time.Millisecond) // they wait for an acknowledgement, most of them
	c.freeze(old)
	c.rejoin(old)
	c.laterLeader(shard, term, failoverLimit)
	w.progress(20, failoverLimit)
	c.thaw(old)
	for range sessions {
		if err := <-answers; err == nil {
			t.Error("a commit that was under way was acknowledged after another led")
		}
	}
	w.verify()
	c.mustBeWhole()
	w.finish()
}

// H25: replay stands still on every replica while the log grows, paused on one and held up by a reader on the other. One
// is promoted in bounded time all the same, with everything.
func TestH25ReplayBlocked(t *testing.T) {
	long(t)
	c := oneShard(t)
	c.sample()
	w := insertsOf(c)
	leader, term := c.leader(shard)
	paused, held := c.others(leader)[0], c.others(leader)[1]
	ctx, cancel := context.WithTimeout(t.Context(), 2*failoverLimit)
	defer cancel()
	reader := c.direct(held)
	if _, err := reader.conn.Exec(ctx, "BEGIN; SELECT FROM past"); err != nil {
		t.Fatal(err)
	}
	c.try(paused, "SELECT pg_wal_replay_pause()")
	d := c.direct(leader)
	if _, err := d.conn.Exec(ctx, "TRUNCATE past"); err != nil { // replay of it waits for the reader
		t.Fatal(err)
	}
	w.progress(100, failoverLimit)
	c.loseHost(leader)
	_, term = c.laterLeader(shard, term, failoverLimit)
	t.Logf("term %d, outage %v", term, w.progress(20, failoverLimit))
	w.verify()
	c.startAgent(leader)
	c.mustBeWhole()
	w.finish()
}

// H14: not a byte is free where a primary lives. It is fenced all the same: another leads, and when there is room again it
// comes back.
func TestH14DiskFull(t *testing.T) {
	long(t)
	if os.Geteuid() != 0 {
		t.Skip("mounts a small file system: needs root")
	}
	c := newCluster(t, 1, smallDisks)
	t.Cleanup(func() {
		if t.Failed() {
			c.dump()
		}
		if err := c.end(); err != nil {
			t.Error(err)
		}
	})
	w := insertsOf(c)
	full, term := c.leader(shard)
	filler := filepath.Join(full.dir, "filler")
	fill(t, filler)
	t.Log("full:", full.id)
	ctx, cancel := context.WithTimeout(t.Context(), failoverLimit)
	defer cancel()
	c.must(failoverLimit, "fence of "+full.id, func() error { return c.call(ctx, "CALL neki.fence('"+full.id+"')") })
	next, _ := c.laterLeader(shard, term, failoverLimit)
	if next == full {
		t.Errorf("%s leads on", full.id)
	}
	t.Logf("%s leads, outage %v", next.id, w.progress(20, failoverLimit))
	w.verify()
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	c.must(failoverLimit, "unfence of "+full.id, func() error { return c.call(ctx, "CALL neki.unfence('"+full.id+"')") })
	c.mustBeWhole()
	w.finish()
}

// call runs a statement through the gateway.
func (c *cluster) call(ctx context.Context, text string) error {
	conn, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(ctx) //nolint:errcheck // the statement's error counts
	_, err = conn.Exec(ctx, text)
	return err
}

// diskSize of a node with a small disk: some times what a new instance takes.
const diskSize = "400m"

// smallDisks gives each node a file system of its own.
func smallDisks(n *node) (undo func() error, err error) {
	if err := os.Mkdir(n.dir, 0o755); err != nil {
		return nil, err
	}
	if err := unix.Mount("tmpfs", n.dir, "tmpfs", 0, "mode=0755,size="+diskSize); err != nil {
		return nil, err
	}
	return func() error { return unix.Unmount(n.dir, unix.MNT_DETACH) }, nil
}

// fill takes every byte that is free.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for size := 1 << 20; size > 0; {
		if _, err := f.Write(make([]byte, size)); err == nil {
			continue
		} else if !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
		size /= 2
	}
}

// The checks must find a loss: with commits that wait for nobody, acknowledged rows die with their primary.
func TestLossIsFound(t *testing.T) {
	c := oneShard(t)
	w := newClients(c, 10*time.Millisecond)
	old, term := c.leader(shard)
	d := c.direct(old)
	ctx, cancel := context.WithTimeout(t.Context(), 2*failoverLimit)
	defer cancel()
	if _, err := d.conn.Exec(ctx, "ALTER DATABASE postgres SET synchronous_commit = local"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.must(failoverLimit, "synchronous commits", func() error {
			return c.call(context.Background(), "ALTER DATABASE postgres RESET synchronous_commit")
		})
	})
	dsn := fmt.Sprintf("host=127.0.0.1 port=%d user=%s password=%s dbname=postgres", old.port, superuser, password)
	conn, err := pgx.Connect(ctx, dsn) // past the gateway, whose sessions commit as they should
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx) //nolint:errcheck // the server dies
	c.cutWAL(old)
	for range 10 {
		insert(&session{w: w, conn: conn})
	}
	c.loseHost(old)
	c.laterLeader(shard, term, failoverLimit)
	c.rejoin(old)
	c.must(failoverLimit, "read of all keys", func() error { return w.readAll("the gateway", c.connect) })
	found := map[string]int{}
	for _, v := range w.judgeSet() {
		found[v.Kind]++
	}
	if found["acknowledged and lost"] != 10 || len(found) != 1 {
		t.Errorf("10 of %d rows are lost, found were %v", w.acked, found)
	}
	c.startAgent(old)
	c.mustBeWhole()
}
