package catalog_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"neki/catalog"
	"neki/internal/datum"
	"neki/internal/testpg"
)

// serverValues are values of each type, many of them equal to another.
var serverValues = []struct {
	typeName string
	values   []string
}{
	{"int2", []string{"0", "1", "-1", "7", "32767", "-32768"}},
	{"int4", []string{"0", "1", "-1", "7", "32767", "2147483647", " 42", "+42"}},
	{"int8", []string{"0", "1", "-1", "7", "42", "2147483647", "9007199254740993", "9223372036854775807", "-9223372036854775808"}},
	{"numeric", []string{
		"0", "-0.0", "1", "1.0", "1.000", "7e0", "70e-1", "0.5", "0.50", "-1.00", "42", "1e10", "10000000000", "NaN", "Infinity",
		"-Infinity", "9223372036854775807.0", "9223372036854775808", "1e30", "1000000000000000000000000000000.0", "0.1", "0.10",
		"-9223372036854775808", "-0.5",
	}},
	{"float4", []string{"0", "-0", "1", "1.5", "0.1", "NaN", "Infinity", "-Infinity", "1e-40", "16777216"}},
	{"float8", []string{"0", "-0", "1", "1.5", "0.1", "0.100000001490116119384765625", "NaN", "nan", "Infinity", "-Infinity", "1e300", "16777216"}},
	{"text", []string{"", "a", "A", "a ", " a", "ab", "é", "e\u0301", "NULL"}},
	{"varchar", []string{"", "a", "A", "a ", "ab", "é"}},
	{"bpchar", []string{"", " ", "a", "a ", "a   ", " a", "é "}},
	{"bytea", []string{"", `\x`, "a", `\x61`, `\x 61`, `\141`, `\\`, `\x5c`, `\x00ff`, `\000\377`}},
	{"bool", []string{"t", "true", "yes", "on", "1", "f", "off", "n", " false "}},
	{"date", []string{"2000-01-01", "2024-02-29", "0044-03-15 BC", "infinity", "-infinity", "epoch", "1970-01-01"}},
	{"timestamp", []string{
		"2000-01-01", "2000-01-01 00:00:00", "2024-02-29 00:00", "2024-02-29T12:34:56.5", "2024-02-29 12:34:56.500000", "infinity",
		"-infinity", "0044-03-15 00:00:00 BC", "2024-02-28 24:00:00", "epoch",
	}},
	{"timestamptz", []string{
		"2000-01-01 00:00:00+00", "2000-01-01 05:30:00+05:30", "2024-02-29 12:34:56.5Z", "2024-02-29 07:34:56.5-05", "infinity",
	}},
	{"uuid", []string{
		"6f1c7a3e-50e7-4f0c-8ad5-4f0f7d0a4c11", "6F1C7A3E-50E7-4F0C-8AD5-4F0F7D0A4C11", "{6f1c7a3e50e74f0c8ad54f0f7d0a4c11}",
		"6f1c-7a3e-50e7-4f0c-8ad5-4f0f-7d0a-4c11", "00000000-0000-0000-0000-000000000000",
	}},
	{"mood", []string{"happy", "sad", "Happy"}},
}

type serverValue struct {
	typeName, value string
	key             uint64
}

// TestEqualValuesHaveOneKey asks a server which values are equal, over all types of a family, and looks at their keys:
// those of the text as it was written, and those of both forms in which the server gives the value back.
func TestEqualValuesHaveOneKey(t *testing.T) {
	server := testpg.Start(t)
	ctx := t.Context()
	conn := server.Conn(ctx)
	for _, sql := range []string{"CREATE TYPE mood AS ENUM ('sad', 'Happy', 'happy')", "SET TimeZone = 'UTC'"} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	ix := index(t, "xxhash", "k", 0)
	var all []serverValue
	for _, of := range serverValues {
		for _, v := range of.values {
			key, err := ix.KeyText(keyTypes[of.typeName], []byte(v), nil)
			if err != nil {
				t.Fatalf("%s %q: %v", of.typeName, v, err)
			}
			all = append(all, serverValue{of.typeName, v, key})
			for format := range int16(2) {
				result := conn.PgConn().ExecParams(ctx, "SELECT $1::"+of.typeName, [][]byte{[]byte(v)}, nil, nil, []int16{format}).Read()
				if result.Err != nil {
					t.Fatal(result.Err)
				}
				back := datum.WireText(result.Rows[0][0])
				if format == 1 {
					back = datum.WireBinary(result.Rows[0][0])
				}
				if again, err := ix.Key(keyTypes[of.typeName], back); err != nil || again != key {
					t.Errorf("%s %q: key %x as the server gives it back in format %d, %v; %x as written", of.typeName, v, again, format, err, key)
				}
			}
		}
	}
	comparePairs(t, all, func(conditions []string) []bool {
		var equal []bool
		if err := conn.QueryRow(ctx, "SELECT ARRAY["+strings.Join(conditions, ", ")+"]").Scan(&equal); err != nil {
			t.Fatal(err)
		}
		return equal
	})
}

