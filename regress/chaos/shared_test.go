package chaos

import (
	"sync"
	"testing"
	"time"
)

// shared is the cluster of one shard that tests use in turn. It is replaced when one of them has left it broken.
type sharedCluster struct {
	mu sync.Mutex
	c  *cluster
}

var shared sharedCluster

// oneShard gives the shared cluster, whole. When the test ends its faults are undone; a test that failed, or after which
// the cluster does not become whole, costs the next one a new cluster.
func oneShard(t *testing.T) *cluster {
	t.Helper()
	shared.mu.Lock()
	if shared.c == nil {
		shared.c = newCluster(t, 1)
	}
	c := shared.c
	c.t = t
	t.Cleanup(func() {
		defer shared.mu.Unlock()
		if t.Failed() {
			c.dump()
		}
		err := c.heal(90 * time.Second)
		if err != nil && !t.Failed() {
			t.Error(err)
			c.dump()
		}
		if t.Failed() {
			shared.c = nil
			if err := c.end(); err != nil {
				t.Error(err)
			}
		}
	})
	return c
}

// endShared ends the shared cluster, when the last test has run.
func endShared() error {
	if shared.c == nil {
		return nil
	}
	return shared.c.end()
}

// long marks a test that a short run leaves out.
func long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("left out of a short run: make chaos")
	}
}
