package pooler

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"neki/catalog"
	"neki/internal/pgerr"
	"neki/sqlparse"
)

// hub hears the notifications of one database for all sessions that listen, by one connection to each shard's primary. A
// session's own LISTEN runs on a connection of its own first, as part of its transaction; once that has committed, the hub
// takes its channels over, at one place in the stream of notifications, so that none is lost or comes twice. It is safe for
// concurrent use; it owns the goroutines of its connections.
type hub struct {
	srv     *Server
	name    string      // of the database
	fence   string      // a channel of its own, on which the place is marked
	used    atomic.Bool // somebody listens
	missing atomic.Bool // a shard may have no connection
	tokens  atomic.Uint64
	joined  sync.WaitGroup

	opening sync.Mutex // one at a time connects

	mu        sync.Mutex
	lines     map[string]*line // by shard
	channels  map[string][]*listening
	fences    map[string][]*listening // by token: those that wait for the mark
	claims    map[claim]uint32        // of server processes: the pid of the session whose transaction notifies
	held      int                     // bytes of notifications that wait for sessions
	rests     time.Time               // since when nobody listens
	completed time.Time               // complete was begun last
	closed    bool
}

// claim is a server process of a shard.
type claim struct {
	shard string
	pid   uint32
}

// listening is one session's interest in one channel.
type listening struct {
	s     *subscription
	waits string // for the mark in the stream of this shard: until then the session's own connection hears
}

// subscription is what the hub has for one session. Its fields are guarded by the hub's mu.
type subscription struct {
	c        *Session
	channels map[string]*listening
	queue    [][]byte // NotificationResponse messages
	bytes    int
	parked   bool         // the session waits for its client, outside of a transaction
	woken    bool         // its wait was interrupted
	ended    *pgerr.Error // why it can't listen any more
	writing  bool         // it writes notifications to its client
}

// Bounds of what waits for clients: for one of them, and for all of a database.
const (
	subscriptionLimit = 8 << 20
	hubLimit          = 256 << 20
)

func newHub(s *Server, database string, token uint64) *hub {
	return &hub{
		srv: s, name: database, fence: fmt.Sprintf("neki_fence_%016x", token), lines: make(map[string]*line),
		channels: make(map[string][]*listening), fences: make(map[string][]*listening), claims: make(map[claim]uint32),
	}
}

func (h *hub) close() {
	h.mu.Lock()
	h.closed = true
	lines := h.allLocked()
	h.mu.Unlock()
	for _, l := range lines {
		l.close(errHubClosed)
	}
	h.joined.Wait()
}

var errHubClosed = pgerr.Fatal(pgerr.AdminShutdown, "the gateway is shutting down")

func (h *hub) allLocked() []*line {
	lines := make([]*line, 0, len(h.lines))
	for _, l := range h.lines {
		lines = append(lines, l)
	}
	return lines
}

// subscribe adds channels to those of a session. When it returns, every primary sends their notifications to the hub; those
// of the given shard reach the session from the mark on that token gives, the others at once.
func (h *hub) subscribe(ctx context.Context, s *subscription, channels []string, shard, token string) (fresh []string, err error) {
	lines, err := h.connect(ctx)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	for _, name := range channels {
		if s.channels[name] != nil {
			continue
		}
		k := &listening{s: s, waits: shard}
		s.channels[name] = k
		h.channels[name] = append(h.channels[name], k)
		h.fences[token] = append(h.fences[token], k)
		fresh = append(fresh, name)
	}
	h.used.Store(len(h.channels) > 0)
	for _, l := range h.lines { // one to a new shard may have begun without these
		if !slices.Contains(lines, l) {
			lines = append(lines, l)
		}
	}
	h.mu.Unlock()
	sql := ""
	for _, name := range fresh { // again if others listen too: it costs nothing, and the answer says that it is done
		sql += "LISTEN " + sqlparse.QuoteIdent(name) + ";"
	}
	for _, l := range lines {
		if err := l.ask(ctx, sql); err != nil {
			h.unsubscribe(s, fresh)
			return nil, err
		}
	}
	return fresh, nil
}

// channelsOf gives what a session listens to here.
func (h *hub) channelsOf(s *subscription) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Sorted(maps.Keys(s.channels))
}

// unsubscribe takes channels from those of a session. What waits of them is not for the client any more: in Postgres too what
// came during the transaction of the UNLISTEN is looked at after its end.
func (h *hub) unsubscribe(s *subscription, channels []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	sql := ""
	for _, name := range channels {
		k := s.channels[name]
		if k == nil {
			continue
		}
		delete(s.channels, name)
		h.dropChannelLocked(s, name)
		h.forgetLocked(k)
		if h.removeLocked(name, k) {
			sql += "UNLISTEN " + sqlparse.QuoteIdent(name) + ";"
		}
	}
	if len(h.channels) == 0 && h.used.Swap(false) {
		h.rests = time.Now()
	}
	if sql == "" {
		return
	}
	for _, l := range h.lines {
		l.tell(sql)
	}
}

