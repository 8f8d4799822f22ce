package pooler

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
)

// kind is a type of the oracle's grammar.
type kind int

const (
	kInt kind = iota
	kBig
	kNum
	kText // by bytes
	kLoc  // by ICU
	kChar // varchar
	kBool
	kDate
	kStamp
	kTz
	kUUID
	kBytes
	kEnum
	kFloat
	kSpan
	kInts
	kTexts
	kJSON
	kinds
)

// kindFacts names the kinds. pool are values: few, so that rows meet.
var kindFacts = [kinds]struct {
	sql, column string // the type as in a cast, and as in a definition
	oid         uint32
	stable      bool // equal values look alike
	pool        []string
}{
	kInt:   {"int4", "int4", 23, true, []string{"0", "1", "2", "3", "5", "7", "-1", "100"}},
	kBig:   {"int8", "int8", 20, true, []string{"0", "1", "2", "-7", "40", "9000000000", "12"}},
	kNum:   {"numeric", "numeric(14,2)", 1700, false, []string{"0.00", "1.50", "2.25", "-3.10", "1000.01", "7.00", "12345678901.99"}},
	kText:  {"text", `text COLLATE "C"`, 25, true, []string{"a", "b", "c", "ab", "B", "", "x y", "ü", "it's", `back\slash`}},
	kLoc:   {"text", `text COLLATE "de-x-icu"`, 25, true, []string{"a", "B", "ä", "Zebra", "zebra", "", "öl"}},
	kChar:  {"varchar", `varchar(12) COLLATE "C"`, 1043, true, []string{"one", "two", "Three", "", "o n e"}},
	kBool:  {"bool", "bool", 16, true, []string{"true", "false"}},
	kDate:  {"date", "date", 1082, true, []string{"2024-02-29", "1999-12-31", "2024-03-31", "2030-01-01"}},
	kStamp: {"timestamp", "timestamp", 1114, true, []string{"2024-01-02 03:04:05.09186", "2024-01-02 03:04:05.9", "1999-12-31 00:00:00", "2024-03-31 02:30:00"}},
	kTz:    {"timestamptz", "timestamptz", 1184, true, []string{"2024-03-31 01:30:00+00", "2024-10-27 00:30:00+00", "2000-01-01 12:00:00.25+00", "1969-07-20 20:17:40+00"}},
	kUUID:  {"uuid", "uuid", 2950, true, []string{"00000000-0000-0000-0000-000000000001", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "ffffffff-0000-0000-0000-00000000000f", "10000000-0000-0000-0000-000000000002", "20000000-0000-0000-0000-000000000003"}},
	kBytes: {"bytea", "bytea", 17, true, []string{`\x`, `\x00ff`, `\x616263`, `\x61`}},
	kEnum:  {"mood", "mood", 0, true, []string{"sad", "ok", "happy"}},
	kFloat: {"float8", "float8", 701, false, []string{"0", "0.5", "-1.25", "1024", "3"}},
	kSpan:  {"interval", "interval", 1186, false, []string{"1 day", "02:30:00", "1 mon 3 days", "-00:00:01.5"}},
	kInts:  {"int4[]", "int4[]", 1007, true, []string{"{1,2,3}", "{}", "{7}", "{NULL,5}"}},
	kTexts: {"text[]", `text[] COLLATE "C"`, 1009, true, []string{"{a,b}", "{}", `{"x y",NULL}`}},
	kJSON:  {"jsonb", "jsonb", 3802, false, []string{`{"a": 1, "b": [true, null]}`, `[1, "x"]`, `"str"`, `{"a": "one"}`}},
}

// worldColumn is a column of a generated table.
type worldColumn struct {
	name string
	kind kind
}

// worldTable is a generated table. Its first column is the shard key, if it has one.
type worldTable struct {
	name    string
	columns []worldColumn
	primary []string
	keyed   bool   // the shard key is a part of its primary key, and it is the same in every keyed table of the kind
	index   string // of the topology; "" = none
	place   string // data, ref or main
}

func (t *worldTable) key() worldColumn { return t.columns[0] }

// worldSchema is the tables of one worker, in a schema of its own.
type worldSchema struct {
	name   string
	rand   *rand.Rand
	tables []*worldTable
	keys   []string // values of the shard key that parent and child share
}

// newWorldSchema makes up tables: a parent and a child by one key, one by another key, one with copies and one on a shard.
func newWorldSchema(name string, r *rand.Rand) *worldSchema {
	w := &worldSchema{name: name, rand: r}
	key := []kind{kInt, kInt, kBig, kText, kUUID, kDate, kChar}[r.IntN(7)]
	for i := range 45 {
		w.keys = append(w.keys, keyValue(key, i))
	}
	typ := "xxhash"
	if (key == kInt || key == kBig) && r.IntN(3) == 0 {
		typ = "modulo"
	}
	w.table("t", "data", typ, worldColumn{"k", key}, 5, "k")
	w.table("u", "data", typ, worldColumn{"tk", key}, 4, "tk", "id")
	w.table("w", "data", "xxhash", worldColumn{"name", kText}, 3, "name")
	w.table("r", "ref", "", worldColumn{"id", kInt}, 3, "id")
	w.table("h", "main", "", worldColumn{"id", kInt}, 3, "id")
	return w
}

