package exec

import (
	"strconv"

	"neki/internal/datum"
	"neki/internal/pgerr"
)

func environment(get func(e *Env) string) Builtin {
	return func(c Call, _ []datum.Datum) (datum.Datum, error) {
		s := get(c.run.env)
		if s == "" {
			return datum.Null, nil
		}
		return datum.Text(s), nil
	}
}

// setConfig gives the value that the parameter has now: whoever runs the statement has applied its set_config calls before.
func setConfig(c Call, a []datum.Datum) (datum.Datum, error) {
	if a[0].IsNull() {
		return datum.Null, pgerr.New("22004", "SET requires parameter name")
	}
	return currentSetting(c, a[:1])
}

func currentSetting(c Call, a []datum.Datum) (datum.Datum, error) {
	name := a[0].Text()
	if c.run.env.Vars != nil {
		if value, ok := c.run.env.Vars(name); ok {
			return datum.Text(value), nil
		}
	}
	if len(a) > 1 && a[1].Bool() {
		return datum.Null, nil
	}
	err := pgerr.New(pgerr.UndefinedObject, "unrecognized configuration parameter \"%s\"", name)
	if c.run.env.VarNames != nil {
		if near := pgerr.Nearest(name, c.run.env.VarNames()); near != "" {
			return datum.Null, err.WithHint("Perhaps you meant \"%s\".", near)
		}
	}
	return datum.Null, err
}

// sizeUnits are those of pg_size_pretty: below limit the unit is used; after it the value is shifted right by bits.
var sizeUnits = [...]struct {
	name  string
	limit int64
	round bool
	bits  uint
}{
	{"bytes", 10 * 1024, false, 0},
	{"kB", 20*1024 - 1, true, 10},
	{"MB", 20*1024 - 1, true, 20},
	{"GB", 20*1024 - 1, true, 30},
	{"TB", 20*1024 - 1, true, 40},
	{"PB", 20*1024 - 1, true, 50},
}

func sizePretty(_ Call, a []datum.Datum) (datum.Datum, error) {
	size := a[0].Int()
	for i, unit := range sizeUnits {
		if i == len(sizeUnits)-1 || max(size, -size) < unit.limit {
			if unit.round {
				size = (size + map[bool]int64{true: 1, false: -1}[size >= 0]) / 2
			}
			return datum.Text(strconv.FormatInt(size, 10) + " " + unit.name), nil
		}
		next := sizeUnits[i+1]
		bits := next.bits - unit.bits
		if next.round {
			bits--
		}
		if unit.round {
			bits++
		}
		size /= 1 << bits
	}
	return datum.Null, nil
}

var systemBuiltins = map[string]Builtin{
	"current_user":     environment(func(e *Env) string { return e.User }),
	"session_user":     environment(func(e *Env) string { return e.SessionUser }),
	"current_database": environment(func(e *Env) string { return e.Database }),
	"current_schema":   environment(func(e *Env) string { return e.Schema }),
	"pgsql_version":    environment(func(e *Env) string { return e.Version }),
	"pg_backend_pid":   func(c Call, _ []datum.Datum) (datum.Datum, error) { return datum.Int(int64(c.run.env.PID)), nil },
	"pg_size_pretty":   sizePretty,

	"set_config_by_name": setConfig, "show_config_by_name": currentSetting, "show_config_by_name_missing_ok": currentSetting,
}
