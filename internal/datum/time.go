package datum

import (
	"math"
	"strconv"
	"strings"
	"time"

	"neki/internal/pgerr"
)

// Session is what text input and output of values depend on. The zero Session means UTC.
type Session struct {
	Zone *time.Location
	Now  time.Time // transaction start, for 'now', 'today' and the like
}

func (s *Session) zone() *time.Location {
	if s == nil || s.Zone == nil {
		return time.UTC
	}
	return s.Zone
}

func (s *Session) now() time.Time {
	if s == nil {
		return time.Time{}
	}
	return s.Now
}

const (
	// PosInfinity and NegInfinity are the infinite timestamps.
	PosInfinity = math.MaxInt64
	NegInfinity = math.MinInt64
	// DatePosInfinity and DateNegInfinity are the infinite dates.
	DatePosInfinity = math.MaxInt32
	DateNegInfinity = math.MinInt32

	// MicrosPerDay is the length of a day without daylight-saving changes.
	MicrosPerDay   = 86400 * 1000000
	unixToPg       = 946684800 * 1000000 // microseconds from 1970 to 2000
	minTimestamp   = -211813488000000000 // 4714-11-24 BC
	endTimestamp   = 9223371331200000000 // 294277-01-01
	minDate        = -2451545
	endDate        = 2147483494 - 1 + 1 - 2451545
	julianOf2000   = 2451545
	unixDaysTo2000 = 10957
)

// TimeToMicros gives Postgres's microseconds of an instant.
func TimeToMicros(t time.Time) int64 { return t.UnixMicro() - unixToPg }

// MicrosToTime gives the instant of Postgres's microseconds, in UTC. Infinity is out of its domain.
func MicrosToTime(us int64) time.Time {
	sec, rest := floorDiv(us, 1000000)
	return time.Unix(sec+unixToPg/1000000, rest*1000).UTC()
}

// FromTime makes a timestamptz.
func FromTime(t time.Time) Datum { return Int(TimeToMicros(t)) }

func floorDiv(a, b int64) (quotient, remainder int64) {
	q, r := a/b, a%b
	if r < 0 {
		q, r = q-1, r+b
	}
	return q, r
}

// ToCivil splits a local timestamp into its date and time of day.
func ToCivil(us int64) (year int, month, day int, timeOfDay int64) {
	days, rest := floorDiv(us, MicrosPerDay)
	year, month, day = CivilDate(days)
	return year, month, day, rest
}

// CivilDate gives the Gregorian date of a number of days since 2000-01-01.
func CivilDate(days int64) (year, month, day int) {
	z := days + 730425 // days since 0000-03-01
	era, doe := floorDiv(z, 146097)
	yoe := (doe - doe/1460 + doe/36524 - doe/146096) / 365
	doy := doe - (365*yoe + yoe/4 - yoe/100)
	mp := (5*doy + 2) / 153
	day = int(doy - (153*mp+2)/5 + 1)
	month = int(mp + 3)
	if mp >= 10 {
		month = int(mp - 9)
	}
	year = int(yoe + era*400)
	if month <= 2 {
		year++
	}
	return year, month, day
}

// DaysOf gives the days since 2000-01-01 of a Gregorian date; month and day must be in range.
func DaysOf(year, month, day int) int64 {
	y := int64(year)
	if month <= 2 {
		y--
	}
	era, yoe := floorDiv(y, 400)
	mp := int64(month+9) % 12
	doy := (153*mp+2)/5 + int64(day) - 1
	doe := yoe*365 + yoe/4 - yoe/100 + doy
	return era*146097 + doe - 730425
}

// DaysInMonth gives the length of a month.
func DaysInMonth(year, month int) int {
	switch month {
	case 2:
		if year%4 == 0 && (year%100 != 0 || year%400 == 0) {
			return 29
		}
		return 28
	case 4, 6, 9, 11:
		return 30
	}
	return 31
}

// InRange reports whether a timestamp is one that Postgres can hold.
func InRange(us int64) bool { return us >= minTimestamp && us < endTimestamp }

// IsInfinite reports whether a timestamp is infinite.
func IsInfinite(us int64) bool { return us == PosInfinity || us == NegInfinity }

// DateInRange reports whether a date is one that Postgres can hold.
func DateInRange(days int64) bool { return days >= minDate && days < endDate }

// Offset gives the zone's offset from UTC, in seconds east, at an instant.
func Offset(us int64, zone *time.Location) int64 {
	_, off := MicrosToTime(us).In(zone).Zone()
	return int64(off)
}

