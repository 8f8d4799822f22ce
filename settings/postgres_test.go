package settings_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"pgregory.net/rapid"

	"neki/internal/testpg"
	"neki/settings"
)

// These tests hold the package against a real Postgres: it must read the differences and the options as we do.

func connect(t *testing.T, dsn, options string) (*pgconn.PgConn, error) {
	t.Helper()
	cfg, err := pgconn.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	if options != "" {
		cfg.RuntimeParams["options"] = options
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	return pgconn.ConnectConfig(ctx, cfg)
}

// run sends sql as one simple Query and gives the first column of the last result.
func run(ctx context.Context, conn *pgconn.PgConn, sql string) (string, error) {
	results, err := conn.Exec(ctx, sql).ReadAll()
	if err != nil || len(results) == 0 || len(results[len(results)-1].Rows) == 0 {
		return "", err
	}
	return string(results[len(results)-1].Rows[0][0]), nil
}

// text of settings in the database's encoding, whatever the connection's: hexadecimal digits.
const showHex = `SELECT string_agg(pg_catalog.encode(pg_catalog.convert_to(pg_catalog.current_setting(n), 'UTF8'), 'hex'), ',') ` +
	`FROM unnest(array['session_authorization', 'role', 'application_name', 'search_path', 'work_mem', 'log_statement', 'my.var', 'client_encoding']) n`

// values that are in the encoding of their key.
var encoded = map[string][]string{
	"UTF8":   {"", "a'b", `c:\d`, `é\'`, "ソ"},
	"LATIN1": {"", "a'b", `c:\d`, "caf\xe9'"},
	"SJIS":   {"", "a'b", `c:\d`, "\x83\x5c", "\x83\x5c'"}, // ソ, whose second byte is a backslash
}

func drawVars(t *rapid.T, in *settings.Interner) *settings.Vars {
	v := in.Empty()
	set := func(name, value string) { v = in.With(v, name, value) }
	encoding := rapid.SampledFrom([]string{"UTF8", "LATIN1", "SJIS"}).Draw(t, "encoding")
	if encoding != "UTF8" || rapid.Bool().Draw(t, "say utf8") {
		set("client_encoding", encoding)
	}
	for range rapid.IntRange(0, 5).Draw(t, "n") {
		switch rapid.IntRange(0, 5).Draw(t, "which") {
		case 0:
			set("my.var", rapid.SampledFrom(encoded[encoding]).Draw(t, "value"))
		case 1:
			set("search_path", rapid.SampledFrom([]string{`"$user", public`, "pg_catalog", `"a b", c`}).Draw(t, "path"))
		case 2:
			set("work_mem", "1MB")
		case 3:
			set("log_statement", rapid.SampledFrom([]string{"all", "none"}).Draw(t, "log")) // superusers only
		case 4:
			set("session_authorization", rapid.SampledFrom([]string{"alice", "bob's"}).Draw(t, "auth"))
		case 5:
			set("role", rapid.SampledFrom([]string{"shared", "none"}).Draw(t, "role"))
		}
	}
	return v
}

// TestDiffOnPostgres: a connection that goes from set to set by differences is, each time, as a new connection that
// got the set at once.
func TestDiffOnPostgres(t *testing.T) {
	server := testpg.Start(t)
	server.Exec(`CREATE ROLE alice; CREATE ROLE "bob's"; CREATE ROLE shared; GRANT shared TO alice, "bob's"`)
	long, err := connect(t, server.DSN(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { long.Close(t.Context()) }()
	if _, err := run(t.Context(), long, `SET my.var = ''`); err != nil {
		t.Fatal(err)
	}
	in := settings.NewInterner(1 << 20)
	have := in.Empty()
	rapid.Check(t, func(rt *rapid.T) {
		want := drawVars(rt, in)
		sql := string(settings.AppendDiff(nil, have, want))
		if _, err := run(t.Context(), long, sql); err != nil {
			rt.Fatalf("%q: %v", sql, err)
		}
		have = want
		got, err := run(t.Context(), long, showHex)
		if err != nil {
			rt.Fatal(err)
		}
		fresh, err := connect(t, server.DSN(), "")
		if err != nil {
			rt.Fatal(err)
		}
		defer fresh.Close(t.Context())
		if _, err := run(t.Context(), fresh, string(settings.AppendDiff(nil, nil, want))); err != nil {
			rt.Fatal(err)
		}
		// A custom parameter that was reset is the empty string, one never set is unknown.
		if _, ok := want.GUC("my.var"); !ok {
			if _, err := run(t.Context(), fresh, `SET my.var = ''`); err != nil {
				rt.Fatal(err)
			}
		}
		expected, err := run(t.Context(), fresh, showHex)
		if err != nil || got != expected {
			rt.Fatalf("%q gave %s, a new connection has %s (%v), for %v", sql, got, expected, err, maps.Collect(want.GUCs()))
		}
	})
}

// TestDiffKeepsCharacters: values arrive as the characters that the client meant.
func TestDiffKeepsCharacters(t *testing.T) {
	server := testpg.Start(t)
	in := settings.NewInterner(1 << 20)
	for _, tc := range []struct{ from, to, value, want string }{
		{"UTF8", "UTF8", `é\'`, `é\'`},
		{"UTF8", "LATIN1", "caf\xe9", "café"},
		{"SJIS", "LATIN1", "caf\xe9", "café"},
		{"LATIN1", "SJIS", "\x83\x5c'", "ソ'"},
		{"SJIS", "SJIS", "\x83\x5c'", "ソ'"},
	} {
		conn, err := connect(t, server.DSN(), "-c client_encoding="+tc.from+" -c standard_conforming_strings=off")
		if err != nil {
			t.Fatal(err)
		}
		have := in.With(in.Empty(), "client_encoding", tc.from)
		want := in.With(in.With(in.Empty(), "client_encoding", tc.to), "my.var", tc.value)
		if _, err := run(t.Context(), conn, string(settings.AppendDiff(nil, have, want))); err != nil {
			t.Errorf("%+v: %v", tc, err)
		}
		got, err := run(t.Context(), conn, `SELECT pg_catalog.encode(pg_catalog.convert_to(pg_catalog.current_setting('my.var'), 'UTF8'), 'hex')`)
		if want := fmt.Sprintf("%x", tc.want); err != nil || got != want {
			t.Errorf("%+v: %s, want %s (%v)", tc, got, want, err)
		}
		conn.Close(t.Context())
	}
}

// TestOptionsOnPostgres: Postgres takes and refuses the same options, and sets the same parameters.
func TestOptionsOnPostgres(t *testing.T) {
	server := testpg.Start(t)
	for _, options := range []string{
		"-c my.var=x", "-cmy.var=x", "--my.var=x", "--search-path=a,b -c work_mem=2MB", `-c search_path=a,\ b`,
		`-c application_name=back\\slash`, `-c my.var=b\`, "-c my.var=b=c", "-c my.var=", "-c my.var", "--a", "-c", "x",
		"-c my.var=b x", "-Z", "-e", "-Pec my.var=b", "-S 1024", "-fs -fh", "-fz", "-tpl", "-d 2", "-c\vmy.var=b", "-- x", "--", "-c my.var=x --",
		"-s -O", "-te", "-tparser", "-txx", "-c work_mem=1MB -c work_mem=2MB",
	} {
		pairs, parseErr := settings.ParseOptions(options)
		conn, err := connect(t, server.DSN(), options)
		var refused *pgconn.PgError
		switch {
		case errors.As(err, &refused) && refused.Code == "42601":
			if parseErr == nil {
				t.Errorf("%q: Postgres says %v, we say %v", options, err, pairs)
			} else if !strings.Contains(parseErr.Error(), refused.Message) {
				t.Errorf("%q: Postgres says %q, we say %v", options, refused.Message, parseErr)
			}
			continue
		case err != nil:
			t.Errorf("%q: %v", options, err)
			continue
		case parseErr != nil:
			t.Errorf("%q: Postgres takes it, we say %v", options, parseErr)
		}
		last := map[string]string{}
		for _, p := range pairs {
			last[p.Name] = p.Value
		}
		for name, value := range last {
			got, err := run(t.Context(), conn, "SELECT current_setting('"+name+"')")
			same, sameErr := run(t.Context(), conn, "SELECT set_config('"+name+"', $v$"+value+"$v$, false)")
			if sameErr != nil { // can't be set in a session: what was asked for is to be seen all the same
				same = map[string]string{"true": "on", "false": "off"}[value]
			}
			if err != nil || got != same {
				t.Errorf("%q: %s is %q in Postgres, %q here (%v)", options, name, got, same, err)
			}
		}
		conn.Close(t.Context())
	}
}
