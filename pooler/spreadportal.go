package pooler

import (
	"encoding/binary"
	"io"

	"neki/catalog"
	"neki/internal/pgerr"
	"neki/pooler/fanout"
	"neki/pooler/plan"
	"neki/sqlparse"
)

// replySize is how much of an answer is collected before it is written.
const replySize = 64 << 10

// spreadSimple runs a statement of a string on its shards.
func (c *Session) spreadSimple(text []byte, part plan.Part, snap *catalog.Snapshot) error {
	outside := c.stx == nil
	v := &plan.Values{Text: text[part.Start:part.End]}
	s, _, err := c.openSpread(part.Plan, v, nil, snap)
	if err == errNotSpread {
		return c.runGroup(text, []plan.Part{part}, snap)
	}
	switch {
	case err != nil:
	case part.Plan.Kind == sqlparse.KindDeclare:
		if err = c.declare(s, outside); err != nil {
			err = s.failed(err)
		}
	case part.Plan.CopyIn != nil:
		if err = c.startSplit(s, outside, false); err == nil {
			return nil
		}
		err = s.failed(err)
	default:
		if err = c.giveAll(s); err == nil {
			s.close()
		} else if s.again(err) {
			s.close()
			return c.spreadSimple(text, part, c.srv.cfg.Cluster.Snapshot())
		} else {
			err = s.failed(err)
		}
	}
	return c.endSpreadSimple(s, err, outside)
}

// endSpreadSimple answers a statement of a string that has run on its shards, or has failed.
func (c *Session) endSpreadSimple(s *spread, err error, outside bool) error {
	if err := c.endOutside(err, outside); err != nil {
		return c.failPart(pgerr.From(err))
	}
	c.work.reply = appendComplete(c.work.reply, s.tag())
	return c.sendReply()
}

// giveAll sends the description and the rows of a spread to the client.
func (c *Session) giveAll(s *spread) error {
	w := c.work
	described := false
	for {
		rows, n, err := s.next()
		if err != nil && err != io.EOF {
			return err
		}
		if !described {
			described, s.answered = true, true
			head, openErr := s.opening()
			if openErr != nil {
				return openErr
			}
			w.reply = append(w.reply, head...)
		}
		if err == io.EOF {
			if s.copies() {
				w.reply = append(w.reply, s.endCopyOut()...)
			}
			return nil
		}
		s.rows += int64(n)
		w.relay.Rows += uint64(n)
		w.reply = append(w.reply, rows...)
		if len(w.reply) >= replySize {
			if err := c.sendReply(); err != nil {
				return err
			}
		}
	}
}

// executeSpread runs a portal over several shards, up to the row limit of the message.
func (c *Session) executeSpread(p *ownPortal, limit int) error {
	c.describing = nil
	if p.ran && p.spread == nil { // it is at its end
		if p.plan.Verdict == plan.Write {
			return pgerr.New(pgerr.ObjectNotInPrerequisiteState, "portal \"%s\" cannot be run", p.name)
		}
		c.work.reply = appendComplete(c.work.reply, "SELECT 0")
		return nil
	}
	if !p.ran {
		if err := c.keepSuspended(); err != nil {
			return err
		}
		s, shard, err := c.openSpread(p.plan, p.values, p.formats, c.srv.cfg.Cluster.Snapshot())
		if err == errNotSpread && p.runs {
			p.plan = p.plan.AsSpread()
			s, shard, err = c.openSpread(p.plan, p.values, p.formats, c.srv.cfg.Cluster.Snapshot())
		}
		if err == errNotSpread {
			return pgerr.New(pgerr.InternalError, "the shards of a portal have changed to %q", shard)
		}
		if err != nil {
			return err
		}
		p.ran = true
		if p.plan.Kind == sqlparse.KindDeclare {
			if err := c.declare(s, c.stx == nil || c.stx.implicit); err != nil {
				return s.failed(err)
			}
			c.work.reply = appendComplete(c.work.reply, s.tag())
			return nil
		}
		if p.plan.CopyIn != nil {
			if err := c.startSplit(s, false, true); err != nil {
				return s.failed(err)
			}
			return nil
		}
		p.spread = s
	}
	c.suspended = nil
	p.spread.rows = 0 // a tag counts the rows since the last
	more, err := c.giveSome(p, limit)
	if err != nil {
		s := p.spread
		p.spread = nil
		if s.again(err) {
			s.close()
			p.ran = false
			return c.executeSpread(p, limit)
		}
		return s.failed(err)
	}
	if more {
		c.suspended = p.spread
		p.spread.portal = p
		c.work.reply = append(c.work.reply, 's', 0, 0, 0, 4)
		return nil
	}
	p.spread.close()
	c.work.reply = appendComplete(c.work.reply, p.spread.tag())
	p.spread = nil
	return nil
}

// giveSome sends up to limit rows (0 = all) of a portal, and reports whether it may have more.
func (c *Session) giveSome(p *ownPortal, limit int) (more bool, err error) {
	w, s := c.work, p.spread
	if s.copies() {
		return false, c.giveAll(s)
	}
	for given := 0; limit <= 0 || given < limit; {
		rows, n := p.rest, 0
		p.rest = nil
		if len(rows) == 0 {
			if rows, _, err = s.next(); err != nil && err != io.EOF {
				return false, err
			}
		}
		s.answered = true
		if p.asked {
			p.asked = false
			if describeErr := c.describeSpread(p); describeErr != nil {
				return false, describeErr
			}
		}
		if err == io.EOF {
			return false, nil
		}
		most := -1
		if limit > 0 {
			most = limit - given
		}
		rows, p.rest, n = splitRows(rows, most)
		given += n
		s.rows += int64(n)
		w.relay.Rows += uint64(n)
		w.reply = append(w.reply, rows...)
		if len(w.reply) >= replySize {
			if err := c.sendReply(); err != nil {
				return false, err
			}
		}
	}
	return true, nil
}

