package admin_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"neki/catalog"
	"neki/catalog/memstore"
	"neki/cluster/admin"
	"neki/cluster/agent"
	"neki/cluster/backup"
	"neki/cluster/decide"
	"neki/cluster/pgproc"
)

// fewSegments has servers keep no more WAL than they must, also for slots.
var fewSegments = pgproc.Settings{
	"wal_keep_size": "0", "min_wal_size": "32MB", "max_wal_size": "32MB", "max_slot_wal_keep_size": "32MB", "checkpoint_timeout": "1h",
}

// hasty has a replica that was away, or was restored, taken back soon: by default one that left the cohort stays out of it for
// half a minute.
func hasty() decide.Timing {
	t := decide.DefaultTiming()
	t.Flap = 2 * time.Second
	return t
}

// fillLog writes segments of WAL on a node, and has it forget those that it may.
func (w *world) fillLog(node string, segments int) {
	w.t.Helper()
	for range segments {
		w.exec(node, "SELECT pg_logical_emit_message(true, 'fill', repeat('x', 1000000)), pg_switch_wal()")
	}
	w.exec(node, "CHECKPOINT")
	w.exec(node, "CHECKPOINT")
}

// exec runs a command that gives no rows.
func (w *world) exec(node, sql string) {
	w.t.Helper()
	conn, err := w.connect(node, super.Name, super.Password)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx := w.soon()
	defer conn.Close(ctx) //nolint:errcheck // the command's error counts
	if _, err := conn.Exec(ctx, sql); err != nil {
		w.t.Fatalf("%s on %s: %v", sql, node, err)
	}
}

// kinds lists the kinds of the events of a node, the oldest first.
func (w *world) kinds(node string) string {
	w.t.Helper()
	events, err := catalog.ListEvents(w.soon(), w.store, clusterName, 1000)
	if err != nil {
		w.t.Fatal(err)
	}
	var list []string
	for _, e := range slices.Backward(events) {
		if e.Node == node {
			list = append(list, e.Kind)
		}
	}
	return strings.Join(list, " ")
}

// whole waits until a node that was restored is wanted and serves again, and acknowledges.
func (w *world) whole(a *admin.Admin, node string) {
	w.t.Helper()
	w.until(a.Live(), node+" whole again", func(s *catalog.Snapshot) bool {
		n, r := s.Node(node), s.Rule("sh1")
		return n.Request != "" && n.Desired == catalog.DesiredRun && healthy(s, r.Leader, node) && strings.Contains(strings.Join(r.Cohort, " "), node)
	})
}

// H11, H12 without backups: a replica was away while the primary wrote more than a slot may keep. Its slot is lost, then nobody has the
// WAL that it needs: reads leave it, it leaves the cohort, is copied anew, from the other replica, and joins. The primary and its term
// stay, and clients see nothing.
func TestGapIsRestoredByCopy(t *testing.T) {
	store := memstore.New()
	t.Cleanup(func() { _ = store.Close() })
	w := newWorld(t, store)
	w.settings, w.timing = fewSegments, hasty()
	a, agents, ws, end := failoverWorld(t, w)
	away := members[2]
	w.end(agents[away])
	if err := w.servers[away].Kill(); err != nil {
		t.Fatal(err)
	}
	slot := func() bool {
		got, err := w.query(members[0], "SELECT count(*)::text FROM pg_replication_slots WHERE slot_name = 'neki_sh1_c'")
		return err == nil && got == "1"
	}
	w.exec(members[0], "SELECT pg_drop_replication_slot('neki_sh1_c')")
	w.until(a.Live(), "a slot again", func(*catalog.Snapshot) bool { return slot() })
	w.fillLog(members[0], 6)
	w.agent("sh1", away, catalog.RoleReplica, false)
	w.until(a.Live(), "restore of "+away, func(s *catalog.Snapshot) bool { return s.Node(away).Desired == catalog.DesiredRestore })
	w.whole(a, away)
	ws.progress(20)
	end()
	for _, m := range members {
		ws.check(m)
	}
	if r := a.Live().Snapshot().Rule("sh1"); r.Term != 1 || r.Leader != members[0] {
		t.Errorf("%s leads in term %d", r.Leader, r.Term)
	}
	if kinds := strings.NewReplacer("down ", "", "up ", "").Replace(w.kinds(away)); !strings.Contains(kinds, "fenced rebuild restored") {
		t.Errorf("events of %s: %s", away, kinds)
	}
	w.must(away, "SELECT count(*)::text FROM pg_stat_wal_receiver WHERE sender_port = "+portText(w, members[0]), "1")
}

func portText(w *world, node string) string { return strconv.Itoa(w.port(node)) }

