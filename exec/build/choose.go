package build

import (
	"strings"

	"neki/exec"
	"neki/internal/datum"
	"neki/internal/pgerr"
)

// candidate is a function or operator with its parameters as this call would see them (variadic ones spread out).
type candidate struct {
	row    *procRow
	own    *Function // of the resolver; row then only has the name
	args   []uint32
	spread bool // variadic arguments are spread
}

// choose is func_match_argtypes and func_select_candidate of the server: the best candidate for the given argument
// types. nil with ambiguous set when several are as good.
func choose(given []uint32, all []candidate) (best *candidate, ambiguous bool) {
	for i, c := range all {
		if equalOIDs(c.args, given) {
			return &all[i], false
		}
	}
	var list []candidate
	for _, c := range all {
		if canCoerce(given, c.args, implicit) {
			list = append(list, c)
		}
	}
	switch len(list) {
	case 0:
		return nil, false
	case 1:
		return &list[0], false
	}
	list = mostMatches(list, given, func(i int, t uint32) bool { return t == given[i] })
	if len(list) > 1 {
		list = mostMatches(list, given, func(i int, t uint32) bool {
			cat, _ := category(given[i])
			tcat, pref := category(t)
			return t == given[i] || pref && cat == tcat
		})
	}
	if len(list) > 1 {
		list = byUnknowns(list, given)
	}
	if len(list) == 1 {
		return &list[0], false
	}
	return nil, true
}

func equalOIDs(a, b []uint32) bool {
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return len(a) == len(b)
}

// mostMatches keeps the candidates with the most matching parameters among those of known arguments.
func mostMatches(list []candidate, given []uint32, match func(i int, t uint32) bool) []candidate {
	var kept []candidate
	best := 0
	for _, c := range list {
		n := 0
		for i, t := range c.args {
			if given[i] != datum.UnknownOID && match(i, t) {
				n++
			}
		}
		switch {
		case n > best || kept == nil:
			best, kept = n, []candidate{c}
		case n == best:
			kept = append(kept, c)
		}
	}
	return kept
}

// byUnknowns decides by the categories that the parameters of unknown arguments have, then by taking unknown arguments
// for the type of the known ones.
func byUnknowns(list []candidate, given []uint32) []candidate {
	unknowns := 0
	for _, t := range given {
		if t == datum.UnknownOID {
			unknowns++
		}
	}
	if unknowns == 0 {
		return list
	}
	if kept := byCategory(list, given); len(kept) > 0 {
		list = kept
	}
	if len(list) == 1 || unknowns == len(given) {
		return list
	}
	known := uint32(datum.UnknownOID)
	for _, t := range given {
		if t == datum.UnknownOID {
			continue
		}
		if known != datum.UnknownOID && known != t {
			return list
		}
		known = t
	}
	same := make([]uint32, len(given))
	for i := range same {
		same[i] = known
	}
	var kept []candidate
	for _, c := range list {
		if canCoerce(same, c.args, implicit) {
			kept = append(kept, c)
		}
	}
	if len(kept) == 1 {
		return kept
	}
	return list
}

type slot struct {
	category  byte
	preferred bool
}

// byCategory gives nil when some slot's category can't be told.
func byCategory(list []candidate, given []uint32) []candidate {
	slots := make([]slot, len(given))
	for i, t := range given {
		if t != datum.UnknownOID {
			continue
		}
		conflict := false
		for _, c := range list {
			cat, pref := category(c.args[i])
			switch {
			case slots[i].category == 0:
				slots[i] = slot{cat, pref}
			case slots[i].category == cat:
				slots[i].preferred = slots[i].preferred || pref
			case cat == 'S':
				slots[i] = slot{cat, pref}
			default:
				conflict = true
			}
		}
		if conflict && slots[i].category != 'S' {
			return nil
		}
	}
	var kept []candidate
	for _, c := range list {
		ok := true
		for i, t := range given {
			cat, pref := category(c.args[i])
			ok = ok && (t != datum.UnknownOID || cat == slots[i].category && (pref || !slots[i].preferred))
		}
		if ok {
			kept = append(kept, c)
		}
	}
	return kept
}

