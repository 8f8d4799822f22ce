package pooler

import (
	"io"
	"strconv"

	"neki/catalog"
	"neki/internal/datum"
	"neki/internal/pgerr"
	"neki/pooler/backend"
	"neki/pooler/fanout"
	"neki/pooler/plan"
	"neki/sqlparse"
)

// keyedTypes are the types of the parameters of a statement made by SQL's PREPARE that the gateway itself runs, because its
// rows lie by key.
type keyedTypes struct {
	oids  []uint32
	names []string
}

// runsKeyed reports whether the session itself answers a PREPARE or EXECUTE: of a statement whose rows lie by key.
func (c *Session) runsKeyed(p *plan.Plan) bool {
	switch p.Kind {
	case sqlparse.KindPrepare:
		return p.Inner != nil && overShards(p.Inner)
	case sqlparse.KindExecute:
		s := c.statements[p.Runs]
		return s != nil && overShards(s.plan)
	}
	return false
}

// keyedName is what the statement is called on a shard while its types are asked for.
const keyedName = "neki_keyed"

// prepareKeyed runs PREPARE: a shard checks the text and tells the types of its parameters.
func (c *Session) prepareKeyed(p *plan.Plan, text []byte) error {
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
	sc, err := c.connection(catalog.RolePrimary, c.anywhere(p.Inner), c.srv.cfg.Cluster.Snapshot(), 0)
	if err != nil {
		return err
	}
	defer c.releaseIfFree()
	sql := string(backend.AppendRenamed(nil, text, span.Start, span.End, []byte(keyedName)))
	if s.keyed, err = c.askTypes(sc, sql); err != nil {
		c.status = sc.Status()
		return newNaming(text, span.Start, span.End, s.name, []byte(keyedName)).inClientsText(err)
	}
	c.keep(s)
	return nil
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

// runKeyed runs PREPARE and EXECUTE in the simple protocol.
func (c *Session) runKeyed(text []byte, part plan.Part, snap *catalog.Snapshot) error {
	if part.Plan.Kind == sqlparse.KindExecute {
		return c.executeKeyed(text, part, snap)
	}
	if err := c.prepareKeyed(part.Plan, text[part.Start:part.End]); err != nil {
		return c.failPart(pgerr.From(err))
	}
	c.work.reply = appendComplete(c.work.reply, part.Plan.Tag)
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
	named := c.prepared(p.Runs)
	if named.keyed == nil {
		return nil, notImplemented("[124] EXECUTE of a statement that was prepared by the protocol and whose rows lie by key", "Run it by the protocol, too.")
	}
	st, err := sqlparse.Parse(string(text))
	if err != nil {
		return nil, err
	}
	if got, want := len(st.Prepared.Values), len(named.keyed.oids); got != want {
		return nil, pgerr.New(pgerr.SyntaxError, "wrong number of parameters for prepared statement \"%s\"", p.Runs).
			WithDetail("Expected %d parameters but got %d.", want, got)
	}
	v := &plan.Values{Text: named.original().Text(), OIDs: named.keyed.oids}
	if v.Params, err = c.arguments(st, named.keyed, snap); err != nil {
		return nil, err
	}
	run := named.plan
	if run.Spread == nil && !run.SpreadByText {
		run = run.AsSpread()
	}
	s, _, err := c.openSpread(run, v, nil, snap)
	if err == errNotSpread {
		s, _, err = c.openSpread(run.AsSpread(), v, nil, snap)
	}
	return s, err
}

// arguments gives the values of EXECUTE's arguments as texts of the parameters' types. A server computes what is no constant.
func (c *Session) arguments(st *sqlparse.Statement, k *keyedTypes, snap *catalog.Snapshot) ([][]byte, error) {
	nodes := st.Prepared.Values
	out := make([][]byte, len(nodes))
	list, constant := "", true
	for i, n := range nodes {
		span := st.Prepared.Params[i]
		if i > 0 {
			list += ", "
		}
		list += "CAST((" + st.Text[span.Start:span.End] + ") AS " + k.names[i] + ")"
		value, ok := constantText(n.GetAConst(), k.oids[i])
		out[i], constant = value, constant && ok
	}
	if constant {
		return out, nil
	}
	sc, err := c.connection(catalog.RolePrimary, homeShard(snap), snap, 0)
	if err != nil {
		return nil, err
	}
	defer c.releaseIfFree()
	sc.SetUnnamed(0)
	legs := fanout.Start([]fanout.Request{{Conn: sc, Out: (&spread{values: &plan.Values{}}).request("SELECT "+list, nil)}}, true)
	defer legs.Close()
	for {
		p, err := legs.Next(c.srv.dbs.ctx)
		switch {
		case err == io.EOF:
			return out, nil
		case err != nil:
			return nil, err
		case p.Kind == fanout.Failed:
			c.status = sc.Status()
			return nil, p.Err.WithPosition(0)
		case p.Kind == fanout.Rows:
			out = rowTexts(p.Data)
		}
	}
}

// constantText gives a constant as the text of a type, if that is what the assignment to the type would give.
func constantText(a *sqlparse.A_Const, oid uint32) ([]byte, bool) {
	switch {
	case a == nil:
		return nil, false
	case a.Isnull:
		return nil, true
	case a.GetSval() != nil:
		return []byte(a.GetSval().Sval), true
	}
	i, ok := a.Val.(*sqlparse.A_Const_Ival)
	if !ok {
		return nil, false
	}
	switch oid {
	case datum.Int2OID, datum.Int4OID, datum.Int8OID, datum.NumericOID, datum.Float8OID, datum.TextOID, datum.VarcharOID:
		return strconv.AppendInt(nil, int64(i.Ival.GetIval()), 10), true
	}
	return nil, false
}
