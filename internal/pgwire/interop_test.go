package pgwire_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"neki/internal/pgerr"
	"neki/internal/pgwire"
	"neki/internal/testpg"
)

// startPostgres starts a server with TLS, whose roles are let in by a method that their name says.
func startPostgres(t *testing.T) (*testpg.Server, certificates) {
	t.Helper()
	_, account := testpg.Installation(t)
	dir, err := os.MkdirTemp("", "neki-pgwire")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	c := makeCertificates(t, dir)
	for _, file := range []string{c.files.Cert, c.files.Key} {
		if os.Geteuid() == 0 {
			if err := os.Chown(file, int(account.UID), int(account.GID)); err != nil {
				t.Fatal(err)
			}
		}
	}
	return testpg.Start(t,
		testpg.Setting("ssl", "on"), testpg.Setting("ssl_cert_file", c.files.Cert), testpg.Setting("ssl_key_file", c.files.Key),
		testpg.HBA(
			"host all by_trust 127.0.0.1/32 trust", "host all by_md5 127.0.0.1/32 md5",
			"host all by_password 127.0.0.1/32 password", "hostnossl all only_tls 127.0.0.1/32 reject",
			"host all all 127.0.0.1/32 scram-sha-256",
		)), c
}

// connect dials a server and logs in.
func connect(t *testing.T, addr string, login pgwire.BackendLogin) (*pgwire.Greeting, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if login.Database == "" {
		login.Database = "postgres"
	}
	return pgwire.Connect(ctx, conn, login)
}

func TestConnectToPostgres(t *testing.T) {
	pg, certificates := startPostgres(t)
	pg.Exec("CREATE ROLE alice LOGIN PASSWORD 'secret'")
	pg.Exec("CREATE ROLE only_tls LOGIN PASSWORD 'secret'")
	pg.Exec("CREATE ROLE by_trust LOGIN")
	pg.Exec("SET password_encryption = md5; CREATE ROLE by_md5 LOGIN PASSWORD 'secret'")
	pg.Exec("CREATE ROLE by_password LOGIN PASSWORD 'secret'")
	pg.Exec("CREATE ROLE nobody PASSWORD 'secret'")
	pg.Exec("CREATE ROLE by_verifier LOGIN PASSWORD '" + pgwire.NewVerifier("sécret", 5000).Text() + "'")
	pg.Exec("CREATE ROLE full LOGIN PASSWORD 'secret' CONNECTION LIMIT 0")

	text := pg.Text("SELECT rolpassword FROM pg_authid WHERE rolname = 'alice'")
	verifier, err := pgwire.ParseVerifier(text)
	if err != nil || verifier.Text() != text {
		t.Fatalf("%q: %v, %v", text, verifier, err)
	}
	keys, ok := verifier.Check("secret")
	if !ok {
		t.Fatal("the password does not fit the server's verifier")
	}
	wrong := *keys
	wrong.ClientKey[0] ^= 1
	foreign := *keys
	foreign.ServerKey[0] ^= 1
	for name, c := range map[string]struct {
		login pgwire.BackendLogin
		code  string
	}{
		"password":               {pgwire.BackendLogin{User: "alice", Password: "secret"}, ""},
		"keys":                   {pgwire.BackendLogin{User: "alice", Keys: keys}, ""},
		"keys, TLS":              {pgwire.BackendLogin{User: "alice", Keys: keys, TLS: certificates.client}, ""},
		"TLS demanded":           {pgwire.BackendLogin{User: "only_tls", Password: "secret", TLS: certificates.client}, ""},
		"TLS demanded, no TLS":   {pgwire.BackendLogin{User: "only_tls", Password: "secret"}, pgerr.InvalidAuthorizationSpec},
		"a verifier of ours":     {pgwire.BackendLogin{User: "by_verifier", Password: "se\u0301cret"}, ""},
		"wrong password":         {pgwire.BackendLogin{User: "alice", Password: "Secret"}, pgerr.InvalidPassword},
		"wrong keys":             {pgwire.BackendLogin{User: "alice", Keys: &wrong}, pgerr.InvalidPassword},
		"wrong server key":       {pgwire.BackendLogin{User: "alice", Keys: &foreign}, pgerr.InvalidAuthorizationSpec},
		"trust":                  {pgwire.BackendLogin{User: "by_trust"}, ""},
		"md5":                    {pgwire.BackendLogin{User: "by_md5", Password: "secret"}, ""},
		"md5, wrong":             {pgwire.BackendLogin{User: "by_md5", Password: "Secret"}, pgerr.InvalidPassword},
		"clear, refused by us":   {pgwire.BackendLogin{User: "by_password", Password: "secret"}, pgerr.FeatureNotSupported},
		"clear over TLS":         {pgwire.BackendLogin{User: "by_password", Password: "secret", AllowCleartext: true, TLS: certificates.client}, ""},
		"unknown role":           {pgwire.BackendLogin{User: "ghost", Password: "secret"}, pgerr.InvalidPassword},
		"B15 unknown database":   {pgwire.BackendLogin{User: "alice", Password: "secret", Database: "ghost"}, pgerr.InvalidCatalogName},
		"B15 no login":           {pgwire.BackendLogin{User: "nobody", Password: "secret"}, pgerr.InvalidAuthorizationSpec},
		"B15 connection limit":   {pgwire.BackendLogin{User: "full", Password: "secret"}, pgerr.TooManyConnections},
		"unknown setting":        {pgwire.BackendLogin{User: "alice", Password: "secret", Params: []pgwire.Pair{{Name: "nosuch", Value: "1"}}}, pgerr.UndefinedObject},
		"iterations over a cap":  {pgwire.BackendLogin{User: "alice", Password: "secret", MaxIterations: 4095}, pgerr.ProgramLimitExceeded},
		"keys for a scram login": {pgwire.BackendLogin{User: "alice", Keys: keys, MaxIterations: 4096}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			g, err := connect(t, pg.Address(), c.login)
			if pgerr.Code(err) != c.code {
				t.Fatalf("got %v, want SQLSTATE %q", err, c.code)
			}
			if err != nil {
				return
			}
			have := map[string]string{}
			for _, p := range g.Params {
				have[p.Name] = p.Value
			}
			if g.PID == 0 || len(g.Secret) != 4 || g.TxStatus != 'I' || g.TLS != (c.login.TLS != nil) ||
				have["session_authorization"] != c.login.User || have["server_encoding"] == "" {
				t.Errorf("greeting %+v", g)
			}
		})
	}
}

