package plan

import (
	"fmt"
	"slices"
	"strings"

	"neki/exec/build"
	"neki/internal/datum"
	"neki/sqlparse"
)

// once collects the expressions of a change that must be computed once, for all shards: by Spread.Eval. In the tree each is
// replaced by a marker, a string constant that nothing else in the text has.
type once struct {
	s      *sharding
	mark   string
	exprs  []string // "": a value of a sequence
	types  []string
	takes  []EvalSequence
	shard  string // where a sequence lives that one of them uses; "" = anywhere
	failed error
}

func (s *sharding) newOnce() *once {
	o := &once{s: s, mark: "__neki_once_"}
	for strings.Contains(s.st.Text, o.mark) {
		o.mark += "_"
	}
	return o
}

// timeFunctions give the time; within a statement those that are stable give the same wherever they stand.
var (
	timeFunctions   = []string{"now", "statement_timestamp", "transaction_timestamp"}
	randomFunctions = []string{ // sorted
		"clock_timestamp", "gen_random_bytes", "gen_random_uuid", "nextval", "random", "random_normal", "timeofday",
		"uuid_generate_v1", "uuid_generate_v1mc", "uuid_generate_v4", "uuidv4", "uuidv7",
	}
)

// variance is how the value of an expression differs between shards.
type variance uint8

const (
	alike     variance = iota
	byTime             // stable within a statement
	atAnyTime          // another one at each call
)

// varies tells how an expression's value differs between shards.
func (m maker) varies(n *sqlparse.Node) variance {
	v := alike
	sqlparse.Walk(n, func(node any) bool {
		switch node := node.(type) {
		case *sqlparse.FuncCall:
			v = max(v, m.callVaries(node))
		case *sqlparse.SQLValueFunction:
			if isTime(node.Op) {
				v = max(v, byTime)
			}
		case *sqlparse.A_Const:
			if text := strings.ToLower(strings.TrimSpace(node.GetSval().GetSval())); node.GetSval() != nil &&
				(text == "now" || text == "today" || text == "tomorrow" || text == "yesterday") {
				v = max(v, byTime)
			}
		}
		return true
	})
	return v
}

func (m maker) callVaries(f *sqlparse.FuncCall) variance {
	parts := nameParts(f.Funcname)
	name, schema := parts[len(parts)-1], ""
	if len(parts) > 1 {
		schema = parts[len(parts)-2]
	}
	system := schema == "" || schema == systemSchema
	switch {
	case system && contains(timeFunctions, name):
		return byTime
	case contains(randomFunctions, name):
		return atAnyTime
	case m.unprovenCall(sqlparse.FuncRef{Schema: schema, Name: name, NArgs: len(f.Args)}) != "":
		return atAnyTime
	}
	return alike
}

func isTime(op sqlparse.SQLValueFunctionOp) bool {
	switch op { //nolint:exhaustive // the others tell who and where
	case sqlparse.SQLValueFunctionOp_SVFOP_CURRENT_ROLE, sqlparse.SQLValueFunctionOp_SVFOP_CURRENT_USER,
		sqlparse.SQLValueFunctionOp_SVFOP_USER, sqlparse.SQLValueFunctionOp_SVFOP_SESSION_USER,
		sqlparse.SQLValueFunctionOp_SVFOP_CURRENT_CATALOG, sqlparse.SQLValueFunctionOp_SVFOP_CURRENT_SCHEMA:
		return false
	}
	return true
}

// add has an expression of a type computed once and gives what stands for it.
func (o *once) add(expr *sqlparse.Node, oid uint32) *sqlparse.Node {
	text, err := sqlparse.DeparseNode(queryOf(expr))
	name := o.s.typeName(oid)
	if err != nil || name == "" {
		o.failed = unplanned(numberVolatileDefault, "a value that must be computed once for several shards").
			WithHint("Compute it first, and give it as a constant or a parameter.")
		return expr
	}
	return o.addText(strings.TrimPrefix(text, "SELECT "), name)
}

func (o *once) addText(expr, typeName string) *sqlparse.Node {
	o.exprs, o.types = append(o.exprs, expr), append(o.types, typeName)
	return stringConst(fmt.Sprintf("%s%d__", o.mark, len(o.exprs)-1))
}

