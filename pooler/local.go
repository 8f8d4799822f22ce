package pooler

import (
	"encoding/binary"
	"strings"

	"neki/catalog"
	"neki/internal/pgerr"
	"neki/pooler/plan"
	"neki/settings"
	"neki/sqlparse"
)

// OIDs of the types that the session's own answers have.
const (
	oidText = 25
	oidJSON = 114
	oidXML  = 142
)

// column is a column of an answer of the session's own.
type column struct {
	name string
	oid  uint32
	size int16
	mod  int32
}

// answer is what the session itself has to say to a statement: rows, if columns is not nil, and a tag.
type answer struct {
	columns []column
	rows    [][]string
	tag     string // "" = EmptyQueryResponse
}

// local answers a statement of the simple protocol without a server.
func (c *Session) local(dst []byte, p *plan.Plan, text []byte, snap *catalog.Snapshot) ([]byte, error) {
	a, err := c.localAnswer(p, text, snap)
	if err != nil {
		return dst, err
	}
	if a.columns != nil {
		dst = appendRowDescription(dst, a.columns, nil)
	}
	for _, row := range a.rows {
		dst = appendTextRow(dst, row)
	}
	if a.tag == "" {
		return append(dst, 'I', 0, 0, 0, 4), nil
	}
	return appendComplete(dst, a.tag), nil
}

// localColumns gives the columns of a local statement without running it.
func localColumns(p *plan.Plan) []column {
	switch {
	case p.Kind == sqlparse.KindShow:
		return []column{{name: p.Show, oid: oidText, size: -1, mod: -1}}
	case p.Explain != nil:
		oid := uint32(oidText)
		switch p.Explain.Format {
		case "json":
			oid = oidJSON
		case "xml":
			oid = oidXML
		}
		return []column{{name: "QUERY PLAN", oid: oid, size: -1, mod: -1}}
	}
	return nil
}

// localAnswer runs a local statement, of which text is the SQL.
func (c *Session) localAnswer(p *plan.Plan, text []byte, snap *catalog.Snapshot) (answer, error) {
	switch {
	case p.Kind == sqlparse.KindEmpty:
		return answer{}, nil
	case p.Kind == sqlparse.KindShow:
		value, err := c.vars.Neki().Get(p.Show)
		return answer{columns: localColumns(p), rows: [][]string{{value}}, tag: "SHOW"}, err
	case c.controlsOwn(p):
		return c.control(p)
	case c.everywhere(p):
		return c.define(p, text)
	case p.Set != nil:
		return c.setOwn(p.Set, p.Tag)
	case p.Kind == sqlparse.KindDeclare: // over one shard; the name is taken
		return answer{}, pgerr.New("42P03", "cursor \"%s\" already exists", p.Cursor.Name)
	case p.Kind == sqlparse.KindDeallocate:
		return c.deallocate(p.Prepared)
	case p.Explain != nil:
		lines, err := c.explain(p.Explain, text, snap)
		rows := make([][]string, len(lines))
		for i, l := range lines {
			rows[i] = []string{l}
		}
		return answer{columns: localColumns(p), rows: rows, tag: "EXPLAIN"}, err
	}
	return answer{}, pgerr.New(pgerr.InternalError, "%s is nothing that the session answers", p.Tag)
}

// setsOwn reports whether p is SET or RESET of a __neki setting. In a failed transaction it fails for its own reason: it
// can't be done in any.
func setsOwn(p *plan.Plan) bool { return p != nil && p.Set != nil && p.Route.Kind == plan.RouteLocal }

// inFailed reports whether p is answered in a failed transaction too: a SET with its own error, nothing with nothing.
func inFailed(p *plan.Plan) bool { return setsOwn(p) || p != nil && p.Kind == sqlparse.KindEmpty }

// setOwn runs SET and RESET of a __neki setting.
func (c *Session) setOwn(s *sqlparse.SetStmt, tag string) (answer, error) {
	neki := c.vars.Neki()
	var err error
	if s.Default {
		neki, err = neki.ResetTo(s.Name, c.defaults.Neki())
	} else {
		neki, err = neki.Set(s.Name, s.Value)
	}
	if err != nil {
		return answer{}, err
	}
	if c.status != 'I' || s.Local {
		return answer{}, errSetInTx(s.Name)
	}
	if err := c.srv.checkShard(c.vars.Neki(), neki); err != nil {
		return answer{}, err
	}
	c.vars = c.srv.interner.WithNeki(c.vars, neki)
	return answer{tag: tag}, nil
}