func TestPassThrough(t *testing.T) {
	a, certificates := startPostgres(t)
	b, _ := startPostgres(t)
	a.Exec("CREATE ROLE alice LOGIN PASSWORD 'secret'")
	text := a.Text("SELECT rolpassword FROM pg_authid WHERE rolname = 'alice'")
	secrets := func(user string) string {
		if user == "alice" {
			return text
		}
		return ""
	}
	if _, err := pgwire.ParseVerifier(text); err != nil {
		t.Fatal(err)
	}
	b.Exec("CREATE ROLE alice LOGIN PASSWORD '" + text + "'")
	gates := map[string]*gate{
		"a": startGate(t, certificates.server, a.Address(), secrets),
		"b": startGate(t, certificates.server, b.Address(), secrets),
	}
	for name, g := range gates {
		t.Run("psql to "+name, func(t *testing.T) { psqlThrough(t, g, certificates.files.CA) })
		t.Run("pgx to "+name, func(t *testing.T) { pgxThrough(t, g, certificates.files.CA) })
		t.Run("cancel on "+name, func(t *testing.T) { cancelThrough(t, g, certificates.files.CA) })
	}
	t.Run("wrong password reaches no backend", func(t *testing.T) {
		for _, user := range []string{"alice", "ghost"} {
			before := gates["a"].backendLogins()
			_, err := pgxConnect(t, fmt.Sprintf("host=127.0.0.1 port=%d user=%s password=wrong dbname=postgres sslmode=disable",
				gates["a"].port(), user))
			want := `password authentication failed for user "` + user + `"`
			if code := pgerr.Code(err); code != pgerr.InvalidPassword || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v", user, err)
			}
			if gates["a"].backendLogins() != before {
				t.Errorf("%s: a backend was asked", user)
			}
		}
	})
	t.Run("another salt on b", func(t *testing.T) {
		b.Exec("ALTER ROLE alice PASSWORD 'secret'")
		if out, err := psql(t, gates["b"], "sslmode=disable", "secret"); err == nil || gates["b"].lastFailure() != pgerr.InvalidPassword {
			t.Errorf("got %s, %v", out, err)
		}
		if out, err := psql(t, gates["a"], "sslmode=disable", "secret"); err != nil {
			t.Errorf("a no longer works: %s, %v", out, err)
		}
	})
}

