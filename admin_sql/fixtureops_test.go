package adminsql

import (
	"context"
	"fmt"

	"neki/catalog"
)

// The long actions of the fixture: each ends at once, those on shard sh2 badly.

func (f *fixture) PutJob(_ context.Context, j catalog.Job) (catalog.Job, bool, error) {
	j.ID, j.State = "20000101T000000000001", catalog.JobPending
	return j, j.Node != "sh1-c", f.put(j)
}

func (f *fixture) PutOperation(_ context.Context, shard string, o catalog.Operation) (catalog.Job, error) {
	if shard == "sh2" && o.Kind == catalog.OpFailover {
		return catalog.Job{}, catalog.ErrConflict
	}
	o.ID = "20000101T000000000002"
	j := catalog.JobOf(shard, &o)
	return j, f.put(j)
}

func (f *fixture) put(j catalog.Job) error {
	f.job = j
	return f.do(fmt.Sprintf("put %s of %s: shard %q, node %q, args %s, key %q", j.Kind, j.Target, j.Shard, j.Node, j.Args, j.Key))
}

func (f *fixture) FollowJob(ctx context.Context, _ string, seen func(*catalog.Job) bool) error {
	j := f.job
	j.State, j.Progress, j.Step, j.BytesDone, j.BytesTotal = catalog.JobRunning, .5, "works", 1<<20, 2<<20
	if !seen(&j) || ctx.Err() != nil {
		return ctx.Err()
	}
	j.State, j.Progress, j.Step, j.Node = catalog.JobDone, 1, "all is well", "sh1-b"
	if j.Shard == "sh2" {
		j.State, j.Step, j.Error, j.Hint = catalog.JobFailed, "", "given up: nobody can lead", "Add a replica."
	}
	seen(&j)
	return nil
}

func (f *fixture) CancelJob(_ context.Context, id, by string) (catalog.Job, error) {
	switch id {
	case "20000101T000000":
		return catalog.Job{ID: id, State: catalog.JobRunning, Shard: "sh1"}, f.do("cancel " + id + " by " + by)
	case "19991231T000000":
		return catalog.Job{ID: id, State: catalog.JobDone}, nil
	}
	return catalog.Job{}, catalog.ErrNotFound
}

func (f *fixture) Rule(_ context.Context, shard string) (catalog.Rule, error) {
	return catalog.Rule{Term: 3, Leader: shard + "-a"}, nil
}

// fixtureJobs are what neki.operations shows.
func fixtureJobs() []catalog.Job {
	return []catalog.Job{
		{Kind: "restart_node", Target: "node sh1-b", Shard: "sh1", Node: "sh1-b", By: "oscar", At: moment},
		{Kind: catalog.OpFailover, Target: "shard sh2", Shard: "sh2", By: "oscar", At: moment},
		{Kind: "create_shard", Target: "shard sh3", By: "oscar", Args: []byte(`{"count": 1}`), At: moment},
	}
}

func (f *fixture) UpdateShard(_ context.Context, uid string, change func(*catalog.Shard) error) error {
	sh := *f.snap.Shard(uid)
	if err := change(&sh); err != nil {
		return err
	}
	return f.do(fmt.Sprintf("shard %s: profile %q, maintenance %t, durability %q", sh.UID, sh.Profile, sh.Maintenance, sh.Durability))
}

// fixtureBackups are what neki.backups shows.
func fixtureBackups() []catalog.Backup {
	whole := catalog.Backup{
		ID: "20000101T000000000003", Shard: "sh1", Kind: catalog.BackupScheduled, State: catalog.BackupDone, Object: "20000101T000000000003-sh1-a-1",
		Node: "sh1-a", Timeline: 2, StartLSN: 0x3000028, StopLSN: 0x3000100, Bytes: 1 << 25, Stored: 1 << 23, StartedAt: moment,
		FinishedAt: moment, ExpiresAt: moment.AddDate(0, 0, 2), Protected: true, By: "admin admin1",
	}
	other := whole
	other.Shard, other.Node, other.Protected = "sh2", "sh2-a", false
	return []catalog.Backup{
		whole, other,
		{ID: "20000101T000000000004", Shard: "sh1", Kind: catalog.BackupManual, State: catalog.BackupRunning, StartedAt: moment, By: "oscar"},
		{ID: "20000101T000000000002", Shard: "sh2", Kind: catalog.BackupManual, State: catalog.BackupFailed, Error: "no primary", By: "oscar"},
	}
}

func (f *fixture) CreateProfile(_ context.Context, p catalog.Profile) error {
	if f.snap.Profile(p.Name) != nil {
		return catalog.ErrConflict
	}
	return f.do(fmt.Sprintf("create profile %s: %d replicas, %d rdonly, %v", p.Name, p.Replicas, p.Rdonly, p.Parameters))
}

func (f *fixture) DropProfile(_ context.Context, name string) error {
	return f.do("drop profile " + name)
}

func (f *fixture) CreateGatewayGroup(_ context.Context, g catalog.GatewayGroup) error {
	if f.snap.GatewayGroup(g.Name) != nil {
		return catalog.ErrConflict
	}
	return f.do(fmt.Sprintf("create gateway group %s: cell %q, %v", g.Name, g.Cell, g.Parameters))
}

func (f *fixture) UpdateGatewayGroup(_ context.Context, name string, change func(*catalog.GatewayGroup) error) error {
	g := *f.snap.GatewayGroup(name)
	if err := change(&g); err != nil {
		return err
	}
	return f.do(fmt.Sprintf("gateway group %s: cell %q, %v", g.Name, g.Cell, g.Parameters))
}

func (f *fixture) DropGatewayGroup(_ context.Context, name string) error {
	return f.do("drop gateway group " + name)
}

func (f *fixture) PlaceGateway(_ context.Context, gateway, group string) error {
	return f.do(fmt.Sprintf("gateway %s is in group %q", gateway, group))
}
