package exec

import (
	"time"

	"neki/internal/datum"
	"neki/internal/pgerr"
)

// Backends answers the functions about server processes, whose pids may be those that the gateway gives its clients.
type Backends interface {
	Cancel(pid int32) (bool, error)
	Terminate(pid int32, wait time.Duration) (bool, error)
	// Blocked is pg_isolation_test_session_is_blocked.
	Blocked(pid int32, by []int32) (bool, error)
	Blocking(pid int32) ([]int32, error)
}

var backendBuiltins = map[string]Builtin{
	"pg_cancel_backend": func(c Call, a []datum.Datum) (datum.Datum, error) {
		return ofBackends(c, func(b Backends) (bool, error) { return b.Cancel(int32(a[0].Int())) })
	},
	"pg_terminate_backend": func(c Call, a []datum.Datum) (datum.Datum, error) {
		wait := int64(0)
		if len(a) > 1 {
			wait = a[1].Int()
		}
		if wait < 0 {
			return datum.Null, pgerr.New(pgerr.NumericValueOutOfRange, "\"timeout\" must not be negative")
		}
		return ofBackends(c, func(b Backends) (bool, error) {
			return b.Terminate(int32(a[0].Int()), time.Duration(min(wait, int64(time.Hour/time.Millisecond)))*time.Millisecond)
		})
	},
	"pg_isolation_test_session_is_blocked": func(c Call, a []datum.Datum) (datum.Datum, error) {
		return ofBackends(c, func(b Backends) (bool, error) { return b.Blocked(int32(a[0].Int()), pidsOf(a[1])) })
	},
	"pg_blocking_pids": func(c Call, a []datum.Datum) (datum.Datum, error) {
		if c.run.env.Backends == nil {
			return datum.Null, errNoBackends
		}
		pids, err := c.run.env.Backends.Blocking(int32(a[0].Int()))
		if err != nil {
			return datum.Null, err
		}
		items := make([]datum.Datum, len(pids))
		for i, pid := range pids {
			items[i] = datum.Int(int64(pid))
		}
		return arrayOf(c, items)
	},
}

var errNoBackends = pgerr.New(pgerr.FeatureNotSupported, "functions about server processes are not available here")

func ofBackends(c Call, ask func(Backends) (bool, error)) (datum.Datum, error) {
	if c.run.env.Backends == nil {
		return datum.Null, errNoBackends
	}
	answer, err := ask(c.run.env.Backends)
	return datum.Bool(answer), err
}

func pidsOf(d datum.Datum) []int32 {
	var pids []int32
	for _, item := range itemsOf(d) {
		if !item.IsNull() {
			pids = append(pids, int32(item.Int()))
		}
	}
	return pids
}