// psql runs it through a gate as alice and gives what it printed.
func psql(t *testing.T, g *gate, options, password string) (string, error) {
	t.Helper()
	path, err := exec.LookPath("psql")
	if err != nil {
		t.Skip("no psql")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	dsn := fmt.Sprintf("host=127.0.0.1 port=%d user=alice dbname=postgres application_name=psqltest %s", g.port(), options)
	cmd := exec.CommandContext(ctx, path, "-XAtq", "-d", dsn,
		"-c", "select current_user, session_user, current_setting('application_name')")
	cmd.Env = append(os.Environ(), "PGPASSWORD="+password)
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func psqlThrough(t *testing.T, g *gate, ca string) {
	for _, options := range []string{
		"sslmode=disable", "sslmode=require channel_binding=require", "sslmode=require channel_binding=disable",
		"sslmode=verify-full sslrootcert=" + ca, "sslmode=prefer",
	} {
		out, err := psql(t, g, options, "secret")
		if err != nil || out != "alice|alice|psqltest" {
			t.Errorf("%s: got %q, %v", options, out, err)
		}
		if got, want := g.lastClient().TLS, options != "sslmode=disable"; got != want {
			t.Errorf("%s: TLS %v", options, got)
		}
	}
	if out, err := psql(t, g, "sslmode=require", "wrong"); err == nil || !strings.Contains(out, "password authentication failed") {
		t.Errorf("wrong password: %q, %v", out, err)
	}
	if out, err := psql(t, g, "sslmode=disable channel_binding=require", "secret"); err == nil {
		t.Errorf("channel binding without TLS: %q", out)
	}
}

func pgxConnect(t *testing.T, dsn string) (*pgconn.PgConn, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	conn, err := pgconn.Connect(ctx, dsn)
	if err == nil {
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			conn.Close(ctx)
		})
	}
	return conn, err
}

func pgxThrough(t *testing.T, g *gate, ca string) {
	for _, options := range []string{
		"sslmode=disable", "sslmode=require", "sslmode=require channel_binding=require",
		"sslmode=require channel_binding=disable", "sslmode=verify-full sslrootcert=" + ca,
		"sslmode=require sslnegotiation=direct", "sslmode=require sslnegotiation=direct channel_binding=require",
		"sslmode=disable max_protocol_version=latest", "sslmode=require max_protocol_version=3.2 channel_binding=require",
	} {
		conn, err := pgxConnect(t, fmt.Sprintf("host=127.0.0.1 port=%d user=alice password=secret dbname=postgres %s",
			g.port(), options))
		if err != nil {
			t.Errorf("%s: %v", options, err)
			continue
		}
		results, err := conn.Exec(t.Context(), "select current_user, session_user").ReadAll()
		if err != nil || string(results[0].Rows[0][0])+string(results[0].Rows[0][1]) != "alicealice" {
			t.Errorf("%s: %v, %v", options, results, err)
		}
		s := g.lastClient()
		if s.Direct != strings.Contains(options, "direct") || s.TLS == strings.Contains(options, "sslmode=disable") {
			t.Errorf("%s: client %+v", options, s)
		}
		if v32 := strings.Contains(options, "version"); v32 != (s.ProtocolVersion == pgwire.Protocol32) {
			t.Errorf("%s: protocol %x", options, s.ProtocolVersion)
		}
		if pid := conn.PID(); pid < 1<<23 {
			t.Errorf("%s: pid %d is no virtual one", options, pid)
		}
	}
}

