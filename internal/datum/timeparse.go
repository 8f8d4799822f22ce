package datum

import (
	"math"
	"strconv"
	"strings"
	"time"

	"neki/internal/pgerr"
)

// dateTime is what a date/time string says.
type dateTime struct {
	year, month, day int
	clock            int64 // microseconds
	hasClock         bool
	zone             *time.Location // nil: not given
	infinite         int            // -1, 0, 1
	relative         string         // now, today, ...
}

func invalidDateTime(typeName, s string) error {
	return pgerr.New(pgerr.InvalidDatetimeFormat, "invalid input syntax for type %s: \"%s\"", typeName, s)
}

func fieldOverflow(s string) error {
	return pgerr.New(pgerr.DatetimeFieldOverflow, "date/time field value out of range: \"%s\"", s)
}

// parseDateTime reads the ISO forms of dates and timestamps and Postgres's special words. Forms that Postgres knows
// besides (month names, other field orders) are refused by name, not guessed.
func parseDateTime(text, typeName string) (dateTime, error) {
	var dt dateTime
	s := strings.TrimSpace(text)
	switch lower := strings.ToLower(s); lower {
	case "infinity", "+infinity":
		dt.infinite = 1
		return dt, nil
	case "-infinity":
		dt.infinite = -1
		return dt, nil
	case "now", "today", "tomorrow", "yesterday", "epoch", "allballs":
		dt.relative = lower
		return dt, nil
	}
	rest, ok := dt.parseYMD(s)
	if !ok {
		if !strings.ContainsAny(s, "0123456789") {
			return dt, invalidDateTime(typeName, text)
		}
		return dt, unsupportedDateTime(typeName, text)
	}
	if err := dt.parseRest(rest, text, typeName); err != nil {
		return dt, err
	}
	return dt, dt.check(text)
}

func unsupportedDateTime(typeName, text string) error {
	return pgerr.New(pgerr.FeatureNotSupported, "input format not supported for type %s: \"%s\"", typeName, text).
		WithHint("Write dates as YYYY-MM-DD.")
}

func (dt *dateTime) parseYMD(s string) (rest string, ok bool) {
	parts := [3]int{}
	for i := range parts {
		n := digits(s)
		if n == 0 || n > 7 || i > 0 && n > 2 || i == 0 && n < 3 {
			return "", false
		}
		parts[i], _ = strconv.Atoi(s[:n])
		s = s[n:]
		if i < 2 {
			if s == "" || s[0] != '-' {
				return "", false
			}
			s = s[1:]
		}
	}
	dt.year, dt.month, dt.day = parts[0], parts[1], parts[2]
	return s, true
}

func digits(s string) int {
	n := 0
	for n < len(s) && s[n] >= '0' && s[n] <= '9' {
		n++
	}
	return n
}

func (dt *dateTime) parseRest(s, text, typeName string) error {
	if len(s) > 1 && (s[0] == 'T' || s[0] == 't') && digits(s[1:]) > 0 {
		s = s[1:]
	}
	s = strings.TrimLeft(s, " ")
	if n := digits(s); n > 0 {
		var ok bool
		if dt.clock, s, ok = parseClock(s); !ok {
			return unsupportedOrInvalid(typeName, text)
		}
		if dt.clock < 0 || dt.clock > MicrosPerDay {
			return fieldOverflow(text)
		}
		dt.hasClock = true
	}
	for s = strings.TrimLeft(s, " "); s != ""; s = strings.TrimLeft(s, " ") {
		n := strings.IndexByte(s, ' ')
		if n < 0 {
			n = len(s)
		}
		word := s[:n]
		s = s[n:]
		if w := strings.ToUpper(word); w == "BC" || w == "AD" {
			if w == "BC" {
				if dt.year == 0 {
					return fieldOverflow(text)
				}
				dt.year = 1 - dt.year
			}
			continue
		}
		zone, err := parseZoneWord(word)
		if err != nil {
			return err
		}
		if zone == nil || dt.zone != nil {
			return invalidDateTime(typeName, text)
		}
		dt.zone = zone
	}
	return nil
}

func unsupportedOrInvalid(typeName, text string) error { return invalidDateTime(typeName, text) }

