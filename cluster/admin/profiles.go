package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"

	"neki/catalog"
	"neki/cluster/agent"
	"neki/cluster/pgproc"
	"neki/internal/pgerr"
)

// ProfileChange are the arguments of jobs alter_profile and assign_profile.
type ProfileChange struct {
	Profile string `json:"profile"`
	// Parameters to set; null takes one back to its default.
	Parameters map[string]*string `json:"parameters,omitempty"`
}

// parameters are those of the shard's profile.
func (s *shardLoop) parameters(v *view) map[string]string {
	if p := s.l.a.live.Snapshot().Profile(v.shard.Doc.Profile); p != nil {
		return p.Parameters
	}
	return nil
}

// profile reads the profile that a job is about; one that is gone ends the job.
func (l *leader) profile(ctx context.Context, name string) (catalog.Profile, error) {
	p, err := catalog.GetProfile(ctx, l.a.cfg.Store, l.a.cfg.Cluster, name)
	if errors.Is(err, catalog.ErrNotFound) {
		return p, giveUp(pgerr.New(pgerr.UndefinedObject, "there is no profile %q any more", name))
	}
	return p, err
}

// alterProfile changes the Postgres parameters of a profile and rolls them out. The servers check them before anything is
// changed.
func (l *leader) alterProfile(ctx context.Context, j catalog.Job, r *Report) error {
	var args ProfileChange
	if err := json.Unmarshal(j.Args, &args); err != nil {
		return giveUp(err)
	}
	p, err := l.profile(ctx, args.Profile)
	if err != nil {
		return err
	}
	before := p.Parameters
	if text, begun := j.Memo["before"]; begun {
		if err := json.Unmarshal([]byte(text), &before); err != nil {
			return giveUp(err)
		}
	} else if text, err := json.Marshal(before); err != nil {
		return giveUp(err)
	} else if err := r.Remember(ctx, "before", string(text)); err != nil {
		return err
	}
	if err := l.storeProfile(ctx, r, &p, args.Parameters); err != nil {
		return err
	}
	shards := l.a.live.Snapshot().ShardsOfProfile(&p)
	for i, uid := range shards {
		err := l.rollShard(ctx, &roll{job: j, report: r, shard: uid, at: i, of: len(shards)})
		if _, last := errors.AsType[*lastError](err); last {
			return errors.Join(err, l.takeBack(ctx, j, r, before, shards[:i+1]))
		}
		if err != nil {
			return err
		}
	}
	r.Step(1, "profile %s is in force on %d shards", p.Name, len(shards))
	return nil
}

// storeProfile checks and stores a change. p stays as it was.
func (l *leader) storeProfile(ctx context.Context, r *Report, p *catalog.Profile, change map[string]*string) error {
	next := *p
	next.Parameters = maps.Clone(p.Parameters)
	if next.Parameters == nil {
		next.Parameters = map[string]string{}
	}
	for name, value := range change {
		if value == nil {
			delete(next.Parameters, name)
		} else {
			next.Parameters[name] = *value
		}
	}
	if err := checkParameters(p.Parameters, next.Parameters); err != nil {
		return giveUp(err)
	}
	r.Step(0, "the servers check the parameters")
	for _, uid := range l.a.live.Snapshot().ShardsOfProfile(p) {
		if err := l.checkByServer(ctx, uid, next.Parameters); err != nil {
			return err
		}
	}
	if maps.Equal(next.Parameters, p.Parameters) {
		return nil
	}
	_, err := catalog.PutProfile(ctx, l.a.cfg.Store, l.a.cfg.Cluster, next, p.ModRev)
	return err
}

var parameterName = regexp.MustCompile(`^[a-z_][a-z0-9_]*(\.[a-z_][a-z0-9_]*)?$`)

