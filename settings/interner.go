package settings

import (
	"hash/maphash"
	"runtime"
	"slices"
	"strings"
	"sync"
	"weak"
)

// Interner makes Vars, each distinct set once. A set lives while anybody holds it; besides, the most recently made
// ones, up to a number of bytes, are kept for clients that set and reset the same parameters all the time. It is safe
// for concurrent use.
type Interner struct {
	seed  maphash.Seed
	empty *Vars
	*interned
	recent   []*Vars // oldest first; what is kept though nobody may use it; guarded by interned.mu
	bytes    int     // of recent
	maxBytes int
}

// interned is what the cleanups of sets hold on to: nothing in it keeps a set, or the Interner, alive.
type interned struct {
	mu   sync.Mutex
	vars weakTable[Vars]
	gucs weakTable[gucSet]
}

// NewInterner makes an Interner that keeps up to maxBytes of sets that nobody may use any more.
func NewInterner(maxBytes int) *Interner {
	in := &Interner{
		seed: maphash.MakeSeed(), maxBytes: maxBytes,
		interned: &interned{vars: newWeakTable[Vars](), gucs: newWeakTable[gucSet]()},
	}
	none := &gucSet{}
	in.gucs.put(&in.mu, none.hash, none)
	in.empty = in.intern(Default(), none)
	return in
}

// Empty gives the set of a session that has set nothing: the __neki defaults and no Postgres parameter.
func (in *Interner) Empty() *Vars { return in.empty }

// WithNeki gives v with other __neki values.
func (in *Interner) WithNeki(v *Vars, n Neki) *Vars {
	if v.neki == n {
		return v
	}
	return in.intern(n, v.gucs)
}

// With gives v with one Postgres parameter set. Setting the session authorization drops the role, as Postgres does.
// Names of neki's own are not for here: see Set.
func (in *Interner) With(v *Vars, name, value string) *Vars {
	return in.change(v, edit{name: FoldName(name), value: value, set: true})
}

// Without gives v with one Postgres parameter no longer set.
func (in *Interner) Without(v *Vars, name string) *Vars {
	return in.change(v, edit{name: FoldName(name)})
}

// Set gives v with any parameter set, neki's or Postgres's: what SET and set_config do.
func (in *Interner) Set(v *Vars, name, value string) (*Vars, error) {
	if !IsNeki(name) {
		return in.With(v, name, value), nil
	}
	n, err := v.neki.Set(name, value)
	if err != nil {
		return v, err
	}
	return in.WithNeki(v, n), nil
}

// Reset gives v with any parameter as in defaults, the set that the client gave at startup: what RESET does.
func (in *Interner) Reset(v *Vars, name string, defaults *Vars) (*Vars, error) {
	if !IsNeki(name) {
		if value, ok := defaults.GUC(name); ok {
			return in.With(v, name, value), nil
		}
		return in.Without(v, name), nil
	}
	n, err := v.neki.ResetTo(name, defaults.neki)
	if err != nil {
		return v, err
	}
	return in.WithNeki(v, n), nil
}

// ResetAll gives what RESET ALL leaves: defaults, but for the role and the session authorization, which stay as they
// are in v. (DISCARD ALL returns to defaults altogether.)
func (in *Interner) ResetAll(v, defaults *Vars) *Vars {
	result := defaults
	for _, name := range [...]string{SessionAuthorization, Role} {
		if value, ok := v.gucs.get(name); ok {
			result = in.With(result, name, value)
		} else {
			result = in.Without(result, name)
		}
	}
	return result
}

// Len gives the number of sets alive, for metrics.
func (in *Interner) Len() int {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.vars.len()
}

func (in *Interner) change(v *Vars, e edit) *Vars {
	if e.name == SessionAuthorization {
		if _, ok := v.gucs.get(Role); ok {
			v = in.change(v, edit{name: Role})
		}
	}
	at, found := v.gucs.find(e.name)
	if !found && !e.set || found && e.set && v.gucs.pairs[at].Value == e.value {
		return v
	}
	e.at, e.found = at, found
	return in.intern(v.neki, in.internGUCs(v.gucs, e))
}