// StartInstance makes the world a Provider.
func (w *world) StartInstance(_ context.Context, in admin.Instance) error {
	w.mu.Lock()
	running := w.parts[in.ID] != nil
	w.mu.Unlock()
	if running {
		return nil
	}
	p := w.agent(in.Shard, in.ID, in.Role, false)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.parts[in.ID] = p
	return nil
}

// RemoveInstance ends what StartInstance started, or the test.
func (w *world) RemoveInstance(_ context.Context, node string) error {
	w.mu.Lock()
	p := w.parts[node]
	delete(w.parts, node)
	w.mu.Unlock()
	if p != nil {
		w.end(p)
	}
	if err := w.servers[node].Kill(); err != nil {
		return err
	}
	return os.RemoveAll(filepath.Join(w.dir, node))
}

// Replicas come and go while clients write: a new one is made without the primary's help, and acknowledges; a reader never does;
// one that is removed leaves nothing. The primary and its term stay.
func TestReplicasComeAndGo(t *testing.T) {
	store := memstore.New()
	t.Cleanup(func() { _ = store.Close() })
	w := newWorld(t, store)
	w.provider = w
	a, agents, ws, end := failoverWorld(t, w)
	live := a.Live()
	for n, p := range agents {
		w.parts[n] = p
	}
	add := func(role string) {
		t.Helper()
		j := w.do(live, catalog.Job{Kind: "add_replica", Shard: "sh1", Target: "shard sh1", By: "test", Args: []byte(`{"role": "` + role + `"}`)})
		if j.State != catalog.JobDone || j.BytesTotal == 0 || j.BytesDone != j.BytesTotal {
			t.Errorf("%+v", j)
		}
	}
	add("replica")
	add("rdonly")
	snap := live.Snapshot()
	if r := snap.Rule("sh1"); strings.Join(r.Cohort, " ") != "sh1-a sh1-b sh1-c sh1-d" || snap.Node("sh1-e").Role != catalog.RoleRdonly {
		t.Errorf("cohort %v, %+v", r.Cohort, snap.Node("sh1-e"))
	}
	ws.progress(20)
	for _, node := range []string{"sh1-b", "sh1-e"} {
		if j := w.doNode(live, "remove_replica", node); j.State != catalog.JobDone {
			t.Errorf("%+v", j)
		}
		if n := live.Snapshot().Node(node); n != nil {
			t.Errorf("%+v is left", n)
		}
	}
	w.must("sh1-a", "SELECT string_agg(slot_name, ' ' ORDER BY slot_name)::text FROM pg_replication_slots", "neki_sh1_c neki_sh1_d")
	ws.progress(20)
	set := func(count string, want ...string) {
		t.Helper()
		j := w.do(live, catalog.Job{Kind: "set_replicas", By: "test", Args: []byte(`{"role": "replica", "profile": "default", "count": ` + count + `}`)})
		if s := live.Snapshot(); j.State != catalog.JobDone || len(s.Nodes) != len(want) || !healthy(s, want[0], want[1:]...) {
			t.Errorf("%+v, nodes %+v", j, s.Nodes)
		}
	}
	set("3", "sh1-a", "sh1-c", "sh1-d", "sh1-e")
	set("1", "sh1-a", "sh1-c")
	if p := live.Snapshot().Profile(""); p.Replicas != 1 {
		t.Errorf("profile %+v", p)
	}
	ws.progress(20)
	if r := live.Snapshot().Rule("sh1"); r.Term != 1 || r.Leader != members[0] {
		t.Errorf("%s leads in term %d", r.Leader, r.Term)
	}
	end()
	ws.check("sh1-c")
	if n := ws.errors.Load(); n != 0 {
		t.Errorf("writers met %d errors", n)
	}
}