// typeName gives the name of a type as SQL has it, "" when it is not known.
func (s *sharding) typeName(oid uint32) string {
	t := s.schema.table.Type(oid)
	if t == nil {
		if !datum.Known(oid) {
			return ""
		}
		return "pg_catalog." + sqlparse.QuoteIdent(baseTypeNames[oid])
	}
	return sqlparse.QuoteIdent(t.Schema) + "." + sqlparse.QuoteIdent(t.Name)
}

var baseTypeNames = map[uint32]string{
	datum.BoolOID: "bool", datum.Int2OID: "int2", datum.Int4OID: "int4", datum.Int8OID: "int8", datum.TextOID: "text",
	datum.VarcharOID: "varchar", datum.NumericOID: "numeric", datum.Float4OID: "float4", datum.Float8OID: "float8",
	datum.DateOID: "date", datum.TimestampOID: "timestamp", datum.TimestamptzOID: "timestamptz", datum.IntervalOID: "interval",
	datum.UUIDOID: "uuid", datum.JSONOID: "json", datum.JSONBOID: "jsonb", datum.TimeOID: "time", datum.OIDOID: "oid",
	datum.NameOID: "name",
}

// typeOf infers the type of an expression without columns; 0 when it can't be told here.
func typeOfConstant(expr *sqlparse.Node) uint32 {
	spec, err := build.Query(statementOf(&sqlparse.SelectStmt{
		LimitOption: sqlparse.LimitOption_LIMIT_OPTION_DEFAULT, Op: sqlparse.SetOperation_SETOP_NONE,
		TargetList: []*sqlparse.Node{target("", sqlparse.Clone(expr))},
	}, ""), noRelations{}, nil)
	if err != nil {
		return knownCallType(expr)
	}
	return spec.Columns()[0].Type.OID
}

// knownCallType gives the result types of volatile functions that the engine doesn't run.
func knownCallType(expr *sqlparse.Node) uint32 {
	switch lastName(expr.GetFuncCall().GetFuncname()) {
	case "gen_random_uuid", "uuid_generate_v1", "uuid_generate_v1mc", "uuid_generate_v4", "uuidv4", "uuidv7":
		return datum.UUIDOID
	case "nextval":
		return datum.Int8OID
	case "random", "random_normal":
		return datum.Float8OID
	case "clock_timestamp", "now", "statement_timestamp", "transaction_timestamp":
		return datum.TimestamptzOID
	case "timeofday":
		return datum.TextOID
	}
	return 0
}

// fills finds the markers in a text and takes them out.
func (o *once) fills(text string) (string, []Fill) {
	var b strings.Builder
	var fills []Fill
	for {
		at := strings.Index(text, "'"+o.mark)
		if at < 0 {
			b.WriteString(text)
			return b.String(), fills
		}
		b.WriteString(text[:at])
		rest := text[at+1+len(o.mark):]
		end := strings.IndexByte(rest, '\'')
		var i int
		_, _ = fmt.Sscanf(rest[:end], "%d__", &i)
		fills = append(fills, Fill{At: b.Len(), Value: i, Type: o.types[i]})
		text = rest[end+1:]
	}
}

// eval gives what computes all.
func (o *once) eval() *Eval {
	if len(o.exprs) == 0 {
		return nil
	}
	e := &Eval{Shard: o.shard, Columns: len(o.exprs), Sequences: o.takes}
	if e.Shard == "" {
		e.Shard = homeShard(o.s.snap)
	}
	var exprs []string
	for i, expr := range o.exprs {
		if expr != "" {
			exprs, e.At = append(exprs, expr), append(e.At, i)
		}
	}
	if len(exprs) > 0 {
		e.SQL = "SELECT " + strings.Join(exprs, ", ")
		e.Params = strings.Contains(e.SQL, "$")
	}
	return e
}

// take has a value of a sequence taken.
func (o *once) take(q Relation, owner *tableShape, typeName string) *sqlparse.Node {
	o.takes = append(o.takes, EvalSequence{At: len(o.exprs), Name: q, Shard: o.sequenceShard(q, owner)})
	return o.addText("", typeName)
}

