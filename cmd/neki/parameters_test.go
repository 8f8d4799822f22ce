package main

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"neki/catalog"
	"neki/catalog/memstore"
	"neki/internal/pgerr"
	"neki/settings"
)

// startParameters runs a Live over a store in memory, and parameters that follow it.
func startParameters(t *testing.T, file map[string]string) (*parameters, *memstore.Store, chan settings.Parameters) {
	t.Helper()
	store := memstore.New()
	log := slog.New(slog.DiscardHandler)
	live := catalog.NewLive(store, "test", log)
	p, err := newParameters(gatewayConfig{Cluster: "test", Parameters: file, Store: store, Live: live, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = live.Run(ctx) }) // gives the context's error
	<-live.Ready()
	applied := make(chan settings.Parameters, 16)
	running.Go(func() { p.follow(ctx, func(v settings.Parameters) { applied <- v }, func(string) {}) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
		_ = store.Close() // it is in memory
	})
	return p, store, applied
}

func row(t *testing.T, p *parameters, name string) (value, source string) {
	t.Helper()
	rows, err := p.Parameters(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		if r.Name == name {
			return r.Value, r.Source
		}
	}
	t.Fatalf("no parameter %s", name)
	return "", ""
}

func TestSetParameter(t *testing.T) {
	p, _, applied := startParameters(t, map[string]string{"pool-capacity": "30"})
	if v, s := row(t, p, "pool-capacity"); v != "30" || s != "file" {
		t.Errorf("from the file: %s %s", v, s)
	}
	if v, s := row(t, p, "buffer-window"); v != "10s" || s != "default" {
		t.Errorf("by default: %s %s", v, s)
	}
	if err := p.SetParameter(t.Context(), "gateway", "POOL-capacity", "40"); err != nil {
		t.Fatal(err)
	}
	// It is in force when the call returns.
	if v, s := row(t, p, "pool-capacity"); v != "40" || s != "sql" {
		t.Errorf("by SQL: %s %s", v, s)
	}
	for got := 0; got != 40; {
		select {
		case v := <-applied:
			got = v.PoolCapacity
		case <-time.After(10 * time.Second):
			t.Fatal("not applied")
		}
	}
	if err := p.setFile(map[string]string{"pool-capacity": "50", "buffer-window": "3s"}); err != nil {
		t.Fatal(err)
	}
	if v, _ := row(t, p, "pool-capacity"); v != "40" {
		t.Errorf("what SQL set comes before the file: %s", v)
	}
	if v, s := row(t, p, "buffer-window"); v != "3s" || s != "file" {
		t.Errorf("after a reload: %s %s", v, s)
	}
}

func TestSetParameterRefuses(t *testing.T) {
	p, store, _ := startParameters(t, nil)
	for _, tc := range []struct{ scope, name, value, code string }{
		{"gateway", "pool-capacty", "3", pgerr.UndefinedObject},
		{"gateway", "pool-capacity", "many", pgerr.InvalidParameterValue},
		{"gateway", "replication-lag-tolerable-min", "1h", pgerr.InvalidParameterValue}, // above -max
		{"admin", "pool-capacity", "3", pgerr.InvalidParameterValue},
		{"gateway", "discovery-poll-interval", "3s", pgerr.InvalidParameterValue},
		{"elsewhere", "pool-capacity", "3", pgerr.InvalidParameterValue},
		{"", "pool-capacity", "3", pgerr.InvalidParameterValue},
	} {
		err := p.SetParameter(t.Context(), tc.scope, tc.name, tc.value)
		e, ok := errors.AsType[*pgerr.Error](err)
		if !ok || e.Code != tc.code || e.Hint == "" {
			t.Errorf("%s %s = %s: %v, want %s with a HINT", tc.scope, tc.name, tc.value, err, tc.code)
		}
	}
	if entries, _, err := store.List(t.Context(), catalog.Prefix("test")); err != nil || len(entries) != 0 {
		t.Errorf("something was written: %v %v", entries, err)
	}
}

