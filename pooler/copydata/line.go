package copydata

import "bytes"

// line cuts a line of text or csv off, by the rules of CopyReadLineText in Postgres.
func (s *Splitter) line() (Row, bool, error) {
	for {
		s.skip()
		if s.scan >= len(s.buf) {
			return s.lastLine()
		}
		c := s.buf[s.scan]
		if (c == '\r' || c == '\\') && s.scan+1 == len(s.buf) && !s.eof {
			return Row{}, false, nil
		}
		if s.format.CSV {
			s.inQuotes(c)
		}
		switch {
		case c == '\r' && !s.quoted:
			return s.carriageReturn()
		case c == '\n' && !s.quoted:
			if s.newline == cr || s.newline == crlf {
				return Row{}, false, s.literal("newline", `\n`)
			}
			s.newline = lf
			return s.endLine(1), true, nil
		case c == '\\' && s.at(1) == '.' && (!s.format.CSV || s.scan == s.start && s.format.Marker):
			held, found, err := s.marker()
			if held || err != nil {
				return Row{}, false, err
			}
			if found {
				return s.endMarked(), true, nil
			}
			s.scan++
		case c == '\\' && !s.format.CSV:
			s.scan = min(s.scan+2, len(s.buf))
		default:
			s.scan++
		}
	}
}

// skip goes on to the next byte that may mean something.
func (s *Splitter) skip() {
	from := s.scan
	rest := s.buf[from:]
	switch {
	case !s.format.CSV:
		s.scan += indexOf(rest, '\n', '\\', '\r')
	case s.quoted:
		s.scan += indexOf(rest, s.format.Quote, s.format.Escape, '\n', '\r')
	case from == s.start && len(rest) > 0 && rest[0] == '\\':
	default:
		s.scan += indexOf(rest, '\n', s.format.Quote, '\r')
	}
	if s.scan > from {
		s.escape = false
	}
}

// at gives the byte n places on, 0 at the end of the data.
func (s *Splitter) at(n int) byte {
	if s.scan+n < len(s.buf) {
		return s.buf[s.scan+n]
	}
	return 0
}

// inQuotes follows quotes and escapes.
func (s *Splitter) inQuotes(c byte) {
	f := &s.format
	escape := f.Escape
	if escape == f.Quote { // a pair of quotes toggles twice
		escape = 0
	}
	if s.quoted && c == escape {
		s.escape = !s.escape
	}
	if c == f.Quote && !s.escape {
		s.quoted = !s.quoted
	}
	if c != escape {
		s.escape = false
	}
	counted := byte('\r')
	if s.newline == lf {
		counted = '\n'
	}
	if s.quoted && c == counted {
		s.lines++
	}
}

// carriageReturn takes a \r that may end the line.
func (s *Splitter) carriageReturn() (Row, bool, error) {
	switch {
	case s.newline == lf, s.newline == crlf && s.at(1) != '\n':
		return Row{}, false, s.literal("carriage return", `\r`)
	case s.newline == cr:
	case s.at(1) == '\n':
		s.newline = crlf
		return s.endLine(2), true, nil
	default:
		s.newline = cr
	}
	return s.endLine(1), true, nil
}

// literal is the error of a newline of another kind than the first line's.
func (s *Splitter) literal(name, escaped string) error {
	if s.format.CSV {
		return badFormat("unquoted %s found in data", name).WithHint("Use quoted CSV field to represent %s.", name)
	}
	return badFormat("literal %s found in data", name).WithHint("Use \"%s\" to represent %s.", escaped, name)
}

// endLine cuts the line whose newline, of n bytes, stands at scan.
func (s *Splitter) endLine(n int) Row {
	s.scan += n
	return s.cutLine(Data, n)
}

func (s *Splitter) cutLine(kind Kind, newline int) Row {
	row := s.cut(Row{Kind: kind, Newline: newline, Lines: 1 + s.lines})
	s.lines, s.quoted, s.escape = 0, false, false
	if !s.begun {
		s.begun = true
		row.Kind = Header
		return row
	}
	s.readField(&row, row.Raw[:len(row.Raw)-newline])
	return row
}

// lastLine gives what is left without a newline when no more data comes.
func (s *Splitter) lastLine() (Row, bool, error) {
	if !s.eof || s.start == len(s.buf) {
		return Row{}, false, nil
	}
	return s.cutLine(Data, 0), true, nil
}

// marker tells whether an end marker stands at scan, where \. was found; held: more data will tell.
func (s *Splitter) marker() (held, found bool, err error) {
	n := 2
	if s.newline == crlf {
		n = 3
	}
	if s.scan+n >= len(s.buf) && !s.eof {
		return true, false, nil
	}
	c := s.at(n)
	switch {
	case n == 3 && s.at(2) == '\n':
		if !s.format.CSV {
			err = badFormat("end-of-copy marker does not match previous newline style")
		}
		return false, false, err
	case n == 3 && s.at(2) != '\r', c != '\r' && c != '\n':
		if !s.format.CSV {
			err = badFormat("end-of-copy marker corrupt")
		}
		return false, false, err
	case s.newline == cr && c != '\r', (s.newline == lf || s.newline == crlf) && c != '\n':
		return false, false, badFormat("end-of-copy marker does not match previous newline style")
	}
	return false, true, nil
}

