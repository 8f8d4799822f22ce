package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"neki/catalog"
	"neki/cluster/decide"
	"neki/cluster/pgproc"
	"neki/internal/pgerr"
)

// Times that a step of an order may take.
const (
	initTimeout   = 2 * time.Minute
	reloadTimeout = 10 * time.Second
)

// provision fills an empty instance. One that has data already is left as it is: that is what makes the order safe to
// repeat, and what keeps data from ever being initialised away.
func (r *runner) provision(ctx context.Context, o ProvisionOrder) (Result, error) {
	if o.ReplicationPassword == "" {
		return Result{}, pgerr.New(pgerr.InvalidParameterValue, "provision: the replication password is missing")
	}
	if _, err := r.a.pg.WritePassfile(RoleReplication, o.ReplicationPassword); err != nil {
		return Result{}, err
	}
	var did []string
	seed := r.a.seeded() && o.Source == nil
	if seed {
		if err := r.a.memory.changePromises(func(p *Promises) { p.OwnTerm = o.Term }); err != nil {
			return Result{}, err
		}
		did = append(did, r.a.cfg.Node+": took over restored data")
	}
	if !r.a.pg.HasData() {
		if err := r.a.memory.changeMember(func(m *Member) { m.Parameters = o.Parameters }); err != nil {
			return Result{}, err
		}
		if o.Source == nil { // before there is data, so that data found after a crash is known to be of this order
			if err := r.a.memory.changePromises(func(p *Promises) { p.OwnTerm = o.Term }); err != nil {
				return Result{}, err
			}
		}
		step, err := r.fill(ctx, o)
		if err != nil {
			r.a.setPhase(catalog.StateStopped, "%v", err)
			return Result{}, err
		}
		did = append(did, step)
	}
	id := r.a.pg.SystemID()
	if o.SystemID != "" && id != o.SystemID {
		return Result{}, pgerr.New(pgerr.ObjectNotInPrerequisiteState,
			"node %s holds the database system %s, not %s", r.a.cfg.Node, id, o.SystemID).
			WithHint("Look at what it is, and remove its data directory by hand if it may go.")
	}
	if err := r.a.memory.changePromises(func(p *Promises) {
		p.SystemID = id
		if o.Source != nil { // the copy is whole
			p.RevokedBelowTerm, *p = max(p.RevokedBelowTerm, o.Term), decide.Replaced(*p)
		}
	}); err != nil {
		return Result{}, err
	}
	if err := r.a.memory.changeMember(func(m *Member) { m.Term, m.Source = o.Term, o.Source }); err != nil {
		return Result{}, err
	}
	r.a.setPhase(catalog.StateStarting, "starting")
	r.ensureRunning(ctx)
	if !r.a.pg.Ready() {
		return Result{}, pgerr.New(pgerr.CannotConnectNow, "node %s is provisioned but not up yet", r.a.cfg.Node).
			WithDetail("%s", r.a.pg.LogTail(5))
	}
	if seed {
		if err := r.a.endSeed(); err != nil {
			return Result{}, err
		}
	}
	return Result{SystemID: id, Done: did}, nil
}

// fill runs initdb or a base backup.
func (r *runner) fill(ctx context.Context, o ProvisionOrder) (string, error) {
	began := time.Now()
	if o.Source == nil {
		if o.SystemID != "" { // the shard has data somewhere: a second initdb would fork it
			return "", pgerr.New(pgerr.ObjectNotInPrerequisiteState, "initdb refused: the shard is database system %s", o.SystemID)
		}
		r.a.setPhase(catalog.StateRestoring, "initdb")
		ctx, cancel := context.WithTimeout(ctx, initTimeout)
		defer cancel()
		if err := r.a.pg.Init(ctx, pgproc.InitOptions{NoSync: r.a.noSync()}); err != nil {
			return "", err
		}
		return r.progress("initialised", began), nil
	}
	defer r.idle()
	what, err := r.refilled(ctx, o.Fill, *o.Source, o.SystemID)
	if err != nil {
		return "", err
	}
	return r.progress(what, began), r.restored(o.Fill)
}

