package pooler

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"neki/catalog"
	"neki/internal/pgerr"
)

// A deadlock over several shards is none to any server: each sees one half of the circle. The gateway looks at who waits for
// whom on the shards of transactions whose statements have run for a while, and ends the circle like Postgres, with 40P01.
// Only transactions of this gateway are known to be the same on several shards.

// deadlockAfter is how long statements run before it is looked whether they wait in a circle: Postgres's deadlock_timeout.
const deadlockAfter = time.Second

// shardBackend is a transaction's server process on a shard.
type shardBackend struct {
	shard string
	pid   uint32
}

// lockWait says that a server process waits for others of its shard.
type lockWait struct {
	shardBackend
	holders []uint32
}

// waiter is a transaction that may be part of a deadlock over shards.
type waiter struct {
	session  *Session
	begun    int64 // of the statement, as Session.since
	backends []shardBackend
}

// spread reports whether the transaction is on several shards.
func (w *waiter) spread() bool { return len(w.backends) > 1 }

// circleStep is one wait of a deadlock.
type circleStep struct {
	from, to int // of the waiters; -1: a process that is on one shard only
	on, by   shardBackend
}

// publishBackends lets others see on which shards the transaction is, once it is on several.
func (c *Session) publishBackends() {
	if len(c.stx.members) < 2 {
		return
	}
	backends := make([]shardBackend, 0, len(c.stx.members))
	for _, m := range c.stx.members {
		backends = append(backends, shardBackend{m.place.shard, m.sc.PID()})
	}
	c.mu.Lock()
	c.backends = backends
	c.mu.Unlock()
}

// hideBackends takes that back.
func (c *Session) hideBackends() {
	if c.backends == nil { // only this goroutine writes it
		return
	}
	c.mu.Lock()
	c.backends = nil
	c.mu.Unlock()
}

// watchDeadlocks looks for deadlocks until ctx ends.
func (s *Server) watchDeadlocks(ctx context.Context) {
	tick := time.NewTicker(deadlockAfter)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.endDeadlock(ctx)
		}
	}
}

// endDeadlock ends a deadlock over shards, if there is one. The servers are not asked at one moment, so a circle counts only
// if a second look, at the same statements, finds it again: a statement that waits for a transaction can't have gone on in
// between while that one, in the same circle, waited too.
func (s *Server) endDeadlock(ctx context.Context) {
	waiters, circle := s.findDeadlock(ctx)
	if circle == nil {
		return
	}
	again, same := s.findDeadlock(ctx)
	if !sameCircle(waiters, circle, again, same) {
		return
	}
	victim := -1
	for _, step := range same {
		if i := step.from; i >= 0 && again[i].spread() && (victim < 0 || again[i].begun > again[victim].begun) {
			victim = i
		}
	}
	w := &again[victim]
	err := pgerr.New(pgerr.DeadlockDetected, "deadlock detected").
		WithDetail("%s", describeCircle(again, same)).WithHint("Run the transaction again.")
	w.session.deadlock.Store(&deadlockVictim{begun: w.begun, err: err})
	s.log.Info("a deadlock over shards is ended", "pid", w.session.pid, "detail", err.Detail)
	w.session.cancel()
}

// sameCircle reports whether two looks have found the same processes of the same statements.
func sameCircle(waiters []waiter, circle []circleStep, again []waiter, same []circleStep) bool {
	return slices.EqualFunc(circle, same, func(a, b circleStep) bool {
		if a.on != b.on || a.by != b.by || (a.from < 0) != (b.from < 0) {
			return false
		}
		return a.from < 0 || waiters[a.from].session == again[b.from].session && waiters[a.from].begun == again[b.from].begun
	})
}

// deadlockVictim is a session's statement that is being cancelled to end a deadlock.
type deadlockVictim struct {
	begun int64
	err   *pgerr.Error
}

// cancellation gives the error of a statement that was cancelled: by its client, or to end a deadlock.
func (c *Session) cancellation() *pgerr.Error {
	if v := c.deadlock.Swap(nil); v != nil && v.begun == c.since.Load() {
		return v.err
	}
	return errCanceled
}

// findDeadlock gives the transactions over shards that may wait for each other, and a circle of them.
func (s *Server) findDeadlock(ctx context.Context) ([]waiter, []circleStep) {
	waiters := s.lockWaiters(time.Now())
	if len(waiters) < 2 {
		return nil, nil
	}
	shards := make(map[string]bool)
	for i := range waiters {
		for _, b := range waiters[i].backends {
			shards[b.shard] = true
		}
	}
	snap := s.cfg.Cluster.Snapshot()
	var waits []lockWait
	for _, shard := range slices.Sorted(maps.Keys(shards)) {
		of, err := s.lockWaits(ctx, snap, shard)
		if err != nil { // a circle through it can't be told from a wait
			continue
		}
		waits = append(waits, of...)
	}
	return waiters, circleOf(waiters, waits)
}