// neverLess are parameters of which a standby must not have less than its primary: that can be brought about for more,
// standbys first, and not for less.
var neverLess = []string{
	"max_connections", "max_worker_processes", "max_wal_senders", "max_prepared_transactions", "max_locks_per_transaction",
}

// checkParameters checks what no server need be asked.
func checkParameters(before, after map[string]string) error {
	for name := range after {
		switch {
		case !parameterName.MatchString(name):
			return pgerr.New(pgerr.InvalidParameterValue, "invalid parameter name %q", name).
				WithHint("Names are as in pg_settings, in lower case.")
		case pgproc.Managed(name):
			return pgerr.New(pgerr.InvalidParameterValue, "parameter \"%s\" is neki's own", name).
				WithHint("Leave it out: the cluster depends on its value.")
		}
	}
	defaults := pgproc.DevSettings().With(pgproc.Settings{"max_worker_processes": "8", "max_locks_per_transaction": "64"})
	for _, name := range neverLess {
		was, errWas := strconv.Atoi(defaults.With(before)[name])
		will, errWill := strconv.Atoi(defaults.With(after)[name])
		if errWas == nil && errWill == nil && will < was {
			return pgerr.New(pgerr.InvalidParameterValue, "parameter \"%s\" can't be lowered from %d to %d", name, was, will).
				WithDetail("A standby must not have less than its primary.").
				WithHint("Make a profile with less, and a shard of that profile.")
		}
	}
	return nil
}

// checkByServer has one instance of a shard check the parameters; nil when none can at present.
func (l *leader) checkByServer(ctx context.Context, shard string, parameters map[string]string) error {
	for _, n := range l.a.live.Snapshot().NodesOf(shard) {
		err := l.configure(ctx, n, agent.ConfigureOrder{Parameters: parameters, Check: true}, nil)
		switch pgerr.Code(err) {
		case pgerr.InvalidParameterValue:
			return giveUp(err)
		default:
			if err == nil {
				return nil
			}
		}
	}
	return nil
}

// configure gives a configure order and the names of what needs a restart.
func (l *leader) configure(ctx context.Context, n *catalog.Node, o agent.ConfigureOrder, restart *[]string) error {
	rule, err := catalog.GetRule(ctx, l.a.cfg.Store, l.a.cfg.Cluster, n.Shard)
	if err != nil {
		return err
	}
	o.Order = l.a.order(l.epoch, rule.Term, n.Shard+"-configure")
	ctx, cancel := context.WithTimeout(ctx, actTimeout)
	defer cancel()
	result, err := l.a.client(n).Configure(ctx, o)
	if restart != nil {
		*restart = result.Restart
	}
	return err
}

// roll is the bringing into force of a profile on one shard, within a job.
type roll struct {
	job    catalog.Job
	report *Report
	shard  string
	at, of int // which of how many shards it is
	back   bool
}

// rollShard brings a shard's instances in line with its profile: replicas first, the primary last, each restarted where
// that is needed.
func (l *leader) rollShard(ctx context.Context, o *roll) error {
	release, err := o.report.HoldShard(ctx, o.shard)
	if err != nil {
		return err
	}
	defer release()
	doc, err := catalog.GetShard(ctx, l.a.cfg.Store, l.a.cfg.Cluster, o.shard)
	if err != nil {
		return err
	}
	profile, err := catalog.GetProfile(ctx, l.a.cfg.Store, l.a.cfg.Cluster, doc.Profile)
	if err != nil {
		return err
	}
	rule, err := catalog.GetRule(ctx, l.a.cfg.Store, l.a.cfg.Cluster, o.shard)
	if errors.Is(err, catalog.ErrNotFound) {
		return nil // it has no data yet, and gets the parameters with them
	}
	if err != nil {
		return err
	}
	nodes := slices.Clone(l.a.live.Snapshot().NodesOf(o.shard))
	slices.SortStableFunc(nodes, func(a, b *catalog.Node) int { return order(a.ID == rule.Leader) - order(b.ID == rule.Leader) })
	for i, n := range nodes {
		from, to := o.part(i, len(nodes)), o.part(i+1, len(nodes))
		if err := l.rollNode(ctx, o, n, profile.Parameters, from, to); err != nil {
			return err
		}
	}
	return nil
}