// findOperator resolves an operator; left is 0 for a prefix operator.
func findOperator(name string, left, right uint32, offset int32) (*candidate, error) {
	given := []uint32{right}
	if left != 0 {
		given = []uint32{left, right}
	}
	var all []candidate
	for _, p := range system().operators[name] {
		if len(p.args) == len(given) {
			all = append(all, candidate{row: p, args: p.args})
		}
	}
	// an unknown operand is first taken for the other's type
	exact := append([]uint32(nil), given...)
	if len(given) == 2 {
		for i := range exact {
			if exact[i] == datum.UnknownOID {
				exact[i] = exact[1-i]
			}
		}
		for i, c := range all {
			if equalOIDs(c.args, exact) {
				return &all[i], nil
			}
		}
	}
	best, ambiguous := choose(given, all)
	if best != nil {
		return best, nil
	}
	text := name + " " + typeName(right)
	if left != 0 {
		text = typeName(left) + " " + text
	}
	if ambiguous {
		return nil, errAt(offset, pgerr.AmbiguousFunction, "operator is not unique: %s", text).
			hint("Could not choose a best candidate operator. You might need to add explicit type casts.")
	}
	hint := "No operator matches the given name and argument types. You might need to add explicit type casts."
	if left == 0 {
		hint = "No operator matches the given name and argument type. You might need to add an explicit type cast."
	}
	return nil, errAt(offset, pgerr.UndefinedFunction, "operator does not exist: %s", text).hint("%s", hint)
}

// bind coerces the arguments to a candidate's parameters and gives the result's type.
func (b *builder) bind(c *candidate, args []exec.Expr, offsets []int32, offset int32) (datum.Type, []exec.Expr, error) {
	given := make([]uint32, len(args))
	for i, a := range args {
		given[i] = a.Type().OID
	}
	g := &generic{}
	for _, t := range c.args {
		if polymorphic(t) {
			var ok bool
			if g, ok = bindGeneric(given, c.args); !ok {
				return datum.Type{}, nil, errAt(offset, pgerr.DatatypeMismatch, "arguments of polymorphic types don't agree")
			}
			break
		}
	}
	out := make([]exec.Expr, len(args))
	for i, a := range args {
		to := g.of(c.args[i])
		if to == 0 {
			return datum.Type{}, nil, errAt(offset, "42P18", "could not determine polymorphic type because input has type unknown")
		}
		if to == datum.AnyOID && a.Type().OID == datum.UnknownOID {
			if c.row.kind == 'a' {
				out[i] = a
				continue
			}
			to = datum.TextOID
		}
		e, err := b.coerce(a, datum.Of(to), implicit, offsets[i])
		if err != nil {
			return datum.Type{}, nil, err
		}
		if e == nil {
			return datum.Type{}, nil, errAt(offset, "42846", "cannot cast type %s to %s", typeName(given[i]), typeName(to))
		}
		out[i] = e
	}
	return datum.Of(g.of(c.row.result)), out, nil
}

// operator builds left name right; left is nil for a prefix operator.
func (b *builder) operator(name string, left, right exec.Expr, offsets [2]int32, offset int32) (exec.Expr, error) {
	var l uint32
	args, places := []exec.Expr{right}, []int32{offsets[1]}
	if left != nil {
		l = left.Type().OID
		args, places = []exec.Expr{left, right}, offsets[:]
	}
	c, err := findOperator(name, l, right.Type().OID, offset)
	if err != nil {
		return nil, err
	}
	result, args, err := b.bind(c, args, places, offset)
	if err != nil {
		return nil, err
	}
	return b.call(c.row, name, result, args, offset)
}

// call makes the expression for a resolved function or operator.
func (b *builder) call(row *procRow, name string, result datum.Type, args []exec.Expr, offset int32) (exec.Expr, error) {
	fn, ok := exec.Lookup(row.proc)
	for _, a := range args {
		ok = ok && datum.Known(a.Type().OID)
	}
	if ok && needsOrder(row.proc) {
		for _, a := range args {
			ok = ok && datum.Comparable(a.Type().OID)
		}
	}
	if !ok || !datum.Known(result.OID) {
		var types []string
		for _, a := range args {
			types = append(types, typeName(a.Type().OID))
		}
		return nil, unsupported(offset, "%s(%s)", name, strings.Join(types, ", "))
	}
	return exec.NewFunc(name, row.proc, fn, row.strict, result, args...), nil
}

// needsOrder lists the polymorphic builtins that compare items.
func needsOrder(proc string) bool {
	return strings.HasPrefix(proc, "array_") && len(proc) == len("array_eq") || strings.HasPrefix(proc, "arraycontain") ||
		proc == "arrayoverlap" || proc == "array_position" || proc == "array_remove"
}
