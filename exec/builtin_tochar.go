package exec

import (
	"fmt"
	"strings"
	"time"

	"neki/internal/datum"
	"neki/internal/pgerr"
)

// civil is a wall-clock time taken apart for to_char.
type civil struct {
	year, month, day, hour, minute, second, micro int
}

// charKeyword is one template pattern of to_char; a nil write is a pattern that is known but not built.
type charKeyword struct {
	name  string
	digit bool // may have a TH suffix
	fold  bool // any case
	write func(c *civil) string
}

func digits(width int, get func(c *civil) int) func(c *civil) string {
	return func(c *civil) string { return fmt.Sprintf("%0*d", width, get(c)) }
}

func monthName(c *civil) string { return time.Month(c.month).String() }

func hour12(c *civil) int { return (c.hour+11)%12 + 1 }

func half(am, pm string) func(c *civil) string {
	return func(c *civil) string {
		if c.hour >= 12 {
			return pm
		}
		return am
	}
}

// charKeywords stand longest first where one begins another.
var charKeywords = []charKeyword{
	{name: "HH24", digit: true, fold: true, write: digits(2, func(c *civil) int { return c.hour })},
	{name: "HH12", digit: true, fold: true, write: digits(2, hour12)},
	{name: "HH", digit: true, fold: true, write: digits(2, hour12)},
	{name: "MI", digit: true, fold: true, write: digits(2, func(c *civil) int { return c.minute })},
	{name: "SSSSS", fold: true},
	{name: "SSSS", fold: true},
	{name: "SS", digit: true, fold: true, write: digits(2, func(c *civil) int { return c.second })},
	{name: "MS", digit: true, fold: true, write: digits(3, func(c *civil) int { return c.micro / 1000 })},
	{name: "US", digit: true, fold: true, write: digits(6, func(c *civil) int { return c.micro })},
	{name: "Y,YYY", fold: true},
	{name: "YYYY", digit: true, fold: true, write: digits(4, func(c *civil) int { return c.year })},
	{name: "YYY", fold: true},
	{name: "YY", digit: true, fold: true, write: digits(2, func(c *civil) int { return c.year % 100 })},
	{name: "MONTH", write: func(c *civil) string { return fmt.Sprintf("%-9s", strings.ToUpper(monthName(c))) }},
	{name: "Month", write: func(c *civil) string { return fmt.Sprintf("%-9s", monthName(c)) }},
	{name: "month", write: func(c *civil) string { return fmt.Sprintf("%-9s", strings.ToLower(monthName(c))) }},
	{name: "MON", write: func(c *civil) string { return strings.ToUpper(monthName(c)[:3]) }},
	{name: "Mon", write: func(c *civil) string { return monthName(c)[:3] }},
	{name: "mon", write: func(c *civil) string { return strings.ToLower(monthName(c)[:3]) }},
	{name: "MM", digit: true, fold: true, write: digits(2, func(c *civil) int { return c.month })},
	{name: "AM", write: half("AM", "PM")},
	{name: "PM", write: half("AM", "PM")},
	{name: "am", write: half("am", "pm")},
	{name: "pm", write: half("am", "pm")},
	{name: "DDD", fold: true},
	{name: "DD", digit: true, fold: true, write: digits(2, func(c *civil) int { return c.day })},
	{name: "Q", digit: true, fold: true, write: digits(1, func(c *civil) int { return (c.month-1)/3 + 1 })},
	{name: "FF", fold: true},
	{name: "DAY", fold: true},
	{name: "DY", fold: true},
	{name: "D", fold: true},
	{name: "A.D.", fold: true},
	{name: "A.M.", fold: true},
	{name: "AD", fold: true},
	{name: "B.C.", fold: true},
	{name: "BC", fold: true},
	{name: "CC", fold: true},
	{name: "FM", fold: true},
	{name: "FX", fold: true},
	{name: "ID", fold: true},
	{name: "IW", fold: true},
	{name: "IY", fold: true},
	{name: "I", fold: true},
	{name: "J", fold: true},
	{name: "OF", fold: true},
	{name: "P.M.", fold: true},
	{name: "RM", fold: true},
	{name: "SP", fold: true},
	{name: "TM", fold: true},
	{name: "TZ", fold: true},
	{name: "W", fold: true},
	{name: "Y", fold: true},
	{name: "AM", fold: true},
	{name: "PM", fold: true},
	{name: "MON", fold: true},
}

func findCharKeyword(s string) *charKeyword {
	for i := range charKeywords {
		k := &charKeywords[i]
		if len(s) >= len(k.name) && (s[:len(k.name)] == k.name || k.fold && strings.EqualFold(s[:len(k.name)], k.name)) {
			return k
		}
	}
	return nil
}

// timeToChar is to_char for the patterns of dates and clocks; the others are refused by name.
func timeToChar(c Call, a []datum.Datum) (datum.Datum, error) {
	us := a[0].Int()
	if datum.IsInfinite(us) {
		return datum.Null, nil
	}
	local := datum.ToLocal(us, c.zoneOf(c.Args[0].OID))
	year, month, day, clock := datum.ToCivil(local)
	at := &civil{
		year: year, month: month, day: day, hour: int(clock / 3600000000), minute: int(clock / 60000000 % 60),
		second: int(clock / 1000000 % 60), micro: int(clock % 1000000),
	}
	if year <= 0 {
		return datum.Null, pgerr.New(pgerr.FeatureNotSupported, "to_char of a year before Christ is not supported here")
	}
	var b strings.Builder
	for s := a[1].Text(); s != ""; {
		if s[0] == '"' || s[0] == '\\' {
			return datum.Null, pgerr.New(pgerr.FeatureNotSupported, "quotes in a template of to_char are not supported here")
		}
		k := findCharKeyword(s)
		if k == nil {
			b.WriteByte(s[0])
			s = s[1:]
			continue
		}
		s = s[len(k.name):]
		if k.write == nil || k.digit && len(s) >= 2 && strings.EqualFold(s[:2], "TH") {
			return datum.Null, pgerr.New(pgerr.FeatureNotSupported, "the pattern \"%s\" of to_char is not supported here", k.name)
		}
		b.WriteString(k.write(at))
	}
	if b.Len() == 0 {
		return datum.Null, nil
	}
	return datum.Text(b.String()), nil
}
