package exec

import "neki/internal/datum"

// batchRows is how many rows operators aim for in a batch.
const batchRows = 256

// Batch is some rows, each of the same width. It belongs to the node that gave it and is valid until that node's next
// Next or Close.
type Batch struct {
	width int
	rows  int
	cells []datum.Datum // row by row
}

// NewBatch makes an empty batch for rows of the given width.
func NewBatch(width int) *Batch { return &Batch{width: width} }

// Len gives the number of rows.
func (b *Batch) Len() int { return b.rows }

// Width gives the number of columns.
func (b *Batch) Width() int { return b.width }

// Row gives row i. It must not be changed or kept; its datums may be kept.
func (b *Batch) Row(i int) []datum.Datum {
	return b.cells[i*b.width : (i+1)*b.width : (i+1)*b.width]
}

// Value gives one cell, which may be undecoded (datum.Datum.Wire).
func (b *Batch) Value(row, col int) datum.Datum { return b.cells[row*b.width+col] }

// Append adds a row, copying the cells.
func (b *Batch) Append(row ...datum.Datum) {
	b.cells = append(b.cells, row...)
	b.rows++
}

// Grow adds a row of NULLs and returns it to be filled in.
func (b *Batch) Grow() []datum.Datum {
	at := len(b.cells)
	for range b.width {
		b.cells = append(b.cells, datum.Null)
	}
	b.rows++
	return b.cells[at:]
}

// Reset empties the batch, keeping its memory.
func (b *Batch) Reset() {
	clear(b.cells)
	b.cells, b.rows = b.cells[:0], 0
}

// fill empties the batch, puts the first rows into it and gives the rows that are left.
func (b *Batch) fill(rows [][]datum.Datum) [][]datum.Datum {
	b.Reset()
	count := min(len(rows), batchRows)
	for _, r := range rows[:count] {
		b.Append(r...)
	}
	return rows[count:]
}

// drop takes back the last row.
func (b *Batch) drop() {
	b.rows--
	b.cells = b.cells[:b.rows*b.width]
}

func rowSize(row []datum.Datum) int64 {
	size := int64(24)
	for _, d := range row {
		size += d.Size()
	}
	return size
}
