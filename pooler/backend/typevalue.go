package backend

import (
	"encoding/binary"
)

// valueWalk puts the home's OIDs into values in binary form. They have the same length then.
//
// The forms are those of array_send, record_send, range_send and multirange_send: see
// https://www.postgresql.org/docs/current/protocol-overview.html#PROTOCOL-FORMAT-CODES
type valueWalk struct {
	types *Types
	m     *TypeMap
}

// value looks into a value of one of the shard's types.
func (w *valueWalk) value(oid uint32, b []byte) error {
	switch oid {
	case recordOID:
		return w.record(b)
	case recordArrayOID, regclassArrayOID, regtypeArrayOID:
		return w.array(b)
	case regclassOID:
		return w.regclass(b)
	case regtypeOID:
		return w.replace(b)
	}
	t := w.m.types[oid]
	if t == nil || !t.embeds {
		return nil
	}
	switch {
	case t.Array:
		return w.array(b)
	case t.Composite:
		return w.record(b)
	case t.Range:
		return w.bounds(t.Elem, b)
	case t.Multi:
		return w.ranges(t.Elem, b)
	}
	return w.value(t.Elem, b) // a domain
}

// replace puts the home's OID in place of that at the start of b.
func (w *valueWalk) replace(b []byte) error {
	if len(b) < 4 {
		return errShortMessage
	}
	m, home, err := w.types.home(w.m, binary.BigEndian.Uint32(b))
	if err != nil {
		return err
	}
	w.m = m
	binary.BigEndian.PutUint32(b, home)
	return nil
}

func (w *valueWalk) regclass(b []byte) error {
	if len(b) < 4 {
		return errShortMessage
	}
	oid := binary.BigEndian.Uint32(b)
	if oid < firstOwnOID {
		return nil
	}
	home := w.m.relations[oid]
	if home == 0 {
		m, err := w.types.reload(w.m)
		if err != nil {
			return err
		}
		if w.m = m; m.relations[oid] == 0 {
			return errOwnType(oid)
		}
		home = m.relations[oid]
	}
	binary.BigEndian.PutUint32(b, home)
	return nil
}

// array: dimensions, flags, the elements' type, each dimension's size and lower bound, the elements.
func (w *valueWalk) array(b []byte) error {
	if len(b) < 12 {
		return errShortMessage
	}
	dims := int(int32(binary.BigEndian.Uint32(b)))
	elem := binary.BigEndian.Uint32(b[8:])
	if err := w.replace(b[8:]); err != nil {
		return err
	}
	if dims < 0 || dims > 6 || len(b) < 12+8*dims {
		return errShortMessage
	}
	if !w.m.embeds(elem) {
		return nil
	}
	return w.each(b[12+8*dims:], func(v []byte) error { return w.value(elem, v) })
}

// each calls do with values that have their length before them; -1 is NULL.
func (w *valueWalk) each(b []byte, do func([]byte) error) error {
	for len(b) > 0 {
		v, rest, err := sized(b)
		if err != nil {
			return err
		}
		if v != nil {
			if err := do(v); err != nil {
				return err
			}
		}
		b = rest
	}
	return nil
}

// sized takes a value with its length from the start of b; nil: NULL.
func sized(b []byte) (v, rest []byte, err error) {
	if len(b) < 4 {
		return nil, nil, errShortMessage
	}
	n := int32(binary.BigEndian.Uint32(b))
	b = b[4:]
	if n < 0 {
		return nil, b, nil
	}
	if int(n) > len(b) {
		return nil, nil, errShortMessage
	}
	return b[:n:n], b[n:], nil
}

// record: how many fields, and the type and the value of each.
func (w *valueWalk) record(b []byte) error {
	if len(b) < 4 {
		return errShortMessage
	}
	b = b[4:]
	for len(b) > 0 {
		if len(b) < 8 {
			return errShortMessage
		}
		oid := binary.BigEndian.Uint32(b)
		if err := w.replace(b); err != nil {
			return err
		}
		v, rest, err := sized(b[4:])
		if err != nil {
			return err
		}
		if v != nil {
			if err := w.value(oid, v); err != nil {
				return err
			}
		}
		b = rest
	}
	return nil
}

// bounds: flags, and those bounds that the range has.
func (w *valueWalk) bounds(elem uint32, b []byte) error {
	if len(b) < 1 {
		return errShortMessage
	}
	return w.each(b[1:], func(v []byte) error { return w.value(elem, v) })
}

// ranges: how many, and each.
func (w *valueWalk) ranges(oid uint32, b []byte) error {
	if len(b) < 4 {
		return errShortMessage
	}
	return w.each(b[4:], func(v []byte) error { return w.value(oid, v) })
}