// endMarked cuts the line that ends with the marker at scan.
func (s *Splitter) endMarked() Row {
	s.done = true
	before := s.buf[s.start:s.scan]
	s.scan += 3
	if s.newline == crlf {
		s.scan++
	}
	row := s.cut(Row{Kind: End, Lines: 1, Newline: s.scan - s.start - len(before)})
	if len(before) > 0 && s.begun {
		row.Kind = Last
		s.readField(&row, before)
	}
	return row
}

// readField reads the field that is asked for.
func (s *Splitter) readField(row *Row, line []byte) {
	switch {
	case s.format.Field < 0:
	case s.format.CSV:
		s.csvField(row, line)
	default:
		s.textField(row, line)
	}
}

func (s *Splitter) textField(row *Row, line []byte) {
	for range s.format.Field {
		end := s.textEnd(line)
		if end == len(line) {
			row.Missing = true
			return
		}
		line = line[end+1:]
	}
	raw := line[:s.textEnd(line)]
	if string(raw) == s.format.Null {
		return
	}
	row.Field = raw[:len(raw):len(raw)]
	if bytes.IndexByte(raw, '\\') >= 0 {
		s.value = appendUnescaped(s.value[:0], raw)
		row.Field = s.value
	}
	if row.Field == nil {
		row.Field = []byte{}
	}
}

// textEnd gives the place of the delimiter, or the end of the line.
func (s *Splitter) textEnd(line []byte) int {
	at := 0
	for {
		n := indexOf(line[at:], s.format.Delimiter, '\\')
		at += n
		if at == len(line) || line[at] != '\\' {
			return at
		}
		if at += 2; at > len(line) {
			return len(line)
		}
	}
}

// appendUnescaped takes the backslashes out of a field of the text format.
func appendUnescaped(dst, raw []byte) []byte {
	for i := 0; i < len(raw); i++ {
		c := raw[i]
		if c != '\\' {
			dst = append(dst, c)
			continue
		}
		if i++; i == len(raw) {
			break
		}
		switch c = raw[i]; c {
		case 'b':
			c = '\b'
		case 'f':
			c = '\f'
		case 'n':
			c = '\n'
		case 'r':
			c = '\r'
		case 't':
			c = '\t'
		case 'v':
			c = '\v'
		case 'x':
			var n int
			if c, n = digits(raw[i+1:], 16, 2); n == 0 {
				c = 'x'
			}
			i += n
		case '0', '1', '2', '3', '4', '5', '6', '7':
			var n int
			c, n = digits(raw[i:], 8, 3)
			i += n - 1
		}
		dst = append(dst, c)
	}
	return dst
}

// digits reads up to most digits of a base.
func digits(b []byte, base, most int) (value byte, n int) {
	for n < len(b) && n < most {
		d := digit(b[n])
		if d >= base {
			break
		}
		value = value*byte(base) + byte(d)
		n++
	}
	return value, n
}

func digit(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	}
	return 99
}

func (s *Splitter) csvField(row *Row, line []byte) {
	f := &s.format
	for n := 0; ; n++ {
		end, quoted := s.csvEnd(line, n == f.Field)
		if n < f.Field {
			if end == len(line) {
				row.Missing = true
				return
			}
			line = line[end+1:]
			continue
		}
		null := !quoted && string(line[:end]) == f.Null
		if null && f.ForceNotNull {
			s.value, null = append(s.value[:0], f.Null...), false
		} else if !null && f.ForceNull && string(s.value) == f.Null {
			null = true
		}
		if !null {
			row.Field = s.value
		}
		return
	}
}

// csvEnd gives the end of the field at the beginning of line, and whether it has quotes. With keep, its value is in value.
func (s *Splitter) csvEnd(line []byte, keep bool) (end int, quoted bool) {
	f := &s.format
	if keep {
		if s.value = s.value[:0]; s.value == nil {
			s.value = []byte{}
		}
	}
	inside := false
	for i := 0; i < len(line); i++ {
		c := line[i]
		switch {
		case !inside && c == f.Delimiter:
			return i, quoted
		case !inside && c == f.Quote:
			inside, quoted = true, true
			continue
		case inside && c == f.Escape && i+1 < len(line) && (line[i+1] == f.Escape || line[i+1] == f.Quote):
			i++
			c = line[i]
		case inside && c == f.Quote:
			inside = false
			continue
		}
		if keep {
			s.value = append(s.value, c)
		}
	}
	return len(line), quoted
}
