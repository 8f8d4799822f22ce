package pooler

import (
	"context"
	"errors"
	"strings"
	"time"

	"neki/catalog"
	"neki/internal/pgerr"
	"neki/pooler/backend"
	"neki/pooler/plan"
	"neki/settings"
)

// shardState is what a session remembers of a shard, for consistency and affinity.
type shardState struct {
	uid     string
	sticky  string      // the replica used last
	floor   catalog.LSN // a replica must have replayed this, under consistency session
	term    int64       // of the floor
	touched bool        // the primary was used since the floor was taken
}

// shardState gives the session's record of a shard.
func (c *Session) shardState(uid string) *shardState {
	for i := range c.shards {
		if c.shards[i].uid == uid {
			return &c.shards[i]
		}
	}
	c.shards = append(c.shards, shardState{uid: uid})
	return &c.shards[len(c.shards)-1]
}

// txState is what the session's transaction means for the choice of an instance.
func (c *Session) txState() plan.TxState {
	switch {
	case c.status == 'T' || c.status == 'E':
		return c.tx.state
	case c.open && c.place.role == catalog.RolePrimary:
		return plan.TxReadWrite
	case c.home != nil && c.homed.role == catalog.RolePrimary:
		return plan.TxPinned
	}
	return plan.TxNone
}

// segmentRole says where the statements of a segment go together. Whether they may run is decided when each is executed.
func (c *Session) segmentRole(parts []plan.Part, end byte) catalog.Role {
	switch c.vars.Neki().Target {
	case settings.TargetReplica:
		return catalog.RoleReplica
	case settings.TargetRdonly:
		return catalog.RoleRdonly
	case settings.TargetAuto:
		if end != 'S' && c.txState() != plan.TxReadOnly {
			return catalog.RolePrimary // what follows may write
		}
		role, err := plan.AccessAll(parts, c.vars.Neki(), c.txState())
		if err == nil && len(parts) > 0 {
			return role
		}
	}
	return catalog.RolePrimary
}

// connection gives the connection for a statement: the one that the transaction or a pin holds, or one leased for it.
// Its settings are the session's when it returns.
func (c *Session) connection(role catalog.Role, shard string, snap *catalog.Snapshot, attempt int) (*backend.ServerConn, error) {
	if snap.ReadOnly && role == catalog.RolePrimary {
		if err := c.mayWrite(shard, snap); err != nil {
			return nil, err
		}
	}
	if c.stx != nil {
		if err := c.enter(role, shard, snap); err != nil {
			return nil, err
		}
	} else if c.lease == nil {
		if err := c.acquireFit(role, shard, snap, attempt); err != nil {
			return nil, err
		}
	} else if shard != "" && c.place.shard != shard {
		have := c.place.shard
		if err := c.leaveParsed(); err != nil {
			return nil, err
		}
		if c.lease != nil {
			return nil, errSecondShard(have, shard)
		}
		if err := c.acquireFit(role, shard, snap, attempt); err != nil {
			return nil, err
		}
	}
	if c.status != 'E' {
		if err := c.fitLease(); err != nil {
			return nil, err
		}
	}
	if c.status == 'T' { // before a cancel can go there
		c.committing.Store(c.allOf(commits))
	}
	if err := c.beginActive(); err != nil {
		return nil, err
	}
	if c.place.role == catalog.RolePrimary {
		c.shardState(c.place.shard).touched = true
	}
	return c.lease, nil
}

// fitLease makes the settings of the connection in use those of the session; one where that fails is dropped.
func (c *Session) fitLease() error {
	if c.lease.Vars() == c.vars {
		return nil
	}
	err := c.lease.Apply(c.vars, c.work.answers)
	if err != nil {
		c.dropLease()
	}
	return err
}

// acquireFit leases a connection to an instance of the role and makes its settings those of the session. One that proves
// to be dead then, because its server was restarted while it rested, is dropped with all that rest beside it and are dead
// too, and another one taken: no statement was sent yet.
func (c *Session) acquireFit(role catalog.Role, shard string, snap *catalog.Snapshot, attempt int) error {
	for tries := 0; ; tries++ {
		if err := c.acquire(role, shard, snap, attempt); err != nil {
			return err
		}
		if c.lease == c.home {
			return nil
		}
		pool := c.pool
		err := c.fitLease()
		if err == nil {
			return nil
		}
		if pgerr.Code(err) != "" && !unreachable(&backend.ConnectError{Err: err}) || tries >= maxStale {
			return err
		}
		pool.DropDead()
	}
}

