package plan

import (
	"neki/internal/datum"
	"neki/sqlparse"
)

// mergeQuery plans a query that every shard answers whole but for its ORDER BY and LIMIT: the shards sort, and the gateway
// merges. It reports whether it did; the engine can do the rest.
func (s *sharding) mergeQuery() (bool, error) {
	q, st := s.query, s.query.stmt
	if q.level == nil || q.level.rows.kind != byKey || q.open || st.WithClause != nil || len(st.LockingClause) > 0 ||
		q.aggregates && !q.byGroup || q.windows && !q.windowsByKey || len(st.DistinctClause) > 0 && !q.distinctByKey ||
		st.LimitOption == sqlparse.LimitOption_LIMIT_OPTION_WITH_TIES {
		return false, nil
	}
	e := s.newEngine()
	leg := cloneSelect(st)
	keys, ok := s.mergeKeys(q, leg)
	if !ok || !pushLimit(leg, st) {
		return false, nil
	}
	columns, ok := e.columnsOf(leg)
	if !ok || len(columns) < len(q.outs) {
		return false, nil
	}
	for i := range keys {
		oid := columns[keys[i].Column].Type.OID
		keys[i].OID = oid
		if isText(oid) && (keys[i].bytewise || e.database()) {
			continue
		}
		if isText(oid) {
			return false, errTextOrder("ORDER BY")
		}
		if !orderedAlike(oid) {
			return false, nil
		}
	}
	for i := range columns {
		if !datum.Known(columns[i].Type.OID) {
			return false, nil
		}
		columns[i].Name = "c" + itoa(int64(i+1))
	}
	text, err := sqlparse.DeparseNode(selectNode(leg))
	if err != nil {
		return false, nil
	}
	top := emptySelect()
	for i, f := range q.outs {
		top.TargetList = append(top.TargetList, target(f.name, columnNode(columns[i].Name)))
	}
	l := Leg{SQL: text, Route: s.routeOf(q.level.rows), Columns: columns}
	for _, k := range keys {
		l.Merge = append(l.Merge, k.MergeKey)
	}
	i := e.addLeg(l)
	top.FromClause = []*sqlparse.Node{rangeOf(e.legName(i), nil)}
	top.LimitCount, top.LimitOffset, top.LimitOption = sqlparse.Clone(st.LimitCount), sqlparse.Clone(st.LimitOffset), st.LimitOption
	if err := e.finish(top, nil); err != nil {
		return true, err
	}
	if st.LimitCount == nil && st.LimitOffset == nil && comparedAsGiven(keys, len(q.outs)) {
		s.plan.Spread.Through = len(q.outs)
	}
	return true, nil
}

// comparedAsGiven reports whether rows can be merged in whatever format the client asks for: text of other types depends on
// settings, and may have lost digits. Columns behind the first outs ones are the gateway's own.
func comparedAsGiven(keys []mergeKey, outs int) bool {
	for _, k := range keys {
		switch k.OID {
		case datum.Int2OID, datum.Int4OID, datum.Int8OID, datum.OIDOID, datum.TextOID, datum.VarcharOID:
		default:
			if k.Column < outs {
				return false
			}
		}
	}
	return true
}

// mergeKey is a MergeKey of which it is known whether its column is ordered by bytes.
type mergeKey struct {
	MergeKey
	bytewise bool
}

// mergeKeys finds the columns by which a query is sorted, and adds those that it doesn't show.
func (s *sharding) mergeKeys(q *query, leg *sqlparse.SelectStmt) ([]mergeKey, bool) {
	var keys []mergeKey
	width := len(q.outs)
	for _, n := range q.stmt.SortClause {
		by := n.GetSortBy()
		if by.SortbyDir == sqlparse.SortByDir_SORTBY_USING {
			return nil, false
		}
		k := mergeKey{MergeKey: MergeKey{Desc: by.SortbyDir == sqlparse.SortByDir_SORTBY_DESC}}
		k.NullsFirst = k.Desc
		switch by.SortbyNulls {
		case sqlparse.SortByNulls_SORTBY_NULLS_FIRST:
			k.NullsFirst = true
		case sqlparse.SortByNulls_SORTBY_NULLS_LAST:
			k.NullsFirst = false
		default:
		}
		at, ok := sortOutput(q, by.Node)
		switch {
		case !ok:
			return nil, false
		case at >= 0:
			k.Column, k.bytewise = at, q.outs[at].bytewise
		case len(q.stmt.DistinctClause) > 0:
			return nil, false
		default:
			k.Column = width
			width++
			if c := q.level.columnOf(by.Node); c != noColumn {
				k.bytewise = s.a.facts[c].bytewise
			}
			leg.TargetList = append(leg.TargetList, target("neki_key_"+itoa(int64(width)), sqlparse.Clone(by.Node)))
		}
		keys = append(keys, k)
	}
	return keys, true
}

// sortOutput finds the output that an item of ORDER BY names, by its place or its name: -1 for an expression.
func sortOutput(q *query, n *sqlparse.Node) (at int, ok bool) {
	if n.GetCollateClause() != nil {
		return 0, false
	}
	if c := n.GetAConst(); c != nil {
		i := int(c.GetIval().GetIval())
		return i - 1, c.GetIval() != nil && i >= 1 && i <= len(q.outs)
	}
	ref := n.GetColumnRef()
	if ref == nil || len(ref.Fields) != 1 {
		return -1, true
	}
	at = -1
	for i, f := range q.outs {
		if f.name != lastName(ref.Fields) {
			continue
		}
		if at >= 0 {
			return 0, false
		}
		at = i
	}
	return at, true
}

// pushLimit has each shard give as many rows as may be needed of it.
func pushLimit(leg, st *sqlparse.SelectStmt) bool {
	leg.LimitOffset = nil
	switch {
	case st.LimitCount == nil:
		leg.LimitOption = sqlparse.LimitOption_LIMIT_OPTION_DEFAULT
	case st.LimitOffset != nil:
		leg.LimitCount = operatorNode("+", castNode(sqlparse.Clone(st.LimitCount), "int8"), castNode(sqlparse.Clone(st.LimitOffset), "int8"))
		count, offset := st.LimitCount.GetAConst().GetIval(), st.LimitOffset.GetAConst().GetIval()
		if count != nil && offset != nil && count.Ival < 1<<30 && offset.Ival < 1<<30 && count.Ival >= 0 && offset.Ival >= 0 {
			leg.LimitCount = intConst(count.Ival + offset.Ival)
		}
	}
	simple := true
	for _, n := range []*sqlparse.Node{st.LimitCount, st.LimitOffset} {
		if n != nil && n.GetAConst() == nil && n.GetParamRef() == nil {
			simple = false
		}
	}
	return simple
}
