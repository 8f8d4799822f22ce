package pooler

import (
	"strings"

	admin "neki/admin_sql"
	"neki/catalog"
	"neki/internal/datum"
	"neki/internal/pgerr"
	"neki/pooler/backend"
	"neki/pooler/plan"
	"neki/sqlparse"
)

// keyedTypes are the types of the parameters of a prepared statement that the gateway itself runs, because its rows lie by
// key, or are the gateway's own.
type keyedTypes struct {
	oids  []uint32
	names []string // nil: not asked for yet
}

// liesByKey reports whether p's rows lie by key for the session: __neki.shard names one shard for all.
func (c *Session) liesByKey(p *plan.Plan) bool { return overShards(p) && c.vars.Neki().Shard == "" }

// answersPrepared reports whether the session itself answers a PREPARE or EXECUTE: no server can run the statement.
func (c *Session) answersPrepared(p *plan.Plan) bool {
	switch p.Kind {
	case sqlparse.KindPrepare:
		return p.Inner != nil && (c.liesByKey(p.Inner) || p.Inner.Route.Kind == plan.RouteVirtual)
	case sqlparse.KindExecute:
		s := c.statements[p.Runs]
		return s != nil && (c.liesByKey(s.plan) || s.plan.Route.Kind == plan.RouteVirtual || shows(s.plan))
	}
	return false
}

// shows reports whether p is a statement of the session's own that gives rows. Only a Parse can have prepared it.
func shows(p *plan.Plan) bool { return p.Route.Kind == plan.RouteLocal && localColumns(p) != nil }

// keyedName is what the statement is called on a shard while its types are asked for.
const keyedName = "neki_keyed"

// prepareOwn runs PREPARE of a statement that the gateway runs: a shard, or the neki schema, checks the text and tells the
// types of its parameters.
func (c *Session) prepareOwn(p *plan.Plan, text []byte) error {
	if c.statements[p.Prepared.Name] != nil {
		return pgerr.New(pgerr.DuplicatePreparedStatement, "prepared statement \"%s\" already exists", p.Prepared.Name)
	}
	span, ok := sqlparse.PreparedName(string(text))
	if !ok {
		return pgerr.New(pgerr.InternalError, "the name of prepared statement \"%s\" was not found in the text", p.Prepared.Name)
	}
	s, refused := c.newPrepared(p, text, span)
	if refused != nil {
		return refused
	}
	var err error
	if p.Inner.Route.Kind == plan.RouteVirtual {
		s.keyed, err = c.virtualTypes(p.Inner, p.Prepared)
		err = shifted(err, text, p.Prepared.Offset)
	} else {
		s.keyed, err = c.typesOnShard(s, text, span)
	}
	if err == nil {
		c.keep(s)
	}
	return err
}

// shifted gives an error with the position that it has in text, of which the statement at fault begins at offset.
func shifted(err error, text []byte, offset int) error {
	e := pgerr.From(err)
	if e == nil || e.Position == 0 {
		return err
	}
	return e.WithPosition(e.Position + characters(text, offset))
}

// virtualTypes finds the types of the parameters of a statement over the neki schema: as declared, else as they are used.
func (c *Session) virtualTypes(inner *plan.Plan, p *sqlparse.PreparedStmt) (*keyedTypes, error) {
	var declared []uint32
	if len(p.Types) > 0 {
		row, err := c.prepareOnEngine("CAST(NULL AS " + strings.Join(p.Types, "), CAST(NULL AS ") + ")")
		if err != nil {
			return nil, pgerr.From(err).WithPosition(0)
		}
		for _, k := range row.Columns() {
			declared = append(declared, k.Type.OID)
		}
	}
	prepared, err := c.prepareVirtual(inner, declared)
	if err != nil {
		return nil, err
	}
	return ownTypes(prepared.ParamTypes()), nil
}

func ownTypes(oids []uint32) *keyedTypes {
	k := &keyedTypes{oids: oids, names: make([]string, len(oids))}
	for i, oid := range oids {
		k.names[i] = plan.TypeName(&plan.RelTable{}, oid)
	}
	return k
}

// prepareOnEngine prepares a SELECT of a list of expressions for the engine, which needs no server.
func (c *Session) prepareOnEngine(list string) (admin.Prepared, error) {
	st, err := sqlparse.Parse("SELECT " + list)
	if err != nil {
		return nil, err
	}
	return c.srv.cfg.Virtual.Prepare((*virtualSession)(c), st, c.planEnv().SearchPath(), nil)
}

