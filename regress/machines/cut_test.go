package machines

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"
)

// TestMachinesCutApart cuts machines of the guide's cluster from each other at random, for NEKI_MACHINES_SECONDS: what one
// machine sends to another is dropped by its network, one way or both, or a machine hears nobody any more. After each cut the
// network is healed, and then clients must get on, and every acknowledged row must be there. NEKI_MACHINES_SEED draws it.
func TestMachinesCutApart(t *testing.T) {
	seconds, err := strconv.Atoi(os.Getenv("NEKI_MACHINES_SECONDS"))
	if err != nil {
		t.Skip("takes long: NEKI_MACHINES_SECONDS says how long")
	}
	seed, err := strconv.ParseUint(os.Getenv("NEKI_MACHINES_SEED"), 10, 64)
	if err != nil {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("NEKI_MACHINES_SEED=%d", seed)
	s := newSite(t, "m1", "m2", "m3")
	s.install(guide(t))
	clients := startTraffic(t, 0, 0, s.dsn(0, 1), s.dsn(1, 0), s.dsn(0, 1), s.dsn(1, 0))
	defer clients.end()
	s.await(outage, "traffic", func() error { return atLeast(clients.count(), 100) })
	rng := rand.New(rand.NewPCG(seed, 0))
	began := time.Now()
	for round := 0; time.Since(began) < time.Duration(seconds)*time.Second; round++ {
		heal := s.cut(rng)
		time.Sleep(time.Duration(1000+rng.IntN(9000)) * time.Millisecond) // how long the fault lasts is a part of it
		heal()
		before := clients.count()
		s.await(whole, "traffic after the cut", func() error { return atLeast(clients.count(), before+50) })
		s.await(outage, "read of all rows", func() error {
			clients.mu.Lock()
			acked := append([]int64(nil), clients.acked...)
			clients.mu.Unlock()
			var missing int
			err := s.scan(&missing, `SELECT count(*) FROM unnest($1::int8[]) AS a WHERE a NOT IN (SELECT id FROM acked)`, acked)
			if err == nil && missing != 0 {
				t.Fatalf("round %d: %d of %d acknowledged rows are missing", round, missing, len(acked))
			}
			return err
		})
	}
	s.await(whole, "whole cluster", s.whole)
	clients.end()
	var terms int
	s.must(s.scan(&terms, `SELECT sum(term) FROM neki.nodes WHERE role = 'primary'`))
	clients.mu.Lock()
	t.Logf("%d rows acknowledged, %d errors, longest time without one %v; the terms of both shards are %d together",
		len(clients.acked), len(clients.errors), clients.gap.Round(10*time.Millisecond), terms)
	clients.mu.Unlock()
	s.check(clients.acked)
}

// cut breaks the network in one way, and gives how to mend it.
func (s *site) cut(rng *rand.Rand) (heal func()) {
	from := s.machines[rng.IntN(len(s.machines))]
	if rng.IntN(3) == 0 {
		s.t.Logf("%s hears nobody", from.name)
		s.run("ip", "link", "set", "v"+from.name, "down")
		return func() { s.run("ip", "link", "set", "v"+from.name, "up") }
	}
	var undo []func()
	for _, to := range s.machines {
		if to == from || len(undo) > 0 && rng.IntN(2) == 0 {
			continue
		}
		undo = append(undo, s.drop(from, to))
		if rng.IntN(2) == 0 {
			undo = append(undo, s.drop(to, from))
		}
	}
	return func() {
		for _, f := range undo {
			f()
		}
	}
}

// drop has nothing that one machine sends reach another.
func (s *site) drop(from, to *machine) (heal func()) {
	s.t.Logf("nothing gets from %s to %s", from.name, to.name)
	route := func(verb string) {
		s.run("nsenter", "-t", strconv.Itoa(from.cmd.Process.Pid), "-n", "ip", "route", verb, "blackhole", to.address+"/32")
	}
	route("add")
	return func() { route("del") }
}
