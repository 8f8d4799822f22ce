package pooler

import (
	"crypto/tls"
	"net"
	"testing"

	"neki/internal/certs"
	"neki/internal/pgwire"
	"neki/internal/testpg"
)

// BenchmarkLogin logs in and leaves, one client after the other; the client's own work counts too.
func BenchmarkLogin(b *testing.B) {
	for name, encrypted := range map[string]bool{"plain": false, "tls": true} {
		b.Run(name, func(b *testing.B) {
			var server *certs.Reloader
			g := startGateway(b, gatewayOptions{config: func(c *Config) {
				if encrypted {
					server = benchCertificate(b)
					c.TLS = server.ServerConfig(tls.NoClientCert)
				}
			}})
			login := pgwire.BackendLogin{User: testpg.Superuser, Database: "postgres", Keys: superuserKeys(b, g)}
			if encrypted {
				login.TLS = server.ClientConfig("127.0.0.1")
			}
			b.ReportAllocs()
			for b.Loop() {
				conn, err := net.Dial("tcp", g.addr)
				if err != nil {
					b.Fatal(err)
				}
				greeting, err := pgwire.Connect(b.Context(), conn, login)
				if err != nil {
					b.Fatal(err)
				}
				_, _ = greeting.Conn.Write([]byte{'X', 0, 0, 0, 4})
				_ = conn.Close()
			}
		})
	}
}

func benchCertificate(b testing.TB) *certs.Reloader {
	b.Helper()
	dir := b.TempDir()
	authority, err := certs.OpenAuthority(dir)
	if err != nil {
		b.Fatal(err)
	}
	files, err := authority.Ensure(dir, certs.Request{Name: "gw", Hosts: []string{"127.0.0.1"}, Server: true})
	if err != nil {
		b.Fatal(err)
	}
	r, err := certs.NewReloader(files, nil)
	if err != nil {
		b.Fatal(err)
	}
	return r
}

// superuserKeys gives the keys that the superuser's password yields, so that no login has to derive them.
func superuserKeys(b testing.TB, g *gateway) *pgwire.Keys {
	b.Helper()
	v, err := pgwire.ParseVerifier(g.group.Primary.Text("SELECT rolpassword FROM pg_authid WHERE rolname = $1", testpg.Superuser))
	if err != nil {
		b.Fatal(err)
	}
	keys, ok := v.Check(testpg.Password)
	if !ok {
		b.Fatal("the password is another")
	}
	return keys
}
