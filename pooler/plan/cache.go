package plan

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/dgraph-io/ristretto/v2"
)

// cache keeps plans by hash, bounded in bytes. A hash says only where to look: what is found is compared with what was
// asked for.
type cache struct {
	plans *ristretto.Cache[uint64, *Plan]
	flush sync.Mutex // ristretto's Clear and Close must not run at once

	hits, misses [counterShards]counter
	evictions    atomic.Int64 // plans that had to make room, or were not let in
}

const counterShards = 8

// counter is one part of a counter that many sessions add to, on a cache line of its own.
type counter struct {
	n atomic.Int64
	_ [56]byte
}

func add(c *[counterShards]counter) { c[rand.Uint32()%counterShards].n.Add(1) }

func total(c *[counterShards]counter) (sum int64) {
	for i := range c {
		sum += c[i].n.Load()
	}
	return sum
}

// planBytes is what a typical plan holds; it sizes the table of the cache's admission counters, of which there should be
// ten for each plan.
const planBytes = 1024

func newCache(maxBytes int64) (*cache, error) {
	c := &cache{}
	plans, err := ristretto.NewCache(&ristretto.Config[uint64, *Plan]{
		NumCounters: max(1000, 10*maxBytes/planBytes),
		MaxCost:     maxBytes,
		BufferItems: 64,
		OnEvict:     func(*ristretto.Item[*Plan]) { c.evictions.Add(1) },
		OnReject:    func(*ristretto.Item[*Plan]) { c.evictions.Add(1) },
	})
	if err != nil {
		return nil, fmt.Errorf("plan cache of %d bytes: %w", maxBytes, err)
	}
	c.plans = plans
	return c, nil
}

// get gives the plan of key if it is for this text and was made under this version.
func (c *cache) get(key uint64, text []byte, v version) *Plan {
	p, ok := c.plans.Get(key)
	if !ok || p.version != v || p.key != string(text) { // the conversion does not allocate
		return nil
	}
	return p
}

func (c *cache) put(key uint64, p *Plan) { c.plans.Set(key, p, p.bytes) }

func (c *cache) clear() {
	c.flush.Lock()
	defer c.flush.Unlock()
	c.plans.Clear()
}

func (c *cache) close() {
	c.flush.Lock()
	defer c.flush.Unlock()
	c.plans.Close()
}

// each visits the plans in no order.
func (c *cache) each(visit func(*Plan)) {
	c.plans.IterValues(func(p *Plan) bool {
		if !p.marker {
			visit(p)
		}
		return false
	})
}
