package pooler

import (
	"encoding/binary"
	"io"
	"slices"
	"strconv"
	"strings"

	"neki/catalog"
	"neki/internal/datum"
	"neki/internal/pgerr"
	"neki/pooler/fanout"
	"neki/pooler/plan"
)

// request makes the messages that run a leg's SQL on a connection.
func (s *spread) request(sql string, f formats) []byte {
	out := appendParseOf(nil, sql, s.typesFor(sql))
	out = s.appendBind(out, f)
	out = append(out, 'D', 0, 0, 0, 6, 'P', 0)
	out = append(out, 'E', 0, 0, 0, 9, 0, 0, 0, 0, 0)
	return append(out, 'S', 0, 0, 0, 4)
}

// typesFor gives the types of the parameters for a leg's text. One that it does not mention, as a row of another shard's in
// a split INSERT, needs some type all the same: one that takes any value.
func (s *spread) typesFor(sql string) []uint32 {
	var types []uint32
	for i := range s.values.Params {
		if i < len(s.types) && s.types[i] != 0 && s.types[i] < firstUserOID || mentionsParameter(sql, i+1) {
			continue
		}
		if types == nil {
			types = make([]uint32, len(s.values.Params))
			copy(types, s.types)
		}
		types[i] = datum.TextOID
		if formatOf(s.values.Formats, i) == 1 {
			types[i] = datum.ByteaOID
		}
	}
	if types == nil {
		return s.types
	}
	return types
}

func mentionsParameter(sql string, n int) bool {
	name := "$" + strconv.Itoa(n)
	for rest := sql; ; {
		_, after, found := strings.Cut(rest, name)
		if !found {
			return false
		}
		if after == "" || after[0] < '0' || after[0] > '9' {
			return true
		}
		rest = after
	}
}

// appendParseOf appends a Parse of the unnamed statement.
func appendParseOf(dst []byte, sql string, types []uint32) []byte {
	start := len(dst)
	dst = append(dst, 'P', 0, 0, 0, 0, 0)
	dst = append(append(dst, sql...), 0)
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(types)))
	for _, oid := range types {
		dst = binary.BigEndian.AppendUint32(dst, oid)
	}
	return endMessage(dst, start)
}

// appendBind appends a Bind of the client's parameters.
func (s *spread) appendBind(dst []byte, f formats) []byte {
	v := s.values
	start := len(dst)
	dst = append(dst, 'B', 0, 0, 0, 0, 0, 0)
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(v.Formats)))
	for _, x := range v.Formats {
		dst = binary.BigEndian.AppendUint16(dst, uint16(x))
	}
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(v.Params)))
	for _, p := range v.Params {
		if p == nil {
			dst = append(dst, 0xff, 0xff, 0xff, 0xff)
			continue
		}
		dst = binary.BigEndian.AppendUint32(dst, uint32(len(p)))
		dst = append(dst, p...)
	}
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(f)))
	for _, x := range f {
		dst = binary.BigEndian.AppendUint16(dst, uint16(x))
	}
	return endMessage(dst, start)
}

// learnTypes finds the types of the parameters that the client has not named, when a leg's text may not tell them.
func (s *spread) learnTypes() error {
	if len(s.types) < len(s.values.OIDs) {
		s.types = slices.Clone(s.values.OIDs)
	}
	own := slices.ContainsFunc(s.plan.Spread.Legs, func(l plan.Leg) bool { return l.SQL != "" })
	if u := s.plan.Spread.Upkeep; len(s.lanes) == 0 || !own && (u == nil || u.Before == nil) {
		return nil
	}
	return s.describeTypes(s.lanes[0])
}

// describeTypes has a shard tell the types of the parameters, as far as the client has not named them.
func (s *spread) describeTypes(m *member) error {
	if len(s.types) < len(s.values.OIDs) {
		s.types = slices.Clone(s.values.OIDs)
	}
	if len(s.values.Params) == 0 || len(s.types) >= len(s.values.Params) && !slices.Contains(s.types, 0) {
		return nil
	}
	m.sc.SetUnnamed(0)
	out := appendParseOf(nil, string(s.values.Text), s.types)
	out = append(out, 'D', 0, 0, 0, 6, 'S', 0, 'S', 0, 0, 0, 4)
	legs := fanout.Start([]fanout.Request{{Conn: m.sc, Out: out}}, true)
	defer legs.Close()
	for {
		p, err := legs.Next(s.ctx)
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		case p.Kind == fanout.Failed:
			return p.Err
		case p.Kind == fanout.Parameter:
			s.types = s.types[:0]
			for at := 2; at+4 <= len(p.Data); at += 4 {
				s.types = append(s.types, binary.BigEndian.Uint32(p.Data[at:]))
			}
		}
	}
}

// evaluate computes the row of values that must be the same on all shards.
func (s *spread) evaluate(snap *catalog.Snapshot) error {
	e := s.plan.Spread.Eval
	row := make([][]byte, e.Columns)
	if err := s.takeValues(row, e.Sequences, snap); err != nil {
		return err
	}
	if e.SQL != "" {
		values, err := s.evaluateSQL(e, snap)
		if err != nil {
			return err
		}
		for i, at := range e.At {
			row[at] = values[i]
		}
	}
	s.values.Eval = row
	return nil
}

// evaluateSQL computes those of them that a server has to.
func (s *spread) evaluateSQL(e *plan.Eval, snap *catalog.Snapshot) (values [][]byte, err error) {
	if err := s.leaseOne(e.Shard, snap); err != nil {
		return nil, err
	}
	m := s.lane(e.Shard)
	out := (&spread{values: &plan.Values{}}).request(e.SQL, nil)
	if e.Params && len(s.values.Params) > 0 {
		if err := s.describeTypes(m); err != nil {
			return nil, err
		}
		out = s.request(e.SQL, nil)
	}
	m.sc.SetUnnamed(0)
	s.calls++
	err = readRows(s.ctx, fanout.Start([]fanout.Request{{Conn: m.sc, Out: out}}, true), func(_ int, row [][]byte) error {
		values = row
		return nil
	})
	switch {
	case err != nil:
		return nil, err
	case len(values) != len(e.At):
		return nil, pgerr.New(pgerr.InternalError, "the values for all shards are missing")
	}
	return values, nil
}

// rowTexts reads the values of a DataRow message.
func rowTexts(frame []byte) [][]byte {
	n := int(binary.BigEndian.Uint16(frame[5:]))
	out := make([][]byte, n)
	at := 7
	for i := range out {
		size := int32(binary.BigEndian.Uint32(frame[at:]))
		at += 4
		if size >= 0 {
			out[i] = frame[at : at+int(size) : at+int(size)]
			at += int(size)
		}
	}
	return out
}
