package memstore_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"neki/catalog"
	"neki/catalog/memstore"
	"neki/catalog/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSuite(t *testing.T) {
	storetest.Run(t, func(*testing.T) storetest.Harness {
		s := memstore.New()
		return storetest.Harness{
			Store:   s,
			Compact: func(_ *testing.T, rev int64) { s.Compact(rev) },
			Expire:  func(_ *testing.T, id int64) { s.ExpireLease(id) },
		}
	})
}

func TestInterrupt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		away := errors.New("away")
		seen := make(chan catalog.Batch, 10)
		done := make(chan error, 1)
		go func() {
			for b, err := range s.Watch(t.Context(), "/", 1) {
				if err != nil {
					done <- err
					return
				}
				seen <- b
			}
		}()
		s.Interrupt(away)
		if _, err := s.Get(t.Context(), "/a"); !errors.Is(err, away) {
			t.Errorf("Get while interrupted: %v", err)
		}
		time.Sleep(time.Hour)
		if len(seen) != 0 || len(done) != 0 {
			t.Error("the watch ended or heard something")
		}
		s.Interrupt(nil)
		if _, err := s.Put(t.Context(), "/a", nil, catalog.Always()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if len(seen) != 1 {
			t.Error("the watch did not go on")
		}
		s.Close()
		synctest.Wait()
		if err := <-done; !errors.Is(err, catalog.ErrClosed) {
			t.Error(err)
		}
	})
}
