package floors

import (
	"go/ast"
	"strings"
	"testing"
)

func TestOneDocPerPackage(t *testing.T) {
	documented := map[string][]string{}
	for _, file := range sources(t) {
		pkg := file.dir
		if _, seen := documented[pkg]; !seen {
			documented[pkg] = nil
		}
		if file.ast.Doc == nil || strings.HasSuffix(file.ast.Name.Name, "_test") {
			continue
		}
		documented[pkg] = append(documented[pkg], file.path)
		want := "Package " + file.ast.Name.Name + " "
		if file.ast.Name.Name == "main" {
			continue // godoc's form for a command is free
		}
		if text := file.ast.Doc.Text(); !strings.HasPrefix(text, want) {
			t.Errorf("%s: the package comment must begin with %q", file.path, want)
		}
	}
	for pkg, files := range documented {
		switch len(files) {
		case 0:
			t.Errorf("package %s has no doc comment: purpose, who owns the goroutines, what is safe for concurrent use", pkg)
		case 1:
		default:
			t.Errorf("package %s has %d doc comments, godoc would join them: %s", pkg, len(files), strings.Join(files, ", "))
		}
	}
}

const pgQuery = "github.com/pganalyze/pg_query_go"

// treeReaders may name pg_query's node types to walk a tree that sqlparse gave them. Only sqlparse calls into the
// C library: it bounds the depth first, without which a long statement ends the process.
var treeReaders = map[string]bool{"exec/build": true, "pooler/plan": true}

// callsIntoC are pg_query's functions that enter the C parser.
var callsIntoC = map[string]bool{
	"Parse": true, "ParseToJSON": true, "ParsePlPgSqlToJSON": true, "Scan": true, "Deparse": true, "Normalize": true,
	"NormalizeUtility": true, "Fingerprint": true, "FingerprintToUInt64": true, "HashXXH3_64": true,
	"SplitWithScanner": true, "SplitWithParser": true,
}

func TestOnlySqlparseParses(t *testing.T) {
	for _, file := range sources(t) {
		if file.dir == "sqlparse" {
			continue
		}
		for _, path := range file.imports() {
			if !strings.HasPrefix(path, pgQuery) {
				continue
			}
			if !treeReaders[file.dir] {
				t.Errorf("%s imports %s: only sqlparse does, so that another grammar is one package's work", file.path, path)
				continue
			}
			names := callsOf(file, "pg_query")
			if alias := file.name(path); alias != "v5" && alias != "v6" {
				names = callsOf(file, alias)
			}
			for name, where := range names {
				if callsIntoC[name] {
					t.Errorf("%s: %s.%s: call sqlparse instead, it bounds the depth first", where, pgQuery, name)
				}
			}
		}
	}
}

// callsOf gives the selectors called on a package name, each with the place of one call.
func callsOf(file source, pkg string) map[string]string {
	calls := map[string]string{}
	ast.Inspect(file.ast, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		if sel, ok := call.Fun.(*ast.SelectorExpr); ok {
			if id, ok := sel.X.(*ast.Ident); ok && id.Name == pkg {
				calls[sel.Sel.Name] = file.at(call)
			}
		}
		return true
	})
	return calls
}

// sleeps lists the files of libraries that may call time.Sleep, each with its reason.
var sleeps = map[string]string{
	"cluster/pgproc/start.go": "waits for killed processes to end, for which there is no event; bounded, and not to be left half done",
}

// What a library must leave to its caller: printing, logging through a global, ending the process, waiting without
// a context, and work before main.
func TestLibrariesLeaveTheProcessAlone(t *testing.T) {
	banned := map[string]map[string]string{
		"fmt": {
			"Print": "write to a given io.Writer", "Printf": "write to a given io.Writer",
			"Println": "write to a given io.Writer",
		},
		"os":   {"Exit": "return an error"},
		"time": {"Sleep": "wait on a timer beside ctx.Done()"},
	}
	for _, file := range sources(t) {
		if !file.library() {
			continue
		}
		for _, path := range file.imports() {
			if path == "log" {
				t.Errorf("%s imports log: a *slog.Logger is passed in", file.path)
			}
			if path == "time" && (freeStanding[file.dir] || sleeps[file.path] != "") {
				continue
			}
			for name, where := range callsOf(file, file.name(path)) {
				if instead := banned[path][name]; instead != "" {
					t.Errorf("%s: %s.%s in a library: %s", where, path, name, instead)
				}
			}
		}
		for _, decl := range file.ast.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
				t.Errorf("%s: func init: make it a constructor that its user calls", file.at(fn))
			}
		}
	}
}

const maxLines = 660 // about 600: a file is not split for a few lines

// longFiles may be longer than maxLines, each with its reason.
var longFiles = map[string]string{}

func TestFilesAreShort(t *testing.T) {
	for _, file := range sources(t) {
		limit := maxLines
		if file.test {
			limit = maxLines * 3 / 2 // tables of cases read well at length
		}
		if file.lines > limit && longFiles[file.path] == "" {
			t.Errorf("%s has %d lines, more than %d: split it by noun, or give a reason in longFiles",
				file.path, file.lines, limit)
		}
	}
}
