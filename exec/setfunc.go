package exec

import (
	"context"

	"neki/internal/datum"
	"neki/internal/pgerr"
)

// SetFunc is a set-returning builtin: it gives its rows one by one to yield until that gives false.
type SetFunc func(c Call, args []datum.Datum, yield func(row ...datum.Datum) error) error

// FuncScan is a set-returning builtin in FROM.
type FuncScan struct {
	Name    string
	Fn      SetFunc
	Args    []Expr
	Types   []datum.Type // of the columns
	Ordinal bool         // WITH ORDINALITY
}

func (o *FuncScan) width() int {
	if o.Ordinal {
		return len(o.Types) + 1
	}
	return len(o.Types)
}

func (o *FuncScan) open(f *frame) (Node, error) {
	n := &rowsNode{out: NewBatch(o.width()), mem: account{budget: f.env.Budget}}
	args, err := evalAll(f, o.Args, nil)
	if err != nil {
		return nil, err
	}
	sig := &Signature{Name: o.Name, Result: o.Types[0]}
	for i, a := range o.Args {
		sig.Args = append(sig.Args, a.Type())
		if args[i].IsNull() {
			return n, nil // every one of them is strict
		}
	}
	err = o.Fn(Call{sig, f.run}, args, func(row ...datum.Datum) error {
		row = append([]datum.Datum(nil), row...)
		if o.Ordinal {
			row = append(row, datum.Int(int64(len(n.rows)+1)))
		}
		n.rows = append(n.rows, row)
		if len(n.rows)%4096 == 0 {
			if err := cancelled(f); err != nil {
				return err
			}
		}
		return n.mem.take(rowSize(row))
	})
	if err != nil {
		_ = n.Close() // frees memory only
		return nil, err
	}
	return n, nil
}

// LookupSet finds a set-returning builtin by its pg_proc.prosrc.
func LookupSet(proc string) (SetFunc, bool) {
	switch proc {
	case "generate_series_int4", "generate_series_step_int4", "generate_series_int8", "generate_series_step_int8":
		return seriesInt, true
	case "generate_series_numeric", "generate_series_step_numeric":
		return seriesNumeric, true
	case "generate_series_timestamp", "generate_series_timestamptz":
		return seriesTime, true
	case "array_unnest":
		return unnest, true
	}
	return nil, false
}

var errZeroStep = pgerr.New(pgerr.InvalidParameterValue, "step size cannot equal zero")

func seriesInt(c Call, args []datum.Datum, yield func(row ...datum.Datum) error) error {
	step := int64(1)
	if len(args) > 2 {
		step = args[2].Int()
	}
	if step == 0 {
		return errZeroStep
	}
	for i, end := args[0].Int(), args[1].Int(); step > 0 && i <= end || step < 0 && i >= end; {
		if err := yield(datum.Int(i)); err != nil {
			return err
		}
		next := i + step
		if (next > i) != (step > 0) {
			return nil
		}
		i = next
	}
	return nil
}

func seriesNumeric(_ Call, args []datum.Datum, yield func(row ...datum.Datum) error) error {
	step := datum.NumericFromInt(1)
	if len(args) > 2 {
		step = args[2]
	}
	for _, a := range append([]datum.Datum{step}, args...) {
		if a.Numeric().Form != 0 {
			return pgerr.New(pgerr.InvalidParameterValue, "start, stop and step values cannot be NaN or infinity")
		}
	}
	sign := datum.NumericSign(step.Numeric())
	if sign == 0 {
		return errZeroStep
	}
	for i := args[0]; datum.CompareNumeric(i.Numeric(), args[1].Numeric())*sign <= 0; {
		err := yield(i)
		if err != nil {
			return err
		}
		if i, err = datum.NumericAdd(i.Numeric(), step.Numeric()); err != nil {
			return err
		}
	}
	return nil
}

func seriesTime(c Call, args []datum.Datum, yield func(row ...datum.Datum) error) error {
	step := args[2].Interval()
	sign := datum.CompareInterval(step, datum.Interval{})
	if sign == 0 {
		return errZeroStep
	}
	for at := args[0].Int(); sign > 0 && at <= args[1].Int() || sign < 0 && at >= args[1].Int(); {
		err := yield(datum.Int(at))
		if err != nil {
			return err
		}
		if at, err = addInterval(at, step, c.zoneOf(c.Result.OID)); err != nil {
			return err
		}
	}
	return nil
}

func unnest(_ Call, args []datum.Datum, yield func(row ...datum.Datum) error) error {
	for _, item := range args[0].Array().Items {
		if err := yield(item); err != nil {
			return err
		}
	}
	return nil
}

// SourceScan reads a relation that a table function of the resolver gives for its arguments.
type SourceScan struct {
	Make    func(ctx context.Context, env *Env, args []datum.Datum) (Source, error)
	Args    []Expr
	Columns int
}

func (o *SourceScan) width() int { return o.Columns }

func (o *SourceScan) open(f *frame) (Node, error) {
	args, err := evalAll(f, o.Args, nil)
	if err != nil {
		return nil, err
	}
	source, err := o.Make(f.ctx, f.env, args)
	if err != nil {
		return nil, err
	}
	if source == nil {
		return &rowsNode{}, nil
	}
	used := make([]bool, o.Columns)
	for i := range used {
		used[i] = true
	}
	return source.Open(f.ctx, Need{Columns: used, Env: f.env})
}