func comparePairs(t *testing.T, all []serverValue, ask func(conditions []string) []bool) {
	t.Helper()
	literal := func(v serverValue) string {
		return fmt.Sprintf("'%s'::%s", v.value, v.typeName)
	}
	equalPairs := 0
	for i, a := range all {
		var others []serverValue
		var conditions []string
		for _, b := range all[i:] {
			if catalog.FamilyOf(keyTypes[a.typeName]) == catalog.FamilyOf(keyTypes[b.typeName]) {
				others, conditions = append(others, b), append(conditions, literal(a)+" = "+literal(b))
			}
		}
		for j, equal := range ask(conditions) {
			switch b := others[j]; {
			case equal && a.key != b.key:
				t.Errorf("%s is equal to %s, and the keys are %x and %x", literal(a), literal(b), a.key, b.key)
			case !equal && a.key == b.key:
				t.Errorf("%s is not equal to %s, and both have the key %x", literal(a), literal(b), a.key)
			case equal:
				equalPairs++
			}
		}
	}
	const least = 200
	if equalPairs < least {
		t.Errorf("only %d of the pairs were equal: this tests nothing", equalPairs)
	}
}

// TestExpressionsAreTheServers compares what an index makes of a column with the server's own expression.
func TestExpressionsAreTheServers(t *testing.T) {
	server := testpg.Start(t)
	conn := server.Conn(t.Context())
	values := map[string][]string{
		"text": {"Ada@Example.com", "", "  X ", "ÄB"}, "bpchar": {"AbC  "}, "varchar": {"mIxEd"},
		"int2": {"7", "-7", "32767"}, "int4": {"100", "-100", "2147483647", "-2147483648", "0"},
		"int8": {"9223372036854775807", "-9223372036854775808", "4611686018427387904"},
	}
	for _, expression := range []string{
		"lower(k)", "upper(k)", "LOWER( \"k\" )", "k % 16", "k / 100", "k * 1000", "(k + 2147483647)", "k - 1", "k*0", "k * 4294967296",
	} {
		ix := index(t, "xxhash", expression, 0)
		for typeName, of := range values {
			oid := keyTypes[typeName]
			if ix.CheckType(oid) != nil {
				continue
			}
			for _, v := range of {
				compareExpression(t, ix, oid, v, func() (uint32, []byte, error) {
					result := conn.PgConn().ExecParams(context.Background(),
						fmt.Sprintf("SELECT %s FROM (SELECT $1::%s AS k) AS t", expression, typeName), [][]byte{[]byte(v)}, nil, nil, nil).Read()
					if result.Err != nil {
						return 0, nil, result.Err
					}
					return result.FieldDescriptions[0].DataTypeOID, slices.Clone(result.Rows[0][0]), nil
				})
			}
		}
	}
}

func compareExpression(t *testing.T, ix *catalog.Index, oid uint32, v string, server func() (uint32, []byte, error)) {
	t.Helper()
	key, err := ix.KeyText(oid, []byte(v), nil)
	if strings.Contains(v, "Ä") {
		if err == nil {
			t.Errorf("%s of %q has a key, which its collation decides", ix.Expr, v)
		}
		return
	}
	resultOID, result, serverErr := server()
	if (err == nil) != (serverErr == nil) {
		t.Errorf("%s of %q: %v; the server: %v", ix.Expr, v, err, serverErr)
	}
	if err != nil || serverErr != nil {
		return
	}
	d, err := datum.ParseText(resultOID, string(result), nil)
	if err != nil {
		t.Fatal(err)
	}
	if want, err := ix.ResultKey(resultOID, d); err != nil || want != key {
		t.Errorf("%s of %q: key %x, the server's %q has %x, %v", ix.Expr, v, key, result, want, err)
	}
}
