package copydata

import (
	"encoding/binary"
)

// signature begins data in the binary format; flags and the length of an extension follow.
const signature = "PGCOPY\n\xff\r\n\x00"

// tuple cuts a row of the binary format off.
func (s *Splitter) tuple() (Row, bool, error) {
	if !s.begun {
		return s.head()
	}
	if s.fields < 0 {
		count, ok := s.take(2)
		if !ok {
			return s.short()
		}
		switch n := int(int16(binary.BigEndian.Uint16(count))); {
		case n == -1:
			s.done = true
			return s.cut(Row{Kind: End}), true, nil
		case n < 0:
			return s.rest()
		default:
			s.fields, s.number, s.found, s.null = n, 0, false, false
		}
	}
	for ; s.fields > 0; s.fields-- {
		if ok, broken := s.binaryField(); broken {
			return s.rest()
		} else if !ok {
			return s.short()
		}
	}
	s.fields = -1
	row := s.cut(Row{Kind: Data, Lines: 1})
	switch {
	case s.format.Field < 0:
	case !s.found:
		row.Missing = true
	case !s.null:
		row.Field = row.Raw[s.keyAt : s.keyAt+s.keySize : s.keyAt+s.keySize]
	}
	return row, true, nil
}

// take gives the next n bytes, when they are there.
func (s *Splitter) take(n int) ([]byte, bool) {
	if len(s.buf)-s.scan < n {
		return nil, false
	}
	s.scan += n
	return s.buf[s.scan-n : s.scan], true
}

// short waits for more; when none comes, what there is goes on as it is.
func (s *Splitter) short() (Row, bool, error) {
	if s.eof {
		return s.rest()
	}
	return Row{}, false, nil
}

// head cuts the signature, the flags and the extension off.
func (s *Splitter) head() (Row, bool, error) {
	const fixed = len(signature) + 8
	b := s.buf[s.start:]
	n := min(len(b), len(signature))
	if string(b[:n]) != signature[:n] {
		return s.rest()
	}
	if len(b) < fixed {
		return s.short()
	}
	extension := int32(binary.BigEndian.Uint32(b[fixed-4:]))
	if extension < 0 {
		return s.rest()
	}
	if len(b)-fixed < int(extension) {
		return s.short()
	}
	s.begun = true
	s.scan = s.start + fixed + int(extension)
	return s.cut(Row{Kind: Header}), true, nil
}

// binaryField goes past a field.
func (s *Splitter) binaryField() (ok, broken bool) {
	at := s.scan
	head, ok := s.take(4)
	if !ok {
		return false, false
	}
	size := int(int32(binary.BigEndian.Uint32(head)))
	if size < -1 {
		return false, true
	}
	if _, ok = s.take(max(size, 0)); !ok {
		s.scan = at
		return false, false
	}
	if s.number == s.format.Field {
		s.found, s.null = true, size < 0
		s.keyAt, s.keySize = at+4-s.start, max(size, 0)
	}
	s.number++
	return true, false
}
