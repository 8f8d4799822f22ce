package plan

import (
	"slices"
	"strings"

	"neki/catalog"
	"neki/internal/datum"
	"neki/sqlparse"
)

// Lookup finds the shards of a table's rows by a global secondary index: its lookup table has, for each value of the index's
// columns, the shard keys of the rows. It is read before the statement runs, by the same rules as the statement's own rows.
type Lookup struct {
	Index *catalog.GSI
	Text  string // what is looked up, for people; the same of equal lookups in one statement

	place *catalog.Table // of the lookup table
	by    []lookupKey    // conditions that all hold; the first is on the column that the lookup table is sharded by
}

// lookupKey is a condition that a column has one of several values.
type lookupKey struct {
	column string
	keys   []KeyExpr
}

// Found is what a lookup has given in one execution.
type Found struct {
	Keys [][]byte // shard keys of the owner's rows, in binary
	All  bool     // what was looked for can't be told: the rows may be on every shard
}

// LookupQuery is the query of a lookup in one execution.
type LookupQuery struct {
	SQL     string
	Params  [][]byte
	Formats []int16
	OIDs    []uint32
	Shards  []string // none: nothing can be found
	All     bool     // as in Found: there is nothing to be asked
}

// Lookups gives the lookups on which the shards of an execution depend, each once.
func (p *Plan) Lookups() []*Lookup {
	out := p.Route.lookups(nil)
	if p.Spread == nil {
		return out
	}
	for i := range p.Spread.Legs {
		out = p.Spread.Legs[i].Route.lookups(out)
	}
	return out
}

func (r *Route) lookups(dst []*Lookup) []*Lookup {
	for i := range r.Pins {
		for j := range r.Pins[i].Keys {
			l := r.Pins[i].Keys[j].Lookup
			if l != nil && !slices.ContainsFunc(dst, func(have *Lookup) bool { return have.Text == l.Text }) {
				dst = append(dst, l)
			}
		}
	}
	return dst
}

// AskLookup gives what a lookup's shards are asked in one execution of p.
func (p *Plan) AskLookup(l *Lookup, v *Values) LookupQuery {
	q := LookupQuery{}
	spans := p.everySpan(v)
	var where []string
	for _, by := range l.by {
		cond, known := q.condition(&by, v, spans)
		switch {
		case !known && by.column == l.by[0].column:
			return LookupQuery{All: true}
		case known && cond == "": // equal to NULL
			return LookupQuery{}
		case known:
			where = append(where, cond)
		}
	}
	q.SQL = "SELECT DISTINCT " + sqlparse.QuoteIdent(l.Index.OwnerShardKey[0]) + " FROM " + sqlparse.QuoteIdent(l.Index.Schema) + "." +
		sqlparse.QuoteIdent(l.Index.Lookup) + " WHERE " + strings.Join(where, " AND ")
	if !l.place.Sharded() {
		q.Shards = l.place.Shards()[:1]
		return q
	}
	pin := Pin{Keys: l.by[0].keys, Index: l.place.Index, Group: l.place.Group}
	q.Shards = relationShards([]Pin{pin}, v, spans)
	slices.Sort(q.Shards)
	return q
}

// condition writes a condition with its values as parameters: "" when no value can be equal. known is false when the values
// can't be told.
func (q *LookupQuery) condition(by *lookupKey, v *Values, spans []literalSpan) (cond string, known bool) {
	column := sqlparse.QuoteIdent(by.column)
	var parts []string
	for i := range by.keys {
		k := &by.keys[i]
		values, ok := k.values(v, spans)
		if !ok {
			return "", false
		}
		for _, x := range values {
			q.Params, q.Formats, q.OIDs = append(q.Params, x.value), append(q.Formats, x.format()), append(q.OIDs, x.oid)
			at := "$" + itoa(int64(len(q.Params)))
			if k.Array {
				at = "ANY (" + at + ")"
			}
			parts = append(parts, column+" = "+at)
		}
	}
	if len(parts) > 1 {
		return "(" + strings.Join(parts, " OR ") + ")", true
	}
	return strings.Join(parts, ""), true
}

// keyBytes is a value of a key in one execution.
type keyBytes struct {
	value  []byte
	binary bool
	oid    uint32 // 0: as it is compared with the column
}

func (k *keyBytes) format() int16 {
	if k.binary {
		return 1
	}
	return 0
}