// parseClock reads HH:MM[:SS[.ffffff]]; a value out of range gives a negative clock.
func parseClock(s string) (us int64, rest string, ok bool) {
	n := digits(s)
	if n == 0 || n > 2 || n >= len(s) || s[n] != ':' {
		return 0, s, false
	}
	h, _ := strconv.ParseInt(s[:n], 10, 64)
	s = s[n+1:]
	n = digits(s)
	if n == 0 || n > 2 {
		return 0, s, false
	}
	m, _ := strconv.ParseInt(s[:n], 10, 64)
	s = s[n:]
	var sec, frac int64
	if len(s) > 0 && s[0] == ':' {
		n = digits(s[1:])
		if n == 0 || n > 2 {
			return 0, s, false
		}
		sec, _ = strconv.ParseInt(s[1:1+n], 10, 64)
		s = s[1+n:]
		if len(s) > 0 && s[0] == '.' {
			n = digits(s[1:])
			frac = fraction(s[1 : 1+n])
			s = s[1+n:]
		}
	}
	us = h*3600000000 + m*60000000 + sec*1000000 + frac
	if h > 24 || m > 59 || sec > 60 || h == 24 && us > MicrosPerDay {
		us = -1
	}
	return us, s, true
}

// fraction gives the microseconds of the digits after a decimal point, rounded.
func fraction(s string) int64 {
	f, err := strconv.ParseFloat("0."+s, 64)
	if s == "" || err != nil {
		return 0
	}
	return int64(math.RoundToEven(f * 1000000))
}

func parseZoneWord(w string) (*time.Location, error) {
	if w == "" {
		return nil, nil
	}
	if w[0] == '+' || w[0] == '-' {
		off, ok := parseOffset(w[1:])
		if !ok {
			return nil, nil
		}
		if off > 15*3600+59*60+59 {
			return nil, pgerr.New("22009", "time zone displacement out of range: \"%s\"", w)
		}
		if w[0] == '-' {
			off = -off
		}
		return time.FixedZone("", off), nil
	}
	if strings.ContainsAny(w, ":.") || w[0] >= '0' && w[0] <= '9' {
		return nil, nil
	}
	zone, err := ParseZone(w)
	if err != nil {
		return nil, pgerr.New(pgerr.InvalidParameterValue, "time zone \"%s\" not recognized", strings.ToLower(w))
	}
	return zone, nil
}

func parseOffset(s string) (seconds int, ok bool) {
	parts := strings.Split(s, ":")
	if len(parts) == 1 && len(s) > 2 {
		if len(s)%2 == 1 {
			s = "0" + s
		}
		parts = nil
		for i := 0; i+2 <= len(s); i += 2 {
			parts = append(parts, s[i:i+2])
		}
	}
	if len(parts) > 3 {
		return 0, false
	}
	unit := 3600
	for _, p := range parts {
		if p == "" || len(p) > 2 || digits(p) != len(p) {
			return 0, false
		}
		n, _ := strconv.Atoi(p)
		seconds += n * unit
		unit /= 60
	}
	return seconds, true
}

// zoneAbbreviations are the fixed offsets (hours) of common abbreviations in Postgres's Default set.
var zoneAbbreviations = map[string]int{
	"utc": 0, "gmt": 0, "z": 0, "zulu": 0, "est": -5, "edt": -4, "cst": -6, "cdt": -5, "mst": -7, "mdt": -6,
	"pst": -8, "pdt": -7, "cet": 1, "cest": 2, "eet": 2, "eest": 3, "bst": 1, "wet": 0, "west": 1, "jst": 9, "msk": 3,
}

// ParseZone finds a time zone by IANA name, abbreviation or POSIX-like offset, as SET TimeZone accepts them.
func ParseZone(name string) (*time.Location, error) {
	lower := strings.ToLower(name)
	if hours, ok := zoneAbbreviations[lower]; ok {
		if hours == 0 {
			return time.UTC, nil
		}
		return time.FixedZone(strings.ToUpper(name), hours*3600), nil
	}
	if lower == "local" || lower == "" {
		return nil, pgerr.New(pgerr.InvalidParameterValue, "time zone \"%s\" not recognized", name)
	}
	if zone, err := time.LoadLocation(name); err == nil {
		return zone, nil
	}
	if zone, err := time.LoadLocation(titleZone(name)); err == nil {
		return zone, nil
	}
	if f, err := strconv.ParseFloat(name, 64); err == nil && math.Abs(f) <= 168 {
		return time.FixedZone(name, int(f*3600)), nil
	}
	return nil, pgerr.New(pgerr.InvalidParameterValue, "time zone \"%s\" not recognized", name)
}

