package plan

import (
	"slices"
	"strings"

	"neki/sqlparse"
)

// ShardText is what one shard is sent for a leg.
type ShardText struct {
	Shard string
	SQL   string
}

// LegTexts gives what each shard of a leg is sent in one execution: the leg's text with the values of Spread.Eval filled in,
// and of an INSERT of several rows those that belong to the shard.
func (p *Plan) LegTexts(leg *Leg, v *Values) ([]ShardText, error) {
	text := leg.SQL
	if text == "" {
		text = string(v.Text)
	}
	if leg.Suffix != "" {
		text = text[:sqlparse.StatementEnd(text)] + leg.Suffix
	}
	if leg.Rows != nil {
		return p.splitRows(leg, text, v)
	}
	shards, err := p.shards(nil, &leg.Route, v)
	if err != nil {
		return nil, err
	}
	if p.Spread.Copies && len(leg.Route.All) > 0 {
		shards = slices.Clone(leg.Route.All)
	}
	slices.Sort(shards) // each shard's locks are taken in the same order by everybody
	shards = slices.Compact(shards)
	text = fill(nil, text, 0, len(text), leg.Fills, v)
	out := make([]ShardText, len(shards))
	for i, s := range shards {
		out[i] = ShardText{s, text}
	}
	return out, nil
}

// fill gives the part of a text from start to end with values written into their places.
func fill(b *strings.Builder, text string, start, end int, fills []Fill, v *Values) string {
	if len(fills) == 0 && b == nil {
		return text[start:end]
	}
	if b == nil {
		b = &strings.Builder{}
	}
	for _, f := range fills {
		if f.At < start || f.At > end {
			continue
		}
		b.WriteString(text[start:f.At])
		start = f.At
		if f.Value >= len(v.Eval) || v.Eval[f.Value] == nil {
			b.WriteString("NULL")
		} else {
			b.WriteString(sqlparse.QuoteLiteral(string(v.Eval[f.Value])))
		}
		b.WriteString("::" + f.Type)
	}
	b.WriteString(text[start:end])
	return b.String()
}

// splitRows gives each shard the rows of VALUES that belong to it, in their order.
func (p *Plan) splitRows(leg *Leg, text string, v *Values) ([]ShardText, error) {
	rows := leg.Rows.Rows
	spans := p.spans(v)
	type part struct {
		shard string
		rows  []int
	}
	var parts []part
	for i := range rows {
		pin := Pin{Index: leg.Rows.Index, Group: leg.Rows.Group}
		shard, err := pin.storedShard(&rows[i].Key, v, spans)
		if err != nil {
			return nil, err
		}
		at := slices.IndexFunc(parts, func(x part) bool { return x.shard == shard })
		if at < 0 {
			parts, at = append(parts, part{shard: shard}), len(parts)
		}
		parts[at].rows = append(parts[at].rows, i)
	}
	slices.SortFunc(parts, func(a, b part) int { return strings.Compare(a.shard, b.shard) })
	out := make([]ShardText, len(parts))
	for i, x := range parts {
		var b strings.Builder
		fill(&b, text, 0, rows[0].Start, leg.Fills, v)
		for j, r := range x.rows {
			if j > 0 {
				b.WriteString(", ")
			}
			fill(&b, text, rows[r].Start, rows[r].End, leg.Fills, v)
		}
		fill(&b, text, rows[len(rows)-1].End, len(text), leg.Fills, v)
		out[i] = ShardText{x.shard, b.String()}
	}
	return out, nil
}
