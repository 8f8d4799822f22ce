package exec

import (
	"math"
	"math/big"
	"strings"
	"time"

	"github.com/cockroachdb/apd/v3"

	"neki/internal/datum"
	"neki/internal/pgerr"
)

var (
	errTimestampRange = pgerr.New(pgerr.DatetimeFieldOverflow, "timestamp out of range")
	errDateRange      = pgerr.New(pgerr.DatetimeFieldOverflow, "date out of range")
)

// addInterval adds to a timestamp as the wall clock of the zone shows it: months, then days, then the time.
func addInterval(us int64, iv datum.Interval, zone *time.Location) (int64, error) {
	if datum.IsInfinite(us) {
		return us, nil
	}
	if iv.Months != 0 || iv.Days != 0 {
		year, month, day, clock := datum.ToCivil(datum.ToLocal(us, zone))
		if iv.Months != 0 {
			m := int64(year)*12 + int64(month-1) + int64(iv.Months)
			year, month = int(math.Floor(float64(m)/12)), int(((m%12)+12)%12)+1
			day = min(day, datum.DaysInMonth(year, month))
		}
		days := datum.DaysOf(year, month, day) + int64(iv.Days)
		if days > 110000000 || days < -3000000 {
			return 0, errTimestampRange
		}
		us = datum.ToInstant(days*datum.MicrosPerDay+clock, zone)
	}
	sum := us + iv.Micros
	if (sum > us) != (iv.Micros > 0) && iv.Micros != 0 || !datum.InRange(sum) {
		return 0, errTimestampRange
	}
	return sum, nil
}

func timestampPlus(sign int) Builtin {
	return func(c Call, a []datum.Datum) (datum.Datum, error) {
		iv := a[1].Interval()
		if sign < 0 {
			var err error
			if iv, err = iv.Neg(); err != nil {
				return datum.Null, err
			}
		}
		us := a[0].Int()
		if c.Args[0].OID == datum.DateOID {
			us = dateMicros(us)
		}
		us, err := addInterval(us, iv, c.zoneOf(c.Args[0].OID))
		return datum.Int(us), err
	}
}

// timestampDifference gives days and the rest of a difference.
func timestampDifference(_ Call, a []datum.Datum) (datum.Datum, error) {
	x, y := a[0].Int(), a[1].Int()
	if datum.IsInfinite(x) || datum.IsInfinite(y) {
		return datum.Null, pgerr.New(pgerr.DatetimeFieldOverflow, "cannot subtract infinite timestamps")
	}
	diff := x - y
	if (diff > x) != (y < 0) && y != 0 {
		return datum.Null, pgerr.New(pgerr.DatetimeFieldOverflow, "interval out of range")
	}
	return datum.FromInterval(datum.Interval{Days: int32(diff / datum.MicrosPerDay), Micros: diff % datum.MicrosPerDay}), nil
}

func datePlus(sign int64) Builtin {
	return func(_ Call, a []datum.Datum) (datum.Datum, error) {
		if d := a[0].Int(); d == datum.DatePosInfinity || d == datum.DateNegInfinity {
			return a[0], nil
		}
		days := a[0].Int() + sign*a[1].Int()
		if !datum.DateInRange(days) {
			return datum.Null, errDateRange
		}
		return datum.Int(days), nil
	}
}

func dateDifference(_ Call, a []datum.Datum) (datum.Datum, error) {
	for _, d := range a {
		if d.Int() == datum.DatePosInfinity || d.Int() == datum.DateNegInfinity {
			return datum.Null, pgerr.New(pgerr.DatetimeFieldOverflow, "cannot subtract infinite dates")
		}
	}
	return datum.Int(a[0].Int() - a[1].Int()), nil
}

func nowBuiltin(c Call, _ []datum.Datum) (datum.Datum, error) {
	return datum.FromTime(c.run.env.Now), nil
}

