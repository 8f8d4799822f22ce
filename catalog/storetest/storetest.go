// Package storetest is the one suite that every catalog.Store must pass: what passes it may stand for etcd in tests.
//
// It starts goroutines for watches and joins them before a test ends. It is for tests only.
//
// Manual: https://etcd.io/docs/latest/learning/api_guarantees/
package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"neki/catalog"
)

// Harness is a store with what the suite does to it from outside.
type Harness struct {
	Store   catalog.Store
	Compact func(t *testing.T, rev int64) // forget the history before rev
	Expire  func(t *testing.T, id int64)  // take a lease away from its owner
}

// patience is how long the suite waits for what must come.
const patience = 20 * time.Second

// Run runs the suite. open makes a new store; keys of one test are seen by no other, so that a server may be shared.
func Run(t *testing.T, open func(t *testing.T) Harness) {
	for _, c := range []struct {
		name string
		run  func(*testing.T, Harness, string)
	}{
		{"get and put", testGetPut},
		{"list", testList},
		{"conditions", testConditions},
		{"delete", testDelete},
		{"txn", testTxn},
		{"compare and put loses no update", testCounter},
		{"watch", testWatch},
		{"watch from a past revision", testWatchPast},
		{"watch gives transactions whole", testWatchTxn},
		{"watch ends with its context", testWatchContext},
		{"watch of compacted history", testWatchCompacted},
		{"lease", testLease},
		{"lease lost", testLeaseLost},
		{"close", testClose},
		{"accessors", testAccessors},
		{"gateway index", testGatewayIndex},
		{"leader", testLeader},
		{"events", testEvents},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := open(t)
			defer func() {
				if err := h.Store.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
			}()
			c.run(t, h, "/t/"+t.Name()+"/")
		})
	}
}

func must[T any](t *testing.T) func(T, error) T {
	t.Helper()
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func put(t *testing.T, s catalog.Store, key, value string) int64 {
	t.Helper()
	return must[int64](t)(s.Put(t.Context(), key, []byte(value), catalog.Always()))
}

func wantErr(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: got error %v, want %v", what, err, want)
	}
}

func testGetPut(t *testing.T, h Harness, p string) {
	_, err := h.Store.Get(t.Context(), p+"a")
	wantErr(t, "Get of nothing", err, catalog.ErrNotFound)
	first := put(t, h.Store, p+"a", "1")
	second := put(t, h.Store, p+"a", "2")
	if second <= first {
		t.Errorf("revisions %d, %d", first, second)
	}
	got := must[catalog.Entry](t)(h.Store.Get(t.Context(), p+"a"))
	want := catalog.Entry{Key: p + "a", Value: []byte("2"), ModRev: second, CreateRev: first}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	put(t, h.Store, p+"empty", "")
	if e := must[catalog.Entry](t)(h.Store.Get(t.Context(), p+"empty")); len(e.Value) != 0 {
		t.Errorf("empty value came back as %q", e.Value)
	}
}

func testList(t *testing.T, h Harness, p string) {
	put(t, h.Store, p+"x/b", "2")
	put(t, h.Store, p+"x/a", "1")
	put(t, h.Store, p+"y/a", "3")
	last := put(t, h.Store, p+"x/a/c", "4")
	entries, rev, err := h.Store.List(t.Context(), p+"x/")
	if err != nil || rev < last {
		t.Fatalf("revision %d after %d, error %v", rev, last, err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Key[len(p):]+"="+string(e.Value))
	}
	if diff := cmp.Diff([]string{"x/a=1", "x/a/c=4", "x/b=2"}, got); diff != "" {
		t.Error(diff)
	}
	if entries, _, err := h.Store.List(t.Context(), p+"none/"); err != nil || len(entries) != 0 {
		t.Errorf("%v, %v", entries, err)
	}
}