// removeLocked takes k out of a channel's list and reports whether nobody listens there any more.
func (h *hub) removeLocked(name string, k *listening) bool {
	list := h.channels[name]
	for i := range list {
		if list[i] == k {
			list = append(list[:i:i], list[i+1:]...)
			break
		}
	}
	if len(list) == 0 {
		delete(h.channels, name)
		return true
	}
	h.channels[name] = list
	return false
}

// forgetLocked takes k out of those that wait for a mark.
func (h *hub) forgetLocked(k *listening) {
	if k.waits == "" {
		return
	}
	for token, list := range h.fences {
		list = slices.DeleteFunc(list, func(other *listening) bool { return other == k })
		if h.fences[token] = list; len(list) == 0 {
			delete(h.fences, token)
		}
	}
}

// leave forgets a session.
func (h *hub) leave(s *subscription) {
	names := h.channelsOf(s)
	h.mu.Lock()
	h.dropQueueLocked(s)
	h.mu.Unlock()
	h.unsubscribe(s, names)
}

func (h *hub) dropChannelLocked(s *subscription, name string) {
	s.queue = slices.DeleteFunc(s.queue, func(frame []byte) bool {
		channel, _ := notificationOf(frame[5:])
		if channel == name {
			s.bytes -= len(frame)
			h.held -= len(frame)
		}
		return channel == name
	})
}

func (h *hub) dropQueueLocked(s *subscription) {
	h.held -= s.bytes
	s.queue, s.bytes = nil, 0
}

// connect gives connections to the primaries of all shards, opening those that are missing.
func (h *hub) connect(ctx context.Context) ([]*line, error) {
	h.opening.Lock()
	defer h.opening.Unlock()
	snap := h.srv.cfg.Cluster.Snapshot()
	lines := make([]*line, 0, len(snap.Shards))
	for i := range snap.Shards {
		l, err := h.lineTo(ctx, snap, snap.Shards[i].UID)
		if err != nil {
			return nil, err
		}
		lines = append(lines, l)
	}
	return lines, nil
}

// lineTo gives the connection to one shard's primary.
func (h *hub) lineTo(ctx context.Context, snap *catalog.Snapshot, shard string) (*line, error) {
	node := snap.ServingPrimary(shard)
	if node == nil {
		return nil, errNoInstance
	}
	h.mu.Lock()
	l := h.lines[shard]
	h.mu.Unlock()
	if l != nil && l.node == node.ID {
		return l, nil
	}
	if l != nil {
		h.lost(l, errPrimaryChanged)
		l.close(errPrimaryChanged)
	}
	l, err := openLine(ctx, h, node)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		l.close(errHubClosed)
		return nil, errHubClosed
	}
	h.lines[shard], h.rests = l, time.Now()
	h.joined.Go(l.run)
	return l, nil
}

// complete connects to shards that there were not when those who listen said so.
func (h *hub) complete() {
	ctx, cancel := context.WithTimeout(context.Background(), lineTimeout) //nolint:forbidigo // bounded here
	defer cancel()
	lines, err := h.connect(ctx)
	if err != nil {
		return // tried again
	}
	for _, l := range lines {
		l.tell(h.listenAll()) // what began to listen meanwhile knew of none of the new ones
	}
	h.missing.Store(false)
}

// completeLater has a goroutine do that, one at a time and now and then.
func (h *hub) completeLater(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed || now.Sub(h.completed) < completeEvery {
		return
	}
	h.completed = now
	h.joined.Go(h.complete)
}

// completeEvery is how often it is tried.
const completeEvery = time.Second

// listenAll is what a new connection says first.
func (h *hub) listenAll() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	sql := "LISTEN " + h.fence + ";"
	for name := range h.channels {
		sql += "LISTEN " + sqlparse.QuoteIdent(name) + ";"
	}
	return sql
}

// rest closes the connections when nobody has listened for a while: they would keep the database from being dropped.
func (h *hub) rest(now time.Time) {
	if h.used.Load() {
		if h.missing.Load() {
			h.completeLater(now)
		}
		return
	}
	h.mu.Lock()
	var lines []*line
	if len(h.channels) == 0 && now.Sub(h.rests) > restAfter {
		lines = h.allLocked()
		clear(h.lines)
	}
	h.mu.Unlock()
	for _, l := range lines {
		l.close(errHubClosed)
	}
}

// restAfter is how long the connections stay open for who listens next.
const restAfter = 10 * time.Second

// follow gives up connections to instances that are no primaries any more: what their sessions are told would be incomplete.
// A shard that is new is listened to soon.
func (h *hub) follow(snap *catalog.Snapshot) {
	h.mu.Lock()
	lines := h.allLocked()
	h.mu.Unlock()
	for _, l := range lines {
		if s := snap.Shard(l.shard); s == nil || s.Primary != l.node {
			l.close(errPrimaryChanged)
		}
	}
	if h.used.Load() && len(lines) < len(snap.Shards) {
		h.missing.Store(true)
	}
}