var timeBuiltins = map[string]Builtin{
	"now":               nowBuiltin,
	"timestamp_to_char": timeToChar, "timestamptz_to_char": timeToChar,
	"statement_timestamp": func(c Call, a []datum.Datum) (datum.Datum, error) {
		if c.run.env.Statement.IsZero() {
			return nowBuiltin(c, a)
		}
		return datum.FromTime(c.run.env.Statement), nil
	},
	"clock_timestamp": func(Call, []datum.Datum) (datum.Datum, error) { return datum.FromTime(time.Now()), nil },
	"current_date": func(c Call, _ []datum.Datum) (datum.Datum, error) {
		return localDate(datum.ToLocal(datum.TimeToMicros(c.run.env.Now), c.zone())), nil
	},
	"localtimestamp": func(c Call, _ []datum.Datum) (datum.Datum, error) {
		return datum.Int(datum.ToLocal(datum.TimeToMicros(c.run.env.Now), c.zone())), nil
	},
	"timestamp_pl_interval": timestampPlus(1), "timestamptz_pl_interval": timestampPlus(1), "date_pl_interval": timestampPlus(1),
	"timestamp_mi_interval": timestampPlus(-1), "timestamptz_mi_interval": timestampPlus(-1), "date_mi_interval": timestampPlus(-1),
	"timestamp_mi": timestampDifference, "date_pli": datePlus(1), "date_mii": datePlus(-1), "date_mi": dateDifference,
	"integer_pl_date": func(c Call, a []datum.Datum) (datum.Datum, error) {
		return datePlus(1)(c, []datum.Datum{a[1], a[0]})
	},
	"timestamptz_timestamp": func(c Call, a []datum.Datum) (datum.Datum, error) {
		return datum.Int(datum.ToLocal(a[0].Int(), c.zone())), nil
	},
	"timestamp_timestamptz": func(c Call, a []datum.Datum) (datum.Datum, error) {
		return checkTimestamp(datum.ToInstant(a[0].Int(), c.zone()))
	},
	"timestamptz_date": func(c Call, a []datum.Datum) (datum.Datum, error) {
		return localDate(datum.ToLocal(a[0].Int(), c.zone())), nil
	},
	"timestamp_date": func(_ Call, a []datum.Datum) (datum.Datum, error) { return localDate(a[0].Int()), nil },
	"date_timestamp": func(_ Call, a []datum.Datum) (datum.Datum, error) { return checkTimestamp(dateMicros(a[0].Int())) },
	"date_timestamptz": func(c Call, a []datum.Datum) (datum.Datum, error) {
		return checkTimestamp(datum.ToInstant(dateMicros(a[0].Int()), c.zone()))
	},
	"timestamp_scale": timeScale, "timestamptz_scale": timeScale,
	"timestamptz_zone": func(_ Call, a []datum.Datum) (datum.Datum, error) {
		zone, err := datum.ParseZone(a[0].Text())
		if err != nil {
			return datum.Null, err
		}
		return datum.Int(datum.ToLocal(a[1].Int(), zone)), nil
	},
	"timestamp_zone": func(_ Call, a []datum.Datum) (datum.Datum, error) {
		zone, err := datum.ParseZone(a[0].Text())
		if err != nil {
			return datum.Null, err
		}
		return checkTimestamp(datum.ToInstant(a[1].Int(), zone))
	},
	"timestamp_finite": func(_ Call, a []datum.Datum) (datum.Datum, error) {
		return datum.Bool(!datum.IsInfinite(a[0].Int())), nil
	},
	"date_finite": func(_ Call, a []datum.Datum) (datum.Datum, error) {
		return datum.Bool(a[0].Int() != datum.DatePosInfinity && a[0].Int() != datum.DateNegInfinity), nil
	},
	"float8_timestamptz": func(_ Call, a []datum.Datum) (datum.Datum, error) {
		f := a[0].Float()
		switch {
		case math.IsNaN(f):
			return datum.Null, pgerr.New(pgerr.DatetimeFieldOverflow, "timestamp cannot be NaN")
		case math.IsInf(f, 1):
			return datum.Int(datum.PosInfinity), nil
		case math.IsInf(f, -1):
			return datum.Int(datum.NegInfinity), nil
		case math.Abs(f) > 1e13:
			return datum.Null, errTimestampRange
		}
		return checkTimestamp(int64(math.RoundToEven((f - 946684800) * 1000000)))
	},
	"timestamp_trunc": truncBuiltin, "timestamptz_trunc": truncBuiltin,
	"timestamptz_trunc_zone": func(_ Call, a []datum.Datum) (datum.Datum, error) {
		zone, err := datum.ParseZone(a[2].Text())
		if err != nil {
			return datum.Null, err
		}
		return truncTime(a[0].Text(), a[1].Int(), zone, datum.TimestamptzOID)
	},
	"timestamp_age": ageBuiltin, "timestamptz_age": ageBuiltin,
	"age/1114": ageToday, "age/1184": ageToday,
	"timestamp_part": partBuiltin, "timestamptz_part": partBuiltin, "date_part/25,1082": partBuiltin, "interval_part": partBuiltin,
	"extract_timestamp": extractBuiltin, "extract_timestamptz": extractBuiltin, "extract_date": extractBuiltin,
	"extract_interval": extractBuiltin,
}

