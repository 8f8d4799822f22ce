package datum

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"neki/internal/pgerr"
)

func TestTextOutputIsCanonical(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	s := &Session{Zone: berlin, Now: time.Date(2024, 7, 1, 22, 30, 0, 0, time.UTC)}
	for _, tc := range []struct {
		oid      uint32
		in, want string
	}{
		{BoolOID, " TRUE ", "t"},
		{BoolOID, "n", "f"},
		{Int4OID, " +12 ", "12"},
		{Int8OID, "-9223372036854775808", "-9223372036854775808"},
		{Float8OID, "1e15", "1e+15"},
		{Float8OID, "0.00001", "1e-05"},
		{Float8OID, "123456789012345", "123456789012345"},
		{Float4OID, "0.1", "0.1"},
		{Float4OID, "1234567", "1.234567e+06"},
		{Float8OID, "-inf", "-Infinity"},
		{NumericOID, "1.50", "1.50"},
		{NumericOID, "-.5e-3", "-0.0005"},
		{NumericOID, "12e3", "12000"},
		{NumericOID, "-0", "0"},
		{TimestamptzOID, "2024-03-31 02:30", "2024-03-31 03:30:00+02"},
		{TimestamptzOID, "2024-10-27 02:30", "2024-10-27 02:30:00+01"},
		{TimestamptzOID, "1880-01-01 00:00:00Z", "1880-01-01 00:53:28+00:53:28"},
		{TimestamptzOID, "today", "2024-07-02 00:00:00+02"},
		{TimestampOID, "2024-01-02T03:04:05.678900", "2024-01-02 03:04:05.6789"},
		{DateOID, "0044-03-15 BC", "0044-03-15 BC"},
		{IntervalOID, "1 year -2 mons 3 days -04:05:06.7", "10 mons 3 days -04:05:06.7"},
		{IntervalOID, "-1 day +02:00", "-1 days +02:00:00"},
		{IntervalOID, "0", "00:00:00"},
		{LSNOID, "1/abc", "1/ABC"},
		{UUIDOID, "{A0EEBC99-9C0B4EF8BB6D6BB9BD380A11}", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"},
		{TextArrayOID, `{ a , "b c", null, "NULL", "" }`, `{a,"b c",NULL,"NULL",""}`},
		{JSONBOID, `{"bb":1,"a":{"c":1.50}}`, `{"a": {"c": 1.50}, "bb": 1}`},
	} {
		d, err := ParseText(tc.oid, tc.in, s)
		if err != nil {
			t.Errorf("%s %q: %v", Name(tc.oid), tc.in, err)
			continue
		}
		if got, err := Format(tc.oid, d, s); got != tc.want || err != nil {
			t.Errorf("%s %q = %q, %v, want %q", Name(tc.oid), tc.in, got, err, tc.want)
		}
	}
}

func TestKeysAgreeWithOrder(t *testing.T) {
	for oid, texts := range map[uint32][]string{
		NumericOID:  {"1.0", "1.00", "10", "1e1", "0", "-0.00", "NaN", "nan", "-1.5", "inf", "-inf", "100"},
		IntervalOID: {"1 day", "24:00:00", "1 mon", "30 days", "-1 day", "0", "29 days 24:00"},
		Float8OID:   {"0", "-0", "NaN", "1", "1e0", "inf"},
		TextOID:     {"a", "A", "", "ab", "ä"},
		Int8OID:     {"1", "-1", "0", "9223372036854775807"},
		Int4ArrayOID: {
			"{}", "{1}", "{1,NULL}", "{1,2}", "{NULL}",
		},
	} {
		for _, x := range texts {
			for _, y := range texts {
				a, err1 := ParseText(oid, x, nil)
				b, err2 := ParseText(oid, y, nil)
				if err1 != nil || err2 != nil {
					t.Fatal(err1, err2)
				}
				c := Compare(oid, a, b)
				if same := bytes.Equal(AppendKey(nil, oid, a), AppendKey(nil, oid, b)); same != (c == 0) {
					t.Errorf("%s: %q and %q compare %d, keys equal: %v", Name(oid), x, y, c, same)
				}
				if back := Compare(oid, b, a); (c < 0) != (back > 0) || (c == 0) != (back == 0) {
					t.Errorf("%s: %q and %q compare %d and %d", Name(oid), x, y, c, back)
				}
			}
		}
	}
}

func TestFromGo(t *testing.T) {
	text := "x"
	var missing *string
	for _, tc := range []struct {
		oid  uint32
		in   any
		want string
	}{
		{TextOID, "a", "a"},
		{TextOID, &text, "x"},
		{TextOID, missing, ""},
		{Int4OID, 7, "7"},
		{Int8OID, uint64(9), "9"},
		{NumericOID, int64(3), "3"},
		{NumericOID, 2.5, "2.5"},
		{IntervalOID, 90 * time.Second, "00:01:30"},
		{TextArrayOID, []string{"a", "b c"}, `{a,"b c"}`},
		{LSNOID, "0/10", "0/10"},
		{BoolOID, true, "t"},
		{TimestamptzOID, time.Time{}, ""},
		{JSONBOID, `{"a":1}`, `{"a": 1}`},
		{Float8OID, 1.5, "1.5"},
	} {
		d, err := FromGo(tc.oid, tc.in)
		if err != nil {
			t.Errorf("%v: %v", tc.in, err)
			continue
		}
		got, err := Format(tc.oid, d, nil)
		if diff := cmp.Diff(tc.want, got); diff != "" || err != nil {
			t.Errorf("%v: %v %s", tc.in, err, diff)
		}
	}
	if _, err := FromGo(Int4OID, int64(1)<<40); err == nil {
		t.Error("an int64 was squeezed into an integer")
	}
	if _, err := FromGo(Int4OID, "x"); pgerr.Code(err) != pgerr.InvalidTextRepresentation {
		t.Errorf("got %v", err)
	}
}

func TestWireValuesAreCopied(t *testing.T) {
	d := WireText([]byte("1.500"))
	if got, err := AppendText(nil, NumericOID, d, nil); string(got) != "1.500" || err != nil {
		t.Errorf("%q %v", got, err)
	}
	n, err := d.Decode(NumericOID, nil)
	if err != nil {
		t.Fatal(err)
	}
	wire, err := AppendBinary(nil, NumericOID, n, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := AppendText(nil, NumericOID, WireBinary(wire), nil); string(got) != "1.500" || err != nil {
		t.Errorf("%q %v", got, err)
	}
	if got, err := AppendBinary(nil, NumericOID, d, nil); !bytes.Equal(got, wire) || err != nil {
		t.Errorf("%x %v", got, err)
	}
}

// fuzzed gives the types that the fuzz targets choose from.
func fuzzed(n byte) uint32 {
	var oids []uint32
	for _, t := range types {
		oids = append(oids, t.oid)
		if t.array != 0 {
			oids = append(oids, t.array)
		}
	}
	return oids[int(n)%len(oids)]
}

// FuzzParseText: no input panics, and what is read is written in a form that reads back as an equal value.
func FuzzParseText(f *testing.F) {
	for i, s := range []string{"t", "12", "1.5e3", "{1,NULL}", `{"a":[1]}`, "1 day 02:03", "2024-02-29 10:11:12+02", "0/1", "P1Y2M", "-1-2", "{\"x\\\"y\"}"} {
		for n := range byte(40) {
			f.Add(n, s+strings.Repeat(" ", i%2))
		}
	}
	s := &Session{Zone: time.FixedZone("", 3600), Now: time.Unix(1e9, 0)}
	f.Fuzz(func(t *testing.T, n byte, text string) {
		oid := fuzzed(n)
		d, err := ParseText(oid, text, s)
		if err != nil {
			if pgerr.Code(err) == "" || pgerr.Code(err) == pgerr.InternalError {
				t.Fatalf("%s %q: %v", Name(oid), text, err)
			}
			return
		}
		out, err := Format(oid, d, s)
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseText(oid, out, s)
		if err != nil {
			t.Fatalf("%s %q was written as %q: %v", Name(oid), text, out, err)
		}
		if Comparable(oid) && Compare(oid, d, again) != 0 {
			t.Fatalf("%s %q was written as %q, which is another value", Name(oid), text, out)
		}
		checkBinary(t, oid, d, s)
	})
}

func checkBinary(t *testing.T, oid uint32, d Datum, s *Session) {
	t.Helper()
	if oid == VoidOID || oid == JSONOID {
		return
	}
	wire, err := AppendBinary(nil, oid, d, s)
	if err != nil {
		t.Fatal(err)
	}
	again, err := ParseBinary(oid, wire)
	if err != nil {
		t.Fatalf("%s %x: %v", Name(oid), wire, err)
	}
	if Comparable(oid) && Compare(oid, d, again) != 0 {
		t.Fatalf("%s: binary %x is another value", Name(oid), wire)
	}
}

// FuzzParseBinary: no input panics, and what is read can be written in both forms.
func FuzzParseBinary(f *testing.F) {
	for n := range byte(40) {
		f.Add(n, []byte{0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 23, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 4, 0, 0, 0, 7})
		f.Add(n, []byte{0, 2, 0, 0, 0, 0, 0, 4, 0, 1, 19, 136})
		f.Add(n, []byte{0, 0, 0, 0, 0, 0, 0, 1})
		f.Add(n, []byte(`{"a": 1}`))
	}
	f.Fuzz(func(t *testing.T, n byte, data []byte) {
		oid := fuzzed(n)
		d, err := ParseBinary(oid, data)
		if err != nil {
			if pgerr.Code(err) == "" || pgerr.Code(err) == pgerr.InternalError {
				t.Fatalf("%s %x: %v", Name(oid), data, err)
			}
			return
		}
		if _, err := Format(oid, d, nil); err != nil {
			t.Fatal(err)
		}
		checkBinary(t, oid, d, nil)
	})
}
