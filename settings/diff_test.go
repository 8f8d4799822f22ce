package settings

import (
	"encoding/hex"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func setOf(in *Interner, pairs ...string) *Vars {
	v := in.Empty()
	for i := 0; i < len(pairs); i += 2 {
		v = in.With(v, pairs[i], pairs[i+1])
	}
	return v
}

func TestAppendDiff(t *testing.T) {
	in := NewInterner(1 << 20)
	for _, tc := range []struct {
		name       string
		have, want *Vars
		sql        string
	}{
		{"equal", setOf(in, "a", "1"), setOf(in, "a", "1"), ""},
		{"nil", nil, nil, ""},
		{"nil and empty", nil, in.Empty(), ""},
		{
			"set two", nil, setOf(in, "b", "2", "a", "1"),
			`SELECT pg_catalog.set_config('a', '1', false), pg_catalog.set_config('b', '2', false)`,
		},
		{"reset", setOf(in, "a", "1", "x.y", "2"), nil, `RESET "a"; RESET "x"."y"`},
		{
			"change one of two", setOf(in, "a", "1", "b", "2"), setOf(in, "a", "1", "b", "3"),
			`SELECT pg_catalog.set_config('b', '3', false)`,
		},
		{
			"quotes", nil, setOf(in, "a", `it's`, "b", `c:\'x`),
			`SELECT pg_catalog.set_config('a', 'it''s', false), pg_catalog.set_config('b', E'c:\\''x', false)`,
		},
		{
			"identity", nil, setOf(in, "session_authorization", "bob", "role", "carol", "a", "1"),
			`SELECT pg_catalog.set_config('a', '1', false); ` +
				`SELECT pg_catalog.set_config('session_authorization', 'bob', false); ` +
				`SELECT pg_catalog.set_config('role', 'carol', false)`,
		},
		{
			"identity left", setOf(in, "session_authorization", "bob", "role", "carol", "a", "1"), nil,
			`RESET ROLE; RESET SESSION AUTHORIZATION; RESET "a"`,
		},
		{
			"same role, other parameter", setOf(in, "role", "carol"), setOf(in, "role", "carol", "a", "1"),
			`RESET ROLE; SELECT pg_catalog.set_config('a', '1', false); SELECT pg_catalog.set_config('role', 'carol', false)`,
		},
		{
			"encoding", setOf(in, "client_encoding", "SJIS"), setOf(in, "client_encoding", "LATIN1", "a", "caf\xe9"),
			`SELECT pg_catalog.set_config('a', pg_catalog.convert_from(pg_catalog.decode('636166e9', 'hex'), 'LATIN1'), false), ` +
				`pg_catalog.set_config('client_encoding', 'LATIN1', false)`,
		},
		{
			"utf8", nil, setOf(in, "client_encoding", "utf-8", "a", "café"),
			`SELECT pg_catalog.set_config('a', 'café', false), pg_catalog.set_config('client_encoding', 'utf-8', false)`,
		},
	} {
		if got := string(AppendDiff([]byte("> "), tc.have, tc.want)); got != "> "+tc.sql {
			t.Errorf("%s:\n%s\nwant\n%s", tc.name, got[2:], tc.sql)
		}
	}
}

// backend executes what AppendDiff writes, as a Postgres would: no more of SQL is understood.
type backend struct {
	gucs map[string]string
	sql  string
	err  error
}

func (b *backend) take(prefix string) bool {
	rest, ok := strings.CutPrefix(b.sql, prefix)
	if ok {
		b.sql = rest
	}
	return ok
}

func (b *backend) expect(text string) {
	if !b.take(text) && b.err == nil {
		b.err = fmt.Errorf("want %q at %q", text, b.sql)
	}
}

func (b *backend) run(sql string) error {
	b.sql = sql
	for b.sql != "" && b.err == nil {
		switch {
		case b.take("RESET ROLE"):
			delete(b.gucs, Role)
		case b.take("RESET SESSION AUTHORIZATION"):
			delete(b.gucs, SessionAuthorization)
			delete(b.gucs, Role)
		case b.take("RESET "):
			b.reset()
		default:
			b.expect("SELECT ")
			b.setConfig()
			for b.take(", ") {
				b.setConfig()
			}
		}
		if b.sql != "" {
			b.expect("; ")
		}
	}
	return b.err
}

func (b *backend) reset() {
	if b.gucs[Role] != "" || b.gucs[SessionAuthorization] != "" {
		b.err = fmt.Errorf("parameter reset while acting as another")
	}
	name := ""
	for {
		b.expect(`"`)
		part, rest, _ := strings.Cut(b.sql, `"`)
		name, b.sql = name+part, rest
		if !b.take(".") {
			break
		}
		name += "."
	}
	delete(b.gucs, name)
}

func (b *backend) setConfig() {
	b.expect("pg_catalog.set_config(")
	name := b.literal()
	b.expect(", ")
	value := b.literal()
	b.expect(", false)")
	if (b.gucs[Role] != "" || b.gucs[SessionAuthorization] != "" && name != Role) && b.err == nil {
		b.err = fmt.Errorf("%s set while acting as another", name)
	}
	if name == SessionAuthorization {
		delete(b.gucs, Role)
	}
	b.gucs[name] = value
}

func (b *backend) literal() string {
	if b.take("pg_catalog.convert_from(pg_catalog.decode(") {
		bytes, err := hex.DecodeString(b.literal())
		b.expect(", 'hex'), ")
		b.literal()
		b.expect(")")
		if b.err == nil {
			b.err = err
		}
		return string(bytes)
	}
	escapes := b.take("E")
	b.expect("'")
	var value strings.Builder
	for b.err == nil {
		switch {
		case b.take("''"):
			value.WriteByte('\'')
		case b.take("'"):
			return value.String()
		case escapes && b.take(`\\`):
			value.WriteByte('\\')
		case b.sql == "" || b.sql[0] == '\\':
			b.err = fmt.Errorf("bad literal at %q", b.sql)
		default:
			value.WriteByte(b.sql[0])
			b.sql = b.sql[1:]
		}
	}
	return ""
}

func anyVars(t *rapid.T, in *Interner, label string) *Vars {
	v := in.Empty()
	for range rapid.IntRange(0, 6).Draw(t, label) {
		name := rapid.SampledFrom([]string{
			"a", "search_path", "my.var", "client_encoding", "role", "session_authorization",
		}).Draw(t, "name")
		value := rapid.StringMatching(`[a-c'"\\; é]{0,5}`).Draw(t, "value")
		if name == "client_encoding" {
			value = rapid.SampledFrom([]string{"UTF8", "LATIN1", "SJIS"}).Draw(t, "encoding")
		}
		if isIdentity(name) {
			value = "x" + value
		}
		v = in.With(v, name, value)
	}
	return v
}

// TestDiffGivesWant: a backend that has one set and runs the difference has the other.
func TestDiffGivesWant(t *testing.T) {
	in := NewInterner(10_000)
	rapid.Check(t, func(t *rapid.T) {
		have, want := anyVars(t, in, "have"), anyVars(t, in, "want")
		sql := string(AppendDiff(nil, have, want))
		if (sql == "") != have.BackendEqual(want) {
			t.Fatalf("%q between %v and %v", sql, maps.Collect(have.GUCs()), maps.Collect(want.GUCs()))
		}
		b := backend{gucs: maps.Collect(have.GUCs())}
		if err := b.run(sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
		if diff := cmp.Diff(maps.Collect(want.GUCs()), b.gucs); diff != "" {
			t.Fatalf("%s\n%s", sql, diff)
		}
	})
}