func localDate(local int64) datum.Datum {
	switch local {
	case datum.PosInfinity:
		return datum.Int(datum.DatePosInfinity)
	case datum.NegInfinity:
		return datum.Int(datum.DateNegInfinity)
	}
	return datum.Int(int64(math.Floor(float64(local) / datum.MicrosPerDay)))
}

func checkTimestamp(us int64) (datum.Datum, error) {
	if !datum.IsInfinite(us) && !datum.InRange(us) {
		return datum.Null, errTimestampRange
	}
	return datum.Int(us), nil
}

// timeScale is timestamp(p): rounds to p digits of a second.
func timeScale(_ Call, a []datum.Datum) (datum.Datum, error) {
	us, precision := a[0].Int(), a[1].Int()
	if datum.IsInfinite(us) || precision < 0 || precision >= 6 {
		return a[0], nil
	}
	return datum.Int(roundTo(us, precision)), nil
}

func roundTo(us, precision int64) int64 {
	unit := int64(math.Pow10(int(6 - precision)))
	if us >= 0 {
		return (us + unit/2) / unit * unit
	}
	return -((-us + unit/2) / unit * unit)
}

// units are the names that date_trunc and extract take, brought to one word each.
var units = map[string]string{
	"microseconds": "microseconds", "microsecond": "microseconds", "usec": "microseconds", "usecs": "microseconds", "us": "microseconds",
	"milliseconds": "milliseconds", "millisecond": "milliseconds", "msec": "milliseconds", "msecs": "milliseconds", "ms": "milliseconds",
	"second": "second", "seconds": "second", "sec": "second", "secs": "second", "s": "second",
	"minute": "minute", "minutes": "minute", "min": "minute", "mins": "minute", "m": "minute",
	"hour": "hour", "hours": "hour", "hr": "hour", "hrs": "hour", "h": "hour",
	"day": "day", "days": "day", "d": "day", "week": "week", "weeks": "week", "w": "week",
	"month": "month", "months": "month", "mon": "month", "mons": "month", "quarter": "quarter", "qtr": "quarter",
	"year": "year", "years": "year", "yr": "year", "yrs": "year", "y": "year",
	"decade": "decade", "decades": "decade", "dec": "decade", "decs": "decade",
	"century": "century", "centuries": "century", "cent": "century", "c": "century",
	"millennium": "millennium", "millennia": "millennium", "mil": "millennium", "mils": "millennium",
	"epoch": "epoch", "dow": "dow", "isodow": "isodow", "doy": "doy", "isoyear": "isoyear", "julian": "julian",
	"timezone": "timezone", "timezone_h": "timezone_hour", "timezone_hour": "timezone_hour", "timezone_m": "timezone_minute",
	"timezone_minute": "timezone_minute",
}

