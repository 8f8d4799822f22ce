package build_test

import (
	"bytes"
	"testing"

	"neki/internal/datum"
)

// TestWireForms compares both wire forms of values with Postgres's.
func TestWireForms(t *testing.T) {
	o := newOracle(t)
	zone, err := datum.ParseZone(oracleZone)
	if err != nil {
		t.Fatal(err)
	}
	s := &datum.Session{Zone: zone}
	for oid, texts := range map[uint32][]string{
		datum.BoolOID:   {"t", "f"},
		datum.Int2OID:   {"-32768", "7"},
		datum.Int4OID:   {"-1", "2147483647"},
		datum.Int8OID:   {"-9223372036854775808", "5"},
		datum.OIDOID:    {"4294967295", "0"},
		datum.Float8OID: {"0.1", "-1e300", "NaN", "1e-300", "123456.789", "1e16", "4.9e-324", "-0"},
		datum.Float4OID: {"0.1", "3.4e38", "1e-45", "16777217"},
		datum.NumericOID: {
			"0", "0.000", "1", "10000", "100000000", "0.0001", "-12345.6789", "1e-20", "12345678901234567890.000100", "NaN",
			"99999.99999", "Infinity", "-Infinity", "1e100", "5000.5",
		},
		datum.TextOID: {"", "äö", "x y"}, datum.VarcharOID: {"abc"}, datum.NameOID: {"n"},
		datum.DateOID:      {"2000-01-01", "1999-12-31", "0001-01-01", "infinity", "0100-02-28 BC", "5874897-12-31"},
		datum.TimestampOID: {"2000-01-01 00:00:00", "1999-12-31 23:59:59.999999", "-infinity", "294276-12-31 23:59:59"},
		datum.TimestamptzOID: {
			"2024-03-31 01:59:59+01", "2024-03-31 03:00:00+02", "2024-10-27 02:30:00+02", "2024-10-27 02:30:00+01",
			"1800-01-01 00:00:00+00", "2200-07-01 00:00:00+00", "2024-03-31 02:30:00", "2024-10-27 02:30:00",
		},
		datum.IntervalOID:     {"1 year 2 mons -3 days +04:05:06.789", "-1 mons", "-00:00:00.000001", "1000000:00:00", "1.5 weeks", "-1.3 months", "0.7 years 3.4 days"},
		datum.LSNOID:          {"0/0", "FFFFFFFF/FFFFFFFF"},
		datum.UUIDOID:         {"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"},
		datum.JSONBOID:        {`{"a":[1,2.0,{"b":null}],"":"\u00e9\n"}`, `1e2`, `"x"`},
		datum.JSONOID:         {`{"a" : 1}`},
		datum.Int4ArrayOID:    {"{}", "{1,NULL,-3}"},
		datum.TextArrayOID:    {`{a,"b,c",NULL,"null","","\\","{}"}`},
		datum.NumericArrayOID: {"{1.50,NULL}"},
	} {
		for _, text := range texts {
			d, err := datum.ParseText(oid, text, s)
			if err != nil {
				t.Errorf("%s %q: %v", datum.Name(oid), text, err)
				continue
			}
			for format, appendTo := range []func([]byte, uint32, datum.Datum, *datum.Session) ([]byte, error){
				datum.AppendText, datum.AppendBinary,
			} {
				res := o.conn.PgConn().ExecParams(t.Context(), "SELECT $1", [][]byte{[]byte(text)}, []uint32{oid}, nil, []int16{int16(format)}).Read()
				if res.Err != nil {
					t.Errorf("%s %q: %v", datum.Name(oid), text, res.Err)
					continue
				}
				got, err := appendTo(nil, oid, d, s)
				if want := res.Rows[0][0]; !bytes.Equal(got, want) || err != nil {
					t.Errorf("%s %q, format %d: %q, %v, want %q", datum.Name(oid), text, format, got, err, want)
				}
			}
		}
	}
}