// maxStale bounds how many dead connections are dropped for one statement.
const maxStale = 8

// acquire leases a connection to an instance of the role.
func (c *Session) acquire(role catalog.Role, shard string, snap *catalog.Snapshot, attempt int) error {
	if shard == "" {
		shard = homeShard(snap)
	}
	if c.home != nil && c.homed.role == role && c.homed.shard == shard {
		if err := c.heldCatchesUp(); err != nil {
			return err
		}
		c.lease, c.place = c.home, c.homed
		return nil
	}
	if role == catalog.RolePrimary {
		return c.acquirePrimary(shard)
	}
	return c.acquireReplica(role, shard, attempt)
}

// stayHome has statements about the state of the connection (FETCH, CLOSE, UNLISTEN, DISCARD) run on the one that the
// session holds, whatever the target: the state is there.
func (c *Session) stayHome(parts []plan.Part) {
	if c.home == nil || c.lease != nil || c.stx != nil || len(parts) == 0 {
		return
	}
	for i := range parts {
		if p := parts[i].Plan; p.Route.Kind != plan.RouteControl || p.Kind.IsTransaction() {
			return
		}
	}
	c.lease, c.place = c.home, c.homed
}

// homeShard gives the shard of statements that name no relation.
func homeShard(snap *catalog.Snapshot) string {
	if s := snap.Authoritative(); s != nil {
		return s.UID
	}
	return ""
}

// unreachable reports whether err says that the instance was not there to answer, as opposed to refusing the login.
func unreachable(err error) bool {
	if errors.Is(err, errNoPrimary) {
		return true
	}
	var ce *backend.ConnectError
	if !errors.As(err, &ce) {
		return false
	}
	// An instance that takes no clients yet, or any more, has no entry for them: its agent wrote the file so.
	if e := pgerr.From(ce.Err); e != nil && e.Code == pgerr.InvalidAuthorizationSpec && strings.HasPrefix(e.Message, "no pg_hba.conf entry") {
		return true
	}
	switch pgerr.Code(ce.Err) {
	case "", pgerr.CannotConnectNow, pgerr.AdminShutdown, pgerr.SQLClientUnableToConnect, pgerr.ConnectionFailure,
		pgerr.ConnectionException, pgerr.ConnectionDoesNotExist:
		return true
	}
	return false
}

// downFor is how long reads avoid an instance that could not be reached.
const downFor = time.Second

// acquireReplica leases a connection to a replica, as the settings of the session choose it.
func (c *Session) acquireReplica(role catalog.Role, shard string, attempt int) error {
	deadline := time.Now().Add(c.vars.Neki().Wait)
	req, err := c.request(role, shard, deadline)
	if err != nil {
		return err
	}
	if attempt > 0 {
		req.Avoid = c.avoid
	}
	for tries := 0; ; tries++ {
		node, err := c.chooseReplica(&req, deadline)
		if err != nil {
			return err
		}
		sc, err := c.leaseFrom(node)
		if err == nil {
			c.shardState(shard).sticky = node.ID
			c.took(sc, place{shard: shard, node: node, role: role})
			sc.Stats().Reads.Add(1)
			return nil
		}
		var ce *backend.ConnectError
		if !errors.As(err, &ce) || tries >= maxReplicaTries {
			return err
		}
		// Another replica may do: this one is down, or still has an old verifier of the role.
		c.srv.pools.Node(node.ID).NoteDown(time.Now().Add(downFor), "connection failed: "+ce.Err.Error())
	}
}

// request makes the Picker's request for the session's next statement on a shard, with the floor of consistency session.
func (c *Session) request(role catalog.Role, shard string, deadline time.Time) (backend.Request, error) {
	st := c.shardState(shard)
	req := backend.Request{Shard: shard, Role: role, Neki: c.vars.Neki(), Lag: c.srv.lag(), Sticky: st.sticky}
	if role != catalog.RolePrimary && req.Neki.Consistency == settings.SessionConsistency {
		if err := c.raiseFloor(st, deadline); err != nil {
			return req, err
		}
		req.Floor = st.floor
	}
	return req, nil
}

