package backend

import (
	"bytes"
	"encoding/binary"
	"sync"
	"sync/atomic"

	"neki/internal/pgerr"
)

// Types of a database have OIDs of their own on each shard, as far as users have made them. Clients know those of one shard,
// the home. Types puts these in place of another shard's in what its servers say, also inside of values in binary form, and
// back in what they are told. It is safe for concurrent use.
type Types struct {
	load func() (*TypeMap, error)

	now atomic.Pointer[TypeMap]
	mu  sync.Mutex // of loading
}

// NewTypes makes the Types of one shard's database. load reads the map when it is needed, and again when it proves old.
func NewTypes(load func() (*TypeMap, error)) *Types { return &Types{load: load} }

// Forget has the map read again when it is needed next.
func (t *Types) Forget() { t.now.Store(nil) }

// TypeMap is what a database's own types and relations are called on a shard, and at home.
type TypeMap struct {
	types     map[uint32]*MappedType // by the shard's OIDs
	relations map[uint32]uint32
	back      map[uint32]uint32 // types, by the home's
}

// MappedType is one type as the shard has it.
type MappedType struct {
	Here, Home uint32 // OIDs; Home 0: it is not there
	Array      bool   // of the type Elem
	Elem       uint32 // of an array; what a range, a multirange or a domain is over
	Range      bool   // or a multirange's ranges
	Multi      bool   // multirange
	Composite  bool   // its fields may change; a value tells which it has

	embeds bool // values in binary form have OIDs in them that differ
}

// NewTypeMap makes a map of types and relations; the latter by their OIDs here, with those at home.
func NewTypeMap(types []MappedType, relations map[uint32]uint32) *TypeMap {
	m := &TypeMap{types: make(map[uint32]*MappedType, len(types)), relations: relations, back: make(map[uint32]uint32, len(types))}
	for i := range types {
		t := &types[i]
		m.types[t.Here] = t
		if t.Home != 0 {
			m.back[t.Home] = t.Here
		}
	}
	for changed := true; changed; { // as far down as types lie in each other
		changed = false
		for _, t := range m.types {
			if !t.embeds && m.looksInto(t) {
				t.embeds, changed = true, true
			}
		}
	}
	return m
}

// looksInto reports whether values of a type have something in them to be put in another's place.
func (m *TypeMap) looksInto(t *MappedType) bool {
	return t.Composite || t.Array && t.Elem >= firstOwnOID || t.Elem != 0 && m.embeds(t.Elem)
}

// OIDs below are the same wherever the same version of Postgres was set up; users' objects have those from here on.
const firstOwnOID = 16384

// Types of Postgres's own whose values have OIDs in them.
const (
	regclassOID      = 2205
	regtypeOID       = 2206
	regclassArrayOID = 2210
	regtypeArrayOID  = 2211
	recordOID        = 2249
	recordArrayOID   = 2287
)

func (m *TypeMap) embeds(oid uint32) bool {
	switch oid {
	case recordOID, recordArrayOID, regclassOID, regtypeOID, regclassArrayOID, regtypeArrayOID:
		return true
	}
	t := m.types[oid]
	return t != nil && t.embeds
}

// current gives the map, read now if it is not known.
func (t *Types) current() (*TypeMap, error) {
	if m := t.now.Load(); m != nil {
		return m, nil
	}
	return t.reload(nil)
}

// reload reads the map again, unless somebody else has since old was in use.
func (t *Types) reload(old *TypeMap) (*TypeMap, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if m := t.now.Load(); m != nil && m != old {
		return m, nil
	}
	m, err := t.load()
	if err != nil {
		return nil, pgerr.New(pgerr.ConnectionFailure, "the types of the shard can't be read: %v", err)
	}
	t.now.Store(m)
	return m, nil
}

// home gives a map that knows a type, and the type's OID at home.
func (t *Types) home(m *TypeMap, oid uint32) (*TypeMap, uint32, error) {
	if oid < firstOwnOID {
		return m, oid, nil
	}
	if x := m.types[oid]; x != nil && x.Home != 0 {
		return m, x.Home, nil
	}
	m, err := t.reload(m)
	if err != nil {
		return m, 0, err
	}
	if x := m.types[oid]; x != nil && x.Home != 0 {
		return m, x.Home, nil
	}
	return m, 0, errOwnType(oid)
}

func errOwnType(oid uint32) error {
	return pgerr.New(pgerr.NotImplemented, "not implemented: [126] a type that the authoritative shard does not have, or not yet").
		WithDetail("Its OID on the shard is %d. Clients get types by the OIDs of the authoritative shard.", oid).
		WithHint("Commit the transaction that makes the type; a type that was made on one shard alone has to be made on all.")
}

// rowShape is what rows of a result hold: by column, the shard's type whose values must be looked into; 0 for others.
// nil: nothing has to be.
type rowShape []uint32

