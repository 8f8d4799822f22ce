package floors

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const module = "neki"

// floorOf says how high each package stands: it may import only packages that stand lower. A package that is not
// here fails the test, so that its place is decided and not found by accident.
var floorOf = map[string]int{
	"internal/pgerr": 0,
	"internal/datum": 0,
	"internal/hba":   0,

	"internal/pgwire": 1,
	"sqlparse":        1,
	"settings":        1,
	"catalog":         1,
	"pooler/copydata": 1,

	"catalog/etcdstore": 2,
	"catalog/memstore":  2,
	"catalog/storetest": 2,
	"exec":              2,
	"cluster/pgproc":    2,

	"catalog/etcdstore/embedded": 3,

	"exec/build":     3,
	"cluster/backup": 3,
	"cluster/decide": 3,

	"admin_sql":      4,
	"pooler/backend": 4,
	"pooler/plan":    4,
	"cluster/agent":  4,

	"cluster/decide/sim": 4, // imported by nothing but its own tests

	"pooler/fanout": 5,
	"cluster/admin": 5,

	"pooler":    6,
	"dashboard": 6,

	"cmd/neki": 7,
}

// freeStanding packages stand beside the floors: they serve tests and cmd. They may use floors 0 to 2, which is
// what starting a Postgres or speaking its protocol needs, and only tests, cmd and each other may use them.
var freeStanding = map[string]bool{
	"internal/testpg":    true,
	"internal/fakepg":    true,
	"internal/floors":    true,
	"internal/debughttp": true,
	"internal/certs":     true,
}

// brothers lists the imports within one floor that are allowed, each with its reason.
var brothers = map[[2]string]string{
	{"internal/datum", "internal/pgerr"}: "datum's errors (22P02, 22003 ...) are shown to clients",
}

// blackBox is a folder whose packages stand outside: they may use any package but cmd, and nothing may use them.
const blackBox = "regress"

func TestImportsPointDown(t *testing.T) {
	for _, file := range sources(t) {
		if !file.test && !inBlackBox(file.dir) && !freeStanding[file.dir] {
			if _, ok := floorOf[file.dir]; !ok {
				t.Errorf("%s: package %s has no floor: give it one in floorOf", file.path, file.dir)
			}
		}
		for _, imported := range file.imports() {
			if reason := forbidden(file, imported); reason != "" {
				t.Errorf("%s imports %s: %s", file.path, imported, reason)
			}
		}
	}
}

// forbidden says why a file may not import a package of this module; "" when it may.
func forbidden(file source, imported string) string {
	to, ours := strings.CutPrefix(imported, module+"/")
	if !ours {
		return ""
	}
	from := file.dir
	switch {
	case from == to:
		return "" // a package's own external tests
	case strings.HasPrefix(to, "cmd/"):
		return "nothing imports a command"
	case inBlackBox(to):
		if inBlackBox(from) {
			return ""
		}
		return "the black-box tests are used by nothing"
	case file.test || inBlackBox(from):
		return "" // a test may set up its subject with whatever it needs
	case freeStanding[to]:
		if freeStanding[from] || strings.HasPrefix(from, "cmd/") {
			return ""
		}
		return "a free-standing package is for tests and cmd"
	case freeStanding[from]:
		if floorOf[to] <= 2 {
			return ""
		}
		return "a free-standing package may use floors 0 to 2"
	case floorOf[to] > floorOf[from]:
		return "it stands higher"
	case floorOf[to] == floorOf[from] && brothers[[2]string{from, to}] == "":
		return "brothers on one floor don't import each other"
	}
	return ""
}

func inBlackBox(dir string) bool {
	return dir == blackBox || strings.HasPrefix(dir, blackBox+"/")
}

// source is one parsed Go file; dir and path are relative to the module's root, with slashes.
type source struct {
	dir, path string
	test      bool
	lines     int
	fset      *token.FileSet
	ast       *ast.File
}

func (s source) imports() []string {
	var paths []string
	for _, spec := range s.ast.Imports {
		if p, err := strconv.Unquote(spec.Path.Value); err == nil {
			paths = append(paths, p)
		}
	}
	return paths
}

// name is the name under which the file refers to an imported package, "" when it doesn't import it.
func (s source) name(path string) string {
	for _, spec := range s.ast.Imports {
		if p, _ := strconv.Unquote(spec.Path.Value); p == path {
			if spec.Name != nil {
				return spec.Name.Name
			}
			return path[strings.LastIndex(path, "/")+1:]
		}
	}
	return ""
}

func (s source) at(node ast.Node) string {
	return s.path + ":" + strconv.Itoa(s.fset.Position(node.Pos()).Line)
}

// library says whether the file belongs to a package that others import: not a test, not a command.
func (s source) library() bool {
	return !s.test && s.ast.Name.Name != "main"
}

// sources parses every Go file of the module.
func sources(t *testing.T) []source {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	var found []source
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if path != root && skipDir(path, d.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		file, err := parse(root, path)
		if err == nil {
			found = append(found, file)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(found) == 0 {
		t.Fatal("no Go files found")
	}
	return found
}

// skipDir leaves out what the go command leaves out of ./..., and other modules.
func skipDir(path, name string) bool {
	if strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") {
		return true
	}
	switch name {
	case "testdata", "node_modules", "neki-data", "bin":
		return true
	}
	_, err := os.Stat(filepath.Join(path, "go.mod"))
	return err == nil
}

func parse(root, path string) (source, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return source{}, err
	}
	fset := token.NewFileSet()
	tree, err := parser.ParseFile(fset, path, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return source{}, err
	}
	rel, err := filepath.Rel(root, path)
	if err != nil {
		return source{}, err
	}
	rel = filepath.ToSlash(rel)
	dir := "."
	if i := strings.LastIndex(rel, "/"); i >= 0 {
		dir = rel[:i]
	}
	return source{
		dir: dir, path: rel, test: strings.HasSuffix(rel, "_test.go"),
		lines: strings.Count(string(text), "\n"), fset: fset, ast: tree,
	}, nil
}
