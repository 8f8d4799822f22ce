package admin_test

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"neki/catalog"
	"neki/catalog/memstore"
	"neki/cluster/admin"
	"neki/cluster/decide"
)

// writers insert ids one by one at whoever leads, and remember which were acknowledged.
type writers struct {
	w    *world
	live *catalog.Live

	mu    sync.Mutex
	acked []int
	next  int

	last time.Time
	gap  time.Duration

	errors atomic.Int64 // of statements
}

func (w *world) writers(live *catalog.Live, n int) (*writers, func()) {
	w.t.Helper()
	ws := &writers{w: w, live: live, last: time.Now()}
	ctx, stop := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for range n {
		all.Go(func() { ws.run(ctx) })
	}
	end := sync.OnceFunc(func() { stop(); all.Wait() })
	w.t.Cleanup(end)
	return ws, end
}

func (ws *writers) run(ctx context.Context) {
	var conn *pgx.Conn
	for ctx.Err() == nil {
		if conn == nil {
			p := ws.live.Snapshot().PrimaryOf("sh1")
			var err error
			if p == nil {
				err = catalog.ErrNotFound
			} else {
				conn, err = ws.w.connect(p.ID, super.Name, super.Password)
			}
			if err != nil {
				conn = nil
				time.Sleep(10 * time.Millisecond) // a client's wait before it tries again
				continue
			}
		}
		ws.mu.Lock()
		ws.next++
		id := ws.next
		ws.mu.Unlock()
		qctx, cancel := context.WithTimeout(ctx, 3*time.Second)
		_, err := conn.Exec(qctx, "INSERT INTO acked VALUES ($1)", id)
		if err != nil {
			if ctx.Err() == nil {
				ws.errors.Add(1)
			}
			_ = conn.Close(qctx)
			conn = nil
		} else {
			ws.ack(id)
		}
		cancel()
		time.Sleep(ws.w.pace)
	}
	if conn != nil {
		_ = conn.Close(context.Background())
	}
}

func (ws *writers) ack(id int) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.acked = append(ws.acked, id)
	ws.gap = max(ws.gap, time.Since(ws.last))
	ws.last = time.Now()
}

// progress waits until more were acknowledged, and gives the longest gap since the last call.
func (ws *writers) progress(more int) time.Duration {
	ws.w.t.Helper()
	ws.mu.Lock()
	want := len(ws.acked) + more
	ws.mu.Unlock()
	ws.w.until(ws.live, fmt.Sprintf("%d acknowledged commits", want), func(*catalog.Snapshot) bool {
		ws.mu.Lock()
		defer ws.mu.Unlock()
		return len(ws.acked) >= want
	})
	ws.mu.Lock()
	defer ws.mu.Unlock()
	gap := ws.gap
	ws.gap = 0
	return gap
}

// check demands every acknowledged id on a node, as soon as it has replayed it.
func (ws *writers) check(node string) {
	ws.w.t.Helper()
	ws.mu.Lock()
	acked := append([]int(nil), ws.acked...)
	ws.mu.Unlock()
	missing, said := -1, ""
	defer func() {
		if missing != 0 {
			ws.w.t.Errorf("%s lacks %d of %d acknowledged rows, last answer %s", node, missing, len(acked), said)
		}
	}()
	ws.w.until(ws.live, "acknowledged rows on "+node, func(*catalog.Snapshot) bool {
		conn, err := ws.w.connect(node, super.Name, super.Password)
		if err != nil {
			said = err.Error()
			return false
		}
		ctx := ws.w.soon()
		defer conn.Close(ctx) //nolint:errcheck // the query's error counts
		err = conn.QueryRow(ctx, "SELECT count(*) FROM unnest($1::int[]) AS u(id) WHERE NOT EXISTS (SELECT FROM acked a WHERE a.id = u.id)",
			acked).Scan(&missing)
		said = fmt.Sprint(err)
		return err == nil && missing == 0
	})
	ws.w.t.Logf("%s has all of %d acknowledged rows", node, len(acked))
}

// settled waits until a primary leads in a later term with the others streaming, and gives it and the term.
func (w *world) settled(live *catalog.Live, after int64) (string, int64) {
	w.t.Helper()
	var leader string
	var term int64
	w.until(live, "a primary of a later term, with all others as its replicas", func(s *catalog.Snapshot) bool {
		p, r := s.PrimaryOf("sh1"), s.Rule("sh1")
		if p == nil || r.Term <= after || r.Phase != decide.PhaseActive {
			return false
		}
		var others []string
		for _, m := range members {
			if m != p.ID {
				others = append(others, m)
			}
		}
		leader, term = p.ID, r.Term
		return healthy(s, p.ID, others...)
	})
	return leader, term
}

