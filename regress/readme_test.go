package regress

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestTourOfTheReadme runs the statements of the README's tour in one psql, and compares what it prints. Of the neki
// schema, whose rows depend on the cluster, only the line of column names is compared.
func TestTourOfTheReadme(t *testing.T) {
	c := cluster(t)
	steps := tour(t)
	var input strings.Builder
	for _, s := range steps {
		input.WriteString(s.sql + "\n\\echo " + mark + "\n")
	}
	input.WriteString("RESET ALL;\nDROP TABLE greetings;\n")
	cmd := exec.CommandContext(t.Context(), filepath.Join(binDir(t), "psql"), "-X")
	cmd.Env, cmd.Stdin = c.environ(), strings.NewReader(input.String())
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	answers := strings.Split(out.String(), mark+"\n")
	if len(answers) != len(steps)+1 {
		t.Fatalf("%d answers to %d statements:\n%s", len(answers)-1, len(steps), out.String())
	}
	for i, s := range steps {
		want, got := tidy(s.output), tidy(answers[i])
		if strings.Contains(s.sql, "neki.") && !strings.HasPrefix(s.sql, "SET") {
			want, got = columnsOf(want), columnsOf(got)
		}
		if want != "" && got != want {
			t.Errorf("%s\npsql:\n%s\nREADME:\n%s", s.sql, got, want)
		}
	}
}

const mark = "-- next --"

type tourStep struct{ sql, output string }

var sqlBlock = regexp.MustCompile("(?s)```\n(=> .*?)```")

// tour reads the blocks of the README that show psql.
func tour(t *testing.T) []tourStep {
	t.Helper()
	text, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	var steps []tourStep
	for _, block := range sqlBlock.FindAllStringSubmatch(string(text), -1) {
		for _, part := range strings.Split("\n"+block[1], "\n=> ")[1:] {
			sql, output, _ := strings.Cut(part, "\n")
			steps = append(steps, tourStep{sql, output})
		}
	}
	if len(steps) < 8 {
		t.Fatalf("only %d statements were found in the README's tour", len(steps))
	}
	return steps
}

// tidy takes off the blanks at the ends of lines, and empty lines at the end.
func tidy(text string) string {
	lines := strings.Split(text, "\n")
	for i, l := range lines {
		lines[i] = strings.TrimRight(l, " ")
	}
	return strings.TrimRight(strings.Join(lines, "\n"), "\n")
}

// columnsOf gives the names in the first line of a table.
func columnsOf(text string) string {
	first, _, _ := strings.Cut(text, "\n")
	return strings.Join(strings.FieldsFunc(first, func(r rune) bool { return r == ' ' || r == '|' }), " ")
}
