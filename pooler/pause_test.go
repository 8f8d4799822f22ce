package pooler

import (
	"testing"
	"time"

	"neki/internal/pgerr"
	"neki/settings"
)

// TestPause: a pause is seen, holds clients, lets operators in, and ends by resume or by pool-max-wait-time.
func TestPause(t *testing.T) {
	g := startWithSchema(t, 1)
	operator, client := g.connect(""), g.connect("")
	simple(t, client, "SELECT 1")
	simple(t, operator, "CALL neki.pause('sh1')")
	if got := one(t, operator, "SELECT paused FROM neki.shards"); got != "t" {
		t.Errorf("paused is %s", got)
	}
	answered := make(chan error, 1)
	go func() {
		_, err := trySimple(client, "SELECT 2 AS held")
		answered <- err
	}()
	eventually(t, "the client is held", func() bool {
		rows := simple(t, operator, "SELECT wait_reason, query FROM neki.sessions WHERE wait_reason IS NOT NULL")
		return len(rows) == 1 && rows[0][0] == "shard sh1 is paused" && rows[0][1] == "SELECT 2 AS held"
	})
	rows := simple(t, operator, `SELECT waiting, max_wait > '0' FROM neki.pools WHERE node = 'sh1-a' AND waiting > 0`)
	if len(rows) != 1 || rows[0][0] != "1" || rows[0][1] != "t" {
		t.Errorf("pools: %v", rows)
	}
	again := g.connect("") // who paused can come back
	if got := one(t, again, "SELECT paused FROM neki.shards"); got != "t" {
		t.Errorf("paused is %s", got)
	}
	select {
	case err := <-answered:
		t.Fatalf("not held: %v", err)
	default:
	}
	simple(t, again, "CALL neki.resume('sh1')")
	if err := <-answered; err != nil {
		t.Error(err)
	}
	if got := one(t, operator, "SELECT paused FROM neki.shards"); got != "f" {
		t.Errorf("paused is %s", got)
	}
}

// TestPauseEndsInAnError once the wait is over.
func TestPauseEndsInAnError(t *testing.T) {
	g := startWithSchemaAnd(t, 1, func(p *settings.Parameters) { p.PoolMaxWait = 100 * time.Millisecond })
	operator, client := g.connect(""), g.connect("")
	simple(t, client, "SELECT 1")
	simple(t, operator, "CALL neki.pause('sh1')")
	_, err := trySimple(client, "SELECT 2")
	e := pgerr.From(err)
	if e.Code != pgerr.CannotConnectNow || e.Message != "shard sh1 is paused" || e.Hint == "" {
		t.Errorf("%v, HINT %q", err, e.Hint)
	}
	simple(t, operator, "CALL neki.resume('sh1')")
	simple(t, client, "SELECT 3")
}
