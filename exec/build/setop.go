package build

import (
	"strconv"

	"neki/exec"
	"neki/internal/datum"
	"neki/internal/pgerr"
	"neki/sqlparse"
)

// query is a built SELECT.
type query struct {
	op      exec.Operator
	columns []exec.Column
	project *exec.Project // op, when unknown literals among its columns can still be given a type
	offsets []int32       // of the columns' expressions
}

// query builds a SELECT of any form. keepUnknown leaves literals without type in the result for a set operation to type.
func (b *builder) query(stmt *sqlparse.SelectStmt, l *level, keepUnknown bool) (*query, error) {
	if err := b.enter(); err != nil {
		return nil, err
	}
	defer b.leave()
	if stmt == nil {
		return nil, unsupported(-1, "this kind of subquery")
	}
	if stmt.IntoClause != nil || len(stmt.LockingClause) > 0 {
		return nil, unsupported(-1, "SELECT INTO or FOR UPDATE")
	}
	var ctes []*exec.CTE
	if stmt.WithClause != nil {
		var err error
		if ctes, err = b.with(l, stmt.WithClause); err != nil {
			return nil, err
		}
	}
	var q *query
	var err error
	switch {
	case stmt.Op != sqlparse.SetOperation_SETOP_NONE:
		q, err = b.setOp(stmt, l)
	case len(stmt.ValuesLists) > 0:
		q, err = b.values(stmt, l)
	default:
		q, err = b.selectStmt(stmt, l, keepUnknown)
	}
	if err != nil {
		return nil, err
	}
	if len(ctes) > 0 {
		q = &query{op: &exec.With{CTEs: ctes, Body: q.op}, columns: q.columns, offsets: q.offsets}
	}
	return q, nil
}

func (b *builder) setOp(stmt *sqlparse.SelectStmt, l *level) (*query, error) {
	what := map[sqlparse.SetOperation]string{
		sqlparse.SetOperation_SETOP_UNION: "UNION", sqlparse.SetOperation_SETOP_INTERSECT: "INTERSECT",
		sqlparse.SetOperation_SETOP_EXCEPT: "EXCEPT",
	}[stmt.Op]
	left, err := b.query(stmt.Larg, l.beside(), true)
	if err != nil {
		return nil, err
	}
	right, err := b.query(stmt.Rarg, l.beside(), true)
	if err != nil {
		return nil, err
	}
	if len(left.columns) != len(right.columns) {
		return nil, errAt(right.offset(0), pgerr.SyntaxError, "each %s query must have the same number of columns", what)
	}
	columns := append([]exec.Column(nil), left.columns...)
	for i := range columns {
		lt, rt := left.columns[i].Type, right.columns[i].Type
		oid, ok := commonType([]uint32{lt.OID, rt.OID})
		if !ok {
			return nil, errAt(right.offset(i), pgerr.DatatypeMismatch, "%s types %s and %s cannot be matched", what,
				typeName(lt.OID), typeName(rt.OID))
		}
		if oid == datum.UnknownOID {
			oid = datum.TextOID
		}
		columns[i].Type = datum.Of(oid)
		if lt == rt && lt.OID == oid {
			columns[i].Type = lt
		}
		for _, side := range []*query{left, right} {
			if err := b.coerceColumn(side, i, oid, what); err != nil {
				return nil, err
			}
		}
	}
	keys, err := keysOf(columns, !stmt.All || stmt.Op != sqlparse.SetOperation_SETOP_UNION)
	if err != nil {
		return nil, err
	}
	q := &query{columns: columns, offsets: left.offsets}
	switch {
	case stmt.Op != sqlparse.SetOperation_SETOP_UNION:
		q.op = &exec.SetOperation{Left: left.op, Right: right.op, Except: what == "EXCEPT", All: stmt.All, Keys: keys}
	case stmt.All:
		q.op = &exec.Append{Inputs: []exec.Operator{left.op, right.op}}
	default:
		q.op = &exec.Unique{Input: &exec.Append{Inputs: []exec.Operator{left.op, right.op}}, Keys: keys}
	}
	return b.finish(stmt, l, q)
}

func (q *query) offset(i int) int32 {
	if i < len(q.offsets) {
		return q.offsets[i]
	}
	return -1
}

// keysOf gives references to all columns, which must be comparable when they are compared.
func keysOf(columns []exec.Column, compared bool) ([]exec.Expr, error) {
	keys := make([]exec.Expr, len(columns))
	for i, c := range columns {
		keys[i] = &exec.ColumnRef{Index: i, Typ: c.Type}
		if compared && !datum.Comparable(c.Type.OID) {
			if c.Type.OID == datum.JSONOID {
				return nil, errAt(-1, pgerr.UndefinedFunction, "could not identify an equality operator for type json")
			}
			return nil, unsupported(-1, "the comparison of type %s", typeName(c.Type.OID))
		}
	}
	return keys, nil
}

// coerceColumn brings one column of a query to a type.
func (b *builder) coerceColumn(q *query, i int, oid uint32, what string) error {
	if q.columns[i].Type.OID == oid {
		return nil
	}
	var e exec.Expr = &exec.ColumnRef{Index: i, Typ: q.columns[i].Type}
	if q.project != nil {
		e = q.project.Exprs[i]
	}
	c, err := b.coerce(e, datum.Of(oid), implicit, q.offset(i))
	if err != nil {
		return err
	}
	if c == nil {
		return errAt(q.offset(i), "42846", "%s could not convert type %s to %s", what, typeName(q.columns[i].Type.OID), typeName(oid))
	}
	if q.project == nil {
		exprs, err := keysOf(q.columns, false)
		if err != nil {
			return err
		}
		q.project = &exec.Project{Input: q.op, Exprs: exprs}
		q.op = q.project
	}
	q.project.Exprs[i] = c
	q.columns[i].Type = datum.Of(oid)
	return nil
}