// internGUCs gives the one gucSet that is base with the edit. It allocates only when there was none.
func (in *Interner) internGUCs(base *gucSet, e edit) *gucSet {
	hash := base.hash
	if e.found {
		hash -= in.pairHash(base.pairs[e.at])
	}
	if e.set {
		hash += in.pairHash(Pair{e.name, e.value})
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, w := range in.gucs.bucket(hash) {
		if g := w.Value(); g != nil && e.gives(base.pairs, g.pairs) {
			return g
		}
	}
	g := &gucSet{pairs: e.apply(base.pairs), hash: hash}
	in.gucs.put(&in.mu, hash, g)
	return g
}

func (in *Interner) intern(n Neki, g *gucSet) *Vars {
	key := g.hash ^ in.nekiHash(n)
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, w := range in.vars.bucket(key) {
		if v := w.Value(); v != nil && v.gucs == g && v.neki == n {
			return v
		}
	}
	v := &Vars{neki: n, gucs: g, key: key}
	v.neki.Shard = strings.Clone(n.Shard)
	in.vars.put(&in.mu, key, v)
	in.keepLocked(v)
	return v
}

// keepLocked holds v for a while and lets the oldest go.
func (in *Interner) keepLocked(v *Vars) {
	in.recent = append(in.recent, v)
	in.bytes += v.Bytes()
	drop := 0
	for in.bytes > in.maxBytes && drop < len(in.recent) {
		in.bytes -= in.recent[drop].Bytes()
		drop++
	}
	in.recent = slices.Delete(in.recent, 0, drop) // clears the tail, so that the sets can go
}

func (in *Interner) pairHash(p Pair) uint64 {
	// The lengths keep ("a", "bc") and ("ab", "c") apart; the second factor makes swapped values differ.
	const odd = 0x9e3779b97f4a7c15
	return (maphash.String(in.seed, p.Name) + uint64(len(p.Name))) * odd * (maphash.String(in.seed, p.Value) | 1)
}

func (in *Interner) nekiHash(n Neki) uint64 {
	if n == Default() {
		return 0
	}
	small := uint64(n.Target) | uint64(n.Recency)<<8 | uint64(n.Locality)<<16 | uint64(n.Affinity)<<24 |
		uint64(n.Consistency)<<32 | uint64(n.Fanout)<<40 | uint64(n.TxMode)<<48
	words := [...]uint64{small, uint64(n.Bound), uint64(n.Wait)}
	return maphash.Comparable(in.seed, words) ^ maphash.String(in.seed, n.Shard)
}

// edit is one change to a sorted list of pairs.
type edit struct {
	name, value string
	set         bool
	at          int  // where name stands, or would
	found       bool // it stands there
}

// gives reports whether the edit makes to out of from.
func (e *edit) gives(from, to []Pair) bool {
	rest := from[e.at:]
	if e.found {
		rest = rest[1:]
	}
	tail := e.at
	if e.set {
		if len(to) <= e.at || to[e.at] != (Pair{e.name, e.value}) {
			return false
		}
		tail++
	}
	return len(to) == tail+len(rest) && slices.Equal(from[:e.at], to[:e.at]) && slices.Equal(rest, to[tail:])
}

// apply makes the new list. It copies the new strings: they may be parts of a large statement.
func (e *edit) apply(from []Pair) []Pair {
	to := make([]Pair, 0, len(from)+1)
	to = append(to, from[:e.at]...)
	if e.set {
		to = append(to, Pair{strings.Clone(e.name), strings.Clone(e.value)})
	}
	rest := from[e.at:]
	if e.found {
		rest = rest[1:]
	}
	return append(to, rest...)
}

// weakTable finds values by hash and lets them go when nobody else holds them.
type weakTable[T any] struct{ buckets map[uint64][]weak.Pointer[T] }

func newWeakTable[T any]() weakTable[T] { return weakTable[T]{map[uint64][]weak.Pointer[T]{}} }

func (t weakTable[T]) bucket(hash uint64) []weak.Pointer[T] { return t.buckets[hash] }

func (t weakTable[T]) len() int {
	n := 0
	for _, b := range t.buckets {
		n += len(b)
	}
	return n
}

// put adds value. Its entry goes, under mu, some time after the last reference to value has gone.
func (t weakTable[T]) put(mu *sync.Mutex, hash uint64, value *T) {
	w := weak.Make(value)
	t.buckets[hash] = append(t.buckets[hash], w)
	runtime.AddCleanup(value, func(hash uint64) {
		mu.Lock()
		defer mu.Unlock()
		b := slices.DeleteFunc(t.buckets[hash], func(w weak.Pointer[T]) bool { return w.Value() == nil })
		if len(b) == 0 {
			delete(t.buckets, hash)
			return
		}
		t.buckets[hash] = b
	}, hash)
}
