package sim

import (
	"slices"
	"time"

	"neki/catalog"
	"neki/cluster/decide"
)

// entry is one record of the log. The position of a record is its place in the log, from 1.
type entry struct {
	hash uint64 // of the whole log up to here
	term int64  // of the leader that wrote it
	tli  int32
	kind uint8
	last int // position of the newest barrier up to here
}

const maxNodes = 6

// Kinds of records.
const (
	entryWrite uint8 = iota + 1
	entryBarrier
	entryMark // of a Lead
)

// postgres is one server: what survives a kill, and what doesn't.
type postgres struct {
	n *node

	log     []entry
	tli     int32
	history []decide.Switch
	signal  bool // standby.signal
	empty   bool

	running, frozen, primary bool
	life                     int // counts starts: what was begun in another life is void
	open                     bool
	replayed                 int
	paused                   int
	source                   int // node whose log is wanted, -1 none: primary_conninfo
	link                     *link
	links                    [maxNodes]*link // of walsenders, by node
	standbys                 []string        // synchronous_standby_names in effect
	acks                     int
	fenced                   bool // ... nobody
	bare                     bool // it has no slots: its data was replaced, and it has not led since
	pending                  []pending
}

// link is one replication connection.
type link struct {
	up, down  *postgres
	upL, dnL  int // lives
	flushed   int // as the source knows
	repliedAt time.Duration
	sent      int
	closed    bool
}

// pending is a commit that waits for acknowledgements.
type pending struct {
	lsn  int
	done func()
}

func (p *postgres) len() int { return len(p.log) }

func (p *postgres) hashAt(lsn int) uint64 {
	if lsn == 0 {
		return 0
	}
	return p.log[lsn-1].hash
}

func (p *postgres) append(kind uint8) int {
	w := p.n.w
	w.ids++
	h := (p.hashAt(p.len()) ^ w.ids*0x9e3779b97f4a7c15) * 0xff51afd7ed558ccd
	e := entry{hash: h ^ h>>29, term: p.n.disk.Promises.OwnTerm, tli: p.tli, kind: kind, last: p.len() + 1}
	if kind != entryBarrier {
		e.last = p.lastBarrier(p.len())
	}
	p.log = append(p.log, e)
	p.replayed = p.len()
	return p.len()
}

// commit writes a record and calls done when it is acknowledged; in another life of the server, never.
func (p *postgres) commit(kind uint8, done func()) {
	lsn := p.append(kind)
	p.pending = append(p.pending, pending{lsn, done})
	p.ship()
	p.release()
}

// release ends the waits of commits that enough standbys have flushed.
func (p *postgres) release() {
	if p.frozen || !p.running || p.fenced {
		return
	}
	upTo := p.quorum()
	for len(p.pending) > 0 && p.pending[0].lsn <= upTo {
		c := p.pending[0]
		p.pending = p.pending[1:]
		p.n.w.acknowledge(p, c.lsn, "a commit was acknowledged")
		if c.done != nil {
			c.done()
		}
	}
}

// quorum is the position that as many standbys as are wanted have flushed.
func (p *postgres) quorum() int {
	if p.acks == 0 {
		return p.len()
	}
	var buf [8]int
	have := buf[:0]
	for _, id := range p.standbys {
		if l := p.links[int(id[0]-'a')]; l != nil && !l.closed {
			have = append(have, l.flushed)
		}
	}
	if len(have) < p.acks || len(p.standbys) < p.acks {
		return 0
	}
	slices.Sort(have)
	return have[len(have)-p.acks]
}

// ship sends what is new to all standbys.
func (p *postgres) ship() {
	for i := range p.n.w.nodes {
		if l := p.links[i]; l != nil {
			p.push(l)
		}
	}
}

func (p *postgres) push(l *link) {
	if l.closed || l.sent == p.len() || p.frozen {
		return
	}
	l.sent = p.len()
	to := l.sent
	p.n.w.send(p.n.host, l.down.n.host, func() { l.receive(to) })
}

// receive takes the log up to a position in, and answers.
func (l *link) receive(to int) {
	d, u := l.down, l.up
	if l.closed || !l.alive() || d.frozen || to > u.len() || to <= d.len() && to != 0 {
		return
	}
	if d.hashAt(d.len()) != u.hashAt(d.len()) {
		d.n.w.fail("I9", "%s streams from %s at %d, and what is before differs", d.n.id, u.n.id, d.len())
		return
	}
	d.log = append(d.log, u.log[d.len():to]...)
	d.adopt(u)
	d.replaySoon()
	d.n.w.send(d.n.host, u.n.host, func() { l.reply(to) })
	d.ship()
}

// adopt takes over the timeline of the newest record.
func (p *postgres) adopt(u *postgres) {
	tli := p.log[p.len()-1].tli
	if tli == p.tli {
		return
	}
	p.tli = tli
	p.history = p.history[:0:0]
	for _, s := range u.history {
		if s.Timeline < tli {
			p.history = append(p.history, s)
		}
	}
}

func (l *link) reply(flushed int) {
	if l.closed || l.up.life != l.upL || l.up.frozen {
		return
	}
	l.flushed, l.repliedAt = max(l.flushed, flushed), l.up.n.w.now
	l.up.release()
}

func (l *link) alive() bool {
	return l.up.running && l.down.running && l.up.life == l.upL && l.down.life == l.dnL && l.down.link == l
}

