package pooler

import (
	"encoding/binary"
	"slices"
	"strconv"

	"neki/internal/datum"
	"neki/internal/pgerr"
	"neki/pooler/copydata"
	"neki/pooler/fanout"
	"neki/pooler/plan"
)

// copyExtra is the values of the columns that the data of a COPY leaves out, and that must be computed once for all shards:
// for so many rows at a time. A shard that computes some, or counts a sequence, may be one that takes rows: then its COPY is
// ended before, and begun again behind it.
type copyExtra struct {
	rows  [][][]byte // not used yet
	batch int        // how many come next
}

// Sizes of the batches: the first is small, because a sequence's numbers that are not used are lost.
const (
	firstExtras = 16
	mostExtras  = 8192
)

// firstExtra computes the first values, before any COPY has begun.
func (x *splitCopy) firstExtra() error {
	values := x.in.Values
	if values == nil {
		return nil
	}
	if values.SQL != "" && x.lane(values.Shard) == nil {
		if err := x.leaseOne(values.Shard, x.c.srv.cfg.Cluster.Snapshot()); err != nil {
			return err
		}
	}
	x.extra.batch = firstExtras
	return x.compute()
}

// compute computes the next values. Nothing else runs on their shards.
func (x *splitCopy) compute() error {
	e, values := &x.extra, x.in.Values
	n := e.batch
	e.batch = min(4*e.batch, mostExtras)
	row := make([][]byte, n*values.Columns)
	var takes []plan.EvalSequence
	for i := range n {
		for _, q := range values.Sequences {
			q.At += i * values.Columns
			takes = append(takes, q)
		}
	}
	if err := x.takeValues(row, takes, x.c.srv.cfg.Cluster.Snapshot()); err != nil {
		return err
	}
	if x.in.Format.Binary {
		if err := x.inBinary(row, takes); err != nil {
			return err
		}
	}
	if values.SQL != "" {
		if err := x.computeSQL(row, n); err != nil {
			return err
		}
	}
	for i := range n {
		e.rows = append(e.rows, row[i*values.Columns:(i+1)*values.Columns])
	}
	return nil
}

// inBinary gives numbers of sequences the form that they have in binary data.
func (x *splitCopy) inBinary(row [][]byte, takes []plan.EvalSequence) error {
	for _, q := range takes {
		oid := x.in.Types[q.At%x.in.Values.Columns]
		d, err := datum.ParseText(oid, string(row[q.At]), x.session)
		if err == nil {
			row[q.At], err = datum.AppendBinary(nil, oid, d, x.session)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// computeSQL has a shard compute what is no number of a sequence, for n rows.
func (x *splitCopy) computeSQL(row [][]byte, n int) error {
	values := x.in.Values
	sc := x.lane(values.Shard).sc
	sc.SetUnnamed(0)
	x.calls++
	f := formats(nil)
	if x.in.Format.Binary {
		f = formats{1}
	}
	sql := values.SQL + " FROM pg_catalog.generate_series(1, " + strconv.Itoa(n) + ")"
	legs := fanout.Start([]fanout.Request{{Conn: sc, Out: (&spread{values: &plan.Values{}}).request(sql, f)}}, true)
	at := 0
	err := readRows(x.ctx, legs, func(_ int, texts [][]byte) error {
		for i, v := range texts {
			row[at*values.Columns+values.At[i]] = v
		}
		at++
		return nil
	})
	if err == nil && at < n {
		return pgerr.New(pgerr.InternalError, "the values for the columns left out are missing")
	}
	return err
}

// nextExtra gives the values for one row.
func (x *splitCopy) nextExtra() ([][]byte, error) {
	e := &x.extra
	if len(e.rows) == 0 {
		if err := x.refill(); err != nil {
			return nil, err
		}
	}
	values := e.rows[0]
	e.rows = e.rows[1:]
	return values, nil
}

// refill computes more values, between two COPYs of the shards that are asked.
func (x *splitCopy) refill() error {
	for _, l := range x.lanes {
		if !x.asks(l.place.shard) {
			continue
		}
		l.flush(x.c.lend().answers)
		if l.err == nil {
			l.end([]byte{'c', 0, 0, 0, 4})
		}
		if l.err != nil {
			return l.err
		}
		if x.in.Index != nil || l == x.counted() {
			x.copied += rowsOfTag(l.tag)
		}
	}
	if err := x.compute(); err != nil {
		return err
	}
	for _, l := range x.lanes {
		if !x.asks(l.place.shard) {
			continue
		}
		l.columns, l.tag, l.ended, l.lines = nil, "", false, lineMap{}
		l.begin(x.sql)
		if l.err != nil {
			return l.err
		}
		if x.header.Raw != nil {
			l.add(x.header, int64(x.header.Lines))
		}
	}
	return nil
}

// asks reports whether a shard computes values.
func (x *splitCopy) asks(shard string) bool {
	values := x.in.Values
	return values.SQL != "" && values.Shard == shard ||
		slices.ContainsFunc(values.Sequences, func(q plan.EvalSequence) bool { return q.Shard == shard })
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