// ToLocal gives the wall-clock timestamp of an instant in the zone.
func ToLocal(us int64, zone *time.Location) int64 {
	if IsInfinite(us) {
		return us
	}
	return us + Offset(us, zone)*1000000
}

// ToInstant gives the instant of a wall-clock timestamp in the zone. In a gap or overlap of daylight saving the
// standard-time reading is taken, as Postgres's DetermineTimeZoneOffset does.
func ToInstant(local int64, zone *time.Location) int64 {
	if IsInfinite(local) || zone == time.UTC {
		return local
	}
	// The offsets one day before and after bracket any one transition.
	before := Offset(local-MicrosPerDay, zone)
	after := Offset(local+MicrosPerDay, zone)
	if before == after {
		guess := local - before*1000000
		if off := Offset(guess, zone); off != before {
			return local - off*1000000
		}
		return guess
	}
	byBefore, byAfter := local-before*1000000, local-after*1000000
	okBefore, okAfter := Offset(byBefore, zone) == before, Offset(byAfter, zone) == after
	switch {
	case okBefore && !okAfter:
		return byBefore
	case okAfter && !okBefore:
		return byAfter
	case before > after: // overlap: the later, standard-time reading
		return byAfter
	}
	return byBefore // gap: read with the offset before it, which lands after it
}

func appendPadded(dst []byte, n, width int) []byte {
	s := strconv.Itoa(n)
	for i := len(s); i < width; i++ {
		dst = append(dst, '0')
	}
	return append(dst, s...)
}

func appendDate(dst []byte, days int64) []byte {
	switch days {
	case DatePosInfinity:
		return append(dst, "infinity"...)
	case DateNegInfinity:
		return append(dst, "-infinity"...)
	}
	year, month, day := CivilDate(days)
	dst = appendYMD(dst, year, month, day)
	if year <= 0 {
		dst = append(dst, " BC"...)
	}
	return dst
}

func appendYMD(dst []byte, year, month, day int) []byte {
	if year <= 0 {
		year = 1 - year
	}
	dst = appendPadded(dst, year, 4)
	dst = append(dst, '-')
	dst = appendPadded(dst, month, 2)
	dst = append(dst, '-')
	return appendPadded(dst, day, 2)
}

// appendClock writes HH:MM:SS and the fraction without its trailing zeros.
func appendClock(dst []byte, us int64) []byte {
	hours := us / 3600000000
	dst = appendPadded(dst, int(hours), 2)
	us -= hours * 3600000000
	dst = append(dst, ':')
	dst = appendPadded(dst, int(us/60000000), 2)
	us %= 60000000
	dst = append(dst, ':')
	dst = appendPadded(dst, int(us/1000000), 2)
	return appendFraction(dst, us%1000000)
}

func appendFraction(dst []byte, us int64) []byte {
	if us == 0 {
		return dst
	}
	dst = append(dst, '.')
	dst = appendPadded(dst, int(us), 6)
	for dst[len(dst)-1] == '0' {
		dst = dst[:len(dst)-1]
	}
	return dst
}

func appendTimestamp(dst []byte, us int64) []byte {
	return appendTimestampZone(dst, us, 0, false)
}

func appendTimestamptz(dst []byte, us int64, zone *time.Location) []byte {
	if IsInfinite(us) {
		return appendTimestamp(dst, us)
	}
	off := Offset(us, zone)
	return appendTimestampZone(dst, us+off*1000000, off, true)
}

func appendTimestampZone(dst []byte, local, off int64, withZone bool) []byte {
	switch local {
	case PosInfinity:
		return append(dst, "infinity"...)
	case NegInfinity:
		return append(dst, "-infinity"...)
	}
	year, month, day, clock := ToCivil(local)
	dst = appendYMD(dst, year, month, day)
	dst = append(dst, ' ')
	dst = appendClock(dst, clock)
	if withZone {
		dst = appendOffset(dst, off)
	}
	if year <= 0 {
		dst = append(dst, " BC"...)
	}
	return dst
}

func appendOffset(dst []byte, off int64) []byte {
	sign := byte('+')
	if off < 0 {
		sign, off = '-', -off
	}
	dst = append(dst, sign)
	dst = appendPadded(dst, int(off/3600), 2)
	if off%3600 != 0 {
		dst = append(dst, ':')
		dst = appendPadded(dst, int(off%3600/60), 2)
		if off%60 != 0 {
			dst = append(dst, ':')
			dst = appendPadded(dst, int(off%60), 2)
		}
	}
	return dst
}

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
