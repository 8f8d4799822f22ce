package plan

import (
	"bytes"
	"errors"
	"slices"
	"strings"

	"neki/catalog"
	"neki/internal/datum"
	"neki/internal/pgerr"
	"neki/pooler/copydata"
	"neki/sqlparse"
)

// CopyIn is how COPY ... FROM STDIN gives its rows to shards: each to that of its key, or all to every copy of a reference
// table. Every shard is sent the client's own statement, and its part of the data as it came.
type CopyIn struct {
	Format  copydata.Format // the field that is read is the key
	Index   *catalog.Index  // nil: every copy gets all
	Group   *catalog.Group
	Key     KeyExpr
	NotNull bool     // the shard itself refuses NULL
	Extra   []string // columns left out whose values must be computed once for all shards; they are put behind each row
	Types   []uint32 // ... of these types
	Values  *Eval    // ... by this, whose SQL may be given a FROM to make more rows
	SQL     string   // what the shards are sent instead of the client's statement, when there are such
	Unread  string   // a value of the key that may mean something else than itself: the option DEFAULT's
}

// shardCopy plans COPY in a database that is on several shards.
func (m maker) shardCopy(p *Plan, st *sqlparse.Statement) error {
	schema, err := m.placed()
	if err != nil || schema == nil {
		return err
	}
	if st.Copy.From {
		s := &sharding{maker: m, plan: p, st: st, schema: schema, a: newAnalysis(schema, st.Text, nil)}
		return s.copyFrom(st.Copy)
	}
	return m.copyTo(p, st.Copy, schema)
}

// copyFrom plans COPY FROM.
func (s *sharding) copyFrom(c *sqlparse.CopyStmt) error {
	t, found, err := s.schema.relation(c.Relation.Schema, c.Relation.Name)
	if err != nil || !found {
		return err
	}
	if t.kind == RelView {
		return s.copyIntoView(t)
	}
	place := t.place
	switch {
	case len(place.GSIs) > 0:
		return unplanned(numberUpkeepCopy, "COPY FROM into table \"%s\", which has global secondary indexes", t.name).
			WithHint("INSERT the rows, many in one statement; or leave the indexes out of the topology meanwhile.")
	case !place.Sharded() && !place.Reference:
		s.plan.Route.Shard = place.Shards()[0]
		return nil
	case !c.Client:
		return unplanned(numberCopyFrom, "COPY FROM a file or program of a server into table \"%s\" of several shards", t.name).
			WithHint("Use COPY FROM STDIN, or psql's \\copy.")
	case t.inherits:
		return unplanned(numberCopyFrom, "COPY FROM into table \"%s\", whose partitions lie elsewhere", t.name)
	}
	if err := t.checkColumns(c.Columns); err != nil {
		return err
	}
	in := &CopyIn{Format: copyFormat(c)}
	in.Format.Field = -1
	fields := copiedColumns(t, c)
	if err := s.copyDefaults(in, t, c, fields); err != nil {
		return err
	}
	fields = append(slices.Clone(fields), in.Extra...)
	route := Route{Kind: RouteReference, All: place.Copies}
	if !place.Reference {
		route = Route{Kind: RouteScatter, All: place.Group.Shards}
		if err := in.byKey(t, c, fields); err != nil {
			return err
		}
	} else {
		route.Shard = place.Copies[0]
	}
	s.plan.Route, s.plan.planner, s.plan.CopyIn = route, s.planner, in
	s.plan.Spread = &Spread{Legs: []Leg{{Route: route}}, Pass: passAll, Write: true, Copies: place.Reference}
	return nil
}

// copyIntoView refuses COPY into a view whose rows are on several shards.
func (s *sharding) copyIntoView(t *tableShape) error {
	p, err := s.inside().planText("SELECT * FROM " + qualifiedName(t))
	if err != nil {
		return err
	}
	if p.Spread == nil && !p.SpreadByText && p.Route.Kind < RouteEqual {
		s.plan.Route.Shard = p.Route.Shard
		return nil
	}
	return unplanned(numberCopyFrom, "COPY FROM into the view \"%s\" over several shards", t.name).
		WithHint("Copy into the table.")
}

// planText plans a query that the gateway has written.
func (m maker) planText(sql string) (*Plan, error) {
	st, err := sqlparse.Parse(sql)
	if err != nil {
		return nil, err
	}
	return m.plan(st)
}

