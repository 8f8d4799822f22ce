package settings

import (
	"fmt"
	"maps"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestVars(t *testing.T) {
	in := NewInterner(1 << 20)
	v := in.With(in.With(in.Empty(), "TimeZone", "UTC"), "search_path", `"$user", public`)
	if value, ok := v.GUC("TIMEZONE"); !ok || value != "UTC" {
		t.Errorf("%q, %t", value, ok)
	}
	if _, ok := v.GUC("work_mem"); ok {
		t.Error("found what was never set")
	}
	if diff := cmp.Diff(map[string]string{"timezone": "UTC", "search_path": `"$user", public`}, maps.Collect(v.GUCs())); diff != "" {
		t.Error(diff)
	}
	if v != in.With(in.With(in.Empty(), "SEARCH_PATH", `"$user", public`), "timezone", "UTC") {
		t.Error("the order of setting counts")
	}
	if in.Without(in.Without(v, "search_path"), "TimeZone") != in.Empty() || in.Without(v, "nothing") != v {
		t.Error("Without")
	}
	n := Default()
	n.Target = TargetReplica
	r := in.WithNeki(v, n)
	if r == v || !r.BackendEqual(v) || r.BackendKey() != v.BackendKey() || r.Key() == v.Key() || in.WithNeki(r, Default()) != v {
		t.Error("WithNeki")
	}
	if r.Neki() != n || v.Neki() != Default() {
		t.Error("Neki")
	}
}

func TestSetReset(t *testing.T) {
	in := NewInterner(1 << 20)
	set := func(v *Vars, name, value string) *Vars {
		t.Helper()
		v, err := in.Set(v, name, value)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	defaults := set(set(in.Empty(), "application_name", "psql"), "__neki.target", "replica")
	v := set(set(set(defaults, "application_name", "x"), "__neki.target", "auto"), "work_mem", "1MB")
	for _, name := range []string{"application_name", "__neki.target", "work_mem"} {
		var err error
		if v, err = in.Reset(v, name, defaults); err != nil {
			t.Fatal(err)
		}
	}
	if v != defaults {
		t.Error("RESET of all names is not the startup state")
	}
	if _, err := in.Set(v, "__neki.taget", "x"); err == nil {
		t.Error("unknown name accepted")
	}
	if _, err := in.Reset(v, "__neki.taget", defaults); err == nil {
		t.Error("unknown name reset")
	}
	v = set(set(set(v, "session_authorization", "bob"), "role", "carol"), "work_mem", "1MB")
	all := in.ResetAll(v, defaults)
	if role, _ := all.GUC("role"); role != "carol" || all != set(set(defaults, "session_authorization", "bob"), "role", "carol") {
		t.Errorf("RESET ALL: %v", maps.Collect(all.GUCs()))
	}
	if _, ok := set(v, "session_authorization", "dave").GUC("role"); ok {
		t.Error("a new session authorization kept the role")
	}
	if _, ok := in.Without(v, "session_authorization").GUC("role"); ok {
		t.Error("RESET SESSION AUTHORIZATION kept the role")
	}
}

// model is what a Vars should be, as a plain map.
type model struct {
	gucs map[string]string
	neki Neki
}

func (m model) text() string { return fmt.Sprint(m.gucs, m.neki) } // fmt sorts maps

// TestInterner draws sequences of changes and holds the sets to a map, and pointers to equality of the maps.
func TestInterner(t *testing.T) {
	in := NewInterner(10_000)
	type made struct {
		v *Vars
		m model
	}
	known := map[string]*Vars{}
	rapid.Check(t, func(t *rapid.T) {
		now := made{in.Empty(), model{map[string]string{}, Default()}}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			name := rapid.SampledFrom([]string{"a", "b", "c.d", "work_mem", "Role", "session_authorization"}).Draw(t, "name")
			m := model{maps.Clone(now.m.gucs), now.m.neki}
			if FoldName(name) == SessionAuthorization {
				delete(m.gucs, Role)
			}
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0, 1:
				value := rapid.SampledFrom([]string{"", "1", "2", "b1"}).Draw(t, "value")
				m.gucs[FoldName(name)] = value
				now = made{in.With(now.v, name, value), m}
			case 2:
				delete(m.gucs, FoldName(name))
				now = made{in.Without(now.v, name), m}
			case 3:
				m = model{now.m.gucs, anyNeki(t)}
				now = made{in.WithNeki(now.v, m.neki), m}
			}
			if diff := cmp.Diff(now.m.gucs, maps.Collect(now.v.GUCs())); diff != "" || now.v.Neki() != now.m.neki {
				t.Fatal(diff)
			}
			text := now.m.text()
			if before, ok := known[text]; ok && before != now.v {
				t.Fatalf("two pointers for %s", text)
			}
			known[text] = now.v
		}
	})
	for text, v := range known {
		for other, o := range known {
			if text != other && v == o {
				t.Fatalf("one pointer for %s and %s", text, other)
			}
		}
	}
}

