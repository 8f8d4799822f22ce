package plan

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/zeebo/xxh3"

	"neki/catalog"
	"neki/internal/datum"
	"neki/internal/pgerr"
)

// RelCatalogQuery reads all that a RelCatalog holds, in one statement and so at one time: a document for each relation and
// type. It needs search_path = pg_catalog, so that names in definitions are qualified. Relations of the system's schemas
// and temporary ones are left out. A default is no expression over columns, so it is written without looking at its table: that
// would wait for whoever has the table locked, who may be the very session that asks.
const RelCatalogQuery = `
SELECT pg_catalog.json_build_object('rel', pg_catalog.json_build_object(
  'OID', c.oid::pg_catalog.int8, 'Schema', n.nspname, 'Name', c.relname, 'Kind', c.relkind, 'RowType', c.reltype::pg_catalog.int8,
  'Unlogged', c.relpersistence = 'u', 'RowSecurity', c.relrowsecurity,
  'Triggers', EXISTS (SELECT FROM pg_catalog.pg_trigger t WHERE t.tgrelid = c.oid AND NOT t.tgisinternal),
  'Rules', EXISTS (SELECT FROM pg_catalog.pg_rewrite w WHERE w.ev_class = c.oid AND w.rulename <> '_RETURN'),
  'View', CASE WHEN c.relkind IN ('v', 'm') THEN pg_catalog.pg_get_viewdef(c.oid) END,
  'Columns', (SELECT pg_catalog.json_agg(pg_catalog.json_build_object(
      'Name', a.attname, 'Num', a.attnum, 'OID', a.atttypid::pg_catalog.int8, 'Typmod', a.atttypmod, 'Collation', a.attcollation::pg_catalog.int8,
      'CollationName', CASE WHEN l.collprovider = 'd' THEN coalesce(d.j ->> 'daticulocale', d.j ->> 'datlocale', d.j ->> 'datctype')
        ELSE coalesce(pg_catalog.to_jsonb(l) ->> 'colliculocale', pg_catalog.to_jsonb(l) ->> 'colllocale', l.collctype, l.collname) END,
      'Deterministic', coalesce(l.collisdeterministic, true), 'NotNull', a.attnotnull,
      'Default', CASE WHEN a.attgenerated = '' THEN pg_catalog.pg_get_expr(x.adbin, 0) END, 'Identity', pg_catalog.ascii(a.attidentity::pg_catalog.text),
      'Generated', a.attgenerated <> '',
      'Sequence', (SELECT pg_catalog.json_build_array(sn.nspname, s.relname)
        FROM pg_catalog.pg_depend p
          JOIN pg_catalog.pg_class s ON s.relkind = 'S' AND s.oid IN (p.objid, p.refobjid)
          JOIN pg_catalog.pg_namespace sn ON sn.oid = s.relnamespace
        WHERE a.attidentity <> '' AND p.classid = 'pg_class'::pg_catalog.regclass AND p.refclassid = 'pg_class'::pg_catalog.regclass
            AND p.refobjid = c.oid AND p.refobjsubid = a.attnum AND p.deptype = 'i'
          OR a.attidentity = '' AND p.classid = 'pg_attrdef'::pg_catalog.regclass AND p.objid = x.oid
            AND p.refclassid = 'pg_class'::pg_catalog.regclass AND p.deptype = 'n'
        LIMIT 1)) ORDER BY a.attnum)
    FROM pg_catalog.pg_attribute a
      LEFT JOIN pg_catalog.pg_attrdef x ON x.adrelid = a.attrelid AND x.adnum = a.attnum
      LEFT JOIN pg_catalog.pg_collation l ON l.oid = a.attcollation
      CROSS JOIN (SELECT pg_catalog.to_jsonb(b) AS j FROM pg_catalog.pg_database b WHERE datname = pg_catalog.current_database()) d
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND c.relkind <> 'S'),
  'Keys', (SELECT pg_catalog.json_agg(pg_catalog.json_build_object('Primary', i.indisprimary,
      'Columns', (i.indkey::pg_catalog.int2[])[0:i.indnkeyatts - 1]))
    FROM pg_catalog.pg_index i
    WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL),
  'Parents', (SELECT pg_catalog.json_agg(h.inhparent::pg_catalog.int8) FROM pg_catalog.pg_inherits h WHERE h.inhrelid = c.oid),
  'Children', (SELECT pg_catalog.json_agg(h.inhrelid::pg_catalog.int8) FROM pg_catalog.pg_inherits h WHERE h.inhparent = c.oid),
  'ReferencedBy', (SELECT pg_catalog.json_agg(pg_catalog.json_build_object('From', k.conrelid::pg_catalog.int8,
      'OnDelete', k.confdeltype, 'OnUpdate', k.confupdtype))
    FROM pg_catalog.pg_constraint k WHERE k.contype = 'f' AND k.confrelid = c.oid),
  'Sequence', (SELECT pg_catalog.json_build_object('Type', q.seqtypid::pg_catalog.int8, 'Start', q.seqstart, 'Increment', q.seqincrement,
      'Min', q.seqmin, 'Max', q.seqmax, 'Cache', q.seqcache, 'Cycle', q.seqcycle,
      'Owner', (SELECT pg_catalog.json_build_array(tn.nspname, t.relname)
        FROM pg_catalog.pg_depend p JOIN pg_catalog.pg_class t ON t.oid = p.refobjid
          JOIN pg_catalog.pg_namespace tn ON tn.oid = t.relnamespace
        WHERE p.classid = 'pg_class'::pg_catalog.regclass AND p.objid = c.oid AND p.refclassid = 'pg_class'::pg_catalog.regclass
          AND p.deptype IN ('a', 'i') LIMIT 1))
    FROM pg_catalog.pg_sequence q WHERE q.seqrelid = c.oid)))::pg_catalog.text
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S') AND c.relpersistence <> 't'
  AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast', 'neki', '__neki')
UNION ALL
SELECT pg_catalog.json_build_object('type', pg_catalog.json_build_object(
  'OID', t.oid::pg_catalog.int8, 'Array', t.typarray::pg_catalog.int8, 'Elem', CASE WHEN t.typlen = -1 AND t.typcategory = 'A' THEN t.typelem::pg_catalog.int8 ELSE 0 END,
  'Schema', n.nspname, 'Name', t.typname, 'Kind', t.typtype, 'Size', t.typlen,
  'Base', t.typbasetype::pg_catalog.int8, 'Typmod', t.typtypmod,
  'Labels', (SELECT pg_catalog.json_agg(e.enumlabel ORDER BY e.enumsortorder) FROM pg_catalog.pg_enum e WHERE e.enumtypid = t.oid),
  'Attributes', (SELECT pg_catalog.json_agg(pg_catalog.json_build_object('Name', a.attname, 'Num', a.attnum,
      'OID', a.atttypid::pg_catalog.int8, 'Typmod', a.atttypmod, 'Collation', a.attcollation::pg_catalog.int8) ORDER BY a.attnum)
    FROM pg_catalog.pg_attribute a WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped AND t.typtype = 'c')))::pg_catalog.text
FROM pg_catalog.pg_type t JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
WHERE n.nspname NOT IN ('information_schema', 'pg_toast', 'neki', '__neki')
  AND NOT (n.nspname = 'pg_catalog' AND (t.typtype = 'c' OR t.typname LIKE '\_pg\_%'))
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid = t.typrelid AND c.relpersistence = 't')`

