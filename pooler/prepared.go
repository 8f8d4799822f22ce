package pooler

import (
	"strings"

	"neki/internal/pgerr"
	"neki/pooler/backend"
	"neki/pooler/plan"
	"neki/sqlparse"
)

// preparedStatement is a named statement of a client, made by a Parse message or by SQL's PREPARE: Postgres has one set
// of names for both.
type preparedStatement struct {
	name   string
	shared *backend.Statement
	plan   *plan.Plan  // of what it runs
	sql    []byte      // the client's PREPARE; nil when made by a Parse
	keyed  *keyedTypes // of one that the gateway itself runs
	at     uint64      // when the client sent its Parse, as Server.nextToken counts; 0: by PREPARE

	// Of a Parse whose text runs a prepared statement itself: shared has the text with that one's name on servers.
	written *backend.Statement // as the client wrote it
	spelled *preparedStatement // whose name shared has

	running runningPlan
}

// runningPlan remembers the plan of an EXECUTE of a statement.
type runningPlan struct{ execute, inner, plan *plan.Plan }

// original gives the statement as the client wrote it.
func (s *preparedStatement) original() *backend.Statement {
	if s.written != nil {
		return s.written
	}
	return s.shared
}

// execute gives the plan of p, an EXECUTE, when s is what it runs.
func (s *preparedStatement) execute(p *plan.Plan) *plan.Plan {
	if r := &s.running; r.execute != p && r.plan != p || r.inner != s.plan {
		*r = runningPlan{p, s.plan, p.Running(s.plan)}
	}
	return s.running.plan
}

// sqlNames is what a session needs while it runs statements that name prepared statements in SQL.
type sqlNames struct {
	names     []naming             // where the text sent differs from the client's
	needed    []*preparedStatement // the server must know these
	preparing []*preparedStatement // PREPAREs that are under way, in their order
}

// begin forgets the last statement's.
func (n *sqlNames) begin() {
	n.names, n.needed, n.preparing = n.names[:0], n.needed[:0], n.preparing[:0]
}

// missingName is what a client's name of no statement is sent as: no server has it. Its error gets the client's name.
const missingName = "neki-missing"

// namesPrepared gives the name of the prepared statement that p names; ok is false when it names none.
func namesPrepared(p *plan.Plan) (name string, ok bool) {
	switch {
	case p.Runs != "":
		return p.Runs, true
	case p.Kind == sqlparse.KindPrepare, p.Kind == sqlparse.KindDeallocate && !p.Prepared.All:
		return p.Prepared.Name, true
	}
	return "", false
}

// knows reports whether the gateway has the say about a client's name. A pinned connection may have statements that it
// did not see being made, by DO or in text that does not parse: other names go there as they are.
func (c *Session) knows(name string) bool {
	return c.statements[name] != nil || c.pins&plan.PinOpaque == 0 || strings.HasPrefix(name, backend.NamePrefix)
}

// nameParts gives text with the names of prepared statements in parts replaced by those on servers, and makes the parts
// that run one have its plan. What it replaced, and what the server must know first, is in work.sql.
func (c *Session) nameParts(text []byte, parts []plan.Part) ([]byte, *pgerr.Error) {
	c.work.sql.begin()
	out := text
	for i := range parts {
		name, ok := namesPrepared(parts[i].Plan)
		if !ok || !c.knows(name) && c.underWay(name) == nil {
			continue
		}
		piece := text[parts[i].Start:parts[i].End]
		span, ok := sqlparse.PreparedName(string(piece))
		if !ok {
			return nil, pgerr.New(pgerr.InternalError, "the name of prepared statement \"%s\" was not found in the text", name)
		}
		with, err := c.serverName(&parts[i], name, piece, span)
		if err != nil {
			return nil, err
		}
		start, end := parts[i].Start+span.Start, parts[i].Start+span.End
		grown := len(out) - len(text)
		out = backend.AppendRenamed(nil, out, start+grown, end+grown, with)
		c.work.sql.names = append(c.work.sql.names, newNaming(text, start, end, name, with))
	}
	return out, nil
}

