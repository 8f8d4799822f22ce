package build

import (
	"strings"

	"neki/exec"
	"neki/internal/datum"
	"neki/internal/pgerr"
	"neki/sqlparse"
)

// funcArgs are the built arguments of a call.
type funcArgs struct {
	exprs   []exec.Expr
	offsets []int32
	names   []string // of name => value; "" for positional ones
	types   []uint32
}

func (b *builder) funcCall(l *level, n *sqlparse.FuncCall) (exec.Expr, error) {
	names := strs(n.Funcname)
	schema, name := "", names[len(names)-1]
	if len(names) > 1 {
		schema = names[len(names)-2]
	}
	if n.FuncVariadic || n.AggWithinGroup {
		return nil, unsupported(n.Location, "VARIADIC or WITHIN GROUP in a call")
	}
	aggregate := isAggregate(schema, name)
	args, err := b.arguments(l, n, aggregate && n.Over == nil)
	if err != nil {
		return nil, err
	}
	c, err := b.findFunction(schema, name, n, args)
	if err != nil {
		return nil, err
	}
	if c == nil { // a type's name used as a function
		return b.castCall(name, args, n.Location)
	}
	if c.own != nil {
		return b.ownCall(c, name, args, n)
	}
	if c.row.kind == 'a' {
		return b.aggregate(l, n, c, args)
	}
	if n.Over != nil {
		return b.windowFunction(l, n, c, args)
	}
	if c.row.kind == 'w' {
		return nil, errAt(n.Location, pgerr.WrongObjectType, "window function %s requires an OVER clause", name)
	}
	if err := plainCall(n, name); err != nil {
		return nil, err
	}
	if c.row.set {
		return nil, unsupported(n.Location, "the set-returning function %s outside of FROM", name)
	}
	result, exprs, err := b.bind(c, args.exprs, args.offsets, n.Location)
	if err != nil {
		return nil, err
	}
	return b.call(c.row, name, result, b.fillDefaults(c, exprs, args), n.Location)
}

// plainCall refuses what only an aggregate may have.
func plainCall(n *sqlparse.FuncCall, name string) error {
	what := ""
	switch {
	case n.AggStar:
		what = name + "(*)"
	case n.AggDistinct:
		what = "DISTINCT"
	case len(n.AggOrder) > 0:
		what = "ORDER BY"
	case n.AggFilter != nil:
		what = "FILTER"
	default:
		return nil
	}
	return errAt(n.Location, pgerr.WrongObjectType, "%s specified, but %s is not an aggregate function", what, name)
}

func isAggregate(schema, name string) bool {
	if schema != "" && schema != "pg_catalog" {
		return false
	}
	for _, p := range system().procs[name] {
		if p.kind == 'a' {
			return true
		}
	}
	return false
}

func (b *builder) arguments(l *level, n *sqlparse.FuncCall, aggregate bool) (*funcArgs, error) {
	if aggregate {
		if err := b.aggregateAllowed(l, n); err != nil {
			return nil, err
		}
		oldWindows := l.windows
		l.inAgg, l.windows = true, false
		defer func() { l.inAgg, l.windows = false, oldWindows }()
	}
	args := &funcArgs{}
	for _, a := range n.Args {
		argName := ""
		if named := a.GetNamedArgExpr(); named != nil {
			argName, a = named.Name, named.Arg
		} else if len(args.names) > 0 && args.names[len(args.names)-1] != "" {
			return nil, errAt(place(a), pgerr.SyntaxError, "positional argument cannot follow named argument")
		}
		e, err := b.expr(l, a)
		if err != nil {
			return nil, err
		}
		args.exprs, args.offsets = append(args.exprs, e), append(args.offsets, place(a))
		args.names, args.types = append(args.names, argName), append(args.types, e.Type().OID)
	}
	return args, nil
}

// argumentNames are those of the builtins with defaults, which are called by name => value.
var argumentNames = map[string][]string{
	"make_interval": {"years", "months", "weeks", "days", "hours", "mins", "secs"},
}