// What doesn't fit together, by whoever wrote it, leaves the last good values in force.
func TestParametersThatDontFit(t *testing.T) {
	p, store, _ := startParameters(t, nil)
	if err := p.SetParameter(t.Context(), "gateway", "replication-lag-tolerable-max", "2min"); err != nil {
		t.Fatal(err)
	}
	rev, err := catalog.PutParameter(t.Context(), store, "test", "gateway", "replication-lag-tolerable-min", "1h")
	if err != nil {
		t.Fatal(err)
	}
	if !seenRevision(t.Context(), p.live, rev) {
		t.Fatal("the write is not seen")
	}
	p.sync()
	if got := p.now(); got.LagMin != 30*time.Second || got.LagMax != 2*time.Minute {
		t.Errorf("in force: %v %v", got.LagMin, got.LagMax)
	}
	// A way out is left.
	if err := p.SetParameter(t.Context(), "gateway", "replication-lag-tolerable-min", "1min"); err != nil {
		t.Fatal(err)
	}
	if got := p.now(); got.LagMin != time.Minute {
		t.Errorf("in force: %v", got.LagMin)
	}
}

func TestEventsWithoutCatalog(t *testing.T) {
	store := memstore.New()
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	e := events{store: store, cluster: "test"}
	_, err := e.Events(t.Context())
	if got, ok := errors.AsType[*pgerr.Error](err); !ok || got.Code != pgerr.ObjectNotInPrerequisiteState {
		t.Errorf("events: %v", err)
	}
	err = e.Record(t.Context(), catalog.Event{Kind: "test"})
	if got, ok := errors.AsType[*pgerr.Error](err); !ok || got.Code != pgerr.ObjectNotInPrerequisiteState {
		t.Errorf("record: %v", err)
	}
}

// TestGroupOfGateway has a gateway follow the group that it is put into, and what becomes of that.
func TestGroupOfGateway(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	store, log := memstore.New(), slog.New(slog.DiscardHandler)
	live := catalog.NewLive(store, "test", log)
	p, err := newParameters(gatewayConfig{
		Cluster: "test", ID: "gw1", Cell: "az-a", Parameters: map[string]string{"pool-capacity": "30"}, Store: store, Live: live, Log: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { _ = live.Run(ctx) })
	<-live.Ready()
	type state struct {
		capacity int
		cell     string
	}
	var mu sync.Mutex
	var now state
	running.Go(func() {
		p.follow(ctx,
			func(v settings.Parameters) { mu.Lock(); now.capacity = v.PoolCapacity; mu.Unlock() },
			func(cell string) { mu.Lock(); now.cell = cell; mu.Unlock() })
	})
	await := func(want state) {
		t.Helper()
		for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			mu.Lock()
			have := now
			mu.Unlock()
			if have == want {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%+v, not %+v", have, want)
			}
		}
	}
	await(state{30, "az-a"})
	docs := documents{store, "test", live}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(docs.CreateGatewayGroup(ctx, catalog.GatewayGroup{Name: "web", Cell: "az-b", Parameters: map[string]string{"pool-capacity": "50"}}))
	if err := docs.CreateGatewayGroup(ctx, catalog.GatewayGroup{Name: "web"}); !errors.Is(err, catalog.ErrConflict) {
		t.Error("made twice:", err)
	}
	must(p.SetParameter(ctx, "gateway", "pool-capacity", "40"))
	await(state{40, "az-a"})
	must(docs.PlaceGateway(ctx, "gw1", "web"))
	await(state{50, "az-b"})
	if v, source := row(t, p, "pool-capacity"); v != "50" || source != "group" {
		t.Errorf("of the group: %s %s", v, source)
	}
	must(docs.UpdateGatewayGroup(ctx, "web", func(g *catalog.GatewayGroup) error {
		g.Cell, g.Parameters = "", map[string]string{"pool-capacity": "60"}
		return nil
	}))
	await(state{60, "az-a"})
	must(docs.PlaceGateway(ctx, "gw1", ""))
	await(state{40, "az-a"})
	must(docs.PlaceGateway(ctx, "gw1", "web"))
	await(state{60, "az-a"})
	must(docs.DropGatewayGroup(ctx, "web"))
	await(state{40, "az-a"})
	if err := docs.UpdateGatewayGroup(ctx, "web", func(*catalog.GatewayGroup) error { return nil }); !errors.Is(err, catalog.ErrNotFound) {
		t.Error("changed what is gone:", err)
	}
}