// walCommand is what Postgres calls of this program to archive a file of WAL, and to get one back.
func walCommand(args []string) int {
	ctx := context.Background()
	var err error
	switch args[0] {
	case "wal-push":
		err = backup.SendWAL(ctx, args[1], args[2])
	case "wal-fetch":
		err = backup.ReceiveWAL(ctx, args[1], args[2], args[3])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// withArchive gives the world's agents an archive, and its directory.
func (w *world) withArchive() string {
	w.t.Helper()
	self, err := os.Open(os.Args[0])
	if err != nil {
		w.t.Fatal(err)
	}
	defer self.Close() //nolint:errcheck // opened for reading
	program := filepath.Join(w.dir, "program")
	out, err := os.OpenFile(program, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := io.Copy(out, self); err != nil {
		w.t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		w.t.Fatal(err)
	}
	dir := filepath.Join(w.dir, "archive")
	store, err := backup.NewDirStore(dir)
	if err != nil {
		w.t.Fatal(err)
	}
	w.archive = agent.Archive{Store: store, Program: program}
	return dir
}

// archivedAll waits until the primary's full segments are in the archive, and gives the last of them.
func (w *world) archivedAll(live *catalog.Live, node string) string {
	w.t.Helper()
	last, err := w.query(node, "SELECT pg_walfile_name(pg_switch_wal())")
	if err != nil {
		w.t.Fatal(err)
	}
	w.until(live, last+" in the archive", func(*catalog.Snapshot) bool {
		got, err := w.query(node, "SELECT last_archived_wal FROM pg_stat_archiver")
		return err == nil && got >= last
	})
	return last
}

// status asks a node's agent.
func (w *world) status(live *catalog.Live, node string) agent.Status {
	w.t.Helper()
	st, err := (&agent.Client{URL: live.Snapshot().Node(node).AgentURL, HTTP: w.http, Token: token}).Status(w.soon())
	if err != nil {
		w.t.Fatal(err)
	}
	return st
}

// H11, H12: a replica was away while the primary wrote more than its slot may keep. What only the archive has it takes from there, and
// its data stays. When it is away again, and the archive is without that, too, it is restored from the last backup; so is a replica that
// is added. The primary is not copied, its term stays, and clients see nothing.
func TestGapIsClosedByArchiveAndBackup(t *testing.T) {
	store := memstore.New()
	t.Cleanup(func() { _ = store.Close() })
	w := newWorld(t, store)
	w.settings, w.timing, w.provider, w.pace = fewSegments, hasty(), w, 5*time.Millisecond
	dir := w.withArchive()
	a, agents, ws, end := failoverWorld(t, w)
	live, primary, away := a.Live(), members[0], members[2]
	leave := func(p *part) {
		t.Helper()
		w.end(p)
		if err := w.servers[away].Kill(); err != nil {
			t.Fatal(err)
		}
		at := w.status(live, primary).Server.ReceiveLSN
		w.fillLog(primary, 4)
		w.archivedAll(live, primary)
		w.exec(primary, "CHECKPOINT")
		w.until(live, "loss of what "+away+" needs", func(*catalog.Snapshot) bool { return w.status(live, primary).Server.OldestLSN > at })
	}
	leave(agents[away])
	id := w.servers[away].SystemID()
	back := w.agent("sh1", away, catalog.RoleReplica, false)
	w.until(live, away+" streaming again", func(s *catalog.Snapshot) bool { return healthy(s, primary, away) })
	if n, st := live.Snapshot().Node(away), w.status(live, away); n.Request != "" || st.Filled != nil {
		t.Errorf("the archive was to do: %+v, %+v", n, st.Filled)
	}

	leave(back)
	if j := w.do(live, catalog.Job{Kind: "backup", Shard: "sh1", Target: "shard sh1", By: "test", Args: []byte(`{"kind": "manual"}`)}); j.State != catalog.JobDone {
		t.Fatalf("%+v", j)
	}
	list, err := backup.NewRepository(w.archive.Store, clusterName, "sh1", id, slog.New(slog.DiscardHandler)).Backups(w.soon())
	if err != nil || len(list) != 1 {
		t.Fatalf("backups %+v, %v", list, err)
	}
	first := backup.SegmentOf(1, list[0].StartLSN, backup.DefaultSegmentSize).Name(backup.DefaultSegmentSize)
	segments, err := filepath.Glob(filepath.Join(dir, clusterName, "sh1", id, "wal", "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range segments {
		if filepath.Base(path) < first {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
	}
	w.agent("sh1", away, catalog.RoleReplica, false)
	w.until(live, "restore of "+away, func(s *catalog.Snapshot) bool { return s.Node(away).Request != "" })
	add := w.do(live, catalog.Job{Kind: "add_replica", Shard: "sh1", Target: "shard sh1", By: "test", Args: []byte("{}")})
	w.whole(a, away)
	for _, node := range []string{away, "sh1-d"} {
		if st := w.status(live, node); st.Filled == nil || !strings.HasPrefix(st.Filled.Step, "restored from backup "+list[0].ID) || st.Member.Archive {
			t.Errorf("%s: %+v", node, st)
		}
		w.must(node, "SELECT current_setting('restore_command')", "")
	}
	if add.State != catalog.JobDone || !strings.Contains(add.Step, "restored from backup") || add.BytesDone != list[0].Bytes {
		t.Errorf("%+v", add)
	}
	ws.progress(20)
	end()
	for _, m := range append(slices.Clone(members), "sh1-d") {
		ws.check(m)
	}
	if r := live.Snapshot().Rule("sh1"); r.Term != 1 || r.Leader != primary || ws.errors.Load() != 0 {
		t.Errorf("%s leads in term %d; writers met %d errors", r.Leader, r.Term, ws.errors.Load())
	}
}
