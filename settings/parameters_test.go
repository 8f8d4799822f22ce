package settings

import (
	"strings"
	"testing"
	"time"

	"neki/internal/pgerr"
)

func TestParameterTable(t *testing.T) {
	p := DefaultParameters()
	if err := p.Check(); err != nil {
		t.Error(err)
	}
	seen := map[string]bool{}
	for _, row := range ParameterTable() {
		if got := row.Format(p); got != row.Default {
			t.Errorf("%s: default %q, shown %q", row.Name, row.Default, got)
		}
		if seen[row.Name] || row.Description == "" || (row.interval == nil) == (row.count == nil) {
			t.Errorf("%+v", row)
		}
		seen[row.Name] = true
	}
	want := Parameters{
		LagMin: 30 * time.Second, LagMax: 15 * time.Minute, IdleSession: 30 * time.Minute,
		IdleInTransaction: 5 * time.Minute, ClientWrite: 5 * time.Minute, DrainWait: 5 * time.Second, BufferWindow: 10 * time.Second, PoolCapacity: 20, PoolMinConns: 1,
		PoolMaxLifetime: time.Hour, PoolMaxWait: 30 * time.Second, PoolIdle: 10 * time.Minute,
		DiscoveryPoll: 5 * time.Second, RecoveryPoll: 10 * time.Second, AcceptableLag: 10 * time.Second,
		SwitchoverTimeout: time.Minute, BackupInterval: 12 * time.Hour, BackupRetention: 48 * time.Hour, ReplaceAfter: 10 * time.Minute,
	}
	if p != want {
		t.Errorf("defaults %+v", p)
	}
}

func TestParametersSet(t *testing.T) {
	for _, tc := range []struct{ pairs, code, text string }{
		{"replication-lag-tolerable-min=1min", "", ""},
		{"REPLICATION-LAG-TOLERABLE-MIN=1s", "", ""},
		{"replication-lag-tolerable-min=16min", "22023", "replication-lag-tolerable-min (16min) is greater than"},
		{"replication-lag-tolerable-max=29s", "22023", "replication-lag-tolerable-min (30s) is greater than"},
		{"replication-lag-tolerable-min=1h,replication-lag-tolerable-max=2h", "", ""},
		{"replication-lag-tolerable-max=2s,replication-lag-tolerable-min=1s", "", ""},
		{"replication-lag-tolerable-min=soon", "22023", `invalid value for parameter "replication-lag-tolerable-min": "soon"`},
		{"pool-capacity=0", "22023", `0 is outside the valid range for parameter "pool-capacity" (1 .. 100000)`},
		{"pool-capacity=1e3", "22023", `invalid value for parameter "pool-capacity": "1e3"`},
		{"pool-min-conns=21", "22023", "pool-min-conns (21) is greater than pool-capacity (20)"},
		{"pool-min-conns=21,pool-capacity=21", "", ""},
		{"idle-session-timeout=0", "", ""},
		{"discovery-poll-interval=1ms", "22023", `1ms is outside the valid range`},
		{"buffer-window=400d", "22023", "400d is outside the valid range"},
		{"buffer-windw=1s", "42704", `unrecognized gateway or admin parameter "buffer-windw"`},
	} {
		var pairs []Pair
		for _, p := range strings.Split(tc.pairs, ",") {
			name, value, _ := strings.Cut(p, "=")
			pairs = append(pairs, Pair{name, value})
		}
		p, err := DefaultParameters().SetAll(pairs)
		if pgerr.Code(err) != tc.code || err != nil && !strings.HasPrefix(pgerr.From(err).Message, tc.text) {
			t.Errorf("%s: %v", tc.pairs, err)
		}
		if err != nil && (p != DefaultParameters() || pgerr.From(err).Hint == "") {
			t.Errorf("%s: a refused change changed something, or has no hint", tc.pairs)
		}
		if got, _ := p.Get(pairs[0].Name); err == nil && got != pairs[0].Value {
			t.Errorf("%s: shown %q", tc.pairs, got)
		}
	}
	if _, err := DefaultParameters().Get("nothing"); pgerr.Code(err) != "42704" {
		t.Error(err)
	}
}
