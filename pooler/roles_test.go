package pooler

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"neki/internal/pgerr"
)

// TestEachClientIsItsOwnRole logs in as two roles and looks at what Postgres takes them for.
func TestEachClientIsItsOwnRole(t *testing.T) {
	g := startGateway(t, gatewayOptions{})
	admin := g.connect("")
	simple(t, admin, `CREATE ROLE alice LOGIN PASSWORD 'one'; CREATE ROLE bob LOGIN PASSWORD 'two' CONNECTION LIMIT 1;
		CREATE TABLE secret (x int); GRANT SELECT ON secret TO alice`)
	as := func(user, password string) (*pgx.Conn, error) {
		cfg := g.config("")
		cfg.User, cfg.Password = user, password
		conn, err := pgx.ConnectConfig(t.Context(), cfg)
		if err == nil {
			t.Cleanup(func() { _ = conn.Close(t.Context()) })
		}
		return conn, err
	}
	alice, err := as("alice", "one")
	if err != nil {
		t.Fatal(err)
	}
	bob, err := as("bob", "two")
	if err != nil {
		t.Fatal(err)
	}
	if got := one(t, alice, "SELECT current_user || ' ' || session_user"); got != "alice alice" {
		t.Errorf("alice is %s", got)
	}
	simple(t, alice, "SELECT * FROM secret")
	if _, err := trySimple(bob, "SELECT * FROM secret"); pgerr.Code(err) != pgerr.InsufficientPrivilege {
		t.Errorf("bob reads what only alice may: %v", err)
	}
	if _, err := as("bob", "two"); pgerr.Code(err) != pgerr.TooManyConnections {
		t.Errorf("above CONNECTION LIMIT: %v", err)
	}
	simple(t, alice, "SET ROLE NONE")
	if _, err := trySimple(bob, "SET ROLE alice"); pgerr.Code(err) != pgerr.InsufficientPrivilege {
		t.Errorf("bob becomes alice: %v", err)
	}
}

func TestPasswordChange(t *testing.T) {
	g := startGateway(t, gatewayOptions{})
	admin := g.connect("")
	simple(t, admin, "CREATE ROLE carol LOGIN PASSWORD 'old'")
	cfg := g.config("")
	cfg.User, cfg.Password = "carol", "old"
	before := g.connectAs(cfg)
	simple(t, admin, "ALTER ROLE carol PASSWORD 'new'")
	if _, err := pgx.ConnectConfig(t.Context(), cfg); pgerr.Code(err) != pgerr.InvalidPassword {
		t.Errorf("the old password: %v", err)
	}
	cfg.Password = "new"
	after := g.connectAs(cfg)
	g.server.pools.Retire("carol") // both must log in to the server anew
	for name, conn := range map[string]*pgx.Conn{"after": after, "before": before} {
		if got := one(t, conn, "SELECT current_user"); got != "carol" {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// TestNewDefaultsReachNewSessions changes what a role's sessions begin with.
func TestNewDefaultsReachNewSessions(t *testing.T) {
	g := startGateway(t, gatewayOptions{})
	admin := g.connect("")
	simple(t, admin, "CREATE ROLE dave LOGIN PASSWORD 'x'")
	cfg := g.config("")
	cfg.User, cfg.Password = "dave", "x"
	simple(t, g.connectAs(cfg), "SELECT 1")
	simple(t, admin, "ALTER ROLE dave SET work_mem = '17MB'; ALTER ROLE dave SET DateStyle = 'German'")
	eventually(t, "a new session has the new defaults", func() bool {
		conn := g.connectAs(cfg)
		return one(t, conn, "SHOW work_mem") == "17MB" && conn.PgConn().ParameterStatus("DateStyle") == "German, DMY"
	})
}

func TestIdleTimeouts(t *testing.T) {
	g := startGateway(t, gatewayOptions{})
	p := g.server.Parameters()
	p.IdleSession, p.IdleInTransaction = 400*time.Millisecond, 400*time.Millisecond
	g.server.SetParameters(p)
	for name, tc := range map[string]struct{ sql, code string }{
		"idle":                {"SELECT 1", pgerr.IdleSessionTimeout},
		"idle in transaction": {"BEGIN", pgerr.IdleInTransactionSessionTimeout},
	} {
		conn := g.connect("")
		simple(t, conn, "SELECT pg_sleep(0.7)") // the time of a statement does not count
		simple(t, conn, tc.sql)
		err := conn.PgConn().WaitForNotification(t.Context())
		if pgerr.Code(err) != tc.code {
			t.Errorf("%s: %v", name, err)
		}
	}
}
