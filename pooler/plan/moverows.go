package plan

import (
	"errors"
	"slices"
	"strings"

	"neki/catalog"
	"neki/internal/datum"
	"neki/internal/pgerr"
	"neki/sqlparse"
)

// MoveRows is an INSERT ... SELECT whose rows go to other shards than they come from: the query is run first, and its rows, as
// constants, are inserted where they belong.
type MoveRows struct {
	Query         *Plan  // has a Spread
	Before, After string // the INSERT's text around the rows
	Untyped       []bool // of the query's columns: constants without a type, which take that of the column
	Whole         bool   // all rows of a shard in one statement
	Left          []Left // columns that the INSERT leaves out, behind those of the query

	Shards  []string       // all that may get rows; without an Index each gets all
	Index   *catalog.Index // nil: the table has no key
	Group   *catalog.Group
	Key     KeyExpr // its column of the query
	KeyType uint32  // of the table's column
}

// Left is a column that an INSERT leaves to a default which must be computed once for all shards.
type Left struct {
	Sequence Relation // whose next value each row gets
	Shard    string   // uid, on which the sequence is
	Eval     int      // else the value is that of this column of Spread.Eval's row
	Type     string   // the name of the column's type
}

// moveRows plans INSERT ... SELECT whose rows change shard.
func (s *sharding) moveRows() error { return s.moveRowsWith(nil, s.newOnce()) }

// moveRowsWith is moveRows for an INSERT that leaves columns to defaults which must be computed once.
func (s *sharding) moveRowsWith(left []*columnShape, o *once) error {
	c, in := s.change, s.change.insert
	if in.stmt.WithClause != nil {
		return unplanned(numberInsertKey, "WITH before an INSERT ... SELECT whose rows go to other shards than they come from").
			WithHint("Write WITH behind INSERT INTO.")
	}
	text, err := sqlparse.DeparseNode(in.stmt.SelectStmt)
	if err != nil {
		return errDeparse(err)
	}
	query, err := sqlparse.Parse(text)
	if err != nil {
		return errDeparse(err)
	}
	inner, err := s.insideFor(query)
	if err != nil {
		return err
	}
	if inner.Spread == nil {
		whole := *inner.bareCopy()
		whole.Spread = &Spread{Legs: []Leg{{SQL: text, Route: inner.Route}}, Pass: passAll}
		inner = &whole
	} else {
		inner.Spread = inner.Spread.ofQuery(text)
	}
	m := &MoveRows{Query: inner, Untyped: untyped(in.stmt.SelectStmt.GetSelectStmt())}
	m.Whole = in.stmt.OnConflictClause.GetAction() == sqlparse.OnConflictAction_ONCONFLICT_UPDATE
	if err := s.leave(m, left, o); err != nil {
		return err
	}
	route, err := s.moveTo(m, left)
	if err != nil {
		return err
	}
	if err := s.moveText(m, left); err != nil {
		return err
	}
	s.plan.Route = route
	s.plan.Spread = &Spread{
		Legs: []Leg{{Route: route, SQL: m.Before + "..." + m.After}}, Pass: passAll, Write: true, Copies: c.table.place.Reference, Move: m,
		Eval:  o.eval(),
		Steps: []string{"rows of " + text},
	}
	for i, l := range m.Left {
		from := "{" + itoa(int64(l.Eval)+1) + "}"
		if l.Sequence != (Relation{}) {
			from = "next of " + l.Sequence.Schema + "." + l.Sequence.Name
		}
		s.plan.Spread.Steps = append(s.plan.Spread.Steps, left[i].Name+": "+from)
	}
	return nil
}

// AsSpread gives a plan by which the gateway itself runs a statement that is on one shard.
func (p *Plan) AsSpread() *Plan {
	out := p.bareCopy()
	out.Spread = &Spread{Legs: []Leg{{Route: p.Route}}, Pass: passAll, Write: p.Verdict != Read}
	return out
}

// bareCopy copies what running a plan needs.
func (p *Plan) bareCopy() *Plan {
	return &Plan{Query: p.Query, Kind: p.Kind, Tag: p.Tag, Route: p.Route, Verdict: p.Verdict, Why: p.Why, Pins: p.Pins, planner: p.planner, refused: p.refused}
}

// moveTo says where the rows go.
func (s *sharding) moveTo(m *MoveRows, left []*columnShape) (Route, error) {
	t, in := s.change.table, s.change.insert
	switch {
	case t.place.Reference:
		m.Shards = t.place.Copies
		return Route{Kind: RouteReference, Shard: m.Shards[0], All: m.Shards}, nil
	case !t.place.Sharded():
		m.Shards = t.place.Shards()[:1]
		return Route{Kind: RouteOne, Shard: m.Shards[0]}, nil
	}
	if err := s.checkArbiter(); err != nil {
		return Route{}, err
	}
	key, at := t.keyColumn(), in.keyAt
	if i := slices.Index(left, key); i >= 0 {
		at = s.givenColumns() + i
	}
	if key == nil || key.key == 0 || at < 0 {
		return Route{}, s.errInsertKey()
	}
	m.Shards, m.Index, m.Group, m.KeyType = t.place.Group.Shards, t.place.Index, t.place.Group, key.Type.OID
	m.Key = KeyExpr{Source: KeyRow, At: at, OID: key.key, Stored: true, Typmod: key.storedTypmod()}
	return Route{Kind: RouteScatter, All: m.Shards}, nil
}