func unitOf(name string, oid uint32) (string, error) {
	unit, ok := units[strings.ToLower(name)]
	if !ok {
		return "", pgerr.New(pgerr.InvalidParameterValue, "unit \"%s\" not recognized for type %s", strings.ToLower(name), datum.Name(oid))
	}
	return unit, nil
}

func errUnit(name string, oid uint32) error {
	return pgerr.New(pgerr.FeatureNotSupported, "unit \"%s\" not supported for type %s", strings.ToLower(name), datum.Name(oid))
}

func truncBuiltin(c Call, a []datum.Datum) (datum.Datum, error) {
	return truncTime(a[0].Text(), a[1].Int(), c.zoneOf(c.Args[1].OID), c.Args[1].OID)
}

func truncTime(name string, us int64, zone *time.Location, oid uint32) (datum.Datum, error) {
	if datum.IsInfinite(us) {
		return datum.Int(us), nil
	}
	unit, err := unitOf(name, oid)
	if err != nil {
		return datum.Null, err
	}
	local := datum.ToLocal(us, zone)
	year, month, day, clock := datum.ToCivil(local)
	days := datum.DaysOf(year, month, day)
	step, small := smallUnits[unit]
	switch {
	case small:
		if unit == "hour" || unit == "minute" || unit == "second" || unit == "milliseconds" || unit == "microseconds" {
			// below a day the zone's offset stays what it is
			return datum.Int(us - clock%step), nil
		}
	case unit == "day":
	case unit == "week":
		days -= mod(days+5, 7) // 2000-01-01 was a Saturday
	case unit == "month":
		days = datum.DaysOf(year, month, 1)
	case unit == "quarter":
		days = datum.DaysOf(year, (month-1)/3*3+1, 1)
	default:
		first, ok := firstYear(unit, year)
		if !ok {
			return datum.Null, errUnit(name, oid)
		}
		days = datum.DaysOf(first, 1, 1)
	}
	return checkTimestamp(datum.ToInstant(days*datum.MicrosPerDay, zone))
}

// smallUnits are the units below a day, in microseconds.
var smallUnits = map[string]int64{
	"microseconds": 1, "milliseconds": 1000, "second": 1000000, "minute": 60000000, "hour": 3600000000,
}

func mod(a, b int64) int64 { return (a%b + b) % b }

// firstYear gives the first year of the year, decade, century or millennium that year is in.
func firstYear(unit string, year int) (int, bool) {
	floor := func(y, n int) int { return int(math.Floor(float64(y)/float64(n))) * n }
	switch unit {
	case "year":
		return year, true
	case "decade":
		return floor(year, 10), true
	case "century":
		return floor(year-1, 100) + 1, true
	case "millennium":
		return floor(year-1, 1000) + 1, true
	}
	return 0, false
}

func partBuiltin(c Call, a []datum.Datum) (datum.Datum, error) {
	coeff, scale, special, err := partOf(c, a, false)
	switch {
	case err != nil || special == 2:
		return datum.Null, err
	case special != 0:
		return datum.Float(math.Inf(special)), nil
	}
	f, _ := new(big.Float).SetInt(coeff).Float64()
	return datum.Float(f / math.Pow10(int(scale))), nil
}

func extractBuiltin(c Call, a []datum.Datum) (datum.Datum, error) {
	coeff, scale, special, err := partOf(c, a, true)
	switch {
	case err != nil || special == 2:
		return datum.Null, err
	case special != 0:
		return datum.Numeric(&apd.Decimal{Form: apd.Infinite, Negative: special < 0}), nil
	}
	return datum.NumericFromBig(coeff, scale), nil
}

