package admin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"neki/catalog"
	"neki/cluster/agent"
	"neki/cluster/decide"
	"neki/settings"
)

// Times of a shard's loop.
const (
	askTimeout  = 2 * time.Second        // for an agent's status
	unsettled   = 250 * time.Millisecond // between looks while something is to do
	actTimeout  = 30 * time.Second       // of a short order
	fillTimeout = 5 * time.Minute        // of initdb and start
	soonest     = 10 * time.Millisecond  // between looks, however soon one is wanted
	copyTimeout = 24 * time.Hour         // of a base backup
)

// shardLoop looks after one shard. Its goroutine runs run; notice is called by the leader's.
type shardLoop struct {
	l     *leader
	uid   string
	wake  chan struct{}
	began time.Time
	seen  string // leader's goroutine: what the last Snapshot said of the shard

	appliedAt time.Time // run's goroutine
	appliedTo string
	problems  []string
	complaint string // the last error that was logged
	unlike    string // why it was not made like the other shards, as was told last

	watch decide.Watch // run's goroutine
	alarm string       // the kinds of problems of the last look

	ask      asker
	jobs     sync.WaitGroup
	mu       sync.Mutex
	busy     map[string]bool   // nodes with a long order under way
	out      map[string]bool   // nodes with any order under way
	refusals map[string]string // why the last order of a node that failed did
	up       map[string]bool   // members that answered at the last look
	fail     map[string]int    // copies of a node that failed in a row
}

func newShardLoop(l *leader, uid string) *shardLoop {
	return &shardLoop{
		l: l, uid: uid, wake: make(chan struct{}, 1), began: time.Now(), busy: map[string]bool{}, out: map[string]bool{}, refusals: map[string]string{},
		up: map[string]bool{}, fail: map[string]int{},
	}
}

// notice wakes the loop if the Snapshot says something new of the shard.
func (s *shardLoop) notice(snap *catalog.Snapshot) {
	if now := interest(snap, s.uid); now != s.seen {
		s.seen = now
		s.nudge()
	}
}

func (s *shardLoop) nudge() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// interest is a text that differs when there may be something to do.
func interest(snap *catalog.Snapshot, uid string) string {
	var b strings.Builder
	doc := snap.Shard(uid)
	poll, _ := snap.Parameter("admin", settings.DiscoveryPoll)
	fmt.Fprint(&b, doc.ModRev, poll)
	if r := snap.Rule(uid); r != nil {
		fmt.Fprint(&b, " ", r.ModRev)
	}
	for _, n := range snap.NodesOf(uid) {
		fmt.Fprint(&b, ";", n.ID, n.ModRev, n.Live)
		if h := snap.Health(n.ID); h != nil {
			fmt.Fprint(&b, h.State, h.Role, h.Streaming, h.SystemID, h.Timeline, h.Term)
		}
	}
	return b.String()
}

// run looks, acts, and waits, until ctx ends.
func (s *shardLoop) run(ctx context.Context) {
	defer s.jobs.Wait()
	s.jobs.Go(func() { s.followOperations(ctx) })
	for ctx.Err() == nil {
		pause := unsettled
		settled, soon, err := s.pass(ctx)
		s.complain(ctx, err)
		switch {
		case soon > 0:
			pause = max(soon, soonest)
		case settled:
			pause = s.l.tuned().DiscoveryPoll
		}
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-t.C:
		case <-s.wake:
		}
		t.Stop()
	}
}

// followOperations wakes the loop when somebody asks for an operation; without it that would be seen at the next poll.
func (s *shardLoop) followOperations(ctx context.Context) {
	store, key := s.l.a.cfg.Store, catalog.OpKey(s.l.a.cfg.Cluster, s.uid)
	for ctx.Err() == nil {
		if _, rev, err := store.List(ctx, key); err == nil {
			for _, err := range store.Watch(ctx, key, rev+1) {
				if err != nil {
					break
				}
				s.nudge()
			}
		}
		sleep(ctx, retryLead)
	}
}

// complain logs an error of a pass, once as long as it stays the same.
func (s *shardLoop) complain(ctx context.Context, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != s.complaint && ctx.Err() == nil {
		s.l.a.log.Warn("shard not looked after", "shard", s.uid, "error", err)
	}
	s.complaint = text
}

