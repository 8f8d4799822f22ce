package sqlparse

import (
	"slices"
	"strings"

	pg_query "github.com/pganalyze/pg_query_go/v5"
)

// collector walks a whole tree once and notes functions, relations, parameters and the effects of what it meets,
// wherever it stands: in a CTE, a subquery, a cursor, an EXPLAIN.
type collector struct {
	into  *Statement
	write bool     // relations named here are changed
	ctes  []string // names of WITH in scope

	certain []*FuncCall // calls that run exactly once
}

func (c *collector) effect(e Effects) { c.into.Effects |= e }

func (c *collector) node(node any) {
	switch n := node.(type) {
	case *SelectStmt:
		c.selectStmt(n)
	case *InsertStmt:
		c.change(n, n.Relation, n.WithClause)
	case *UpdateStmt:
		c.change(n, n.Relation, n.WithClause)
	case *DeleteStmt:
		c.change(n, n.Relation, n.WithClause)
	case *MergeStmt:
		c.change(n, n.Relation, n.WithClause)
	case *WithClause, *LockingClause:
		// WITH is walked by the statement whose scope it makes; FOR UPDATE OF names aliases.
	case *IntoClause:
		c.effect(EffectWrites)
		c.relation(n.Rel, true)
		c.options(n.Options)
	case *RangeVar:
		c.relation(n, c.write)
	case *FuncCall:
		c.call(n)
		children(n, c.node)
	case *ParamRef:
		c.into.Params = max(c.into.Params, int(n.Number))
	case *TypeName:
		c.schemaOf(n.Names)
		children(n, c.node)
	case *pg_query.ExecuteStmt:
		c.effect(EffectOpaque | EffectWrites)
		children(n, c.node)
	case *pg_query.ConstraintsSetStmt:
		// It names constraints, as if they were relations.
	case *pg_query.CreateFunctionStmt:
		// Its body runs when it is called, not now.
		c.schemaOf(n.Funcname)
	default:
		c.utility(node)
		children(node, c.node)
	}
}

// utility notes what a node that is no query names or makes.
func (c *collector) utility(node any) {
	switch n := node.(type) {
	case *DropStmt:
		for _, o := range n.Objects {
			c.named(n.RemoveType, o)
		}
	case *CommentStmt:
		c.named(n.Objtype, n.Object)
	case *pg_query.SecLabelStmt:
		c.named(n.Objtype, n.Object)
	case *pg_query.DefineStmt:
		c.schemaOf(n.Defnames)
	case *CreateEnumStmt:
		c.schemaOf(n.TypeName)
	case *pg_query.CreateRangeStmt:
		c.schemaOf(n.TypeName)
	case *CreateDomainStmt:
		c.schemaOf(n.Domainname)
	case *CreateStatsStmt:
		c.schemaOf(n.Defnames)
	case *pg_query.CreateConversionStmt:
		c.schemaOf(n.ConversionName)
	case *pg_query.CreateOpClassStmt:
		c.schemaOf(n.Opclassname)
	case *pg_query.CreateOpFamilyStmt:
		c.schemaOf(n.Opfamilyname)
	}
}

// note starts the walk at a statement.
func (c *collector) note(statement any) {
	if s, ok := statement.(*SelectStmt); ok && plainSelect(s) {
		for _, item := range s.TargetList {
			value := item.GetResTarget().GetVal()
			for value.GetTypeCast() != nil {
				value = value.GetTypeCast().GetArg()
			}
			if call := value.GetFuncCall(); call != nil {
				c.certain = append(c.certain, call)
			}
		}
	}
	c.node(statement)
}

// plainSelect reports whether a SELECT gives exactly one row.
func plainSelect(s *SelectStmt) bool {
	return s.Op == SetOperation_SETOP_NONE && s.FromClause == nil && s.WhereClause == nil && s.GroupClause == nil &&
		s.HavingClause == nil && s.WithClause == nil && s.LimitCount == nil && s.LimitOffset == nil
}

func (c *collector) selectStmt(n *SelectStmt) {
	write := c.write
	c.write = false
	if len(n.LockingClause) > 0 {
		c.effect(EffectLocks)
	}
	c.scope(n, n.WithClause, nil)
	c.write = write
}

// change notes a data-modifying statement. Its target is a table even if a CTE has that name.
func (c *collector) change(n any, target *RangeVar, with *WithClause) {
	write := c.write
	c.write = false
	c.effect(EffectWrites)
	c.relation(target, true)
	c.scope(n, with, target)
	c.write = write
}

