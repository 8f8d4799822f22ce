package datum

import (
	"math"
	"math/big"
	"strconv"
	"strings"

	"neki/internal/pgerr"
)

// appendInterval writes IntervalStyle postgres (EncodeInterval of the server).
func appendInterval(dst []byte, iv Interval) []byte {
	start := len(dst)
	negativeBefore := false // a part before this one was negative: positive ones then show their sign
	part := func(n int64, unit string) {
		if n == 0 {
			return
		}
		if len(dst) > start {
			dst = append(dst, ' ')
		}
		if negativeBefore && n > 0 {
			dst = append(dst, '+')
		}
		dst = strconv.AppendInt(dst, n, 10)
		dst = append(dst, ' ')
		dst = append(dst, unit...)
		if n != 1 {
			dst = append(dst, 's')
		}
		negativeBefore = n < 0
	}
	part(int64(iv.Months/12), "year")
	part(int64(iv.Months%12), "mon")
	part(int64(iv.Days), "day")
	if iv.Micros == 0 && len(dst) > start {
		return dst
	}
	if len(dst) > start {
		dst = append(dst, ' ')
	}
	us := uint64(iv.Micros)
	switch {
	case iv.Micros < 0:
		dst, us = append(dst, '-'), -us
	case negativeBefore:
		dst = append(dst, '+')
	}
	dst = appendPadded(dst, int(us/3600000000), 2)
	us %= 3600000000
	dst = append(dst, ':')
	dst = appendPadded(dst, int(us/60000000), 2)
	us %= 60000000
	dst = append(dst, ':')
	dst = appendPadded(dst, int(us/1000000), 2)
	return appendFraction(dst, int64(us%1000000))
}

// span gives the interval as days of 24 hours and a rest, a month being 30 days: the order of intervals.
func (iv Interval) span() (days, micros int64) {
	q, r := floorDiv(iv.Micros, MicrosPerDay)
	return int64(iv.Months)*30 + int64(iv.Days) + q, r
}

// intervalUnits gives the months, days and microseconds of one unit.
var intervalUnits = map[string]struct {
	months float64
	days   float64
	micros float64
}{
	"microsecond": {0, 0, 1}, "microseconds": {0, 0, 1}, "us": {0, 0, 1}, "usec": {0, 0, 1}, "usecs": {0, 0, 1}, "microsecon": {0, 0, 1},
	"millisecond": {0, 0, 1e3}, "milliseconds": {0, 0, 1e3}, "ms": {0, 0, 1e3}, "msec": {0, 0, 1e3}, "msecs": {0, 0, 1e3},
	"second": {0, 0, 1e6}, "seconds": {0, 0, 1e6}, "sec": {0, 0, 1e6}, "secs": {0, 0, 1e6}, "s": {0, 0, 1e6},
	"minute": {0, 0, 6e7}, "minutes": {0, 0, 6e7}, "min": {0, 0, 6e7}, "mins": {0, 0, 6e7}, "m": {0, 0, 6e7},
	"hour": {0, 0, 3.6e9}, "hours": {0, 0, 3.6e9}, "hr": {0, 0, 3.6e9}, "hrs": {0, 0, 3.6e9}, "h": {0, 0, 3.6e9},
	"day": {0, 1, 0}, "days": {0, 1, 0}, "d": {0, 1, 0}, "week": {0, 7, 0}, "weeks": {0, 7, 0}, "w": {0, 7, 0},
	"month": {1, 0, 0}, "months": {1, 0, 0}, "mon": {1, 0, 0}, "mons": {1, 0, 0},
	"year": {12, 0, 0}, "years": {12, 0, 0}, "yr": {12, 0, 0}, "yrs": {12, 0, 0}, "y": {12, 0, 0},
	"decade": {120, 0, 0}, "decades": {120, 0, 0}, "dec": {120, 0, 0}, "decs": {120, 0, 0},
	"century": {1200, 0, 0}, "centuries": {1200, 0, 0}, "c": {1200, 0, 0}, "cent": {1200, 0, 0},
	"millennium": {12000, 0, 0}, "millennia": {12000, 0, 0}, "mil": {12000, 0, 0}, "mils": {12000, 0, 0},
}

