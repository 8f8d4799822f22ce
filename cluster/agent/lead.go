package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"neki/internal/pgerr"
)

// lead makes a primary's slots and synchronous standbys what the order says.
func (r *runner) lead(ctx context.Context, o LeadOrder) (Result, error) {
	conn, err := r.primary(ctx)
	if err != nil {
		return Result{}, err
	}
	did, err := ensureSlots(ctx, conn, o.Peers)
	if err != nil {
		return Result{}, err
	}
	names := StandbyNames(o.Standbys, o.Acks)
	if err := r.a.memory.changeMember(func(m *Member) {
		m.Peers, m.Led, m.Standbys, m.Acks = slices.Clone(o.Peers), true, slices.Clone(o.Standbys), o.Acks
	}); err != nil {
		return Result{}, err
	}
	changed, err := r.applyConf(ctx)
	if err != nil {
		return Result{}, err
	}
	if changed {
		did = append(did, "synchronous_standby_names = '"+names+"'")
		// Commits that wait already are released at the next message of a standby only: a local commit makes one.
		if _, err := conn.Exec(ctx, "SELECT pg_current_xact_id()"); err != nil {
			return Result{}, err
		}
	}
	if err := awaitStandbys(ctx, conn, o); err != nil {
		return Result{}, err
	}
	return Result{Done: did}, r.prove(ctx, o)
}

// prove commits once more, under the new demands: what was acknowledged before is then on those who are waited for now.
// With too few who stream there is nothing to wait for, and no proof.
func (r *runner) prove(ctx context.Context, o LeadOrder) error {
	if len(o.Standbys) < o.Acks {
		return nil
	}
	pid := r.a.pg.Running()
	ob := r.a.observer.look(ctx)
	streaming := 0
	for _, w := range ob.Acknowledgers {
		if w.Streaming && contains(o.Standbys, w.Node) {
			streaming++
		}
	}
	if streaming < o.Acks {
		return nil
	}
	if err := r.mark(ctx); err != nil {
		return err
	}
	r.a.inForce.Store(&inForce{pid: pid, standbys: slices.Clone(o.Standbys), acks: o.Acks})
	return nil
}

// awaitStandbys waits until every walsender has the new rule: they decide who is waited for, and what SHOW says
// comes before them.
func awaitStandbys(ctx context.Context, conn *pgx.Conn, o LeadOrder) error {
	ctx, cancel := context.WithTimeout(ctx, reloadTimeout)
	defer cancel()
	counted := slices.Concat([]string{}, o.Standbys)
	if o.Acks == 0 || len(o.Standbys) < o.Acks {
		counted = []string{} // NULL would compare as unknown
	}
	for {
		var lacking int
		err := conn.QueryRow(ctx, `SELECT count(*) FROM pg_stat_replication
			WHERE state = 'streaming' AND (sync_priority > 0) <> (application_name = ANY ($1))`, counted).Scan(&lacking)
		if err == nil && lacking == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d walsenders don't have the new synchronous_standby_names: %w", lacking, errors.Join(ctx.Err(), err))
		case <-time.After(standbyPoll):
		}
	}
}

// standbyPoll is how often awaitStandbys looks.
const standbyPoll = 2 * time.Millisecond

// primary gives the orders' connection if the instance is a running primary.
func (r *runner) primary(ctx context.Context) (*pgx.Conn, error) {
	conn, err := r.sql(ctx)
	if err != nil {
		return nil, err
	}
	var recovery bool
	if err := conn.QueryRow(ctx, "SELECT pg_is_in_recovery()").Scan(&recovery); err != nil {
		return nil, fmt.Errorf("ask the own server: %w", err)
	}
	if recovery {
		return nil, pgerr.New(pgerr.ObjectNotInPrerequisiteState, "node %s is a standby", r.a.cfg.Node)
	}
	return conn, nil
}

// ensureSlots makes a physical slot for each peer, one that keeps WAL from now on, and drops our slots that nobody
// needs or that have lost their WAL. A slot in use is never dropped.
func ensureSlots(ctx context.Context, conn *pgx.Conn, peers []string) ([]string, error) {
	rows, err := conn.Query(ctx, `SELECT slot_name, active, coalesce(wal_status, '') FROM pg_replication_slots
		WHERE slot_type = 'physical' AND slot_name LIKE 'neki\_%'`)
	if err != nil {
		return nil, err
	}
	type slot struct {
		Name   string
		Active bool
		Status string
	}
	have, err := pgx.CollectRows(rows, pgx.RowToStructByPos[slot])
	if err != nil {
		return nil, err
	}
	var did []string
	missing := make(map[string]bool)
	for _, p := range peers {
		missing[SlotName(p)] = true
	}
	for _, s := range have {
		if missing[s.Name] && (s.Active || s.Status != "lost") {
			delete(missing, s.Name)
			continue
		}
		if s.Active {
			continue
		}
		if _, err := conn.Exec(ctx, "SELECT pg_drop_replication_slot($1)", s.Name); err != nil {
			return did, err
		}
		did = append(did, "dropped slot "+s.Name)
	}
	for _, p := range peers {
		name := SlotName(p)
		if !missing[name] {
			continue
		}
		delete(missing, name)
		if _, err := conn.Exec(ctx, "SELECT pg_create_physical_replication_slot($1, true)", name); err != nil {
			return did, err
		}
		did = append(did, "created slot "+name)
	}
	return did, nil
}

