package datum

import (
	"math"
	"strconv"
	"time"
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