func invalidInterval(s string) error {
	return pgerr.New(pgerr.InvalidDatetimeFormat, "invalid input syntax for type interval: \"%s\"", s)
}

func intervalOverflow(s string) error {
	return pgerr.New("22015", "interval field value out of range: \"%s\"", s)
}

// intervalSum collects the parts of an interval string.
type intervalSum struct {
	months, days, micros float64 // whole units; float64 holds them exactly up to 2^53
	text                 string
}

func (sum *intervalSum) add(value string, unit string) error {
	u, ok := intervalUnits[unit]
	if !ok {
		return invalidInterval(sum.text)
	}
	whole, frac, err := splitNumber(value)
	if err != nil {
		return invalidInterval(sum.text)
	}
	if u.micros > 0 {
		sum.micros += whole*u.micros + math.RoundToEven(frac*u.micros)
		return nil
	}
	sum.months += whole * u.months
	sum.days += whole * u.days
	if frac != 0 {
		sum.addFraction(frac, u.months, u.days)
	}
	return nil
}

// addFraction spreads the fraction of a unit downwards as Postgres does: of years to months (rounded), of months to
// days and time, of weeks and days to time.
func (sum *intervalSum) addFraction(frac, months, days float64) {
	if months >= 12 {
		sum.months += math.RoundToEven(frac * months)
		return
	}
	if months == 1 {
		days = 30
	}
	d := frac * days
	whole := math.Trunc(d)
	sum.days += whole
	sum.micros += math.RoundToEven((d - whole) * MicrosPerDay)
}

func splitNumber(s string) (whole, frac float64, err error) {
	sign := 1.0
	switch {
	case strings.HasPrefix(s, "-"):
		sign, s = -1, s[1:]
	case strings.HasPrefix(s, "+"):
		s = s[1:]
	}
	dot := strings.IndexByte(s, '.')
	if dot < 0 {
		dot = len(s)
	}
	if dot > 0 {
		if whole, err = strconv.ParseFloat(s[:dot], 64); err != nil {
			return 0, 0, err
		}
	}
	if dot < len(s)-1 {
		if frac, err = strconv.ParseFloat("0"+s[dot:], 64); err != nil {
			return 0, 0, err
		}
	}
	return sign * whole, sign * frac, nil
}

func parseInterval(text string) (Datum, error) {
	sum := intervalSum{text: text}
	s := strings.ToLower(strings.TrimSpace(text))
	var err error
	switch {
	case s == "":
		return Null, invalidInterval(text)
	case s[0] == 'p' || len(s) > 1 && s[0] == '-' && s[1] == 'p':
		err = sum.parseISO(s)
	default:
		err = sum.parsePostgres(s)
	}
	if err != nil {
		return Null, err
	}
	return sum.datum()
}

func (sum *intervalSum) datum() (Datum, error) {
	if math.Abs(sum.months) > math.MaxInt32 || math.Abs(sum.days) > math.MaxInt32 || math.Abs(sum.micros) > 9.2e18 {
		return Null, intervalOverflow(sum.text)
	}
	return FromInterval(Interval{int32(sum.months), int32(sum.days), int64(sum.micros)}), nil
}

// parsePostgres reads "1 year -2 days +03:04:05.6", "1-2", "@ 1 hour ago", "3 4:05".
func (sum *intervalSum) parsePostgres(s string) error {
	tokens := intervalTokens(s)
	if len(tokens) > 0 && tokens[0] == "@" {
		tokens = tokens[1:]
	}
	ago := len(tokens) > 0 && tokens[len(tokens)-1] == "ago"
	if ago {
		tokens = tokens[:len(tokens)-1]
	}
	if len(tokens) == 0 {
		return invalidInterval(sum.text)
	}
	seen := map[string]bool{}
	for i := 0; i < len(tokens); i++ {
		t := tokens[i]
		switch {
		case strings.ContainsRune(t, ':'):
			if err := sum.addClock(t); err != nil {
				return err
			}
		case isYearMonth(t):
			if err := sum.addYearMonth(t); err != nil {
				return err
			}
		case !startsNumber(t):
			return invalidInterval(sum.text)
		case i+1 < len(tokens) && !startsNumber(tokens[i+1]):
			unit := tokens[i+1]
			u, ok := intervalUnits[unit]
			if key := strconv.FormatFloat(u.months*1e12+u.days*1e18+u.micros, 'g', -1, 64); !ok || seen[key] {
				return invalidInterval(sum.text) // a unit may stand once only
			} else {
				seen[key] = true
			}
			if err := sum.add(t, unit); err != nil {
				return err
			}
			i++
		case i+1 < len(tokens) && strings.ContainsRune(tokens[i+1], ':'):
			if err := sum.add(t, "day"); err != nil {
				return err
			}
		case i == len(tokens)-1:
			if err := sum.add(t, "second"); err != nil {
				return err
			}
		default:
			return invalidInterval(sum.text)
		}
	}
	if ago {
		sum.months, sum.days, sum.micros = -sum.months, -sum.days, -sum.micros
	}
	return nil
}

