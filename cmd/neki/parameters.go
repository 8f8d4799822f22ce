package main

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"time"

	adminsql "neki/admin_sql"
	"neki/catalog"
	"neki/internal/pgerr"
	"neki/settings"
)

// parameters are those of the file, below those that were set by SQL, which are in the catalog. It is safe for
// concurrent use.
type parameters struct {
	store   catalog.Store
	cluster string
	gateway string // whose group's parameters come before those of all gateways
	live    *catalog.Live
	log     *slog.Logger

	mu    sync.Mutex
	file  map[string]string // never changed, only replaced
	cell  string            // of the file
	value settings.Parameters
	wrong string                    // why what the catalog has is not in force; "" = it is
	apply func(settings.Parameters) // nil until follow
	move  func(cell string)         // the same
}

// Scopes of parameters that are no profile's.
const (
	scopeGateway = "gateway"
	scopeAdmin   = "admin"
)

// Bounds of waits for the catalog in a statement of a client.
const (
	catalogWait = 3 * time.Second // for its answer
	setVisible  = 3 * time.Second // for the effect of a write to be seen here
)

func newParameters(cfg gatewayConfig) (*parameters, error) {
	p := &parameters{store: cfg.Store, cluster: cfg.Cluster, gateway: cfg.ID, live: cfg.Live, log: cfg.Log, file: cfg.Parameters, cell: cfg.Cell}
	var err error
	p.value, err = merge(p.file, nil, p.gateway)
	return p, err
}

// merge puts the parameters of a snapshot over those of the file, and those of the gateway's group over both.
func merge(file map[string]string, snap *catalog.Snapshot, gateway string) (settings.Parameters, error) {
	var pairs []settings.Pair
	for name, value := range file {
		pairs = append(pairs, settings.Pair{Name: name, Value: value})
	}
	if snap != nil {
		for _, scope := range []string{scopeGateway, scopeAdmin} {
			for name, value := range snap.ParametersOf(scope) {
				pairs = append(pairs, settings.Pair{Name: name, Value: value})
			}
		}
		if g := snap.GroupOfGateway(gateway); g != nil {
			for name, value := range g.Parameters {
				pairs = append(pairs, settings.Pair{Name: name, Value: value})
			}
		}
	}
	return settings.DefaultParameters().SetAll(pairs)
}

// now gives the parameters in force.
func (p *parameters) now() settings.Parameters {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.value
}

