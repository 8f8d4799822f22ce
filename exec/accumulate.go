package exec

import (
	"fmt"
	"math"
	"math/big"
	"strings"

	"github.com/cockroachdb/apd/v3"

	"neki/internal/datum"
	"neki/internal/pgerr"
)

func errMisplaced(name string) error {
	return fmt.Errorf("exec: %s stands where it was to be replaced", name)
}

// NewAccumulator finds an aggregate by name and declared argument types as pg_proc has them ("sum/23").
func NewAccumulator(signature string) (func(sig *Signature) Accumulator, bool) {
	name, args, _ := strings.Cut(signature, "/")
	switch name {
	case "count":
		return func(*Signature) Accumulator { return &counter{any: args != ""} }, true
	case "min", "max":
		want := -1
		if name == "max" {
			want = 1
		}
		return func(*Signature) Accumulator { return &extreme{want: want} }, extremeArgs[args]
	case "bool_and", "every", "bool_or":
		return func(*Signature) Accumulator { return &logical{or: name == "bool_or"} }, true
	case "string_agg":
		return func(*Signature) Accumulator { return &joined{} }, args == "25,25"
	case "array_agg":
		return func(*Signature) Accumulator { return &gathered{} }, args == "2776"
	case "sum", "avg":
		return newSum(name == "avg", args)
	case "var_pop", "var_samp", "variance", "stddev_pop", "stddev_samp", "stddev":
		return newVariance(name, args)
	}
	return nil, false
}

// extremeArgs are the argument types for which min and max are built.
var extremeArgs = map[string]bool{
	"20": true, "21": true, "23": true, "26": true, "25": true, "700": true, "701": true, "1082": true, "1114": true,
	"1184": true, "1186": true, "1700": true, "3220": true, "2277": true,
}

type counter struct {
	any bool // count(x): NULLs don't count
	n   int64
}

func (a *counter) Add(_ Call, args []datum.Datum) error {
	if !a.any || !args[0].IsNull() {
		a.n++
	}
	return nil
}
func (a *counter) Value(Call) (datum.Datum, error) { return datum.Int(a.n), nil }

type extreme struct {
	want int
	best datum.Datum
}

func (a *extreme) Add(c Call, args []datum.Datum) error {
	d := args[0]
	if d.IsNull() {
		return nil
	}
	if a.best.IsNull() || datum.Compare(c.Args[0].OID, d, a.best)*a.want > 0 {
		a.best = d
	}
	return nil
}
func (a *extreme) Value(Call) (datum.Datum, error) { return a.best, nil }

type logical struct {
	or    bool
	value datum.Datum
}

func (a *logical) Add(_ Call, args []datum.Datum) error {
	if d := args[0]; !d.IsNull() && (a.value.IsNull() || d.Bool() == a.or) {
		a.value = d
	}
	return nil
}
func (a *logical) Value(Call) (datum.Datum, error) { return a.value, nil }

type joined struct {
	any  bool
	text strings.Builder
}

func (a *joined) growth(args []datum.Datum) int64 { return args[0].Size() + args[1].Size() }

func (a *joined) Add(_ Call, args []datum.Datum) error {
	if args[0].IsNull() {
		return nil
	}
	if a.any && !args[1].IsNull() {
		a.text.WriteString(args[1].Text())
	}
	a.any = true
	a.text.WriteString(args[0].Text())
	return nil
}

func (a *joined) Value(Call) (datum.Datum, error) {
	if !a.any {
		return datum.Null, nil
	}
	return datum.Text(a.text.String()), nil
}

type gathered struct{ items []datum.Datum }

func (a *gathered) growth(args []datum.Datum) int64 { return args[0].Size() }

func (a *gathered) Add(_ Call, args []datum.Datum) error {
	a.items = append(a.items, args[0])
	return nil
}

func (a *gathered) Value(c Call) (datum.Datum, error) {
	if a.items == nil {
		return datum.Null, nil
	}
	return datum.FromArray(&datum.Array{Elem: datum.Elem(c.Result.OID), Items: a.items}), nil
}

func newSum(avg bool, args string) (func(sig *Signature) Accumulator, bool) {
	switch args {
	case "20", "21", "23":
		return func(*Signature) Accumulator { return &intSum{avg: avg, wide: args == "20"} }, true
	case "1700":
		return func(*Signature) Accumulator { return &numericSum{avg: avg} }, true
	case "700", "701":
		return func(*Signature) Accumulator { return &floatSum{avg: avg, single: args == "700"} }, true
	case "1186":
		return func(*Signature) Accumulator { return &intervalSum{avg: avg} }, true
	}
	return nil, false
}

// intSum sums integers: exactly, in an int64 while it fits.
type intSum struct {
	avg, wide bool
	n         int64
	sum       int64
	big       *big.Int
}

func (a *intSum) Add(_ Call, args []datum.Datum) error {
	if args[0].IsNull() {
		return nil
	}
	a.n++
	v := args[0].Int()
	s := a.sum + v
	if (s > a.sum) == (v > 0) {
		a.sum = s
		return nil
	}
	if a.big == nil {
		a.big = new(big.Int)
	}
	a.big.Add(a.big, big.NewInt(a.sum))
	a.sum = v
	return nil
}

func (a *intSum) Value(Call) (datum.Datum, error) {
	if a.n == 0 {
		return datum.Null, nil
	}
	if !a.avg && !a.wide {
		if a.big != nil {
			return datum.Null, outOfRange("bigint")
		}
		return datum.Int(a.sum), nil
	}
	sum := datum.NumericFromInt(a.sum)
	if a.big != nil {
		sum = datum.NumericFromBig(new(big.Int).Add(a.big, big.NewInt(a.sum)), 0)
	}
	if !a.avg {
		return sum, nil
	}
	return datum.NumericDiv(sum.Numeric(), apd.New(a.n, 0))
}

