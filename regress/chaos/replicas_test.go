package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"neki/cluster/agent"
)

// operationLimit is how long an operation may take that is interrupted by kills.
const operationLimit = 3 * time.Minute

// phases of a replica that is made: each begins when it holds.
var phases = []struct {
	name string
	is   func(*agent.Status) bool
}{
	{"asked", func(*agent.Status) bool { return true }},
	{"restoring", func(st *agent.Status) bool { return st.Work != nil && st.Work.Done > 0 }},
	{"restored", func(st *agent.Status) bool { return !st.Empty && st.Member.Archive }},
	{"up", func(st *agent.Status) bool { return st.Server.Up }},
	{"streaming", func(st *agent.Status) bool { return st.Server.Streaming }},
}

// query gives the one value of a query through the gateway, tried until it is answered.
func query[T any](c *cluster, sql string, args ...any) T {
	c.t.Helper()
	var v T
	c.must(failoverLimit, sql, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), stmtLimit)
		defer cancel()
		conn, err := c.connect(ctx)
		if err != nil {
			return err
		}
		defer conn.Close(ctx) //nolint:errcheck // the query's error counts
		return conn.QueryRow(ctx, sql, args...).Scan(&v)
	})
	return v
}

// operate asks for an operation and gives its id.
func (c *cluster) operate(call string) string {
	c.t.Helper()
	return query[string](c, "CALL neki."+strings.TrimSuffix(call, ")")+", wait => false)")
}

// ended waits until an operation has ended, and wants it done.
func (c *cluster) ended(id string) {
	c.t.Helper()
	c.must(operationLimit, "the end of operation "+id, func() error {
		state := query[string](c, "SELECT state || ' ' || coalesce(step, '') || coalesce(error, '') FROM neki.operations WHERE id = $1", id)
		switch word, _, _ := strings.Cut(state, " "); word {
		case "done":
			return nil
		case "failed", "cancelled":
			c.t.Fatalf("operation %s: %s", id, state)
		}
		return errors.New(state)
	})
}

// spare starts one more agent of the shard, in a cell of its own. Being empty it joins by itself.
func (c *cluster) spare(id string) *node {
	c.t.Helper()
	if err := c.addNode(shard, id, nil); err != nil {
		c.t.Fatal(err)
	}
	n := c.node(id)
	conf := c.conf(id + ".yaml")
	text, err := os.ReadFile(conf)
	if err == nil {
		err = os.WriteFile(conf, append(text, "cell: of-"+id+"\n"...), 0o600)
	}
	if err := errors.Join(err, c.linkNodes()); err != nil {
		c.t.Fatal(err)
	}
	c.startAgent(n)
	return n
}

