package pooler

import (
	"bytes"
	"encoding/binary"
	"io"
	"strconv"
	"unicode/utf8"

	admin "neki/admin_sql"
	"neki/catalog"
	"neki/internal/datum"
	"neki/internal/pgerr"
	"neki/pooler/fanout"
	"neki/pooler/plan"
	"neki/sqlparse"
)

// runOfKeyed gives the plan and the values of an EXECUTE, of which text is the SQL.
func (c *Session) runOfKeyed(named *preparedStatement, text []byte, snap *catalog.Snapshot) (*plan.Plan, *plan.Values, error) {
	if named.keyed == nil { // prepared by the protocol, or when __neki.shard was set
		_, oids, err := c.describeOnAny(named)
		if err != nil {
			return nil, nil, err
		}
		named.keyed = &keyedTypes{oids: oids}
	}
	params, err := c.argumentsOf(named, text, snap)
	if err != nil {
		return nil, nil, err
	}
	run := named.plan
	if run.Spread == nil && !run.SpreadByText {
		run = run.AsSpread()
	}
	return run, &plan.Values{Text: named.original().Text(), OIDs: named.keyed.oids, Params: params}, nil
}

// preparedRun is a statement over the neki schema with the values of an EXECUTE.
type preparedRun struct {
	prepared admin.Prepared
	params   []datum.Datum
}

// runOfVirtual makes the run of an EXECUTE of named, of which text is the SQL.
func (c *Session) runOfVirtual(named *preparedStatement, text []byte, snap *catalog.Snapshot) (*preparedRun, error) {
	prepared, err := c.prepareNamed(named)
	if err != nil {
		return nil, err
	}
	values, err := c.argumentsOf(named, text, snap)
	if err != nil {
		return nil, err
	}
	params, err := c.boundValues(prepared, named.name, bound{values: values})
	if err != nil {
		return nil, c.atArgument(err, prepared.ParamTypes(), values, text)
	}
	return &preparedRun{prepared, params}, nil
}

// atArgument gives the error of a bad value of an EXECUTE with its position.
func (c *Session) atArgument(err error, types []uint32, values [][]byte, text []byte) error {
	e := pgerr.From(err)
	st, parseErr := sqlparse.Parse(string(text))
	if e == nil || parseErr != nil {
		return err
	}
	for i, v := range values {
		if v == nil {
			continue
		}
		if _, err := datum.ParseText(types[i], string(v), c.valueSession()); err != nil {
			return e.WithPosition(characters(text, st.Prepared.Params[i].Start) + 1)
		}
	}
	return e
}

// characters counts those of text before the byte at.
func characters(text []byte, at int) int32 {
	return int32(utf8.RuneCount(text[:max(0, min(at, len(text)))]))
}

// prepareNamed prepares a named statement over the neki schema.
func (c *Session) prepareNamed(named *preparedStatement) (admin.Prepared, error) {
	var oids []uint32
	if named.keyed != nil {
		oids = named.keyed.oids
	} else {
		oids = c.appendParamTypes(nil, &op{named: named})
	}
	prepared, err := c.prepareVirtual(named.plan, oids)
	if err == nil && named.keyed == nil {
		named.keyed = ownTypes(prepared.ParamTypes())
	}
	return prepared, err
}

// resolveRun makes p, the portal of an EXECUTE, one of what that runs: its arguments are computed when it is run.
func (c *Session) resolveRun(p *ownPortal) error {
	snap := c.srv.cfg.Cluster.Snapshot()
	named := c.prepared(p.plan.Runs)
	switch {
	case named == nil:
		return noPrepared(p.plan.Runs)
	case c.liesByKey(named.plan):
		run, values, err := c.runOfKeyed(named, p.text, snap)
		if err != nil {
			return err
		}
		p.plan, p.values, p.runs = run, values, true
	case shows(named.plan):
		p.plan, p.text = named.plan, named.original().Text()
	default:
		run, err := c.runOfVirtual(named, p.text, snap)
		if err != nil {
			return err
		}
		p.plan, p.prepared, p.params = named.plan, run.prepared, run.params
	}
	return nil
}

// describeRun describes the rows of p, an EXECUTE.
func (c *Session) describeRun(p *plan.Plan, f formats) ([]byte, error) {
	named := c.prepared(p.Runs)
	switch {
	case named == nil:
		return nil, noPrepared(p.Runs)
	case c.liesByKey(named.plan):
		row, _, err := c.describeOnAny(named)
		return withFormats(row, f), err
	case shows(named.plan):
		return appendDescription(nil, localColumns(named.plan), f), nil
	}
	prepared, err := c.prepareNamed(named)
	if err != nil {
		return nil, err
	}
	if prepared.Columns() == nil {
		return appendDescription(nil, nil, f), nil
	}
	return appendDescription(nil, virtualColumns(prepared.Columns()), f), nil
}

