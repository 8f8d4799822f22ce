package fanout

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"unicode/utf8"

	"neki/internal/datum"
	"neki/internal/pgerr"
)

// rawSize is about how many bytes of rows a RawMerge gives at once.
const rawSize = 32 << 10

// RawMerge gives the rows of legs that are each in the order of keys, in that order, as the messages in which they came:
// nothing but the keys is looked at. Of equal rows those of the first leg come first. It is a tournament of the legs, in
// which a row costs as many comparisons as there are rounds.
type RawMerge struct {
	legs    *Legs
	width   int // columns of a row
	pass    int // of which the first pass ones are given
	walked  int // columns that must be gone through to find the keys, and where to cut
	format  Format
	keys    []Key
	session *datum.Session

	inputs []rawInput
	rounds []int // [0] is the input with the next row; the others are the losers of the matches above them
	cells  [][]byte
	begun  bool
}

// rawInput is a leg with the row that is its next.
type rawInput struct {
	cursor
	message []byte
	cut     int // where its columns end that are given
	keys    []rawKey
	over    bool
}

// rawKey is a key of a row: in n, if its type is an integer; in text, if it is ordered by bytes; else in value.
type rawKey struct {
	null  bool
	n     int64
	text  []byte
	value datum.Datum
}

// MergeRaw makes a RawMerge, of rows of width columns in the given format, of which the first pass ones are given.
func MergeRaw(legs *Legs, width, pass int, format Format, keys []Key, session *datum.Session, other func(Piece) error) *RawMerge {
	m := &RawMerge{legs: legs, width: width, pass: pass, format: format, keys: keys, session: session}
	for _, k := range keys {
		m.walked = max(m.walked, k.Column+1)
	}
	if pass < width {
		m.walked = max(m.walked, pass)
	}
	m.cells = make([][]byte, m.walked)
	for i := range legs.Len() {
		m.inputs = append(m.inputs, rawInput{
			cursor: cursor{legs: legs, which: i, other: orIgnore(other)}, keys: make([]rawKey, len(keys)),
		})
	}
	return m
}

// Next gives the messages of the next rows, which the caller may keep, and their number; io.EOF after the last.
func (m *RawMerge) Next(ctx context.Context) (rows []byte, n int, err error) {
	if !m.begun {
		if err := m.begin(ctx); err != nil {
			return nil, 0, err
		}
	}
	for len(m.inputs) > 0 {
		first := m.rounds[0]
		in := &m.inputs[first]
		if in.over || n > 0 && len(rows)+len(in.message) > cap(rows) {
			break
		}
		if rows == nil {
			rows = make([]byte, 0, max(rawSize, len(in.message)))
		}
		rows = m.appendRow(rows, in)
		n++
		if err := m.advance(ctx, in); err != nil {
			return nil, 0, err
		}
		m.replay(first)
	}
	if n == 0 {
		return nil, 0, io.EOF
	}
	return rows, n, nil
}

// appendRow appends the row's message, with the columns that are given.
func (m *RawMerge) appendRow(rows []byte, in *rawInput) []byte {
	if m.pass >= m.width {
		return append(rows, in.message...)
	}
	start := len(rows)
	rows = append(rows, in.message[:in.cut]...)
	binary.BigEndian.PutUint32(rows[start+1:], uint32(in.cut-1))
	binary.BigEndian.PutUint16(rows[start+5:], uint16(m.pass))
	return rows
}

func (m *RawMerge) begin(ctx context.Context) error {
	m.begun = true
	for i := range m.inputs {
		if err := m.advance(ctx, &m.inputs[i]); err != nil {
			return err
		}
	}
	m.rounds = make([]int, max(1, len(m.inputs)))
	if len(m.inputs) > 0 {
		m.rounds[0] = m.play(1)
	}
	return nil
}

// play holds the matches at a node and under it, and gives the winner. The inputs are the leaves, behind the matches.
func (m *RawMerge) play(node int) (winner int) {
	if node >= len(m.inputs) {
		return node - len(m.inputs)
	}
	a, b := m.play(2*node), m.play(2*node+1)
	if m.less(b, a) {
		a, b = b, a
	}
	m.rounds[node] = b
	return a
}

// replay holds the matches again of the input that won, which has another row now.
func (m *RawMerge) replay(i int) {
	for node := (i + len(m.inputs)) / 2; node >= 1; node /= 2 {
		if m.less(m.rounds[node], i) {
			m.rounds[node], i = i, m.rounds[node]
		}
	}
	m.rounds[0] = i
}

