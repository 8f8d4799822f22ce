package fanout

import (
	"context"
	"encoding/binary"
	"io"

	"neki/exec"
	"neki/internal/datum"
	"neki/internal/pgerr"
)

// rowsPerBatch is how many rows a node gives at once.
const rowsPerBatch = 256

// decoder reads DataRow messages into rows of undecoded values.
type decoder struct {
	width  int
	binary []bool // by column; nil: all are text
}

// Format says which columns come in binary form.
type Format []bool

func (d *decoder) row(frame []byte, cells []datum.Datum) error {
	body := frame[5:]
	if len(body) < 2 || int(binary.BigEndian.Uint16(body)) < d.width {
		return errRow
	}
	body = body[2:]
	for i := range d.width {
		if len(body) < 4 {
			return errRow
		}
		size := int32(binary.BigEndian.Uint32(body))
		body = body[4:]
		switch {
		case size == -1:
			cells[i] = datum.Null
			continue
		case size < 0 || int(size) > len(body):
			return errRow
		case i < len(d.binary) && d.binary[i]:
			cells[i] = datum.WireBinary(body[:size:size])
		default:
			cells[i] = datum.WireText(body[:size:size])
		}
		body = body[size:]
	}
	return nil
}

var errRow = pgerr.New(pgerr.ProtocolViolation, "a shard sent a row that is not as described")

// cursor goes through the rows of one leg, or of all when which is negative.
type cursor struct {
	legs  *Legs
	which int
	rest  []byte // rows of the piece in hand
	other func(Piece) error
}

// frame gives the next row's message; io.EOF after the last.
func (c *cursor) frame(ctx context.Context) ([]byte, error) {
	for len(c.rest) == 0 {
		p, err := c.piece(ctx)
		if err != nil {
			return nil, err
		}
		switch p.Kind {
		case Rows:
			c.rest = p.Data
		case Failed:
			return nil, p.Err
		default:
			if err := c.other(p); err != nil {
				return nil, err
			}
		}
	}
	size := int(binary.BigEndian.Uint32(c.rest[1:])) + 1
	frame := c.rest[:size:size]
	c.rest = c.rest[size:]
	return frame, nil
}

func (c *cursor) piece(ctx context.Context) (Piece, error) {
	if c.which < 0 {
		return c.legs.Next(ctx)
	}
	return c.legs.NextOf(ctx, c.which)
}

// Concat gives the rows of all legs, as they come. other sees what is not a row; it may be nil.
func Concat(legs *Legs, width int, format Format, other func(Piece) error) exec.Node {
	return &concatNode{
		cursor: cursor{legs: legs, which: -1, other: orIgnore(other)}, decoder: decoder{width: width, binary: format},
	}
}

func orIgnore(other func(Piece) error) func(Piece) error {
	if other == nil {
		return func(Piece) error { return nil }
	}
	return other
}

type concatNode struct {
	cursor
	decoder
	eof bool
}

// Next gives the next rows. What is given is of one piece, which is not used again, so its values may be kept.
func (n *concatNode) Next(ctx context.Context) (*exec.Batch, error) {
	if n.eof {
		return nil, io.EOF
	}
	batch := exec.NewBatch(n.width)
	for batch.Len() < rowsPerBatch && (batch.Len() == 0 || len(n.rest) > 0) {
		frame, err := n.frame(ctx)
		if err == io.EOF {
			n.eof = true
			return nil, io.EOF
		}
		if err != nil {
			return nil, err
		}
		if err := n.row(frame, batch.Grow()); err != nil {
			return nil, err
		}
	}
	return batch, nil
}

// Close ends the legs.
func (n *concatNode) Close() error {
	n.legs.Close()
	return nil
}