func TestSetsGo(t *testing.T) {
	in := NewInterner(1000)
	for i := range 10_000 {
		in.With(in.Empty(), "application_name", fmt.Sprint(i))
	}
	kept := in.With(in.Empty(), "application_name", "kept")
	deadline := time.Now().Add(20 * time.Second)
	for in.Len() > 20 {
		if time.Now().After(deadline) {
			t.Fatalf("%d sets are left", in.Len())
		}
		runtime.GC()
	}
	if in.With(in.Empty(), "application_name", "kept") != kept {
		t.Error("a set that is held was forgotten")
	}
	if in.bytes > 1000 {
		t.Errorf("%d bytes kept", in.bytes)
	}
}

func TestInternerConcurrently(t *testing.T) {
	in := NewInterner(2000)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 2000 {
				name, value := fmt.Sprint("p", i%7), fmt.Sprint(i%13)
				a := in.With(in.With(in.Empty(), name, value), "x", "y")
				b := in.With(in.With(in.Empty(), "x", "y"), name, value)
				if a != b {
					t.Error("two pointers for one set")
				}
				if i%500 == 0 {
					runtime.GC()
				}
			}
		})
	}
	wg.Wait()
}

func TestNoAllocations(t *testing.T) {
	in := NewInterner(1 << 20)
	a := in.With(in.With(in.Empty(), "timezone", "UTC"), "work_mem", "1MB")
	b := in.With(a, "application_name", "x")
	n := Default()
	n.Target, n.Shard = TargetReplica, "sh1"
	c := in.WithNeki(b, n)
	buffer := make([]byte, 0, 1000)
	for name, f := range map[string]func(){
		"compare": func() {
			if a == b || b.BackendEqual(a) || !b.BackendEqual(c) {
				t.Error("equal")
			}
		},
		"lookup":       func() { a.GUC("work_mem") },
		"lookup, none": func() { a.GUC("nothing") },
		"diff, none":   func() { buffer = AppendDiff(buffer[:0], b, c) },
		"diff":         func() { buffer = AppendDiff(buffer[:0], a, b) },
		"set again":    func() { in.With(a, "application_name", "x") },
		"reset again":  func() { in.Without(b, "application_name") },
		"neki again":   func() { in.WithNeki(b, n) },
		"is neki":      func() { IsNeki("__NEKI.target") },
	} {
		if allocs := testing.AllocsPerRun(100, f); allocs != 0 {
			t.Errorf("%s: %v allocations", name, allocs)
		}
	}
}

func TestFoldName(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "abc": "abc", "DateStyle": "datestyle", "ÄB": "Äb", "My.Var": "my.var",
	} {
		if got := FoldName(in); got != want {
			t.Errorf("%q: %q", in, got)
		}
	}
	for in, want := range map[string]string{
		"datestyle": "DateStyle", "TIMEZONE": "TimeZone", "intervalstyle": "IntervalStyle", "WORK_MEM": "work_mem",
	} {
		if got := DisplayName(in); got != want {
			t.Errorf("%q: %q", in, got)
		}
	}
}

func TestValuesAreCopied(t *testing.T) {
	in := NewInterner(0)
	statement := []byte("application_name=" + strings.Repeat("x", 10))
	v := in.With(in.Empty(), string(statement[:16]), string(statement[17:]))
	statement[17] = 'y'
	if value, _ := v.GUC("application_name"); value != "xxxxxxxxxx" {
		t.Error(value)
	}
}