// partOf gives a field as coeff * 10^-scale; special is 1 and -1 for infinities and 2 for NULL. A date has no fields
// below a day with extract (strict), but has them as midnight with date_part.
func partOf(c Call, a []datum.Datum, strict bool) (coeff *big.Int, scale int32, special int, err error) {
	oid := c.Args[1].OID
	name := a[0].Text()
	unit, err := unitOf(name, oid)
	if err != nil {
		return nil, 0, 0, err
	}
	if oid == datum.IntervalOID {
		coeff, scale, ok := intervalPart(unit, a[1].Interval())
		if !ok {
			return nil, 0, 0, errUnit(name, oid)
		}
		return coeff, scale, 0, nil
	}
	us := a[1].Int()
	if oid == datum.DateOID {
		if _, below := smallUnits[unit]; strict && (below || strings.HasPrefix(unit, "timezone")) {
			return nil, 0, 0, errUnit(name, oid)
		}
		us = dateMicros(us)
		if unit == "epoch" && !datum.IsInfinite(us) && strict {
			return big.NewInt(us/1000000 + 946684800), 0, 0, nil
		}
		if !strict {
			oid = datum.TimestampOID
		}
	}
	if datum.IsInfinite(us) {
		return infinitePart(name, unit, us, oid)
	}
	zone := c.zoneOf(oid)
	coeff, scale, ok := timestampPart(unit, us, zone, oid)
	if !ok {
		return nil, 0, 0, errUnit(name, oid)
	}
	return coeff, scale, 0, nil
}

func infinitePart(name, unit string, us int64, oid uint32) (*big.Int, int32, int, error) {
	switch unit {
	case "year", "decade", "century", "millennium", "julian", "isoyear", "epoch":
		if us > 0 {
			return nil, 0, 1, nil
		}
		return nil, 0, -1, nil
	case "timezone", "timezone_hour", "timezone_minute":
		if oid != datum.TimestamptzOID {
			return nil, 0, 0, errUnit(name, oid)
		}
	}
	return nil, 0, 2, nil
}

func timestampPart(unit string, us int64, zone *time.Location, oid uint32) (*big.Int, int32, bool) {
	local := datum.ToLocal(us, zone)
	year, month, day, clock := datum.ToCivil(local)
	days := datum.DaysOf(year, month, day)
	whole := func(n int) (*big.Int, int32, bool) { return big.NewInt(int64(n)), 0, true }
	switch unit {
	case "microseconds":
		return big.NewInt(clock % 60000000), 0, true
	case "milliseconds":
		return big.NewInt(clock % 60000000), 3, true
	case "second":
		return big.NewInt(clock % 60000000), 6, true
	case "minute":
		return whole(int(clock / 60000000 % 60))
	case "hour":
		return whole(int(clock / 3600000000))
	case "day":
		return whole(day)
	case "month":
		return whole(month)
	case "quarter":
		return whole((month-1)/3 + 1)
	case "week", "isoyear":
		isoYear, week := isoWeek(days)
		if unit == "week" {
			return whole(week)
		}
		if isoYear <= 0 {
			isoYear--
		}
		return whole(isoYear)
	case "year", "decade", "century", "millennium":
		return whole(yearPart(unit, year))
	case "dow":
		return whole(int(mod(days+6, 7)))
	case "isodow":
		return whole(int(mod(days+5, 7)) + 1)
	case "doy":
		return whole(int(days-datum.DaysOf(year, 1, 1)) + 1)
	case "epoch":
		return new(big.Int).Add(big.NewInt(us), big.NewInt(946684800000000)), 6, true
	case "julian":
		return julian(days, clock, oid)
	}
	if oid != datum.TimestamptzOID {
		return nil, 0, false
	}
	offset := int(datum.Offset(us, zone))
	switch unit {
	case "timezone":
		return whole(offset)
	case "timezone_hour":
		return whole(offset / 3600)
	case "timezone_minute":
		return whole(offset / 60 % 60)
	}
	return nil, 0, false
}

