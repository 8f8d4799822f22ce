package settings

import (
	"math"
	"strconv"
	"strings"
	"time"
)

const (
	intervalHint = "An interval is a number with a unit, for example 500ms, 5s or 15min. " + validUnits
	validUnits   = `Valid units are "us", "ms", "s", "min", "h", and "d".`
)

type unit struct {
	name string
	size time.Duration
}

// units are Postgres's units of time for parameters, largest first.
var units = []unit{
	{"d", 24 * time.Hour},
	{"h", time.Hour},
	{"min", time.Minute},
	{"s", time.Second},
	{"ms", time.Millisecond},
	{"us", time.Microsecond},
}

// unitWords are the other spellings that Postgres's interval type accepts and people write.
var unitWords = []unit{
	{"m", time.Minute},
	{"mins", time.Minute},
	{"minute", time.Minute},
	{"minutes", time.Minute},
	{"sec", time.Second},
	{"secs", time.Second},
	{"second", time.Second},
	{"seconds", time.Second},
	{"msec", time.Millisecond},
	{"millisecond", time.Millisecond},
	{"milliseconds", time.Millisecond},
	{"usec", time.Microsecond},
	{"microsecond", time.Microsecond},
	{"microseconds", time.Microsecond},
	{"hour", time.Hour},
	{"hours", time.Hour},
	{"day", 24 * time.Hour},
	{"days", 24 * time.Hour},
}

// ParseInterval reads a span of time as a Postgres parameter is written: a number and a unit, blanks allowed, in any
// case, or several such terms (1h 30min), or a plain 0. Negative and unit-less numbers are not accepted.
func ParseInterval(text string) (time.Duration, bool) {
	text = strings.TrimSpace(text)
	if text == "0" {
		return 0, true
	}
	var sum time.Duration
	for rest := text; ; {
		d, after, ok := parseTerm(rest)
		if !ok || sum > math.MaxInt64-d {
			return 0, false
		}
		sum += d
		if after == "" {
			return sum, true
		}
		rest = after
	}
}

// parseTerm reads one number with its unit and gives what follows, without leading blanks.
func parseTerm(text string) (d time.Duration, rest string, ok bool) {
	digits := spanOf(text, func(c byte) bool { return c >= '0' && c <= '9' || c == '.' })
	number, err := strconv.ParseFloat(text[:digits], 64)
	if err != nil {
		return 0, "", false
	}
	text = strings.TrimLeft(text[digits:], " \t")
	letters := spanOf(text, func(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' })
	size, ok := unitSize(text[:letters])
	ns := math.Round(number*float64(size)/1000) * 1000 // Postgres's clock has microseconds
	if !ok || ns >= math.MaxInt64 {
		return 0, "", false
	}
	return time.Duration(ns), strings.TrimLeft(text[letters:], " \t"), true
}

func spanOf(text string, in func(byte) bool) int {
	for i := range len(text) {
		if !in(text[i]) {
			return i
		}
	}
	return len(text)
}

func unitSize(name string) (time.Duration, bool) {
	for _, list := range [][]unit{units, unitWords} {
		for _, u := range list {
			if strings.EqualFold(u.name, name) {
				return u.size, true
			}
		}
	}
	return 0, false
}

// FormatInterval writes d as Postgres shows a parameter: in the largest unit that needs no fraction.
func FormatInterval(d time.Duration) string {
	if d <= 0 {
		return "0"
	}
	d = d.Round(time.Microsecond)
	for _, u := range units {
		if d >= u.size && d%u.size == 0 {
			return strconv.FormatInt(int64(d/u.size), 10) + u.name
		}
	}
	return "0"
}

// intervalHintFor says what is wrong with a text that is no interval: most often the unit is missing.
func intervalHintFor(text string) string {
	text = strings.TrimSpace(text)
	if _, err := strconv.ParseFloat(text, 64); err != nil || strings.HasPrefix(text, "-") {
		return intervalHint
	}
	return "A unit is missing: write " + text + "s for seconds or " + text + `ms for milliseconds. ` + validUnits
}

func parseIntervalInto(to *time.Duration, text string) bool {
	d, ok := ParseInterval(text)
	if ok {
		*to = d
	}
	return ok
}