// findFunction resolves a call; nil without error when it is a cast.
func (b *builder) findFunction(schema, name string, n *sqlparse.FuncCall, args *funcArgs) (*candidate, error) {
	all, err := b.candidates(schema, name, args)
	if err != nil {
		return nil, err
	}
	for i := range all {
		if equalOIDs(all[i].args, args.types) {
			return &all[i], nil
		}
	}
	if schema == "" && len(args.types) == 1 && isCastCall(name, args.types[0]) {
		return nil, nil
	}
	best, ambiguous := choose(args.types, all)
	if best != nil {
		return best, nil
	}
	var types []string
	for i, t := range args.types {
		text := typeName(t)
		if args.names[i] != "" {
			text = args.names[i] + " => " + text
		}
		types = append(types, text)
	}
	full := name
	if schema != "" {
		full = schema + "." + name
	}
	text := full + "(" + strings.Join(types, ", ") + ")"
	if n.AggStar {
		text = full + "()"
	}
	if ambiguous {
		return nil, errAt(n.Location, pgerr.AmbiguousFunction, "function %s is not unique", text).
			hint("Could not choose a best candidate function. You might need to add explicit type casts.")
	}
	missing := errAt(n.Location, pgerr.UndefinedFunction, "function %s does not exist", text)
	if usage := b.usage(schema, name); usage != "" {
		return nil, missing.hint("It is declared as %s.", usage)
	}
	return nil, missing.hint("No function matches the given name and argument types. You might need to add explicit type casts.")
}

func isCastCall(name string, from uint32) bool {
	t := system().typeByName[name]
	if t == nil {
		return false
	}
	if from == datum.UnknownOID {
		return true
	}
	kind, _ := pathway(from, t.oid, explicit)
	return kind == byRelabel || kind == byIO
}

func (b *builder) castCall(name string, args *funcArgs, offset int32) (exec.Expr, error) {
	to := system().typeByName[name].oid
	e, err := b.coerce(args.exprs[0], datum.Of(to), explicit, args.offsets[0])
	if err == nil && e == nil {
		return nil, unsupported(offset, "a cast to %s", name)
	}
	return e, err
}

func (b *builder) candidates(schema, name string, args *funcArgs) ([]candidate, error) {
	var all []candidate
	if f, ok := b.resolver.(Functions); ok && schema != "pg_catalog" {
		for _, fn := range f.Functions(schema, name) {
			if c, ok := ownCandidate(name, fn, args); ok {
				all = append(all, c)
			}
		}
	}
	if schema != "" && schema != "pg_catalog" {
		return all, nil
	}
	for _, p := range system().procs[name] {
		if c, ok := spreadCandidate(p, args); ok {
			all = append(all, c)
		}
	}
	return all, nil
}

// usage says how a function of the resolver's is declared, "" when there is none of that name.
func (b *builder) usage(schema, name string) string {
	if f, ok := b.resolver.(Functions); ok && schema != "pg_catalog" {
		for _, fn := range f.Functions(schema, name) {
			return fn.Usage
		}
	}
	return ""
}

// spreadCandidate fits a function to the number and names of arguments.
func spreadCandidate(p *procRow, args *funcArgs) (candidate, bool) {
	given := len(args.types)
	c := candidate{row: p, args: p.args}
	if given > 0 && args.names[given-1] != "" {
		return namedCandidate(p, args)
	}
	switch {
	case given == len(p.args) && p.variadic == 0:
		return c, true
	case p.variadic != 0 && given >= len(p.args):
		c.spread = true
		c.args = append([]uint32(nil), p.args[:len(p.args)-1]...)
		for len(c.args) < given {
			c.args = append(c.args, p.variadic)
		}
		return c, true
	case given < len(p.args) && given >= len(p.args)-p.defaults && p.variadic == 0:
		c.args = p.args[:given]
		return c, true
	}
	return c, false
}

// namedCandidate knows only functions whose arguments all have defaults.
func namedCandidate(p *procRow, args *funcArgs) (candidate, bool) {
	names := argumentNames[p.name]
	c := candidate{row: p}
	for i, name := range args.names {
		at := i
		if name != "" {
			at = indexOf(names, name)
		}
		if at < 0 || at >= len(p.args) || len(names) == 0 {
			return c, false
		}
		c.args = append(c.args, p.args[at])
	}
	return c, true
}

func indexOf(list []string, s string) int {
	for i, x := range list {
		if x == s {
			return i
		}
	}
	return -1
}