func testConditions(t *testing.T, h Harness, p string) {
	there := put(t, h.Store, p+"there", "1")
	mod := put(t, h.Store, p+"there", "2")
	for _, c := range []struct {
		name string
		key  string
		cond catalog.Cond
		want error
	}{
		{"absent, is not", p + "n1", catalog.Absent(""), nil},
		{"absent, is", p + "there", catalog.Absent(""), catalog.ErrConflict},
		{"present, is not", p + "n2", catalog.Present(""), catalog.ErrConflict},
		{"mod 0, is not", p + "n3", catalog.ModRev("", 0), nil},
		{"mod 0, is", p + "there", catalog.ModRev("", 0), catalog.ErrConflict},
		{"mod old", p + "there", catalog.ModRev("", there), catalog.ErrConflict},
		{"mod future", p + "there", catalog.ModRev("", mod+100), catalog.ErrConflict},
		{"create wrong", p + "there", catalog.CreateRev("", mod), catalog.ErrConflict},
		{"create 0, is not", p + "n4", catalog.CreateRev("", 0), nil},
		{"other key", p + "n5", catalog.Present(p + "there"), nil},
		{"other key, is not", p + "n6", catalog.Present(p + "nowhere"), catalog.ErrConflict},
		{"create", p + "there", catalog.CreateRev("", there), nil},
		{"present, is", p + "there", catalog.Present(""), nil},
	} {
		_, err := h.Store.Put(t.Context(), c.key, []byte("v"), c.cond)
		wantErr(t, c.name, err, c.want)
	}
	e := must[catalog.Entry](t)(h.Store.Get(t.Context(), p+"there"))
	if _, err := h.Store.Put(t.Context(), e.Key, []byte("last"), catalog.ModRev("", e.ModRev)); err != nil {
		t.Errorf("mod right: %v", err)
	}
}

func testDelete(t *testing.T, h Harness, p string) {
	rev := put(t, h.Store, p+"a", "1")
	_, err := h.Store.Delete(t.Context(), p+"a", catalog.ModRev("", rev+1))
	wantErr(t, "Delete on a false condition", err, catalog.ErrConflict)
	must[int64](t)(h.Store.Delete(t.Context(), p+"a", catalog.ModRev("", rev)))
	_, err = h.Store.Get(t.Context(), p+"a")
	wantErr(t, "Get of the deleted", err, catalog.ErrNotFound)
	must[int64](t)(h.Store.Delete(t.Context(), p+"a", catalog.Always()))
	again := put(t, h.Store, p+"a", "2")
	if e := must[catalog.Entry](t)(h.Store.Get(t.Context(), p+"a")); e.CreateRev != again {
		t.Errorf("made anew at %d, says %d", again, e.CreateRev)
	}
}

func testTxn(t *testing.T, h Harness, p string) {
	put(t, h.Store, p+"old", "1")
	rev := must[int64](t)(h.Store.Txn(t.Context(), []catalog.Cond{catalog.Absent(p + "a"), catalog.Present(p + "old")},
		[]catalog.Op{catalog.PutOp(p+"a", []byte("1")), catalog.PutOp(p+"b", []byte("2")), catalog.DeleteOp(p + "old")}))
	entries, _, err := h.Store.List(t.Context(), p)
	if err != nil || len(entries) != 2 || entries[0].ModRev != rev || entries[1].ModRev != rev {
		t.Errorf("%v, %v", entries, err)
	}
	_, err = h.Store.Txn(t.Context(), []catalog.Cond{catalog.Present(p + "a"), catalog.Absent(p + "b")},
		[]catalog.Op{catalog.PutOp(p+"c", nil)})
	wantErr(t, "one false condition", err, catalog.ErrConflict)
	_, err = h.Store.Get(t.Context(), p+"c")
	wantErr(t, "write of a failed transaction", err, catalog.ErrNotFound)
	if _, err = h.Store.Txn(t.Context(), nil, []catalog.Op{catalog.PutOp(p+"d", nil), catalog.PutOp(p+"d", nil)}); err == nil {
		t.Error("the same key twice was accepted")
	}
}

