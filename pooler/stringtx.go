package pooler

import (
	"neki/catalog"
	"neki/internal/pgerr"
	"neki/pooler/plan"
	"neki/sqlparse"
)

// A string of several statements is one transaction in Postgres, unless it says otherwise. Where the gateway answers some
// of them, or they go to several shards, it begins that transaction itself, as late as it can: what is alone at the end of
// the string has the server's own, and a session setting may be changed before anything was written.

// stringRest is what a string has behind a COPY FROM STDIN that is being fed.
type stringRest struct {
	text  []byte
	parts []plan.Part
}

// checkSyntax finds a statement of a string that a server can't parse: then none of the string is run. What the gateway's
// own parser does not know, the server may, which is of another version.
func (c *Session) checkSyntax(text []byte, parts []plan.Part, snap *catalog.Snapshot) *pgerr.Error {
	for i := range parts {
		if parts[i].Plan.ParseError == nil {
			continue
		}
		sc, err := c.connection(catalog.RolePrimary, "", snap, 0)
		if err != nil {
			return pgerr.From(err)
		}
		_, err = sc.Exec(syntaxQuery(string(text[parts[i].Start:parts[i].End])), c.work.answers)
		c.status = sc.Status()
		c.releaseIfFree()
		if e := pgerr.From(err); e != nil && e.Code == pgerr.SyntaxError {
			at := characters(text, parts[i].Start) + e.InternalPosition - int32(len(syntaxProbe))
			return pgerr.New(pgerr.SyntaxError, "%s", e.Message).WithPosition(max(at, 1))
		}
	}
	return nil
}

// syntaxProbe comes before the statement that a server is to parse and not to run: a string is parsed as a whole first.
const syntaxProbe = "SELECT neki_nothing; "

// syntaxQuery makes a statement that fails if sql does not parse.
func syntaxQuery(sql string) string {
	return "DO " + sqlparse.QuoteLiteral("BEGIN EXECUTE "+sqlparse.QuoteLiteral(syntaxProbe+sql)+"; EXCEPTION WHEN undefined_column THEN NULL; END")
}

// enterString puts the next statement of a string into the transaction that it belongs to, and gives how many of rest go
// to a server in one message.
func (c *Session) enterString(text []byte, rest []plan.Part, snap *catalog.Snapshot) (n int, err error) {
	p := rest[0].Plan
	if c.changesRouting(p) {
		if err := c.leaveReads(); err != nil {
			return 0, err
		}
	}
	if n = c.groupSize(text, rest, snap, false); n == len(rest) && c.stx == nil {
		return n, nil
	}
	if c.status == 'I' && c.stx == nil && !c.open && !p.Kind.IsTransaction() && c.needsServer(p) && !c.resetsOwn(p) {
		c.beginImplicit()
		c.stx.reads = true
		if c.onlyReads(rest) {
			c.tx.state = plan.TxReadOnly
		}
	}
	n = c.groupSize(text, rest, snap, true)
	if t := c.stx; t != nil && t.implicit {
		for i := range rest[:n] {
			p := rest[i].Plan
			t.reads = t.reads && (p.Proven() && p.Kind != sqlparse.KindDeclare || !c.needsServer(p))
		}
	}
	return n, nil
}

// groupSize gives how many of rest a server answers in one message. With apart, transaction statements stand alone: what
// comes behind them is not in the transaction of what came before.
func (c *Session) groupSize(text []byte, rest []plan.Part, snap *catalog.Snapshot, apart bool) int {
	alone := func(p *plan.Plan) bool { return apart && (p.Kind.IsTransaction() || c.resetsOwn(p)) }
	if !c.isServers(rest[0].Plan) || alone(rest[0].Plan) {
		return 1
	}
	n := 1
	for n < len(rest) && c.isServers(rest[n].Plan) && !alone(rest[n].Plan) && c.joins(text, rest[:n], rest[n], snap) {
		n++
	}
	return n
}

// needsServer reports whether p may do something at a server.
func (c *Session) needsServer(p *plan.Plan) bool {
	return p.Route.Kind != plan.RouteLocal && p.Route.Kind != plan.RouteVirtual && !c.deallocates(p)
}

// onlyReads reports whether nothing of a string writes or begins a transaction of the client's.
func (c *Session) onlyReads(parts []plan.Part) bool {
	for i := range parts {
		if p := parts[i].Plan; c.needsServer(p) && !p.Proven() {
			return false
		}
	}
	return true
}

// changesRouting reports whether p may change __neki settings.
func (c *Session) changesRouting(p *plan.Plan) bool {
	return setsOwn(p) || c.resetsOwn(p) || p.Route.Kind == plan.RouteVirtual && len(p.SetConfigs) > 0
}

// leaveReads ends the transaction of a string when it has only read: nobody can tell, and what follows may go elsewhere.
// Settings that the string has changed are still taken back if it fails.
func (c *Session) leaveReads() error {
	if c.stx == nil || !c.stx.implicit || !c.stx.reads {
		return nil
	}
	err := c.commitShards()
	c.status = 'I'
	c.leaveShards()
	c.tx.state = plan.TxNone
	if err != nil {
		return c.failPart(pgerr.From(err))
	}
	return nil
}

// controlImplicit answers a transaction statement in a transaction that is not the client's, where Postgres does not just
// do what it says.
func (c *Session) controlImplicit(p *plan.Plan) *pgerr.Error {
	only := func(what string) *pgerr.Error {
		return pgerr.New(pgerr.NoActiveSQLTransaction, "%s can only be used in transaction blocks", what)
	}
	switch p.Kind {
	case sqlparse.KindSavepoint:
		return only("SAVEPOINT")
	case sqlparse.KindRelease:
		return only("RELEASE SAVEPOINT")
	case sqlparse.KindRollbackTo:
		return only("ROLLBACK TO SAVEPOINT")
	case sqlparse.KindCommit, sqlparse.KindRollback:
		if p.Tx != nil && p.Tx.Chain {
			return only(p.Tag + " AND CHAIN")
		}
		c.notice(pgerr.New(pgerr.NoActiveSQLTransaction, "there is no transaction in progress").WithSeverity(pgerr.SeverityWarning))
	}
	return nil
}
