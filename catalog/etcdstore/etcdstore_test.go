package etcdstore_test

import (
	"log/slog"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"go.uber.org/zap"

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
