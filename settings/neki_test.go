package settings

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"neki/internal/pgerr"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestTable(t *testing.T) {
	all := All()
	if !slices.IsSortedFunc(all, func(a, b Setting) int { return strings.Compare(a.Name, b.Name) }) {
		t.Error("the table is not in name order")
	}
	for _, s := range all {
		if got := s.Format(Default()); got != s.Default {
			t.Errorf("%s: default %q in the table, %q in Default()", s.Name, s.Default, got)
		}
		if s.Description == "" || !strings.HasPrefix(s.Name, Prefix) || s.Name != FoldName(s.Name) {
			t.Errorf("%+v", s)
		}
		for _, value := range s.Allowed {
			value = strings.ReplaceAll(value, "<interval>", "5s")
			for _, spelling := range []string{value, strings.ToUpper(value), " " + value + " "} {
				var n Neki
				if err := s.Parse(&n, spelling); err != nil || s.Format(n) != value {
					t.Errorf("%s = %q: %q, %v", s.Name, spelling, s.Format(n), err)
				}
			}
		}
	}
	all[0].Name = "x"
	if All()[0].Name == "x" {
		t.Error("All gives the table itself")
	}
}

func TestSet(t *testing.T) {
	for _, tc := range []struct{ name, value, want, code, hint string }{
		{"__neki.target", "REPLICA", "replica", "", ""},
		{"__NEKI.Target", "auto", "auto", "", ""},
		{"__neki.target", "master", "", "22023", "Available values: primary, replica, rdonly, auto."},
		{"__neki.target", "", "", "22023", "Available values: primary, replica, rdonly, auto."},
		{"__neki.taget", "auto", "", "42704", `Perhaps you meant "__neki.target".`},
		{"__neki.replica_recncy", "off", "", "42704", `Perhaps you meant "__neki.replica_recency".`},
		{"neki.target", "replica", "", "42704", `Perhaps you meant "__neki.target".`},
		{"NEKI.Shard", "sh1", "", "42704", `Perhaps you meant "__neki.shard".`},
		{"__neki.", "off", "", "42704", "The settings of neki are: __neki.fanout, "},
		{"__neki.zzzzzzzzzzzzzzzz", "off", "", "42704", "The settings of neki are: "},
		{"__neki.replica_consistency", "Session", "session", "", ""},
		{"__neki.replica_consistency", "BOUNDED:5S", "bounded:5s", "", ""},
		{"__neki.replica_consistency", "bounded: 1500 ms", "bounded:1500ms", "", ""},
		{"__neki.replica_consistency", "bounded", "", "22023", "Available values: eventual, session, bounded:<interval>."},
		{"__neki.replica_consistency", "bounded:", "", "22023", "Available"},
		{"__neki.replica_consistency", "bounded:5", "", "22023", "Available"},
		{"__neki.replica_consistency", "bounded:-5s", "", "22023", "Available"},
		{"__neki.replica_wait", "100ms", "100ms", "", ""},
		{"__neki.replica_wait", "60s", "1min", "", ""},
		{"__neki.replica_wait", "0", "0", "", ""},
		{"__neki.replica_wait", "5", "", "22023", "A unit is missing: write 5s"},
		{"__neki.fanout", "single", "single", "", ""},
		{"__neki.tx_mode", "Atomic", "atomic", "", ""},
		{"__neki.shard", "sh1", "sh1", "", ""},
		{"__neki.shard", "", "", "", ""},
		{"__neki.shard", "a b", "", "22023", "Allowed are up to 63"},
		{"__neki.shard", strings.Repeat("x", 64), "", "22023", "Allowed are up to 63"},
	} {
		before := Default()
		before.Target, before.Consistency, before.Bound = TargetRdonly, Bounded, time.Minute
		n, err := before.Set(tc.name, tc.value)
		if tc.code == "" {
			if got, getErr := n.Get(tc.name); err != nil || getErr != nil || got != tc.want {
				t.Errorf("%s = %q: %q, %v", tc.name, tc.value, got, err)
			}
			continue
		}
		if e := pgerr.From(err); err == nil || e.Code != tc.code || !strings.HasPrefix(e.Hint, tc.hint) {
			t.Errorf("%s = %q: %v, hint %q", tc.name, tc.value, err, pgerr.From(err).Hint)
		}
		if n != before {
			t.Errorf("%s = %q: a bad value changed something", tc.name, tc.value)
		}
	}
}