// serverName gives the name that servers know the client's name by, in one statement of a string.
func (c *Session) serverName(part *plan.Part, name string, piece []byte, span sqlparse.Span) ([]byte, *pgerr.Error) {
	s := c.underWay(name)
	if s == nil {
		if s = c.prepared(name); s != nil {
			c.work.sql.needed = append(c.work.sql.needed, s)
		}
	}
	switch {
	case part.Plan.Kind == sqlparse.KindPrepare && s == nil:
		s, err := c.newPrepared(part.Plan, piece, span)
		if err != nil {
			return nil, err
		}
		c.work.sql.preparing = append(c.work.sql.preparing, s)
		return s.shared.Name(), nil
	case s == nil:
		return []byte(missingName), nil
	case part.Plan.Runs != "":
		if err := c.executable(s); err != nil {
			return nil, err
		}
		part.Plan = s.execute(part.Plan)
	}
	return s.shared.Name(), nil // a PREPARE of the name is refused by the server
}

// executable refuses to have a server run s where no server can.
func (c *Session) executable(s *preparedStatement) *pgerr.Error {
	switch {
	case c.liesByKey(s.plan):
		return notImplemented("[124] EXPLAIN of an EXECUTE of a statement whose rows lie by key", "EXPLAIN the statement itself.")
	case s.plan.Route.Kind == plan.RouteVirtual:
		return notImplemented("[113] EXPLAIN of an EXECUTE, or CREATE TABLE AS EXECUTE, of a statement that the gateway answers", "EXPLAIN (NEKI_PLAN) the statement itself.")
	case s.plan.Route.Backend():
		return nil
	}
	return notImplemented("[114] EXECUTE of a statement about the session that was prepared by the protocol", "Run the statement itself, or Bind and Execute it.")
}

// prepared finds the client's statement of a name, with a plan that holds now; nil when there is none.
func (c *Session) prepared(name string) *preparedStatement {
	s := c.statements[name]
	if s != nil {
		s.plan = c.replan(s.plan, &op{named: s})
	}
	return s
}

// underWay finds a PREPARE of the name in the present string.
func (c *Session) underWay(name string) *preparedStatement {
	for _, s := range c.work.sql.preparing {
		if s.name == name {
			return s
		}
	}
	return nil
}

// newPrepared makes the statement of a PREPARE, of which text is the SQL with the name at span.
func (c *Session) newPrepared(p *plan.Plan, text []byte, span sqlparse.Span) (*preparedStatement, *pgerr.Error) {
	if err := c.tooManyStatements(len(c.work.sql.preparing)); err != nil {
		return nil, err
	}
	return &preparedStatement{
		name: p.Prepared.Name, plan: p.Inner, sql: append([]byte(nil), text...),
		shared: c.srv.prepared.Made(text, span.Start, span.End, p.Prepared.Offset),
	}, nil
}

func (c *Session) tooManyStatements(more int) *pgerr.Error {
	if len(c.statements)+more < maxStatements {
		return nil
	}
	return pgerr.New(pgerr.OutOfMemory, "too many prepared statements in one session").
		WithDetail("At most %d are kept.", maxStatements).WithHint("Close statements that are no longer used.")
}

// keepPrepared keeps the statement whose PREPARE has completed.
func (c *Session) keepPrepared() {
	if len(c.work.sql.preparing) == 0 {
		return
	}
	s := c.work.sql.preparing[0]
	c.work.sql.preparing = c.work.sql.preparing[1:]
	c.keep(s)
}

func (c *Session) keep(s *preparedStatement) {
	if c.statements == nil {
		c.statements = make(map[string]*preparedStatement)
	}
	c.statements[s.name] = s
}

// dropPreparing notes that the PREPAREs still under way have not been run.
func (c *Session) dropPreparing() {
	if c.lease != nil {
		for _, s := range c.work.sql.preparing {
			c.lease.Forget(s.shared)
		}
	}
	c.work.sql.preparing = c.work.sql.preparing[:0]
}