// values gives the values of a key expression in one execution, NULLs left out.
func (k *KeyExpr) values(v *Values, spans []literalSpan) (out []keyBytes, ok bool) {
	if k.Stored || k.Source != KeyConst && k.NullAny {
		return nil, false
	}
	switch k.Source {
	case KeyConst:
		if k.Null {
			return nil, !k.NullAny
		}
		return []keyBytes{{value: []byte(k.Const), oid: k.ownOID()}}, true
	case KeyLiteral:
		for _, s := range spans {
			if s.slot != k.At {
				continue
			}
			value := s.value
			if k.Negative {
				value = append([]byte{'-'}, value...)
			}
			out = append(out, keyBytes{value: value, oid: k.ownOID()})
		}
		return out, len(out) > 0
	case KeyParam:
		value, binary, oid, ok := v.param(k)
		if !ok || value == nil {
			return nil, ok
		}
		if k.Array && (k.At >= len(v.OIDs) || v.OIDs[k.At] == 0) {
			oid = 0 // that of the array is left to the server
		}
		return []keyBytes{{value: value, binary: binary, oid: ownOID(oid)}}, true
	}
	return nil, false
}

// ownOID is that of a value that stands in the text: of an array the server knows the type.
func (k *KeyExpr) ownOID() uint32 {
	if k.Array {
		return 0
	}
	return ownOID(k.OID)
}

// ownOID gives the type as which a server is to read a value: 0 where only its comparison tells.
func ownOID(oid uint32) uint32 {
	const firstOwn = 16384
	if oid >= firstOwn || oid == datum.AnyEnumOID {
		return 0
	}
	return oid
}

// useIndexes restricts the keys of tables of which the values of an index are known, but not the shard key.
func (a *analysis) useIndexes(l *level) {
	for _, it := range l.items {
		if it.table != nil && it.table.place != nil && it.rows.kind == byKey && len(it.table.place.GSIs) > 0 {
			a.useIndex(l, it)
		}
	}
}

func (a *analysis) useIndex(l *level, it *item) {
	key := it.columnAt(it.table.place.Index.Column)
	if key == noColumn || a.facts[key].place == nil || len(l.same.restrictions(key)) > 0 {
		return
	}
	var best *Lookup
	for _, g := range it.table.place.GSIs {
		if found := a.lookupBy(l, it, g); found != nil && (best == nil || g.Unique && !best.Index.Unique) {
			best = found
		}
	}
	if best != nil {
		l.same.restrict(key, []KeyExpr{{Source: KeyLookup, OID: a.facts[key].key, Lookup: best}})
	}
}

// columnAt gives the item's column that is the table's of that name, however the item calls it.
func (it *item) columnAt(name string) column {
	i := it.table.columnIndex(name)
	if i < 0 || i >= len(it.names) {
		return noColumn
	}
	return it.first + column(i)
}

// lookupBy gives the lookup by an index; nil when the value of its first column is not known.
func (a *analysis) lookupBy(l *level, it *item, g *catalog.GSI) *Lookup {
	place := a.schema.lookupTable(g)
	if !g.Enabled || place == nil {
		return nil
	}
	found := &Lookup{Index: g, place: place}
	var text []string
	for i, name := range g.Columns {
		c := it.columnAt(name)
		if c == noColumn || a.facts[c].key == 0 {
			break
		}
		known := l.same.restrictions(c)
		if len(known) == 0 && i == 0 || slices.ContainsFunc(known, func(keys []KeyExpr) bool { return len(keys) == 0 || keys[0].Lookup != nil }) {
			break
		}
		for _, keys := range known {
			found.by = append(found.by, lookupKey{column: name, keys: keys})
			text = append(text, keysText(name, keys))
		}
	}
	if len(found.by) == 0 {
		return nil
	}
	found.Text = g.Name + " (" + strings.Join(text, ", ") + ")"
	return found
}

// lookupTable gives where the lookup table of an index is; nil: it can't be used.
func (s *placedSchema) lookupTable(g *catalog.GSI) *catalog.Table {
	if s.table.Rel(g.Schema, g.Lookup, nil) == nil {
		return nil
	}
	return s.topology.Table(g.Database, g.Schema, g.Lookup)
}

// String tells where the lookup reads what.
func (l *Lookup) String() string {
	return l.Text + ": " + l.Index.OwnerShardKey[0] + " of " + l.Index.Schema + "." + l.Index.Lookup + " on " + strings.Join(l.place.Shards(), ", ")
}
