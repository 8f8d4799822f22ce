package pooler

import (
	"slices"
	"strings"

	"neki/catalog"
	"neki/internal/pgerr"
	"neki/pooler/backend"
	"neki/pooler/plan"
	"neki/settings"
	"neki/sqlparse"
)

// shardTx is a transaction over shards. Each shard joins when a statement goes to it: by the client's BEGIN, and by what
// has been done since that every shard must know. One of the members is in use at a time; its connection is the
// session's lease.
//
// With one member, transaction statements are relayed to its server like any other; with more, the session runs them on
// all, and with none it answers them itself.
type shardTx struct {
	implicit bool   // begun by the gateway, for one statement, string or segment
	reads    bool   // a string's, of which nothing but reads has run
	atomic   bool   // commits on all shards or on none, whatever __neki.tx_mode says
	begin    string // what begins it on a shard
	log      []txEntry
	members  []*member
	lost     bool              // a member's connection is gone: nothing can be committed
	cursors  map[string]string // shards by the names of cursors
	order    [][2]string       // shards, of which the first is to commit before the second
	opaque   bool              // a setting was changed, for the transaction, in a way that can't be repeated on another shard
}

// member is a shard of the transaction.
type member struct {
	sc     *backend.ServerConn
	place  place
	base   *settings.Vars   // its settings at the transaction's start
	points []*settings.Vars // and at each savepoint
	data   bool             // a statement that reads or writes data went there
	wrote  bool             // one that is not proven a read
}

// txEntry is a statement that a shard must run when it joins.
type txEntry struct {
	savepoint string // of SAVEPOINT
	isPoint   bool
	sql       string
}

// spansShards reports whether transactions may come to be on several shards.
func (c *Session) spansShards() bool { return len(c.srv.cfg.Cluster.Snapshot().Shards) > 1 }

// controlsOwn reports whether the session itself runs a transaction statement, rather than a server.
func (c *Session) controlsOwn(p *plan.Plan) bool {
	if c.stx == nil {
		return p.Kind == sqlparse.KindBegin && c.status == 'I' && !c.open && c.spansShards()
	}
	if !p.Kind.IsTransaction() && !c.setsAll(p) {
		return false
	}
	if c.status == 'E' && c.lease == nil { // the gateway itself has failed it
		return true
	}
	return len(c.stx.members) != 1 && (len(c.stx.members) > 0 || p.Kind.IsTransaction()) || c.stx.implicit || c.stx.lost
}

// endsFailed reports whether p may run in a failed transaction.
func (c *Session) endsFailed(p *plan.Plan) bool {
	if p == nil {
		return false
	}
	switch p.Kind {
	case sqlparse.KindCommit, sqlparse.KindRollback, sqlparse.KindRollbackTo:
		return c.stx != nil
	}
	return false
}

// setsAll reports whether p sets something for the present transaction, which holds on all of its shards.
func (c *Session) setsAll(p *plan.Plan) bool {
	if s := p.Set; s != nil {
		return p.Route.Kind != plan.RouteLocal && (s.Local || s.Special == sqlparse.SpecialTransaction)
	}
	return p.Tag == "SET CONSTRAINTS"
}

// standsAlone reports whether a statement may not share a message to a server with others: the shards of a transaction
// are known only when those before it have run.
func (c *Session) standsAlone(p *plan.Plan) bool {
	return (c.stx != nil || p.Kind == sqlparse.KindBegin) && (p.Kind.IsTransaction() || c.setsAll(p)) && c.spansShards()
}

// beginShards begins a transaction that no shard has joined yet.
func (c *Session) beginShards(p *plan.Plan) {
	c.stx = &shardTx{begin: beginText(p.Tx)}
	c.tx.control(c, p, nil)
	c.status = 'T'
}

// beginText gives the statement that begins a transaction of the modes.
func beginText(t *sqlparse.TxStmt) string {
	if t == nil {
		return "BEGIN"
	}
	var b strings.Builder
	b.WriteString("BEGIN")
	if t.Isolation != "" {
		b.WriteString(" ISOLATION LEVEL " + strings.ToUpper(t.Isolation))
	}
	if t.ReadOnly != nil {
		b.WriteString(map[bool]string{true: " READ ONLY", false: " READ WRITE"}[*t.ReadOnly])
	}
	if t.Deferrable != nil {
		b.WriteString(map[bool]string{true: " DEFERRABLE", false: " NOT DEFERRABLE"}[*t.Deferrable])
	}
	return b.String()
}

