package pooler

import (
	"slices"
	"strconv"
	"sync"
	"time"

	"neki/internal/pgerr"
	"neki/pooler/backend"
	"neki/pooler/copydata"
	"neki/pooler/plan"
)

// splitCopy is a COPY ... FROM STDIN whose rows go to several shards. The session's goroutine reads the client's data, cuts
// it into rows and sends each to its shard; a shard that is busy makes it wait, and so the client. A failure on one ends
// the COPY on all.
type splitCopy struct {
	*spread
	in       *plan.CopyIn
	sql      string // what the shards are sent
	rows     *copydata.Splitter
	lanes    []*copyLane
	lines    int64 // of the data so far
	header   copydata.Row
	extra    copyExtra
	copied   int64 // rows of COPYs that have ended on the way
	extended bool
	outside  bool // the transaction is the COPY's own

	// What follows in the string.
	text []byte
	rest []plan.Part
}

// startSplit begins the COPY on every shard and tells the client to send its data.
func (c *Session) startSplit(s *spread, outside, extended bool) error {
	in := s.plan.CopyIn
	format := in.Format
	format.Marker = c.serverMajor() < versionWithoutMarker
	x := &splitCopy{spread: s, in: in, rows: copydata.New(format), outside: outside, extended: extended}
	leg := s.legs[0]
	for _, shard := range leg.shards {
		x.lanes = append(x.lanes, &copyLane{member: s.lane(shard)})
		s.calls++
	}
	if err := x.firstExtra(); err != nil {
		return err
	}
	if x.sql = leg.texts[0]; in.SQL != "" {
		x.sql = in.SQL
	}
	x.each(func(l *copyLane) { l.begin(x.sql) })
	if err := x.failure(); err != nil {
		x.abort()
		return err
	}
	s.unwatch()
	s.unwatch = c.cancelOnInterrupt(x.interrupted)
	c.split, c.phase, c.copyEx = x, phaseCopying, extended
	x.feeds(true)
	c.work.reply = append(c.work.reply, fewerColumns(x.lanes[0].columns, len(in.Extra))...)
	return c.sendReply()
}

// versionWithoutMarker is the first version that takes a line of \. in csv for data.
const versionWithoutMarker = 18

// serverMajor gives the major version of the client's servers.
func (c *Session) serverMajor() int {
	version, _ := c.shownParameter("server_version")
	end := 0
	for end < len(version) && version[end] >= '0' && version[end] <= '9' {
		end++
	}
	major, _ := strconv.Atoi(version[:end])
	return major
}

// feeds makes the servers known that the session feeds, to those who look after it.
func (x *splitCopy) feeds(on bool) {
	c := x.c
	c.mu.Lock()
	defer c.mu.Unlock()
	c.feeders = nil
	if on {
		for _, l := range x.lanes {
			c.feeders = append(c.feeders, l.sc)
		}
	}
}

// each does something with all lanes at once, and passes on the notices that the servers sent meanwhile.
func (x *splitCopy) each(do func(l *copyLane)) {
	var wg sync.WaitGroup
	for _, l := range x.lanes {
		wg.Go(func() { do(l) })
	}
	wg.Wait()
	x.passNotices()
}

func (x *splitCopy) passNotices() {
	for _, l := range x.lanes {
		if len(l.notices) > 0 {
			_, _ = x.c.conn.Write(l.notices) // a client that is gone is noticed at the next write
			l.notices = l.notices[:0]
		}
	}
}

// failure gives the error of the first lane that has one.
func (x *splitCopy) failure() error {
	for _, l := range x.lanes {
		if l.err != nil {
			return l.err
		}
	}
	return nil
}

// interrupted cancels the COPY on all shards, and wakes the session to notice.
func (x *splitCopy) interrupted() {
	x.cancel()
	x.cancelServers()
	if x.c.feeding.CompareAndSwap(true, false) {
		x.c.conn.InterruptRead()
	}
}