// checkShard refuses a change of __neki.shard to one that does not exist. One that vanishes later makes the statements
// fail that would go there.
func (s *Server) checkShard(before, after settings.Neki) error {
	if after.Shard == "" || after.Shard == before.Shard {
		return nil
	}
	snap := s.cfg.Cluster.Snapshot()
	if snap.Shard(after.Shard) != nil {
		return nil
	}
	known := make([]string, len(snap.Shards))
	for i := range snap.Shards {
		known[i] = snap.Shards[i].UID
	}
	return pgerr.New(pgerr.InvalidParameterValue, "invalid value for parameter \"__neki.shard\": \"%s\"", after.Shard).
		WithDetail("There is no shard of that uid.").
		WithHint("Available values: %s.", strings.Join(known, ", "))
}

// resetsOwn reports whether p, a RESET ALL, changes __neki settings of the session.
func (c *Session) resetsOwn(p *plan.Plan) bool {
	return p.Set != nil && p.Set.All && c.vars.Neki() != c.defaults.Neki()
}

// refusedReset gives the first of the parts that is refused because it would change __neki settings within a
// transaction; -1: there is none.
func (c *Session) refusedReset(parts []plan.Part) int {
	if c.vars.Neki() == c.defaults.Neki() {
		return -1
	}
	inTx := c.status != 'I'
	for i := range parts {
		switch p := parts[i].Plan; {
		case inTx && c.resetsOwn(p):
			return i
		case p.Kind == sqlparse.KindBegin:
			inTx = true
		case p.Kind == sqlparse.KindCommit, p.Kind == sqlparse.KindRollback:
			inTx = p.Tx != nil && p.Tx.Chain
		}
	}
	return -1
}

// errResetInTx refuses a RESET ALL that would change __neki settings within a transaction.
var errResetInTx = errSetInTx("__neki.*").WithHint("RESET ALL before BEGIN, or reset the other settings one by one.")

func errSetInTx(name string) *pgerr.Error {
	return pgerr.New(pgerr.ActiveSQLTransaction, "%s cannot be changed inside a transaction", name).
		WithDetail("A transaction's reads stay on the instances that it began on.").
		WithHint("SET it before BEGIN; SET LOCAL is not possible for this setting.")
}

// setConfigs runs the set_config calls of a statement that the gateway answers: all name __neki settings.
func (c *Session) setConfigs(p *plan.Plan) error {
	neki := c.vars.Neki()
	for i := range p.SetConfigs {
		s := &p.SetConfigs[i]
		if c.status != 'I' || s.Local {
			return errSetInTx(s.Name)
		}
		var err error
		if s.Null {
			neki, err = neki.ResetTo(s.Name, c.defaults.Neki())
		} else {
			neki, err = neki.Set(s.Name, s.Value)
		}
		if err != nil {
			return err
		}
	}
	if err := c.srv.checkShard(c.vars.Neki(), neki); err != nil {
		return err
	}
	if neki != c.vars.Neki() {
		c.vars = c.srv.interner.WithNeki(c.vars, neki)
	}
	return nil
}

// appendOwnSettings appends the __neki settings as rows of SHOW ALL.
func (c *Session) appendOwnSettings(dst []byte) []byte {
	neki := c.vars.Neki()
	for _, s := range settings.All() {
		dst = appendTextRow(dst, []string{s.Name, s.Format(neki), s.Description})
	}
	return dst
}

// appendRowDescription appends a RowDescription; formats are the client's result format codes.
func appendRowDescription(dst []byte, columns []column, formats []int16) []byte {
	start := len(dst)
	dst = append(dst, 'T', 0, 0, 0, 0)
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(columns)))
	for i, k := range columns {
		dst = append(append(dst, k.name...), 0)
		dst = append(dst, 0, 0, 0, 0, 0, 0) // no table, no attribute
		dst = binary.BigEndian.AppendUint32(dst, k.oid)
		dst = binary.BigEndian.AppendUint16(dst, uint16(k.size))
		dst = binary.BigEndian.AppendUint32(dst, uint32(k.mod))
		dst = binary.BigEndian.AppendUint16(dst, uint16(formatOf(formats, i)))
	}
	return endMessage(dst, start)
}

// formatOf gives the format of column i: none given = text, one given = for all.
func formatOf(formats []int16, i int) int16 {
	switch {
	case len(formats) == 1:
		return formats[0]
	case i < len(formats):
		return formats[i]
	}
	return 0
}

// appendTextRow appends a DataRow of values whose text and binary form are the same.
func appendTextRow(dst []byte, row []string) []byte {
	start := len(dst)
	dst = append(dst, 'D', 0, 0, 0, 0)
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(row)))
	for _, v := range row {
		dst = binary.BigEndian.AppendUint32(dst, uint32(len(v)))
		dst = append(dst, v...)
	}
	return endMessage(dst, start)
}

// endMessage writes the length of the message that begins at start.
func endMessage(dst []byte, start int) []byte {
	binary.BigEndian.PutUint32(dst[start+1:], uint32(len(dst)-start-1))
	return dst
}