// typesOnShard has a shard tell the types of the parameters of s, made by the PREPARE text with its name at span.
func (c *Session) typesOnShard(s *preparedStatement, text []byte, span sqlparse.Span) (*keyedTypes, error) {
	sc, err := c.connection(catalog.RolePrimary, c.anywhere(s.plan), c.srv.cfg.Cluster.Snapshot(), 0)
	if err != nil {
		return nil, err
	}
	defer c.releaseIfFree()
	sql := string(backend.AppendRenamed(nil, text, span.Start, span.End, []byte(keyedName)))
	k, err := c.askTypes(sc, sql)
	if err != nil {
		c.status = sc.Status()
		return nil, newNaming(text, span.Start, span.End, s.name, []byte(keyedName)).inClientsText(err)
	}
	return k, nil
}

// inClientsText gives a server's error with the position that it has in the client's text.
func (n naming) inClientsText(err error) error {
	e := pgerr.From(err)
	if e == nil || int(e.Position) <= n.at+1 {
		return err
	}
	return e.WithPosition(int32(max(n.at+1, int(e.Position)-n.longer())))
}

func (c *Session) askTypes(sc *backend.ServerConn, sql string) (*keyedTypes, error) {
	if _, err := sc.Exec(sql, c.work.answers); err != nil {
		return nil, err
	}
	rows, err := sc.Exec("SELECT t::pg_catalog.oid, t::pg_catalog.text FROM pg_catalog.pg_prepared_statements p, "+
		"pg_catalog.unnest(p.parameter_types) WITH ORDINALITY u (t, i) WHERE p.name = '"+keyedName+"' ORDER BY i", c.work.answers)
	if err != nil {
		return nil, err
	}
	if _, err := sc.Exec("DEALLOCATE "+keyedName, c.work.answers); err != nil {
		return nil, err
	}
	k := &keyedTypes{}
	for _, row := range rows {
		oid, err := datum.ParseText(datum.OIDOID, row[0], nil)
		if err != nil {
			return nil, err
		}
		k.oids, k.names = append(k.oids, uint32(oid.Int())), append(k.names, row[1])
	}
	return k, nil
}

// runPrepared runs PREPARE and EXECUTE in the simple protocol, where the gateway runs the statement.
func (c *Session) runPrepared(text []byte, part plan.Part, snap *catalog.Snapshot) error {
	w, sql := c.work, text[part.Start:part.End]
	if part.Plan.Kind == sqlparse.KindPrepare {
		if err := c.prepareOwn(part.Plan, sql); err != nil {
			return c.failPart(pgerr.From(err))
		}
		w.reply = appendComplete(w.reply, part.Plan.Tag)
		return c.sendReply()
	}
	named := c.prepared(part.Plan.Runs)
	if c.liesByKey(named.plan) {
		return c.executeKeyed(text, part, snap)
	}
	var err error
	if shows(named.plan) {
		w.reply, err = c.local(w.reply, named.plan, named.original().Text(), snap)
	} else {
		var run *preparedRun
		if run, err = c.runOfVirtual(named, sql, snap); err == nil {
			w.reply, err = c.virtual(w.reply, named.plan, run)
		}
	}
	if err != nil {
		return c.failPart(pgerr.From(err))
	}
	return c.sendReply()
}

// executeKeyed runs EXECUTE in the simple protocol.
func (c *Session) executeKeyed(text []byte, part plan.Part, snap *catalog.Snapshot) error {
	outside := c.stx == nil
	s, err := c.openKeyed(text[part.Start:part.End], part.Plan, snap)
	if err == nil {
		if err = c.giveAll(s); err == nil {
			s.close()
		} else {
			err = s.failed(err)
		}
	}
	return c.endSpreadSimple(s, err, outside)
}

func (c *Session) openKeyed(text []byte, p *plan.Plan, snap *catalog.Snapshot) (*spread, error) {
	run, v, err := c.runOfKeyed(c.prepared(p.Runs), text, snap)
	if err != nil {
		return nil, err
	}
	s, _, err := c.openSpread(run, v, nil, snap)
	if err == errNotSpread {
		s, _, err = c.openSpread(run.AsSpread(), v, nil, snap)
	}
	return s, err
}