// cancelServers sends a cancel request to each server.
func (x *splitCopy) cancelServers() {
	var wg sync.WaitGroup
	for _, l := range x.lanes {
		l.sc.BeginCancel()
		wg.Go(func() { x.c.srv.deliverCancel(l.sc) })
	}
	wg.Wait()
}

// take takes data of the client.
func (x *splitCopy) take(data []byte) error {
	if x.ctx.Err() != nil {
		return x.c.cancellation()
	}
	x.rows.Write(data)
	return x.route()
}

// route sends the whole rows that have come to their shards.
func (x *splitCopy) route() error {
	for {
		row, ok, err := x.rows.Next()
		if err == nil && ok {
			err = x.give(row)
		}
		if err != nil || !ok {
			return x.inContext(err)
		}
	}
}

// inContext adds the line to an error of the gateway's own.
func (x *splitCopy) inContext(err error) error {
	e := pgerr.From(err)
	if e == nil || e.Where != "" || x.failure() != nil {
		return err
	}
	own := *e
	own.Where = "COPY " + x.plan.Copy.Relation.Name + ", line " + strconv.FormatInt(x.lines+1, 10)
	return &own
}

// give adds a row to what its shards get.
func (x *splitCopy) give(row copydata.Row) error {
	x.lines += int64(row.Lines)
	if row.Kind == copydata.Header {
		row = x.keepHeader(row)
	} else if (row.Kind == copydata.Data || row.Kind == copydata.Last) && len(x.in.Extra) > 0 {
		var err error
		if row, err = x.completed(row); err != nil {
			return err
		}
	}
	switch {
	case row.Kind == copydata.Header, row.Kind == copydata.End && x.in.Format.Binary, x.in.Index == nil && row.Kind != copydata.End:
		for _, l := range x.lanes {
			if err := x.send(l, row); err != nil {
				return err
			}
		}
		return nil
	case row.Kind == copydata.End:
		return nil
	case row.Kind == copydata.Broken, row.Missing:
		return x.send(x.lanes[0], row) // which says what is wrong with it
	}
	shard, err := x.in.Shard(row.Field, x.session)
	if err != nil {
		x.lines -= int64(row.Lines)
		return err
	}
	at := slices.IndexFunc(x.lanes, func(l *copyLane) bool { return l.place.shard == shard })
	if at < 0 {
		return pgerr.New(pgerr.InternalError, "shard \"%s\" is not one of the COPY's", shard)
	}
	return x.send(x.lanes[at], row)
}

func (x *splitCopy) send(l *copyLane, row copydata.Row) error {
	l.add(row, x.lines)
	if len(l.out) < laneSize {
		return nil
	}
	l.flush(x.c.lend().answers)
	x.passNotices()
	return l.err
}

// hear finds out whether a server has given up while the client is slow to send more.
func (x *splitCopy) hear() error {
	if x.ctx.Err() != nil { // a server that waits for data doesn't notice
		return x.c.cancellation()
	}
	for _, l := range x.lanes {
		l.poll(x.c.lend().answers)
	}
	x.passNotices()
	return x.failure()
}

// finish ends the COPY on all shards.
func (x *splitCopy) finish() error {
	x.rows.Finish()
	if err := x.route(); err != nil {
		return err
	}
	x.each(func(l *copyLane) {
		l.flush(make([]byte, memberBuffer))
		if l.err == nil {
			l.end([]byte{'c', 0, 0, 0, 4})
		}
	})
	return x.failure()
}

// abortLimit bounds how long the shards may take to give up.
const abortLimit = 10 * time.Second

// abort ends the COPY on all shards without keeping anything.
func (x *splitCopy) abort() {
	busy := slices.ContainsFunc(x.lanes, func(l *copyLane) bool { return !l.ended && !l.lost })
	if busy { // a server may wait for a lock, and read the message only then
		x.cancelServers()
	}
	deadline := time.Now().Add(abortLimit)
	x.each(func(l *copyLane) {
		l.sc.SetDeadline(deadline)
		l.end(appendCopyFail(nil, "another shard refused the data"))
		l.sc.SetDeadline(time.Time{})
	})
}

