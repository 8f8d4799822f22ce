package pooler

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"neki/catalog"
	"neki/internal/pgerr"
	"neki/pooler/backend"
	"neki/settings"
)

// floors asks instances for their log positions: primaries for what is flushed, replicas for what is replayed. All who
// ask one instance at the same time share a question: one is under way and one waits, whatever the number of sessions.
// An answer counts only for those who asked before it was put, which makes it newer than everything they have seen.
// It is safe for concurrent use; its goroutines end by themselves within controlTimeout.
type floors struct {
	srv *Server

	mu     sync.Mutex
	probes map[string]*probe // by node and kind
	joined sync.WaitGroup
}

// probe is the questions to one instance.
type probe struct {
	running *question
	next    *question
}

type question struct {
	done chan struct{} // closed once lsn and err are set
	lsn  catalog.LSN
	err  error
}

func newFloors(s *Server) *floors { return &floors{srv: s, probes: make(map[string]*probe)} }

func (f *floors) wait() { f.joined.Wait() }

const (
	flushQuery  = `SELECT pg_catalog.pg_current_wal_flush_lsn()::pg_catalog.text`
	replayQuery = `SELECT pg_catalog.pg_last_wal_replay_lsn()::pg_catalog.text`
)

// ask gives the question that answers for all who call now.
func (f *floors) ask(n *catalog.Node, sql string) *question {
	f.mu.Lock()
	defer f.mu.Unlock()
	key := n.ID + "\x00" + sql
	p := f.probes[key]
	if p == nil {
		p = &probe{}
		f.probes[key] = p
	}
	if p.running == nil {
		p.running = &question{done: make(chan struct{})}
		f.joined.Go(func() { f.run(p, n, sql) })
		return p.running
	}
	if p.next == nil {
		p.next = &question{done: make(chan struct{})}
	}
	return p.next
}

// run puts questions to n until nobody waits for one.
func (f *floors) run(p *probe, n *catalog.Node, sql string) {
	f.mu.Lock()
	for p.running != nil {
		q := p.running
		f.mu.Unlock()
		q.lsn, q.err = f.position(n, sql)
		close(q.done)
		f.mu.Lock()
		p.running, p.next = p.next, nil
	}
	f.mu.Unlock()
}

func (f *floors) position(n *catalog.Node, sql string) (lsn catalog.LSN, err error) {
	var text string
	ctx := context.Background() //nolint:forbidigo // queryNode bounds it
	err = f.srv.control.queryNode(ctx, n, "", sql, nil, func(rows pgx.Rows) error { return rows.Scan(&text) })
	if err != nil {
		return 0, err
	}
	return catalog.ParseLSN(text)
}

// raiseFloor makes the session's floor for a shard cover all that it has written to or read from the primary.
func (c *Session) raiseFloor(st *shardState, deadline time.Time) error {
	snap := c.srv.cfg.Cluster.Snapshot()
	shard := snap.Shard(st.uid)
	if shard == nil {
		return errNoPrimary
	}
	if shard.Term != st.term { // positions of an older timeline say nothing on this one
		st.touched = st.touched || st.floor != 0
		st.term = shard.Term
	}
	if !st.touched {
		return nil
	}
	node := snap.Node(shard.Primary)
	if node == nil {
		return noServingPrimary(st.uid, errNoPrimary)
	}
	q := c.srv.floors.ask(node, flushQuery)
	if err := c.await(q, deadline); err != nil {
		return err
	}
	if q.err != nil {
		return pgerr.New(pgerr.NoEligibleReplica, "the primary of shard %q can't say what a replica must have replayed", st.uid).
			WithDetail("%v.", q.err).
			WithHint("SET __neki.replica_consistency = 'eventual' reads without that guarantee.")
	}
	st.floor, st.touched = max(st.floor, q.lsn), false
	return nil
}

// await waits for an answer, at most until the deadline.
func (c *Session) await(q *question, deadline time.Time) error {
	t := time.NewTimer(max(time.Until(deadline), minWait))
	defer t.Stop()
	select {
	case <-q.done:
		return nil
	case <-t.C:
		return pgerr.New(pgerr.NoEligibleReplica, "a log position was not to be had within __neki.replica_wait").
			WithHint("SET __neki.replica_consistency = 'eventual' reads without it.")
	case <-c.interruptChan():
		return c.waitEnded()
	}
}

// minWait is the least time that an answer is waited for: __neki.replica_wait may be 0.
const minWait = 100 * time.Millisecond

// replayPause is how long a replica that is behind rests before it is asked again.
const replayPause = 2 * time.Millisecond

// awaitReplica waits for the replica that would be chosen but for consistency to come nearer to the floor.
func (c *Session) awaitReplica(req backend.Request, snap *catalog.Snapshot, changed <-chan struct{}, deadline time.Time) error {
	floor := req.Floor
	req.Floor, req.Neki.Consistency = 0, settings.Eventual
	node := c.srv.picker.Pick(snap, &req).Node
	if node == nil || floor == 0 { // a lag must shrink: the health reports tell
		return c.pause(changed, min(time.Until(deadline), retryPause))
	}
	q := c.srv.floors.ask(node, replayQuery)
	if err := c.await(q, deadline); err != nil {
		return err
	}
	if q.err != nil {
		c.srv.pools.Node(node.ID).NoteDown(time.Now().Add(downFor), "does not tell its replay position: "+q.err.Error())
		return nil
	}
	c.srv.pools.Node(node.ID).NoteReplayed(q.lsn)
	if q.lsn >= floor {
		return nil
	}
	return c.pause(changed, min(time.Until(deadline), replayPause))
}

// heldCatchesUp waits until the replica that the session holds a connection to has replayed the session's floor, under
// consistency session: another one can't be chosen.
func (c *Session) heldCatchesUp() error {
	neki, node := c.vars.Neki(), c.homed.node
	if c.homed.role == catalog.RolePrimary || neki.Consistency != settings.SessionConsistency {
		return nil
	}
	deadline := time.Now().Add(neki.Wait)
	st := c.shardState(c.homed.shard)
	st.touched = st.touched || st.sticky != "" && st.sticky != node.ID // another may have shown more
	st.sticky = node.ID
	if err := c.raiseFloor(st, deadline); err != nil {
		return err
	}
	for c.srv.pools.Node(node.ID).Replayed() < st.floor {
		changed := c.srv.cfg.Cluster.Changed()
		q := c.srv.floors.ask(node, replayQuery)
		if err := c.await(q, deadline); err != nil {
			return err
		}
		if q.err == nil {
			c.srv.pools.Node(node.ID).NoteReplayed(q.lsn)
		}
		switch left := time.Until(deadline); {
		case q.err == nil && q.lsn >= st.floor:
			return nil
		case left <= 0:
			return c.heldIsBehind(st.floor, q)
		default:
			if err := c.pause(changed, min(left, replayPause)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *Session) heldIsBehind(floor catalog.LSN, q *question) *pgerr.Error {
	detail := "It has replayed up to " + q.lsn.String() + ", the session needs " + floor.String() + "."
	if q.err != nil {
		detail = q.err.Error() + "."
	}
	return pgerr.New(pgerr.NoEligibleReplica, "replica %s is behind what this session has written or read", c.homed.node.ID).
		WithDetail("%s The session holds its connection to it: %s.", detail, strings.Join(c.pins.Reasons(), ", ")).
		WithHint("Raise __neki.replica_wait, or end what holds the connection: DISCARD ALL does.")
}
