package pooler

import (
	"encoding/binary"
	"slices"
	"strconv"
	"strings"

	admin "neki/admin_sql"
	"neki/exec"
	"neki/internal/datum"
	"neki/pooler/plan"
)

// copyVirtual appends the answer to COPY (query) TO STDOUT of rows of the neki schema, all of it: CopyOutResponse, the
// lines, CopyDone and the tag.
func (c *Session) copyVirtual(dst []byte, prepared admin.Prepared, params []datum.Datum, out *plan.CopyOut) ([]byte, error) {
	columns := prepared.Columns()
	lines := copyWriter{CopyOut: out, columns: columns}
	messages, _, err := c.runVirtual(nil, prepared, params, lines.row)
	if err != nil {
		return dst, err
	}
	dst = appendCopyResponse(dst, 'H', 0, len(columns))
	if out.Header {
		dst = append(dst, lines.header()...)
	}
	for _, m := range messages {
		dst = append(dst, m...)
	}
	dst = append(dst, 'c', 0, 0, 0, 4)
	return appendComplete(dst, "COPY "+strconv.Itoa(len(messages))), nil
}

// appendCopyResponse appends a CopyOutResponse ('H') or CopyInResponse ('G') of columns that all have one format.
func appendCopyResponse(dst []byte, typ, format byte, columns int) []byte {
	start := len(dst)
	dst = append(dst, typ, 0, 0, 0, 0, format)
	dst = binary.BigEndian.AppendUint16(dst, uint16(columns))
	for range columns {
		dst = append(dst, 0, format)
	}
	return endMessage(dst, start)
}

// copyWriter writes rows as lines of COPY, each a CopyData message.
type copyWriter struct {
	*plan.CopyOut
	columns []exec.Column
	value   []byte
}

func (w *copyWriter) row(values []datum.Datum, session *datum.Session) ([]byte, error) {
	return w.line(func(i int) (text []byte, null bool, err error) {
		if values[i].IsNull() {
			return nil, true, nil
		}
		w.value, err = datum.AppendText(w.value[:0], w.columns[i].Type.OID, values[i], session)
		return w.value, false, err
	})
}

func (w *copyWriter) header() []byte {
	names := copyWriter{CopyOut: &plan.CopyOut{}, columns: w.columns}
	*names.CopyOut = *w.CopyOut
	names.ForceQuote, names.ForceQuoteColumns = nil, false
	line, _ := names.line(func(i int) ([]byte, bool, error) { return []byte(w.columns[i].Name), false, nil }) // of texts: no error
	return line
}

func (w *copyWriter) line(value func(i int) (text []byte, null bool, err error)) ([]byte, error) {
	dst := []byte{'d', 0, 0, 0, 0}
	for i := range w.columns {
		if i > 0 {
			dst = append(dst, w.Delimiter)
		}
		text, null, err := value(i)
		switch {
		case err != nil:
			return nil, err
		case null:
			dst = append(dst, w.Null...)
		case w.CSV:
			dst = w.appendCSV(dst, text, w.ForceQuoteColumns || slices.Contains(w.ForceQuote, w.columns[i].Name))
		default:
			dst = w.appendText(dst, text)
		}
	}
	return endMessage(append(dst, '\n'), 0), nil
}

func (w *copyWriter) appendText(dst, text []byte) []byte {
	for _, b := range text {
		switch at := strings.IndexByte("\b\f\n\r\t\v", b); {
		case b == w.Delimiter && b != '\t', b == '\\':
			dst = append(dst, '\\', b)
		case at >= 0:
			dst = append(dst, '\\', "bfnrtv"[at])
		default:
			dst = append(dst, b)
		}
	}
	return dst
}

// appendCSV quotes what must be: also a lone \. , which ends the data, and what would be read as NULL.
func (w *copyWriter) appendCSV(dst, text []byte, quote bool) []byte {
	quote = quote || string(text) == w.Null || len(w.columns) == 1 && string(text) == `\.`
	for _, b := range text {
		quote = quote || b == w.Delimiter || b == w.Quote || b == '\n' || b == '\r'
	}
	if !quote {
		return append(dst, text...)
	}
	dst = append(dst, w.Quote)
	for _, b := range text {
		if b == w.Quote || b == w.Escape {
			dst = append(dst, w.Escape)
		}
		dst = append(dst, b)
	}
	return append(dst, w.Quote)
}