func keyValue(k kind, i int) string {
	switch k { //nolint:exhaustive // the kinds of keys
	case kUUID:
		return fmt.Sprintf("%08x-0000-4000-8000-%012x", uint32(i)*2654435761, i)
	case kDate:
		return fmt.Sprintf("2024-%02d-%02d", 1+i/28, 1+i%28)
	case kText, kChar:
		return "k" + strconv.Itoa(i)
	}
	return strconv.Itoa(i)
}

func (w *worldSchema) table(name, place, index string, key worldColumn, more int, primary ...string) {
	t := &worldTable{name: name, columns: []worldColumn{key}, primary: primary, place: place, index: index, keyed: name == "t" || name == "u"}
	if name == "u" {
		t.columns = append(t.columns, worldColumn{"id", kInt})
	}
	t.columns = append(t.columns, worldColumn{name + "n", kInt}, worldColumn{name + "v", kText})
	if name == "w" {
		t.columns = append(t.columns, worldColumn{"wk", w.tables[0].key().kind})
	}
	for i := range more {
		k := kind(w.rand.IntN(int(kinds)))
		t.columns = append(t.columns, worldColumn{name + string(rune('a'+i)), k})
	}
	w.tables = append(w.tables, t)
}

// ddl makes the schema.
func (w *worldSchema) ddl() string {
	var b strings.Builder
	fmt.Fprintf(&b, "CREATE SCHEMA %s; SET search_path = %[1]s; CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');\n", w.name)
	for _, t := range w.tables {
		fmt.Fprintf(&b, "CREATE TABLE %s (", t.name)
		for _, c := range t.columns {
			fmt.Fprintf(&b, "%s %s, ", c.name, kindFacts[c.kind].column)
		}
		fmt.Fprintf(&b, "PRIMARY KEY (%s));\n", strings.Join(t.primary, ", "))
	}
	b.WriteString("CREATE VIEW tu AS SELECT t.k, u.id, t.tn, u.uv FROM t JOIN u ON u.tk = t.k;\nRESET search_path")
	return b.String()
}

// topology gives the schema's part of the document, and its shard indexes.
func (w *worldSchema) topology() (schema, indexes string) {
	var tables, refs, all []string
	for _, t := range w.tables {
		switch {
		case t.place == "ref":
			refs = append(refs, fmt.Sprintf(`"%s": {"shard_groups": ["data"]}`, t.name))
		case t.index != "":
			name := w.name + "_" + t.name
			tables = append(tables, fmt.Sprintf(`"%s": {"shard_group": "data", "shard_index": "%s"}`, t.name, name))
			params := ""
			if t.index == "modulo" {
				params = `, "index_params": {"modulus": 8}`
			}
			all = append(all, fmt.Sprintf(`"%s": {"type": "%s", "columns": ["%s"]%s}`, name, t.index, t.key().name, params))
		}
	}
	return fmt.Sprintf(`"%s": {"tables": {%s}, "reference_tables": {%s}}`, w.name, strings.Join(tables, ", "), strings.Join(refs, ", ")),
		strings.Join(all, ", ")
}

const worldTopology = `{
 "databases": {"DB": {"default_shard_group": "main", "schemas": {SCHEMAS}}},
 "shard_groups": [{"uid": "main", "key_ranges": [{"shard_uid": "sh1"}]}, RANGES],
 "shard_indexes": {INDEXES},
 "authoritative_shard_group": "main"
}`

const oneRange = `{"uid": "data", "key_ranges": [{"shard_uid": "sh1"}]}`

// fourRanges splits hashes in four, and the small keys of modulo 8 too.
const fourRanges = `{"uid": "data", "key_ranges": [
  {"shard_uid": "sh1", "end": "0000000000000002"}, {"shard_uid": "sh2", "start": "0000000000000002", "end": "0000000000000004"},
  {"shard_uid": "sh3", "start": "0000000000000004", "end": "0000000000000006"},
  {"shard_uid": "sh1", "start": "0000000000000006", "end": "4000000000000000"}, {"shard_uid": "sh2", "start": "4000000000000000", "end": "8000000000000000"},
  {"shard_uid": "sh3", "start": "8000000000000000", "end": "c000000000000000"}, {"shard_uid": "sh4", "start": "c000000000000000"}]}`

// worldDocument is the topology of all schemas.
func worldDocument(schemas []*worldSchema, ranges string) string {
	var parts, indexes []string
	for _, w := range schemas {
		s, i := w.topology()
		parts, indexes = append(parts, s), append(indexes, i)
	}
	return strings.NewReplacer("SCHEMAS", strings.Join(parts, ", "), "INDEXES", strings.Join(indexes, ", "), "RANGES", ranges).Replace(worldTopology)
}