func ownCandidate(name string, fn Function, args *funcArgs) (candidate, bool) {
	c := candidate{row: &procRow{name: name, args: fn.Args, result: fn.Result, kind: 'f', set: fn.Table != nil}, own: &fn}
	taken := make([]bool, len(fn.Args))
	for i, argName := range args.names {
		at := i
		if argName != "" {
			at = indexOf(fn.ArgNames, argName)
		}
		if at < 0 || at >= len(fn.Args) || taken[at] {
			return c, false
		}
		taken[at] = true
		c.args = append(c.args, fn.Args[at])
	}
	for i := range fn.Required {
		if !taken[i] {
			return c, false
		}
	}
	return c, true
}

// inOrder puts named arguments in their places and fills those left out.
func inOrder(exprs []exec.Expr, given, names []string, types []uint32, missing func(i int) exec.Expr) []exec.Expr {
	out := make([]exec.Expr, len(types))
	for i, e := range exprs {
		at := i
		if given[i] != "" {
			at = indexOf(names, given[i])
		}
		out[at] = e
	}
	for i := range out {
		if out[i] == nil {
			out[i] = missing(i)
		}
	}
	return out
}

// fillDefaults gives the arguments that were left out of a builtin: all its defaults are zeros.
func (b *builder) fillDefaults(c *candidate, exprs []exec.Expr, args *funcArgs) []exec.Expr {
	if n := len(args.names); n > 0 && args.names[n-1] != "" {
		return inOrder(exprs, args.names, argumentNames[c.row.name], c.row.args, func(i int) exec.Expr {
			return zero(c.row.args[i])
		})
	}
	for len(exprs) < len(c.row.args) && c.row.variadic == 0 && c.row.defaults > 0 {
		t := c.row.args[len(exprs)]
		exprs = append(exprs, zero(t))
	}
	return exprs
}

func zero(oid uint32) exec.Expr {
	if oid == datum.Float8OID {
		return &exec.Const{Value: datum.Float(0), Typ: datum.Of(oid)}
	}
	return &exec.Const{Value: datum.Int(0), Typ: datum.Of(oid)}
}

func (b *builder) ownCall(c *candidate, name string, args *funcArgs, n *sqlparse.FuncCall) (exec.Expr, error) {
	if c.own.Scalar == nil {
		return nil, unsupported(n.Location, "the set-returning function %s outside of FROM", name)
	}
	_, exprs, err := b.bind(c, args.exprs, args.offsets, n.Location)
	if err != nil {
		return nil, err
	}
	exprs = ownArguments(c.own, exprs, args)
	scalar := c.own.Scalar
	fn := func(call exec.Call, values []datum.Datum) (datum.Datum, error) {
		return scalar(call.Context(), call.Env(), append([]datum.Datum(nil), values...))
	}
	return exec.NewFunc(name, "own "+name, fn, false, datum.Of(c.own.Result), exprs...), nil
}

func ownArguments(fn *Function, exprs []exec.Expr, args *funcArgs) []exec.Expr {
	return inOrder(exprs, args.names, fn.ArgNames, fn.Args, func(i int) exec.Expr {
		return &exec.Const{Typ: datum.Of(fn.Args[i])}
	})
}

// aggregateAllowed checks that the level may have an aggregate here.
func (b *builder) aggregateAllowed(l *level, n *sqlparse.FuncCall) error {
	switch {
	case l.inAgg:
		return errAt(n.Location, pgerr.GroupingError, "aggregate function calls cannot be nested")
	case l.place != "":
		return errAt(n.Location, pgerr.GroupingError, "aggregate functions are not allowed in %s", l.place)
	}
	return nil
}