// scope walks a statement with the names of its WITH in scope. The target was noted before.
func (c *collector) scope(n any, with *WithClause, target *RangeVar) {
	outer := len(c.ctes)
	c.with(with)
	children(n, func(child any) {
		if child != any(target) || target == nil {
			c.node(child)
		}
	})
	c.ctes = c.ctes[:outer]
}

// with walks the queries of a WITH, each seeing the names before it, and all of them if it is RECURSIVE.
func (c *collector) with(with *WithClause) {
	if with == nil {
		return
	}
	for _, node := range with.Ctes {
		if cte := node.GetCommonTableExpr(); cte != nil && with.Recursive {
			c.ctes = append(c.ctes, cte.Ctename)
		}
	}
	for _, node := range with.Ctes {
		cte := node.GetCommonTableExpr()
		if cte == nil {
			continue
		}
		children(cte, c.node)
		if !with.Recursive {
			c.ctes = append(c.ctes, cte.Ctename)
		}
	}
}

// relation notes a relation by name.
func (c *collector) relation(n *RangeVar, write bool) {
	if n == nil {
		return
	}
	if !write && n.Schemaname == "" && slices.Contains(c.ctes, n.Relname) {
		return
	}
	if write && (n.Relpersistence == "t" || isTempSchema(n.Schemaname)) {
		c.effect(EffectTempObject)
	}
	c.addRelation(RelRef{Schema: n.Schemaname, Name: n.Relname, Alias: n.Alias.GetAliasname(), Write: write})
}

func (c *collector) addRelation(r RelRef) {
	if !slices.Contains(c.into.Relations, r) {
		c.into.Relations = append(c.into.Relations, r)
	}
}

// named notes the relation of an object that is named by a list of strings, as in DROP and COMMENT.
func (c *collector) named(kind ObjectType, object *Node) {
	names := stringsOf(object.GetList().GetItems())
	switch kind {
	case ObjectType_OBJECT_TABLE, ObjectType_OBJECT_VIEW, ObjectType_OBJECT_MATVIEW, ObjectType_OBJECT_SEQUENCE,
		ObjectType_OBJECT_INDEX, ObjectType_OBJECT_FOREIGN_TABLE:
	case ObjectType_OBJECT_COLUMN, ObjectType_OBJECT_TRIGGER, ObjectType_OBJECT_RULE, ObjectType_OBJECT_POLICY,
		ObjectType_OBJECT_TABCONSTRAINT:
		names = names[:max(0, len(names)-1)] // the last is the column's or the trigger's own
	default:
		return
	}
	if len(names) == 0 {
		return
	}
	r := RelRef{Name: names[len(names)-1], Write: true}
	if len(names) > 1 {
		r.Schema = names[len(names)-2]
	}
	c.addRelation(r)
}

// schemaOf notes an object made or named in the schema of temporary objects.
func (c *collector) schemaOf(names []*Node) {
	if c.write && len(names) > 1 && isTempSchema(names[len(names)-2].GetString_().GetSval()) {
		c.effect(EffectTempObject)
	}
}

func isTempSchema(name string) bool {
	return name == "pg_temp" || strings.HasPrefix(name, "pg_temp_") || strings.HasPrefix(name, "pg_toast_temp_")
}

func (c *collector) options(nodes []*Node) {
	for _, n := range nodes {
		if held := unwrap(n); held != nil {
			c.node(held)
		}
	}
}

// call notes a function call and what is known of the function.
func (c *collector) call(n *FuncCall) {
	names := stringsOf(n.Funcname)
	if len(names) == 0 {
		return
	}
	f := FuncRef{Name: names[len(names)-1], NArgs: len(n.Args) + len(n.AggOrder)*boolInt(n.AggWithinGroup)}
	if len(names) > 1 {
		f.Schema = names[len(names)-2]
	}
	if !slices.Contains(c.into.Functions, f) {
		c.into.Functions = append(c.into.Functions, f)
	}
	if runsText(f) {
		c.effect(EffectOpaque | EffectWrites)
	}
	if f.Schema != "" && f.Schema != "pg_catalog" {
		return
	}
	c.effect(functionEffects(f.Name))
	if f.Name == "set_config" {
		set := newSetConfig(n.Args)
		set.Certain = slices.Contains(c.certain, n)
		c.into.SetConfigs = append(c.into.SetConfigs, set)
	}
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// stringsOf gives the texts of a list of String nodes.
func stringsOf(nodes []*Node) []string {
	names := make([]string, 0, len(nodes))
	for _, n := range nodes {
		names = append(names, n.GetString_().GetSval())
	}
	return names
}