// describeOnAny has a shard describe a statement: its RowDescription or NoData message, and the types of its parameters.
func (c *Session) describeOnAny(named *preparedStatement) (row []byte, oids []uint32, err error) {
	sc, err := c.connection(catalog.RolePrimary, c.anywhere(named.plan), c.srv.cfg.Cluster.Snapshot(), 0)
	if err != nil {
		return nil, nil, err
	}
	defer c.releaseIfFree()
	sc.SetUnnamed(0)
	types := c.appendParamTypes(nil, &op{named: named})
	if named.keyed != nil {
		types = named.keyed.oids
	}
	out := appendParseOf(nil, string(named.original().Text()), types)
	out = append(out, 'D', 0, 0, 0, 6, 'S', 0, 'S', 0, 0, 0, 4)
	legs := fanout.Start([]fanout.Request{{Conn: sc, Out: out}}, true)
	defer legs.Close()
	row = []byte{'n', 0, 0, 0, 4}
	for {
		p, err := legs.Next(c.srv.dbs.ctx)
		switch {
		case err == io.EOF:
			return row, oids, nil
		case err != nil:
			return nil, nil, err
		case p.Kind == fanout.Failed:
			c.status = sc.Status()
			return nil, nil, p.Err.WithPosition(0)
		case p.Kind == fanout.Parameter:
			for at := 2; at+4 <= len(p.Data); at += 4 {
				oids = append(oids, binary.BigEndian.Uint32(p.Data[at:]))
			}
		case p.Kind == fanout.Described:
			row = endMessage(append([]byte{'T', 0, 0, 0, 0}, p.Data...), 0)
		}
	}
}

// withFormats gives the RowDescription of a statement as that of a portal whose client has asked for formats.
func withFormats(row []byte, f formats) []byte {
	if len(f) == 0 || len(row) == 0 || row[0] != 'T' {
		return row
	}
	at := 7
	for i := range int(binary.BigEndian.Uint16(row[5:])) {
		at += bytes.IndexByte(row[at:], 0) + 1 + 18
		binary.BigEndian.PutUint16(row[at-2:], uint16(formatOf(f, i)))
	}
	return row
}

// argumentsOf gives the values of the arguments of an EXECUTE of named, of which text is the SQL.
func (c *Session) argumentsOf(named *preparedStatement, text []byte, snap *catalog.Snapshot) ([][]byte, error) {
	st, err := sqlparse.Parse(string(text))
	if err != nil {
		return nil, err
	}
	if st.Params > 0 {
		name := "$" + strconv.Itoa(st.Params)
		return nil, pgerr.New(pgerr.UndefinedParameter, "there is no parameter %s", name).
			WithPosition(characters(text, bytes.Index(text, []byte(name))) + 1)
	}
	if got, want := len(st.Prepared.Values), len(named.keyed.oids); got != want {
		return nil, pgerr.New(pgerr.SyntaxError, "wrong number of parameters for prepared statement \"%s\"", named.name).
			WithDetail("Expected %d parameters but got %d.", want, got)
	}
	out := make([][]byte, len(st.Prepared.Values))
	constant := true
	for i, n := range st.Prepared.Values {
		value, ok := constantText(n.GetAConst(), named.keyed.oids[i])
		out[i], constant = value, constant && ok
	}
	switch {
	case constant:
		return out, nil
	case named.plan.Route.Kind == plan.RouteVirtual:
		return c.computeOnEngine(casts(st, named.keyed.names))
	}
	return c.computeOnServer(st, named.keyed, snap)
}

// casts makes a list of an EXECUTE's arguments as values of the parameters' types.
func casts(st *sqlparse.Statement, names []string) string {
	list := ""
	for i, span := range st.Prepared.Params {
		if i > 0 {
			list += ", "
		}
		list += "CAST((" + st.Text[span.Start:span.End] + ") AS " + names[i] + ")"
	}
	return list
}

// computeOnEngine computes a list of expressions without a server.
func (c *Session) computeOnEngine(list string) ([][]byte, error) {
	prepared, err := c.prepareOnEngine(list)
	if err != nil {
		return nil, pgerr.From(err).WithPosition(0)
	}
	rows, _, err := c.runVirtual(nil, prepared, nil, dataRows(prepared.Columns(), nil))
	if err != nil || len(rows) != 1 {
		return nil, err
	}
	return rowTexts(rows[0]), nil
}

// computeOnServer has a server compute the arguments of an EXECUTE.
func (c *Session) computeOnServer(st *sqlparse.Statement, k *keyedTypes, snap *catalog.Snapshot) ([][]byte, error) {
	sc, err := c.connection(catalog.RolePrimary, homeShard(snap), snap, 0)
	if err != nil {
		return nil, err
	}
	defer c.releaseIfFree()
	if k.names == nil {
		list := ""
		for _, oid := range k.oids {
			list += ", pg_catalog.format_type(" + strconv.FormatUint(uint64(oid), 10) + ", NULL)"
		}
		rows, err := sc.Exec("SELECT "+list[2:], c.work.answers)
		if err != nil {
			return nil, err
		}
		k.names = rows[0]
	}
	sc.SetUnnamed(0)
	var row [][]byte
	legs := fanout.Start([]fanout.Request{{Conn: sc, Out: (&spread{values: &plan.Values{}}).request("SELECT "+casts(st, k.names), nil)}}, true)
	err = readRows(c.srv.dbs.ctx, legs, func(_ int, texts [][]byte) error {
		row = texts
		return nil
	})
	if err != nil {
		c.status = sc.Status()
	}
	return row, err
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