// pass looks once and acts. settled says that nothing is left to do, but for what an event will bring.
func (s *shardLoop) pass(ctx context.Context) (settled bool, soon time.Duration, err error) {
	v, err := s.look(ctx)
	if ctx.Err() != nil {
		return false, 0, ctx.Err()
	}
	if errors.Is(err, catalog.ErrNotFound) && s.l.a.live.Snapshot().Shard(s.uid) == nil { // it was dropped
		return true, 0, nil
	}
	if err != nil {
		s.report(nil, []string{err.Error()})
		return false, 0, err
	}
	decision := decide.Decide(v.shard)
	if phase := v.shard.Rule.Phase; v.shard.Doc.SystemID != "" && phase != "" && phase != decide.PhaseBootstrap {
		settled, err = s.carryOut(ctx, v, decision)
		for range mostSteps {
			if err != nil || !s.advance(v, decision) {
				break
			}
			decision = decide.Decide(v.shard)
			settled, err = s.carryOut(ctx, v, decision)
		}
		s.report(v, decision.Problems)
		s.alert(ctx, decision.Problems)
		s.jobs.Go(func() { s.notePresence(ctx, v) })
		return settled, decision.Soon, err
	}
	s.report(v, decision.Problems)
	s.notePresence(ctx, v)
	if v.shard.Doc.Maintenance {
		return true, 0, nil
	}
	settled, err = s.provision(ctx, v, decision)
	return settled, 0, err
}

// mostSteps bounds how often is decided with what one look has found.
const mostSteps = 3

// advance makes the view say what was just written, if the next step of a change of the leader follows from that alone.
func (s *shardLoop) advance(v *view, decision decide.Verdict) bool {
	if v.written == 0 {
		return false
	}
	last := decision.Actions[slices.IndexFunc(decision.Actions, func(a decide.Action) bool { return a.Kind == decide.Write })]
	rev := v.written
	v.written = 0
	if !decide.GoesOn(last) {
		return false
	}
	v.shard.Rule = *last.Rule
	v.shard.Rule.ModRev = rev
	s.watch.See(time.Since(s.began), &v.shard)
	return true
}

// provision does what makes a shard, one step after the other.
func (s *shardLoop) provision(ctx context.Context, v *view, decision decide.Verdict) (settled bool, err error) {
	settled = v.shard.Doc.Ready && len(s.busyNodes()) == 0 && len(decision.Problems) == 0
	for _, action := range decision.Actions {
		if action.Kind == decide.Apply && s.applied(action.Node) {
			continue
		}
		err := s.act(ctx, v, action)
		if err != nil && action.Kind == decide.Apply && v.shard.Doc.Ready {
			s.appliedAt, s.appliedTo = time.Now(), action.Node // at the next poll again
			s.l.a.log.Warn("roles and stubs are not as they should be", "shard", s.uid, "node", action.Node, "error", err)
			continue // what a user made in one database must not hold up repairs
		}
		if err != nil {
			return false, fmt.Errorf("%s: %w", action, err)
		}
		settled = settled && action.Kind == decide.Apply
		if action.Kind != decide.Apply {
			s.nudge()
		}
	}
	return settled, nil
}

// applied tells whether roles and stubs were looked at lately, there.
func (s *shardLoop) applied(node string) bool {
	return s.appliedTo == node && time.Since(s.appliedAt) < s.l.tuned().DiscoveryPoll*9/10
}

// view is what a look found.
type view struct {
	shard   decide.Shard
	nodes   map[string]*catalog.Node
	written int64 // the revision of a rule that was written since
}

// look reads the shard's documents, linearizably, and asks every member's agent.
func (s *shardLoop) look(outer context.Context) (*view, error) {
	ctx, cancel := context.WithTimeout(outer, actTimeout)
	defer cancel()
	a := s.l.a
	snap := a.live.Snapshot()
	nodes := snap.NodesOf(s.uid)
	members := make(chan []decide.Member, 1)
	s.jobs.Go(func() { members <- s.askAll(outer, nodes) })
	doc, rule, op, err := s.documents(ctx)
	asked := <-members
	if err != nil {
		return nil, err
	}
	if op != nil && op.Kind == catalog.OpSwitchover && op.Timeout == 0 {
		op.Timeout = a.cfg.tuned(snap).SwitchoverTimeout
	}
	v := &view{nodes: map[string]*catalog.Node{}}
	v.shard = decide.Shard{Doc: doc, Rule: rule, Op: op, Want: 1 + replicasOf(snap, doc.Profile), Members: asked, Timing: a.cfg.Timing}
	v.shard.Patient = time.Since(s.began) < a.cfg.Patience
	busy := s.busyNodes()
	for i, n := range nodes {
		v.nodes[n.ID] = n
		v.shard.Members[i].SilentBefore = silence(snap.Health(n.ID), time.Now())
		v.shard.Members[i].Busy = v.shard.Members[i].Busy || slices.Contains(busy, n.ID)
	}
	// That its agent keeps its lease says that others hear the leader, if this admin does not.
	if n := v.nodes[rule.Leader]; n != nil {
		v.shard.GatewaysReach = n.Live
	}
	s.watch.See(time.Since(s.began), &v.shard)
	return v, nil
}

