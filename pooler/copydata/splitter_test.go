package copydata

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"neki/internal/pgerr"
)

func text(field int) Format { return Format{Delimiter: '\t', Null: `\N`, Field: field} }

func csv(field int) Format {
	return Format{CSV: true, Delimiter: ',', Quote: '"', Escape: '"', Field: field, Marker: true}
}

// split cuts data that comes in pieces of n bytes, and tells each row in one line.
func split(f Format, data []byte, n int) []string {
	s := New(f)
	var out []string
	var broken []byte
	take := func() bool {
		for {
			row, ok, err := s.Next()
			if err != nil {
				out = append(out, "error "+pgerr.From(err).Message)
				return false
			}
			if !ok {
				return true
			}
			if row.Kind == Broken { // as it comes
				broken = append(broken, row.Raw...)
				continue
			}
			out = append(out, tell(row))
		}
	}
	for len(data) > 0 {
		m := min(n, len(data))
		s.Write(data[:m])
		data = data[m:]
		if !take() {
			return out
		}
	}
	s.Finish()
	if take() && len(broken) > 0 {
		out = append(out, tell(Row{Kind: Broken, Raw: broken}))
	}
	return out
}

var kinds = [...]string{"data", "header", "last", "end", "broken"}

func tell(row Row) string {
	field := "NULL"
	switch {
	case row.Missing:
		field = "missing"
	case row.Field != nil:
		field = fmt.Sprintf("%q", row.Field)
	}
	out := fmt.Sprintf("%s %q", kinds[row.Kind], row.Raw)
	if row.Kind == Data || row.Kind == Last {
		out += " " + field
	}
	if row.Lines > 1 {
		out += fmt.Sprintf(" %d lines", row.Lines)
	}
	return out
}

func TestSplitter(t *testing.T) {
	header, escaped := csv(0), csv(1)
	header.Header = true
	escaped.Escape, escaped.Quote, escaped.Delimiter = '\\', '\'', ';'
	notNull, null := csv(1), csv(1)
	notNull.ForceNotNull, null.ForceNull = true, true
	literal := csv(0)
	literal.Marker = false
	for _, c := range []struct {
		name string
		f    Format
		data string
		want []string
	}{
		{"text", text(1), "1\ta\n2\t\\N\n3\t\n", []string{`data "1\ta\n" "a"`, `data "2\t\\N\n" NULL`, `data "3\t\n" ""`}},
		{"no newline at the end", text(0), "1\ta\n2", []string{`data "1\ta\n" "1"`, `data "2" "2"`}},
		{"escapes", text(0), "a\\tb\\\\\\x41\\101\\q\\\tc\tx\n", []string{`data "a\\tb\\\\\\x41\\101\\q\\\tc\tx\n" "a\tb\\AAq\tc"`}},
		{"escaped newline", text(1), "a\\\nb\tc\n", []string{`data "a\\\nb\tc\n" "c"`}},
		{"backslash at the end", text(0), "a\\", []string{`data "a\\" "a"`}},
		{"missing", text(2), "1\t2\n", []string{`data "1\t2\n" missing`}},
		{"crlf", text(0), "a\r\nb\r\n", []string{`data "a\r\n" "a"`, `data "b\r\n" "b"`}},
		{"cr", text(0), "a\rb\r", []string{`data "a\r" "a"`, `data "b\r" "b"`}},
		{"cr behind lf", text(0), "a\nb\rc\n", []string{`data "a\n" "a"`, "error literal carriage return found in data"}},
		{"lf behind crlf", text(0), "a\r\nb\nc", []string{`data "a\r\n" "a"`, "error literal newline found in data"}},
		{"marker", text(0), "a\n\\.\nb\n", []string{`data "a\n" "a"`, `end "\\.\n"`}},
		{"marker behind data", text(0), "a\\.\nb\n", []string{`last "a\\.\n" "a"`}},
		{"marker corrupt", text(0), "a\n\\.b\n", []string{`data "a\n" "a"`, "error end-of-copy marker corrupt"}},
		{"marker of another newline", text(0), "a\n\\.\r\n", []string{`data "a\n" "a"`, "error end-of-copy marker does not match previous newline style"}},
		{"marker with crlf", text(0), "a\r\n\\.\r\n", []string{`data "a\r\n" "a"`, `end "\\.\r\n"`}},

		{"csv", csv(1), "1,a\n2,\n3,\"\"\n", []string{`data "1,a\n" "a"`, `data "2,\n" NULL`, `data "3,\"\"\n" ""`}},
		{"quotes", csv(0), "\"a\"\"b,c\"d,x\n", []string{`data "\"a\"\"b,c\"d,x\n" "a\"b,cd"`}},
		{"newline in quotes", csv(1), "\"a\nb\",1\n\"c\nd\",2\n", []string{`data "\"a\nb\",1\n" "1"`, `data "\"c\nd\",2\n" "2" 2 lines`}},
		{"crlf in quotes", csv(0), "\"a\r\nb\",1\r\n", []string{`data "\"a\r\nb\",1\r\n" "a\r\nb" 2 lines`}},
		{"escape", escaped, "1;'a\\'b\\\\'\n2;'x\n';\n", []string{`data "1;'a\\'b\\\\'\n" "a'b\\"`, `data "2;'x\n';\n" "x\n" 2 lines`}},
		{"header", header, "\"k\n\",v\n1,a\n", []string{`header "\"k\n\",v\n"`, `data "1,a\n" "1"`}},
		{"not null", notNull, "1,\n", []string{`data "1,\n" ""`}},
		{"null", null, "1,\"\"\n", []string{`data "1,\"\"\n" NULL`}},
		{"csv marker", csv(0), "1\n\\.\n2\n", []string{`data "1\n" "1"`, `end "\\.\n"`}},
		{"csv marker is data", csv(0), "\\.x\n\\.", []string{`data "\\.x\n" "\\.x"`, `data "\\." "\\."`}},
		{"csv without marker", literal, "\\.\n2\n", []string{`data "\\.\n" "\\."`, `data "2\n" "2"`}},
		{"unquoted cr", csv(0), "1\n2\r3\n", []string{`data "1\n" "1"`, "error unquoted carriage return found in data"}},
		{"open quote", csv(0), "\"1\n", []string{`data "\"1\n" "1\n"`}},
		{"csv missing", csv(3), "1,\",\",3\n", []string{`data "1,\",\",3\n" missing`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, n := range []int{1, 2, 3, 1000} {
				if d := cmp.Diff(c.want, split(c.f, []byte(c.data), n)); d != "" {
					t.Errorf("in pieces of %d:\n%s", n, d)
				}
			}
		})
	}
}

