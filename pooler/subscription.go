package pooler

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"neki/internal/pgerr"
	"neki/pooler/backend"
	"neki/pooler/plan"
	"neki/sqlparse"
)

// handOver gives the channels that the server connection in use listens to over to the hub of the database, so that the
// connection is free for others. Where that can't be done the session keeps its connection and goes on by that.
func (c *Session) handOver() {
	c.handsOver = false
	sc := c.lease
	if c.pins&plan.PinOpaque != 0 || sc == nil { // unseen code may count on what the connection listens to
		return
	}
	sc.Bound(time.Now().Add(handOverLimit))
	err := c.moveChannels(sc)
	sc.Bound(time.Time{})
	switch {
	case sc.Unfit():
		c.end(listenerLost(sc.Node(), err))
	case err != nil:
		c.srv.log.Warn("a session keeps its connection to listen on", "pid", c.pid, "error", err)
		if c.home != nil && c.home != sc { // it can't
			c.end(listenerLost(sc.Node(), err))
		}
	}
}

// handOverLimit bounds a hand-over.
const handOverLimit = 10 * time.Second

func listenerLost(node string, cause error) *pgerr.Error {
	return pgerr.Fatal(pgerr.ConnectionFailure, "the connection that the session listens on was lost").
		WithDetail("%s: %v.", node, cause).
		WithHint("Notifications may be missing: connect again, LISTEN, and look at the data.")
}

// moveChannels does what handOver says. The connection notifies itself on the hub's own channel: what comes before that
// notification is passed on by this connection, what comes behind it by the hub. An error of the server leaves all as it
// was.
func (c *Session) moveChannels(sc *backend.ServerConn) error {
	buf := c.lend().answers
	rows, err := sc.Exec("SELECT pg_catalog.pg_listening_channels()", buf)
	if err != nil {
		return err
	}
	names := make([]string, len(rows))
	for i, row := range rows {
		names[i] = row[0]
	}
	if len(names) > 0 {
		if err := c.subscribe(sc, names, buf); err != nil {
			return err
		}
		sc.Hear(func([]byte) {}) // the hub has it too
		if _, err := sc.Exec("UNLISTEN *", buf); err != nil {
			sc.Broken()
			return err
		}
	}
	sc.Hear(nil)
	c.pins &^= plan.PinListen
	return nil
}

// subscribe has the hub hear channels from a place in the stream of notifications on that sc has come to when it returns.
func (c *Session) subscribe(sc *backend.ServerConn, names []string, buf []byte) error {
	h := c.db.hub
	if c.sub == nil {
		c.sub = &subscription{c: c, channels: make(map[string]*listening)}
	}
	ctx, cancel := context.WithTimeout(context.Background(), handOverLimit) //nolint:forbidigo // bounded here
	defer cancel()
	token := fmt.Sprintf("%x", h.tokens.Add(1))
	added, err := h.subscribe(ctx, c.sub, names, c.place.shard, token)
	if err != nil || len(added) == 0 {
		return err
	}
	if err := c.awaitMark(sc, token, added, buf); err != nil {
		h.unsubscribe(c.sub, added)
		return err
	}
	return nil
}

// awaitMark notifies sc of the mark and passes on what comes for the channels before that: the hub may have come to the mark
// already.
func (c *Session) awaitMark(sc *backend.ServerConn, token string, channels []string, buf []byte) error {
	h, seen := c.db.hub, false
	sc.Hear(func(body []byte) {
		switch channel, payload := notificationOf(body); {
		case channel == h.fence:
			seen = seen || payload == token
		case !seen && slices.Contains(channels, channel):
			c.sendNotification(body)
		}
	})
	sql := fmt.Sprintf("SET LOCAL synchronous_commit = off; LISTEN %s; NOTIFY %s, '%s'", h.fence, h.fence, token)
	for tries := 0; !seen; tries++ {
		if tries == markTries {
			return pgerr.New(pgerr.InternalError, "a notification of its own did not reach the connection")
		}
		if _, err := sc.Exec(sql, buf); err != nil {
			return err
		}
		sql = ";"
	}
	return nil
}

// markTries bounds how often the connection is asked for the mark: it comes with the answer to the first question.
const markTries = 1000

// notificationOf reads the body of a NotificationResponse.
func notificationOf(body []byte) (channel, payload string) {
	if len(body) < 4 {
		return "", ""
	}
	name, rest, _ := bytes.Cut(body[4:], []byte{0})
	text, _, _ := bytes.Cut(rest, []byte{0})
	return string(name), string(text)
}

// forwardNotification sends the client what came while the gateway itself asked the connection that the session listens on.
func (c *Session) forwardNotification(body []byte) {
	if c.forwards(body) {
		c.sendNotification(body)
	}
}

func (c *Session) sendNotification(body []byte) {
	if len(body) < 4 {
		return
	}
	pid := uint32(body[0])<<24 | uint32(body[1])<<16 | uint32(body[2])<<8 | uint32(body[3])
	if c.lease != nil && pid == c.lease.PID() {
		pid = c.pid
	}
	channel, payload := notificationOf(body)
	_, _ = c.conn.Write(appendNotification(nil, pid, channel, payload)) // a client that is gone is noticed at the next write
}

// Notified reports whether the client gets a notification from the server connection in use: not if the hub has it too.
func (c *Session) Notified(body []byte) (forward bool) { return c.forwards(body) }