func qualifiedName(t *tableShape) string {
	return sqlparse.QuoteIdent(t.schema) + "." + sqlparse.QuoteIdent(t.name)
}

// copiedColumns gives the names of the columns that COPY of a table reads or writes.
func copiedColumns(t *tableShape, c *sqlparse.CopyStmt) []string {
	if len(c.Columns) > 0 {
		return c.Columns
	}
	var out []string
	for i := range t.columns {
		if !t.columns[i].Generated {
			out = append(out, t.columns[i].Name)
		}
	}
	return out
}

// checkColumns refuses names of no column.
func (t *tableShape) checkColumns(names []string) error {
	for _, name := range names {
		if t.column(name) == nil {
			return pgerr.New(pgerr.UndefinedColumn, "column \"%s\" of relation \"%s\" does not exist", name, t.name)
		}
	}
	return nil
}

// copyDefaults sees to columns left out whose defaults must be computed once for all shards, and refuses a condition that may
// differ between copies.
func (s *sharding) copyDefaults(in *CopyIn, t *tableShape, c *sqlparse.CopyStmt, fields []string) error {
	stmt := s.st.Tree.Stmts[0].Stmt
	if c.Where && t.place.Reference && s.varies(stmt.GetCopyStmt().GetWhereClause()) != alike {
		return unplanned(numberChangeOfCopies, "COPY into reference table \"%s\" with a condition that is not the same on every copy", t.name)
	}
	o := s.newOnce()
	for i := range t.columns {
		if col := &t.columns[i]; !slices.Contains(fields, col.Name) && s.defaultOnce(col, t.place.Reference) {
			o.columnDefault(t, col)
			in.Extra, in.Types = append(in.Extra, col.Name), append(in.Types, firstOID(col.base.OID, col.Type.OID))
		}
	}
	if len(in.Extra) == 0 || o.failed != nil {
		return o.failed
	}
	for i, expr := range o.exprs {
		if expr != "" {
			o.exprs[i] = "(" + expr + ")::" + o.types[i]
		}
	}
	in.Values = o.eval()
	in.SQL = s.st.Text[:c.MoreAt] + moreColumns(c, fields, in.Extra) + s.st.Text[c.MoreAt:]
	return nil
}

func firstOID(a, b uint32) uint32 {
	if a != 0 {
		return a
	}
	return b
}

// moreColumns gives the text that names columns behind those that COPY names, or means.
func moreColumns(c *sqlparse.CopyStmt, fields, extra []string) string {
	list := slices.Clone(extra)
	if len(c.Columns) == 0 {
		list = append(slices.Clone(fields), extra...)
	}
	for i, name := range list {
		list[i] = sqlparse.QuoteIdent(name)
	}
	if len(c.Columns) > 0 {
		return ", " + strings.Join(list, ", ")
	}
	return " (" + strings.Join(list, ", ") + ") "
}

// byKey finds the shard key among the fields of a row.
func (in *CopyIn) byKey(t *tableShape, c *sqlparse.CopyStmt, fields []string) error {
	key := t.keyColumn()
	if key == nil || key.key == 0 {
		return unplanned(numberCopyFrom, "COPY FROM into table \"%s\", whose shard key the gateway can't read", t.name)
	}
	at := slices.Index(fields, key.Name)
	if at < 0 {
		return unplanned(numberInsertKey, "COPY FROM into table \"%s\" without its shard key", t.name).
			WithHint("Give the column \"%s\" in the data.", key.Name)
	}
	k := KeyExpr{Source: KeyRow, At: at, OID: key.key, Stored: true, Typmod: key.storedTypmod()}
	if !k.keepsValue() {
		return unplanned(numberCopyFrom, "COPY FROM into table \"%s\", whose shard key may be rounded when it is stored", t.name).
			WithHint("INSERT the rows with constants that need no rounding.")
	}
	in.Key, in.Index, in.Group, in.NotNull = k, t.place.Index, t.place.Group, key.NotNull
	if in.Format.Field = at; at >= len(fields)-len(in.Extra) {
		in.Format.Field = -1 // computed
	}
	in.Format.ForceNotNull = namesColumn(c, "force_not_null", key.Name)
	in.Format.ForceNull = namesColumn(c, "force_null", key.Name)
	if o, ok := c.Option("default"); ok {
		in.Unread = o.Value
	}
	if _, ok := c.Option("reject_limit"); ok {
		return unplanned(numberCopyFrom, "COPY FROM with REJECT_LIMIT over several shards")
	}
	return nil
}

