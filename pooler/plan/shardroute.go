package plan

import (
	"slices"

	"github.com/zeebo/xxh3"

	"neki/catalog"
	"neki/sqlparse"
)

// shard plans a query or a change of rows in a database that is on several shards. It does nothing when all of a database
// is on one.
func (m maker) shard(p *Plan, st *sqlparse.Statement) error {
	if len(st.Relations) == 0 || st.Tree == nil || len(st.Tree.Stmts) != 1 {
		return nil
	}
	switch st.Kind {
	case sqlparse.KindSelect, sqlparse.KindInsert, sqlparse.KindUpdate, sqlparse.KindDelete, sqlparse.KindMerge:
	default:
		return m.checkTruncate(st)
	}
	schema, err := m.placed()
	if err != nil || schema == nil {
		return err
	}
	s := &sharding{maker: m, plan: p, st: st, schema: schema, a: newAnalysis(schema, st.Text, m.shape)}
	return s.run(sqlparse.Clone(st.Tree.Stmts[0].Stmt)) // the engine changes it
}

// inside gives the maker of a statement inside another.
func (m maker) inside() maker {
	m.shape = nil
	return m
}

// placed gives the schema of a database that is on several shards, nil for any other.
func (m maker) placed() (*placedSchema, error) {
	top := m.snap.Topology()
	if top == nil || top.OnlyShard(m.env.Database()) != "" || m.env.Relations() == nil {
		return nil, nil
	}
	table, err := m.env.Relations().Table()
	if err != nil {
		return nil, err
	}
	return &placedSchema{table: table, topology: top, database: m.env.Database(), searchPath: m.env.searchPath}, nil
}

func newAnalysis(schema schemaReader, text string, shape *sqlparse.Shape) *analysis {
	return &analysis{schema: schema, text: text, shape: shape, queries: map[*sqlparse.SelectStmt]*query{}, items: map[*sqlparse.RangeVar]*item{}}
}

// sharding plans one statement.
type sharding struct {
	maker
	plan   *Plan
	st     *sqlparse.Statement
	schema *placedSchema
	a      *analysis
	query  *query
	change *change
}

const spreadKey = 0xd1b54a32d192ed03

// Spread gives the plan that has the Spread of p, whose text is given, when an execution of p comes to several shards: p
// itself, or one for this very text.
func (pl *Planner) Spread(p *Plan, text []byte, snap *catalog.Snapshot, env *Env) (*Plan, error) {
	if !p.SpreadByText {
		return p, nil
	}
	v := version{catalog: snap.PlanVersion, functions: env.functionsVersion()}
	key := xxh3.HashSeed(text, spreadKey) ^ env.hash
	if found := pl.cache.get(key, text, v); found != nil {
		found.hits.Add(1)
		return found, nil
	}
	shaper := pl.shapers.Get().(*sqlparse.Shaper)
	defer pl.shapers.Put(shaper)
	shape, err := shaper.ShapeBytes(text)
	if err != nil {
		return nil, err
	}
	found, err := pl.makeApart(string(text), shape, snap, env, true)
	if err != nil {
		return nil, err
	}
	found.version = v
	pl.cache.put(key, found)
	return found, nil
}

func (s *sharding) run(n *sqlparse.Node) error {
	s.plan.planner = s.planner
	if sel := n.GetSelectStmt(); sel != nil {
		s.query = s.a.query(sel, nil, nil)
	} else {
		s.change = s.a.change(n, nil, nil)
	}
	if s.a.checkIndexes(s.change, n, true); s.a.err != nil {
		return s.a.err
	}
	if err := s.checkCascade(); err != nil {
		return err
	}
	indexes := s.indexes()
	if done, err := s.evaluated(); done || err != nil {
		if err == nil && len(indexes) > 0 {
			err = s.addUpkeep(indexes)
		}
		return err
	}
	if s.shardedSequence(n) {
		return errNextval()
	}
	if len(indexes) > 0 {
		return s.keepIndexes(indexes)
	}
	if s.spreads || !s.single() {
		return s.spread()
	}
	if s.plan.SpreadByText { // the shards may all be sent the client's text as well: then no text needs a plan of its own
		pinned := s.plan.Route
		if err := s.spread(); err != nil || !s.plan.Spread.plain() {
			s.plan.Route, s.plan.Spread, s.plan.SpreadByText = pinned, nil, true
		}
	}
	return nil
}

func errNextval() error {
	return unplanned(numberVolatileDefault, "nextval in this statement over sharded tables").
		WithDetail("Each shard would count by itself.").
		WithHint("SELECT nextval(...) first, and give the value as a constant or a parameter.")
}

