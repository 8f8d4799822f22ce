package pooler

import (
	"encoding/binary"

	"neki/internal/pgerr"
	"neki/pooler/backend"
)

// parsing is a Parse in the present segment: if the segment fails at or before it, the statement does not exist.
type parsing struct {
	index     int // of the expected answer
	statement *preparedStatement
	own       bool // the client's Parse: its name becomes free again
	known     bool // the server had it before
}

// unparse undoes the Parse messages that were not run because the answer at index was an error.
func (c *Session) unparse(index int) {
	for _, p := range c.parsing {
		if p.index < index {
			continue
		}
		if c.lease != nil && !p.known {
			c.lease.Forget(p.statement.shared)
		}
		if p.own {
			c.forget(p.statement)
		}
	}
	c.parsing = c.parsing[:0]
}

// encodeSegment appends the messages of a segment as sc must get them: names of statements replaced by the shared ones,
// statements that sc does not know prepared before they are used. The op at failAt is made to fail on the server, so
// that what the segment did before is undone, and the client gets the op's error.
func (c *Session) encodeSegment(out []byte, sc *backend.ServerConn, ops []op, failAt int) []byte {
	c.work.mayBeStale = false
	for i := range ops {
		o := &ops[i]
		if i == failAt {
			out = c.encodeFailure(out, sc, o)
			o.answer = len(c.work.plans) - 1
			return out
		}
		out = c.encodeOp(out, sc, o)
		o.answer = len(c.work.plans) - 1
	}
	if len(c.work.sql.names) > 0 {
		c.work.relay.Rewrite = c.clientError
	}
	return out
}

func (c *Session) encodeOp(out []byte, sc *backend.ServerConn, o *op) []byte {
	raw := c.work.in[o.at:o.end]
	if o.plan != nil && o.plan.Runs != "" {
		out = c.encodeRun(out, sc, o)
	}
	switch {
	case o.typ == 'P' && o.named != nil:
		return c.encodeNamedParse(out, sc, o)
	case o.typ == 'P':
		u := c.unnamedOf(o)
		sc.SetUnnamed(u.token)
		c.expect('P', backend.Forward, o.plan)
		if u.sent != nil {
			raw = u.sent
		}
		return append(out, raw...)
	case o.typ == 'B', o.typ == 'D' && o.statement:
		out = c.encodePrepared(out, sc, o)
		c.expect(o.typ, backend.Forward, o.plan)
		if o.named == nil {
			return append(out, raw...)
		}
		return appendRenamed(out, raw, o.nameAt, o.nameEnd, o.named.shared.Name())
	case o.typ == 'C' && o.statement:
		c.expect('C', backend.Synth, nil)
		return out
	}
	out = c.describeFirst(out, sc, o)
	c.expect(o.typ, backend.Forward, o.plan)
	return append(out, raw...)
}

// encodeNamedParse prepares a named statement on sc, or answers for it when sc has it from another client.
func (c *Session) encodeNamedParse(out []byte, sc *backend.ServerConn, o *op) []byte {
	known := c.usable(sc, o.named)
	if known {
		c.expect('P', backend.Synth, nil)
	} else {
		out = sc.Prepare(out, c.work.relay, o.named.shared, backend.Forward)
		sc.NotePrepared(o.named.shared, c.srv.nextToken())
		c.alignPlans()
	}
	c.parsing = append(c.parsing, parsing{index: len(c.work.plans) - 1, statement: o.named, own: true, known: known})
	return out
}

// encodePrepared makes sure that sc knows the statement that o is about.
func (c *Session) encodePrepared(out []byte, sc *backend.ServerConn, o *op) []byte {
	if o.named == nil {
		if u := c.unnamedOf(o); sc.Unnamed() != u.token {
			sc.SetUnnamed(u.token)
			c.expect('P', backend.Swallow, nil)
			out = append(out, u.message()...)
		}
		return out
	}
	if c.usable(sc, o.named) {
		return out
	}
	out = sc.Prepare(out, c.work.relay, o.named.shared, backend.Swallow)
	sc.NotePrepared(o.named.shared, c.srv.nextToken())
	c.alignPlans()
	c.parsing = append(c.parsing, parsing{index: len(c.work.plans) - 1, statement: o.named})
	return out
}

// usable reports whether s can be used on sc as it was prepared there. When that was before the client's Parse, tables
// may have been changed in between, of which the client need not know: outside a transaction the error of that is seen to
// when it comes, within one it must not come.
func (c *Session) usable(sc *backend.ServerConn, s *preparedStatement) bool {
	known, since := sc.PreparedSince(s.shared, s.at)
	switch {
	case !known || since:
		return known
	case c.status == 'I' && !c.open:
		c.work.mayBeStale = true
		return true
	}
	sc.Renew(s.shared)
	return false
}

// heal prepares for another run of a segment on sc, which has failed because a statement of another client was used
// that sc has prepared before its tables were changed: all such are prepared anew.
func (c *Session) heal(sc *backend.ServerConn) {
	w := c.work
	sc.SetStatus(w.relay.Status)
	for _, p := range c.parsing {
		if p.index >= w.relay.Failed && !p.known {
			sc.Forget(p.statement.shared)
		}
	}
	for i := range w.ops {
		if s := w.ops[i].named; s != nil {
			if known, since := sc.PreparedSince(s.shared, s.at); known && !since {
				sc.Renew(s.shared)
			}
		}
	}
	w.relay.Begin()
	w.plans, c.parsing = w.plans[:0], c.parsing[:0]
	w.sql.begin()
	c.failed = false
}

// alignPlans makes plans as long as the relay's expectations.
func (c *Session) alignPlans() {
	w := c.work
	for len(w.plans) < w.relay.Expected() {
		w.plans = append(w.plans, nil)
	}
}

func (c *Session) encodeFailure(out []byte, sc *backend.ServerConn, o *op) []byte {
	c.work.relay.Replacement = encodeError(nil, o.err.WithSeverity(pgerr.SeverityError))
	if o.after != nil { // what Postgres would say first
		c.expect('P', backend.Swallow, o.plan)
		sc.SetUnnamed(0)
		out = append(out, o.after...)
	}
	c.expect('B', backend.Replace, o.plan)
	return backend.AppendFailure(out)
}

// appendRenamed appends raw with its bytes from a to b, a name, replaced.
func appendRenamed(out, raw []byte, a, b int, name []byte) []byte {
	start := len(out)
	out = append(out, raw[:a]...)
	out = append(out, name...)
	out = append(out, raw[b:]...)
	binary.BigEndian.PutUint32(out[start+1:], uint32(len(out)-start-1))
	return out
}
