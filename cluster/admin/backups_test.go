package admin

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"neki/catalog"
)

func TestBackupDue(t *testing.T) {
	now := time.Date(2026, 1, 10, 12, 0, 0, 0, time.UTC)
	policy := BackupPolicy{Interval: 12 * time.Hour, First: time.Minute}
	ready := now.Add(-time.Hour)
	two := []catalog.Shard{{UID: "a"}, {UID: "b"}}
	part := func(id, shard string, state catalog.BackupState, ago time.Duration) catalog.Backup {
		return catalog.Backup{ID: id, Shard: shard, State: state, StartedAt: now.Add(-ago)}
	}
	job := func(state catalog.JobState, ago time.Duration) []*catalog.Job {
		return []*catalog.Job{{Kind: "backup", State: state, FinishedAt: now.Add(-ago)}}
	}
	for _, tc := range []struct {
		name   string
		snap   catalog.Snapshot
		policy BackupPolicy
		ready  time.Time
		want   bool
	}{
		{"none yet", catalog.Snapshot{Shards: two}, policy, ready, true},
		{"just ready", catalog.Snapshot{Shards: two}, policy, now.Add(-time.Second), false},
		{"not by schedule", catalog.Snapshot{Shards: two}, BackupPolicy{}, ready, false},
		{"under way", catalog.Snapshot{Shards: two, Jobs: job(catalog.JobRunning, 0)}, policy, ready, false},
		{"failed lately", catalog.Snapshot{Shards: two, Jobs: job(catalog.JobFailed, time.Minute)}, policy, ready, false},
		{"failed before", catalog.Snapshot{Shards: two, Jobs: job(catalog.JobFailed, time.Hour)}, policy, ready, true},
		{"fresh", catalog.Snapshot{Shards: two, Backups: []catalog.Backup{
			part("1", "a", catalog.BackupDone, time.Hour), part("1", "b", catalog.BackupDone, time.Hour),
		}}, policy, ready, false},
		{"old", catalog.Snapshot{Shards: two, Backups: []catalog.Backup{
			part("1", "a", catalog.BackupDone, 13*time.Hour), part("1", "b", catalog.BackupDone, 13*time.Hour),
		}}, policy, ready, true},
		{"of one shard", catalog.Snapshot{Shards: two, Backups: []catalog.Backup{part("1", "a", catalog.BackupDone, time.Hour)}}, policy, ready, true},
		{"of two, apart", catalog.Snapshot{Shards: two, Backups: []catalog.Backup{
			part("1", "a", catalog.BackupDone, time.Hour), part("2", "b", catalog.BackupDone, time.Hour),
		}}, policy, ready, true},
		{"partial", catalog.Snapshot{Shards: two, Backups: []catalog.Backup{
			part("1", "a", catalog.BackupPartial, time.Hour), part("1", "b", catalog.BackupFailed, time.Hour),
		}}, policy, ready, true},
	} {
		if got := due(&tc.snap, tc.policy, tc.ready, now); got != tc.want {
			t.Errorf("%s: %v", tc.name, got)
		}
	}
}

func TestExpiredBackups(t *testing.T) {
	now := time.Date(2026, 1, 10, 12, 0, 0, 0, time.UTC)
	days := func(n int) time.Time { return now.AddDate(0, 0, -n) }
	b := func(id string, state catalog.BackupState, finished, expires time.Time) catalog.Backup {
		return catalog.Backup{ID: id, State: state, FinishedAt: finished, ExpiresAt: expires}
	}
	link := func(id, base string, finished, expires time.Time) catalog.Backup {
		one := b(id, catalog.BackupDone, finished, expires)
		one.Object, one.Base = "object-"+id, ""
		if base != "" {
			one.Base = "object-" + base
		}
		return one
	}
	kept := b("protected", catalog.BackupDone, days(90), days(88))
	kept.Protected = true
	for _, tc := range []struct {
		name string
		list []catalog.Backup
		want []string
	}{
		{"none", nil, nil},
		{"the last one stays", []catalog.Backup{b("old", catalog.BackupDone, days(9), days(7))}, nil},
		{"a failed one is no last one", []catalog.Backup{
			b("old", catalog.BackupDone, days(9), days(7)), b("failed", catalog.BackupFailed, days(1), days(-1)),
			b("running", catalog.BackupRunning, time.Time{}, days(-2)),
		}, nil},
		{"over", []catalog.Backup{
			b("1", catalog.BackupDone, days(4), days(2)), b("2", catalog.BackupPartial, days(3), days(1)),
			b("3", catalog.BackupDone, days(1), days(-1)), kept, b("for ever", catalog.BackupDone, days(99), time.Time{}),
		}, []string{"1", "2"}},
		{"what others build on", []catalog.Backup{
			link("full", "", days(4), days(2)), link("inc", "full", days(3), days(1)), link("inc2", "inc", days(1), days(-1)),
			link("other", "", days(4), days(2)), link("other-inc", "other", days(3), days(1)),
		}, []string{"other", "other-inc"}},
		{"failed long ago, and going", []catalog.Backup{
			b("failed", catalog.BackupFailed, days(8), days(6)), b("going", catalog.BackupDeleting, days(1), days(-1)),
		}, []string{"failed", "going"}},
	} {
		var got []string
		for _, b := range expired(tc.list, now) {
			got = append(got, b.ID)
		}
		if d := cmp.Diff(tc.want, got); d != "" {
			t.Errorf("%s: %s", tc.name, d)
		}
	}
}
