package exec

import (
	"strings"

	"neki/internal/datum"
)

func itemsOf(d datum.Datum) []datum.Datum {
	if d.IsNull() {
		return nil
	}
	return d.Array().Items
}

func arrayOf(c Call, items []datum.Datum) (datum.Datum, error) {
	return datum.FromArray(&datum.Array{Elem: datum.Elem(c.Result.OID), Items: items}), nil
}

// dimension answers array_length, array_upper and array_lower: NULL but for dimension 1 of an array with items.
func dimension(value func(n int) int64) Builtin {
	return func(_ Call, a []datum.Datum) (datum.Datum, error) {
		n := len(a[0].Array().Items)
		if a[1].Int() != 1 || n == 0 {
			return datum.Null, nil
		}
		return datum.Int(value(n)), nil
	}
}

func sameItem(elem uint32, x, y datum.Datum) bool {
	if x.IsNull() || y.IsNull() {
		return x.IsNull() && y.IsNull()
	}
	return datum.Compare(elem, x, y) == 0
}

func indexOf(elem uint32, items []datum.Datum, item datum.Datum) int {
	for i, d := range items {
		if sameItem(elem, d, item) {
			return i
		}
	}
	return -1
}

// containsAll reports whether each item of sub is in items; NULL is in nothing.
func containsAll(elem uint32, items, sub []datum.Datum) bool {
	for _, d := range sub {
		if d.IsNull() || indexOf(elem, items, d) < 0 {
			return false
		}
	}
	return true
}

func joinItems(c Call, array datum.Datum, sep string, null *string) (datum.Datum, error) {
	var parts []string
	a := array.Array()
	for _, item := range a.Items {
		if item.IsNull() {
			if null != nil {
				parts = append(parts, *null)
			}
			continue
		}
		text, err := datum.Format(a.Elem, item, c.session())
		if err != nil {
			return datum.Null, err
		}
		parts = append(parts, text)
	}
	return bounded(strings.Join(parts, sep))
}

func splitText(c Call, a []datum.Datum, null datum.Datum) (datum.Datum, error) {
	if a[0].IsNull() {
		return datum.Null, nil
	}
	s := a[0].Text()
	var parts []string
	switch {
	case s == "":
	case a[1].IsNull():
		parts = strings.Split(s, "")
	case a[1].Text() == "":
		parts = []string{s}
	default:
		parts = strings.Split(s, a[1].Text())
	}
	items := make([]datum.Datum, len(parts))
	for i, p := range parts {
		if null.IsNull() || p != null.Text() {
			items[i] = datum.Text(p)
		}
	}
	return arrayOf(c, items)
}

var arrayBuiltins = map[string]Builtin{
	"array_length": dimension(func(n int) int64 { return int64(n) }),
	"array_upper":  dimension(func(n int) int64 { return int64(n) }),
	"array_lower":  dimension(func(int) int64 { return 1 }),
	"array_cardinality": func(_ Call, a []datum.Datum) (datum.Datum, error) {
		return datum.Int(int64(len(a[0].Array().Items))), nil
	},
	"array_append": func(c Call, a []datum.Datum) (datum.Datum, error) {
		return arrayOf(c, append(append([]datum.Datum(nil), itemsOf(a[0])...), a[1]))
	},
	"array_prepend": func(c Call, a []datum.Datum) (datum.Datum, error) {
		return arrayOf(c, append([]datum.Datum{a[0]}, itemsOf(a[1])...))
	},
	"array_cat": func(c Call, a []datum.Datum) (datum.Datum, error) {
		switch {
		case a[0].IsNull():
			return a[1], nil
		case a[1].IsNull():
			return a[0], nil
		}
		return arrayOf(c, append(append([]datum.Datum(nil), itemsOf(a[0])...), itemsOf(a[1])...))
	},
	"array_remove": func(c Call, a []datum.Datum) (datum.Datum, error) {
		if a[0].IsNull() {
			return datum.Null, nil
		}
		var kept []datum.Datum
		for _, d := range itemsOf(a[0]) {
			if !sameItem(a[0].Array().Elem, d, a[1]) {
				kept = append(kept, d)
			}
		}
		return arrayOf(c, kept)
	},
	"array_position": func(_ Call, a []datum.Datum) (datum.Datum, error) {
		if a[0].IsNull() {
			return datum.Null, nil
		}
		i := indexOf(a[0].Array().Elem, itemsOf(a[0]), a[1])
		if i < 0 {
			return datum.Null, nil
		}
		return datum.Int(int64(i) + 1), nil
	},
	"array_to_text": func(c Call, a []datum.Datum) (datum.Datum, error) { return joinItems(c, a[0], a[1].Text(), nil) },
	"array_to_text_null": func(c Call, a []datum.Datum) (datum.Datum, error) {
		switch {
		case a[0].IsNull() || a[1].IsNull():
			return datum.Null, nil
		case a[2].IsNull():
			return joinItems(c, a[0], a[1].Text(), nil)
		}
		null := a[2].Text()
		return joinItems(c, a[0], a[1].Text(), &null)
	},
	"text_to_array":      func(c Call, a []datum.Datum) (datum.Datum, error) { return splitText(c, a, datum.Null) },
	"text_to_array_null": func(c Call, a []datum.Datum) (datum.Datum, error) { return splitText(c, a, a[2]) },
	"arraycontains": func(_ Call, a []datum.Datum) (datum.Datum, error) {
		return datum.Bool(containsAll(a[0].Array().Elem, itemsOf(a[0]), itemsOf(a[1]))), nil
	},
	"arraycontained": func(_ Call, a []datum.Datum) (datum.Datum, error) {
		return datum.Bool(containsAll(a[0].Array().Elem, itemsOf(a[1]), itemsOf(a[0]))), nil
	},
	"arrayoverlap": func(_ Call, a []datum.Datum) (datum.Datum, error) {
		for _, d := range itemsOf(a[0]) {
			if !d.IsNull() && indexOf(a[0].Array().Elem, itemsOf(a[1]), d) >= 0 {
				return datum.Bool(true), nil
			}
		}
		return datum.Bool(false), nil
	},
	"pg_num_nulls": func(_ Call, a []datum.Datum) (datum.Datum, error) { return datum.Int(countNulls(a)), nil },
	"pg_num_nonnulls": func(_ Call, a []datum.Datum) (datum.Datum, error) {
		return datum.Int(int64(len(a)) - countNulls(a)), nil
	},
}

func countNulls(a []datum.Datum) (n int64) {
	for _, d := range a {
		if d.IsNull() {
			n++
		}
	}
	return n
}
