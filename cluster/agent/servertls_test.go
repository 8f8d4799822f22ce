package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"neki/cluster/pgproc"
)

// What the server is told about TLS, and how it comes to others: with a certificate alone both are possible, so that instances get
// theirs one after the other; with an authority nothing but TLS is.
func TestServerTLS(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	cert, key, ca := write("c", "cert"), write("k", "key"), write("a", "ca")
	for _, tc := range []struct {
		name         string
		tls          ServerTLS
		ssl, mode    string
		host, secure int // rules that let somebody in
	}{
		{"without", ServerTLS{}, "", "sslmode=prefer", 4, 0},
		{"certificate", ServerTLS{Cert: cert, Key: key}, "on", "sslmode=prefer", 4, 0},
		{"authority", ServerTLS{Cert: cert, Key: key, CA: ca}, "on", "sslmode=verify-ca sslrootcert=", 0, 4},
	} {
		pg, err := pgproc.New(pgproc.Config{Dir: filepath.Join(dir, tc.name), Port: 1})
		if err != nil {
			t.Fatal(err)
		}
		a := &Agent{cfg: Config{ServerTLS: tc.tls}, pg: pg}
		if err := os.MkdirAll(pg.SocketDir(), 0o700); err != nil {
			t.Fatal(err)
		}
		if got := a.tlsSettings()["ssl"]; got != tc.ssl {
			t.Errorf("%s: ssl = %q", tc.name, got)
		}
		if got := a.replicationDSN(Source{Host: "h", Port: 2}); !strings.Contains(got, tc.mode) {
			t.Errorf("%s: %s", tc.name, got)
		}
		host, secure := 0, 0
		for _, r := range a.onlyTLS(pgproc.DefaultHBA("r")) {
			switch word, _, _ := strings.Cut(string(r), " "); {
			case strings.HasSuffix(string(r), " reject"):
			case word == "host":
				host++
			case word == "hostssl":
				secure++
			}
		}
		if host != tc.host || secure != tc.secure {
			t.Errorf("%s: %d rules without TLS, %d with", tc.name, host, secure)
		}
		for i, want := range []bool{tc.tls.Cert != "", false} {
			if changed, err := a.copyCertificates(); changed != want || err != nil {
				t.Errorf("%s: look %d: changed %v, %v", tc.name, i, changed, err)
			}
		}
		pg.Close()
	}
}