func startsNumber(t string) bool {
	t = strings.TrimLeft(t, "+-")
	return t != "" && (t[0] >= '0' && t[0] <= '9' || t[0] == '.')
}

func isYearMonth(t string) bool {
	return startsNumber(t) && strings.ContainsRune(strings.TrimLeft(t, "+-"), '-')
}

func (sum *intervalSum) addYearMonth(t string) error {
	sign := 1.0
	if t[0] == '-' {
		sign = -1
	}
	years, months, _ := strings.Cut(strings.TrimLeft(t, "+-"), "-")
	y, err1 := strconv.Atoi(years)
	m, err2 := strconv.Atoi(months)
	if err1 != nil || err2 != nil {
		return invalidInterval(sum.text)
	}
	if m > 11 {
		return intervalOverflow(sum.text)
	}
	sum.months += sign * float64(y*12+m)
	return nil
}

// addClock reads [-]H:MM[:SS[.f]]; two parts with a fraction are minutes and seconds.
func (sum *intervalSum) addClock(t string) error {
	sign := 1.0
	if t[0] == '-' || t[0] == '+' {
		if t[0] == '-' {
			sign = -1
		}
		t = t[1:]
	}
	parts := strings.Split(t, ":")
	if len(parts) > 3 || len(parts) == 2 && strings.ContainsRune(parts[1], '.') {
		if len(parts) != 2 {
			return invalidInterval(sum.text)
		}
		parts = append([]string{"0"}, parts...)
	}
	units := [3]float64{3.6e9, 6e7, 1e6}
	var us float64
	for i, p := range parts {
		whole, frac, err := splitNumber(p)
		if err != nil || p == "" && i < 2 || i < 2 && frac != 0 || digits(p) == 0 {
			return invalidInterval(sum.text)
		}
		if i == 1 && whole > 59 || i == 2 && whole > 60 {
			return intervalOverflow(sum.text)
		}
		us += whole*units[i] + math.RoundToEven(frac*units[i])
	}
	sum.micros += sign * us
	return nil
}

// intervalTokens splits into numbers (with sign), clock times and words: "1day" is two tokens.
func intervalTokens(s string) []string {
	var tokens []string
	for i := 0; i < len(s); {
		c := s[i]
		start := i
		switch {
		case c == ' ' || c == '\t' || c == '\n' || c == ',':
			i++
			continue
		case c == '+' || c == '-' || c == '.' || c >= '0' && c <= '9':
			if c == '+' || c == '-' {
				i++
				for i < len(s) && s[i] == ' ' {
					i++
				}
			}
			digitsFrom := i
			for i < len(s) && (s[i] == '.' || s[i] == ':' || s[i] == '-' && i > digitsFrom || s[i] >= '0' && s[i] <= '9') {
				i++
			}
			tokens = append(tokens, strings.ReplaceAll(s[start:i], " ", ""))
			continue
		case c >= 'a' && c <= 'z':
			for i < len(s) && s[i] >= 'a' && s[i] <= 'z' {
				i++
			}
		default:
			i++
		}
		tokens = append(tokens, s[start:i])
	}
	return tokens
}