// tag gives the command tag: the sum of the shards' rows, or those of one copy.
func (x *splitCopy) tag() string {
	n := x.copied
	for _, l := range x.lanes {
		if x.in.Index != nil || l == x.counted() {
			n += rowsOfTag(l.tag)
		}
	}
	return "COPY " + strconv.FormatInt(n, 10)
}

// splitMessage handles a message that comes during the COPY.
func (c *Session) splitMessage(m message) error {
	x := c.split
	switch m.typ {
	case 'd':
		if err := x.take(m.body()); err != nil {
			return c.splitEnded(err)
		}
		return nil
	case 'H', 'S':
		return nil
	case 'c':
		return c.splitEnded(x.finish())
	case 'f':
		x.each(func(l *copyLane) {
			l.flush(make([]byte, memberBuffer))
			l.end(m.raw)
		})
		return c.splitEnded(x.givenUp())
	}
	return c.splitOutOfStep(m.typ)
}

// splitOutOfStep ends the session, as a server does, for a message that has no place in a COPY.
func (c *Session) splitOutOfStep(typ byte) error {
	err := c.split.inContext(pgerr.New(pgerr.ProtocolViolation, "unexpected message type 0x%02X during COPY from stdin", typ))
	c.work.reply = encodeError(c.work.reply, pgerr.From(err))
	if err := c.sendReply(); err != nil {
		return err
	}
	return c.fatal(pgerr.New(pgerr.ProtocolViolation, "terminating connection because protocol synchronization was lost"))
}

// givenUp gives the error of a COPY that the client has ended with CopyFail: as one server would say it, of the next line.
func (x *splitCopy) givenUp() error {
	e := pgerr.From(x.failure())
	if e == nil || e.Code != pgerr.QueryCanceled {
		return e
	}
	own := *e
	own.Where = ""
	for _, l := range x.lanes {
		l.err = nil
	}
	return x.inContext(&own)
}

// splitPart takes a part of a CopyData message that is longer than the input buffer.
func (c *Session) splitPart(data []byte) error {
	if err := c.split.take(data); err != nil {
		return c.splitEnded(err)
	}
	return nil
}

// splitEnded leaves the COPY: err is why it failed, nil when all shards have taken their rows.
func (c *Session) splitEnded(err error) error {
	x := c.split
	c.split, c.phase = nil, phaseReady
	x.feeds(false)
	if err != nil {
		x.abort()
		err = x.failed(err)
		c.failed = true
	} else {
		x.close()
	}
	c.clearInterrupt() // of a cancel that came last
	w := c.lend()
	if x.extended {
		if err != nil {
			c.phase = phaseSkipping
			return c.failOwn(pgerr.From(err))
		}
		w.reply = appendComplete(w.reply, x.tag())
		return c.sendReply()
	}
	if x.outside && len(x.rest) == 0 {
		if endErr := c.endImplicit(); err == nil {
			err = endErr
		}
	}
	if err != nil {
		if err := c.failPart(pgerr.From(err)); err != nil {
			return err
		}
	} else {
		w.reply = appendComplete(w.reply, x.tag())
	}
	return c.runRest(x.text, x.rest, c.srv.cfg.Cluster.Snapshot())
}

// leaveSplit ends a COPY whose client is gone.
func (c *Session) leaveSplit(wait bool) {
	x := c.split
	if x == nil {
		return
	}
	c.split, c.phase = nil, phaseReady
	x.feeds(false)
	if wait {
		x.abort()
	}
	x.close()
}

// eachFed calls do with every server that the session feeds. The caller holds mu.
func (c *Session) eachFed(do func(sc *backend.ServerConn)) {
	if c.active != nil {
		do(c.active)
	}
	for _, sc := range c.feeders {
		do(sc)
	}
}