// chooseReplica gives the instance that the request is served by, and waits up to the deadline for one that will do.
func (c *Session) chooseReplica(req *backend.Request, deadline time.Time) (*catalog.Node, error) {
	st := c.shardState(req.Shard)
	for {
		cluster := c.srv.cfg.Cluster
		changed := cluster.Changed()
		snap := cluster.Snapshot()
		choice := c.srv.picker.Pick(snap, req)
		switch {
		case choice.Node == nil && (!choice.Wait || time.Until(deadline) <= 0):
			return nil, backend.NoReplicaError(snap.Shard(req.Shard), req, c.srv.picker.Candidates(snap, req))
		case choice.Node == nil:
			if err := c.awaitReplica(*req, snap, changed, deadline); err != nil {
				return nil, err
			}
		case req.Neki.Consistency == settings.SessionConsistency && st.sticky != "" && st.sticky != choice.Node.ID:
			// Another replica may be behind what the last one has shown: everything visible anywhere is below the
			// primary's position now.
			st.touched = true
			st.sticky = ""
			if err := c.raiseFloor(st, deadline); err != nil {
				return nil, err
			}
			req.Floor, req.Sticky = st.floor, ""
		default:
			return choice.Node, nil
		}
	}
}

// maxReplicaTries bounds the replicas tried for one read.
const maxReplicaTries = 8

// aliveFor is how long a client is taken to be there still after its statement has arrived: a shorter wait for a
// connection is no reason to look.
const aliveFor = 20 * time.Millisecond

// leaseFrom leases a connection of the session's role to an instance.
func (c *Session) leaseFrom(n *catalog.Node) (*backend.ServerConn, error) {
	if c.pool == nil || !c.pool.Serves(n) {
		c.pool = c.srv.pools.Pool(n, c.user, c.db.name)
	}
	sc, err := c.pool.Acquire(c.vars, (*waiting)(c), c.begun)
	if err != nil {
		return nil, err
	}
	if c.queued && c.ticket.Waited(c.srv.now()) >= aliveFor && !c.conn.Alive() { // nobody waits for the statement any more
		sc.Release(time.Now())
		return nil, errClientGone
	}
	sc.Stats().NoteUp()
	return sc, nil
}

func (c *Session) took(sc *backend.ServerConn, p place) {
	sc.Stats().Outstanding.Add(1)
	c.lease, c.place = sc, p
	c.translateTypes(sc, p.shard)
	me := uint64(c.slot)<<32 | c.generation&(1<<32-1)
	c.userBefore = sc.UsedBy(me)
	c.usedByOthers = c.userBefore != 0 && c.userBefore != me
	c.drew = c.current != nil && mayDraw(c.current)
	c.leasedShard.Store(&p.node.Shard)
}

// release gives the lease back to its pool, or keeps it as the session's home when something is pinned to it.
func (c *Session) release() {
	sc := c.lease
	c.reports = sc.Params()
	c.lease = nil
	if c.pins != 0 && c.home == nil {
		c.home, c.homed = sc, c.place
		return
	}
	if sc == c.home {
		c.dropUnpinned()
		return
	}
	c.letGo(sc)
}

func (c *Session) letGo(sc *backend.ServerConn) {
	sc.Stats().Outstanding.Add(-1)
	if c.home == nil {
		c.leasedShard.Store(nil)
	}
	if c.lease == nil {
		c.place = place{} // an idle session must not hold an old Snapshot's memory
	}
	sc.Hear(nil)
	if !c.drew && c.usedByOthers { // what is left of sequences is still another's
		sc.UsedBy(c.userBefore)
	}
	if sc.Untidy() {
		sc.Tidy(c.lend().answers)
	}
	sc.Release(c.now)
}

// dropLease gives up a connection that can't be used any more.
func (c *Session) dropLease() {
	sc := c.lease
	if sc == nil {
		return
	}
	c.endActive()
	c.releaseClaim()
	sc.Broken()
	c.lease = nil
	if c.stx != nil {
		c.stx.forgetMember(sc)
		if c.status == 'T' {
			c.status = 'E'
		}
	}
	if c.home == sc {
		c.home, c.pins = nil, 0
	}
	c.letGo(sc)
}

// releaseIfFree gives the lease back when nothing of the client is left in it.
func (c *Session) releaseIfFree() {
	if c.lease == nil || c.status != 'I' || c.open || c.phase == phaseCopying || c.work.relay.Pending() {
		return
	}
	if c.handsOver {
		c.handOver()
	}
	c.release()
}

// retryable reports whether a statement on an instance of the role may run again elsewhere: a read outside of a
// transaction whose connection holds nothing of the client.
func (c *Session) retryable(role catalog.Role, attempt int) bool {
	return attempt < maxAttempts && role != catalog.RolePrimary && c.status == 'I' && !c.open && c.home == nil
}