// follow keeps apply and move informed until ctx ends.
func (p *parameters) follow(ctx context.Context, apply func(settings.Parameters), move func(cell string)) {
	p.mu.Lock()
	p.apply, p.move = apply, move
	apply(p.value)
	p.mu.Unlock()
	for {
		changed := p.live.Changed()
		p.sync()
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// sync puts in force what file and catalog say. Where they don't fit together the last good ones stay.
func (p *parameters) sync() {
	p.mu.Lock()
	defer p.mu.Unlock()
	snap := p.live.Snapshot()
	if p.move != nil && snap != nil {
		p.move(snap.CellOfGateway(p.gateway, p.cell))
	}
	value, err := merge(p.file, snap, p.gateway)
	if err != nil {
		if p.wrong != err.Error() {
			p.wrong = err.Error()
			p.log.Warn("parameters in the catalog don't fit; the last good ones stay in force", "error", err)
		}
		return
	}
	p.wrong = ""
	if value != p.value && p.apply != nil {
		p.apply(value)
	}
	p.value = value
}

// setFile takes other parameters from the file.
func (p *parameters) setFile(values map[string]string) error {
	if _, err := merge(values, nil, p.gateway); err != nil {
		return err
	}
	p.mu.Lock()
	p.file = maps.Clone(values)
	p.mu.Unlock()
	p.sync()
	return nil
}

// Parameters lists all, with where each value comes from.
func (p *parameters) Parameters(context.Context) ([]adminsql.ParameterRow, error) {
	snap := p.live.Snapshot()
	p.mu.Lock()
	value, file := p.value, p.file
	p.mu.Unlock()
	rows := make([]adminsql.ParameterRow, 0, len(settings.ParameterTable()))
	for _, t := range settings.ParameterTable() {
		source, text := "default", t.Format(value)
		if _, ok := file[t.Name]; ok {
			source = "file"
		}
		if own, ok := ofLeader(snap)[t.Name]; ok && own != t.Format(settings.DefaultParameters()) {
			source, text = "file", own
		}
		if _, ok := snap.Parameter(t.Scope, t.Name); ok {
			source, text = "sql", t.Format(value)
		}
		if group := snap.GroupOfGateway(p.gateway); group != nil {
			if _, ok := group.Parameters[t.Name]; ok {
				source = "group"
			}
		}
		rows = append(rows, adminsql.ParameterRow{
			Scope: t.Scope, Name: t.Name, Value: text, Default: t.Default, Type: t.Type, Source: source,
			Text: t.Description,
		})
	}
	for i := range snap.Profiles {
		profile := &snap.Profiles[i]
		for name, v := range profile.Parameters {
			rows = append(rows, adminsql.ParameterRow{
				Scope: profile.Name, Name: name, Value: v, Source: "sql", Text: "Postgres parameter of the profile's instances",
			})
		}
	}
	return rows, nil
}

// ofLeader gives the parameters that the leading admin's configuration sets.
func ofLeader(snap *catalog.Snapshot) map[string]string {
	for i := range snap.Admins {
		if a := &snap.Admins[i]; a.Leader {
			return a.Parameters
		}
	}
	return nil
}

// SetParameter changes a parameter for the whole cluster and returns when it is in force here.
func (p *parameters) SetParameter(ctx context.Context, scope, name, value string) error {
	snap := p.live.Snapshot()
	if scope != scopeGateway && scope != scopeAdmin {
		if snap.Profile(scope) != nil && scope != "" {
			return pgerr.New(pgerr.InvalidParameterValue, "%q is a profile: its parameters are rolled out instance by instance", scope).
				WithHint("CALL neki.alter_profile(profile, parameters => '{\"name\": \"value\"}') does that. Allowed here are gateway and admin.")
		}
		return pgerr.New(pgerr.InvalidParameterValue, "unknown scope %q", scope).WithHint("Allowed are gateway and admin.")
	}
	current, err := merge(p.fileNow(), snap, p.gateway)
	if err != nil {
		current = p.now()
	}
	if _, err := current.Set(name, value); err != nil {
		return err
	}
	row, _ := settings.FindParameter(name) // Set has found it
	if row.Scope != scope {
		return pgerr.New(pgerr.InvalidParameterValue, "parameter %q is not one of scope %q", row.Name, scope).
			WithHint("Its scope is %q.", row.Scope)
	}
	writing, cancel := context.WithTimeout(ctx, catalogWait)
	defer cancel()
	rev, err := catalog.PutParameter(writing, p.store, p.cluster, scope, row.Name, value)
	if err != nil {
		return unavailable(err)
	}
	if !seenRevision(ctx, p.live, rev) {
		return pgerr.New(pgerr.ObjectNotInPrerequisiteState, "the parameter is set, but this gateway has not seen it yet").
			WithHint("It comes into force when the gateway reaches the catalog again.")
	}
	p.sync()
	return nil
}

func (p *parameters) fileNow() map[string]string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.file
}

// seenRevision waits for a write of the catalog to be in the snapshot; false when that takes too long.
func seenRevision(ctx context.Context, live *catalog.Live, rev int64) bool {
	ctx, cancel := context.WithTimeout(ctx, setVisible)
	defer cancel()
	for {
		changed := live.Changed()
		if live.Snapshot().Revision >= rev {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// events are those in the catalog.
type events struct {
	store   catalog.Store
	cluster string
}

// eventLimit bounds what neki.events asks of the catalog.
const eventLimit = 1000

// Events lists the newest events, newest first.
func (e events) Events(ctx context.Context) ([]catalog.Event, error) {
	ctx, cancel := context.WithTimeout(ctx, catalogWait)
	defer cancel()
	list, err := catalog.ListEvents(ctx, e.store, e.cluster, eventLimit)
	return list, unavailable(err)
}

// Record adds an event.
func (e events) Record(ctx context.Context, event catalog.Event) error {
	ctx, cancel := context.WithTimeout(ctx, catalogWait)
	defer cancel()
	_, err := catalog.AppendEvent(ctx, e.store, e.cluster, event)
	return unavailable(err)
}

// unavailable says to a client that the catalog does not answer.
func unavailable(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*pgerr.Error](err); ok {
		return err
	}
	return pgerr.New(pgerr.ObjectNotInPrerequisiteState, "the catalog does not answer: %w", err).
		WithHint("Statements on shards and the other relations of schema neki work without it.")
}
