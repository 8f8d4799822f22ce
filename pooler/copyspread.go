package pooler

import (
	"bytes"
	"encoding/binary"
	"slices"

	"neki/catalog"
	"neki/exec"
	"neki/internal/pgerr"
	"neki/sqlparse"
)

// isSharded reports whether the rows of the session's database are on several shards.
func (c *Session) isSharded(snap *catalog.Snapshot) bool {
	return len(snap.Shards) > 1 && snap.Topology() != nil && snap.Topology().OnlyShard(c.db.name) == ""
}

// copies reports whether the statement is COPY: its rows are CopyData messages.
func (s *spread) copies() bool { return s.plan.Kind == sqlparse.KindCopy }

// copyHead begins data in the binary format: signature, flags, and the length of an extension.
const copyHead = "PGCOPY\n\xff\r\n\x00\x00\x00\x00\x00\x00\x00\x00\x00"

// opening gives what comes before the rows: the description, or of COPY TO CopyOutResponse and, of csv, the header. It is
// known once rows were asked for.
func (s *spread) opening() (head []byte, err error) {
	if !s.copies() {
		return s.description()
	}
	if s.head == nil {
		s.head, err = s.beginCopyOut()
	}
	return s.head, err
}

func (s *spread) beginCopyOut() ([]byte, error) {
	d, err := s.description()
	if err != nil || s.plan.CopyOut == nil {
		return d, err // a shard's own
	}
	out := s.plan.CopyOut
	w := &copyWriter{CopyOut: out, columns: describedNames(d)}
	s.writer = w
	format := byte(0)
	if out.Binary {
		format = 1
	}
	dst := appendCopyResponse(nil, 'H', format, len(w.columns))
	if out.Header {
		dst = append(dst, w.header()...)
	}
	return dst, nil
}

// endCopyOut gives what comes behind the rows.
func (s *spread) endCopyOut() []byte {
	var out []byte
	if s.plan.CopyOut != nil && s.plan.CopyOut.Binary {
		out = endMessage(append(s.beginBinary(out), 0xff, 0xff), 0)
	}
	return append(out, 'c', 0, 0, 0, 4)
}

// beginBinary begins a CopyData message. The first has the header before its row, as from Postgres: some clients count on it.
func (s *spread) beginBinary(dst []byte) []byte {
	dst = append(dst, 'd', 0, 0, 0, 0)
	if !s.headed {
		s.headed = true
		dst = append(dst, copyHead...)
	}
	return dst
}

// describedNames reads the names of the columns in a RowDescription message.
func describedNames(message []byte) []exec.Column {
	if len(message) < 7 {
		return nil
	}
	out := make([]exec.Column, binary.BigEndian.Uint16(message[5:]))
	rest := message[7:]
	for i := range out {
		name, after, _ := bytes.Cut(rest, []byte{0})
		out[i].Name = string(name)
		rest = after[min(18, len(after)):]
	}
	return out
}

// asCopyData writes rows, which are DataRow messages, as CopyData.
func (s *spread) asCopyData(rows []byte) ([]byte, error) {
	var out []byte
	for len(rows) > 0 {
		size := int(binary.BigEndian.Uint32(rows[1:])) + 1
		if s.plan.CopyOut.Binary { // a row has the same form in both
			start := len(out)
			out = endMessage(append(s.beginBinary(out), rows[5:size]...), start)
		} else {
			values := rowTexts(rows[:size])
			line, err := s.writer.line(func(i int) ([]byte, bool, error) { return values[i], values[i] == nil, nil })
			if err != nil {
				return nil, err
			}
			out = append(out, line...)
		}
		rows = rows[size:]
	}
	return out, nil
}

// copyFormats gives the form in which COPY has its rows come: in text, whose bytes are those that COPY writes, or in binary.
func (s *spread) copyFormats() (formats, error) {
	out := s.plan.CopyOut
	if out.UTF8 {
		if encoding, _ := s.c.shownParameter("client_encoding"); encoding != "UTF8" {
			return nil, notImplemented("[123] COPY TO of rows of several shards in another encoding than the client's", "Leave the option ENCODING out.")
		}
	}
	for _, name := range out.ForceQuote {
		if names := s.plan.Copy.Columns; name != "*" && len(names) > 0 && !slices.Contains(names, name) {
			return nil, pgerr.New("42P10", "FORCE_QUOTE column \"%s\" not referenced by COPY", name)
		}
	}
	if out.Binary {
		return formats{1}, nil
	}
	return nil, nil
}
