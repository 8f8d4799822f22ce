package chaos

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"neki/internal/pgerr"
)

// What clients see of a change of the primary. Each of eight does one thing after the other, with a pause of some
// milliseconds: inserts by the simple and the extended protocol, short transactions, reads, and logins.

// seen is what one statement, transaction or login came to.
type seen struct {
	what        string
	began, took time.Duration
	err         error
}

// seers are clients that note all that they see.
type seers struct {
	c     *cluster
	began time.Time
	stop  context.CancelFunc
	all   sync.WaitGroup

	mu   sync.Mutex
	seen []seen
}

func newSeers(c *cluster, clients int) *seers {
	c.t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	s := &seers{c: c, began: time.Now(), stop: stop}
	c.must(10*time.Second, "a table for them", func() error {
		if err := c.call(ctx, "CREATE TABLE IF NOT EXISTS seen (client int, n int, PRIMARY KEY (client, n))"); err != nil {
			return err
		}
		return c.call(ctx, "TRUNCATE seen")
	})
	for i := range clients {
		s.all.Go(func() { s.run(ctx, i) })
	}
	c.t.Cleanup(s.end)
	return s
}

func (s *seers) end() {
	s.stop()
	s.all.Wait()
}

// run does one thing after the other until ctx ends. A connection that breaks is opened again.
func (s *seers) run(ctx context.Context, client int) {
	var conn *pgx.Conn
	for n := 0; ctx.Err() == nil; n++ {
		if conn == nil || conn.IsClosed() {
			s.note(ctx, "login", func(ctx context.Context) (err error) { conn, err = s.c.connect(ctx); return err })
			if conn == nil {
				continue
			}
		}
		insert := func(mode pgx.QueryExecMode) func(context.Context) error {
			return func(ctx context.Context) error {
				_, err := conn.Exec(ctx, "INSERT INTO seen VALUES ($1, $2)", mode, client, n)
				return err
			}
		}
		switch n % 5 {
		case 0:
			s.note(ctx, "simple insert", insert(pgx.QueryExecModeSimpleProtocol))
		case 1:
			s.note(ctx, "prepared insert", insert(pgx.QueryExecModeCacheStatement))
		case 2:
			s.note(ctx, "transaction", func(ctx context.Context) error {
				return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
					_, err := tx.Exec(ctx, "INSERT INTO seen VALUES ($1, $2)", client, n)
					return err
				})
			})
		case 3:
			s.note(ctx, "read", func(ctx context.Context) error {
				return conn.QueryRow(ctx, "SELECT count(*) FROM seen WHERE client = $1", client).Scan(new(int))
			})
		default:
			_ = conn.Close(ctx)
			conn = nil
		}
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Millisecond):
		}
	}
	if conn != nil {
		_ = conn.Close(context.Background())
	}
}

func (s *seers) note(ctx context.Context, what string, do func(context.Context) error) {
	limited, cancel := context.WithTimeout(ctx, failoverLimit)
	defer cancel()
	began := time.Since(s.began)
	err := do(limited)
	if ctx.Err() != nil { // it was ended by the test
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, seen{what, began, time.Since(s.began) - began, err})
}

// take gives what was seen since the last call, once some more has been seen.
func (s *seers) take() []seen {
	s.c.t.Helper()
	count := func() int { s.mu.Lock(); defer s.mu.Unlock(); return len(s.seen) }
	want := count() + 100
	s.c.must(failoverLimit, "more from the clients", func() error {
		if n := count(); n < want {
			return fmt.Errorf("%d of %d", n, want)
		}
		return nil
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.seen
	s.seen = nil
	return taken
}

func slowest(list []seen) time.Duration {
	return slices.MaxFunc(list, func(a, b seen) int { return int(a.took - b.took) }).took
}

// A switchover: no client sees an error, whatever it does meanwhile.
func TestClientsSeeNoSwitchover(t *testing.T) {
	c := oneShard(t)
	s := newSeers(c, 8)
	s.take()
	for range 3 {
		_, term := c.leader(shard)
		c.must(failoverLimit, "switchover", func() error {
			ctx, cancel := context.WithTimeout(context.Background(), failoverLimit)
			defer cancel()
			return c.call(ctx, "CALL neki.switchover('"+shard+"')")
		})
		leader, term := c.laterLeader(shard, term, failoverLimit)
		c.mustBeWhole()
		list := s.take()
		t.Logf("%s leads in term %d: %d things done, the slowest took %v", leader.id, term, len(list), slowest(list))
		for _, one := range list {
			if one.err != nil {
				t.Errorf("%s, begun at %v, took %v: %v", one.what, one.began, one.took, one.err)
			}
		}
	}
}

// The primary's processes are killed: what was under way may fail, in the gateway's words; what clients begin after that
// sees no error. Where only the postmaster is, its children end a moment later.
func TestClientsSeeAKilledPrimary(t *testing.T) {
	long(t)
	c := oneShard(t)
	s := newSeers(c, 8)
	for what, kill := range map[string]func(*node){
		"postmaster": c.killServer,
		"all":        func(n *node) { signalAll(serversIn(n.data()), unix.SIGKILL) },
	} {
		s.take()
		old, term := c.leader(shard)
		pids := serversIn(old.data())
		kill(old)
		c.must(failoverLimit, "end of its processes", func() error {
			for _, pid := range pids {
				if alive(pid, old.data()) {
					return fmt.Errorf("process %d lives", pid)
				}
			}
			return nil
		})
		gone := time.Since(s.began)
		leader, term := c.laterLeader(shard, term, failoverLimit)
		c.mustBeWhole()
		list, failed := s.take(), 0
		for _, one := range list {
			if one.err == nil {
				continue
			}
			failed++
			switch code := pgerr.Code(one.err); {
			case one.began > gone:
				t.Errorf("%s: %s, begun %v after it, took %v: %v", what, one.what, one.began-gone, one.took, one.err)
			case code != pgerr.TransactionResolutionUnknown && code != pgerr.ConnectionFailure:
				t.Errorf("%s: %s, under way: %v", what, one.what, one.err)
			}
		}
		t.Logf("%s: %s leads in term %d: %d things done, %d under way failed, the slowest took %v", what, leader.id, term, len(list), failed, slowest(list))
	}
}

// alive reports whether a process of an instance lives: its working directory is the data's.
func alive(pid int, data string) bool { return slices.Contains(serversIn(data), pid) }