func cancelThrough(t *testing.T, g *gate, _ string) {
	for _, options := range []string{"sslmode=disable", "sslmode=require", "sslmode=require max_protocol_version=3.2"} {
		conn, err := pgxConnect(t, fmt.Sprintf("host=127.0.0.1 port=%d user=alice password=secret dbname=postgres %s",
			g.port(), options))
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		go func() {
			_, err := conn.Exec(ctx, "select pg_sleep(25)").ReadAll()
			done <- err
		}()
		var got error
		for waiting := true; waiting; { // a cancel that comes before the statement is lost, as with Postgres
			if err := conn.CancelRequest(ctx); err != nil {
				t.Fatalf("%s: %v", options, err)
			}
			select {
			case got = <-done:
				waiting = false
			case <-time.After(20 * time.Millisecond):
			}
		}
		cancel()
		var pgErr *pgconn.PgError
		if !errors.As(got, &pgErr) || pgErr.Code != pgerr.QueryCanceled {
			t.Errorf("%s: %v", options, got)
		}
	}
}

// TestNamesAndPasswords holds what a client sees through a gate against what it sees from Postgres itself (B10, B11).
func TestNamesAndPasswords(t *testing.T) {
	pg, _ := startPostgres(t)
	names := []string{"with blank", `quo"te`, "apo'strophe", `back\slash`, "ümläut", strings.Repeat("n", 63)}
	passwords := []string{
		`@/#?%'"\ `, strings.Repeat("p", 100), strings.Repeat("p", 1024), strings.Repeat("p", 5000),
		"a\u00a0b", "soft\u00adhyphen", "e\u0301", "\u2168\u00aa", "\u0627\u0031", "\u00ad", "a\u200bb", "\ue000x\u00e9",
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 60 {
		passwords = append(passwords, randomPassword(random))
	}
	g := startGate(t, nil, pg.Address(), func(user string) string {
		return pg.Text("SELECT rolpassword FROM pg_authid WHERE rolname = $1", user)
	})
	ctx := t.Context()
	admin := pg.Conn(ctx)
	for i, password := range passwords {
		user := names[i%len(names)] + strconv.Itoa(i)
		user = user[max(0, len(user)-63):]
		var create string
		if err := admin.QueryRow(ctx, "SELECT format('CREATE ROLE %I LOGIN PASSWORD %L', $1::text, $2::text)", user, password).
			Scan(&create); err != nil {
			t.Fatal(err)
		}
		if _, err := admin.Exec(ctx, create); err != nil {
			t.Fatal(err)
		}
		verifier, err := pgwire.ParseVerifier(pg.Text("SELECT rolpassword FROM pg_authid WHERE rolname = $1", user))
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := verifier.Check(password); !ok {
			t.Errorf("password %+q is prepared otherwise than by Postgres", password)
			continue
		}
		if i >= 2*len(names) {
			continue // random ones: it is the preparation that counts
		}
		if _, err := connect(t, g.listener.Addr().String(), pgwire.BackendLogin{User: user, Password: password}); err != nil {
			t.Errorf("user %q, password %+.20q: %v", user, password, err)
		}
	}
}

// randomPassword draws from ranges where preparation does something.
func randomPassword(r *rand.Rand) string {
	ranges := [][2]int{
		{0x20, 0x7e},
		{0xa0, 0x2ff},
		{0x300, 0x36f},
		{0x5d0, 0x6ff},
		{0x1e00, 0x206f},
		{0x2100, 0x218f},
		{0x3000, 0x30ff},
		{0xac00, 0xacff},
		{0xf900, 0xfaff},
		{0xfe00, 0xffef},
		{0x1d400, 0x1d7ff},
		{0x20000, 0x200ff},
	}
	var b strings.Builder
	for range 1 + r.IntN(4) {
		pick := ranges[r.IntN(len(ranges))]
		b.WriteRune(rune(pick[0] + r.IntN(pick[1]-pick[0]+1)))
	}
	return b.String()
}

func TestCertificateFilesServePostgres(t *testing.T) {
	pg, c := startPostgres(t)
	pg.Exec("CREATE ROLE alice LOGIN PASSWORD 'secret'")
	other := makeCertificates(t, filepath.Join(t.TempDir(), "other"))
	for name, cfg := range map[string]*tls.Config{"right": c.client, "other authority": other.client} {
		_, err := connect(t, pg.Address(), pgwire.BackendLogin{User: "alice", Password: "secret", TLS: cfg})
		if (err == nil) != (name == "right") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