// deallocate is DEALLOCATE.
func (c *Session) deallocate(d *sqlparse.PreparedStmt) (answer, error) {
	if d.All {
		clear(c.statements)
		return answer{tag: "DEALLOCATE ALL"}, nil
	}
	if c.statements[d.Name] == nil {
		return answer{}, noPrepared(d.Name)
	}
	delete(c.statements, d.Name)
	return answer{tag: "DEALLOCATE"}, nil
}

func noPrepared(name string) *pgerr.Error {
	return pgerr.New(pgerr.InvalidSQLStatementName, "prepared statement \"%s\" does not exist", name)
}

// ensure has sc prepare, unseen by the client, what the string at hand runs. refused is the server's error if it can't.
func (c *Session) ensure(sc *backend.ServerConn) (refused *pgerr.Error, err error) {
	if len(c.work.sql.needed)+len(c.work.sql.preparing) == 0 || c.status == 'E' {
		return nil, nil
	}
	w := c.work
	w.relay.Begin()
	w.plans, c.parsing = w.plans[:0], c.parsing[:0]
	w.out = w.out[:0]
	for _, s := range c.work.sql.needed {
		w.out = c.encodeNeeded(w.out, sc, s)
	}
	for _, s := range c.work.sql.preparing {
		w.out = sc.Announce(w.out, w.relay, s.shared)
	}
	if len(w.out) > 0 {
		refused, err = c.runUnseen(sc)
	}
	w.relay.Begin()
	w.plans, c.parsing = w.plans[:0], c.parsing[:0]
	return refused, err
}

// runUnseen runs the messages in work.out, of which the client is to see nothing. It sends no Sync into an open segment
// unless that has failed.
func (c *Session) runUnseen(sc *backend.ServerConn) (refused *pgerr.Error, err error) {
	w := c.work
	w.relay.Rewrite = func(_ int, body []byte) []byte {
		refused = decodeError(body)
		return nil
	}
	if c.open {
		w.out = append(w.out, 'H', 0, 0, 0, 4)
		if err := w.relay.Run(sc, w.out, w.answers); err != nil || refused == nil {
			return nil, err
		}
		w.out, c.open = w.out[:0], false
	}
	w.out = append(w.out, 'S', 0, 0, 0, 4)
	w.relay.Expect('S', backend.Swallow)
	if err := w.relay.Run(sc, w.out, w.answers); err != nil {
		return nil, err
	}
	c.status = w.relay.Status
	sc.SetStatus(c.status)
	return refused, nil
}

// encodeNeeded makes sure that sc knows s.
func (c *Session) encodeNeeded(out []byte, sc *backend.ServerConn, s *preparedStatement) []byte {
	if sc.Prepared(s.shared) {
		return out
	}
	out = sc.Prepare(out, c.work.relay, s.shared, backend.Swallow)
	c.alignPlans()
	c.parsing = append(c.parsing, parsing{index: len(c.work.plans) - 1, statement: s})
	return out
}

// prepareFor has sc know what the parts of a string need, and makes errors come back in the client's words.
func (c *Session) prepareFor(sc *backend.ServerConn, parts []plan.Part) (refused *pgerr.Error, err error) {
	if err := c.makeReady(sc, parts); err != nil {
		return nil, err
	}
	if refused, err = c.ensure(sc); err == nil && refused == nil && len(c.work.sql.names) > 0 {
		c.work.relay.Rewrite = c.clientError
	}
	return refused, err
}

// findRun finds the prepared statement that the text of an op's statement runs: by its name, as EXECUTE does.
func (c *Session) findRun(o *op) {
	if o.err != nil || o.plan == nil || o.plan.Runs == "" {
		return
	}
	if o.runs = c.prepared(o.plan.Runs); o.runs != nil {
		if o.err = c.executable(o.runs); o.err == nil {
			o.plan = o.runs.execute(o.plan)
		}
		return
	}
	if o.typ == 'E' && c.knows(o.plan.Runs) {
		o.err = noPrepared(o.plan.Runs)
	}
}

