package plan

import (
	"slices"

	"neki/sqlparse"
)

// checkCascade refuses changes by which servers change rows, of tables with global secondary indexes, on their own: foreign
// keys with ON DELETE or ON UPDATE, and TRUNCATE ... CASCADE.
func (s *sharding) checkCascade() error {
	c, n := s.change, s.st.Tree.Stmts[0].Stmt
	if c == nil || c.table == nil || c.table.rel == nil || len(s.schema.topology.GSIs) == 0 {
		return nil
	}
	var acts func(ForeignKey) bool
	switch u := n.GetUpdateStmt(); {
	case n.GetDeleteStmt() != nil:
		acts = func(k ForeignKey) bool { return moves(k.OnDelete) }
	case u != nil && changesUnique(c.table, u.TargetList):
		acts = func(k ForeignKey) bool { return moves(k.OnUpdate) }
	default:
		return nil
	}
	if owner := s.schema.ownerBelow(c.table.rel, acts, nil); owner != "" {
		return unplanned(numberUpkeepCascade, "a change of table \"%s\" that a foreign key may carry on to table \"%s\", which has global secondary indexes",
			c.table.name, owner).
			WithHint("Change the rows of \"%s\" first, and declare the foreign key without ON DELETE and ON UPDATE.", owner)
	}
	return nil
}

func moves(action string) bool { return action == "c" || action == "n" || action == "d" }

// changesUnique reports whether a SET list has a column that a foreign key may point to.
func changesUnique(t *tableShape, list []*sqlparse.Node) bool {
	return slices.ContainsFunc(list, func(n *sqlparse.Node) bool {
		col := t.column(n.GetResTarget().GetName())
		return col != nil && slices.ContainsFunc(t.rel.Unique, func(key []int16) bool { return slices.Contains(key, col.Num) })
	})
}

// ownerBelow gives the name of a table with global secondary indexes that has a foreign key to r, or to one that has, and so on;
// "" when there is none.
func (s *placedSchema) ownerBelow(r *Rel, acts func(ForeignKey) bool, seen []uint32) string {
	if slices.Contains(seen, r.OID) {
		return ""
	}
	seen = append(seen, r.OID)
	for _, k := range r.ReferencedBy {
		child := s.table.RelByOID(k.From)
		if child == nil || !acts(k) {
			continue
		}
		if place, err := s.place(child); err == nil && len(place.GSIs) > 0 {
			return child.Name
		}
		if owner := s.ownerBelow(child, acts, seen); owner != "" {
			return owner
		}
	}
	return ""
}

// checkTruncate lets a table with global secondary indexes be emptied only together with their lookup tables.
func (m maker) checkTruncate(st *sqlparse.Statement) error {
	stmt := st.Tree.Stmts[0].Stmt.GetTruncateStmt()
	schema, err := m.placed()
	if stmt == nil || err != nil || schema == nil || len(schema.topology.GSIs) == 0 {
		return err
	}
	var named []*Rel
	for _, n := range stmt.Relations {
		if r := schema.table.Rel(n.GetRangeVar().GetSchemaname(), n.GetRangeVar().GetRelname(), schema.searchPath); r != nil {
			named = append(named, r)
		}
	}
	for _, r := range named {
		place, err := schema.place(r)
		if err != nil {
			continue // a server says what there is to say
		}
		for _, g := range place.GSIs {
			if !slices.ContainsFunc(named, func(l *Rel) bool { return l.Schema == g.Schema && l.Name == g.Lookup }) {
				return unplanned(numberUpkeepTruncate, "TRUNCATE of table \"%s\" without the lookup tables of its global secondary indexes", r.Name).
					WithHint("TRUNCATE %s, %s", r.Name, g.Lookup)
			}
		}
		if stmt.Behavior == sqlparse.DropBehavior_DROP_CASCADE {
			if owner := schema.ownerBelow(r, func(ForeignKey) bool { return true }, nil); owner != "" {
				return unplanned(numberUpkeepTruncate, "TRUNCATE ... CASCADE that reaches table \"%s\", which has global secondary indexes", owner).
					WithHint("Name all tables, and the lookup tables, without CASCADE.")
			}
		}
	}
	return nil
}