// noSync: a server that is not to flush its data need not be flushed when it is made, either.
func (a *Agent) noSync() bool { return a.cfg.Settings["fsync"] == "off" }

func (r *runner) progress(what string, began time.Time) string {
	step := fmt.Sprintf("%s: %s in %.1fs", r.a.cfg.Node, what, time.Since(began).Seconds())
	r.a.cfg.Progress(step)
	return step
}

// follow points a standby at its source.
func (r *runner) follow(ctx context.Context, o FollowOrder) (Result, error) {
	if o.Source.Node == r.a.cfg.Node {
		return Result{}, pgerr.New(pgerr.InvalidParameterValue, "node %s can't follow itself", r.a.cfg.Node)
	}
	if err := r.stillOn(ctx, o.Timeline); err != nil {
		return Result{}, err
	}
	if !r.a.pg.IsStandby() { // it led a term before
		if err := r.killed(); err != nil {
			return Result{}, err
		}
		if err := r.standby(); err != nil {
			return Result{}, err
		}
	}
	if err := r.a.memory.changeMember(func(m *Member) { m.Term, m.Source, m.Archive = o.Term, &o.Source, o.Archive }); err != nil {
		return Result{}, err
	}
	r.hurry()
	if r.a.pg.Running() == 0 {
		r.ensureRunning(ctx)
		return Result{Done: []string{"follows " + o.Source.Node}}, nil
	}
	if err := r.reconfigureSoon(ctx); err != nil {
		return Result{}, err
	}
	return Result{Done: []string{"follows " + o.Source.Node}}, nil
}

// stillOn refuses an order that was decided by a status of this node that is out of date: meanwhile it has received log of
// a later timeline, from a leader that was lost. The new leader may give the same number to a timeline of other content, and
// Postgres would not see the difference.
func (r *runner) stillOn(ctx context.Context, line int32) error {
	if line == 0 || r.a.pg.Running() == 0 || !r.a.pg.IsStandby() || !r.a.laterTimeline(line) {
		return nil
	}
	if ob := r.a.observer.look(ctx); ob.Up && ob.Timeline <= line {
		return nil
	}
	return pgerr.New(pgerr.ObjectNotInPrerequisiteState, "node %s has log of a later timeline than %d, which was seen", r.a.cfg.Node, line)
}

// applyConf writes the files, and reloads the server until it has read them.
func (r *runner) applyConf(ctx context.Context) (changed bool, err error) {
	changed, err = r.a.pg.WriteSettings(r.a.settings())
	if err != nil || r.a.pg.Running() == 0 {
		return changed, err
	}
	return changed, r.reload(ctx)
}

// reload has the server read its files, and checks that it runs with what is in ours. New sessions get the
// postmaster's values, so the proof is a connection opened after it has reloaded; what ALTER SYSTEM put over a
// parameter of ours is taken away.
func (r *runner) reload(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, reloadTimeout)
	defer cancel()
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, 200*time.Millisecond) {
		if err := r.a.pg.Reload(); err != nil {
			return err
		}
		pending, err := r.pending(ctx)
		if err == nil && len(pending) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("settings not in effect after a reload: %v", pending), err)
		case <-time.After(wait):
		}
	}
}

// pending names the reloadable parameters whose value a new session sees differently from our file's.
func (r *runner) pending(ctx context.Context) ([]string, error) {
	conn, err := r.a.connect(ctx, "postgres", orderSQLLimit)
	if err != nil {
		return nil, err
	}
	defer conn.Close(ctx) //nolint:errcheck // the query's error counts
	var pending []string
	for name, want := range r.a.settings() {
		switch name { // those that orders change
		case "synchronous_standby_names", "primary_conninfo", "primary_slot_name":
		default:
			continue
		}
		var got, file string
		err := conn.QueryRow(ctx, "SELECT setting, coalesce(sourcefile, '') FROM pg_settings WHERE name = $1", name).Scan(&got, &file)
		if err != nil {
			return nil, err
		}
		if got == want {
			continue
		}
		pending = append(pending, name)
		if _, err := conn.Exec(ctx, "ALTER SYSTEM RESET "+name); err != nil {
			return nil, err
		}
	}
	return pending, nil
}
