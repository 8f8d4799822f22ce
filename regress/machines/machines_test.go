package machines

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Waits are long: what is asserted is that things come, not when.
const (
	whole  = 3 * time.Minute
	outage = 60 * time.Second
)

const topology = `{
  "authoritative_shard_group": "meta", "default_shard_group": "meta",
  "shard_groups": [{"uid": "meta", "key_ranges": [{"shard_uid": "sh1"}]},
    {"uid": "both", "default_shard_index": "by_id", "key_ranges": [{"shard_uid": "sh1", "end": "80"}, {"shard_uid": "sh2", "start": "80"}]}],
  "shard_indexes": {"by_id": {"type": "xxhash", "columns": ["id"]}},
  "databases": {"postgres": {"schemas": {"public": {"tables": {"acked": {"shard_group": "both"}}}}}}
}`

// TestThreeMachines installs a cluster by docs/install.md, kills a whole machine under load, and has it come back. Then it
// upgrades the machines one by one, as the guide says.
func TestThreeMachines(t *testing.T) {
	s := newSite(t, "m1", "m2", "m3")
	last := s.install(guide(t))

	clients := startTraffic(t, 0, 0, s.dsn(0, 1), s.dsn(1, 0), s.dsn(0, 1), s.dsn(1, 0))
	defer clients.end()
	s.killAndReturn(clients)
	clients.end()
	t.Logf("%d rows acknowledged, %d errors", clients.count(), len(clients.errors))
	for _, err := range clients.errors[:min(4, len(clients.errors))] {
		t.Log("  ", err)
	}
	s.check(clients.acked)
	s.upgrade(last)
}

// install does what the guide says on machines that are off, makes the clients' table, and gives the block that upgrades a
// machine.
func (s *site) install(blocks []block) (last block) {
	t := s.t
	for _, m := range s.machines {
		s.on(m)
	}
	began := time.Now()
	for _, b := range blocks[1:] { // the first one names the machine
		switch {
		case strings.Contains(b.text, "neki status"):
			s.await(whole, "whole cluster", s.whole)
			t.Logf("a whole cluster after %v", time.Since(began).Round(time.Second))
			if out := s.follow(b); strings.Count(out, "serving") != 6 || strings.Count(out, "gw-m") != 2 {
				t.Fatalf("the check of the guide shows\n%s", out)
			}
		case strings.HasSuffix(b.where, "one after the other"):
			last = b
		default:
			s.follow(b)
		}
	}
	s.exec(`CALL neki.set_topology($1, 0)`, topology)
	s.exec(`CREATE TABLE acked (id int8 PRIMARY KEY)`)
	return last
}

// killAndReturn cuts the power of the machine where all comes together: the leading admin, a gateway and both primaries.
func (s *site) killAndReturn(clients *traffic) {
	t := s.t
	var leader string
	s.await(outage, "leading admin", func() error { return s.scan(&leader, `SELECT admin FROM neki.admins WHERE leader`) })
	victim, other := s.machines[0], s.machines[1]
	if leader != "adm-"+victim.name {
		victim, other = other, victim
	}
	for _, shard := range []string{"sh1", "sh2"} {
		var primary string
		s.must(s.scan(&primary, `SELECT primary_node FROM neki.shards WHERE shard = $1`, shard))
		if node := shard + "-" + victim.name; primary != node {
			s.exec(`CALL neki.switchover($1, $2)`, shard, node)
		}
	}
	s.await(outage, "traffic", func() error { return atLeast(clients.count(), 100) })
	clients.mu.Lock()
	clients.gap = 0
	clients.mu.Unlock()
	before := clients.count()
	t.Logf("%s loses its power with %d rows acknowledged", victim.name, before)
	s.off(victim)
	// Both shards take rows again, by the other gateway.
	for _, shard := range []string{"sh1", "sh2"} {
		s.await(outage, "primary of "+shard, func() error {
			var primary string
			err := s.scanVia(other, &primary, `SELECT primary_node FROM neki.shards WHERE shard = $1 AND ready`, shard)
			if err == nil && strings.HasSuffix(primary, victim.name) {
				err = errors.New("it is still " + primary)
			}
			return err
		})
	}
	first := clients.count()
	s.await(outage, "traffic without "+victim.name, func() error { return atLeast(clients.count(), first+200) })
	clients.mu.Lock()
	gap := clients.gap
	clients.mu.Unlock()
	t.Logf("traffic stood for %v", gap.Round(10*time.Millisecond))

	began := time.Now()
	s.on(victim)
	s.await(whole, "whole cluster with "+victim.name, s.whole)
	t.Logf("%s is back, and all is whole, after %v", victim.name, time.Since(began).Round(time.Second))
}

