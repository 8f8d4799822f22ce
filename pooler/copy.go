package pooler

import (
	"encoding/binary"
)

// startCopy enters COPY FROM STDIN: a server waits for data.
func (c *Session) startCopy(extended bool) {
	c.phase = phaseCopying
	c.copyEx = extended
	if extended {
		c.work.relay.IgnoreSyncs()
	}
}

// copyMessage handles a message that comes while a server waits for COPY data.
func (c *Session) copyMessage(m message) error {
	if c.split != nil {
		return c.splitMessage(m)
	}
	switch m.typ {
	case 'd':
		return c.feed(c.wholeCopyData(m))
	case 'H', 'S':
		return nil // the server would ignore it: it is not counted either
	}
	return c.endCopy(m) // anything but CopyDone and CopyFail makes the server end the COPY with its own error
}

// wholeCopyData gives m and all whole CopyData messages that follow it at once in the buffer.
func (c *Session) wholeCopyData(m message) []byte {
	w := c.work
	for w.end-w.start >= 5 && w.in[w.start] == 'd' {
		size := int(binary.BigEndian.Uint32(w.in[w.start+1:])) + 1
		if size < 5 || w.end-w.start < size {
			break
		}
		w.start += size
	}
	return w.in[m.at:w.start]
}

// copyPart passes on the beginning of a CopyData message that is larger than what has come of it.
func (c *Session) copyPart(rest []byte, size int) error {
	c.copied = size - len(rest)
	c.work.start += len(rest)
	if c.split != nil {
		return c.splitPart(rest[5:])
	}
	return c.feed(rest)
}

// copyOn passes on more of that message: to the end, even if the COPY has failed, because the server has its beginning.
func (c *Session) copyOn() error {
	w := c.work
	n := min(c.copied, w.end-w.start)
	if n == 0 {
		return nil
	}
	part := w.in[w.start : w.start+n]
	w.start += n
	c.copied -= n
	switch {
	case c.phase != phaseCopying: // the connection is lost
		return nil
	case c.split != nil:
		return c.splitPart(part)
	}
	return c.feed(part)
}

// feed sends COPY data to the server and passes on an error that comes early.
func (c *Session) feed(data []byte) error {
	w := c.work
	if err := w.relay.Feed(c.lease, data, w.answers); err != nil {
		return c.relayFailed(err)
	}
	return c.copyGoesOn()
}

// copyGoesOn leaves the COPY if the server has ended it, and all of a message that it has the beginning of was sent.
func (c *Session) copyGoesOn() error {
	if c.copied > 0 || !c.failed && c.work.relay.Pending() {
		return nil
	}
	return c.copyEnded()
}

// hearServer passes on what the server says while the client is slow to send more: an error, or its end.
func (c *Session) hearServer() error {
	c.clearInterrupt()
	w := c.lend()
	if c.split != nil {
		if err := c.split.hear(); err != nil {
			return c.splitEnded(err)
		}
		return nil
	}
	if err := w.relay.Poll(c.lease, w.answers); err != nil {
		return c.relayFailed(err)
	}
	return c.copyGoesOn()
}

// endCopy sends the client's end of the data. In the extended protocol the server answers at the next Sync.
func (c *Session) endCopy(m message) error {
	w := c.work
	if c.copyEx {
		if err := w.relay.Feed(c.lease, m.raw, w.answers); err != nil {
			return c.relayFailed(err)
		}
		c.phase = phaseReady
		if c.failed {
			c.phase = phaseSkipping
		}
		c.open = true
		return nil
	}
	if err := w.relay.Run(c.lease, m.raw, w.answers); err != nil {
		return c.relayFailed(err)
	}
	if w.relay.CopyIn { // the next statement of the string is a COPY too
		return nil
	}
	return c.copyEnded()
}

// copyEnded leaves COPY after the server's answer.
func (c *Session) copyEnded() error {
	w := c.work
	if c.copyEx {
		c.phase = phaseSkipping // the server drops everything up to the Sync, which is passed on then
		c.open = true
		return nil
	}
	if w.relay.Pending() { // an error was passed on; ReadyForQuery follows it at once
		if err := w.relay.Run(c.lease, nil, w.answers); err != nil {
			return c.relayFailed(err)
		}
	}
	c.phase = phaseReady
	if rest := c.behind; rest != nil {
		c.behind = nil
		c.afterReady()
		c.releaseIfFree()
		return c.runRest(rest.text, rest.parts, c.srv.cfg.Cluster.Snapshot())
	}
	return c.finish(c.srv.now())
}

// awaitCopy waits for the end of a COPY of the extended protocol whose Sync has not come: what follows depends on whether it
// has failed.
func (c *Session) awaitCopy() error {
	w := c.work
	w.out = append(w.out[:0], 'H', 0, 0, 0, 4)
	if err := w.relay.Run(c.lease, w.out, w.answers); err != nil {
		return c.relayFailed(err)
	}
	if c.failed {
		c.phase = phaseSkipping
	}
	return nil
}