// moveText writes the INSERT with a mark where the rows go.
func (s *sharding) moveText(m *MoveRows, left []*columnShape) error {
	mark := "__neki_rows_"
	for strings.Contains(s.st.Text, mark) {
		mark += "_"
	}
	stmt := sqlparse.Clone(&sqlparse.Node{Node: &sqlparse.Node_InsertStmt{InsertStmt: s.change.insert.stmt}}).GetInsertStmt()
	if len(left) > 0 {
		s.nameColumns(stmt, left)
	}
	row := &sqlparse.Node{Node: &sqlparse.Node_List{List: &sqlparse.List{Items: []*sqlparse.Node{stringConst(mark)}}}}
	stmt.SelectStmt = &sqlparse.Node{Node: &sqlparse.Node_SelectStmt{SelectStmt: &sqlparse.SelectStmt{
		LimitOption: sqlparse.LimitOption_LIMIT_OPTION_DEFAULT, Op: sqlparse.SetOperation_SETOP_NONE, ValuesLists: []*sqlparse.Node{row},
	}}}
	text, err := sqlparse.DeparseNode(&sqlparse.Node{Node: &sqlparse.Node_InsertStmt{InsertStmt: stmt}})
	if err != nil {
		return errDeparse(err)
	}
	before, after, ok := strings.Cut(text, "VALUES ('"+mark+"')")
	if !ok {
		return errDeparse(nil)
	}
	m.Before, m.After = before, after
	return nil
}

// leave fills in where the values of the columns left out come from.
func (s *sharding) leave(m *MoveRows, left []*columnShape, o *once) error {
	for _, c := range left {
		l := Left{Sequence: c.Sequence, Type: s.typeName(c.Type.OID)}
		if c.Sequence == (Relation{}) {
			l.Eval = len(o.exprs)
			o.columnDefault(s.change.table, c)
		} else {
			l.Shard = o.sequenceShard(c.Sequence, s.change.table)
		}
		if l.Type == "" || o.failed != nil {
			return s.errLeftOut(c)
		}
		m.Left = append(m.Left, l)
	}
	return nil
}

// givenColumns counts the columns that an INSERT ... SELECT gives values for.
func (s *sharding) givenColumns() int {
	in := s.change.insert
	if len(in.stmt.Cols) > 0 {
		return len(in.stmt.Cols)
	}
	return len(in.query.outs)
}

// nameColumns has an INSERT name the columns that it means, and those left out behind them.
func (s *sharding) nameColumns(stmt *sqlparse.InsertStmt, left []*columnShape) {
	named := func(name string) {
		stmt.Cols = append(stmt.Cols, &sqlparse.Node{Node: &sqlparse.Node_ResTarget{ResTarget: &sqlparse.ResTarget{Name: name}}})
	}
	if len(stmt.Cols) == 0 {
		for i := range min(s.givenColumns(), len(s.change.table.columns)) {
			named(s.change.table.columns[i].Name)
		}
	}
	for _, c := range left {
		named(c.Name)
		if c.Identity == 'a' {
			stmt.Override = sqlparse.OverridingKind_OVERRIDING_SYSTEM_VALUE
		}
	}
}

// untyped tells which columns of a query are bare string constants or NULL.
func untyped(s *sqlparse.SelectStmt) []bool {
	if s.Op != sqlparse.SetOperation_SETOP_NONE {
		return nil
	}
	out := make([]bool, len(s.TargetList))
	for i, n := range s.TargetList {
		val := n.GetResTarget().GetVal()
		for _, f := range val.GetColumnRef().GetFields() {
			if f.GetAStar() != nil { // it may be any number of columns
				return nil
			}
		}
		c := val.GetAConst()
		out[i] = c != nil && (c.Isnull || c.GetSval() != nil)
	}
	return out
}

// CheckKey tells whether the key of a row can be read from the query's column, which is of a type.
func (m *MoveRows) CheckKey(oid uint32) error {
	k := &m.Key
	reads := oid == m.KeyType || k.At < len(m.Untyped) && m.Untyped[k.At] || readsAlike(oid, k)
	if reads && (k.keepsValue() || isWhole(oid)) {
		return nil
	}
	return unplanned(numberInsertKey, "INSERT ... SELECT whose shard key is of another type than the column \"%s\"", m.Index.Column).
		WithHint("Cast the value to the column's type.")
}

// Shard gives the shard of a row by the text of its key; nil is NULL.
func (m *MoveRows) Shard(value []byte, session *datum.Session) (string, error) {
	if value != nil {
		pin := Pin{Index: m.Index, Group: m.Group}
		key, err := pin.key(m.Key.OID, m.Key.stored(value), false, &Values{Session: session})
		switch {
		case err == nil:
			return m.Group.ShardOf(key), nil
		case !errors.Is(err, catalog.ErrNullKey) && !errors.Is(err, catalog.ErrNoKey) && isWhole(m.Key.OID):
			return m.Group.Shards[0], nil // which says what is wrong with it
		case !errors.Is(err, catalog.ErrNullKey) && !errors.Is(err, catalog.ErrNoKey):
			return "", unplanned(numberInsertKey, "a value of column \"%s\", the shard key, that the gateway can't read", m.Index.Column)
		}
	}
	return "", pgerr.New(pgerr.NotNullViolation, "null value in column \"%s\", the shard key", m.Index.Column).
		WithDetail("A row without a shard key has no shard.")
}

// TypeName gives the name of a type as SQL has it, "" when it is not known.
func TypeName(table *RelTable, oid uint32) string {
	if t := table.Type(oid); t != nil {
		return sqlparse.QuoteIdent(t.Schema) + "." + sqlparse.QuoteIdent(t.Name)
	}
	if name := baseTypeNames[oid]; name != "" {
		return "pg_catalog." + sqlparse.QuoteIdent(name)
	}
	if elem := datum.Elem(oid); elem != 0 && TypeName(table, elem) != "" {
		return TypeName(table, elem) + "[]"
	}
	return ""
}