func TestConsistencyClearsBound(t *testing.T) {
	n, _ := Default().Set("__neki.replica_consistency", "bounded:5s")
	if n, _ = n.Set("__neki.replica_consistency", "eventual"); n != Default() {
		t.Errorf("%+v differs from the default", n)
	}
}

func TestReset(t *testing.T) {
	for _, s := range All() {
		n := Neki{
			TargetAuto, Off, Require, AffinitySession, Bounded, FanoutSingle, TxAtomic, time.Second, time.Minute, "sh9",
		}
		n, err := n.Reset(strings.ToUpper(s.Name))
		if got, _ := n.Get(s.Name); err != nil || got != s.Default {
			t.Errorf("%s: %q, %v", s.Name, got, err)
		}
	}
	if _, err := Default().Reset("__neki.nothing"); pgerr.Code(err) != "42704" {
		t.Error(err)
	}
}

// TestSetGetRoundTrip: what SHOW gives, SET takes.
func TestSetGetRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := anyNeki(t)
		back := Default()
		for _, s := range All() {
			var err error
			if back, err = back.Set(s.Name, s.Format(n)); err != nil {
				t.Fatal(err)
			}
		}
		if back != n {
			t.Fatalf("%+v came back as %+v", n, back)
		}
	})
}

func anyNeki(t *rapid.T) Neki {
	pick := func(name string, most int) int { return rapid.IntRange(0, most).Draw(t, name) }
	n := Neki{
		Target: Target(pick("target", 3)), Recency: Policy(pick("recency", 2)), Locality: Policy(pick("locality", 2)),
		Affinity: Affinity(pick("affinity", 1)), Consistency: Consistency(pick("consistency", 2)),
		Fanout: Fanout(pick("fanout", 2)), TxMode: TxMode(pick("tx", 2)),
		Wait:  time.Duration(pick("wait", 1_000_000)) * time.Microsecond,
		Shard: rapid.StringMatching(`[a-z0-9_]{0,8}`).Draw(t, "shard"),
	}
	if n.Consistency == Bounded {
		n.Bound = time.Duration(pick("bound", 1_000_000)) * time.Millisecond
	}
	return n
}

func TestInterval(t *testing.T) {
	for _, tc := range []struct {
		text string
		want time.Duration
		ok   bool
		show string
	}{
		{"5s", 5 * time.Second, true, "5s"},
		{" 5 S ", 5 * time.Second, true, "5s"},
		{"100ms", 100 * time.Millisecond, true, "100ms"},
		{"15min", 15 * time.Minute, true, "15min"},
		{"15m", 15 * time.Minute, true, "15min"},
		{"1h 30min", 90 * time.Minute, true, "90min"},
		{"1h30m", 90 * time.Minute, true, "90min"},
		{"2 hours", 2 * time.Hour, true, "2h"},
		{"1.5s", 1500 * time.Millisecond, true, "1500ms"},
		{"1d", 24 * time.Hour, true, "1d"},
		{"250us", 250 * time.Microsecond, true, "250us"},
		{"0", 0, true, "0"},
		{"0s", 0, true, "0"},
		{"", 0, false, ""},
		{"5", 0, false, ""},
		{"s", 0, false, ""},
		{"-5s", 0, false, ""},
		{"5 parsecs", 0, false, ""},
		{"1.2.3s", 0, false, ""},
		{"5s x", 0, false, ""},
		{"99999999999999999999d", 0, false, ""},
		{"100000d 100000d", 0, false, ""},
		{"NaNs", 0, false, ""},
		{"1e3s", 0, false, ""},
	} {
		d, ok := ParseInterval(tc.text)
		if ok != tc.ok || d != tc.want || ok && FormatInterval(d) != tc.show {
			t.Errorf("%q: %s, %t, shown %q", tc.text, d, ok, FormatInterval(d))
		}
	}
}

func FuzzParseInterval(f *testing.F) {
	f.Add("1h 30min")
	f.Fuzz(func(t *testing.T, text string) {
		d, ok := ParseInterval(text)
		if back, again := ParseInterval(FormatInterval(d)); ok && (!again || back != d || d < 0) {
			t.Errorf("%q is %d, %q is %d", text, d, FormatInterval(d), back)
		}
	})
}

func TestMarkdown(t *testing.T) {
	golden(t, "settings.md", Markdown())
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("run go test -update after reading this:\n%s", diff)
	}
}
