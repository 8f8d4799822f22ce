package pooler

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"neki/internal/pgerr"
	"neki/settings"
)

// TestPrepareAfterTheTableChanged prepares a text again after its columns have changed: the servers' statement of
// before would be refused.
func TestPrepareAfterTheTableChanged(t *testing.T) {
	g := startGateway(t, gatewayOptions{parameters: func(p *settings.Parameters) { p.PoolCapacity, p.PoolMinConns = 1, 1 }})
	a, b := g.connect(""), g.connect("")
	simple(t, a, "CREATE TABLE changing (k int)")
	columns := func(conn *pgx.Conn, name string) int {
		t.Helper()
		d, err := conn.PgConn().Prepare(t.Context(), name, "SELECT * FROM changing", nil)
		if err != nil {
			t.Fatal(err)
		}
		return len(d.Fields)
	}
	columns(a, "before")
	for _, change := range []string{
		"ALTER TABLE changing ADD COLUMN v text",
		"BEGIN; ALTER TABLE changing DROP COLUMN v, ADD w int, ADD x int; COMMIT",
		"DROP TABLE changing; CREATE TABLE changing (a int, b int, c int, d int)",
	} {
		simple(t, a, change)
		want := len(simple(t, b, "SELECT 1 FROM pg_attribute WHERE attrelid = 'changing'::regclass AND attnum > 0 AND NOT attisdropped"))
		if got := columns(b, change); got != want {
			t.Errorf("after %s: %d columns, want %d", change, got, want)
		}
	}
}

// TestWeakLocksOnReplicas takes the locks that pg_dump takes, where a standby would.
func TestWeakLocksOnReplicas(t *testing.T) {
	g := startGateway(t, gatewayOptions{replicas: 1})
	simple(t, g.connect(""), "CREATE TABLE locked (k int)")
	g.group.WaitCaughtUp()
	conn := g.connect("-c __neki.target=replica")
	for mode, code := range map[string]string{
		"ACCESS SHARE": "", "ROW SHARE": "", "ROW EXCLUSIVE": "", "SHARE": pgerr.ReadOnlySQLTransaction,
		"ACCESS EXCLUSIVE": pgerr.ReadOnlySQLTransaction,
	} {
		_, err := trySimple(conn, "BEGIN; LOCK TABLE locked IN "+mode+" MODE")
		if got := pgerr.Code(err); got != code {
			t.Errorf("%s: %v", mode, err)
		}
		simple(t, conn, "ROLLBACK")
	}
}

// TestNothingInAFailedTransaction sends empty texts to a failed transaction: it is no error to do nothing, but for a Bind
// message, which Postgres refuses all the same.
func TestNothingInAFailedTransaction(t *testing.T) {
	g := startGateway(t, gatewayOptions{})
	conn := g.connect("")
	_, _ = trySimple(conn, "BEGIN; SELECT 1/0")
	for _, text := range []string{"", ";", "-- a remark"} {
		if _, err := trySimple(conn, text); err != nil {
			t.Errorf("%q: %v", text, err)
		}
		_, err := conn.PgConn().ExecParams(t.Context(), text, nil, nil, nil, nil).Close()
		if pgerr.Code(err) != pgerr.InFailedSQLTransaction {
			t.Errorf("%q in the extended protocol: %v", text, err)
		}
	}
	simple(t, conn, "ROLLBACK")
}
