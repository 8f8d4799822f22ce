package build

import (
	_ "embed"
	"strconv"
	"strings"
	"sync"

	"neki/internal/datum"
)

// pg15.catalog is a copy of what Postgres 15 has in pg_type, pg_cast, pg_operator and pg_proc, a line each:
//
//	T oid name category preferred type elem array format_type
//	C source target context method function
//	O name left right result function strict
//	P name function result flags defaults variadic arguments
//
// Functions go by pg_proc.prosrc, SQL-language ones by name/arguments. Flags are the kind (f, a or w), then s strict,
// r returns a set, v variadic. testdata/catalog.sql makes it.
//
//go:embed pg15.catalog
var catalogText string

type typeRow struct {
	oid       uint32
	name      string
	category  byte
	preferred bool
	kind      byte
	elem      uint32
	array     uint32
	display   string
}

type castRow struct {
	context, method byte
	proc            string
}

type procRow struct {
	name     string
	proc     string
	args     []uint32
	result   uint32
	kind     byte
	strict   bool
	set      bool
	variadic uint32 // element type of a variadic last argument
	defaults int
}

type systemCatalog struct {
	types      map[uint32]*typeRow
	typeByName map[string]*typeRow
	casts      map[[2]uint32]castRow
	operators  map[string][]*procRow
	procs      map[string][]*procRow
}

// system gives the catalog, read at its first use.
var system = sync.OnceValue(readCatalog)

func readCatalog() *systemCatalog {
	s := &systemCatalog{
		types: map[uint32]*typeRow{}, typeByName: map[string]*typeRow{}, casts: map[[2]uint32]castRow{},
		operators: map[string][]*procRow{}, procs: map[string][]*procRow{},
	}
	for line := range strings.SplitSeq(strings.TrimSpace(catalogText), "\n") {
		f := strings.Split(line, " ")
		switch f[0] {
		case "T":
			t := &typeRow{
				oid: oidOf(f[1]), name: f[2], category: f[3][0], preferred: f[4] == "1", kind: f[5][0],
				elem: oidOf(f[6]), array: oidOf(f[7]), display: strings.ReplaceAll(f[8], "_", " "),
			}
			s.types[t.oid], s.typeByName[t.name] = t, t
		case "C":
			s.casts[[2]uint32{oidOf(f[1]), oidOf(f[2])}] = castRow{f[3][0], f[4][0], f[5]}
		case "O":
			p := &procRow{name: f[1], proc: f[5], result: oidOf(f[4]), strict: f[6] == "1", kind: 'f'}
			if left := oidOf(f[2]); left != 0 {
				p.args = append(p.args, left)
			}
			p.args = append(p.args, oidOf(f[3]))
			s.operators[p.name] = append(s.operators[p.name], p)
		case "P":
			p := procOf(f)
			s.procs[p.name] = append(s.procs[p.name], p)
		}
	}
	return s
}

func procOf(f []string) *procRow {
	p := &procRow{
		name: f[1], proc: f[2], result: oidOf(f[3]), kind: f[4][0], strict: strings.Contains(f[4], "s"),
		set: strings.Contains(f[4], "r"), defaults: int(oidOf(f[5])), variadic: oidOf(f[6]),
	}
	if f[7] != "-" {
		for a := range strings.SplitSeq(f[7], ",") {
			p.args = append(p.args, oidOf(a))
		}
	}
	return p
}

func oidOf(s string) uint32 {
	n, _ := strconv.ParseUint(s, 10, 32)
	return uint32(n)
}

// typeName gives a type's name as format_type does.
func typeName(oid uint32) string {
	if t := system().types[oid]; t != nil {
		return t.display
	}
	return "???"
}

func category(oid uint32) (byte, bool) {
	if t := system().types[oid]; t != nil {
		return t.category, t.preferred
	}
	return 0, false
}

func elemOf(oid uint32) uint32 {
	t := system().types[oid]
	if t == nil || t.category != 'A' {
		return 0
	}
	return t.elem
}

func arrayOf(oid uint32) uint32 {
	if t := system().types[oid]; t != nil {
		return t.array
	}
	return 0
}

func polymorphic(oid uint32) bool {
	switch oid {
	case datum.AnyElementOID, datum.AnyArrayOID, datum.AnyNonArrayOID, datum.AnyEnumOID, datum.AnyRangeOID,
		datum.AnyMultirangeOID, datum.AnyCompatibleOID, datum.AnyCompatibleArrayOID, datum.AnyCompatibleNonArrayOID,
		datum.AnyCompatibleRangeOID, datum.AnyCompatibleMultirangeOID:
		return true
	}
	return false
}

// BuiltIn tells whether Postgres has a function of that name in pg_catalog, and whether one of them is an aggregate.
func BuiltIn(name string) (known, aggregate bool) {
	return len(system().procs[name]) > 0, isAggregate("", name)
}
