package plan

import (
	"neki/internal/datum"
	"neki/sqlparse"
)

// spellGroups names in each GROUP BY with a table's whole primary key the table's other columns that the query shows. Postgres
// takes them as they are, because they depend on the key; the engine wants them named. The groups stay the same.
func (a *analysis) spellGroups() {
	for s, q := range a.queries {
		if q.level == nil || len(s.GroupClause) == 0 {
			continue
		}
		grouped := map[column]bool{}
		sets := false
		for _, n := range s.GroupClause {
			sets = sets || n.GetGroupingSet() != nil
			grouped[a.groupColumn(q.level, s, n)] = true
		}
		if sets {
			continue
		}
		for _, it := range q.level.items {
			if it.groupedByKey(grouped) {
				a.spellItem(q.level, s, it, grouped)
			}
		}
	}
}

// groupedByKey reports whether all of the table's primary key is among columns.
func (it *item) groupedByKey(grouped map[column]bool) bool {
	if it.table == nil || it.table.rel == nil || len(it.table.rel.PrimaryKey) == 0 {
		return false
	}
	for _, num := range it.table.rel.PrimaryKey {
		has := false
		for i := range it.table.columns {
			has = has || it.table.columns[i].Num == num && grouped[it.first+column(i)]
		}
		if !has {
			return false
		}
	}
	return true
}

// spellItem adds the columns of a table that are named outside of GROUP BY, but those whose type has no equality.
func (a *analysis) spellItem(l *level, s *sqlparse.SelectStmt, it *item, grouped map[column]bool) {
	add := func(c column) {
		i := int(c - it.first)
		if grouped[c] || i < 0 || i >= len(it.names) || i >= len(it.table.columns) || !datum.Comparable(it.table.columns[i].Type.OID) {
			return
		}
		grouped[c] = true
		s.GroupClause = append(s.GroupClause, columnNode(it.alias, it.names[i]))
	}
	visit := func(node any) bool {
		ref, ok := node.(*sqlparse.ColumnRef)
		if !ok {
			return true
		}
		n := &sqlparse.Node{Node: &sqlparse.Node_ColumnRef{ColumnRef: ref}}
		if parts, star := starOf(n); !star {
			add(l.columnOf(n))
		} else if len(parts) == 0 || parts[len(parts)-1] == it.alias {
			for i := range it.names {
				add(it.first + column(i))
			}
		}
		return true
	}
	for _, list := range [][]*sqlparse.Node{s.TargetList, {s.HavingClause}, s.SortClause} {
		for _, n := range list {
			if n != nil {
				sqlparse.Walk(n, visit)
			}
		}
	}
}
