package pooler

import (
	"context"
	"encoding/binary"
	"errors"
	"io"

	"neki/exec"
	"neki/internal/datum"
	"neki/pooler/fanout"
	"neki/pooler/plan"
)

// legNode is one leg of a spread on all of its shards, as an operator's input.
type legNode struct {
	spread *spread
	index  int
	leg    *plan.Leg
	shards []string
	texts  []string // of the shards, at the same places

	legs      *fanout.Legs
	rows      exec.Node
	merged    *fanout.RawMerge // in place of rows: see plan.Spread.Through
	described bool
	opened    bool          // by the engine
	kept      []*exec.Batch // read ahead because another leg needed the connections
	took      int64         // of the budget, for them
	stash     []fanout.Piece
	over      bool
	counted   bool // by measure
}

// start sends the leg's statement to its shards.
func (l *legNode) start() error {
	if l.legs != nil {
		return nil
	}
	s := l.spread
	if r := s.running; r != nil {
		if err := r.keepRest(); err != nil {
			return err
		}
	}
	s.running = l
	reqs := make([]fanout.Request, len(l.shards))
	for i, shard := range l.shards {
		m := s.lane(shard)
		m.sc.SetUnnamed(0)
		reqs[i] = fanout.Request{Conn: m.sc, Out: s.request(l.texts[i], l.formats())}
	}
	s.calls += int64(len(reqs))
	if s.plan.Spread.Write {
		l.legs = fanout.StartInOrder(reqs)
	} else {
		l.legs = fanout.Start(reqs, len(l.leg.Merge) == 0)
	}
	width := len(l.leg.Columns)
	if len(l.leg.Merge) == 0 {
		l.rows = fanout.Concat(l.legs, width, l.decoding(), l.other)
		return nil
	}
	keys := make([]fanout.Key, len(l.leg.Merge))
	for i, k := range l.leg.Merge {
		keys[i] = fanout.Key{Column: k.Column, OID: k.OID, Desc: k.Desc, NullsFirst: k.NullsFirst}
	}
	if through := s.plan.Spread.Through; through > 0 {
		l.merged = fanout.MergeRaw(l.legs, width, through, l.decoding(), keys, s.session, l.other)
		return nil
	}
	l.rows = fanout.Merge(l.legs, width, l.decoding(), keys, s.session, l.other)
	return nil
}

// format gives the form in which column i of the leg is asked for: as the client wants it when it is passed on, else in
// binary if the engine reads it so.
func (l *legNode) format(i int) int16 {
	if sp := l.spread.plan.Spread; i < max(sp.Pass, sp.Through) {
		return formatOf(l.spread.formats, i)
	}
	if datum.Known(l.leg.Columns[i].Type.OID) {
		return 1
	}
	return 0
}

// formats gives the result formats of the leg's Bind.
func (l *legNode) formats() formats {
	sp := l.spread.plan.Spread
	if sp.Upkeep != nil {
		return l.spread.keptFormats(sp.Upkeep)
	}
	if sp.Spec == nil && (sp.Pass == 0 || sp.Pass == len(l.leg.Columns)) || len(l.leg.Columns) == 0 {
		return l.spread.formats
	}
	f := make(formats, len(l.leg.Columns))
	for i := range f {
		f[i] = l.format(i)
	}
	return f
}

func (l *legNode) decoding() fanout.Format {
	f := make(fanout.Format, len(l.leg.Columns))
	for i := range f {
		f[i] = l.format(i) == 1
	}
	return f
}

// other handles what is no row of a leg's answer.
func (l *legNode) other(p fanout.Piece) error {
	s := l.spread
	switch p.Kind {
	case fanout.Described:
		if err := checkDescription(l.leg, p.Data); err != nil {
			return err
		}
		l.described = true
		if l.index == 0 {
			s.noteDescription(p.Data)
		}
	case fanout.NoData:
		l.described = !s.copies() || s.plan.CopyOut != nil
	case fanout.CopyOut:
		l.described = true
		if s.shown == nil {
			s.shown = endMessage(append([]byte{'H', 0, 0, 0, 0}, p.Data...), 0)
		}
	case fanout.Completed:
		s.measured.completed(l, p)
		if p.Leg == 0 || !s.plan.Spread.Copies {
			s.tags = append(s.tags, string(p.Data))
		}
	case fanout.Notice, fanout.Notify:
		frame := endMessage(append([]byte{byte(p.Kind), 0, 0, 0, 0}, p.Data...), 0)
		if _, err := s.c.conn.Write(frame); err != nil {
			return err
		}
	case fanout.Failed:
		return l.failure(p)
	}
	return nil
}

