package agent

import (
	"path/filepath"
	"testing"
	"time"

	"neki/catalog"
)

// A standby looks for log often while its leader changes, and only then: each attempt costs when the source is down. What is
// written follows within a bounded time, unless it has no source at all.
func TestQuickWhileTheLeaderChanges(t *testing.T) {
	mem, err := openMemory(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	a := &Agent{cfg: Config{Node: "n1", Role: catalog.RoleReplica, Dir: filepath.Join(t.TempDir(), "n1")}, memory: mem}
	r := &runner{a: a}
	interval := func() string { return a.settings()["wal_retrieve_retry_interval"] }
	usual := interval()
	r.hurry()
	if got := interval(); got != quickRetry || got == usual {
		t.Errorf("%s while the leader changes, %s else", got, usual)
	}
	select {
	case <-r.calm:
	case <-time.After(time.Minute):
		t.Fatal("it would try often for ever")
	}
	a.quick.Store(false)
	if got := interval(); got != usual {
		t.Errorf("%s afterwards", got)
	}
}
