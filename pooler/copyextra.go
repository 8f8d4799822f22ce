package pooler

import (
	"encoding/binary"
	"io"
	"strconv"

	"neki/internal/pgerr"
	"neki/pooler/copydata"
	"neki/pooler/fanout"
	"neki/pooler/plan"
)

// copyExtra is the values of the columns that the data of a COPY leaves out, and that must be computed once for all shards:
// for so many rows at a time. The shard that computes them may be one that takes rows: then its COPY is ended before, and
// begun again behind it.
type copyExtra struct {
	rows  [][][]byte // not used yet
	batch int        // how many come next
	shard *member
}

// Sizes of the batches: the first is small, because a sequence's numbers that are not used are lost.
const (
	firstExtras = 16
	mostExtras  = 8192
)

// firstExtra computes the first values, before any COPY has begun.
func (x *splitCopy) firstExtra() error {
	if x.in.Values == nil {
		return nil
	}
	shard := x.in.Values.Shard
	if x.lane(shard) == nil {
		if err := x.leaseOne(shard, x.c.srv.cfg.Cluster.Snapshot()); err != nil {
			return err
		}
	}
	x.extra.shard, x.extra.batch = x.lane(shard), firstExtras
	return x.compute()
}

// compute asks for the next values. Nothing else runs on their shard.
func (x *splitCopy) compute() error {
	e := &x.extra
	sc := e.shard.sc
	sc.SetUnnamed(0)
	x.calls++
	f := formats(nil)
	if x.in.Format.Binary {
		f = formats{1}
	}
	sql := x.in.Values.SQL + strconv.Itoa(e.batch) + ")"
	e.batch = min(4*e.batch, mostExtras)
	legs := fanout.Start([]fanout.Request{{Conn: sc, Out: (&spread{values: &plan.Values{}}).request(sql, f)}}, true)
	defer legs.Close()
	for {
		p, err := legs.Next(x.ctx)
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		case p.Kind == fanout.Failed:
			return p.Err.WithPosition(0)
		case p.Kind == fanout.Rows:
			for rows := p.Data; len(rows) > 0; {
				size := int(binary.BigEndian.Uint32(rows[1:])) + 1
				e.rows = append(e.rows, rowTexts(rows[:size]))
				rows = rows[size:]
			}
		}
	}
}

// nextExtra gives the values for one row.
func (x *splitCopy) nextExtra() ([][]byte, error) {
	e := &x.extra
	if len(e.rows) == 0 {
		if err := x.refill(); err != nil {
			return nil, err
		}
	}
	if len(e.rows) == 0 {
		return nil, pgerr.New(pgerr.InternalError, "the values for the columns left out are missing")
	}
	values := e.rows[0]
	e.rows = e.rows[1:]
	return values, nil
}

// refill computes more values, between two COPYs of their shard.
func (x *splitCopy) refill() error {
	var busy *copyLane
	for _, l := range x.lanes {
		if l.member == x.extra.shard {
			busy = l
		}
	}
	if busy != nil {
		busy.flush(x.c.lend().answers)
		if busy.err == nil {
			busy.end([]byte{'c', 0, 0, 0, 4})
		}
		if busy.err != nil {
			return busy.err
		}
		if x.in.Index != nil || busy == x.counted() {
			x.copied += rowsOfTag(busy.tag)
		}
	}
	if err := x.compute(); err != nil || busy == nil {
		return err
	}
	busy.columns, busy.tag, busy.ended, busy.lines = nil, "", false, lineMap{}
	busy.begin(x.sql)
	if busy.err != nil {
		return busy.err
	}
	if x.header.Raw != nil {
		busy.add(x.header, int64(x.header.Lines))
	}
	return nil
}

// counted gives the copy of a reference table whose rows are those of the answer.
func (x *splitCopy) counted() *copyLane { return x.lanes[0] }

// keepHeader keeps what comes before the rows, with the names of the columns that are added to them.
func (x *splitCopy) keepHeader(row copydata.Row) copydata.Row {
	raw := append([]byte(nil), row.Raw...)
	if !x.in.Format.Binary && len(x.in.Extra) > 0 {
		raw = raw[:len(raw)-row.Newline]
		for _, name := range x.in.Extra {
			raw = x.appendValue(raw, []byte(name))
		}
		raw = append(raw, row.Raw[len(row.Raw)-row.Newline:]...)
	}
	x.header = row
	x.header.Raw = raw
	return x.header
}

// completed adds the values of the columns left out to a row, and finds its key among them if it is there.
func (x *splitCopy) completed(row copydata.Row) (copydata.Row, error) {
	values, err := x.nextExtra()
	if err != nil {
		return row, err
	}
	data, end := row.Raw[:len(row.Raw)-row.Newline], row.Raw[len(row.Raw)-row.Newline:]
	raw := append(make([]byte, 0, len(row.Raw)+64), data...)
	if x.in.Format.Binary {
		binary.BigEndian.PutUint16(raw, binary.BigEndian.Uint16(raw)+uint16(len(values)))
	}
	for _, v := range values {
		raw = x.appendValue(raw, v)
	}
	row.Raw = append(raw, end...)
	if at := x.in.Key.At - (x.columnsOf() - len(values)); x.in.Index != nil && at >= 0 {
		row.Field, row.Missing = values[at], false
	}
	return row, nil
}

// columnsOf counts the columns that the shards get.
func (x *splitCopy) columnsOf() int { return int(binary.BigEndian.Uint16(x.lanes[0].columns[6:])) }

// appendValue appends a field behind others; nil is NULL.
func (x *splitCopy) appendValue(dst, value []byte) []byte {
	f := &x.in.Format
	switch {
	case f.Binary && value == nil:
		return append(dst, 0xff, 0xff, 0xff, 0xff)
	case f.Binary:
		return append(binary.BigEndian.AppendUint32(dst, uint32(len(value))), value...)
	}
	dst = append(dst, f.Delimiter)
	w := copyWriter{CopyOut: &plan.CopyOut{Delimiter: f.Delimiter, Quote: f.Quote, Escape: f.Escape}}
	switch {
	case value == nil:
		return append(dst, f.Null...)
	case f.CSV:
		return w.appendCSV(dst, value, true)
	}
	return w.appendText(dst, value)
}

// fewerColumns gives a CopyInResponse without the last n columns.
func fewerColumns(response []byte, n int) []byte {
	if n == 0 {
		return response
	}
	all := int(binary.BigEndian.Uint16(response[6:]))
	return appendCopyResponse(nil, 'G', response[5], all-n)
}
