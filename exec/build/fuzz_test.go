package build_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"neki/exec"
	"neki/exec/build"
	"neki/internal/pgerr"
	"neki/sqlparse"
)

// FuzzQuery: whatever parses is built and run, or refused with an SQLSTATE that is not an internal error.
func FuzzQuery(f *testing.F) {
	seeds, err := os.ReadFile("testdata/queries.sql")
	if err != nil {
		f.Fatal(err)
	}
	for line := range strings.SplitSeq(string(seeds), "\n") {
		f.Add(strings.ReplaceAll(line, "FROM replicas", "FROM neki.replicas"))
	}
	f.Fuzz(func(t *testing.T, sql string) {
		stmt, err := sqlparse.Parse(sql)
		if err != nil {
			return
		}
		spec, err := build.Query(stmt, nekiSchema(), nil)
		if err == nil && len(spec.ParamTypes()) == 0 {
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			env := &exec.Env{Budget: exec.NewBudget(1 << 20), Now: time.Unix(1e9, 0)}
			_, err = spec.All(ctx, env)
			if used := env.Budget.Used(); used != 0 {
				t.Fatalf("%d bytes of the budget were not given back", used)
			}
		}
		var e *pgerr.Error
		if err != nil && (!errors.As(err, &e) || e.Code == pgerr.InternalError) {
			t.Fatalf("%v", err)
		}
	})
}