// maxAttempts bounds how often a statement is run: on a replica, on another, and on the primary when it proves to write.
const maxAttempts = 2

// allowRetry lets the relay hold an error back that calls for another instance.
func (c *Session) allowRetry(role catalog.Role, attempt int) {
	r := c.work.relay
	if len(c.work.sql.preparing) > 0 { // what its connection has then must be noted
		return
	}
	r.Retryable = attempt == 0 && c.retryable(role, attempt)
	r.Misrouted = c.retryable(role, attempt) && c.vars.Neki().Target == settings.TargetAuto ||
		role == catalog.RolePrimary && (c.status == 'I' && !c.open && c.home == nil && c.stx == nil ||
			c.status == 'T' && c.lease.Params() != c.lease.Greeting() && c.resigns()) // begun on a primary that hands over
}

// tryAgain reports whether the statement is to be run on another instance, of the role that it sets. The lease is gone
// then.
func (c *Session) tryAgain(err error, role *catalog.Role, attempt int) bool {
	if *role == catalog.RolePrimary {
		return c.primaryAgain(err)
	}
	if !c.retryable(*role, attempt) {
		return false
	}
	r := c.work.relay
	if !r.Retry && (err == nil || clientError(err) != nil || r.Sent > 0) {
		return false
	}
	c.avoid = c.place.node.ID
	if err != nil {
		c.lease.Stats().NoteDown(time.Now().Add(downFor), "connection lost")
		c.dropLease()
	} else {
		c.putBack()
	}
	if r.Wrote {
		*role = catalog.RolePrimary
		for i := range c.work.parts {
			c.work.parts[i].Plan.Disprove()
		}
	}
	c.failed = false
	return true
}

// putBack gives back the connection of a statement that is to be run elsewhere; it is whole.
func (c *Session) putBack() {
	r := c.work.relay
	for _, p := range c.parsing { // skipped after the error
		if p.index >= r.Failed && !p.known {
			c.lease.Forget(p.statement.shared)
		}
	}
	c.lease.SetStatus(r.Status)
	c.endActive()
	c.release()
}

// clientError gives err when it is the client that is gone, not the server.
func clientError(err error) error {
	if gone := (*backend.ClientError)(nil); errors.As(err, &gone) {
		return err
	}
	return nil
}

// giveBack leaves everything that the session holds as if it had never been there.
func (c *Session) giveBack() {
	c.leaveSpreads()
	if c.lease == nil && c.home == nil && c.stx == nil {
		return
	}
	if c.srv.ending.Load() { // servers undo what is left when its connection is closed
		c.leaveSplit(false)
		c.endActive()
		c.breakAll()
		return
	}
	w := c.lend()
	c.leaveSplit(true)
	ctx, cancel := context.WithTimeout(context.Background(), giveBackLimit) //nolint:forbidigo // the client's end bounds it
	defer cancel()
	c.endActive()
	if sc := c.lease; sc != nil {
		if w.relay.Pending() || c.phase == phaseCopying || c.open {
			if err := sc.Drain(ctx, w.relay, w.answers); err != nil {
				sc.Broken()
			}
		}
		if sc != c.home && c.stx == nil {
			c.clean(sc, false)
		}
		c.lease = nil
	}
	c.leaveShards()
	if sc := c.home; sc != nil {
		c.clean(sc, true)
		c.home = nil
	}
}

// cleanBounded takes what is left of the client out of a connection, within giveBackLimit; one where that fails is broken.
func (c *Session) cleanBounded(sc *backend.ServerConn, dirty bool) {
	if !dirty && sc.Status() == 'I' {
		return
	}
	sc.Bound(time.Now().Add(giveBackLimit))
	_ = sc.Clean(dirty, c.srv.interner.Empty(), c.lend().answers) // marks it broken when it fails
	sc.Bound(time.Time{})
}

// breakAll gives all connections up.
func (c *Session) breakAll() {
	home := c.home
	if home == c.lease {
		home = nil
	}
	c.dropLease()
	if home != nil {
		home.Broken()
		c.home = nil
		c.letGo(home)
	}
}

// giveBackLimit bounds the clearing up after a client.
const giveBackLimit = 10 * time.Second

func (c *Session) clean(sc *backend.ServerConn, dirty bool) {
	if c.tx.open() {
		sc.SetVars(c.tx.base)
	}
	if dirty && c.pins&plan.PinLoad != 0 { // nothing takes a library away
		sc.Broken()
	} else {
		c.cleanBounded(sc, dirty)
	}
	c.letGo(sc)
}