// storedTypmod gives the type modifier by which the column stores values; -1: none.
func (c *columnShape) storedTypmod() int32 { return max(c.Type.Typmod, c.base.Typmod) }

// keepsValue reports whether the column's type modifier leaves a value as it is given, but for blanks at its end.
func (k *KeyExpr) keepsValue() bool {
	return k.Typmod < 0 || k.Typmod == 0 && k.OID != datum.TimestampOID && k.OID != datum.TimestamptzOID ||
		k.OID == datum.VarcharOID || k.OID == datum.BPCharOID
}

// namesColumn reports whether an option of COPY names a column.
func namesColumn(c *sqlparse.CopyStmt, option, column string) bool {
	o, ok := c.Option(option)
	return ok && (slices.Contains(o.Values, column) || slices.Contains(o.Values, "*") || o.Value == "*")
}

// copyFormat reads the options as far as the form of the data depends on them. Those that are wrong the server refuses.
func copyFormat(c *sqlparse.CopyStmt) copydata.Format {
	f := copydata.Format{Delimiter: '\t', Null: `\N`, Quote: '"', Marker: true}
	if o, ok := c.Option("format"); ok {
		f.Binary = o.Value == "binary"
		if f.CSV = o.Value == "csv"; f.CSV {
			f.Delimiter, f.Null = ',', ""
		}
	}
	for _, o := range c.Options {
		switch o.Name {
		case "null":
			f.Null = o.Value
		case "delimiter":
			f.Delimiter = firstByte(o.Value)
		case "quote":
			f.Quote = firstByte(o.Value)
		case "escape":
			f.Escape = firstByte(o.Value)
		case "header":
			f.Header = !f.Binary && !contains(offWords, strings.ToLower(o.Value))
		}
	}
	if f.Escape == 0 {
		f.Escape = f.Quote
	}
	return f
}

var offWords = []string{"0", "false", "off"} // sorted

func firstByte(s string) byte {
	if s == "" {
		return 0
	}
	return s[0]
}

// Shard gives the shard of a row: field is its key as in the data, nil for NULL.
func (in *CopyIn) Shard(field []byte, session *datum.Session) (string, error) {
	k := &in.Key
	if field == nil {
		return in.withoutKey()
	}
	pin := Pin{Index: in.Index, Group: in.Group}
	v := Values{Session: session}
	if !in.Format.Binary {
		if in.Unread != "" && string(field) == in.Unread {
			return "", in.errUnread(field)
		}
		field = k.stored(field)
	}
	key, err := pin.key(k.OID, field, in.Format.Binary, &v)
	switch {
	case err == nil:
		return in.Group.ShardOf(key), nil
	case errors.Is(err, catalog.ErrNullKey), errors.Is(err, catalog.ErrNoKey):
		return in.withoutKey()
	case in.Format.Binary, isWhole(k.OID) && !oddInteger(field):
		return in.Group.Shards[0], nil // which says what is wrong with it
	}
	return "", in.errUnread(field)
}

// oddInteger reports whether a text may be an integer of a form that only newer servers read: 0x1f, 1_000.
func oddInteger(text []byte) bool {
	digits := bytes.TrimLeft(text, " \t\n\v\f\r+-")
	return len(digits) > 0 && digits[0] >= '0' && digits[0] <= '9' && bytes.ContainsAny(digits, "_xXoObB")
}

// withoutKey is for a row whose key is NULL.
func (in *CopyIn) withoutKey() (string, error) {
	if in.NotNull {
		return in.Group.Shards[0], nil // which refuses it
	}
	return "", pgerr.New(pgerr.NotNullViolation, "null value in column \"%s\", the shard key", in.Index.Column).
		WithDetail("A row without a shard key has no shard.")
}

func (in *CopyIn) errUnread(field []byte) error {
	return unplanned(numberInsertKey, "the value \"%.100s\" of column \"%s\", the shard key, which the gateway can't read", field, in.Index.Column).
		WithHint("Give it in the column's type and its usual form.")
}