// encodeRun prepares sc for an op whose statement runs a prepared one: that one, and the text with its name.
func (c *Session) encodeRun(out []byte, sc *backend.ServerConn, o *op) []byte {
	if o.runs != nil {
		out = c.encodeNeeded(out, sc, o.runs)
	}
	if !c.knows(o.plan.Runs) {
		return out
	}
	server := []byte(missingName)
	if o.runs != nil {
		server = o.runs.shared.Name()
	}
	n := naming{client: o.plan.Runs, server: string(server), plan: o.plan}
	if o.typ == 'P' || o.typ == 'B' || o.typ == 'D' && o.statement {
		text := c.sqlOf(o)
		span, _ := sqlparse.PreparedName(string(text))
		n = newNaming(text, span.Start, span.End, o.plan.Runs, server)
		n.plan = o.plan
		c.spell(o, text, span, server)
	}
	c.work.sql.add(n)
	return out
}

// spell makes the statement of o have the present server's name of what it runs in its text.
func (c *Session) spell(o *op, text []byte, span sqlparse.Span, server []byte) {
	if s := o.named; s != nil {
		if s.written == nil || s.spelled != o.runs {
			s.written, s.spelled = s.original(), o.runs
			s.shared = c.srv.prepared.Intern(backend.AppendRenamed(nil, text, span.Start, span.End, server), s.written.Types(), c.scope())
		}
		return
	}
	u := c.unnamedOf(o)
	if u.sent == nil || u.spelled != o.runs {
		if u.sent != nil { // a server has it with another name
			u.token = c.srv.nextToken()
		}
		at := 6 // of the text in a Parse of the unnamed statement
		u.sent, u.spelled = appendRenamed(nil, u.parse, at+span.Start, at+span.End, []byte(`"`+string(server)+`"`)), o.runs
	}
}

// message gives the Parse message that makes the unnamed statement known to a server.
func (u *unnamedStatement) message() []byte {
	if u.sent != nil {
		return u.sent
	}
	return u.parse
}

// executePrepare runs a PREPARE in a segment.
func (c *Session) executePrepare(p *ownPortal) error {
	if c.statements[p.plan.Prepared.Name] != nil {
		return pgerr.New(pgerr.DuplicatePreparedStatement, "prepared statement \"%s\" already exists", p.plan.Prepared.Name)
	}
	if err := c.sendReply(); err != nil {
		return err
	}
	c.work.sql.begin()
	span, _ := sqlparse.PreparedName(string(p.text))
	s, refused := c.newPrepared(p.plan, p.text, span)
	if refused != nil {
		return refused
	}
	w := c.work
	parts := []plan.Part{{Plan: p.plan}}
	snap := c.srv.cfg.Cluster.Snapshot()
	shard, refused := c.destination(p.text, []plan.Part{{Plan: p.plan, End: len(p.text)}}, snap)
	if refused != nil {
		return refused
	}
	sc, err := c.connection(c.segmentRole(parts, 'H'), shard, snap, 0)
	if err != nil {
		return err
	}
	w.relay.Begin()
	w.plans, c.parsing = w.plans[:0], c.parsing[:0]
	n := newNaming(p.text, span.Start, span.End, s.name, s.shared.Name())
	n.plan = p.plan
	c.work.sql.names, c.work.sql.preparing = append(c.work.sql.names, n), append(c.work.sql.preparing, s)
	w.relay.Rewrite = c.clientError
	w.out = sc.Prepare(w.out[:0], w.relay, s.shared, backend.Forward)
	c.alignPlans()
	w.plans[len(w.plans)-2] = p.plan // of the Execute, before a Close
	w.out = c.endSegment(w.out, 'H')
	c.open = true
	if err := w.relay.Run(sc, w.out, w.answers); err != nil {
		return c.relayFailed(err)
	}
	return nil
}