func order(last bool) int {
	if last {
		return 1
	}
	return 0
}

// part is the job's progress when i of n instances are done.
func (o *roll) part(i, n int) float64 {
	return (float64(o.at) + float64(i)/float64(n)) / float64(o.of)
}

func (l *leader) rollNode(ctx context.Context, o *roll, n *catalog.Node, parameters map[string]string, from, to float64) error {
	o.report.Step(from, "%s is configured", n.ID)
	var pending []string
	if err := l.configure(ctx, n, agent.ConfigureOrder{Parameters: parameters}, &pending); err != nil {
		return fmt.Errorf("node %s: %w", n.ID, err)
	}
	if n.Desired != "" && n.Desired != catalog.DesiredRun {
		return nil
	}
	memo := "pid " + n.ID
	if o.back {
		memo = "pid back " + n.ID
		if st, err := l.a.client(n).Status(ctx); err == nil && !st.Server.Up {
			pending = append(pending, "all")
		}
	}
	if len(pending) == 0 {
		return nil
	}
	return l.restart(ctx, &restart{job: o.job, report: o.report, shard: o.shard, node: n.ID, memo: memo, from: from, to: to})
}

// takeBack gives a profile that an instance did not start with its parameters of before.
func (l *leader) takeBack(ctx context.Context, j catalog.Job, r *Report, before map[string]string, shards []string) error {
	p, err := catalog.GetProfile(ctx, l.a.cfg.Store, l.a.cfg.Cluster, profileOf(&j))
	if err != nil {
		return err
	}
	p.Parameters = before
	if _, err := catalog.PutProfile(ctx, l.a.cfg.Store, l.a.cfg.Cluster, p, p.ModRev); err != nil {
		return err
	}
	for i, uid := range shards {
		if err := l.rollShard(ctx, &roll{job: j, report: r, shard: uid, at: i, of: len(shards), back: true}); err != nil {
			return err
		}
	}
	return nil
}

func profileOf(j *catalog.Job) string {
	var args ProfileChange
	_ = json.Unmarshal(j.Args, &args) // the handler has read it before
	return args.Profile
}

// assignProfile gives a shard another profile and rolls its parameters out.
func (l *leader) assignProfile(ctx context.Context, j catalog.Job, r *Report) error {
	var args ProfileChange
	if err := json.Unmarshal(j.Args, &args); err != nil {
		return giveUp(err)
	}
	p, err := l.profile(ctx, args.Profile)
	if err != nil {
		return err
	}
	doc, err := catalog.GetShard(ctx, l.a.cfg.Store, l.a.cfg.Cluster, j.Shard)
	if err != nil {
		return err
	}
	if doc.Profile != p.Name {
		var was map[string]string
		if old, err := catalog.GetProfile(ctx, l.a.cfg.Store, l.a.cfg.Cluster, doc.Profile); err == nil {
			was = old.Parameters
		}
		if err := checkParameters(was, p.Parameters); err != nil {
			return giveUp(err)
		}
		r.Step(0, "the servers check the parameters")
		if err := l.checkByServer(ctx, j.Shard, p.Parameters); err != nil {
			return err
		}
		if _, err := catalog.UpdateShard(ctx, l.a.cfg.Store, l.a.cfg.Cluster, j.Shard, func(s *catalog.Shard) error {
			s.Profile = p.Name
			return nil
		}); err != nil {
			return err
		}
	}
	if err := l.rollShard(ctx, &roll{job: j, report: r, shard: j.Shard, of: 1}); err != nil {
		return err
	}
	r.Step(1, "shard %s has profile %s", j.Shard, p.Name)
	return nil
}
