package exec

import (
	"math"

	"neki/internal/datum"
	"neki/internal/pgerr"
)

func ofInterval(iv datum.Interval, err error) (datum.Datum, error) {
	if err != nil {
		return datum.Null, err
	}
	return datum.FromInterval(iv), nil
}

var intervalBuiltins = map[string]Builtin{
	"interval_pl": func(_ Call, a []datum.Datum) (datum.Datum, error) {
		return ofInterval(a[0].Interval().Add(a[1].Interval()))
	},
	"interval_mi": func(_ Call, a []datum.Datum) (datum.Datum, error) {
		neg, err := a[1].Interval().Neg()
		if err != nil {
			return datum.Null, err
		}
		return ofInterval(a[0].Interval().Add(neg))
	},
	"interval_um": func(_ Call, a []datum.Datum) (datum.Datum, error) { return ofInterval(a[0].Interval().Neg()) },
	"interval_mul": func(_ Call, a []datum.Datum) (datum.Datum, error) {
		return ofInterval(a[0].Interval().Mul(a[1].Float()))
	},
	"mul_d_interval": func(_ Call, a []datum.Datum) (datum.Datum, error) {
		return ofInterval(a[1].Interval().Mul(a[0].Float()))
	},
	"interval_div": func(_ Call, a []datum.Datum) (datum.Datum, error) {
		return ofInterval(a[0].Interval().Div(a[1].Float()))
	},
	"interval_pl_date": func(c Call, a []datum.Datum) (datum.Datum, error) { return swapped(c, a, timestampPlus(1)) },
	"interval_pl_timestamp": func(c Call, a []datum.Datum) (datum.Datum, error) {
		return swapped(c, a, timestampPlus(1))
	},
	"interval_pl_timestamptz": func(c Call, a []datum.Datum) (datum.Datum, error) {
		return swapped(c, a, timestampPlus(1))
	},
	"interval_justify_hours": func(_ Call, a []datum.Datum) (datum.Datum, error) {
		iv := a[0].Interval()
		carry(&iv.Micros, datum.MicrosPerDay, &iv.Days)
		return datum.FromInterval(settle(iv)), nil
	},
	"interval_justify_days": func(_ Call, a []datum.Datum) (datum.Datum, error) {
		iv := a[0].Interval()
		iv.Months += iv.Days / 30
		iv.Days %= 30
		switch {
		case iv.Months > 0 && iv.Days < 0:
			iv.Days, iv.Months = iv.Days+30, iv.Months-1
		case iv.Months < 0 && iv.Days > 0:
			iv.Days, iv.Months = iv.Days-30, iv.Months+1
		}
		return datum.FromInterval(iv), nil
	},
	"interval_finite": func(Call, []datum.Datum) (datum.Datum, error) { return datum.Bool(true), nil },
	"interval_trunc":  intervalTrunc,
	"make_interval":   makeInterval,
	"interval_scale": func(_ Call, a []datum.Datum) (datum.Datum, error) {
		if a[1].Int() != -1 {
			return datum.Null, pgerr.New(pgerr.FeatureNotSupported, "interval with fields or precision is not supported")
		}
		return a[0], nil
	},
}

// swapped calls fn with its two operands (and their types) exchanged.
func swapped(c Call, a []datum.Datum, fn Builtin) (datum.Datum, error) {
	sig := *c.Signature
	sig.Args = []datum.Type{c.Args[1], c.Args[0]}
	return fn(Call{&sig, c.run}, []datum.Datum{a[1], a[0]})
}

func carry(from *int64, unit int64, to *int32) {
	*to += int32(*from / unit)
	*from %= unit
}

// settle gives days and time one sign.
func settle(iv datum.Interval) datum.Interval {
	switch {
	case iv.Days > 0 && iv.Micros < 0:
		iv.Micros, iv.Days = iv.Micros+datum.MicrosPerDay, iv.Days-1
	case iv.Days < 0 && iv.Micros > 0:
		iv.Micros, iv.Days = iv.Micros-datum.MicrosPerDay, iv.Days+1
	}
	return iv
}

func intervalTrunc(c Call, a []datum.Datum) (datum.Datum, error) {
	unit, err := unitOf(a[0].Text(), datum.IntervalOID)
	if err != nil {
		return datum.Null, err
	}
	iv := a[1].Interval()
	if step, ok := smallUnits[unit]; ok {
		iv.Micros -= iv.Micros % step
		return datum.FromInterval(iv), nil
	}
	iv.Micros = 0
	months := int32(0)
	switch unit {
	case "day":
		return datum.FromInterval(iv), nil
	case "month":
		months = 1
	case "quarter":
		months = 3
	case "year":
		months = 12
	case "decade":
		months = 120
	case "century":
		months = 1200
	case "millennium":
		months = 12000
	default:
		e := errUnit(a[0].Text(), datum.IntervalOID)
		return datum.Null, e
	}
	iv.Days = 0
	iv.Months -= iv.Months % months
	return datum.FromInterval(iv), nil
}

func makeInterval(_ Call, a []datum.Datum) (datum.Datum, error) {
	months := a[0].Int()*12 + a[1].Int()
	days := a[2].Int()*7 + a[3].Int()
	secs := a[6].Float()
	us := math.RoundToEven(secs * 1000000)
	if months != int64(int32(months)) || days != int64(int32(days)) || math.IsNaN(us) || math.Abs(us) > 9e18 {
		return datum.Null, pgerr.New(pgerr.DatetimeFieldOverflow, "interval out of range")
	}
	return datum.FromInterval(datum.Interval{
		Months: int32(months), Days: int32(days),
		Micros: a[4].Int()*3600000000 + a[5].Int()*60000000 + int64(us),
	}), nil
}
