package main

import (
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"neki/settings"
)

func TestLoadAuth(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	passwords := write("passwords", "; roles\n\"alice\" \"p\"\"w\"\n\"bob\" \"pw\"\n", 0o600)
	tls := settings.TLS{Cert: "c", Key: "k", CA: "ca"}
	for _, tc := range []struct {
		name string
		cfg  settings.Config
		want string // "" = it is taken
	}{
		{"nothing", settings.Config{}, ""},
		{"trust for nobody", rules("local all all trust"), "clients show no password by method trust, and the gateway has no other way"},
		{"cert without an authority", rules("hostssl all all all cert"), "tls.cert is missing"},
		{"clear passwords", rules("host all all 10.0.0.0/8 password"), "passwords would cross the network in clear"},
		{"clear passwords on the loopback", rules("host all all 127.0.0.1/32 password"), ""},
		{"an unknown map", settings.Config{TLS: tls, Auth: settings.Auth{Rules: []settings.AuthRule{"hostssl all all all cert map=m"}}}, `auth.maps has no map "m"`},
		{"trusted", settings.Config{Auth: settings.Auth{Rules: []settings.AuthRule{"host all all all trust"}, TrustedByInstances: true}}, ""},
		{"listed", settings.Config{Auth: settings.Auth{Rules: []settings.AuthRule{"host all alice,bob all trust"}, PasswordsFile: passwords}}, ""},
		{"not listed", settings.Config{Auth: settings.Auth{Rules: []settings.AuthRule{"host all carol all trust"}, PasswordsFile: passwords}}, `has no password of role "carol"`},
		{"a file for all to read", file(write("open", "\"a\" \"b\"\n", 0o644)), "can be read by everybody"},
		{"a verifier", file(write("verifier", "\"a\" \"SCRAM-SHA-256$4096:\"\n", 0o600)), "nobody can log in with a SCRAM verifier"},
		{"half a line", file(write("half", "\"a\"\n", 0o600)), `line 1: not "role" "password"`},
		{"no file", file(filepath.Join(dir, "missing")), "no such file"},
		{"rules in a file", settings.Config{Auth: settings.Auth{HBAFile: write("hba", "# x\nhost all all all md5\n", 0o644)}}, ""},
		{"wrong rules in a file", settings.Config{Auth: settings.Auth{HBAFile: write("bad", "host all\n", 0o644)}}, "line 1: a database, a user"},
		{"no rules in a file", settings.Config{Auth: settings.Auth{HBAFile: write("empty", "\n", 0o644)}}, "holds no rule"},
	} {
		a, err := loadAuth("neki.yaml", tc.cfg, slog.New(slog.DiscardHandler))
		switch {
		case tc.want == "" && err != nil, tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
			t.Errorf("%s: %v", tc.name, err)
		case tc.name == "listed" && a.Passwords["alice"] != `p"w`:
			t.Errorf("%s: %q", tc.name, a.Passwords)
		}
	}
}

func rules(lines ...settings.AuthRule) settings.Config {
	return settings.Config{Auth: settings.Auth{Rules: lines}}
}

func file(path string) settings.Config {
	return settings.Config{Auth: settings.Auth{PasswordsFile: path}}
}

// TestUnixSocketsFollowEachOther opens a socket over a stale one and over one in use, and leaves a Postgres's alone.
func TestUnixSocketsFollowEachOther(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, ".s.PGSQL.5432")
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	_ = stale.Close()
	open := func() net.Listener {
		list, err := listenClients([]settings.Listener{{Address: dir, Mode: "0700"}})
		if err != nil {
			t.Fatal(err)
		}
		return list.all[0]
	}
	first := open()
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info, err)
	}
	second := open()
	_ = first.Close() // must not take the second's socket away
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	_ = second.Close()
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if err := os.WriteFile(path+".lock", []byte(strconv.Itoa(os.Getppid())+"\n/data\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := listenClients([]settings.Listener{{Address: dir}}); err == nil || !strings.Contains(err.Error(), "listens on "+path) {
		t.Errorf("over a Postgres: %v", err)
	}
}
