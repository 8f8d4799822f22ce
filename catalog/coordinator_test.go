package catalog_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"neki/catalog"
	"neki/catalog/memstore"
)

func newCoordinator(t *testing.T, store catalog.Store) (*catalog.Coordinator, catalog.Lease) {
	t.Helper()
	c := catalog.NewCoordinator(store, "main", "gw1")
	lease, err := store.Lease(t.Context(), time.Minute)
	if err == nil {
		err = c.Register(t.Context(), lease)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c, lease
}

func begin(t *testing.T, c *catalog.Coordinator) catalog.Commit {
	t.Helper()
	commit, err := c.Begin()
	if err != nil {
		t.Fatal(err)
	}
	return commit
}

func TestCoordinatorDecides(t *testing.T) {
	store := memstore.New()
	c, lease := newCoordinator(t, store)
	ctx := t.Context()
	first, second, late := begin(t, c), begin(t, c), begin(t, c)
	if cluster, gateway, _, ok := catalog.ParseGID(first.GID); !ok || cluster != "main" || gateway != "gw1" || first.GID == second.GID {
		t.Errorf("names %q, %q", first.GID, second.GID)
	}
	if err := c.Decide(ctx, first, "db", []string{"a", "b"}); err != nil {
		t.Fatal(err)
	}
	if err := c.Decide(ctx, first, "db", nil); err != nil { // as when the answer to the first write was lost
		t.Errorf("decided again: %v", err)
	}
	if err := catalog.Abort(ctx, store, "main", first.GID); !errors.Is(err, catalog.ErrConflict) {
		t.Errorf("aborted after it was decided: %v", err)
	}
	if err := catalog.Abort(ctx, store, "main", second.GID); err != nil {
		t.Fatal(err)
	}
	if err := c.Decide(ctx, second, "db", nil); !errors.Is(err, catalog.ErrAborted) {
		t.Errorf("decided after it was aborted: %v", err)
	}
	if err := lease.Close(); err != nil {
		t.Fatal(err)
	}
	if err := c.Decide(ctx, late, "db", nil); !errors.Is(err, catalog.ErrAborted) {
		t.Errorf("decided without a lease: %v", err)
	}
	again, err := store.Lease(ctx, time.Minute)
	if err == nil {
		err = c.Register(ctx, again)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Decide(ctx, late, "db", nil); !errors.Is(err, catalog.ErrAborted) {
		t.Errorf("decided under another incarnation: %v", err)
	}
	if err := c.Decide(ctx, begin(t, c), "db", nil); err != nil {
		t.Errorf("under the new incarnation: %v", err)
	}
}

// TestCoordinatorForgets: a decision that is carried out goes with the next one.
func TestCoordinatorForgets(t *testing.T) {
	store := memstore.New()
	c, _ := newCoordinator(t, store)
	var last string
	for range 3 {
		commit := begin(t, c)
		if err := c.Decide(t.Context(), commit, "db", nil); err != nil {
			t.Fatal(err)
		}
		c.Done(commit)
		last = commit.GID
	}
	view, err := catalog.ListCommits(t.Context(), store, "main")
	if err != nil || len(view.Decisions) != 1 || view.Decisions[last].GID != last || len(view.Live) != 1 {
		t.Errorf("%v, %v", view, err)
	}
}

// TestCoordinatorAway: while the store is away the outcome is not known, and nothing is begun before it was ever there.
func TestCoordinatorAway(t *testing.T) {
	store := memstore.New()
	if _, err := catalog.NewCoordinator(store, "main", "gw1").Begin(); err == nil {
		t.Error("a commit is begun without a registration")
	}
	c, _ := newCoordinator(t, store)
	commit := begin(t, c)
	store.Interrupt(errors.New("away"))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := c.Decide(ctx, commit, "db", nil); err == nil || errors.Is(err, catalog.ErrAborted) {
		t.Errorf("while the store is away: %v", err)
	}
}