// parseISO reads P1Y2M3W4DT5H6M7.8S.
func (sum *intervalSum) parseISO(s string) error {
	dateUnits := map[byte]string{'y': "year", 'm': "month", 'w': "week", 'd': "day"}
	timeUnits := map[byte]string{'h': "hour", 'm': "minute", 's': "second"}
	units := dateUnits
	if s[0] == '-' {
		return invalidInterval(sum.text)
	}
	s = s[1:]
	if s == "" {
		return invalidInterval(sum.text)
	}
	for s != "" {
		if s[0] == 't' {
			units, s = timeUnits, s[1:]
			if s == "" {
				return invalidInterval(sum.text)
			}
			continue
		}
		n := 0
		for n < len(s) && (s[n] == '-' || s[n] == '+' || s[n] == '.' || s[n] >= '0' && s[n] <= '9') {
			n++
		}
		if n == 0 || n == len(s) {
			return invalidInterval(sum.text)
		}
		unit, ok := units[s[n]]
		if !ok {
			return invalidInterval(sum.text)
		}
		if err := sum.add(s[:n], unit); err != nil {
			return err
		}
		s = s[n+1:]
	}
	return nil
}

var errIntervalRange = pgerr.New(pgerr.DatetimeFieldOverflow, "interval out of range")

// Neg gives -iv.
func (iv Interval) Neg() (Interval, error) {
	if iv.Months == math.MinInt32 || iv.Days == math.MinInt32 || iv.Micros == math.MinInt64 {
		return iv, errIntervalRange
	}
	return Interval{-iv.Months, -iv.Days, -iv.Micros}, nil
}

// Add gives iv + o.
func (iv Interval) Add(o Interval) (Interval, error) {
	months, days := int64(iv.Months)+int64(o.Months), int64(iv.Days)+int64(o.Days)
	micros := iv.Micros + o.Micros
	if months != int64(int32(months)) || days != int64(int32(days)) ||
		(o.Micros > 0) != (micros > iv.Micros) && o.Micros != 0 {
		return iv, errIntervalRange
	}
	return Interval{int32(months), int32(days), micros}, nil
}

// Mul gives iv * f, spreading fractions of months and days downwards (interval_mul of the server).
func (iv Interval) Mul(f float64) (Interval, error) {
	return iv.scale(f, func(x float64) float64 { return x * f })
}

// Div gives iv / f (interval_div of the server).
func (iv Interval) Div(f float64) (Interval, error) {
	if f == 0 {
		return iv, pgerr.New(pgerr.DivisionByZero, "division by zero")
	}
	return iv.scale(f, func(x float64) float64 { return x / f })
}

func (iv Interval) scale(f float64, by func(float64) float64) (Interval, error) {
	months, days := by(float64(iv.Months)), by(float64(iv.Days))
	if math.IsNaN(months) || math.Abs(months) > math.MaxInt32 || math.IsNaN(days) || math.Abs(days) > math.MaxInt32 {
		return iv, errIntervalRange
	}
	out := Interval{Months: int32(months), Days: int32(days)}
	monthDays := roundTo6((months - float64(out.Months)) * 30)
	secs := roundTo6((days - float64(out.Days) + monthDays - math.Trunc(monthDays)) * 86400)
	if math.Abs(secs) >= 86400 {
		out.Days += int32(secs / 86400)
		secs -= math.Trunc(secs/86400) * 86400
	}
	out.Days += int32(monthDays)
	micros := math.RoundToEven(by(float64(iv.Micros)) + secs*1000000)
	if math.IsNaN(micros) || math.Abs(micros) >= math.MaxInt64 {
		return iv, errIntervalRange
	}
	out.Micros = int64(micros)
	return out, nil
}

// roundTo6 is TSROUND of the server.
func roundTo6(f float64) float64 { return math.RoundToEven(f*1000000) / 1000000 }

// Epoch gives the interval's length in microseconds, a year being 365.25 days and a month 30, as extract(epoch) does.
func (iv Interval) Epoch() *big.Int {
	secs := int64(iv.Months/12)*31557600 + int64(iv.Months%12)*2592000 + int64(iv.Days)*86400
	total := new(big.Int).Mul(big.NewInt(secs), big.NewInt(1000000))
	return total.Add(total, big.NewInt(iv.Micros))
}