// kills is how many there are: 20, or as many as NEKI_KILLS says.
func kills(t *testing.T) int {
	t.Helper()
	n, err := strconv.Atoi(os.Getenv("NEKI_KILLS"))
	if os.Getenv("NEKI_KILLS") == "" {
		return 20
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// killLeadingAdmin kills it as kill -9 does, and starts it again.
func (c *cluster) killLeadingAdmin() {
	c.t.Helper()
	name := query[string](c, "SELECT admin FROM neki.admins WHERE leader")
	i := slices.IndexFunc(c.admins, func(p *program) bool { return p.name == name })
	if i < 0 {
		c.t.Fatalf("no admin %q", name)
	}
	c.kill(c.admins[i])
}

func (c *cluster) kill(p *program) {
	c.t.Helper()
	if err := p.end(syscall.SIGKILL); err != nil {
		c.t.Fatal(err)
	}
	if err := c.starter.start(p); err != nil {
		c.t.Fatal(err)
	}
}

// awaitPhase waits until a node is in a phase of an operation; false when that ended before.
func (c *cluster) awaitPhase(n *node, id string, is func(*agent.Status) bool) (came bool) {
	c.t.Helper()
	for end := time.Now().Add(operationLimit); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if st, err := c.status(n); err == nil && is(&st) {
			return true
		}
		if state := query[string](c, "SELECT state FROM neki.operations WHERE id = $1", id); state != "pending" && state != "running" {
			return false
		}
	}
	c.t.Fatalf("operation %s does not end", id)
	return false
}

// A replica is added again and again while clients write, and each time its agent or the leading admin is killed with kill -9, in
// each phase. Each operation ends in one replica more that serves and acknowledges, with nothing left over; the primary and its
// term stay, and what was acknowledged is there. The same holds where a replica is restored.
func TestAddReplicaKilled(t *testing.T) {
	long(t)
	c := newClusterWith(t, 1, true)
	t.Cleanup(func() {
		if t.Failed() {
			c.dump()
		}
		if err := c.end(); err != nil {
			t.Error(err)
		}
	})
	w := insertsOf(c)
	c.exec("CREATE TABLE bulk AS SELECT i, repeat(md5(i::text), 28) AS pad FROM generate_series(1, 60000) AS i")
	c.ended(c.operate("backup('" + shard + "')"))
	var spares []*node
	for _, id := range []string{"sh1-d", "sh1-e", "sh1-f"} { // one that left is taken in again after half a minute at the soonest
		spares = append(spares, c.spare(id))
	}
	c.mustBeWhole()
	for _, n := range spares { // its agent is free from then on
		c.ended(c.operate("remove_replica('" + n.id + "')"))
	}
	leader, term := c.leader(shard)
	done := 0
	for i := range kills(t) {
		n, phase := spares[i%len(spares)], phases[i/2%len(phases)]
		victim := "agent"
		id := c.operate(fmt.Sprintf("add_replica(shard => '%s', cell => 'of-%s')", shard, n.id))
		if came := c.awaitPhase(n, id, phase.is); !came {
			t.Logf("%d: the phase %s was over too soon", i, phase.name)
		} else if done++; i%2 == 0 {
			c.kill(n.agent)
		} else {
			victim = "admin"
			c.killLeadingAdmin()
		}
		c.ended(id)
		c.oneMore(n, leader, term)
		t.Logf("%d: %s killed, %s: %s", i, victim, phase.name, query[string](c, "SELECT step FROM neki.operations WHERE id = $1", id))
		if i%10 == 5 {
			c.restoreKilled(n)
			c.oneMore(n, leader, term)
		}
		c.ended(c.operate("remove_replica('" + n.id + "')"))
		if i%20 == 19 { // else what is replayed grows with the load's time
			c.ended(c.operate("backup('" + shard + "')"))
		}
	}
	if least := kills(t) * 3 / 4; done < least {
		t.Errorf("%d kills, at least %d were wanted", done, least)
	}
	for _, n := range spares {
		if err := n.agent.end(syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	}
	c.nodes = slices.DeleteFunc(c.nodes, func(n *node) bool { return slices.Contains(spares, n) })
	w.finish()
}

// restoreKilled has a replica's data made anew, and kills its agent in the midst of it.
func (c *cluster) restoreKilled(n *node) {
	c.t.Helper()
	id := c.operate("restore_replica('" + n.id + "')")
	if c.awaitPhase(n, id, func(st *agent.Status) bool { return st.Work != nil && st.Work.Done > 0 }) {
		c.kill(n.agent)
	}
	c.ended(id)
}

func (c *cluster) exec(sql string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := c.connect(ctx)
	if err != nil {
		c.t.Fatal(err)
	}
	defer conn.Close(ctx) //nolint:errcheck // the statement's error counts
	if _, err := conn.Exec(ctx, sql); err != nil {
		c.t.Fatalf("%s: %v", sql, err)
	}
}

// oneMore wants the shard to have one replica more than it began with, all of them serving, and nothing left over.
func (c *cluster) oneMore(n, leader *node, term int64) {
	c.t.Helper()
	c.must(failoverLimit, "one replica more", func() error {
		r, err := c.rule(shard)
		if err != nil {
			return err
		}
		if r.Term != term || r.Leader != leader.id || len(r.Cohort) != members+1 || !slices.Contains(r.Cohort, n.id) {
			return fmt.Errorf("rule %+v", r)
		}
		ctx, cancel := context.WithTimeout(context.Background(), stmtLimit)
		defer cancel()
		conn, err := leader.connect(ctx)
		if err != nil {
			return err
		}
		defer conn.Close(ctx) //nolint:errcheck // the query's error counts
		rows, err := conn.Query(ctx, "SELECT slot_name::text FROM pg_replication_slots ORDER BY 1")
		if err != nil {
			return err
		}
		slots, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil || len(slots) != members {
			return fmt.Errorf("slots %v, %w", slots, err)
		}
		if serving := query[int](c, "SELECT count(*) FROM neki.nodes WHERE state = 'serving'"); serving != members+1 {
			return fmt.Errorf("%d instances serve", serving)
		}
		left, err := filepath.Glob(n.data() + ".*")
		if err != nil || len(left) > 0 {
			return fmt.Errorf("left over: %v, %w", left, err)
		}
		return nil
	})
}
