package plan

import (
	"fmt"
	"strings"
)

// String writes the spread as the golden files and EXPLAIN (NEKI_PLAN) have it.
func (s *Spread) String() string {
	var b strings.Builder
	if e := s.Eval; e != nil {
		fmt.Fprintf(&b, "eval: %s\n", e)
	}
	for i := range s.Legs {
		s.Legs[i].write(&b, i)
	}
	if u := s.Upkeep; u != nil {
		for _, line := range u.lines() {
			fmt.Fprintf(&b, "upkeep: %s\n", line)
		}
	}
	switch {
	case s.Copies:
		b.WriteString("each copy\n")
	case s.Write:
		b.WriteString("sum of the legs\n")
	}
	for _, line := range s.Steps {
		fmt.Fprintf(&b, "gateway: %s\n", line)
	}
	return b.String()
}

func (l *Leg) write(b *strings.Builder, i int) {
	fmt.Fprintf(b, "leg %d, %s\n", i, l.line())
	for _, k := range l.Merge {
		fmt.Fprintf(b, "  merge by %s\n", k.String())
	}
}

// line is the leg in FORMAT TEXT.
func (l *Leg) line() string { return l.Route.String() + ": " + l.text() }

// text is what the leg's shards are sent.
func (l *Leg) text() string {
	var out string
	if l.Rows != nil {
		out = fmt.Sprintf("%d rows, each to its shard", len(l.Rows.Rows))
		if l.SQL == "" {
			return out + l.suffixText()
		}
		out += ": "
	}
	if l.SQL == "" {
		return "as written" + l.suffixText()
	}
	return out + fill(nil, l.SQL, 0, len(l.SQL), l.Fills, &Values{Eval: placeholders(l.Fills)}) + l.suffixText()
}

func (l *Leg) suffixText() string {
	return strings.ReplaceAll(l.Suffix, "\n", " ")
}

// lines tell how each index is kept.
func (u *Upkeep) lines() []string {
	var out []string
	if u.Before != nil {
		out = append(out, "rows as they are, by "+u.Before.SQL)
	}
	for i := range u.Indexes {
		k := &u.Indexes[i]
		out = append(out, k.Index.Name+": "+k.Table()+" ("+strings.Join(k.Columns, ", ")+")")
	}
	return out
}

// order tells by what the leg's rows are merged.
func (l *Leg) order() string {
	keys := make([]string, len(l.Merge))
	for i, k := range l.Merge {
		keys[i] = k.String()
	}
	return strings.Join(keys, ", ")
}

// String tells the column and the direction.
func (k MergeKey) String() string {
	out := fmt.Sprintf("column %d", k.Column+1)
	if k.Desc {
		out += " desc"
	}
	switch {
	case k.NullsFirst && !k.Desc:
		out += " nulls first"
	case !k.NullsFirst && k.Desc:
		out += " nulls last"
	}
	return out
}

// placeholders shows where the values of Eval go.
func placeholders(fills []Fill) [][]byte {
	var out [][]byte
	for _, f := range fills {
		for len(out) <= f.Value {
			out = append(out, nil)
		}
		out[f.Value] = []byte(fmt.Sprintf("{%d}", f.Value+1))
	}
	return out
}

// String tells a route with what decides it.
func (r *Route) String() string {
	var parts []string
	if r.Shard != "" && len(r.All) == 0 {
		parts = append(parts, r.Shard)
	}
	if len(r.All) > 0 {
		parts = append(parts, strings.Join(r.All, " "))
	}
	for _, p := range r.Pins {
		parts = append(parts, p.String())
	}
	out := r.Kind.String()
	if len(parts) > 0 {
		out += " (" + strings.Join(parts, "; ") + ")"
	}
	return out
}

// String tells which values a key has.
func (p *Pin) String() string {
	return keysText(p.Index.Column, p.Keys)
}

// keysText tells which values a column has.
func keysText(column string, keys []KeyExpr) string {
	values := make([]string, len(keys))
	for i := range keys {
		values[i] = keys[i].String()
	}
	if len(values) == 1 && !keys[0].Array && keys[0].Lookup == nil {
		return column + " = " + values[0]
	}
	return column + " in " + strings.Join(values, ", ")
}

// String tells where a value comes from.
func (k *KeyExpr) String() string {
	switch k.Source {
	case KeyLiteral:
		return fmt.Sprintf("literal %d", k.At+1)
	case KeyParam:
		return fmt.Sprintf("$%d", k.At+1)
	case KeyEval:
		return fmt.Sprintf("evaluated %d", k.At+1)
	case KeyLookup:
		return "lookup " + k.Lookup.Text
	case KeyRow:
		return fmt.Sprintf("column %d", k.At+1)
	}
	if k.Null {
		return "NULL"
	}
	return "'" + k.Const + "'"
}