func (m *RawMerge) less(i, j int) bool {
	a, b := &m.inputs[i], &m.inputs[j]
	if a.over || b.over {
		return !a.over || b.over && i < j
	}
	for at := range m.keys {
		if c := m.keys[at].compareRaw(&a.keys[at], &b.keys[at]); c != 0 {
			return c < 0
		}
	}
	return i < j
}

func (k *Key) compareRaw(a, b *rawKey) (c int) {
	switch {
	case a.null && b.null:
		return 0
	case a.null || b.null:
		if a.null == k.NullsFirst {
			return -1
		}
		return 1
	}
	switch k.OID {
	case datum.Int2OID, datum.Int4OID, datum.Int8OID, datum.OIDOID:
		switch {
		case a.n < b.n:
			c = -1
		case a.n > b.n:
			c = 1
		}
	case datum.TextOID, datum.VarcharOID:
		c = bytes.Compare(a.text, b.text)
	default:
		return k.compare(a.value, b.value)
	}
	if k.Desc {
		return -c
	}
	return c
}

// advance reads the input's next row.
func (m *RawMerge) advance(ctx context.Context, in *rawInput) error {
	message, err := in.frame(ctx)
	if err == io.EOF {
		in.over, in.message = true, nil
		return nil
	}
	if err != nil {
		return err
	}
	in.message = message
	if err := m.walk(in); err != nil {
		return err
	}
	for i := range m.keys {
		k := &m.keys[i]
		cell := m.cells[k.Column]
		if in.keys[i].null = cell == nil; cell == nil {
			continue
		}
		if err := m.decode(k, &in.keys[i], cell); err != nil {
			return err
		}
	}
	return nil
}

// walk finds the row's first columns, nil for NULL, and where those end that are given.
func (m *RawMerge) walk(in *rawInput) error {
	row := in.message
	if len(row) < 7 || int(binary.BigEndian.Uint16(row[5:])) < m.width {
		return errRow
	}
	at := 7
	for i := range m.walked {
		if len(row)-at < 4 {
			return errRow
		}
		size := int(int32(binary.BigEndian.Uint32(row[at:])))
		at += 4
		switch {
		case size == -1:
			m.cells[i] = nil
		case size < 0 || size > len(row)-at:
			return errRow
		default:
			m.cells[i] = row[at : at+size : at+size]
			at += size
		}
		if i == m.pass-1 {
			in.cut = at
		}
	}
	return nil
}

// decode reads a key that is not NULL.
func (m *RawMerge) decode(k *Key, to *rawKey, cell []byte) (err error) {
	inBinary := k.Column < len(m.format) && m.format[k.Column]
	switch k.OID {
	case datum.Int2OID, datum.Int4OID, datum.Int8OID, datum.OIDOID:
		var ok bool
		if to.n, ok = rawInt(k.OID, cell, inBinary); !ok {
			return errRow
		}
	case datum.TextOID, datum.VarcharOID:
		if !utf8.Valid(cell) {
			return pgerr.New(pgerr.CharacterNotInRepertoire, "invalid byte sequence for encoding \"UTF8\"").
				WithDetail("Rows of several shards are sorted by a text that is in another encoding.").
				WithHint("Set client_encoding to UTF8.")
		}
		to.text = cell
	default:
		value := datum.WireText(cell)
		if inBinary {
			value = datum.WireBinary(cell)
		}
		to.value, err = value.Decode(k.OID, m.session)
	}
	return err
}

// rawInt reads an integer as a server sends it.
func rawInt(oid uint32, cell []byte, inBinary bool) (n int64, ok bool) {
	if !inBinary {
		return textInt(cell)
	}
	switch {
	case oid == datum.OIDOID && len(cell) == 4:
		return int64(binary.BigEndian.Uint32(cell)), true
	case oid == datum.Int2OID && len(cell) == 2:
		return int64(int16(binary.BigEndian.Uint16(cell))), true
	case oid == datum.Int4OID && len(cell) == 4:
		return int64(int32(binary.BigEndian.Uint32(cell))), true
	case oid == datum.Int8OID && len(cell) == 8:
		return int64(binary.BigEndian.Uint64(cell)), true
	}
	return 0, false
}

// textInt reads digits behind an optional sign. The lowest int8 is one below the negative of the highest, so digits are
// taken off, not added up.
func textInt(cell []byte) (n int64, ok bool) {
	digits, negative := cell, false
	if len(cell) > 0 && cell[0] == '-' {
		digits, negative = cell[1:], true
	}
	if len(digits) == 0 || len(digits) > 19 {
		return 0, false
	}
	for _, c := range digits {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 - int64(c-'0')
	}
	if negative {
		return n, true
	}
	return -n, true
}