// maxRelBytes bounds the schema of one database that is kept.
const maxRelBytes = 128 << 20

// relBuilder makes a RelTable of documents.
type relBuilder struct {
	table   *RelTable
	domains map[uint32]datum.Type
}

func newRelBuilder() *relBuilder {
	return &relBuilder{
		table: &RelTable{
			byName: map[Relation]*Rel{}, byOID: map[uint32]*Rel{}, types: map[uint32]*Type{}, named: map[Relation]*Type{},
		},
		domains: map[uint32]datum.Type{},
	}
}

type relDocument struct {
	Rel *struct {
		Rel
		Kind    string
		Columns []columnDocument
		Keys    []struct {
			Primary bool
			Columns []int16
		}
		Sequence *struct {
			SeqRule
			Owner []string
		}
	}
	Type *struct {
		Type
		Kind       string
		Base       uint32
		Typmod     int32
		Attributes []columnDocument
	}
}

type columnDocument struct {
	Column
	OID      uint32
	Typmod   int32
	Sequence []string
}

func (d *columnDocument) column() Column {
	c := d.Column
	c.Type = datum.Type{OID: d.OID, Typmod: d.Typmod}
	if len(d.Sequence) == 2 && (c.Identity != 0 || isNextval(c.Default)) {
		c.Sequence = Relation{d.Sequence[0], d.Sequence[1]}
	}
	return c
}