var errPrimaryChanged = pgerr.New(pgerr.ConnectionFailure, "another instance became the primary")

// lost ends the listening of all sessions: of one shard they would miss notifications without knowing.
func (h *hub) lost(l *line, cause error) {
	told := pgerr.Fatal(pgerr.ConnectionFailure, "the connection that the session listens on was lost").
		WithDetail("%s: %v.", l.node, cause).
		WithHint("Notifications may be missing: connect again, LISTEN, and look at the data.")
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.lines[l.shard] != l { // nobody goes by it any more
		return
	}
	delete(h.lines, l.shard)
	for _, list := range h.channels {
		for _, k := range list {
			h.endLocked(k.s, told)
		}
	}
}

// endLocked has a session end as soon as it is outside a transaction; nothing more is kept for it.
func (h *hub) endLocked(s *subscription, why *pgerr.Error) {
	if s.ended != nil {
		return
	}
	s.ended = why
	h.dropQueueLocked(s)
	h.wakeLocked(s)
	if s.writing { // to a client that does not read
		s.c.conn.Interrupt()
	}
}

// notified passes a notification on to the sessions that listen.
func (h *hub) notified(l *line, pid uint32, channel, payload string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if channel == h.fence {
		for _, k := range h.fences[payload] {
			k.waits = ""
		}
		delete(h.fences, payload)
		return
	}
	if owner, ok := h.claims[claim{l.shard, pid}]; ok {
		pid = owner
	}
	frame := appendNotification(nil, pid, channel, payload)
	for _, k := range h.channels[channel] {
		if k.waits == "" || k.waits != l.shard {
			h.pushLocked(k.s, frame)
		}
	}
}

// pushLocked keeps a notification for a session, and wakes it if it waits.
func (h *hub) pushLocked(s *subscription, frame []byte) {
	if s.ended != nil {
		return
	}
	if s.bytes+len(frame) > subscriptionLimit || h.held+len(frame) > hubLimit {
		h.endLocked(s, errTooSlow)
		return
	}
	s.queue = append(s.queue, frame)
	s.bytes += len(frame)
	h.held += len(frame)
	h.wakeLocked(s)
}

var errTooSlow = pgerr.Fatal(pgerr.InsufficientResources, "too many notifications wait for the client").
	WithDetail("A session that does not read, or that stays in a transaction, is kept at most 8 MiB of notifications.").
	WithHint("Notifications are missing: connect again, LISTEN, and look at the data.")

func (h *hub) wakeLocked(s *subscription) {
	if s.parked && !s.woken {
		s.woken = true
		s.c.conn.InterruptRead()
	}
}

// park notes that the session waits for its client and may be woken.
func (h *hub) park(s *subscription) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s.parked = true
	if len(s.queue) > 0 || s.ended != nil {
		h.wakeLocked(s)
	}
}

// unpark notes that the session goes on, and reports whether it was woken.
func (h *hub) unpark(s *subscription) (woken bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	woken = s.woken
	s.parked, s.woken = false, false
	return woken
}

// take gives what waits for a session, and why it can't listen any more. writing says that it goes to the client at once:
// until wrote is called, a client that does not read is cut off when too much waits.
func (h *hub) take(s *subscription, writing bool) (frames [][]byte, ended *pgerr.Error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	frames = s.queue
	h.dropQueueLocked(s)
	s.writing = writing && len(frames) > 0
	return frames, s.ended
}

// wrote notes that what take gave has reached the client.
func (h *hub) wrote(s *subscription) {
	h.mu.Lock()
	s.writing = false
	h.mu.Unlock()
}

// hears reports whether the session gets a channel's notifications from the hub.
func (h *hub) hears(s *subscription, channel []byte) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	k := s.channels[string(channel)]
	return k != nil && k.waits == ""
}

// catchUp waits until every notification of what has committed on a shard by now has reached the sessions' queues.
func (h *hub) catchUp(ctx context.Context, shard string) error {
	h.mu.Lock()
	l := h.lines[shard]
	h.mu.Unlock()
	if l == nil {
		return nil // whoever listens is told that it is lost
	}
	return l.ask(ctx, ";")
}

// claim has a server process's notifications go by a session's pid, until release.
func (h *hub) claim(k claim, pid uint32) {
	h.mu.Lock()
	h.claims[k] = pid
	h.mu.Unlock()
}

func (h *hub) release(k claim) {
	h.mu.Lock()
	delete(h.claims, k)
	h.mu.Unlock()
}

func appendNotification(dst []byte, pid uint32, channel, payload string) []byte {
	dst = append(dst, 'A')
	dst = binary.BigEndian.AppendUint32(dst, uint32(4+4+len(channel)+1+len(payload)+1))
	dst = binary.BigEndian.AppendUint32(dst, pid)
	dst = append(append(dst, channel...), 0)
	return append(append(dst, payload...), 0)
}
