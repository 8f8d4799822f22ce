package catalog_test

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"neki/catalog"
	"neki/internal/datum"
	"neki/internal/pgerr"
)

// keyTypes names the types of the tests' files; enums are enumType.
var keyTypes = map[string]uint32{
	"int2": datum.Int2OID, "int4": datum.Int4OID, "int8": datum.Int8OID, "numeric": datum.NumericOID,
	"float4": datum.Float4OID, "float8": datum.Float8OID, "text": datum.TextOID, "varchar": datum.VarcharOID,
	"bpchar": datum.BPCharOID, "bytea": datum.ByteaOID, "bool": datum.BoolOID, "date": datum.DateOID,
	"timestamp": datum.TimestampOID, "timestamptz": datum.TimestamptzOID, "uuid": datum.UUIDOID, "mood": datum.AnyEnumOID,
}

func index(t testing.TB, kind, column string, modulus int) *catalog.Index {
	t.Helper()
	params := ""
	if modulus > 0 {
		params = fmt.Sprintf(`, "index_params": {"modulus": %d}`, modulus)
	}
	top, problems := catalog.ParseTopology(fmt.Appendf(nil, `{"authoritative_shard_group": "a",
		"shard_groups": [{"uid": "a", "key_ranges": [{"shard_uid": "sh1"}]}],
		"shard_indexes": {"ix": {"type": %q, "columns": [%q]%s}}}`, kind, column, params))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	return top.Index("ix")
}

var update = flag.Bool("update-keys", false, "write testdata/keys.txt anew: rows of existing clusters are lost by it")

