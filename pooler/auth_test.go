package pooler

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"neki/internal/certs"
	"neki/internal/hba"
	"neki/internal/pgerr"
	"neki/internal/testpg"
)

// authority makes certificates for a test, readable by Postgres.
type authority struct {
	t   *testing.T
	dir string
	ca  *certs.Authority
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	dir, err := os.MkdirTemp("", "neki-auth")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	ca, err := certs.OpenAuthority(dir)
	if err := errors.Join(err, os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	return &authority{t: t, dir: dir, ca: ca}
}

func (a *authority) files(name string) certs.Files {
	a.t.Helper()
	f, err := a.ca.Ensure(a.dir, certs.Request{Name: name, Hosts: []string{"127.0.0.1"}, Server: true, Client: true})
	if err != nil {
		a.t.Fatal(err)
	}
	_, account := testpg.Installation(a.t)
	for _, file := range []string{f.Cert, f.Key} {
		if os.Geteuid() == 0 {
			if err := os.Chown(file, int(account.UID), int(account.GID)); err != nil {
				a.t.Fatal(err)
			}
		}
	}
	return f
}

func (a *authority) reloader(name string) *certs.Reloader {
	a.t.Helper()
	r, err := certs.NewReloader(a.files(name), slog.New(slog.DiscardHandler))
	if err != nil {
		a.t.Fatal(err)
	}
	return r
}

func mustRules(t *testing.T, text string) hba.Rules {
	t.Helper()
	rules, problems := hba.Parse(text)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	return rules
}

const authRoles = `
CREATE ROLE plain LOGIN PASSWORD 'pw'; CREATE ROLE expired LOGIN PASSWORD 'pw' VALID UNTIL '2001-01-01';
CREATE ROLE nologin PASSWORD 'pw'; CREATE ROLE rejected LOGIN PASSWORD 'pw'; CREATE ROLE unlisted LOGIN PASSWORD 'pw';
CREATE ROLE staff; CREATE ROLE alice LOGIN PASSWORD 'pw' IN ROLE staff; CREATE ROLE secretless LOGIN;
CREATE ROLE limited LOGIN PASSWORD 'pw' CONNECTION LIMIT 0;
SET password_encryption = md5; CREATE ROLE old LOGIN PASSWORD 'pw'; CREATE ROLE oldscram LOGIN PASSWORD 'pw';
RESET password_encryption; CREATE DATABASE closed; ALTER DATABASE closed ALLOW_CONNECTIONS false;
CREATE ROLE stranger LOGIN PASSWORD 'pw'; CREATE DATABASE private; REVOKE CONNECT ON DATABASE private FROM PUBLIC`

// authRules serve Postgres and the gateway before it alike.
const authRules = `
host all rejected all reject
host all unlisted 192.0.2.0/24 trust
host all oldscram all scram-sha-256
host all old,plain all md5
host postgres +staff 127.0.0.1/32 password
host all postgres,expired,nologin,limited,stranger,nobody,secretless,"long" all scram-sha-256
host missing,closed,private all all scram-sha-256`

// TestRefusalsAreThoseOfPostgres logs in to Postgres and to the gateway before it, with the same rules, and compares what
// is answered.
func TestRefusalsAreThoseOfPostgres(t *testing.T) {
	rules := strings.Split(strings.TrimSpace(authRules), "\n")
	rules = append(rules, "host all "+testpg.Superuser+" all scram-sha-256")
	g := startGateway(t, gatewayOptions{
		postgres: []testpg.Option{testpg.HBA(append([]string{"host postgres alice all scram-sha-256"}, rules...)...)},
		config:   func(c *Config) { c.Auth.Rules = mustRules(t, strings.Join(rules, "\n")) },
	})
	simple(t, g.connect(""), authRoles[:strings.Index(authRoles, "CREATE DATABASE")])
	for _, sql := range strings.Split(authRoles[strings.Index(authRoles, "CREATE DATABASE"):], ";") {
		simple(t, g.connect(""), sql)
	}
	for _, tc := range []struct{ user, database, password, code string }{
		{"plain", "postgres", "pw", ""},
		{"old", "postgres", "pw", ""},
		{"alice", "postgres", "pw", ""},
		{"rejected", "postgres", "pw", pgerr.InvalidAuthorizationSpec},
		{"unlisted", "postgres", "pw", pgerr.InvalidAuthorizationSpec},
		{"alice", "template1", "pw", pgerr.InvalidAuthorizationSpec}, // no rule for that database
		{"nobody", "postgres", "pw", pgerr.InvalidPassword},
		{"old", "postgres", "wrong", pgerr.InvalidPassword},
		{"oldscram", "postgres", "pw", pgerr.InvalidPassword}, // an md5 secret does not serve scram-sha-256
		{"alice", "postgres", "wrong", pgerr.InvalidPassword},
		{"plain", "postgres", "wrong", pgerr.InvalidPassword},
		{"expired", "postgres", "pw", pgerr.InvalidPassword},
		{"secretless", "postgres", "pw", pgerr.InvalidPassword},
		{"nologin", "postgres", "pw", pgerr.InvalidAuthorizationSpec},
		{"limited", "postgres", "pw", pgerr.TooManyConnections},
		{"plain", "missing", "pw", pgerr.InvalidCatalogName},
		{"plain", "closed", "pw", pgerr.ObjectNotInPrerequisiteState},
		{"stranger", "private", "pw", pgerr.InsufficientPrivilege},
	} {
		direct := g.config("")
		direct.Host, direct.Port = g.group.Primary.Host(), uint16(g.group.Primary.Port())
		through := g.config("")
		answers := make([]string, 2)
		for i, cfg := range []*pgx.ConnConfig{direct, through} {
			cfg.User, cfg.Database, cfg.Password = tc.user, tc.database, tc.password
			answers[i] = answerOf(t, cfg)
		}
		if answers[0] != answers[1] || (tc.code == "") != (answers[0] == "in as "+tc.user) || !strings.Contains(answers[0], tc.code) {
			t.Errorf("%s to %s:\nPostgres: %s\ngateway:  %s", tc.user, tc.database, answers[0], answers[1])
		}
	}
}

// answerOf tells how a login ended.
func answerOf(t *testing.T, cfg *pgx.ConnConfig) string {
	t.Helper()
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if pe := (*pgconn.PgError)(nil); errors.As(err, &pe) {
		return fmt.Sprintf("%s %s %s (%s)", pe.Severity, pe.Code, pe.Message, pe.Detail)
	} else if err != nil {
		return err.Error()
	}
	defer func() { _ = conn.Close(t.Context()) }()
	return "in as " + one(t, conn, "SELECT current_user::text")
}

// TestCertificatesAndPasswordsFile lets clients in by certificate and by trust, for whom the gateway logs in by its own
// means.
func TestCertificatesAndPasswordsFile(t *testing.T) {
	a := newAuthority(t)
	server := a.reloader("gw")
	rules := `hostssl all all all cert map=people
		local all alice trust
		host all carol all trust`
	maps, _ := hba.ParseMaps("people alice-laptop alice\npeople /^app-(.*)$ \\1")
	socket := filepath.Join(t.TempDir(), ".s.PGSQL.5432")
	unix, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	g := startGateway(t, gatewayOptions{
		postgres: []testpg.Option{testpg.HBA("host all all all md5")},
		config: func(c *Config) {
			c.TLS = server.ServerConfig(tls.VerifyClientCertIfGiven)
			c.Auth = Auth{Rules: mustRules(t, rules), Maps: maps, Passwords: map[string]string{"alice": "pw"}}
			c.Listeners = append(c.Listeners, unix)
		},
	})
	g.group.Primary.Exec("CREATE ROLE alice LOGIN PASSWORD 'pw'")
	g.group.Primary.Exec("CREATE ROLE bob LOGIN PASSWORD 'pw'")
	g.group.Primary.Exec("CREATE ROLE carol LOGIN PASSWORD 'pw'")
	g.group.Primary.Exec("SET password_encryption = md5; CREATE ROLE dora LOGIN PASSWORD 'pw'")
	for _, tc := range []struct{ certificate, user, want string }{
		{"alice-laptop", "alice", "in as alice"},
		{"app-dora", "dora", "in as dora"}, // its md5 secret is enough
		{"app-bob", "bob", "the gateway has no way to log in to the instances as role \"bob\""},
		{"app-bob", "alice", "FATAL 28000 certificate authentication failed for user \"alice\""},
		{"app-nobody", "nobody", "FATAL 28000 role \"nobody\" does not exist"},
		{"", "alice", "FATAL 28000 connection requires a valid client certificate"},
	} {
		cfg := g.config("")
		cfg.User, cfg.Password = tc.user, ""
		cfg.TLSConfig = server.ClientConfig("127.0.0.1")
		cfg.TLSConfig.Certificates, cfg.TLSConfig.GetClientCertificate = nil, nil
		if tc.certificate != "" {
			cfg.TLSConfig = a.reloader(tc.certificate).ClientConfig("127.0.0.1")
		}
		if got := answerOf(t, cfg); !strings.Contains(got, tc.want) {
			t.Errorf("%s by %q: %s", tc.user, tc.certificate, got)
		}
	}
	local := g.config("")
	local.Host, local.Port, local.User, local.Password = filepath.Dir(socket), 5432, "alice", ""
	if got := answerOf(t, local); got != "in as alice" {
		t.Errorf("by the Unix socket: %s", got)
	}
	tcp := g.config("")
	tcp.User, tcp.Password = "carol", ""
	if got := answerOf(t, tcp); !strings.Contains(got, "no way to log in") {
		t.Errorf("trusted, but of no known password: %s", got)
	}
	g.server.SetAuth(Auth{Rules: mustRules(t, rules), Maps: maps, Passwords: map[string]string{"carol": "pw"}})
	if got := answerOf(t, tcp); got != "in as carol" {
		t.Errorf("after a reload: %s", got)
	}
}

// TestTrustedByInstances has the instances let in whoever shows the gateway's certificate.
func TestTrustedByInstances(t *testing.T) {
	a := newAuthority(t)
	f := a.files("pg")
	backend := a.reloader("gw").ClientConfig("127.0.0.1")
	g := startGateway(t, gatewayOptions{
		postgres: []testpg.Option{
			testpg.Setting("ssl", "on"), testpg.Setting("ssl_cert_file", f.Cert), testpg.Setting("ssl_key_file", f.Key),
			testpg.Setting("ssl_ca_file", f.CA),
			testpg.HBA("hostssl all all all trust clientcert=verify-ca", "host all all all scram-sha-256"),
		},
		config: func(c *Config) {
			c.BackendTLS = backend
			c.Auth = Auth{Rules: mustRules(t, "host all all all trust"), Trusted: true}
		},
	})
	g.group.Primary.Exec("CREATE ROLE alice LOGIN PASSWORD 'pw'")
	g.group.Primary.Exec("CREATE ROLE expired LOGIN PASSWORD 'pw' VALID UNTIL '2001-01-01'")
	cfg := g.config("")
	cfg.User, cfg.Password = "alice", ""
	if got := answerOf(t, cfg); got != "in as alice" {
		t.Error(got)
	}
	cfg.User = "expired"
	if got := answerOf(t, cfg); !strings.Contains(got, "is not permitted to log in (The role's VALID UNTIL has passed.)") {
		t.Error(got)
	}
}

// TestTrustLeavesKeysAlone logs in as one role by password, then by trust: connections for the first go on being opened.
func TestTrustLeavesKeysAlone(t *testing.T) {
	g := startGateway(t, gatewayOptions{config: func(c *Config) {
		c.Auth = Auth{
			Rules:     mustRules(t, "host trusting all all trust\nhost all all all scram-sha-256"),
			Passwords: map[string]string{testpg.Superuser: testpg.Password}, Trusted: true,
		}
	}})
	g.group.Primary.Exec("CREATE ROLE alice LOGIN PASSWORD 'pw'")
	g.group.Primary.Exec("CREATE DATABASE trusting")
	cfg := g.config("")
	cfg.User, cfg.Password = "alice", "pw"
	alice := g.connectAs(cfg)
	trusting := g.config("")
	trusting.User, trusting.Password, trusting.Database = "alice", "", "trusting"
	answerOf(t, trusting) // whether it gets in does not matter
	g.server.pools.Retire("alice")
	if got := one(t, alice, "SELECT current_user::text"); got != "alice" {
		t.Error(got)
	}
}

// TestChannelBinding lets libpq and pgx in by SCRAM-SHA-256-PLUS. libpq refuses to go on without it.
func TestChannelBinding(t *testing.T) {
	a := newAuthority(t)
	server := a.reloader("gw")
	g := startGateway(t, gatewayOptions{config: func(c *Config) { c.TLS = server.ServerConfig(tls.NoClientCert) }})
	host, port, _ := net.SplitHostPort(g.addr)
	inst, _ := testpg.Installation(t)
	psql := func(options string) (string, error) {
		cmd := exec.CommandContext(t.Context(), filepath.Join(inst.BinDir, "psql"), "-XAtqc", "SELECT 'in'",
			fmt.Sprintf("host=%s port=%s user=%s password=%s dbname=postgres %s", host, port, testpg.Superuser, testpg.Password, options))
		out, err := cmd.CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	for options, want := range map[string]string{
		"sslmode=verify-ca channel_binding=require sslrootcert=" + a.ca.CAFile(): "in",
		"sslmode=require channel_binding=disable":                                "in",
		"sslmode=disable":                         "in",
		"sslmode=disable channel_binding=require": "channel binding required",
	} {
		if out, err := psql(options); !strings.Contains(out, want) || (err == nil) != (want == "in") {
			t.Errorf("%s: %s, %v", options, out, err)
		}
	}
}

// TestReplicationConnections are refused with a reason.
func TestReplicationConnections(t *testing.T) {
	g := startGateway(t, gatewayOptions{})
	for _, mode := range []string{"true", "database", "on", "1"} {
		cfg := g.config("")
		cfg.RuntimeParams["replication"] = mode
		if got := answerOf(t, cfg); !strings.HasPrefix(got, "FATAL 0A000 replication connections are not supported") {
			t.Errorf("%s: %s", mode, got)
		}
	}
	cfg := g.config("")
	cfg.RuntimeParams["replication"] = "false"
	if got := answerOf(t, cfg); got != "in as "+testpg.Superuser {
		t.Error(got)
	}
}

// TestProxiedClients come through a proxy: rules and neki.sessions go by the address that it tells.
func TestProxiedClients(t *testing.T) {
	g := startGateway(t, gatewayOptions{config: func(c *Config) {
		c.Listeners[0] = &ProxiedListener{Listener: c.Listeners[0], From: []netip.Prefix{netip.MustParsePrefix("127.0.0.2/32")}}
		c.Auth.Rules = mustRules(t, "host all all 127.0.0.1/32 scram-sha-256\nhost all all 203.0.113.0/24 scram-sha-256")
	}})
	header := func(last byte) string {
		return "\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c\xcb\x00\x71" + string(last) + "\x7f\x00\x00\x01\x30\x39\x15\x38"
	}
	dial := func(from, header string) *pgx.ConnConfig {
		cfg := g.config("")
		cfg.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
			conn, err := d.DialContext(ctx, network, addr)
			if err == nil {
				_, err = conn.Write([]byte(header))
			}
			return conn, err
		}
		return cfg
	}
	conn := g.connectAs(dial("127.0.0.2", header(7)))
	rows, err := g.server.Facts().Sessions(t.Context())
	if err != nil || len(rows) != 1 || rows[0].ClientAddr != "203.0.113.7:12345" || uint32(rows[0].PID) != conn.PgConn().PID() {
		t.Errorf("%+v, %v", rows, err)
	}
	if got := answerOf(t, dial("127.0.0.1", "")); got != "in as "+testpg.Superuser {
		t.Errorf("a client that is no proxy: %s", got)
	}
	for name, cfg := range map[string]*pgx.ConnConfig{
		"a header of who is no proxy": dial("127.0.0.1", header(7)),
		"a proxy without a header":    dial("127.0.0.2", ""),
		"a header cut short":          dial("127.0.0.2", "\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x02ab"),
		"a client of no rule":         dial("127.0.0.3", ""),
	} {
		if got := answerOf(t, cfg); strings.HasPrefix(got, "in as") {
			t.Errorf("%s: %s", name, got)
		}
	}
}