// sequenceShard gives the shard that a sequence lives on.
func (o *once) sequenceShard(q Relation, owner *tableShape) string {
	ownerSchema, ownerName := "", ""
	if owner != nil {
		ownerSchema, ownerName = owner.schema, owner.name
	}
	return o.s.schema.topology.SequenceGroup(o.s.schema.database, q.Schema, q.Name, ownerSchema, ownerName).Shards[0]
}

// defaultOnce reports whether a column's default must be computed once: for all copies, or because it counts over shards.
func (s *sharding) defaultOnce(c *columnShape, everyCopy bool) bool {
	if c.Sequence != (Relation{}) || c.Identity != 0 {
		return true
	}
	if c.Default == "" || c.Generated {
		return false
	}
	if strings.Contains(c.Default, "nextval(") {
		return true
	}
	if !everyCopy {
		return false
	}
	return s.variesDefault(c) != alike
}

// variesDefault tells how a column's default differs between shards.
func (s *sharding) variesDefault(c *columnShape) variance {
	st, err := sqlparse.Parse("SELECT " + c.Default)
	if err != nil || st.Tree == nil {
		return atAnyTime
	}
	return s.varies(st.Tree.Stmts[0].Stmt)
}

func (o *once) columnDefault(t *tableShape, c *columnShape) *sqlparse.Node {
	name := o.s.typeName(c.Type.OID)
	text := c.Default
	if c.Sequence != (Relation{}) && name != "" {
		return o.take(c.Sequence, t, name)
	}
	if name == "" || text == "" {
		o.failed = unplanned(numberVolatileDefault, "the default of column \"%s\" over several shards", c.Name)
		name = "text"
	}
	return o.addText(text, name)
}

// insertOnce rewrites an INSERT of rows so that what must be computed once is. It gives nil when nothing has to be.
func (s *sharding) insertOnce() (*sqlparse.InsertStmt, *once, []KeyExpr, error) {
	c, in := s.change, s.change.insert
	t := c.table
	everyCopy := t.place.Reference
	stmt := sqlparse.Clone(&sqlparse.Node{Node: &sqlparse.Node_InsertStmt{InsertStmt: in.stmt}}).GetInsertStmt()
	o := s.newOnce()
	columns, extra := s.insertColumns(stmt, everyCopy)
	source := stmt.SelectStmt.GetSelectStmt()
	if source == nil {
		source = &sqlparse.SelectStmt{
			LimitOption: sqlparse.LimitOption_LIMIT_OPTION_DEFAULT, Op: sqlparse.SetOperation_SETOP_NONE,
			ValuesLists: []*sqlparse.Node{{Node: &sqlparse.Node_List{List: &sqlparse.List{}}}},
		}
		if len(extra) == 0 {
			return nil, o, nil, nil
		}
		stmt.SelectStmt = &sqlparse.Node{Node: &sqlparse.Node_SelectStmt{SelectStmt: source}}
	}
	keys := slices.Clone(in.keys)
	var keyName string
	key := t.keyColumn()
	if key != nil {
		keyName = key.Name
		keys = make([]KeyExpr, len(source.ValuesLists))
	}
	for i, n := range source.ValuesLists {
		row := n.GetList()
		for j, value := range row.Items {
			if j >= len(columns) {
				return nil, o, nil, nil // one of the shards says that there are too many
			}
			before := len(o.exprs)
			if columns[j] == key && s.keyOnce(value, key) {
				row.Items[j] = s.onceKeyValue(o, t, key, value)
			} else {
				row.Items[j] = s.rowValue(o, t, columns[j], value, everyCopy)
			}
			if columns[j].Name == keyName {
				keys[i] = s.onceKey(o, before, columns[j], value)
			}
		}
		for _, col := range extra {
			before := len(o.exprs)
			row.Items = append(row.Items, o.columnDefault(t, col))
			if col.Name == keyName {
				keys[i] = s.onceKey(o, before, col, nil)
			}
		}
	}
	if len(o.exprs) == 0 || o.failed != nil {
		return nil, o, nil, o.failed
	}
	stmt.Cols = nil
	given := columns
	if len(source.ValuesLists) > 0 {
		if n := len(source.ValuesLists[0].GetList().Items) - len(extra); n < len(given) {
			given = given[:n]
		}
	}
	for _, col := range append(slices.Clone(given), extra...) {
		stmt.Cols = append(stmt.Cols, &sqlparse.Node{Node: &sqlparse.Node_ResTarget{ResTarget: &sqlparse.ResTarget{Name: col.Name}}})
		if col.Identity == 'a' && stmt.Override == sqlparse.OverridingKind_OVERRIDING_NOT_SET {
			stmt.Override = sqlparse.OverridingKind_OVERRIDING_SYSTEM_VALUE
		}
	}
	return stmt, o, keys, nil
}