// isNextval reports whether a default is a call of nextval and no more.
func isNextval(expression string) bool {
	rest, ok := strings.CutPrefix(expression, "nextval('")
	if !ok {
		return false
	}
	rest, ok = strings.CutSuffix(rest, "'::regclass)")
	return ok && !strings.Contains(strings.ReplaceAll(rest, "''", ""), "'")
}

// add takes in one document.
func (b *relBuilder) add(document []byte) error {
	const overhead = 2 // what is kept of a document is about as long as twice its text
	t := b.table
	t.sum += xxh3.Hash(document) // a sum: the order of rows does not count
	if t.bytes += overhead * int64(len(document)); t.bytes > maxRelBytes {
		return pgerr.New(pgerr.ProgramLimitExceeded, "the schema of the database is too large: more than %d MB", maxRelBytes>>20)
	}
	var d relDocument
	if err := json.Unmarshal(document, &d); err != nil {
		return fmt.Errorf("plan: a row of the schema: %w", err)
	}
	switch {
	case d.Rel != nil:
		b.addRel(&d)
	case d.Type != nil:
		b.addType(&d)
	}
	return nil
}

func (b *relBuilder) addRel(d *relDocument) {
	r := d.Rel.Rel
	r.Kind = RelKind(d.Rel.Kind[0])
	r.Columns = make([]Column, len(d.Rel.Columns))
	for i := range d.Rel.Columns {
		r.Columns[i] = d.Rel.Columns[i].column()
	}
	for _, k := range d.Rel.Keys {
		r.Unique = append(r.Unique, k.Columns)
		if k.Primary {
			r.PrimaryKey = k.Columns
		}
	}
	if q := d.Rel.Sequence; q != nil {
		r.Sequence = &q.SeqRule
		if len(q.Owner) == 2 {
			r.Sequence.OwnerTable = Relation{q.Owner[0], q.Owner[1]}
		}
	}
	b.table.byName[Relation{r.Schema, r.Name}] = &r
	b.table.byOID[r.OID] = &r
}

func (b *relBuilder) addType(d *relDocument) {
	typ := d.Type.Type
	typ.Kind = TypeKind(d.Type.Kind[0])
	for i := range d.Type.Attributes {
		typ.Attributes = append(typ.Attributes, d.Type.Attributes[i].column())
	}
	if typ.Kind == TypeDomain {
		b.domains[typ.OID] = datum.Type{OID: d.Type.Base, Typmod: d.Type.Typmod}
	}
	b.table.types[typ.OID] = &typ
	b.table.named[Relation{typ.Schema, typ.Name}] = &typ
}

// finish resolves domains over domains: the modifier is that of the domain next to the base type.
func (b *relBuilder) finish(schema int64) *RelTable {
	for oid, base := range b.domains {
		for {
			below, ok := b.domains[base.OID]
			if !ok {
				break
			}
			base = below
		}
		b.table.types[oid].Base = base
	}
	b.table.schema = schema
	return b.table
}

func noKeyColumn(r *Rel, ix *catalog.Index) error {
	names := make([]string, len(r.Columns))
	for i := range r.Columns {
		names[i] = r.Columns[i].Name
	}
	err := pgerr.New(pgerr.UndefinedColumn, "table \"%s.%s\" has no column \"%s\", which shard index \"%s\" is over",
		r.Schema, r.Name, ix.Column, ix.Name)
	if near := pgerr.Nearest(ix.Column, names); near != "" {
		return err.WithHint("Perhaps you meant the column \"%s\".", near)
	}
	return err
}

// checkCollation refuses collations by which equal texts, or lower case texts, are not what bytes say.
func checkCollation(c *Column, ix *catalog.Index) error {
	if !c.Deterministic {
		return pgerr.New(pgerr.DatatypeMismatch, "column \"%s\" can't be a shard key: its collation is not deterministic", c.Name).
			WithDetail("Texts of different bytes may be equal in it, and would be on different shards.")
	}
	if ix.OfText() {
		switch language, _, _ := strings.Cut(strings.ToLower(strings.ReplaceAll(c.CollationName, "-", "_")), "_"); language {
		case "tr", "az", "lt":
			return pgerr.New(pgerr.DatatypeMismatch, "shard index \"%s\" can't map the case of column \"%s\": its collation is \"%s\"",
				ix.Name, c.Name, c.CollationName).
				WithDetail("In it, the cases of ASCII letters are not those of other collations.")
		}
	}
	return nil
}