// enter makes the member of a shard the one in use; a shard that is not in the transaction yet joins. shard "" stays
// where it is.
func (c *Session) enter(role catalog.Role, shard string, snap *catalog.Snapshot) error {
	t, named := c.stx, shard
	if err := c.keepSuspended(); err != nil {
		return err
	}
	switch {
	case t.lost || c.status == 'E' && c.lease == nil:
		return errFailedTx
	case c.lease != nil && (shard == "" || c.status == 'E'):
		return nil
	case shard == "" && len(t.members) == 1:
		shard = t.members[0].place.shard
	case shard == "":
		shard = homeShard(snap)
	}
	if err := c.mayJoin(named); err != nil {
		return err
	}
	if c.lease != nil && c.place.shard == shard {
		c.mark(named)
		return nil
	}
	if err := c.settleOpen(); err != nil {
		return err
	}
	if m := t.find(shard); m != nil {
		c.use(m)
		c.mark(named)
		return nil
	}
	if t.opaque && len(t.members) > 0 {
		return errOpaque
	}
	if err := c.join(role, shard, snap); err != nil {
		return err
	}
	c.mark(named)
	return nil
}

// find gives the member of a shard.
func (t *shardTx) find(shard string) *member { return memberOf(t.members, shard) }

// memberOf gives the one of a shard, nil when there is none.
func memberOf(members []*member, shard string) *member {
	for _, m := range members {
		if m.place.shard == shard {
			return m
		}
	}
	return nil
}

// currentMember gives the member in use.
func (c *Session) currentMember() *member {
	if c.lease == nil {
		return nil
	}
	return c.stx.find(c.place.shard)
}

// mark notes that data of the shard in use is about to be read or written.
func (c *Session) mark(shard string) {
	if m := c.currentMember(); m != nil && shard != "" {
		m.data = true
		m.wrote = m.wrote || c.current == nil || !c.current.Proven()
	}
}

// use makes m the member in use.
func (c *Session) use(m *member) {
	c.park()
	c.lease, c.place = m.sc, m.place
	c.leasedShard.Store(&m.place.shard)
}

// park leaves the member in use as it is, so that another can be used. What is pinned to it stays with the session.
func (c *Session) park() {
	if c.lease == nil {
		return
	}
	if c.pins != 0 && c.home == nil {
		c.home, c.homed = c.lease, c.place
	}
	c.endActive()
	c.lease, c.place = nil, place{}
}

// settleOpen ends the messages that the server in use had without a Sync: inside of a transaction block a Sync ends
// nothing else.
func (c *Session) settleOpen() error {
	if !c.open || c.lease == nil {
		return nil
	}
	w := c.work
	w.relay.Begin()
	w.relay.Expect('S', backend.Swallow)
	w.out = append(w.out[:0], 'S', 0, 0, 0, 4)
	if err := w.relay.Run(c.lease, w.out, w.answers); err != nil {
		c.dropLease()
		return err
	}
	c.lease.SetStatus(w.relay.Status)
	w.relay.Begin()
	c.open = false
	return nil
}

// errOpaque is for a shard that would not be told all that it must know.
var errOpaque = pgerr.New(pgerr.NotImplemented,
	"not implemented: [115] a transaction on a second shard after set_config with arguments that are not constants").
	WithHint("Use SET LOCAL, or constants.")

// mayJoin refuses data of a second shard under __neki.tx_mode = 'single'.
func (c *Session) mayJoin(shard string) error {
	t := c.stx
	if shard == "" || t.implicit || c.vars.Neki().TxMode != settings.TxSingle {
		return nil
	}
	for _, m := range t.members {
		if m.data && m.place.shard != shard {
			return pgerr.New(pgerr.SecondShardRefused,
				"the transaction is on shard \"%s\" and would be joined by shard \"%s\"", m.place.shard, shard).
				WithDetail("The session's __neki.tx_mode is single.").
				WithHint("SET __neki.tx_mode = 'multi' or 'atomic', outside a transaction, to write to several shards in one.")
		}
	}
	return nil
}