// failure gives a shard's error as the client gets it: a position in a text that the client has not written says nothing.
func (l *legNode) failure(p fanout.Piece) error {
	if p.Lost {
		node := l.spread.lane(l.shards[p.Leg]).place.node.ID
		return lostConnection(node, errors.New(p.Err.Message), l.spread.own && l.spread.plan.Spread.Write)
	}
	if l.leg.SQL != "" {
		return p.Err.WithPosition(0)
	}
	return p.Err
}

// Next implements exec.Node.
func (l *legNode) Next(ctx context.Context) (*exec.Batch, error) {
	if len(l.kept) > 0 {
		b := l.kept[0]
		l.kept = l.kept[1:]
		return b, nil
	}
	if l.over {
		return nil, io.EOF
	}
	if err := l.start(); err != nil {
		return nil, err
	}
	b, err := l.rows.Next(ctx)
	if err == io.EOF {
		l.end()
	}
	return b, err
}

// keepRest reads what is left of the leg into memory.
func (l *legNode) keepRest() error {
	for !l.over {
		b, err := l.rows.Next(l.spread.ctx)
		if err == io.EOF {
			l.end()
			return nil
		}
		if err != nil {
			return err
		}
		size := int64(0)
		for i := range b.Len() {
			for _, d := range b.Row(i) {
				size += d.Size()
			}
		}
		if err := l.spread.budget.Take(size); err != nil {
			return err
		}
		l.took += size
		l.kept = append(l.kept, b)
	}
	return nil
}

// end joins the leg's goroutines; what has not come to its end is cancelled.
func (l *legNode) end() {
	l.over = true
	if l.spread.running == l {
		l.spread.running = nil
	}
	if l.legs != nil {
		l.legs.Close()
		l.spread.measured.ended(l)
	}
}

// Close implements exec.Node.
func (l *legNode) Close() error {
	l.end()
	l.spread.budget.Give(l.took)
	l.kept, l.took = nil, 0
	return nil
}

// mergedRaw gives the rows of a leg whose shards' rows are merged, as they came.
func (l *legNode) mergedRaw() (rows []byte, n int, err error) {
	if l.over {
		return nil, 0, io.EOF
	}
	if err := l.start(); err != nil {
		return nil, 0, err
	}
	rows, n, err = l.merged.Next(l.spread.ctx)
	if err == io.EOF {
		l.end()
	}
	return rows, n, err
}

// raw gives the rows of the leg as they came.
func (l *legNode) raw() (rows []byte, n int, err error) {
	for {
		p, err := l.piece()
		if err == io.EOF {
			l.end()
		}
		if err != nil {
			return nil, 0, err
		}
		if p.Kind != fanout.Rows {
			if err := l.other(p); err != nil {
				return nil, 0, err
			}
			continue
		}
		if l.spread.plan.Spread.Copies && p.Leg > 0 {
			continue
		}
		return l.cut(p.Data), p.Count, nil
	}
}

func (l *legNode) piece() (fanout.Piece, error) {
	if len(l.stash) > 0 {
		p := l.stash[0]
		l.stash = l.stash[1:]
		return p, nil
	}
	if l.over {
		return fanout.Piece{}, io.EOF
	}
	if err := l.start(); err != nil {
		return fanout.Piece{}, err
	}
	return l.legs.Next(l.spread.ctx)
}

// describe reads up to the leg's RowDescription, and keeps the rows that come before all shards have given theirs.
func (l *legNode) describe() error {
	if len(l.leg.Merge) > 0 || l.spread.node != nil { // the engine did not need the leg
		if err := l.start(); err != nil {
			return err
		}
		b, err := l.rows.Next(l.spread.ctx)
		if err == nil {
			l.kept = append(l.kept, b)
		} else if err != io.EOF {
			return err
		}
		return nil
	}
	for !l.described {
		p, err := l.piece()
		if err != nil {
			return err
		}
		if p.Kind == fanout.Rows {
			l.stash = append(l.stash, p)
			continue
		}
		if err := l.other(p); err != nil {
			return err
		}
	}
	return nil
}

// cut leaves the columns out that the client did not ask for.
func (l *legNode) cut(rows []byte) []byte {
	pass := l.spread.plan.Spread.Pass
	if pass == 0 || pass >= len(l.leg.Columns) {
		return rows
	}
	var out []byte
	for len(rows) > 0 {
		size := int(binary.BigEndian.Uint32(rows[1:])) + 1
		at := 7
		for range pass {
			n := int32(binary.BigEndian.Uint32(rows[at:]))
			at += 4 + int(max(n, 0))
		}
		start := len(out)
		out = append(out, rows[:at]...)
		binary.BigEndian.PutUint16(out[start+5:], uint16(pass))
		binary.BigEndian.PutUint32(out[start+1:], uint32(at-1))
		rows = rows[size:]
	}
	return out
}
