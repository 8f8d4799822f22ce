package agent

import (
	"context"
	"fmt"
	"hash/fnv"
	"path/filepath"
	"strings"
	"time"

	"neki/catalog"
	"neki/cluster/decide"
	"neki/cluster/pgproc"
)

// settings are all parameters that the agent writes: defaults, the profile's, and, above all, those that replication
// and takeover need.
func (a *Agent) settings() pgproc.Settings {
	p, m := a.memory.get()
	s := pgproc.DevSettings()
	if a.cfg.Role == catalog.RoleRdonly { // long reports rather than fresh data
		s["max_standby_streaming_delay"] = "30s"
	}
	s = s.With(a.cfg.Settings).With(a.archiveSettings()).With(m.Parameters).With(a.tlsSettings())
	s["cluster_name"] = a.cfg.Node
	s["primary_conninfo"], s["primary_slot_name"], s["restore_command"] = "", "", ""
	if m.Source != nil && decide.Sources(p, m.Term) {
		s["primary_conninfo"] = a.replicationDSN(*m.Source)
		s["primary_slot_name"] = SlotName(a.cfg.Node)
		if command := a.restoreCommand(); m.Archive && command != "" { // members that acknowledge never: it holds up a takeover
			s["restore_command"] = command
		}
	}
	if a.quick.Load() && s["restore_command"] == "" {
		s["wal_retrieve_retry_interval"] = quickRetry
	}
	s["synchronous_standby_names"] = pgproc.FencedStandbys
	if p.ResignedTerm != 0 && p.ResignedTerm == p.OwnTerm && p.RevokedBelowTerm <= p.OwnTerm {
		// What begins now is refused rather than left hanging in its commit; gateways take it to the next primary.
		s["default_transaction_read_only"] = "on"
		if a.draining.Load() {
			p.ResignedTerm = 0
		}
	}
	if names, acks, ok := decide.Demands(p, m.Led, m.Standbys, m.Acks, a.selfFenced.Load() != 0); ok {
		s["synchronous_standby_names"] = StandbyNames(names, acks)
	}
	return s
}

// quickRetry is the rest between two attempts of a standby to get at log while the leader changes. A receiver that streams from
// the chosen leader before it is promoted ends with the promotion, and the startup process then sits out what is left of the
// interval: the first commit of the new term would wait for that. It is not for always, as each attempt costs a process and a
// line in the server's log when the source is down.
const quickRetry = "5ms"

// quickFor is how long a change of the source lasts.
const quickFor = 5 * time.Second

// hurry has the next configuration make the standby try often for a while.
func (r *runner) hurry() {
	r.a.quick.Store(true)
	r.calm = time.After(quickFor)
}

// calmDown takes the standby's haste back. Without a source there is nothing that it could cost.
func (r *runner) calmDown(ctx context.Context) {
	if _, m := r.a.memory.get(); m.Source == nil && r.a.pg.IsStandby() {
		r.calm = time.After(quickFor)
		return
	}
	r.calm = nil
	r.a.quick.Store(false)
	if r.a.pg.Running() == 0 {
		return
	}
	if err := r.reconfigureSoon(ctx); err != nil {
		r.complain("the standby goes on trying often", err)
	}
}

// replicationDSN is libpq's: the password is in a file, so that pg_settings doesn't show it.
func (a *Agent) replicationDSN(from Source) string {
	return fmt.Sprintf("host=%s port=%d user=%s application_name=%s passfile=%s connect_timeout=2 keepalives_idle=2 "+
		"keepalives_interval=1 keepalives_count=2 tcp_user_timeout=4000 %s gssencmode=disable",
		from.Host, from.Port, RoleReplication, a.cfg.Node, quoteConninfo(a.passfile()), a.sslMode())
}

func (a *Agent) passfile() string { return filepath.Join(a.pg.SocketDir(), "pgpass") }

func quoteConninfo(v string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(v) + "'"
}

// maxName is the longest name of a slot.
const maxName = 63

// SlotName is the physical slot that the node streams through, on whichever instance it follows. A slot's name has
// lower-case letters, digits and underscores only; an id that doesn't fit is hashed.
func SlotName(node string) string {
	plain := strings.IndexFunc(node, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-'
	}) < 0
	if name := "neki_" + strings.ReplaceAll(node, "-", "_"); plain && len(name) <= maxName {
		return name
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(node)) // a hash never fails
	return fmt.Sprintf("neki_h_%016x", h.Sum64())
}

// StandbyNames writes synchronous_standby_names: acks of the nodes must have flushed a commit. With acks 0 commits are
// asynchronous; with fewer nodes than acks none is acknowledged.
func StandbyNames(nodes []string, acks int) string {
	if acks == 0 {
		return ""
	}
	if len(nodes) < acks {
		return pgproc.FencedStandbys
	}
	quoted := make([]string, len(nodes))
	for i, n := range nodes {
		quoted[i] = `"` + strings.ReplaceAll(n, `"`, `""`) + `"`
	}
	return fmt.Sprintf("ANY %d (%s)", acks, strings.Join(quoted, ","))
}

// hba lets clients in, unless this is a primary that none may use: one whose barrier is not acknowledged, or that resigned
// or fenced itself. Other members come in all the same.
func (a *Agent) hba() []pgproc.HBARule {
	p, m := a.memory.get()
	// What it resigned from is over once it has promised a later term: it is a standby then.
	resigned := p.ResignedTerm != 0 && p.ResignedTerm == p.OwnTerm && p.RevokedBelowTerm <= p.OwnTerm
	if !m.Closed && !resigned && a.selfFenced.Load() == 0 {
		return a.onlyTLS(pgproc.DefaultHBA(RoleReplication))
	}
	return a.onlyTLS(pgproc.ClosedHBA(RoleReplication))
}

// writeConf brings the server's files in line with what the agent remembers.
func (a *Agent) writeConf() error {
	if _, err := a.pg.WriteHBA(a.hba()); err != nil {
		return err
	}
	_, err := a.pg.WriteSettings(a.settings())
	return err
}
