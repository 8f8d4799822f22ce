package pooler

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"neki/internal/pgerr"
)

// A statement whose Parse was lost with its server is not there: its name is free for the client's next try.
func TestParseLost(t *testing.T) {
	t.Run("new to the server", func(t *testing.T) { testParseLost(t, false) })
	t.Run("known to the server", func(t *testing.T) { testParseLost(t, true) }) // so that it is not asked to parse it
}

func testParseLost(t *testing.T, known bool) {
	g := startGateway(t, gatewayOptions{parameters: poolOf(1)})
	simple(t, g.connect(""), "CREATE TABLE t (k int)")
	if known {
		if _, err := g.connect("").PgConn().Prepare(t.Context(), "s", "SELECT k FROM t", nil); err != nil {
			t.Fatal(err)
		}
	}
	holder := g.group.Primary.Conn(t.Context())
	if _, err := holder.Exec(t.Context(), "BEGIN; LOCK TABLE t"); err != nil {
		t.Fatal(err)
	}
	conn := g.connect("")
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	defer cancel()
	answer := make(chan error, 1)
	prepare := func() error { _, err := conn.PgConn().Prepare(ctx, "s", "SELECT k FROM t", nil); return err }
	go func() { answer <- prepare() }()
	eventually(t, "Parse waits", func() bool {
		return g.group.Primary.Text("SELECT count(*) FROM pg_locks WHERE relation = 't'::regclass AND NOT granted") == "1"
	})
	g.group.Primary.Kill()
	if err := <-answer; err == nil {
		t.Fatal("prepared on a dead server")
	}
	g.group.Primary.Restart()
	var err error
	eventually(t, "it is prepared", func() bool {
		err = prepare()
		return err == nil || codeIs(err, pgerr.DuplicatePreparedStatement)
	})
	if err != nil {
		t.Error(err)
	}
}

func codeIs(err error, code string) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && e.Code == code
}
