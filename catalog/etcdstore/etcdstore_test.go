package etcdstore_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"neki/catalog"
	"neki/catalog/etcdstore"
	"neki/catalog/etcdstore/embedded"
	"neki/catalog/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func start(t *testing.T, dir string) *embedded.Server {
	t.Helper()
	s, err := embedded.Start(t.Context(), dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func open(t *testing.T, s *embedded.Server) *etcdstore.Store {
	t.Helper()
	store, err := etcdstore.Open(etcdstore.Config{Endpoints: s.Endpoints()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	return store
}

// outside is a client of etcd that is not the store under test.
func outside(t *testing.T, s *embedded.Server) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: s.Endpoints(), Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestSuite(t *testing.T) {
	server := start(t, t.TempDir())
	admin := outside(t, server)
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		return storetest.Harness{
			Store: open(t, server),
			Compact: func(t *testing.T, rev int64) {
				if _, err := admin.Compact(t.Context(), rev); err != nil {
					t.Fatal(err)
				}
			},
			Expire: func(t *testing.T, id int64) {
				if _, err := admin.Revoke(t.Context(), clientv3.LeaseID(id)); err != nil {
					t.Fatal(err)
				}
			},
		}
	})
}

// eventually polls until ok, which must be within the time that a human would wait.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("never: %s", what)
}

// TestLiveSurvivesEtcd stops etcd under a Live: the last Snapshot stays and health goes on; once etcd is back in the
// same directory, so is all news from it, and leased registrations.
func TestLiveSurvivesEtcd(t *testing.T) {
	dir, log := t.TempDir(), slog.New(slog.DiscardHandler)
	server := start(t, dir)
	store := open(t, server)
	const cluster = "main"
	put := func(uid string) error {
		_, err := catalog.PutShard(t.Context(), store, cluster, catalog.Shard{UID: uid}, catalog.AnyRev)
		return err
	}
	if err := put("sh1"); err != nil {
		t.Fatal(err)
	}
	if _, err := catalog.PutNode(t.Context(), store, cluster, catalog.Node{ID: "n1", Shard: "sh1"}, 0); err != nil {
		t.Fatal(err)
	}

	live := catalog.NewLive(store, cluster, log)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { ended <- live.Run(ctx) }()
	go func() {
		ended <- catalog.KeepRegistered(ctx, store, 2*time.Second, log, func(ctx context.Context, l catalog.Lease) error {
			return catalog.PutLiveness(ctx, l, cluster, catalog.Liveness{Node: "n1", Shard: "sh1"})
		})
	}()
	defer func() { cancel(); <-ended; <-ended }()
	<-live.Ready()
	eventually(t, "registered", func() bool { return live.Snapshot().Node("n1").Live })

	server.Close()
	short, stop := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer stop()
	if _, err := store.Get(short, "x"); err == nil || errors.Is(err, catalog.ErrNotFound) {
		t.Fatalf("Get without etcd: %v", err)
	}
	changed := live.Changed()
	live.Report(catalog.Health{Node: "n1", State: catalog.StateServing})
	<-changed
	if s := live.Snapshot(); s.Shard("sh1") == nil || s.Health("n1").State != catalog.StateServing {
		t.Errorf("without etcd: %+v", s)
	}

	start(t, dir)
	eventually(t, "a write after etcd is back", func() bool { return put("sh2") == nil })
	eventually(t, "the write is seen", func() bool { return live.Snapshot().Shard("sh2") != nil })
	eventually(t, "registered again", func() bool {
		_, err := store.Get(t.Context(), catalog.LiveKey(cluster, "sh1", "n1"))
		return err == nil
	})
}

func TestEmbeddedIsAlone(t *testing.T) {
	dir := t.TempDir()
	first := start(t, dir)
	if _, err := embedded.Start(t.Context(), dir, slog.New(slog.DiscardHandler)); err == nil {
		t.Fatal("a second server started in the same directory")
	}
	if _, err := open(t, first).Put(t.Context(), "a", nil, catalog.Always()); err != nil {
		t.Errorf("the first one suffered: %v", err)
	}
}

func TestEmbeddedLongPath(t *testing.T) {
	server := start(t, t.TempDir()+"/"+strings.Repeat("long", 30))
	if !strings.HasPrefix(server.Endpoints()[0], "http://127.0.0.1:") {
		t.Errorf("endpoints %v", server.Endpoints())
	}
	if _, err := open(t, server).Put(t.Context(), "a", nil, catalog.Always()); err != nil {
		t.Error(err)
	}
}