// join leases a connection to a shard and brings it to where the transaction is.
func (c *Session) join(role catalog.Role, shard string, snap *catalog.Snapshot) error {
	c.park()
	if err := c.acquire(role, shard, snap, 0); err != nil {
		return err
	}
	if err := c.fitLease(); err != nil {
		return err
	}
	m := &member{sc: c.lease, place: c.place, base: c.lease.Vars()}
	c.stx.members = append(c.stx.members, m)
	sql := c.stx.begin
	for _, e := range c.stx.log {
		sql += "; " + e.sql
		if e.isPoint {
			m.points = append(m.points, m.base)
		}
	}
	if _, err := c.lease.Exec(sql, c.work.answers); err != nil {
		c.dropLease() // where it is now can't be told
		return err
	}
	c.publishBackends()
	return nil
}

// note remembers a statement for the shards that are still to join, and what it means for the settings of those that have.
func (t *shardTx) note(c *Session, p *plan.Plan) {
	switch {
	case p.Kind == sqlparse.KindSavepoint:
		t.log = append(t.log, txEntry{savepoint: p.Tx.Savepoint, isPoint: true, sql: "SAVEPOINT " + sqlparse.QuoteIdent(p.Tx.Savepoint)})
		for _, m := range t.members {
			m.points = append(m.points, m.sc.Vars())
		}
	case p.Kind == sqlparse.KindRelease:
		if i, nth := t.point(p.Tx.Savepoint); i >= 0 {
			kept := slices.DeleteFunc(slices.Clone(t.log[i:]), func(e txEntry) bool { return e.isPoint })
			t.log = append(t.log[:i], kept...)
			t.cutPoints(nth, false)
			for _, cur := range c.cursors {
				cur.points = min(cur.points, nth)
			}
		}
	case p.Kind == sqlparse.KindRollbackTo:
		if i, nth := t.point(p.Tx.Savepoint); i >= 0 {
			t.log = t.log[:i+1]
			t.cutPoints(nth+1, true)
			c.forgetCursors(nth)
		}
	case p.Kind == sqlparse.KindCommit, p.Kind == sqlparse.KindRollback: // AND CHAIN: the next one begins like this one
		t.log, t.opaque, t.order = nil, false, nil
		for _, m := range t.members {
			m.base, m.points, m.data, m.wrote = m.sc.Vars(), nil, false, false
		}
	case c.setsAll(p):
		t.log = append(t.log, txEntry{sql: p.Text()})
	}
}

// point finds the innermost savepoint of a name: its place in the log, and its number among the savepoints.
func (t *shardTx) point(name string) (at, nth int) {
	at = -1
	n := 0
	for i, e := range t.log {
		if !e.isPoint {
			continue
		}
		if e.savepoint == name {
			at, nth = i, n
		}
		n++
	}
	return at, nth
}

// cutPoints keeps the first n savepoints; with restore, the settings of the last of them hold again.
func (t *shardTx) cutPoints(n int, restore bool) {
	for _, m := range t.members {
		if len(m.points) < n {
			continue
		}
		m.points = m.points[:n]
		if restore && n > 0 {
			m.sc.SetVars(m.points[n-1])
		}
	}
}

// followShards remembers what a completed statement means for shards that join later.
func (c *Session) followShards(p *plan.Plan) {
	t := c.stx
	if p.Kind.IsTransaction() || c.setsAll(p) {
		t.note(c, p)
		return
	}
	t.followCursor(p, c.place.shard)
	for i := range p.SetConfigs {
		s := &p.SetConfigs[i]
		switch {
		case !s.Constant:
			t.opaque = true
		case s.Local:
			value := "NULL"
			if !s.Null {
				value = sqlparse.QuoteLiteral(s.Value)
			}
			t.log = append(t.log, txEntry{sql: "SELECT pg_catalog.set_config(" + sqlparse.QuoteLiteral(s.Name) + ", " + value + ", true)"})
		}
	}
}

// leaveShards releases all members after the transaction has ended on them; those that are still in one are rolled back.
func (c *Session) leaveShards() {
	t := c.stx
	if t == nil {
		return
	}
	c.park()
	c.stx = nil
	c.hideBackends()
	for _, m := range t.members {
		if m.sc.Status() != 'I' {
			m.sc.SetVars(m.base)
			c.cleanBounded(m.sc, false)
		}
		c.lease, c.place = m.sc, m.place
		if c.handsOver && len(t.members) == 1 {
			c.handOver()
		}
		c.release()
	}
}

// forgetMember takes a connection that is lost out of the transaction.
func (t *shardTx) forgetMember(sc *backend.ServerConn) {
	before := len(t.members)
	t.members = slices.DeleteFunc(t.members, func(m *member) bool { return m.sc == sc })
	t.lost = t.lost || len(t.members) < before
}