func testCounter(t *testing.T, h Harness, p string) {
	const workers, each = 4, 10
	key := p + "n"
	put(t, h.Store, key, "")
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for done := 0; done < each; {
				e, err := h.Store.Get(t.Context(), key)
				if err == nil {
					_, err = h.Store.Put(t.Context(), key, append(append([]byte{}, e.Value...), 'x'), catalog.ModRev("", e.ModRev))
				}
				switch {
				case err == nil:
					done++
				case !errors.Is(err, catalog.ErrConflict):
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if e := must[catalog.Entry](t)(h.Store.Get(t.Context(), key)); len(e.Value) != workers*each {
		t.Errorf("%d updates are left of %d", len(e.Value), workers*each)
	}
}

// watching runs a watch in a goroutine that ends with the test.
type watching struct {
	batches chan catalog.Batch
	end     chan error
}

func watch(t *testing.T, s catalog.Store, prefix string, from int64) watching {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w := watching{make(chan catalog.Batch), make(chan error, 1)}
	var wg sync.WaitGroup
	wg.Go(func() {
		for b, err := range s.Watch(ctx, prefix, from) {
			if err != nil {
				w.end <- err
				return
			}
			select {
			case w.batches <- b:
			case <-ctx.Done():
			}
		}
		w.end <- nil
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return w
}

// next gives the changes of the watch, n of them, as words.
func (w watching) next(t *testing.T, prefix string, n int) (got []string) {
	t.Helper()
	for len(got) < n {
		select {
		case b := <-w.batches:
			for _, c := range b.Changes {
				text := c.Key[len(prefix):] + "=" + string(c.Value)
				if c.Deleted {
					text = "-" + c.Key[len(prefix):]
				}
				if c.ModRev > b.Rev {
					t.Errorf("change of revision %d in batch of %d", c.ModRev, b.Rev)
				}
				got = append(got, text)
			}
		case err := <-w.end:
			t.Fatalf("watch ended after %v: %v", got, err)
		case <-time.After(patience):
			t.Fatalf("nothing more after %v", got)
		}
	}
	return got
}

func (w watching) ended(t *testing.T) error {
	t.Helper()
	for {
		select {
		case err := <-w.end:
			return err
		case <-w.batches:
		case <-time.After(patience):
			t.Fatal("the watch does not end")
		}
	}
}

func testWatch(t *testing.T, h Harness, p string) {
	rev := put(t, h.Store, p+"a", "0")
	w := watch(t, h.Store, p, rev+1)
	put(t, h.Store, p+"a", "1")
	put(t, h.Store, "/elsewhere/"+p, "1")
	put(t, h.Store, p+"b", "2")
	must[int64](t)(h.Store.Delete(t.Context(), p+"a", catalog.Always()))
	if diff := cmp.Diff([]string{"a=1", "b=2", "-a"}, w.next(t, p, 3)); diff != "" {
		t.Error(diff)
	}
}

func testWatchPast(t *testing.T, h Harness, p string) {
	first := put(t, h.Store, p+"a", "0")
	var want []string
	for i := range 5 {
		put(t, h.Store, p+"a", fmt.Sprint(i))
		want = append(want, fmt.Sprint("a=", i))
	}
	w := watch(t, h.Store, p, first+1)
	if diff := cmp.Diff(want, w.next(t, p, 5)); diff != "" {
		t.Error(diff)
	}
}

func testWatchTxn(t *testing.T, h Harness, p string) {
	rev := put(t, h.Store, p+"a", "0")
	w := watch(t, h.Store, p, rev+1)
	must[int64](t)(h.Store.Txn(t.Context(), nil, []catalog.Op{
		catalog.PutOp(p+"a", []byte("1")), catalog.PutOp(p+"b", []byte("1")), catalog.PutOp(p+"c", []byte("1")),
	}))
	select {
	case b := <-w.batches:
		if len(b.Changes) != 3 {
			t.Errorf("a part of a transaction: %v", b)
		}
	case <-time.After(patience):
		t.Fatal("nothing came")
	}
}

func testWatchContext(t *testing.T, h Harness, p string) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	rev := put(t, h.Store, p+"a", "0")
	put(t, h.Store, p+"a", "1")
	for _, err := range h.Store.Watch(ctx, p, rev+1) {
		if err != nil {
			wantErr(t, "end", err, context.Canceled)
			return
		}
		cancel()
	}
	t.Error("the watch ended without an error")
}

func testWatchCompacted(t *testing.T, h Harness, p string) {
	first := put(t, h.Store, p+"a", "0")
	put(t, h.Store, p+"a", "1")
	last := put(t, h.Store, p+"a", "2")
	h.Compact(t, last)
	wantErr(t, "watch of what is gone", watch(t, h.Store, p, first).ended(t), catalog.ErrCompacted)
	w := watch(t, h.Store, p, last)
	if diff := cmp.Diff([]string{"a=2"}, w.next(t, p, 1)); diff != "" {
		t.Error(diff)
	}
}

func testLease(t *testing.T, h Harness, p string) {
	lease := must[catalog.Lease](t)(h.Store.Lease(t.Context(), 10*time.Second))
	rev := must[int64](t)(lease.Put(t.Context(), p+"a", []byte("1"), catalog.Absent("")))
	_, err := lease.Put(t.Context(), p+"a", []byte("1"), catalog.Absent(""))
	wantErr(t, "leased put on a false condition", err, catalog.ErrConflict)
	must[int64](t)(lease.Txn(t.Context(), nil, []catalog.Op{catalog.PutOp(p+"b", []byte("2")), catalog.PutOp(p+"c", nil)}))
	put(t, h.Store, p+"c", "taken over") // a put without the lease takes the key out of it
	w := watch(t, h.Store, p, rev+2)
	select {
	case <-lease.Lost():
		t.Error("the lease is lost")
	default:
	}
	if err := lease.Close(); err != nil {
		t.Fatal(err)
	}
	entries, _, err := h.Store.List(t.Context(), p)
	if err != nil || len(entries) != 1 || entries[0].Key != p+"c" {
		t.Errorf("after Close: %v, %v", entries, err)
	}
	got := w.next(t, p, 3)
	less := func(a, b string) bool { return a < b }
	if diff := cmp.Diff([]string{"c=taken over", "-a", "-b"}, got, cmpopts.SortSlices(less)); diff != "" {
		t.Error(diff)
	}
	if _, err := lease.Put(t.Context(), p+"d", nil, catalog.Always()); !errors.Is(err, catalog.ErrLeaseLost) {
		t.Errorf("put after Close: %v", err)
	}
	if err := lease.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

func testLeaseLost(t *testing.T, h Harness, p string) {
	lease := must[catalog.Lease](t)(h.Store.Lease(t.Context(), 2*time.Second))
	must[int64](t)(lease.Put(t.Context(), p+"a", []byte("1"), catalog.Always()))
	h.Expire(t, lease.ID())
	select {
	case <-lease.Lost():
	case <-time.After(patience):
		t.Fatal("the owner is not told")
	}
	_, err := h.Store.Get(t.Context(), p+"a")
	wantErr(t, "Get of its key", err, catalog.ErrNotFound)
	_, err = lease.Put(t.Context(), p+"a", []byte("1"), catalog.Always())
	wantErr(t, "Put", err, catalog.ErrLeaseLost)
	if err := lease.Close(); err != nil {
		t.Errorf("Close of a lost lease: %v", err)
	}
}

func testClose(t *testing.T, h Harness, p string) {
	lease := must[catalog.Lease](t)(h.Store.Lease(t.Context(), 10*time.Second))
	rev := must[int64](t)(lease.Put(t.Context(), p+"a", nil, catalog.Always()))
	w := watch(t, h.Store, p, rev+100)
	if err := h.Store.Close(); err != nil {
		t.Fatal(err)
	}
	wantErr(t, "watch", w.ended(t), catalog.ErrClosed)
	_, err := h.Store.Get(t.Context(), p+"a")
	wantErr(t, "Get", err, catalog.ErrClosed)
	_, err = h.Store.Lease(t.Context(), time.Second)
	wantErr(t, "Lease", err, catalog.ErrClosed)
	select {
	case <-lease.Lost():
	case <-time.After(patience):
		t.Error("the lease is still there")
	}
}