// titleZone turns europe/new_york into Europe/New_York: names are not case-sensitive in Postgres.
func titleZone(name string) string {
	b := []byte(strings.ToLower(name))
	up := true
	for i, c := range b {
		if up && c >= 'a' && c <= 'z' {
			b[i] = c - 'a' + 'A'
		}
		up = c == '/' || c == '_' || c == '-'
	}
	return string(b)
}

func (dt *dateTime) check(text string) error {
	if dt.month < 1 || dt.month > 12 || dt.day < 1 || dt.day > 31 {
		e := pgerr.New(pgerr.DatetimeFieldOverflow, "date/time field value out of range: \"%s\"", text)
		if dt.month > 12 {
			e = e.WithHint("Perhaps you need a different \"datestyle\" setting.")
		}
		return e
	}
	if dt.day > DaysInMonth(dt.year, dt.month) {
		return fieldOverflow(text)
	}
	return nil
}

func (dt *dateTime) local() int64 {
	return DaysOf(dt.year, dt.month, dt.day)*MicrosPerDay + dt.clock
}

func parseDate(text string, s *Session) (Datum, error) {
	dt, err := parseDateTime(text, "date")
	if err != nil {
		return Null, err
	}
	var days int64
	switch {
	case dt.infinite > 0:
		days = DatePosInfinity
	case dt.infinite < 0:
		days = DateNegInfinity
	case dt.relative == "epoch":
		days = -unixDaysTo2000
	case dt.relative == "allballs":
		return Null, invalidDateTime("date", text)
	case dt.relative != "":
		days, _ = floorDiv(ToLocal(TimeToMicros(s.now()), s.zone()), MicrosPerDay)
		days += relativeDays(dt.relative)
	default:
		days = DaysOf(dt.year, dt.month, dt.day)
		if !DateInRange(days) {
			return Null, pgerr.New(pgerr.DatetimeFieldOverflow, "date out of range: \"%s\"", text)
		}
	}
	return Int(days), nil
}

func relativeDays(word string) int64 {
	switch word {
	case "tomorrow":
		return 1
	case "yesterday":
		return -1
	}
	return 0
}

func parseTimestamp(text string, s *Session, withZone bool) (Datum, error) {
	typeName := "timestamp"
	if withZone {
		typeName = "timestamp with time zone"
	}
	dt, err := parseDateTime(text, typeName)
	if err != nil {
		return Null, err
	}
	switch {
	case dt.infinite > 0:
		return Int(PosInfinity), nil
	case dt.infinite < 0:
		return Int(NegInfinity), nil
	case dt.relative == "epoch":
		return Int(-unixToPg), nil
	case dt.relative == "allballs":
		return Null, invalidDateTime(typeName, text)
	case dt.relative != "":
		return relativeTimestamp(dt.relative, s, withZone), nil
	}
	if dt.year > 294276 {
		return Null, pgerr.New(pgerr.DatetimeFieldOverflow, "timestamp out of range: \"%s\"", text)
	}
	us := dt.local()
	if withZone {
		zone := dt.zone
		if zone == nil {
			zone = s.zone()
		}
		us = ToInstant(us, zone)
	}
	if !InRange(us) {
		return Null, pgerr.New(pgerr.DatetimeFieldOverflow, "timestamp out of range: \"%s\"", text)
	}
	return Int(us), nil
}

func relativeTimestamp(word string, s *Session, withZone bool) Datum {
	now := TimeToMicros(s.now())
	local := ToLocal(now, s.zone())
	if word != "now" {
		days, _ := floorDiv(local, MicrosPerDay)
		local = (days + relativeDays(word)) * MicrosPerDay
		now = ToInstant(local, s.zone())
	}
	if withZone {
		return Int(now)
	}
	return Int(local)
}
