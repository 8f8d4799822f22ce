package admin

import (
	"testing"
	"time"

	"neki/catalog"
	"neki/settings"
)

// Every parameter of the admins is followed: a new one in the table has to be, too.
func TestTunedFollowsEveryAdminParameter(t *testing.T) {
	cfg := Config{Poll: 3 * time.Second, Backups: BackupPolicy{Interval: time.Hour}}
	for _, row := range settings.ParameterTable() {
		if row.Scope != "admin" {
			continue
		}
		snap := &catalog.Snapshot{Parameters: []catalog.ClusterParameter{{Scope: "admin", Name: row.Name, Value: "77min"}}}
		p := cfg.tuned(snap)
		if got := row.Format(p); got != "77min" {
			t.Errorf("%s: %s is in force, 77min was set", row.Name, got)
		}
		if got, own := row.Format(cfg.tuned(&catalog.Snapshot{})), cfg.parameters()[row.Name]; got != own || own == "" {
			t.Errorf("%s: %s without SQL, the configuration says %q", row.Name, got, own)
		}
	}
	if got := cfg.tuned(&catalog.Snapshot{Parameters: []catalog.ClusterParameter{{Scope: "admin", Name: settings.DiscoveryPoll, Value: "1us"}}}); got.DiscoveryPoll != 3*time.Second {
		t.Errorf("%v is in force for what doesn't fit", got.DiscoveryPoll)
	}
}