func (b *builder) aggregate(l *level, n *sqlparse.FuncCall, c *candidate, args *funcArgs) (exec.Expr, error) {
	name := c.row.name
	if len(args.exprs) == 0 && !n.AggStar {
		return nil, errAt(n.Location, pgerr.WrongObjectType,
			"%s(*) must be used to call a parameterless aggregate function", name)
	}
	result, exprs, err := b.bind(c, args.exprs, args.offsets, n.Location)
	if err != nil {
		return nil, err
	}
	var declared, types []string
	known := datum.Known(result.OID)
	for i, a := range exprs {
		declared = append(declared, itoa(c.row.args[i]))
		types = append(types, typeName(a.Type().OID))
		known = known && datum.Known(a.Type().OID)
	}
	newState, ok := exec.NewAccumulator(name + "/" + strings.Join(declared, ","))
	if !ok || !known {
		return nil, unsupported(n.Location, "%s(%s)", name, strings.Join(types, ", "))
	}
	call := &exec.AggregateCall{Name: name, New: newState, Args: exprs, Distinct: n.AggDistinct, Star: n.AggStar, Typ: result}
	if err := b.aggregateExtras(l, n, call); err != nil {
		return nil, err
	}
	if n.Over != nil {
		if call.Distinct {
			return nil, errAt(n.Location, pgerr.FeatureNotSupported, "DISTINCT is not implemented for window functions")
		}
		if len(call.OrderBy) > 0 {
			return nil, errAt(n.Location, pgerr.FeatureNotSupported, "aggregate ORDER BY is not implemented for window functions")
		}
		return b.window(l, n, &exec.WindowCall{Aggregate: call, Typ: result})
	}
	if onlyOuter(call) {
		return nil, unsupported(n.Location, "an aggregate over columns of an outer query")
	}
	l.hasAgg = true
	return call, nil
}

// onlyOuter reports whether an aggregate would belong to a level around its own.
func onlyOuter(call *exec.AggregateCall) bool {
	outer, own := false, false
	exec.Walk(call, func(e exec.Expr) bool {
		switch e.(type) {
		case *exec.Arg:
			outer = true
		case *exec.ColumnRef:
			own = true
		}
		return true
	})
	return outer && !own
}

func (b *builder) aggregateExtras(l *level, n *sqlparse.FuncCall, call *exec.AggregateCall) error {
	l.inAgg = n.Over == nil
	defer func() { l.inAgg = false }()
	for _, o := range n.AggOrder {
		s := o.GetSortBy()
		e, err := b.expr(l, s.Node)
		if err != nil {
			return err
		}
		if e, err = b.textIfUnknown(e); err != nil {
			return err
		}
		k, err := sortKey(e, s, place(s.Node))
		if err != nil {
			return err
		}
		if call.Distinct && !contains(call.Args, e) {
			return errAt(place(s.Node), pgerr.InvalidColumnReference,
				"in an aggregate with DISTINCT, ORDER BY expressions must appear in argument list")
		}
		call.OrderBy = append(call.OrderBy, k)
	}
	if call.Distinct {
		for i, a := range call.Args {
			if !datum.Comparable(a.Type().OID) {
				return unsupported(place(n.Args[i]), "DISTINCT over type %s", typeName(a.Type().OID))
			}
		}
	}
	if n.AggFilter == nil {
		return nil
	}
	return l.within("FILTER", func() error {
		inAgg := l.inAgg
		l.inAgg = false
		defer func() { l.inAgg = inAgg }()
		e, err := b.expr(l, n.AggFilter)
		if err != nil {
			return err
		}
		call.Filter, err = b.boolean(e, place(n.AggFilter), "FILTER")
		return err
	})
}

func contains(list []exec.Expr, e exec.Expr) bool {
	for _, x := range list {
		if exec.Key(x) == exec.Key(e) {
			return true
		}
	}
	return false
}

func itoa(n uint32) string {
	if n >= 10 {
		return itoa(n/10) + string(rune('0'+n%10))
	}
	return string(rune('0' + n))
}

// sortKey reads ASC, DESC and NULLS.
func sortKey(e exec.Expr, s *sqlparse.SortBy, offset int32) (exec.SortKey, error) {
	k := exec.SortKey{Expr: e}
	switch s.SortbyDir {
	case sqlparse.SortByDir_SORTBY_DESC:
		k.Desc = true
	case sqlparse.SortByDir_SORTBY_USING:
		return k, unsupported(offset, "ORDER BY USING")
	}
	k.NullsFirst = k.Desc
	switch s.SortbyNulls {
	case sqlparse.SortByNulls_SORTBY_NULLS_FIRST:
		k.NullsFirst = true
	case sqlparse.SortByNulls_SORTBY_NULLS_LAST:
		k.NullsFirst = false
	}
	return k, orderable(e, offset)
}

func orderable(e exec.Expr, offset int32) error {
	oid := e.Type().OID
	if datum.Comparable(oid) {
		return nil
	}
	if oid == datum.JSONOID {
		return errAt(offset, pgerr.UndefinedFunction, "could not identify an ordering operator for type json").
			hint("Use an explicit ordering operator or modify the query.")
	}
	return unsupported(offset, "the order of type %s", typeName(oid))
}