// single routes a statement whose tables are on one shard, or pinned to shards by keys. It reports whether nothing else is
// to be planned; should the pins come to several shards, Planner.Spread plans on.
func (s *sharding) single() bool {
	r := &s.plan.Route
	if len(s.a.tables) > 0 && s.changesCopies() {
		return false // which all must change, not only that of one shard
	}
	if len(s.a.tables) == 0 {
		return s.copies()
	}
	var pins []Pin
	equal := true
	shard := ""
	for i, t := range s.a.tables {
		if t.elsewhere && !(t.written && s.plan.Kind == sqlparse.KindInsert) {
			return false
		}
		if t.shard != "" {
			if shard != "" && shard != t.shard {
				return false
			}
			shard = t.shard
			continue
		}
		if len(t.pins) == 0 {
			return false
		}
		next, single := pinsOfTable(i, t)
		equal = equal && single
		if !slices.ContainsFunc(pins, func(have Pin) bool { return samePins(pins, have.Relation, next) }) {
			pins = append(pins, next...)
		}
	}
	if !s.copiesCover(shard, pins) {
		return false
	}
	r.Shard, r.Pins = shard, pins
	switch {
	case len(pins) == 0:
		r.Kind = RouteOne
	default:
		r.Kind = kindOf(pins, equal)
	}
	if contradicts(pins) && shard == "" {
		r.Kind, r.Pins, r.All = RouteNone, nil, pins[0].Group.Shards
		return true
	}
	s.plan.SpreadByText = len(pins) > 1 || len(pins) == 1 && (shard != "" || !equal)
	return true
}

// shardedSequence reports whether a statement over sharded tables takes a value of a sequence where no shard may do it.
func (s *sharding) shardedSequence(n *sqlparse.Node) bool {
	sharded := slices.ContainsFunc(s.a.tables, func(t *occurrence) bool { return t.shard == "" })
	return (sharded || s.changesCopies()) && callsNextval(n)
}

// changesCopies reports whether the statement is a change of a reference table, maybe through a view.
func (s *sharding) changesCopies() bool { return s.change != nil && s.change.ofCopies() }

func (c *change) ofCopies() bool {
	switch {
	case c.table == nil:
		return false
	case c.table.kind == RelView:
		return c.target.rows.kind == anywhere
	}
	return c.table.place.Reference
}

// pinsOfTable gives a table's pins, and whether one of them is a single value.
func pinsOfTable(i int, t *occurrence) (pins []Pin, single bool) {
	for _, keys := range t.pins {
		pins = append(pins, Pin{Relation: i, Keys: keys, Index: t.table.place.Index, Group: t.table.place.Group, at: t.table.place})
		single = single || len(keys) == 1 && !keys[0].Array && !keys[0].NullAny && !keys[0].List && keys[0].Lookup == nil
	}
	return pins, single
}

// samePins reports whether the pins of a relation are those of another.
func samePins(all []Pin, relation int, next []Pin) bool {
	var have []Pin
	for _, p := range all {
		if p.Relation == relation {
			have = append(have, p)
		}
	}
	return slices.EqualFunc(have, next, func(a, b Pin) bool {
		return colocated(a.at, b.at) && slices.Equal(a.Keys, b.Keys)
	})
}

// contradicts reports whether no row can meet the pins of one relation, as far as constants tell; NULL equals nothing.
func contradicts(pins []Pin) bool {
	if len(pins) == 0 {
		return false
	}
	for _, p := range pins {
		if p.Relation != pins[0].Relation {
			return false
		}
	}
	for _, p := range pins {
		if !slices.ContainsFunc(p.Keys, func(k KeyExpr) bool { return k.Source != KeyConst || !k.Null || k.NullAny || k.Stored }) {
			return true
		}
	}
	return false
}

// copies routes a statement over reference tables, or over none.
func (s *sharding) copies() bool {
	shards := s.reference()
	if shards == nil && !s.changesCopies() {
		return true // unknown relations, or none with a place: the home shard tells
	}
	if s.changesCopies() {
		return false
	}
	if len(shards) == 0 {
		return false
	}
	s.plan.Route = Route{Kind: RouteReference, Shard: shards[0], All: shards}
	return true
}

// reference gives the shards that have copies of all reference tables named; nil when none is named.
func (s *sharding) reference() []string {
	var out []string
	for _, t := range s.a.references {
		out = common(out, t.place.Copies)
	}
	return out
}

// copiesCover reports whether the shards that a statement may go to have the reference tables that it names.
func (s *sharding) copiesCover(shard string, pins []Pin) bool {
	copies := s.reference()
	if copies == nil {
		return true
	}
	if shard != "" && !slices.Contains(copies, shard) {
		return false
	}
	for _, p := range pins {
		if !coversGroup(copies, p.Group) {
			return false
		}
	}
	return true
}

func coversGroup(copies []string, g *catalog.Group) bool {
	return !slices.ContainsFunc(g.Shards, func(s string) bool { return !slices.Contains(copies, s) })
}
