package plan

import (
	"slices"
	"strings"

	"github.com/zeebo/xxh3"
)

// DefaultSearchPath is Postgres's search_path where nothing was set.
const DefaultSearchPath = `"$user", public`

// systemSchema is searched first unless search_path names it.
const systemSchema = "pg_catalog"

// FuncCatalog knows the functions of one database. Functions is one. It must be safe for concurrent use and answer
// from memory.
type FuncCatalog interface {
	// Volatile tells whether a call of the function may have effects, or depends on the connection that runs it.
	// schema is "" for an unqualified name. known is false for functions that the catalog has not got.
	Volatile(schema, name string, nargs int, searchPath []string) (volatile, known bool)
	// Relation tells whether the schema has a relation of that name; known is false when the catalog can't say. It is
	// asked only about names of the virtual schema.
	Relation(schema, name string) (exists, known bool)
	// Version changes whenever an answer may.
	Version() uint64
}

// Env is what plans depend on in a session: database, role, search_path. It is immutable; a session makes a new one
// when one of the three changes, not for each statement.
type Env struct {
	searchPath []string // as searched: pg_catalog in its place, "$user" resolved
	funcs      FuncCatalog
	rels       *RelCatalog // nil: no relation is known
	database   string
	hash       uint64
}

// NewEnv makes an Env. user is the current_user, searchPath the value that SHOW search_path gives; funcs may be nil:
// then no function is known.
func NewEnv(database, user, searchPath string, funcs FuncCatalog) *Env {
	e := &Env{searchPath: resolvePath(searchPath, user), funcs: funcs, database: database}
	h := xxh3.New()
	for _, part := range append([]string{database, user}, e.searchPath...) {
		_, _ = h.WriteString(part) // a hash's Write never fails
		_, _ = h.Write([]byte{0})
	}
	e.hash = h.Sum64()
	return e
}

// SearchPath gives the schemas in the order in which they are searched.
func (e *Env) SearchPath() []string { return slices.Clone(e.searchPath) }

// WithRelations gives the Env that also knows the relations and types of its database.
func (e *Env) WithRelations(rels *RelCatalog) *Env {
	with := *e
	with.rels = rels
	return &with
}

// Relations gives what knows the relations and types of the database; nil when nothing does.
func (e *Env) Relations() *RelCatalog { return e.rels }

// Database gives the name of the database.
func (e *Env) Database() string { return e.database }

// functionsVersion changes whenever functions or relations may have. Both versions only grow, and so does their sum.
func (e *Env) functionsVersion() uint64 {
	var v uint64
	if e.funcs != nil {
		v = e.funcs.Version()
	}
	if e.rels != nil {
		v += e.rels.Version()
	}
	return v
}

// resolvePath reads a search_path value: identifiers, quoted or not, between commas.
func resolvePath(text, user string) []string {
	var path []string
	for _, name := range splitIdentifiers(text) {
		if name == "$user" {
			name = user
		}
		if name != "" && !slices.Contains(path, name) {
			path = append(path, name)
		}
	}
	if !slices.Contains(path, systemSchema) {
		path = append([]string{systemSchema}, path...)
	}
	return path
}

// splitIdentifiers splits a list of identifiers as Postgres's SplitIdentifierString: unquoted ones fold to lower case,
// doubled quotes stand for one. Text that Postgres would refuse gives what could be read.
func splitIdentifiers(text string) []string {
	var out []string
	for text = strings.TrimLeft(text, " \t\n,"); text != ""; text = strings.TrimLeft(text, " \t\n,") {
		var name string
		if text[0] == '"' {
			name, text = quotedIdentifier(text[1:])
		} else {
			end := strings.IndexAny(text, ", \t\n")
			if end < 0 {
				end = len(text)
			}
			name, text = strings.ToLower(text[:end]), text[end:]
		}
		out = append(out, name)
	}
	return out
}

// quotedIdentifier reads up to the closing quote and gives what follows it.
func quotedIdentifier(text string) (name, rest string) {
	var b strings.Builder
	for {
		end := strings.IndexByte(text, '"')
		if end < 0 {
			return b.String() + text, ""
		}
		b.WriteString(text[:end])
		text = text[end+1:]
		if !strings.HasPrefix(text, `"`) {
			return b.String(), text
		}
		b.WriteByte('"')
		text = text[1:]
	}
}
