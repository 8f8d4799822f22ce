package settings

import (
	"iter"
	"strings"
)

// Names of the two parameters that say who a session acts as. They stand in Vars like all others, but AppendDiff knows
// them.
const (
	Role                 = "role"
	SessionAuthorization = "session_authorization"
)

// Pair is one parameter and its value, as text for set_config.
type Pair struct{ Name, Value string }

// Vars is an immutable set of all that a client has set: the __neki values and its Postgres parameters. Equal sets
// made by one Interner are one pointer.
type Vars struct {
	neki Neki
	gucs *gucSet
	key  uint64
}

// gucSet is the part of a Vars that a backend must match. It is interned by itself, so that sessions that differ in
// their __neki values only share backends.
type gucSet struct {
	pairs []Pair // in byte order of the names
	hash  uint64 // sum of the pairs' hashes, hence the same in whatever order they came
}

// Neki gives the __neki values.
func (v *Vars) Neki() Neki { return v.neki }

// GUC gives the value of a Postgres parameter, by its name in any case, and whether the client has set it.
func (v *Vars) GUC(name string) (string, bool) {
	i, ok := v.gucs.find(FoldName(name))
	if !ok {
		return "", false
	}
	return v.gucs.pairs[i].Value, true
}

// GUCs gives every Postgres parameter that the client has set, in the order of their names.
func (v *Vars) GUCs() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for _, p := range v.gucs.pairs {
			if !yield(p.Name, p.Value) {
				return
			}
		}
	}
}

// Len gives the number of Postgres parameters set.
func (v *Vars) Len() int { return len(v.gucs.pairs) }

// Bytes gives the memory that the set holds, for limits per session.
func (v *Vars) Bytes() int { return v.gucs.bytes() + varsBytes }

// Key is a hash of the whole set. It differs from process to process.
func (v *Vars) Key() uint64 { return v.key }

// BackendKey is a hash of what a backend must match: all but the __neki values. It differs from process to process.
func (v *Vars) BackendKey() uint64 { return v.gucs.hash }

// BackendEqual reports whether a backend that matches v matches o: they are equal but for the __neki values. Both must
// come from one Interner.
func (v *Vars) BackendEqual(o *Vars) bool { return v == o || v.gucs == o.gucs }

// find gives the place of name, or where it would stand. name is folded.
func (g *gucSet) find(name string) (int, bool) {
	low, high := 0, len(g.pairs)
	for low < high {
		mid := int(uint(low+high) >> 1)
		if g.pairs[mid].Name < name {
			low = mid + 1
		} else {
			high = mid
		}
	}
	return low, low < len(g.pairs) && g.pairs[low].Name == name
}

func (g *gucSet) get(name string) (string, bool) {
	i, ok := g.find(name)
	if !ok {
		return "", false
	}
	return g.pairs[i].Value, true
}

// Sizes of the structures around the strings, with the table's entry and the weak pointer's own cell.
const (
	gucSetBytes = 120
	pairBytes   = 32
	varsBytes   = 200
)

func (g *gucSet) bytes() int {
	n := gucSetBytes
	for _, p := range g.pairs {
		n += pairBytes + len(p.Name) + len(p.Value)
	}
	return n
}

// FoldName gives the form in which names are compared: as Postgres does, ASCII letters in lower case and all other
// bytes as they are. It allocates only when there is something to change.
func FoldName(name string) string {
	for i := range len(name) {
		if c := name[i]; c >= 'A' && c <= 'Z' {
			return foldFrom(name, i)
		}
	}
	return name
}

func foldFrom(name string, from int) string {
	b := []byte(name)
	for i := from; i < len(b); i++ {
		if c := b[i]; c >= 'A' && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}

// DisplayName gives the spelling in which Postgres itself shows a parameter: DateStyle, IntervalStyle and TimeZone
// have capitals, all others of its own have none, and a custom one is shown as it was written first.
func DisplayName(name string) string {
	for _, special := range [...]string{"DateStyle", "IntervalStyle", "TimeZone"} {
		if strings.EqualFold(name, special) {
			return special
		}
	}
	return FoldName(name)
}