// silence is how long the stream of an agent's health has brought nothing, once that counts.
func silence(h *catalog.NodeHealth, now time.Time) time.Duration {
	if h == nil || !h.Stale {
		return 0
	}
	return now.Sub(h.ReceivedAt)
}

// documents reads what the catalog has of the shard, all at once: in a change of the leader each round trip is an outage's.
func (s *shardLoop) documents(ctx context.Context) (doc catalog.Shard, rule catalog.Rule, op *catalog.Operation, err error) {
	store, cluster := s.l.a.cfg.Store, s.l.a.cfg.Cluster
	var reads errgroup.Group
	reads.Go(func() (err error) {
		doc, err = catalog.GetShard(ctx, store, cluster, s.uid)
		return err
	})
	reads.Go(func() (err error) {
		if rule, err = catalog.GetRule(ctx, store, cluster, s.uid); errors.Is(err, catalog.ErrNotFound) {
			err = nil
		}
		return err
	})
	reads.Go(func() error {
		o, err := catalog.GetOperation(ctx, store, cluster, s.uid)
		switch {
		case errors.Is(err, catalog.ErrNotFound):
			return nil
		case err == nil:
			op = &o
		}
		return err
	})
	return doc, rule, op, reads.Wait()
}

func replicasOf(snap *catalog.Snapshot, profile string) int {
	for i := range snap.Profiles {
		if snap.Profiles[i].Name == profile {
			return snap.Profiles[i].Replicas
		}
	}
	return 0
}

func addressOf(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }

func (s *shardLoop) busyNodes() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var nodes []string
	for n := range s.busy {
		nodes = append(nodes, n)
	}
	return nodes
}

func (s *shardLoop) setBusy(node string, on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if on {
		s.busy[node] = true
	} else {
		delete(s.busy, node)
	}
}

// notePresence records members that stopped or began to answer, those that are new aside.
func (s *shardLoop) notePresence(ctx context.Context, v *view) {
	for _, m := range v.shard.Members {
		if m.Known && m.Empty { // it has not been up yet
			continue
		}
		s.mu.Lock()
		before, known := s.up[m.ID]
		if gone := !m.Known || m.Exited || m.Hung; m.Up || gone { // else it is on its way, up or down
			s.up[m.ID] = m.Up
		}
		s.mu.Unlock()
		switch {
		case !known || before == m.Up || !m.Up && m.Known && !m.Exited && !m.Hung:
		case m.Up:
			s.l.a.record(ctx, catalog.Event{Kind: "up", Shard: s.uid, Node: m.ID, Detail: "answers again"})
		case m.Known:
			s.l.a.record(ctx, catalog.Event{Kind: "down", Shard: s.uid, Node: m.ID, Detail: "Postgres doesn't answer"})
		default:
			s.l.a.record(ctx, catalog.Event{Kind: "down", Shard: s.uid, Node: m.ID, Detail: "its agent doesn't answer"})
		}
	}
}

// failed counts a failed copy of a node and gives how long to wait before the next; success forgets them.
func (s *shardLoop) failed(node string) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail[node]++
	return min(time.Second<<min(s.fail[node]-1, 6), time.Minute)
}

func (s *shardLoop) succeeded(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.fail, node)
}

// report keeps what status shows, and logs problems that are new.
func (s *shardLoop) report(v *view, problems []string) {
	if !slices.Equal(problems, s.problems) && len(problems) > 0 {
		s.l.a.log.Info("shard is not whole", "shard", s.uid, "problems", problems)
	}
	s.problems = problems
	st := ShardStatus{UID: s.uid, Problems: problems, Busy: s.busyNodes()}
	if v != nil {
		st.Ready, st.Primary, st.Term = v.shard.Doc.Ready, v.shard.Doc.Primary, v.shard.Doc.Term
	}
	s.l.a.mu.Lock()
	defer s.l.a.mu.Unlock()
	s.l.a.shards[s.uid] = st
}

// orderOf heads an order for the shard.
func (s *shardLoop) orderOf(v *view, what string) agent.Order {
	o := s.l.a.order(s.l.epoch, v.shard.Doc.Term, s.uid+"-"+what)
	o.Sub = v.shard.Rule.Sub
	return o
}