// lockWaiters gives the transactions on several shards whose statements have run for long enough.
func (s *Server) lockWaiters(now time.Time) (out []waiter) {
	s.sessions.each(func(c *Session) {
		begun := c.since.Load()
		if sessionState(c.state.Load()) != stateActive || now.Sub(time.Unix(0, begun)) < deadlockAfter {
			return
		}
		c.mu.Lock()
		backends := c.backends
		c.mu.Unlock()
		if backends != nil {
			out = append(out, waiter{c, begun, backends})
		}
	})
	return out
}

// maxLockWaits bounds what is looked at on one shard.
const maxLockWaits = 1000

// lockWaits asks a shard who waits for whom.
func (s *Server) lockWaits(ctx context.Context, snap *catalog.Snapshot, shard string) (out []lockWait, err error) {
	query := fmt.Sprintf(`SELECT pid, pg_catalog.pg_blocking_pids(pid) FROM (
		SELECT DISTINCT pid FROM pg_catalog.pg_locks WHERE NOT granted LIMIT %d) AS waiting`, maxLockWaits)
	err = s.control.queryNode(ctx, snap.PrimaryOf(shard), "", query, nil, func(rows pgx.Rows) error {
		var pid int32
		var holders []int32
		if err := rows.Scan(&pid, &holders); err != nil {
			return err
		}
		w := lockWait{shardBackend: shardBackend{shard, uint32(pid)}}
		for _, h := range holders {
			if h > 0 { // not a prepared transaction
				w.holders = append(w.holders, uint32(h))
			}
		}
		out = append(out, w)
		return nil
	})
	return out, err
}

// circleOf finds waits that lead from a transaction over several shards back to it by more than one shard: a circle on one
// shard is its server's to end.
func circleOf(waiters []waiter, waits []lockWait) []circleStep {
	owner := make(map[shardBackend]int)
	for i := range waiters {
		for _, b := range waiters[i].backends {
			owner[b] = i
		}
	}
	holders := make(map[shardBackend][]uint32)
	for _, w := range waits {
		holders[w.shardBackend] = w.holders
	}
	for start := range waiters {
		g := circleSearch{waiters: waiters, owner: owner, holders: holders, start: start, seen: make(map[shardBackend]bool)}
		for _, b := range waiters[start].backends {
			if g.from(b) {
				return g.path
			}
		}
	}
	return nil
}

// circleSearch is a search in depth for a way back to a transaction.
type circleSearch struct {
	waiters []waiter
	owner   map[shardBackend]int
	holders map[shardBackend][]uint32
	start   int
	seen    map[shardBackend]bool
	path    []circleStep
}

// from goes on from a process, and reports whether it came to the start.
func (g *circleSearch) from(b shardBackend) bool {
	if g.seen[b] {
		return false
	}
	g.seen[b] = true
	for _, pid := range g.holders[b] {
		holder := shardBackend{b.shard, pid}
		g.path = append(g.path, circleStep{from: g.waiterOf(b), to: g.waiterOf(holder), on: b, by: holder})
		if g.waiterOf(holder) == g.start && g.shards() > 1 {
			return true
		}
		for _, next := range g.processes(holder) {
			if g.from(next) {
				return true
			}
		}
		g.path = g.path[:len(g.path)-1]
	}
	return false
}

// processes gives those of the transaction that a process is of.
func (g *circleSearch) processes(b shardBackend) []shardBackend {
	if i := g.waiterOf(b); i >= 0 {
		return g.waiters[i].backends
	}
	return []shardBackend{b}
}

func (g *circleSearch) waiterOf(b shardBackend) int {
	if i, ok := g.owner[b]; ok {
		return i
	}
	return -1
}

// shards counts those that the path leads over.
func (g *circleSearch) shards() int {
	on := make(map[string]bool)
	for _, step := range g.path {
		on[step.on.shard] = true
	}
	return len(on)
}

// describeCircle tells of a circle as Postgres does.
func describeCircle(waiters []waiter, circle []circleStep) string {
	name := func(i int, b shardBackend) string {
		if i >= 0 {
			return fmt.Sprintf("process %d", waiters[i].session.pid)
		}
		return fmt.Sprintf("server process %d", b.pid)
	}
	var lines []string
	for _, step := range circle {
		who := name(step.from, step.on)
		lines = append(lines, strings.ToUpper(who[:1])+who[1:]+fmt.Sprintf(" waits on shard \"%s\"; blocked by %s.", step.on.shard, name(step.to, step.by)))
	}
	return strings.Join(lines, "\n")
}
