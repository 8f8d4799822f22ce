package copydata

import (
	"bytes"

	"neki/internal/pgerr"
)

// Format is how the data is written, and which field of a row is read.
type Format struct {
	Binary, CSV   bool
	Delimiter     byte
	Quote, Escape byte // of CSV
	Null          string
	Header        bool // the first line is none of a row's
	Marker        bool // CSV: a line of \. alone ends the data, as it does up to Postgres 17

	Field        int  // the field that is read, from 0; -1: none
	ForceNotNull bool // of CSV, of that field
	ForceNull    bool
}

// Kind says what a Row is.
type Kind uint8

// The kinds of rows.
const (
	Data   Kind = iota
	Header      // what comes before the first row: the header line, or the head of the binary format
	Last        // Data whose line has the end marker: what follows does not count
	End         // the end marker alone, or the trailer of the binary format
	Broken      // the rest of data that can't be read on: the server is to say why
)

// Row is a row as it was written.
type Row struct {
	Kind    Kind
	Raw     []byte // with the newline
	Newline int    // its length, of Last with the marker; 0 for none
	Lines   int    // how many lines the server counts in it

	Field   []byte // the field's value without quotes and escapes; nil when it is NULL
	Missing bool   // the row has not that many fields
}

// MaxRow bounds a row, which is held whole.
const MaxRow = 256 << 20

// newline is what ends a line: the first line of the data decides.
type newline uint8

const (
	unknown newline = iota
	lf
	cr
	crlf
)

// Splitter cuts a stream into rows.
type Splitter struct {
	format Format
	buf    []byte
	start  int // of the row at hand
	scan   int // up to where it was looked at
	eof    bool
	begun  bool // the header is over
	done   bool // the end marker has come
	broken bool

	newline newline
	quoted  bool // within quotes
	escape  bool // behind an escape character there
	lines   int  // within the row

	fields         int    // of a binary row: that are left; -1 before its count
	number         int    // ... and the one that comes next
	found, null    bool   // the field asked for
	keyAt, keySize int    // where it stands in the row
	value          []byte // room for a field without its escapes
}

// New makes a Splitter.
func New(f Format) *Splitter {
	return &Splitter{format: f, begun: !f.Header && !f.Binary, fields: -1}
}

// Write adds data. It invalidates the rows given before.
func (s *Splitter) Write(p []byte) {
	if s.start == len(s.buf) {
		s.buf, s.scan, s.start = s.buf[:0], s.scan-s.start, 0
	} else if s.start > 0 && s.start > len(s.buf)/2 {
		n := copy(s.buf, s.buf[s.start:])
		s.buf, s.scan, s.start = s.buf[:n], s.scan-s.start, 0
	}
	s.buf = append(s.buf, p...)
}

// Next gives the next whole row; ok is false when more data is needed.
func (s *Splitter) Next() (row Row, ok bool, err error) {
	if s.done {
		return s.afterEnd()
	}
	if len(s.buf)-s.start > MaxRow {
		return Row{}, false, pgerr.New(pgerr.ProgramLimitExceeded, "a row of COPY data is longer than %d bytes", MaxRow).
			WithDetail("The gateway holds a row until it is whole.")
	}
	switch {
	case s.broken:
		return s.rest()
	case s.format.Binary:
		return s.tuple()
	}
	return s.line()
}

// Finish says that no more data comes; Next gives what is left.
func (s *Splitter) Finish() { s.eof = true }

// afterEnd drops what comes behind the end marker, as the server does; binary data has nothing there.
func (s *Splitter) afterEnd() (Row, bool, error) {
	if s.format.Binary && s.start < len(s.buf) {
		return Row{}, false, badFormat("received copy data after EOF marker")
	}
	s.start, s.scan = len(s.buf), len(s.buf)
	return Row{}, false, nil
}

// rest gives all that is left.
func (s *Splitter) rest() (Row, bool, error) {
	s.broken = true
	if s.start == len(s.buf) {
		return Row{}, false, nil
	}
	s.scan = len(s.buf)
	return s.cut(Row{Kind: Broken}), true, nil
}

// cut takes the row up to scan.
func (s *Splitter) cut(row Row) Row {
	row.Raw = s.buf[s.start:s.scan:s.scan]
	s.start = s.scan
	return row
}

func badFormat(format string, args ...any) *pgerr.Error {
	return pgerr.New(badCopyFileFormat, format, args...)
}

const badCopyFileFormat = "22P04"

// indexOf gives the first place of any of the bytes in b, len(b) when there is none.
func indexOf(b []byte, any ...byte) int {
	n := len(b)
	for _, c := range any {
		if i := bytes.IndexByte(b[:n], c); i >= 0 {
			n = i
		}
	}
	return n
}