func (b *builder) values(stmt *sqlparse.SelectStmt, l *level) (*query, error) {
	var rows [][]exec.Expr
	var places [][]int32
	err := l.within("VALUES", func() error {
		for _, list := range stmt.ValuesLists {
			items := list.GetList().GetItems()
			row, at := make([]exec.Expr, len(items)), make([]int32, len(items))
			for i, n := range items {
				var err error
				if row[i], err = b.expr(l, n); err != nil {
					return err
				}
				at[i] = place(n)
			}
			if len(rows) > 0 && len(row) != len(rows[0]) {
				return errAt(at[0], pgerr.SyntaxError, "VALUES lists must all be the same length")
			}
			rows, places = append(rows, row), append(places, at)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	q := &query{op: &exec.Values{Rows: rows}}
	for i := range rows[0] {
		column, at := make([]exec.Expr, len(rows)), make([]int32, len(rows))
		for j, row := range rows {
			column[j], at[j] = row[i], places[j][i]
		}
		oid, err := common(column, at, "VALUES")
		if err != nil {
			return nil, err
		}
		if err := b.coerceAll(column, at, oid, "VALUES"); err != nil {
			return nil, err
		}
		for j := range rows {
			rows[j][i] = column[j]
		}
		q.columns = append(q.columns, exec.Column{Name: "column" + strconv.Itoa(i+1), Type: resultType(oid, column)})
		q.offsets = append(q.offsets, at[0])
	}
	return b.finish(stmt, l, q)
}

// finish adds ORDER BY and LIMIT to a set operation or VALUES: they know the result's columns only.
func (b *builder) finish(stmt *sqlparse.SelectStmt, l *level, q *query) (*query, error) {
	var keys []exec.SortKey
	for _, node := range stmt.SortClause {
		s := node.GetSortBy()
		i, err := resultColumn(s.Node, q.columns)
		if err != nil {
			return nil, err
		}
		k, err := sortKey(&exec.ColumnRef{Index: i, Typ: q.columns[i].Type}, s, place(s.Node))
		if err != nil {
			return nil, err
		}
		keys = append(keys, k)
	}
	if len(keys) > 0 {
		q.op = &exec.Sort{Input: q.op, Keys: keys}
	}
	var err error
	q.op, err = b.limit(stmt, l, q.op)
	return q, err
}

func resultColumn(n *sqlparse.Node, columns []exec.Column) (int, error) {
	if c := n.GetAConst(); c != nil {
		if c.GetIval() == nil {
			return 0, errAt(c.Location, pgerr.SyntaxError, "non-integer constant in ORDER BY")
		}
		i := int(c.GetIval().GetIval())
		if i < 1 || i > len(columns) {
			return 0, errAt(c.Location, pgerr.InvalidColumnReference, "ORDER BY position %d is not in select list", i)
		}
		return i - 1, nil
	}
	if ref := n.GetColumnRef(); ref != nil && len(ref.Fields) == 1 && ref.Fields[0].GetString_() != nil {
		name := ref.Fields[0].GetString_().Sval
		found := -1
		for i, c := range columns {
			if c.Name == name {
				if found >= 0 {
					return 0, errAt(ref.Location, pgerr.AmbiguousColumn, "ORDER BY \"%s\" is ambiguous", name)
				}
				found = i
			}
		}
		if found >= 0 {
			return found, nil
		}
		return 0, errAt(ref.Location, pgerr.UndefinedColumn, "column \"%s\" does not exist", name)
	}
	return 0, errAt(place(n), pgerr.FeatureNotSupported, "invalid UNION/INTERSECT/EXCEPT ORDER BY clause")
}

// limit adds LIMIT and OFFSET.
func (b *builder) limit(stmt *sqlparse.SelectStmt, l *level, op exec.Operator) (exec.Operator, error) {
	if stmt.LimitCount == nil && stmt.LimitOffset == nil {
		return op, nil
	}
	if stmt.LimitOption == sqlparse.LimitOption_LIMIT_OPTION_WITH_TIES {
		return nil, unsupported(-1, "FETCH FIRST WITH TIES")
	}
	out := &exec.Limit{Input: op}
	for _, part := range []struct {
		node *sqlparse.Node
		to   *exec.Expr
		what string
	}{{stmt.LimitOffset, &out.Offset, "OFFSET"}, {stmt.LimitCount, &out.Count, "LIMIT"}} {
		if part.node == nil {
			continue
		}
		err := l.within(part.what, func() error {
			e, err := b.expr(l, part.node)
			if err != nil {
				return err
			}
			offset := place(part.node)
			if e, err = b.must(e, datum.Int8OID, offset, "argument of %s must be type bigint, not type %s", part.what,
				typeName(e.Type().OID)); err != nil {
				return err
			}
			if hasColumn(e) {
				return errAt(offset, pgerr.InvalidColumnReference, "argument of %s must not contain variables", part.what)
			}
			*part.to = e
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}
