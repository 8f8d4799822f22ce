package catalog

import (
	"strings"
	"time"
)

// requestForm is the time of a Node's Request; the dot is left out.
const requestForm = "20060102T150405.000000"

// NewRequest makes the Request of a Node: a time, later than that of the one before.
func NewRequest(now time.Time, before string) string {
	if t, ok := RequestTime(before); ok && !now.After(t) {
		now = t.Add(time.Microsecond)
	}
	now = now.UTC().Truncate(time.Microsecond)
	if r := strings.Replace(now.Format(requestForm), ".", "", 1); r > before {
		return r
	}
	return strings.Replace(now.Add(time.Microsecond).Format(requestForm), ".", "", 1)
}

// RequestTime gives when a request was made.
func RequestTime(request string) (time.Time, bool) {
	whole := len(requestForm) - len(".000000")
	if len(request) != len(requestForm)-1 {
		return time.Time{}, false
	}
	t, err := time.Parse(requestForm, request[:whole]+"."+request[whole:])
	return t, err == nil
}