func (c *Session) forwards(body []byte) bool {
	if c.sub == nil || len(body) < 4 {
		return true
	}
	name, _, _ := bytes.Cut(body[4:], []byte{0})
	return !c.db.hub.hears(c.sub, name)
}

// listened notes a LISTEN or UNLISTEN that was executed.
func (c *Session) listened(p *plan.Plan) {
	switch {
	case p.Effects.Any(sqlparse.EffectListen):
		c.handsOver = true
		c.lease.Hear(c.forwardNotification)
	case p.Kind == sqlparse.KindUnlisten && c.pins&plan.PinListen != 0:
		c.handsOver = true
	}
	if p.Kind == sqlparse.KindUnlisten && c.sub != nil {
		c.tx.unlistened = append(c.tx.unlistened, p.Channel)
	}
}

// unlisten does what UNLISTENs have asked for whose transaction has committed.
func (c *Session) unlisten(done []*sqlparse.ChannelStmt) {
	if c.sub == nil {
		return
	}
	for _, s := range done {
		names := []string{s.Name}
		if s.All {
			names = c.db.hub.channelsOf(c.sub)
		}
		c.db.hub.unsubscribe(c.sub, names)
	}
}

// readyToListen prepares the connection for statements about notifications, before they run.
func (c *Session) readyToListen(parts []plan.Part) error {
	h := c.db.hub
	if !h.used.Load() {
		return nil
	}
	var effects sqlparse.Effects
	writes := false
	for i := range parts {
		effects |= parts[i].Plan.Effects
		writes = writes || !parts[i].Plan.Proven() && !parts[i].Plan.Kind.IsTransaction()
	}
	if c.sub != nil && effects.Any(sqlparse.EffectChannels) {
		if err := c.listenAgain(); err != nil {
			return err
		}
	}
	if effects.Any(sqlparse.EffectNotify) || c.sub != nil && writes {
		return c.claimNotifications()
	}
	return nil
}

// listenAgain makes the connection in use listen to what the session listens to, because a statement asks for that.
func (c *Session) listenAgain() error {
	names := c.db.hub.channelsOf(c.sub)
	if len(names) == 0 {
		return nil
	}
	if c.status != 'I' || c.open {
		return pgerr.New(pgerr.FeatureNotSupported, "pg_listening_channels() can't be called in a transaction by a session that listens").
			WithHint("Call it outside of the transaction.")
	}
	var sql strings.Builder
	for _, name := range names {
		fmt.Fprintf(&sql, "LISTEN %s;", sqlparse.QuoteIdent(name))
	}
	c.lease.Hear(c.forwardNotification)
	if _, err := c.lease.Exec(sql.String(), c.lend().answers); err != nil {
		return err
	}
	c.pin(plan.PinListen)
	c.handsOver = true
	return nil
}

// claimNotifications makes the session known as the one that notifies from its connection, until the transaction ends. What
// earlier users have notified from there is passed on before.
func (c *Session) claimNotifications() error {
	k := claim{c.place.shard, c.lease.PID()}
	if c.claimed == k {
		return nil
	}
	c.releaseClaim()
	if c.usedByOthers {
		if err := c.catchUp(k.shard); err != nil {
			return err
		}
	}
	c.claimed = k
	c.db.hub.claim(k, c.pid)
	return nil
}

// settleNotifications has what the ended transaction notified on its way to the listeners, the session's own included,
// before the client hears that it has ended: as Postgres does.
func (c *Session) settleNotifications() {
	if c.claimed.pid == 0 {
		return
	}
	_ = c.catchUp(c.claimed.shard) // where it fails, those who listen are told
	c.releaseClaim()
}

func (c *Session) releaseClaim() {
	if c.claimed.pid != 0 {
		c.db.hub.release(c.claimed)
		c.claimed = claim{}
	}
}

func (c *Session) catchUp(shard string) error {
	ctx, cancel := context.WithTimeout(context.Background(), handOverLimit) //nolint:forbidigo // bounded here
	defer cancel()
	return c.db.hub.catchUp(ctx, shard)
}

// takeNotifications gives the notifications that wait for the client, nil in a transaction. An error ends the session.
func (c *Session) takeNotifications() []byte { return c.waiting(false) }

func (c *Session) waiting(writing bool) (frames []byte) {
	if c.sub == nil || c.status != 'I' || c.open {
		return nil
	}
	list, ended := c.db.hub.take(c.sub, writing)
	if ended != nil {
		c.end(ended)
	}
	for _, f := range list {
		frames = append(frames, f...)
	}
	return frames
}

// deliver sends the client what waits for it.
func (c *Session) deliver() error {
	frames := c.waiting(true)
	if len(frames) == 0 {
		return nil
	}
	_, err := c.conn.Write(frames)
	c.db.hub.wrote(c.sub)
	return err
}

// mayBeWoken reports whether notifications can go to the client now.
func (c *Session) mayBeWoken() bool {
	return c.sub != nil && c.status == 'I' && !c.open && c.phase == phaseReady
}

// unpark notes that the session no longer waits, and reports whether a notification has woken it.
func (c *Session) unpark() (woken bool) {
	if c.sub == nil || !c.db.hub.unpark(c.sub) {
		return false
	}
	_ = c.conn.SetReadDeadline(time.Time{})
	if c.endCause() != nil {
		c.conn.InterruptRead()
	}
	return true
}

// forgetSubscription ends what the hub does for the session.
func (c *Session) forgetSubscription() {
	c.releaseClaim()
	if c.sub != nil {
		c.db.hub.leave(c.sub)
		c.sub = nil
	}
}