// onceKey gives the key of a row whose value was maybe replaced.
func (s *sharding) onceKey(o *once, before int, c *columnShape, value *sqlparse.Node) KeyExpr {
	if len(o.exprs) > before {
		return KeyExpr{Source: KeyEval, At: before, OID: c.key, Stored: true}
	}
	k, ok := s.a.storedKey(value, c)
	if !ok {
		o.failed = s.errInsertKey()
	}
	return k
}

// keyOnce reports whether a value for the shard key must be computed first to know where the row goes, and can be: it is the
// column's default, or an expression of the column's very type.
func (s *sharding) keyOnce(value *sqlparse.Node, c *columnShape) bool {
	if value.GetSetToDefault() != nil {
		return c.Default != "" && !c.Generated
	}
	if _, plain := s.a.storedKey(value, c); plain || callsNextval(value) || c.storedTypmod() > 0 {
		return false
	}
	alone := true
	sqlparse.Walk(value, func(node any) bool {
		switch node.(type) {
		case *sqlparse.ParamRef, *sqlparse.SubLink, *sqlparse.ColumnRef:
			alone = false
		}
		return alone
	})
	return alone && typeOfConstant(value) == c.Type.OID
}

func (s *sharding) onceKeyValue(o *once, t *tableShape, c *columnShape, value *sqlparse.Node) *sqlparse.Node {
	if value.GetSetToDefault() != nil {
		return o.columnDefault(t, c)
	}
	return o.add(value, c.Type.OID)
}

// rowValue replaces a value of a row that must be computed once.
func (s *sharding) rowValue(o *once, t *tableShape, c *columnShape, value *sqlparse.Node, everyCopy bool) *sqlparse.Node {
	if value.GetSetToDefault() != nil {
		if s.defaultOnce(c, everyCopy) {
			return o.columnDefault(t, c)
		}
		return value
	}
	v := s.varies(value)
	if v == alike || !everyCopy && !callsNextval(value) {
		return value
	}
	oid := typeOfConstant(value)
	if oid == datum.UnknownOID || value.GetAConst() != nil {
		oid = c.Type.OID
		value = &sqlparse.Node{Node: &sqlparse.Node_TypeCast{TypeCast: &sqlparse.TypeCast{Arg: value, TypeName: namedType(s.schema.table, oid)}}}
	}
	if oid == 0 {
		oid = c.Type.OID
	}
	return o.add(value, oid)
}

func callsNextval(n *sqlparse.Node) bool {
	found := false
	sqlparse.Walk(n, func(node any) bool {
		if f, ok := node.(*sqlparse.FuncCall); ok && lastName(f.Funcname) == "nextval" {
			found = true
		}
		return !found
	})
	return found
}

// insertColumns gives the columns that an INSERT names, or that it means without, and those left out whose default must be
// computed once.
func (s *sharding) insertColumns(stmt *sqlparse.InsertStmt, everyCopy bool) (given, extra []*columnShape) {
	t := s.change.table
	named := map[string]bool{}
	for _, n := range stmt.Cols {
		if c := t.column(n.GetResTarget().Name); c != nil {
			given = append(given, c)
			named[c.Name] = true
		}
	}
	width := -1
	if source := stmt.SelectStmt.GetSelectStmt(); source != nil && len(source.ValuesLists) > 0 {
		width = len(source.ValuesLists[0].GetList().GetItems())
	}
	for i := range t.columns {
		c := &t.columns[i]
		if len(stmt.Cols) == 0 && width >= 0 && len(given) < width {
			given = append(given, c)
			named[c.Name] = true
		}
		if !named[c.Name] && (s.defaultOnce(c, everyCopy) || c == t.keyColumn() && c.Default != "" && !c.Generated) {
			extra = append(extra, c)
		}
	}
	return given, extra
}