// TestGoldenKeys pins the keys. If it fails, the code is wrong, not the file: rows lie where their keys were.
func TestGoldenKeys(t *testing.T) {
	const path = "testdata/keys.txt"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	ix := index(t, "xxhash", "k", 0)
	var out strings.Builder
	for lines := bufio.NewScanner(strings.NewReader(string(text))); lines.Scan(); {
		line := lines.Text()
		if line == "" || line[0] == '#' {
			fmt.Fprintln(&out, line)
			continue
		}
		parts := strings.Split(line, "\t")
		value, err := strconv.Unquote(parts[1])
		if err != nil {
			t.Fatal(line, err)
		}
		key, err := ix.KeyText(keyTypes[parts[0]], []byte(value), nil)
		if err != nil {
			t.Fatal(line, err)
		}
		fmt.Fprintf(&out, "%s\t%s\t%016x\n", parts[0], parts[1], key)
	}
	if *update {
		if err := os.WriteFile(path, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if out.String() != string(text) {
		t.Errorf("keys are not those of the file:\n%s", out.String())
	}
}

// TestKnownHashes compares with XXH3-64 as others publish it.
func TestKnownHashes(t *testing.T) {
	ix := index(t, "xxhash", "k", 0)
	for value, want := range map[string]uint64{"": 0x2d06800538d394c2, "a": 0xe6c632b61e964e1f, "abc": 0x78af5f94892f3950} {
		if key, err := ix.Key(datum.TextOID, datum.Text(value)); err != nil || key != want {
			t.Errorf("%q: %016x, %v, want %016x", value, key, err, want)
		}
	}
}

func TestIntegerKeys(t *testing.T) {
	for _, tc := range []struct {
		kind    string
		modulus int
		oid     uint32
		value   string
		want    uint64
		code    string
	}{
		{"modulo", 4, datum.Int4OID, "7", 3, ""},
		{"modulo", 4, datum.Int4OID, "-1", 3, ""},
		{"modulo", 4, datum.Int8OID, "-9223372036854775808", 0, ""},
		{"modulo", 1, datum.Int2OID, "5", 0, ""},
		{"modulo", 4, datum.NumericOID, "7.000", 3, ""},
		{"modulo", 4, datum.NumericOID, "7.5", 0, pgerr.NumericValueOutOfRange},
		{"modulo", 4, datum.NumericOID, "1e30", 0, pgerr.NumericValueOutOfRange},
		{"modulo", 4, datum.TextOID, "7", 0, pgerr.DatatypeMismatch},
		{"range", 0, datum.Int8OID, "255", 255, ""},
		{"range", 0, datum.Int2OID, "-1", 0xffffffffffffffff, ""},
		{"range", 0, datum.Int4OID, " 12 ", 12, ""},
		{"range", 0, datum.Int4OID, "2147483648", 0, pgerr.NumericValueOutOfRange},
		{"range", 0, datum.Int4OID, "x", 0, pgerr.InvalidTextRepresentation},
		{"range", 0, datum.UUIDOID, "00000000-0000-0000-0000-000000000000", 0, pgerr.DatatypeMismatch},
		{"xxhash", 0, datum.JSONBOID, "{}", 0, pgerr.DatatypeMismatch},
		{"xxhash", 0, datum.IntervalOID, "1 day", 0, pgerr.DatatypeMismatch},
		{"xxhash", 0, datum.DateOID, "today", 0, pgerr.FeatureNotSupported},
		{"xxhash", 0, datum.TimestamptzOID, "2024-01-02 03:04:05", 0, pgerr.FeatureNotSupported},
		{"xxhash", 0, datum.ByteaOID, `\x1`, 0, pgerr.InvalidTextRepresentation},
		{"xxhash", 0, datum.ByteaOID, `\8`, 0, pgerr.InvalidTextRepresentation},
	} {
		key, err := index(t, tc.kind, "k", tc.modulus).KeyText(tc.oid, []byte(tc.value), nil)
		if key != tc.want || pgerr.Code(err) != tc.code {
			t.Errorf("%s %q: %d, %v; want %d, %q", tc.kind, tc.value, key, err, tc.want, tc.code)
		}
	}
}

func TestNullKey(t *testing.T) {
	if _, err := index(t, "xxhash", "k", 0).Key(datum.Int4OID, datum.Null); !errors.Is(err, catalog.ErrNullKey) {
		t.Error(err)
	}
}

func TestCheckType(t *testing.T) {
	for _, tc := range []struct {
		kind, column string
		oid          uint32
		ok           bool
	}{
		{"xxhash", "k", datum.Int4OID, true},
		{"xxhash", "k", datum.AnyEnumOID, true},
		{"xxhash", "k", datum.JSONOID, false},
		{"xxhash", "k", datum.Int4ArrayOID, false},
		{"xxhash", "k", datum.RecordOID, false},
		{"xxhash", "lower(k)", datum.TextOID, true},
		{"xxhash", "lower(k)", datum.Int4OID, false},
		{"xxhash", "k % 16", datum.Int2OID, true},
		{"xxhash", "k % 16", datum.TextOID, false},
		{"range", "k", datum.Int8OID, true},
		{"range", "k / 100", datum.Int8OID, true},
		{"range", "k", datum.NumericOID, false},
	} {
		err := index(t, tc.kind, tc.column, 0).CheckType(tc.oid)
		if (err == nil) != tc.ok || !tc.ok && pgerr.Code(err) != pgerr.DatatypeMismatch {
			t.Errorf("%s of %s, %d: %v", tc.kind, tc.column, tc.oid, err)
		}
	}
}

func TestKeysAllocateNothing(t *testing.T) {
	ix, modulo := index(t, "xxhash", "k", 0), index(t, "modulo", "k", 16)
	uuid := []byte("6f1c7a3e-50e7-4f0c-8ad5-4f0f7d0a4c11")
	for name, key := range map[string]func() (uint64, error){
		"int4 text":    func() (uint64, error) { return ix.KeyText(datum.Int4OID, []byte("123456"), nil) },
		"int8 binary":  func() (uint64, error) { return ix.KeyBinary(datum.Int8OID, []byte("\x00\x00\x00\x00\x00\x00\x01\x02")) },
		"int4 datum":   func() (uint64, error) { return ix.Key(datum.Int4OID, datum.Int(7)) },
		"text":         func() (uint64, error) { return ix.KeyText(datum.TextOID, []byte("some tenant"), nil) },
		"text datum":   func() (uint64, error) { return ix.Key(datum.TextOID, datum.Text("some tenant")) },
		"text binary":  func() (uint64, error) { return ix.KeyBinary(datum.TextOID, []byte("some tenant")) },
		"bpchar":       func() (uint64, error) { return ix.KeyText(datum.BPCharOID, []byte("some tenant  "), nil) },
		"uuid text":    func() (uint64, error) { return ix.KeyText(datum.UUIDOID, uuid, nil) },
		"uuid binary":  func() (uint64, error) { return ix.KeyBinary(datum.UUIDOID, uuid[:16]) },
		"modulo int4":  func() (uint64, error) { return modulo.KeyText(datum.Int4OID, []byte("123456"), nil) },
		"timestamp":    func() (uint64, error) { return ix.Key(datum.TimestampOID, datum.Int(1<<50)) },
		"float8 datum": func() (uint64, error) { return ix.Key(datum.Float8OID, datum.Float(0.5)) },
	} {
		allocs := testing.AllocsPerRun(100, func() {
			if _, err := key(); err != nil {
				t.Error(name, err)
			}
		})
		if allocs != 0 {
			t.Errorf("%s: %v allocations", name, allocs)
		}
	}
}

// FuzzKeyText holds the ways to a key together: text without allocation, text through the input function, binary.
func FuzzKeyText(f *testing.F) {
	for name := range keyTypes {
		f.Add(name, "1")
	}
	f.Add("numeric", "1e400")
	f.Add("uuid", "{6f1c7a3e50e74f0c8ad54f0f7d0a4c11}")
	f.Add("timestamptz", "2024-02-29 23:59:60+03")
	ix := index(f, "xxhash", "k", 0)
	f.Fuzz(func(t *testing.T, typeName, value string) {
		oid := keyTypes[typeName]
		key, err := ix.KeyText(oid, []byte(value), nil)
		if err != nil || !datum.Known(oid) {
			return
		}
		d, err := datum.ParseText(oid, value, nil)
		if err != nil {
			return // text that is no UTF-8 is for the server to refuse
		}
		if other, err := ix.Key(oid, d); err != nil || other != key {
			t.Errorf("%s %q: %x by datum, %v; %x by text", typeName, value, other, err, key)
		}
		wire, err := datum.AppendBinary(nil, oid, d, nil)
		if err != nil {
			t.Fatal(err)
		}
		if other, err := ix.KeyBinary(oid, wire); err != nil || other != key {
			t.Errorf("%s %q: %x by binary, %v; %x by text", typeName, value, other, err, key)
		}
	})
}
