package admin_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"neki/catalog"
	"neki/catalog/etcdstore"
	"neki/catalog/etcdstore/embedded"
	"neki/cluster/agent"
)

// etcdPart is an embedded etcd that a test can stop and start again.
type etcdPart struct {
	t   *testing.T
	dir string
	*embedded.Server
}

func (e *etcdPart) start() {
	e.t.Helper()
	var err error
	if e.Server, err = embedded.Start(e.t.Context(), e.dir, slog.New(slog.DiscardHandler)); err != nil {
		e.t.Fatal(err)
	}
}

// With a real etcd: a shard is made; etcd goes away and comes back; shard, agents and admin go on.
func TestClusterOnEtcd(t *testing.T) {
	t.Parallel() // most of it is waiting until etcd counts as lost
	dir, err := os.MkdirTemp("", "nekietcd-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	etcd := &etcdPart{t: t, dir: filepath.Join(dir, "etcd")}
	etcd.start()
	t.Cleanup(func() { etcd.Close() })
	store, err := etcdstore.Open(etcdstore.Config{Endpoints: etcd.Endpoints()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	w := newWorld(t, store)
	began := time.Now()
	w.agents(true)
	a, _ := w.admin("adm1", nil)
	live := a.Live()
	w.ready(a)
	t.Logf("ready in %v", time.Since(began))
	w.until(live, "healthy cluster", func(s *catalog.Snapshot) bool { return healthy(s, members[0], members[1:]...) })
	w.must("sh1-a", "CREATE TABLE t (id int)", "")
	epoch := a.Status().Epoch
	etcd.Close()
	w.until(live, "loss of etcd", func(*catalog.Snapshot) bool { return live.StoreError() != nil && !a.Leading() })
	if !healthy(live.Snapshot(), members[0], members[1:]...) {
		t.Error("health is gone with etcd")
	}
	w.commit(live, 1)
	etcd.start()
	w.until(live, "return of etcd", func(s *catalog.Snapshot) bool {
		return live.StoreError() == nil && a.Leading() && a.Status().Epoch > epoch && len(s.Admins) == 1 && s.Node("sh1-c").Live
	})
	// The new epoch's orders are obeyed: a new database gets its stubs.
	w.must("sh1-a", "CREATE DATABASE later TEMPLATE template0", "")
	client := agent.Client{URL: live.Snapshot().Node("sh1-a").AgentURL, HTTP: w.http, Token: token}
	w.until(live, "orders of the new epoch", func(*catalog.Snapshot) bool {
		st, err := client.Status(w.soon())
		return err == nil && st.Promises.Epoch > epoch
	})
}
