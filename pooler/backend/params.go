package backend

import (
	"strings"
	"sync"
	"weak"

	"neki/internal/pgwire"
)

// ParamSet is what a server has reported by ParameterStatus: an immutable set, interned, so that "does the client know
// all this already?" is ==. Served is the same set without in_hot_standby, which tells instances apart and is no
// setting: a session that reads from replicas and writes to the primary goes by Served.
type ParamSet struct {
	pairs   []pgwire.Pair // in the server's order
	served  *ParamSet     // nil: the set itself
	standby bool          // in_hot_standby is on
}

// inHotStandby is the one reported parameter that is a property of the instance.
const inHotStandby = "in_hot_standby"

// Pairs gives the parameters in the server's order. The slice must not be changed.
func (s *ParamSet) Pairs() []pgwire.Pair { return s.pairs }

// Standby reports whether the server is a standby.
func (s *ParamSet) Standby() bool { return s.standby }

// Served gives the set without in_hot_standby.
func (s *ParamSet) Served() *ParamSet {
	if s.served == nil {
		return s
	}
	return s.served
}

// Get gives the value of a parameter.
func (s *ParamSet) Get(name string) (string, bool) {
	for i := range s.pairs {
		if s.pairs[i].Name == name {
			return s.pairs[i].Value, true
		}
	}
	return "", false
}

// Changes calls f for each parameter that differs in to, or is new there.
func (s *ParamSet) Changes(to *ParamSet, f func(p pgwire.Pair)) {
	for _, p := range to.pairs {
		if old, ok := s.Get(p.Name); !ok || old != p.Value {
			f(p)
		}
	}
}

// paramSets interns ParamSets. It is safe for concurrent use.
type paramSets struct {
	mu    sync.Mutex
	byKey map[string]weak.Pointer[ParamSet]
}

func newParamSets() *paramSets { return &paramSets{byKey: make(map[string]weak.Pointer[ParamSet])} }

// maxParamSets bounds the interner; beyond it dead entries are swept.
const maxParamSets = 1024

func (t *paramSets) intern(pairs []pgwire.Pair) *ParamSet {
	var key strings.Builder
	told, standby := false, false
	for _, p := range pairs {
		key.WriteString(p.Name + "\x00" + p.Value + "\x00")
		if p.Name == inHotStandby {
			told, standby = true, p.Value == "on"
		}
	}
	t.mu.Lock()
	if s := t.byKey[key.String()].Value(); s != nil {
		t.mu.Unlock()
		return s
	}
	t.mu.Unlock()
	s := &ParamSet{pairs: append([]pgwire.Pair(nil), pairs...), standby: standby}
	if told {
		var rest []pgwire.Pair
		for _, p := range pairs {
			if p.Name != inHotStandby {
				rest = append(rest, p)
			}
		}
		s.served = t.intern(rest)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if other := t.byKey[key.String()].Value(); other != nil {
		return other
	}
	if len(t.byKey) >= maxParamSets {
		for k, p := range t.byKey {
			if p.Value() == nil {
				delete(t.byKey, k)
			}
		}
	}
	t.byKey[key.String()] = weak.Make(s)
	return s
}

// with gives the set with one parameter changed or added.
func (t *paramSets) with(s *ParamSet, name, value string) *ParamSet {
	pairs := append([]pgwire.Pair(nil), s.pairs...)
	for i := range pairs {
		if pairs[i].Name == name {
			pairs[i].Value = value
			return t.intern(pairs)
		}
	}
	return t.intern(append(pairs, pgwire.Pair{Name: name, Value: value}))
}
