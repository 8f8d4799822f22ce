package regress

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	adminsql "neki/admin_sql"
	"neki/settings"
)

// Parts of the manual are made from the tables in the code; this test holds them to it and -update writes them.
func TestManualMatchesTheCode(t *testing.T) {
	schema := adminsql.New(adminsql.Inputs{})
	for file, want := range map[string]string{
		"settings.md": settings.Markdown(),
		"sql.md":      schemaMarkdown(schema),
	} {
		path := filepath.Join("..", "docs", file)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		const begin, end = "<!-- begin: made from the code -->\n", "<!-- end: made from the code -->\n"
		before, rest, ok := strings.Cut(string(text), begin)
		have, after, ok2 := strings.Cut(rest, end)
		if !ok || !ok2 {
			t.Fatalf("%s has no part between %q and %q", path, begin, end)
		}
		if have == want {
			continue
		}
		if !*update {
			t.Errorf("%s differs from the code: go test ./regress -run Manual -update", path)
			continue
		}
		if err := os.WriteFile(path, []byte(before+begin+want+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func schemaMarkdown(s *adminsql.Schema) string {
	var b strings.Builder
	b.WriteString("## Relations\n\n")
	for _, r := range s.Relations() {
		if r.Function {
			continue
		}
		writeRelation(&b, r)
	}
	b.WriteString("## Functions\n\n")
	for _, r := range s.Relations() {
		if r.Function {
			writeRelation(&b, r)
		}
	}
	b.WriteString("## Procedures\n\n| procedure | what it does |\n|---|---|\n")
	for _, p := range s.Procedures() {
		fmt.Fprintf(&b, "| `neki.%s(%s)` | %s |\n", p.Name, arguments(p.Args), p.Comment)
	}
	return b.String()
}

func writeRelation(b *strings.Builder, r *adminsql.Relation) {
	name := r.FullName()
	if r.Function {
		name += "(" + arguments(r.Args) + ")"
	}
	fmt.Fprintf(b, "### `%s`\n\n%s.\n\n| column | type | |\n|---|---|---|\n", name, r.Comment)
	for _, c := range r.Columns {
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", c.Name, adminsql.TypeName(c.Type), c.Comment)
	}
	b.WriteString("\n")
}

func arguments(args []adminsql.Argument) string {
	var parts []string
	for _, a := range args {
		part := a.SQLName() + " " + adminsql.TypeName(a.Type)
		if a.Default != nil {
			part += " DEFAULT " + *a.Default
		} else if a.Null {
			part += " DEFAULT NULL"
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ", ")
}

var link = regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`)

// TestLinksOfTheManual follows every link between files of the project.
func TestLinksOfTheManual(t *testing.T) {
	files, err := filepath.Glob("../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	top, err := filepath.Glob("../*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(files, top...) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(file), m[1])); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
	}
}

var yamlBlock = regexp.MustCompile("(?s)```yaml\n(.*?)```")

// TestConfigsOfTheManual loads the example file and every neki.yaml that the manual shows.
func TestConfigsOfTheManual(t *testing.T) {
	example, err := os.ReadFile("../docs/neki.example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := settings.LoadConfig(bytes.NewReader(example)); err != nil {
		t.Errorf("neki.example.yaml: %v", err)
	}
	for _, key := range keysOf(reflect.TypeFor[settings.Config]()) {
		if !bytes.Contains(example, []byte(key+":")) {
			t.Errorf("neki.example.yaml does not show %s", key)
		}
	}
	for _, file := range []string{"operations.md", "authentication.md"} {
		manual, err := os.ReadFile("../docs/" + file)
		if err != nil {
			t.Fatal(err)
		}
		blocks := yamlBlock.FindAllSubmatch(manual, -1)
		if len(blocks) == 0 {
			t.Errorf("%s shows no neki.yaml", file)
		}
		for _, block := range blocks {
			if _, err := settings.LoadConfig(bytes.NewReader(block[1])); err != nil {
				t.Errorf("%v in\n%s", err, block[1])
			}
		}
	}
}

// keysOf gives the YAML keys of a struct and of those within.
func keysOf(t reflect.Type) []string {
	for t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return nil
	}
	var keys []string
	for i := range t.NumField() {
		keys = append(keys, t.Field(i).Tag.Get("yaml"))
		keys = append(keys, keysOf(t.Field(i).Type)...)
	}
	return keys
}

var (
	tableRow = regexp.MustCompile(`(?m)^\|.*\|$`)
	testName = regexp.MustCompile(`\bTest[A-Z]\w+`)
	testFunc = regexp.MustCompile(`(?m)^func (Test\w+)\(`)
)

// TestCompatibilityNamesItsTests holds each row of the table of features to a test that exists.
func TestCompatibilityNamesItsTests(t *testing.T) {
	files, err := filepath.Glob("../*/*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	deeper, err := filepath.Glob("../*/*/*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	exists := map[string]bool{}
	for _, file := range append(files, deeper...) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range testFunc.FindAllSubmatch(text, -1) {
			exists[string(m[1])] = true
		}
	}
	manual, err := os.ReadFile("../docs/compatibility.md")
	if err != nil {
		t.Fatal(err)
	}
	features, _, _ := strings.Cut(string(manual), "## PostgreSQL's own")
	for _, name := range testName.FindAllString(features, -1) {
		if !exists[name] {
			t.Errorf("compatibility.md names %s, which does not exist", name)
		}
	}
	rows := tableRow.FindAllString(features, -1)
	if len(rows) < 10 {
		t.Fatalf("only %d rows in the table of features", len(rows))
	}
	for i, row := range rows {
		head := strings.HasPrefix(row, "|---") || i+1 < len(rows) && strings.HasPrefix(rows[i+1], "|---")
		if !head && !testName.MatchString(row) {
			t.Errorf("no test in %s", row)
		}
	}
}