func (p *postgres) replaySoon() {
	life := p.life
	p.n.w.after(p.n.w.upTo(20*time.Millisecond), func() {
		if p.life == life && p.running && p.paused == 0 && !p.frozen {
			p.replayed = p.len()
		}
	})
}

// connect tries to stream from the source, as Postgres would: by numbers alone.
func (p *postgres) connect() {
	if !p.running || p.primary || p.frozen || p.source < 0 || p.link != nil {
		return
	}
	u := p.n.w.nodes[p.source].pg
	life, source := p.life, p.source
	p.n.w.send(p.n.host, u.n.host, func() {
		if !u.running || u.frozen || !u.serves(p) {
			return
		}
		ulife := u.life
		p.n.w.send(u.n.host, p.n.host, func() {
			if p.life == life && p.running && !p.frozen && p.source == source && p.link == nil && u.life == ulife && u.running && u.serves(p) {
				p.attach(u)
			}
		})
	})
}

func (p *postgres) attach(u *postgres) {
	if p.hashAt(p.len()) != u.hashAt(p.len()) {
		p.n.w.fail("I9", "%s begins to stream from %s at %d, and what is before differs", p.n.id, u.n.id, p.len())
		return
	}
	l := &link{up: u, down: p, upL: u.life, dnL: p.life, flushed: p.len(), sent: p.len(), repliedAt: p.n.w.now}
	p.link, u.links[p.n.host] = l, l
	l.up.release()
	u.push(l)
}

// serves tells whether a server would stream to another.
func (p *postgres) serves(d *postgres) bool {
	if p.bare {
		return false
	}
	if d.tli == p.tli {
		return d.len() <= p.len()
	}
	for _, s := range p.history {
		if s.Timeline == d.tli {
			return d.len() <= int(s.LSN)
		}
	}
	return false
}

// cut ends the receiver; the source notices later.
func (p *postgres) cut() {
	l := p.link
	if l == nil {
		return
	}
	p.link = nil
	p.n.w.after(p.n.w.between(time.Millisecond, 40*time.Millisecond), func() { l.close() })
}

func (l *link) close() {
	l.closed = true
	if l.up.links[l.down.n.host] == l {
		l.up.links[l.down.n.host] = nil
	}
}

// keepalive ends links on which nothing can pass any more, and renews replies.
func (p *postgres) keepalive() {
	if !p.running || p.frozen {
		return
	}
	if l := p.link; l != nil {
		w := p.n.w
		if !l.alive() || l.closed || w.cuts[l.up.n.host][p.n.host] > 0 || l.up.frozen {
			p.link = nil
			l.close()
		} else {
			at := p.len()
			w.send(p.n.host, l.up.n.host, func() { l.reply(at) })
			l.up.push(l)
		}
	}
	p.connect()
	if !p.primary && p.paused == 0 && p.replayed < p.len() {
		p.replaySoon()
	}
}

// kill ends the server at once. Commits that waited are in doubt for ever.
func (p *postgres) kill() {
	if !p.running {
		return
	}
	p.running, p.frozen, p.primary, p.open, p.pending = false, false, false, false, nil
	p.life++
	if l := p.link; l != nil {
		p.link = nil
		p.n.w.after(p.n.w.upTo(5*time.Second), l.close) // at the latest by wal_sender_timeout
	}
	for _, l := range p.links {
		if l != nil {
			l.closed = true
		}
	}
	p.links = [maxNodes]*link{}
	p.n.pgEnded()
}

// start starts the server as its directory says.
func (p *postgres) start() {
	p.running, p.frozen, p.open = true, false, false
	p.life++
	p.primary = !p.signal
	p.link, p.links, p.pending = nil, [maxNodes]*link{}, nil
	p.replayed = p.len()
	p.n.w.checkStandbys()
	p.connect()
}

// promote makes a primary of a standby: on a timeline with the next number that its own files don't know.
func (p *postgres) promote() {
	p.replayed = p.len()
	p.history = append(slices.Clone(p.history), decide.Switch{Timeline: p.tli, LSN: catalog.LSN(p.len())})
	p.tli++
	p.signal, p.primary = false, true
	p.n.w.checkStandbys()
}

// lastBarrier is the position of the newest barrier up to another, 0 = none.
func (p *postgres) lastBarrier(lsn int) int {
	if lsn == 0 {
		return 0
	}
	return p.log[lsn-1].last
}

// row is the newest barrier that was replayed.
func (p *postgres) row() decide.TermRow {
	at := p.lastBarrier(p.replayed)
	if at == 0 {
		return decide.TermRow{}
	}
	return decide.TermRow{Term: p.log[at-1].term, Timeline: p.log[at-1].tli}
}

// rows are all barriers that were replayed.
func (p *postgres) rows() []decide.TermRow {
	list := []decide.TermRow{}
	for at := p.lastBarrier(p.replayed); at > 0; at = p.lastBarrier(at - 1) {
		list = append(list, decide.TermRow{Term: p.log[at-1].term, Timeline: p.log[at-1].tli})
	}
	return list
}

// rewindTo makes the log a beginning of the source's: what both have in common.
func (p *postgres) rewindTo(u *postgres, whole bool) {
	common := 0
	for common < min(p.len(), u.len()) && p.log[common].hash == u.log[common].hash {
		common++
	}
	if whole {
		common = u.len()
	}
	p.log = slices.Clone(u.log[:common])
	p.tli, p.history = 1, nil
	if common > 0 {
		p.adopt(u)
	}
	p.empty, p.signal, p.replayed, p.bare = false, true, common, true
}
