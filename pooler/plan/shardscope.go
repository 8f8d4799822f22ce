package plan

import (
	"neki/catalog"
	"neki/sqlparse"
)

// column is a column of a FROM item, by its place among all columns of the statement.
type column int

const noColumn column = -1

// columnFact is what is known of a column.
type columnFact struct {
	name     string
	key      uint32         // as columnShape.key; 0: it can't be compared as a key
	typ      uint32         // type OID; 0 unknown
	place    *catalog.Table // not nil: a row with a value here is on the shard that the place's index gives for it
	solid    bool           // it has a place in every row that is not padded
	notNull  bool
	bytewise bool // the engine orders its values as the server does
}

// item is one entry of a FROM list.
type item struct {
	alias   string
	schema  string
	table   *tableShape // nil for what is no table
	query   *query      // of a subquery, view or CTE
	first   column      // its columns follow one another
	names   []string
	rows    rows
	open    bool // columns are not all known: a function, or a relation that is not known
	padded  bool // its columns may be NULL for want of a partner in an outer join
	lateral bool
	cte     bool             // it is a query of WITH
	pushed  []*sqlparse.Node // conditions for its leg
}

// find gives the item's column of a name.
func (it *item) find(name string) column {
	found := noColumn
	for i, n := range it.names {
		if n == name {
			if found != noColumn {
				return noColumn
			}
			found = it.first + column(i)
		}
	}
	return found
}

// spreadKind says how rows lie.
type spreadKind uint8

const (
	anywhere  spreadKind = iota // every shard (of copies) gives the same rows
	oneShard                    // all are on one shard
	byKey                       // each shard has a part, and together they are all; see columnFact.place
	scattered                   // no statement to the shards gives them: the engine has to
)

// rows says where the rows of an item, a join or a query are.
type rows struct {
	kind   spreadKind
	shard  string         // of oneShard
	copies []string       // of anywhere: shards that can give them; nil = all
	place  *catalog.Table // of byKey: one of its tables
	tables []int          // numbers of the sharded tables within (analysis.tables)
}

// level is one SELECT, or the tables of a change, while it is analysed.
type level struct {
	parent  *level
	query   *query // whose level it is; nil for that of a change, and for one that only binds
	items   []*item
	ctes    map[string]*query
	same    *classes          // what is equal in every row that counts
	rows    rows              // of FROM
	located []column          // of the FROM's rows: those with a place
	merged  map[string]column // columns that USING shows once
	bound   *bound            // of a level that stands only for x = ANY (subquery)
}

// lookup finds a column by its name, in the level or around it.
func (l *level) lookup(schema, table, name string) column {
	for at := l; at != nil; at = at.parent {
		found, known := at.lookupHere(schema, table, name)
		if found != noColumn || known {
			return found
		}
	}
	return noColumn
}

// lookupHere tells also whether the level has the name though no single column is meant.
func (l *level) lookupHere(schema, table, name string) (found column, known bool) {
	found = noColumn
	if c, ok := l.merged[name]; ok && table == "" {
		return c, true
	}
	for _, it := range l.items {
		if table != "" && (it.alias != table || schema != "" && it.schema != schema) {
			continue
		}
		if it.open {
			known = true
			continue
		}
		c := it.find(name)
		if c == noColumn {
			known = known || table != ""
			continue
		}
		if found != noColumn {
			return noColumn, true
		}
		found = c
	}
	if found != noColumn && known && table == "" {
		return noColumn, true // an item whose columns are not known may have it too
	}
	return found, found != noColumn || known
}

// columnOf resolves a column reference; noColumn for anything else.
func (l *level) columnOf(n *sqlparse.Node) column {
	ref := n.GetColumnRef()
	if ref == nil {
		return noColumn
	}
	var parts []string
	for _, f := range ref.Fields {
		s := f.GetString_()
		if s == nil {
			return noColumn
		}
		parts = append(parts, s.Sval)
	}
	switch len(parts) {
	case 1:
		return l.lookup("", "", parts[0])
	case 2:
		return l.lookup("", parts[0], parts[1])
	case 3:
		return l.lookup(parts[0], parts[1], parts[2])
	}
	return noColumn
}

// classes are sets of columns that are equal, with the values that they are equal to.
type classes struct {
	parent map[column]column
	values map[column][][]KeyExpr // of each set: alternatives that all hold
}

func newClasses() *classes {
	return &classes{parent: map[column]column{}, values: map[column][][]KeyExpr{}}
}

func (c *classes) clone() *classes {
	out := newClasses()
	for k, v := range c.parent {
		out.parent[k] = v
	}
	for k, v := range c.values {
		out.values[k] = append([][]KeyExpr(nil), v...)
	}
	return out
}

func (c *classes) root(x column) column {
	for {
		up, ok := c.parent[x]
		if !ok {
			return x
		}
		x = up
	}
}

func (c *classes) equal(x, y column) bool { return c.root(x) == c.root(y) }

func (c *classes) unite(x, y column) {
	x, y = c.root(x), c.root(y)
	if x == y {
		return
	}
	if x > y { // the same sets have the same roots, whatever the order of conditions
		x, y = y, x
	}
	c.parent[y] = x
	c.values[x] = append(c.values[x], c.values[y]...)
	delete(c.values, y)
}

func (c *classes) restrict(x column, keys []KeyExpr) {
	x = c.root(x)
	c.values[x] = append(c.values[x], keys)
}

func (c *classes) restrictions(x column) [][]KeyExpr { return c.values[c.root(x)] }
