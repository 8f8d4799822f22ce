package admin_test

import (
	"fmt"
	"testing"
	"time"

	"neki/catalog"
)

// leftover are two prepared transactions of a gateway's, of which one is decided.
type leftover struct {
	w     *world
	lease catalog.Lease
}

// leave prepares them on the primary of a shard.
func (w *world) leave(t *testing.T, node string) *leftover {
	t.Helper()
	ctx := w.soon()
	commits := catalog.NewCoordinator(w.store, clusterName, "gw1")
	lease, err := w.store.Lease(ctx, time.Minute)
	if err == nil {
		err = commits.Register(ctx, lease)
	}
	if err != nil {
		t.Fatal(err)
	}
	conn, err := w.connect(node, super.Name, super.Password)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx) //nolint:errcheck // the statements' errors count
	if _, err := conn.Exec(ctx, "CREATE TABLE split (decided boolean)"); err != nil {
		t.Fatal(err)
	}
	for _, decided := range []bool{true, false} {
		commit, err := commits.Begin()
		if err != nil {
			t.Fatal(err)
		}
		sql := fmt.Sprintf("BEGIN; INSERT INTO split VALUES (%t); PREPARE TRANSACTION '%s'", decided, commit.GID)
		if _, err := conn.PgConn().Exec(ctx, sql).ReadAll(); err != nil {
			t.Fatal(err)
		}
		if !decided {
			continue
		}
		if err := commits.Decide(ctx, commit, "postgres", []string{"sh1"}); err != nil {
			t.Fatal(err)
		}
	}
	return &leftover{w, lease}
}

// settle ends the gateway, and demands that the admin ends what it has left: on a primary that had it from a replica's log.
func (l *leftover) settle(t *testing.T, live *catalog.Live, node string) {
	t.Helper()
	l.w.must(node, "SELECT count(*)::text FROM pg_prepared_xacts", "2")
	if err := l.lease.Close(); err != nil {
		t.Fatal(err)
	}
	l.w.until(live, "end of what is prepared", func(*catalog.Snapshot) bool {
		left, err := l.w.query(node, "SELECT count(*)::text FROM pg_prepared_xacts")
		return err == nil && left == "0"
	})
	l.w.must(node, "SELECT string_agg(decided::text, ' ') FROM split", "true")
	l.w.until(live, "end of the decision", func(*catalog.Snapshot) bool {
		view, err := catalog.ListCommits(t.Context(), l.w.store, clusterName)
		return err == nil && len(view.Decisions) == 0
	})
}