// apply makes roles and stubs what the order says.
func (r *runner) apply(ctx context.Context, o ApplyOrder) (Result, error) {
	conn, err := r.primary(ctx)
	if err != nil {
		return Result{}, err
	}
	did, err := ensureRoles(ctx, conn, o.Roles)
	if err != nil || o.Stubs == nil {
		return Result{Done: did}, err
	}
	stubbed, err := r.ensureStubs(ctx, conn, *o.Stubs)
	return Result{Done: append(did, stubbed...)}, err
}

// ensureRewind lets the replication role read files, as pg_rewind does.
func ensureRewind(ctx context.Context, conn *pgx.Conn) error {
	for _, f := range []string{
		"pg_ls_dir(text,boolean,boolean)", "pg_stat_file(text,boolean)", "pg_read_binary_file(text)",
		"pg_read_binary_file(text,bigint,bigint,boolean)",
	} {
		var may bool
		err := conn.QueryRow(ctx, "SELECT has_function_privilege($1, $2, 'EXECUTE')", RoleReplication, "pg_catalog."+f).Scan(&may)
		if err != nil {
			return err
		}
		if may {
			continue
		}
		if _, err := conn.Exec(ctx, "GRANT EXECUTE ON FUNCTION pg_catalog."+f+" TO "+RoleReplication); err != nil {
			return err
		}
	}
	return nil
}

// ensureRoles creates what is missing and sets the attributes of the rest.
func ensureRoles(ctx context.Context, conn *pgx.Conn, specs []RoleSpec) ([]string, error) {
	var did []string
	for _, s := range specs {
		changed, err := ensureRole(ctx, conn, s)
		if err != nil {
			return did, fmt.Errorf("role %s: %w", s.Name, err)
		}
		if s.Name == RoleReplication {
			if err := ensureRewind(ctx, conn); err != nil {
				return did, fmt.Errorf("role %s: %w", s.Name, err)
			}
		}
		if changed {
			did = append(did, "role "+s.Name)
		}
	}
	return did, nil
}

func ensureRole(ctx context.Context, conn *pgx.Conn, s RoleSpec) (changed bool, err error) {
	name := pgx.Identifier{s.Name}.Sanitize()
	options := roleOptions(s)
	var same bool
	err = conn.QueryRow(ctx, `SELECT rolcanlogin = $2 AND rolsuper = $3 AND rolreplication = $4
			AND ($5 = '' OR coalesce(rolpassword = $5, false))
		FROM pg_authid WHERE rolname = $1`, s.Name, s.Login, s.Superuser, s.Replication, s.Verifier).Scan(&same)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		if _, err := conn.Exec(ctx, "CREATE ROLE "+name+options); err != nil {
			return false, err
		}
		changed = true
	case err != nil:
		return false, err
	case s.Keep:
		return false, nil
	case !same:
		if _, err := conn.Exec(ctx, "ALTER ROLE "+name+options); err != nil {
			return false, err
		}
		changed = true
	}
	granted, err := ensureGrants(ctx, conn, s, name)
	return changed || granted, err
}

// ensureGrants gives what is not given yet: a repeated GRANT would write the catalogs at every poll.
func ensureGrants(ctx context.Context, conn *pgx.Conn, s RoleSpec, name string) (changed bool, err error) {
	for _, group := range s.MemberOf {
		var member bool
		if err := conn.QueryRow(ctx, "SELECT pg_has_role($1, $2, 'MEMBER')", s.Name, group).Scan(&member); err != nil {
			return changed, err
		}
		if member {
			continue
		}
		if _, err := conn.Exec(ctx, "GRANT "+pgx.Identifier{group}.Sanitize()+" TO "+name); err != nil {
			return changed, err
		}
		changed = true
	}
	if !s.ReadVerifiers {
		return changed, nil
	}
	var readable bool
	err = conn.QueryRow(ctx, "SELECT has_table_privilege($1, 'pg_catalog.pg_authid', 'SELECT')", s.Name).Scan(&readable)
	if err != nil || readable {
		return changed, err
	}
	_, err = conn.Exec(ctx, "GRANT SELECT ON pg_catalog.pg_authid TO "+name)
	return true, err
}

func roleOptions(s RoleSpec) string {
	var b strings.Builder
	for _, o := range []struct {
		on   bool
		word string
	}{{s.Login, "LOGIN"}, {s.Superuser, "SUPERUSER"}, {s.Replication, "REPLICATION"}} {
		b.WriteByte(' ')
		if !o.on {
			b.WriteString("NO")
		}
		b.WriteString(o.word)
	}
	if s.Verifier != "" {
		b.WriteString(" PASSWORD '" + strings.ReplaceAll(s.Verifier, "'", "''") + "'")
	}
	return b.String()
}

func contains(list []string, s string) bool { return slices.Contains(list, s) }

func equal(a, b []string) bool { return slices.Equal(a, b) }
