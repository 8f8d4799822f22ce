package admin_test

import (
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"neki/catalog"
	"neki/catalog/memstore"
	"neki/cluster/agent"
	"neki/cluster/decide"
)

// Of two admins the leading one ends in the middle of a failover, of a switchover, and of each step of theirs: the other
// finishes what was begun, and nothing acknowledged is lost. An rdonly member neither acknowledges nor leads meanwhile.
func TestAdminEndsMidway(t *testing.T) {
	store := memstore.New()
	t.Cleanup(func() { _ = store.Close() })
	w := newWorld(t, store)
	w.agent("sh1", "sh1-r", catalog.RoleRdonly, false)
	_, _, ws, end := failoverWorld(t, w)
	live := catalog.NewLive(store, clusterName, slog.New(slog.DiscardHandler))
	w.start("view", live.Run)
	w.start("feed", (&agent.Feed{Live: live, HTTP: w.http, Token: token}).Run)
	<-live.Ready()
	ws.live = live
	leading := func() string {
		w.until(live, "a leading admin", func(s *catalog.Snapshot) bool { return s.Leader() != nil })
		return live.Snapshot().Leader().ID
	}
	next := 2
	term := int64(1)
	for _, tc := range []struct {
		what string
		at   func(r *catalog.Rule) bool
		kill bool
	}{
		{"nobody chosen yet", func(r *catalog.Rule) bool { return r.Phase == decide.PhasePromoting }, true},
		{"chosen", func(r *catalog.Rule) bool { return r.Phase == decide.PhasePromoting && r.Leader != "" }, true},
		{"switching", func(r *catalog.Rule) bool { return r.Phase != decide.PhaseActive }, false},
	} {
		id := fmt.Sprint("adm", next)
		next++
		w.admin(id, nil)
		w.until(live, "two admins", func(s *catalog.Snapshot) bool { return len(s.Admins) == 2 })
		primary := live.Snapshot().PrimaryOf("sh1").ID
		if tc.kill {
			if err := unix.Kill(w.servers[primary].Running(), unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
		} else {
			op := catalog.Operation{ID: "op" + id, Kind: catalog.OpSwitchover, FromTerm: term, Timeout: 20 * time.Second}
			if _, err := catalog.PutOperation(w.soon(), store, clusterName, "sh1", op); err != nil {
				t.Fatal(err)
			}
		}
		w.until(live, tc.what, func(s *catalog.Snapshot) bool { r := s.Rule("sh1"); return r.Term > term || tc.at(r) })
		w.end(w.admins[leading()])
		var leader string
		leader, term = w.settled(live, term)
		t.Logf("%s: %s leads in term %d, longest gap %v", tc.what, leader, term, ws.progress(20))
		if leader == "sh1-r" {
			t.Errorf("%s: the rdonly member leads", tc.what)
		}
		if r := live.Snapshot().Rule("sh1"); slices.Contains(r.Cohort, "sh1-r") {
			t.Errorf("%s: the rdonly member acknowledges: %v", tc.what, r.Cohort)
		}
	}
	end()
	for _, m := range append([]string{"sh1-r"}, members...) {
		ws.check(m)
	}
}

// The Postgres of a standby hangs: it is killed and started again, and follows.
func TestHungStandby(t *testing.T) {
	store := memstore.New()
	t.Cleanup(func() { _ = store.Close() })
	w := newWorld(t, store)
	a, _, _, end := failoverWorld(t, w)
	end()
	pid := w.servers[members[1]].Running()
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	w.until(a.Live(), "another postmaster that follows", func(s *catalog.Snapshot) bool {
		now := w.servers[members[1]].Running()
		return now != 0 && now != pid && healthy(s, members[0], members[1:]...)
	})
}