// splitRows cuts DataRow messages behind the first most ones; -1 = all.
func splitRows(rows []byte, most int) (first, rest []byte, n int) {
	at := 0
	for at < len(rows) && n != most {
		at += int(binary.BigEndian.Uint32(rows[at+1:])) + 1
		n++
	}
	return rows[:at], rows[at:], n
}

// describeSpread answers the Describe of a portal whose rows are there.
func (c *Session) describeSpread(p *ownPortal) error {
	d, err := p.spread.description()
	if err != nil {
		return err
	}
	if d == nil {
		d = []byte{'n', 0, 0, 0, 4}
	}
	c.work.reply = append(c.work.reply, d...)
	return nil
}

// answerDescribe answers a Describe of a portal that waits for its rows, unless o, the next message, brings them.
func (c *Session) answerDescribe(o *op, snap *catalog.Snapshot) error {
	p := c.describing
	if p == nil {
		return nil
	}
	if o != nil && o.typ == 'E' && o.spread {
		f := fields{rest: c.work.in[o.at+5 : o.end]}
		if c.ownPortals[string(f.text())] == p {
			return nil
		}
	}
	c.describing, p.asked = nil, false
	d, err := c.describeOnShard(p, snap)
	if err != nil {
		return c.failOwn(pgerr.From(err))
	}
	c.work.reply = append(c.work.reply, d...)
	return nil
}

// describeOnShard has a shard describe what the portal's statement gives.
func (c *Session) describeOnShard(p *ownPortal, snap *catalog.Snapshot) ([]byte, error) {
	if p.spread != nil {
		return p.spread.description()
	}
	sc, err := c.connection(catalog.RolePrimary, c.anywhere(p.plan), snap, 0)
	if err != nil {
		return nil, err
	}
	defer c.releaseIfFree()
	sc.SetUnnamed(0)
	s := &spread{values: p.values, types: p.values.OIDs}
	out := appendParseOf(nil, string(p.values.Text), s.types)
	out = s.appendBind(out, p.formats)
	out = append(out, 'D', 0, 0, 0, 6, 'P', 0, 'S', 0, 0, 0, 4)
	legs := fanout.Start([]fanout.Request{{Conn: sc, Out: out}}, false)
	defer legs.Close()
	answer := []byte{'n', 0, 0, 0, 4}
	for {
		piece, err := legs.NextOf(c.srv.dbs.ctx, 0)
		switch {
		case err == io.EOF:
			return answer, nil
		case err != nil:
			return nil, err
		case piece.Kind == fanout.Failed:
			c.status = sc.Status()
			return nil, piece.Err
		case piece.Kind == fanout.Described:
			answer = endMessage(append([]byte{'T', 0, 0, 0, 0}, piece.Data...), 0)
		}
	}
}

// keepSuspended frees the connections of a portal that has rows left, because something else is about to use them: the
// rows are read into memory.
func (c *Session) keepSuspended() error {
	s := c.suspended
	if s == nil {
		return nil
	}
	c.suspended = nil
	if p := c.current; p != nil && !s.own {
		switch {
		case p.Kind == sqlparse.KindRollback, p.Kind == sqlparse.KindCommit && c.status == 'E':
			s.close()
			return nil
		case p.Kind == sqlparse.KindCommit:
			return s.discardRest()
		}
	}
	return s.keepRest()
}

// dropSuspended ends a portal that has rows left.
func (c *Session) dropSuspended() {
	s := c.suspended
	c.suspended = nil
	s.close()
}

// leaveSuspended ends a portal that has rows left, and whose transaction is about to commit: a server that is cancelled would
// not.
func (c *Session) leaveSuspended() error {
	s := c.suspended
	if c.failed || c.status == 'E' || s.own {
		c.dropSuspended()
		return nil
	}
	c.suspended = nil
	return s.discardRest()
}

// keepRest reads the rest of the answer into memory, and gives the connections back.
func (s *spread) keepRest() error {
	for {
		rows, _, err := s.next()
		if err == io.EOF {
			s.close()
			return nil
		}
		if err == nil {
			err = s.budget.Take(int64(len(rows)))
		}
		if err != nil {
			return s.failed(err)
		}
		s.portal.rest = append(s.portal.rest, rows...)
	}
}

// endImplicitSegment takes the Sync that ends a segment for which the gateway has begun a transaction.
func (c *Session) endImplicitSegment() error {
	w := c.work
	if c.suspended != nil {
		if err := c.leaveSuspended(); err != nil {
			c.failed = true
			w.reply = encodeError(w.reply, pgerr.From(err))
		}
	}
	if err := c.settleOpen(); err != nil {
		return c.relayFailed(err)
	}
	c.open = false
	if err := c.endImplicit(); err != nil {
		w.reply = encodeError(w.reply, pgerr.From(err))
	}
	return c.replyReady()
}
