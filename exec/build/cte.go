package build

import (
	"neki/exec"
	"neki/internal/pgerr"
	"neki/sqlparse"
)

// cte is a WITH item in scope.
type cte struct {
	name    string
	def     *exec.CTE
	columns []exec.Column
	used    bool
}

// findCTE looks a WITH item up; the boundaries it is read through become local.
func (b *builder) findCTE(l *level, name string) *cte {
	for owner := l; owner != nil; owner = owner.parent {
		for i := len(owner.ctes) - 1; i >= 0; i-- {
			c := owner.ctes[i]
			if c.name != name {
				continue
			}
			for between := l; between != owner; between = between.parent {
				between.local = true
			}
			c.used = true
			return c
		}
	}
	return nil
}

func (b *builder) with(l *level, n *sqlparse.WithClause) ([]*exec.CTE, error) {
	var defs []*exec.CTE
	for i, node := range n.Ctes {
		item := node.GetCommonTableExpr()
		for _, other := range n.Ctes[:i] {
			if other.GetCommonTableExpr().Ctename == item.Ctename {
				return nil, errAt(item.Location, pgerr.DuplicateAlias, "WITH query name \"%s\" specified more than once", item.Ctename)
			}
		}
		sel := item.Ctequery.GetSelectStmt()
		if sel == nil || item.SearchClause != nil || item.CycleClause != nil {
			return nil, unsupported(item.Location, "WITH of anything but a query, SEARCH or CYCLE")
		}
		c, err := b.withItem(l, item, sel, n.Recursive)
		if err != nil {
			return nil, err
		}
		l.ctes = append(l.ctes, c)
		defs = append(defs, c.def)
	}
	return defs, nil
}

func (b *builder) withItem(l *level, item *sqlparse.CommonTableExpr, sel *sqlparse.SelectStmt, recursive bool) (*cte, error) {
	if recursive && sel.Op == sqlparse.SetOperation_SETOP_UNION && sel.WithClause == nil {
		c, err := b.recursive(l, item, sel)
		if c != nil || err != nil {
			return c, err
		}
	}
	q, err := b.query(sel, l.beside(), false)
	if err != nil {
		return nil, err
	}
	return newCTE(item, q)
}

func newCTE(item *sqlparse.CommonTableExpr, q *query) (*cte, error) {
	c := &cte{name: item.Ctename, columns: append([]exec.Column(nil), q.columns...)}
	names := strs(item.Aliascolnames)
	if len(names) > len(c.columns) {
		return nil, errAt(item.Location, pgerr.InvalidColumnReference,
			"WITH query \"%s\" has %d columns available but %d columns specified", c.name, len(c.columns), len(names))
	}
	for i, name := range names {
		c.columns[i].Name = name
	}
	c.def = &exec.CTE{Name: c.name, Query: q.op, Columns: len(c.columns)}
	return c, nil
}

// recursive builds a UNION whose right side reads the item itself; nil when it does not.
func (b *builder) recursive(l *level, item *sqlparse.CommonTableExpr, sel *sqlparse.SelectStmt) (*cte, error) {
	left, err := b.query(sel.Larg, l.beside(), false)
	if err != nil {
		return nil, err
	}
	c, err := newCTE(item, left)
	if err != nil {
		return nil, err
	}
	l.ctes = append(l.ctes, c)
	right, err := b.query(sel.Rarg, l.beside(), true)
	l.ctes = l.ctes[:len(l.ctes)-1]
	if err != nil {
		return nil, err
	}
	if !c.used {
		return nil, nil
	}
	if len(sel.SortClause) > 0 || sel.LimitCount != nil || sel.LimitOffset != nil {
		return nil, errAt(item.Location, pgerr.FeatureNotSupported, "ORDER BY or LIMIT in a recursive query is not implemented")
	}
	if len(right.columns) != len(left.columns) {
		return nil, errAt(-1, pgerr.SyntaxError, "each UNION query must have the same number of columns")
	}
	for i, col := range left.columns {
		merged, ok := commonType([]uint32{col.Type.OID, right.columns[i].Type.OID})
		if !ok {
			return nil, errAt(-1, pgerr.DatatypeMismatch, "UNION types %s and %s cannot be matched",
				typeName(col.Type.OID), typeName(right.columns[i].Type.OID))
		}
		if merged != col.Type.OID {
			return nil, errAt(left.offset(i), pgerr.DatatypeMismatch,
				"recursive query \"%s\" column %d has type %s in non-recursive term but type %s overall",
				c.name, i+1, typeName(col.Type.OID), typeName(merged))
		}
		if err := b.coerceColumn(right, i, merged, "UNION"); err != nil {
			return nil, err
		}
	}
	c.def.Recursive, c.def.Unique = right.op, !sel.All
	c.def.Keys, err = keysOf(c.columns, !sel.All)
	return c, err
}