// failoverWorld is a shard of three with writers.
func failoverWorld(t *testing.T, w *world) (*admin.Admin, map[string]*part, *writers, func()) {
	agents := map[string]*part{}
	for i, p := range w.agents(false) {
		agents[members[i]] = p
	}
	a, _ := w.admin("adm1", nil)
	w.ready(a)
	w.until(a.Live(), "healthy cluster", func(s *catalog.Snapshot) bool { return healthy(s, members[0], members[1:]...) })
	w.must(members[0], "CREATE TABLE acked (id int PRIMARY KEY)", "")
	ws, end := w.writers(a.Live(), 2)
	ws.progress(20)
	t.Cleanup(func() {
		if t.Failed() {
			w.logEvents()
		}
	})
	return a, agents, ws, end
}

func (w *world) logEvents() {
	events, err := catalog.ListEvents(context.Background(), w.store, clusterName, 100)
	if err != nil {
		w.t.Log(err)
	}
	for _, e := range events {
		w.t.Logf("event %s %-10s %-6s %s (%v)", e.At.Format("05.000"), e.Kind, e.Node, e.Detail, e.Duration)
	}
}

// A primary's postmaster dies, then a whole host: a leader of a later term is there each time, nothing that was
// acknowledged is lost, and the old one comes back as a replica.
func TestFailover(t *testing.T) {
	store := memstore.New()
	t.Cleanup(func() { _ = store.Close() })
	w := newWorld(t, store)
	a, agents, ws, end := failoverWorld(t, w)
	kill := func(node string) {
		if err := unix.Kill(w.servers[node].Running(), unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	first := members[0]
	split := w.leave(t, first)
	kill(first)
	ws.progress(20)
	second, term := w.settled(a.Live(), 1)
	split.settle(t, a.Live(), second)
	t.Logf("postmaster killed: %s leads after %s, longest gap %v", second, first, ws.progress(5))

	w.end(agents[second]) // agent and Postgres go at once
	if err := w.servers[second].Kill(); err != nil {
		t.Fatal(err)
	}
	w.until(a.Live(), "another leader", func(s *catalog.Snapshot) bool {
		r := s.Rule("sh1")
		return r.Term > term && r.Phase == decide.PhaseActive && r.Leader != second
	})
	t.Logf("host lost: longest gap %v", ws.progress(20))
	w.agent("sh1", second, catalog.RoleReplica, false)
	third, _ := w.settled(a.Live(), term)
	t.Logf("%s leads, %s is back", third, second)
	if third == second {
		t.Errorf("%s came back as the leader", second)
	}
	end()
	for _, m := range members {
		ws.check(m)
	}
}

// An operator gives the lead to one node, then to another, and then replaces the primary by force; nothing acknowledged is lost.
func TestOperations(t *testing.T) {
	store := memstore.New()
	t.Cleanup(func() { _ = store.Close() })
	w := newWorld(t, store)
	a, _, ws, end := failoverWorld(t, w)
	term := int64(1)
	for i, o := range []catalog.Operation{
		{Kind: catalog.OpSwitchover, Candidate: members[2]}, {Kind: catalog.OpSwitchover, Candidate: members[1]}, {Kind: catalog.OpFailover},
	} {
		o.ID, o.FromTerm, o.Timeout = fmt.Sprint("op", i), term, 20*time.Second
		if _, err := catalog.PutOperation(w.soon(), store, clusterName, "sh1", o); err != nil {
			t.Fatal(err)
		}
		var leader string
		leader, term = w.settled(a.Live(), term)
		w.until(a.Live(), "end of the operation", func(*catalog.Snapshot) bool {
			_, err := catalog.GetOperation(w.soon(), store, clusterName, "sh1")
			return errors.Is(err, catalog.ErrNotFound)
		})
		t.Logf("%s: %s leads, longest gap %v", o.Kind, leader, ws.progress(20))
		if o.Candidate != "" && leader != o.Candidate {
			t.Errorf("%s to %s: %s leads", o.Kind, o.Candidate, leader)
		}
	}
	answer := httptest.NewRecorder()
	a.Handler().ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil))
	for _, want := range []string{
		`neki_admin_order_step_seconds_count{order="promote",step="barrier"} `, `neki_admin_order_step_seconds_count{order="fence",step="drain"} `,
		`neki_admin_leader_change_seconds_count{shard="sh1"} 3`,
	} {
		if !strings.Contains(answer.Body.String(), want) {
			t.Errorf("no %s in the metrics:\n%s", want, answer.Body)
		}
	}
	end()
	for _, m := range members {
		ws.check(m)
	}
}
