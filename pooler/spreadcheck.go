package pooler

import (
	"bytes"
	"encoding/binary"

	"neki/internal/datum"
	"neki/internal/pgerr"
	"neki/pooler/plan"
)

// checkDescription refuses rows that are not what the plan took them for: the schema was changed behind the gateway's back.
// body is that of a RowDescription message.
func checkDescription(leg *plan.Leg, body []byte) error {
	if len(leg.Columns) == 0 {
		return nil // passed on as they are
	}
	if len(body) < 2 || int(binary.BigEndian.Uint16(body)) != len(leg.Columns) {
		return errOtherRows()
	}
	body = body[2:]
	for i := range leg.Columns {
		end := bytes.IndexByte(body, 0)
		const fixed = 18 // what stands behind the name
		if end < 0 || len(body) < end+1+fixed {
			return errOtherRows()
		}
		oid := binary.BigEndian.Uint32(body[end+7:])
		want := leg.Columns[i].Type.OID
		if oid != want && (datum.Known(want) || datum.Known(oid)) {
			return errOtherRows()
		}
		body = body[end+1+fixed:]
	}
	return nil
}

func errOtherRows() error {
	return pgerr.New(pgerr.FeatureNotSupported, "cached plan must not change result type").
		WithDetail("A shard's rows have other columns than the schema that the gateway knows.").
		WithHint("CALL neki.reload() reads the schema again; so does the gateway by itself, after a while.")
}