func julian(days, clock int64, oid uint32) (*big.Int, int32, bool) {
	if oid == datum.DateOID || clock == 0 {
		if oid != datum.DateOID {
			return nil, 0, false
		}
		return big.NewInt(days + 2451545), 0, true
	}
	return nil, 0, false
}

func yearPart(unit string, year int) int {
	floorDiv := func(a, b int) int { return int(math.Floor(float64(a) / float64(b))) }
	switch unit {
	case "decade":
		return floorDiv(year, 10)
	case "century":
		if year > 0 {
			return (year + 99) / 100
		}
		return -((99 - (year - 1)) / 100)
	case "millennium":
		if year > 0 {
			return (year + 999) / 1000
		}
		return -((999 - (year - 1)) / 1000)
	}
	if year <= 0 {
		return year - 1
	}
	return year
}

func isoWeek(days int64) (year, week int) {
	thursday := days - mod(days+5, 7) + 3
	year, _, _ = datum.CivilDate(thursday)
	return year, int(thursday-datum.DaysOf(year, 1, 1))/7 + 1
}

func intervalPart(unit string, iv datum.Interval) (*big.Int, int32, bool) {
	whole := func(n int64) (*big.Int, int32, bool) { return big.NewInt(n), 0, true }
	years := int64(iv.Months / 12)
	switch unit {
	case "microseconds":
		return whole(iv.Micros % 60000000)
	case "milliseconds":
		return big.NewInt(iv.Micros % 60000000), 3, true
	case "second":
		return big.NewInt(iv.Micros % 60000000), 6, true
	case "minute":
		return whole(iv.Micros / 60000000 % 60)
	case "hour":
		return whole(iv.Micros / 3600000000)
	case "day":
		return whole(int64(iv.Days))
	case "month":
		return whole(int64(iv.Months % 12))
	case "quarter":
		return whole(int64(iv.Months%12/3 + 1))
	case "year":
		return whole(years)
	case "decade":
		return whole(years / 10)
	case "century":
		return whole(years / 100)
	case "millennium":
		return whole(years / 1000)
	case "epoch":
		return iv.Epoch(), 6, true
	}
	return nil, 0, false
}

// ageBuiltin is the symbolic difference: years and months, days, time.
func ageBuiltin(c Call, a []datum.Datum) (datum.Datum, error) {
	x, y := a[0].Int(), a[1].Int()
	if datum.IsInfinite(x) || datum.IsInfinite(y) {
		return datum.Null, errTimestampRange
	}
	zone := c.zoneOf(c.Args[0].OID)
	x, y = datum.ToLocal(x, zone), datum.ToLocal(y, zone)
	negative := x < y
	if negative {
		x, y = y, x
	}
	y1, m1, d1, c1 := datum.ToCivil(x)
	y2, m2, d2, c2 := datum.ToCivil(y)
	clock, days, months := c1-c2, d1-d2, (y1*12+m1)-(y2*12+m2)
	if clock < 0 {
		clock, days = clock+datum.MicrosPerDay, days-1
	}
	for days < 0 {
		days += datum.DaysInMonth(y2, m2) // of the earlier one
		months--
	}
	iv := datum.Interval{Months: int32(months), Days: int32(days), Micros: clock}
	if negative {
		iv = datum.Interval{Months: -iv.Months, Days: -iv.Days, Micros: -iv.Micros}
	}
	return datum.FromInterval(iv), nil
}

// ageToday counts back from midnight of the current day.
func ageToday(c Call, a []datum.Datum) (datum.Datum, error) {
	local := datum.ToLocal(datum.TimeToMicros(c.run.env.Now), c.zone())
	midnight := local - mod(local, datum.MicrosPerDay)
	if c.Args[0].OID == datum.TimestamptzOID {
		midnight = datum.ToInstant(midnight, c.zone())
	}
	return ageBuiltin(c, []datum.Datum{datum.Int(midnight), a[0]})
}