// describe puts the home's OIDs into the body of a RowDescription. shape is about the values as they come, in the formats
// that the message has; embeds says that there would be something to look into in binary form.
func (t *Types) describe(body []byte) (shape rowShape, embeds bool, err error) {
	m, err := t.current()
	if err != nil || len(body) < 2 {
		return nil, false, err
	}
	n := int(binary.BigEndian.Uint16(body))
	at := 2
	for i := range n {
		column := nextColumn(body, &at)
		if column == nil {
			return nil, false, errShortMessage
		}
		m.table(column)
		oid := binary.BigEndian.Uint32(column[6:])
		var home uint32
		if m, home, err = t.home(m, oid); err != nil {
			return nil, false, err
		}
		binary.BigEndian.PutUint32(column[6:], home)
		if m.embeds(oid) {
			embeds = true
			if binary.BigEndian.Uint16(column[16:]) == 1 {
				if shape == nil {
					shape = make(rowShape, n)
				}
				shape[i] = oid
			}
		}
	}
	return shape, embeds, nil
}

var errShortMessage = pgerr.New(pgerr.ProtocolViolation, "a shard sent a message that ends too early")

// nextColumn gives what the column at body[*at:] of a RowDescription has behind its name: the table's OID, the column's number,
// the type's OID, its size and modifier, and the format. *at is then where the next column begins. nil: the message is too short.
func nextColumn(body []byte, at *int) []byte {
	const size = 18
	end := bytes.IndexByte(body[*at:], 0)
	if end < 0 || len(body) < *at+end+1+size {
		return nil
	}
	*at += end + 1 + size
	return body[*at-size : *at]
}

// table puts the home's OID of a table in the place of the shard's; a column's number is behind it.
func (m *TypeMap) table(column []byte) {
	table := binary.BigEndian.Uint32(column)
	if table < firstOwnOID {
		return
	}
	home := m.relations[table] // 0, of no table, is all that can be said of one that is not known
	binary.BigEndian.PutUint32(column, home)
	if home == 0 {
		binary.BigEndian.PutUint16(column[4:], 0)
	}
}

// plain reports whether the columns of the body of a RowDescription have types of Postgres's own alone, without OIDs in
// their values, so that tables is all that has to be done with it. It changes nothing. m may be nil: nothing is plain then.
func (m *TypeMap) plain(body []byte) bool {
	if m == nil || len(body) < 2 {
		return false
	}
	at := 2
	for range binary.BigEndian.Uint16(body) {
		column := nextColumn(body, &at)
		if column == nil {
			return false
		}
		if oid := binary.BigEndian.Uint32(column[6:]); oid >= firstOwnOID || m.embeds(oid) {
			return false
		}
	}
	return true
}

// tables puts the home's OIDs of tables into the body of a RowDescription that is plain.
func (m *TypeMap) tables(body []byte) {
	at := 2
	for range binary.BigEndian.Uint16(body) {
		m.table(nextColumn(body, &at))
	}
}

// parameters puts the home's OIDs into the body of a ParameterDescription.
func (t *Types) parameters(body []byte) error {
	m, err := t.current()
	if err != nil {
		return err
	}
	for at := 2; at+4 <= len(body); at += 4 {
		var home uint32
		if m, home, err = t.home(m, binary.BigEndian.Uint32(body[at:])); err != nil {
			return err
		}
		binary.BigEndian.PutUint32(body[at:], home)
	}
	return nil
}

// row puts the home's OIDs into the values of the body of a DataRow.
func (t *Types) row(body []byte, shape rowShape) error {
	m, err := t.current()
	if err != nil || len(body) < 2 {
		return err
	}
	v := valueWalk{types: t, m: m}
	body = body[2:]
	for _, oid := range shape {
		if len(body) < 4 {
			return errShortMessage
		}
		size := int32(binary.BigEndian.Uint32(body))
		body = body[4:]
		if size < 0 {
			continue
		}
		if int(size) > len(body) {
			return errShortMessage
		}
		if oid != 0 {
			if err := v.value(oid, body[:size]); err != nil {
				return err
			}
		}
		body = body[size:]
	}
	return nil
}

// toShard puts the shard's OIDs in place of the home's in the Parse messages among out, which are whole messages. It copies
// out when it changes something, for prepared statements are shared.
func (t *Types) toShard(out []byte) ([]byte, error) {
	copied := false
	for at := 0; at+5 <= len(out); {
		size, err := frameSize(out[at:])
		if err != nil || at+size > len(out) {
			return out, nil // the beginning of a message: of none that has types
		}
		if out[at] == 'P' {
			for from, end := parseTypes(out[at:at+size])+at, at+size; from+4 <= end; from += 4 {
				oid := binary.BigEndian.Uint32(out[from:])
				if oid < firstOwnOID {
					continue
				}
				here, err := t.here(oid)
				if err != nil {
					return nil, err
				}
				if !copied {
					out, copied = bytes.Clone(out), true
				}
				binary.BigEndian.PutUint32(out[from:], here)
			}
		}
		at += size
	}
	return out, nil
}

// parseTypes gives where the parameter types of a Parse message begin.
func parseTypes(frame []byte) int {
	at := 5
	for range 2 { // the name and the text
		end := bytes.IndexByte(frame[at:], 0)
		if end < 0 {
			return len(frame)
		}
		at += end + 1
	}
	return at + 2
}

// here gives the shard's OID of a type of the home's.
func (t *Types) here(oid uint32) (uint32, error) {
	m, err := t.current()
	if err != nil {
		return 0, err
	}
	if here, ok := m.back[oid]; ok {
		return here, nil
	}
	if m, err = t.reload(m); err != nil {
		return 0, err
	}
	if here, ok := m.back[oid]; ok {
		return here, nil
	}
	return oid, nil // no type at home either: the shard says so
}
