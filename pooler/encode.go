package pooler

import (
	"encoding/binary"

	"neki/internal/pgerr"
	"neki/pooler/backend"
)

// abortName is the name of a prepared statement that no server has: binding it makes a segment fail.
const abortName = "neki-abort"

// parsing is a Parse in the present segment: if the segment fails at or before it, the statement does not exist.
type parsing struct {
	index     int // of the expected answer
	statement *preparedStatement
	own       bool // the client's Parse: its name becomes free again
}

// unparse undoes the Parse messages that were not run because the answer at index was an error.
func (c *Session) unparse(index int) {
	for _, p := range c.parsing {
		if p.index < index {
			continue
		}
		if c.lease != nil {
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
	for i := range ops {
		o := &ops[i]
		if i == failAt {
			return c.encodeFailure(out, o)
		}
		out = c.encodeOp(out, sc, o)
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
	c.expect(o.typ, backend.Forward, o.plan)
	return append(out, raw...)
}

// encodeNamedParse prepares a named statement on sc, or answers for it when sc has it from another client.
func (c *Session) encodeNamedParse(out []byte, sc *backend.ServerConn, o *op) []byte {
	if sc.Prepared(o.named.shared) {
		c.expect('P', backend.Synth, nil)
	} else {
		out = sc.Prepare(out, c.work.relay, o.named.shared, backend.Forward)
		c.alignPlans()
	}
	c.parsing = append(c.parsing, parsing{index: len(c.work.plans) - 1, statement: o.named, own: true})
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
	if sc.Prepared(o.named.shared) {
		return out
	}
	out = sc.Prepare(out, c.work.relay, o.named.shared, backend.Swallow)
	c.alignPlans()
	c.parsing = append(c.parsing, parsing{index: len(c.work.plans) - 1, statement: o.named})
	return out
}

// alignPlans makes plans as long as the relay's expectations.
func (c *Session) alignPlans() {
	w := c.work
	for len(w.plans) < w.relay.Expected() {
		w.plans = append(w.plans, nil)
	}
}

func (c *Session) encodeFailure(out []byte, o *op) []byte {
	c.work.relay.Replacement = encodeError(nil, o.err.WithSeverity(pgerr.SeverityError))
	c.expect('B', backend.Replace, o.plan)
	out = append(out, 'B')
	out = binary.BigEndian.AppendUint32(out, uint32(4+1+len(abortName)+1+6))
	out = append(append(append(out, 0), abortName...), 0)
	return append(out, 0, 0, 0, 0, 0, 0)
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