func tuple(fields ...string) string {
	out := binary.BigEndian.AppendUint16(nil, uint16(len(fields)))
	for _, f := range fields {
		if f == "NULL" {
			out = append(out, 0xff, 0xff, 0xff, 0xff)
			continue
		}
		out = append(binary.BigEndian.AppendUint32(out, uint32(len(f))), f...)
	}
	return string(out)
}

func TestBinary(t *testing.T) {
	head := signature + "\x00\x00\x00\x00" + "\x00\x00\x00\x02xy"
	const trailer = "\xff\xff"
	f := Format{Binary: true, Field: 1}
	row := func(kind, raw, field string) string {
		return strings.TrimSpace(fmt.Sprintf("%s %q %s", kind, raw, field))
	}
	for _, c := range []struct {
		name, data string
		want       []string
	}{
		{"rows", head + tuple("a", "k") + tuple("b", "NULL") + tuple("c", "") + tuple("d") + trailer, []string{
			row("header", head, ""), row("data", tuple("a", "k"), `"k"`), row("data", tuple("b", "NULL"), "NULL"),
			row("data", tuple("c", ""), `""`), row("data", tuple("d"), "missing"), row("end", trailer, ""),
		}},
		{"no trailer", head + tuple("a", "k"), []string{row("header", head, ""), row("data", tuple("a", "k"), `"k"`)}},
		{"behind the trailer", head + trailer + "x", []string{row("header", head, ""), row("end", trailer, ""), "error received copy data after EOF marker"}},
		{"cut off", head + "\x00\x02\x00\x00", []string{row("header", head, ""), row("broken", "\x00\x02\x00\x00", "")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, n := range []int{1, 3, 1000} {
				if d := cmp.Diff(c.want, split(f, []byte(c.data), n)); d != "" {
					t.Errorf("in pieces of %d:\n%s", n, d)
				}
			}
		})
	}
}

// FuzzSplitter: no data panics, rows are cut alike whatever the pieces are, and no byte of data is lost or made.
func FuzzSplitter(f *testing.F) {
	f.Add([]byte("1\ta\\\nb\r\n\\.\n"), uint8(0), uint8(1))
	f.Add([]byte("\"a\"\"\n\",b\r\n\\.\n"), uint8(1), uint8(0))
	f.Add([]byte("'a\\'\n',b\n"), uint8(2), uint8(2))
	f.Add([]byte(signature+"\x00\x00\x00\x00\x00\x00\x00\x00"+tuple("a", "k")+"\xff\xff"), uint8(3), uint8(1))
	f.Fuzz(func(t *testing.T, data []byte, which, field uint8) {
		format := [...]Format{text(0), csv(0), {CSV: true, Delimiter: ';', Quote: '\'', Escape: '\\', Header: true}, {Binary: true}}[which%4]
		format.Field = int(field % 4)
		whole := split(format, data, len(data)+1)
		for _, n := range []int{1, 3} {
			if d := cmp.Diff(whole, split(format, data, n)); d != "" {
				t.Fatalf("in pieces of %d:\n%s", n, d)
			}
		}
		s := New(format)
		s.Write(data)
		s.Finish()
		var all []byte
		ended := false
		for {
			row, ok, err := s.Next()
			if err != nil {
				return
			}
			if !ok {
				break
			}
			all = append(all, row.Raw...)
			ended = ended || row.Kind == Last || row.Kind == End
		}
		if !bytes.HasPrefix(data, all) || !ended && len(all) < len(data) {
			t.Fatalf("%q became %q", data, all)
		}
	})
}

func TestRowsCostNoAllocation(t *testing.T) {
	f := text(1)
	data := []byte(strings.Repeat("some text\t12345\tmore\n", 100))
	s := New(f)
	s.Write(data)
	n := testing.AllocsPerRun(20, func() {
		for {
			if _, ok, _ := s.Next(); !ok {
				break
			}
		}
		s.Write(data)
	})
	if n > 0 {
		t.Errorf("%v allocations for 100 rows", n)
	}
}