func outOfRange(typeName string) error {
	return pgerr.New(pgerr.NumericValueOutOfRange, "%s out of range", typeName)
}

type numericSum struct {
	avg bool
	n   int64
	sum datum.Datum
}

func (a *numericSum) Add(_ Call, args []datum.Datum) (err error) {
	if args[0].IsNull() {
		return nil
	}
	if a.n++; a.n == 1 {
		a.sum = args[0]
		return nil
	}
	a.sum, err = datum.NumericAdd(a.sum.Numeric(), args[0].Numeric())
	return err
}

func (a *numericSum) Value(Call) (datum.Datum, error) {
	if a.n == 0 || !a.avg {
		return a.sum, nil
	}
	return datum.NumericDiv(a.sum.Numeric(), apd.New(a.n, 0))
}

type floatSum struct {
	avg, single bool
	n           int64
	sum         float64
}

func (a *floatSum) Add(_ Call, args []datum.Datum) error {
	if args[0].IsNull() {
		return nil
	}
	a.n++
	v := args[0].Float()
	s := a.sum + v
	if a.single && !a.avg {
		s = float64(float32(s))
	}
	if math.IsInf(s, 0) && !math.IsInf(a.sum, 0) && !math.IsInf(v, 0) {
		return errFloatOverflow
	}
	a.sum = s
	return nil
}

var (
	errFloatOverflow  = pgerr.New(pgerr.NumericValueOutOfRange, "value out of range: overflow")
	errFloatUnderflow = pgerr.New(pgerr.NumericValueOutOfRange, "value out of range: underflow")
)

func (a *floatSum) Value(Call) (datum.Datum, error) {
	switch {
	case a.n == 0:
		return datum.Null, nil
	case a.avg:
		return datum.Float(a.sum / float64(a.n)), nil
	}
	return datum.Float(a.sum), nil
}

type intervalSum struct {
	avg bool
	n   int64
	sum datum.Interval
}

func (a *intervalSum) Add(_ Call, args []datum.Datum) (err error) {
	if args[0].IsNull() {
		return nil
	}
	a.n++
	a.sum, err = a.sum.Add(args[0].Interval())
	return err
}

func (a *intervalSum) Value(Call) (datum.Datum, error) {
	if a.n == 0 {
		return datum.Null, nil
	}
	if !a.avg {
		return datum.FromInterval(a.sum), nil
	}
	iv, err := a.sum.Div(float64(a.n))
	return datum.FromInterval(iv), err
}

func newVariance(name, args string) (func(sig *Signature) Accumulator, bool) {
	pop, root := strings.HasSuffix(name, "_pop"), strings.HasPrefix(name, "stddev")
	switch args {
	case "700", "701":
		return func(*Signature) Accumulator { return &floatVariance{pop: pop, root: root} }, true
	case "20", "21", "23", "1700":
		return func(*Signature) Accumulator { return &numericVariance{pop: pop, root: root, whole: args != "1700"} }, true
	}
	return nil, false
}

// floatVariance is the server's Youngs-Cramer accumulation.
type floatVariance struct {
	pop, root bool
	n, sx, sy float64
}

func (a *floatVariance) Add(_ Call, args []datum.Datum) error {
	if args[0].IsNull() {
		return nil
	}
	v := args[0].Float()
	n := a.n + 1
	sx, sy := a.sx+v, a.sy
	if a.n > 0 {
		t := v*n - sx
		sy += t * t / (n * a.n)
		if math.IsInf(sx, 0) || math.IsInf(sy, 0) {
			if !math.IsInf(a.sx, 0) && !math.IsInf(v, 0) {
				return errFloatOverflow
			}
			sy = math.NaN()
		}
	} else if math.IsNaN(v) || math.IsInf(v, 0) {
		sy = math.NaN()
	}
	a.n, a.sx, a.sy = n, sx, sy
	return nil
}

func (a *floatVariance) Value(Call) (datum.Datum, error) {
	d := a.n
	if !a.pop {
		d--
	}
	if d <= 0 {
		return datum.Null, nil
	}
	v := a.sy / d
	if a.root {
		v = math.Sqrt(v)
	}
	return datum.Float(v), nil
}

// numericVariance keeps the exact sums of the values and of their squares.
type numericVariance struct {
	pop, root, whole bool
	n                int64
	sum, squares     datum.Datum
}

func (a *numericVariance) Add(_ Call, args []datum.Datum) error {
	if args[0].IsNull() {
		return nil
	}
	v := args[0]
	if a.whole {
		v = datum.NumericFromInt(v.Int())
	}
	square, err := datum.NumericMul(v.Numeric(), v.Numeric())
	if err != nil {
		return err
	}
	if a.n++; a.n == 1 {
		a.sum, a.squares = v, square
		return nil
	}
	if a.sum, err = datum.NumericAdd(a.sum.Numeric(), v.Numeric()); err != nil {
		return err
	}
	a.squares, err = datum.NumericAdd(a.squares.Numeric(), square.Numeric())
	return err
}

func (a *numericVariance) Value(Call) (datum.Datum, error) {
	if a.n == 0 || a.n == 1 && !a.pop {
		return datum.Null, nil
	}
	return datum.NumericVariance(a.n, a.sum.Numeric(), a.squares.Numeric(), a.pop, a.root)
}