func atLeast(have, want int) error {
	if have < want {
		return fmt.Errorf("only %d rows acknowledged, not %d", have, want)
	}
	return nil
}

// check looks for every acknowledged row, through the gateway and on every instance by itself.
func (s *site) check(acked []int64) {
	s.t.Helper()
	var missing int
	s.must(s.scan(&missing, `SELECT count(*) FROM unnest($1::int8[]) AS a WHERE a NOT IN (SELECT id FROM acked)`, acked))
	if missing != 0 {
		s.t.Fatalf("%d acknowledged rows are missing", missing)
	}
	for _, shard := range []string{"sh1", "sh2"} {
		s.await(outage, "equal instances of "+shard, func() error {
			sums := map[string]bool{}
			for _, m := range s.machines {
				out, err := s.sh(m, "setpriv --reuid postgres --regid postgres --clear-groups psql -X -qAt -h /var/lib/neki/"+shard+"/run -p "+
					map[string]string{"sh1": "5501", "sh2": "5502"}[shard]+" -U postgres -c 'SELECT count(*), sum(id) FROM acked'")
				if err != nil {
					return fmt.Errorf("%w: %s", err, out)
				}
				sums[out] = true
			}
			if len(sums) != 1 {
				return fmt.Errorf("they differ: %v", sums)
			}
			return nil
		})
	}
}

// upgrade runs the last block of the guide, one machine after the other, under clients whose connections live shorter than
// gateways wait for them: none of them sees an error.
func (s *site) upgrade(b block) {
	clients := startTraffic(s.t, 500*time.Millisecond, 1_000_000_000, s.dsn(0, 1), s.dsn(1, 0))
	defer clients.end()
	for _, m := range s.machines {
		s.await(outage, "traffic", func() error { return atLeast(clients.count(), 100) })
		if out, err := s.sh(m, b.text); err != nil {
			s.t.Fatalf("%s: %v\n%s", m.name, err, out)
		}
		s.await(whole, "whole cluster after the upgrade of "+m.name, s.whole)
		now := clients.count()
		s.await(outage, "traffic after the upgrade of "+m.name, func() error { return atLeast(clients.count(), now+50) })
	}
	clients.end()
	s.t.Logf("upgraded under %d rows, %d errors", clients.count(), len(clients.errors))
	for _, err := range clients.errors {
		s.t.Error(err)
	}
	s.check(clients.acked)
}

// dsn is a connection string with the gateways of these machines, in this order.
func (s *site) dsn(order ...int) string {
	var hosts []string
	for _, i := range order {
		hosts = append(hosts, s.machines[i].address)
	}
	password, err := os.ReadFile(filepath.Join(s.machines[0].root, "etc/neki/admin.password"))
	s.must(err)
	return fmt.Sprintf("host=%s port=5432 user=admin password=%s dbname=postgres sslmode=verify-full sslrootcert=%s target_session_attrs=any connect_timeout=3",
		strings.Join(hosts, ","), strings.TrimSpace(string(password)), filepath.Join(s.machines[0].root, "etc/neki/tls/ca.crt"))
}

// whole tells what the cluster lacks, as a gateway sees it.
func (s *site) whole() error {
	for _, f := range []struct {
		query string
		want  int
	}{
		{`SELECT count(*) FROM neki.nodes WHERE state = 'serving'`, 6},
		{`SELECT count(*) FROM neki.nodes WHERE state = 'serving' AND role = 'primary'`, 2},
		{`SELECT count(*) FROM neki.replicas WHERE eligible`, 4},
		{`SELECT count(*) FROM neki.gateways WHERE clients IS NOT NULL`, 2},
		{`SELECT count(*) FROM neki.admins`, 2},
		{`SELECT count(*) FROM neki.shards WHERE ready`, 2},
	} {
		var have int
		if err := s.scan(&have, f.query); err != nil {
			return err
		}
		if have != f.want {
			return fmt.Errorf("%s gives %d, not %d", f.query, have, f.want)
		}
	}
	return nil
}

func (s *site) scan(into any, sql string, args ...any) error {
	return s.query(s.dsn(0, 1), into, sql, args...)
}

func (s *site) scanVia(m *machine, into any, sql string, args ...any) error {
	for i := range s.machines {
		if s.machines[i] == m {
			return s.query(s.dsn(i), into, sql, args...)
		}
	}
	return errors.New("no such machine")
}

func (s *site) query(dsn string, into any, sql string, args ...any) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	return conn.QueryRow(ctx, sql, args...).Scan(into)
}

// exec runs a statement that takes its time.
func (s *site) exec(sql string, args ...any) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), shLimit)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.dsn(0, 1))
	s.must(err)
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, sql, args...); err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
}
