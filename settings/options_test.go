package settings

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"neki/internal/pgerr"
)

func TestParseOptions(t *testing.T) {
	for _, tc := range []struct {
		in   string
		want []Pair
		err  string
	}{
		{"", nil, ""},
		{"  \t\n", nil, ""},
		{"-c __neki.target=REPLICA", []Pair{{"__neki.target", "REPLICA"}}, ""},
		{"-c__neki.target=REPLICA", []Pair{{"__neki.target", "REPLICA"}}, ""},
		{"--__neki.target=REPLICA", []Pair{{"__neki.target", "REPLICA"}}, ""},
		{"--search-path=a,b  -c work_mem=1MB", []Pair{{"search_path", "a,b"}, {"work_mem", "1MB"}}, ""},
		{`-c search_path=a,\ b`, []Pair{{"search_path", "a, b"}}, ""},
		{`-c application_name=back\\slash`, []Pair{{"application_name", `back\slash`}}, ""},
		{`-c a=b\`, []Pair{{"a", "b"}}, ""},
		{"-c a=b=c", []Pair{{"a", "b=c"}}, ""},
		{"-c a=", []Pair{{"a", ""}}, ""},
		{"-c\va=b", []Pair{{"a", "b"}}, ""},
		{"-c a", nil, "-c a requires a value"},
		{"--a", nil, "--a requires a value"},
		{"-c", nil, "invalid command-line argument for server process: -c"},
		{"-c a=b --", []Pair{{"a", "b"}}, ""},
		{"-- x", nil, "invalid command-line argument for server process: x"},
		{"-", nil, "invalid command-line argument for server process: -"},
		{"x", nil, "invalid command-line argument for server process: x"},
		{"-c a=b x", nil, "invalid command-line argument for server process: x"},
		{"-Z", nil, "invalid command-line argument for server process: -Z"},
		{"-e", []Pair{{"datestyle", "euro"}}, ""},
		{"-Pec a=b", []Pair{{"ignore_system_indexes", "true"}, {"datestyle", "euro"}, {"a", "b"}}, ""},
		{"-S 1024", []Pair{{"work_mem", "1024"}}, ""},
		{"-fs -fh", []Pair{{"enable_seqscan", "false"}, {"enable_hashjoin", "false"}}, ""},
		{"-fz", nil, "invalid command-line argument for server process: -fz"},
		{"-tpl", []Pair{{"log_planner_stats", "true"}}, ""},
		{"-d 2", []Pair{{"log_min_messages", "debug2"}, {"log_statement", "all"}}, ""},
		{"-d 9", nil, "invalid command-line argument for server process: -d"},
	} {
		got, err := ParseOptions(tc.in)
		if tc.err != "" {
			if e := pgerr.From(err); err == nil || e.Message != tc.err || e.Code != "42601" || e.Severity != "FATAL" {
				t.Errorf("%q: %v", tc.in, err)
			}
			continue
		}
		if err != nil || !slices.Equal(got, tc.want) {
			t.Errorf("%q: %s, %v", tc.in, cmp.Diff(tc.want, got), err)
		}
	}
}

func FuzzParseOptions(f *testing.F) {
	f.Add(`-c a=b --c-d=e\ f -Pec x`)
	f.Fuzz(func(t *testing.T, s string) {
		if pairs, err := ParseOptions(s); err != nil && pairs != nil {
			t.Error("both pairs and an error")
		}
	})
}
