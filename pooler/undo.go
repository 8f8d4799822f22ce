package pooler

// replaceUnnamed puts the unnamed statement away, because the message o takes its place.
func (c *Session) replaceUnnamed(o *op) {
	w := c.work
	if n := len(w.replaced); n < cap(w.replaced) {
		w.replaced = w.replaced[:n+1] // with the buffer of an earlier one
	} else {
		w.replaced = append(w.replaced, unnamedStatement{})
	}
	last := &w.replaced[len(w.replaced)-1]
	c.unnamed, *last = *last, c.unnamed
	c.unnamed = unnamedStatement{parse: c.unnamed.parse[:0]}
	o.replaced.unnamed = len(w.replaced)
}

// forgetReplaced forgets the unnamed statements of the last segment, but for the room they took.
func (w *work) forgetReplaced() {
	for i := range w.replaced {
		w.replaced[i] = unnamedStatement{parse: w.replaced[i].parse[:0]}
	}
	w.replaced = w.replaced[:0]
}

// undo takes back what the collected messages from the given one on have changed in the session, because an error
// before them makes the server skip them. They are not collected any more.
func (c *Session) undo(from int) {
	w := c.work
	for i := len(w.ops) - 1; i >= from; i-- {
		c.undoOne(&w.ops[i])
	}
	w.ops = w.ops[:min(from, len(w.ops))]
}

func (c *Session) undoOne(o *op) {
	r := &o.replaced
	switch {
	case r.unnamed > 0:
		w := c.work
		c.unnamed, w.replaced[r.unnamed-1] = w.replaced[r.unnamed-1], c.unnamed
	case o.typ == 'P' && o.named != nil:
		c.forget(o.named)
	case r.statement != nil:
		c.keep(r.statement)
	case r.portal != nil:
		c.setPortal([]byte(r.name), r.portal)
	}
}

// forget removes a named statement: its Parse failed, so the name is free.
func (c *Session) forget(s *preparedStatement) {
	for name, have := range c.statements {
		if have == s {
			delete(c.statements, name)
			return
		}
	}
}

// renewAt has the statement of the request whose answer at index was an error prepared anew when it is used next: its
// result may have changed.
func (c *Session) renewAt(index int) {
	for i := range c.work.running {
		o := &c.work.running[i]
		if o.answer == index && o.named != nil && c.lease != nil {
			c.lease.Renew(o.named.shared)
		}
	}
}

// failedAt takes back what the messages have changed that the server skips: the answer at index was an error.
func (c *Session) failedAt(index int) {
	w := c.work
	if c.lease != nil {
		c.lease.SetUnnamed(0)
	}
	running := w.running
	w.running = nil
	for i := range running {
		o := &running[i]
		if o.answer == index && o.typ == 'P' && o.named == nil && o.err == nil {
			defer c.dropUnnamed() // after what came behind it has been taken back
		}
		if o.answer < 0 || o.answer > index {
			c.undo(w.runningAt + i)
			return
		}
	}
}

func (c *Session) dropUnnamed() { c.unnamed = unnamedStatement{parse: c.unnamed.parse[:0]} }

// dropPortal forgets the plan of a portal.
func (c *Session) dropPortal(name []byte) {
	if len(name) == 0 {
		c.portal = nil
		return
	}
	delete(c.portals, string(name))
}
