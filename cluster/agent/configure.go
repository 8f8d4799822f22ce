package agent

import (
	"context"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"neki/cluster/pgproc"
	"neki/internal/pgerr"
)

// ConfigureOrder says which Postgres parameters the instance's profile sets, all of them.
type ConfigureOrder struct {
	Order
	Parameters map[string]string `json:"parameters"`
	Check      bool              `json:"check,omitempty"` // look only whether the server would take them
}

// maxParameters bounds what is kept beside the promises.
const maxParameters = 8 << 10

// configure takes parameters of the profile. A server that is down has them when it starts.
func (r *runner) configure(ctx context.Context, o ConfigureOrder) (Result, error) {
	var done Result
	size := 0
	for name, value := range o.Parameters {
		size += len(name) + len(value)
		if pgproc.Managed(name) {
			return done, pgerr.New(pgerr.InvalidParameterValue, "parameter \"%s\" is neki's own", name).
				WithHint("Leave it out: the cluster depends on its value.")
		}
	}
	if size > maxParameters {
		return done, pgerr.New(pgerr.InvalidParameterValue, "the parameters of a profile are longer than %d bytes", maxParameters)
	}
	if r.a.pg.HasData() {
		if err := r.a.pg.CheckSettings(ctx, o.Parameters); err != nil {
			return done, err
		}
	}
	if o.Check {
		return done, nil
	}
	_, before := r.a.memory.get()
	if err := r.a.memory.changeMember(func(m *Member) { m.Parameters = o.Parameters }); err != nil {
		return done, err
	}
	if !r.a.pg.HasData() {
		return done, nil
	}
	if _, err := r.applyConf(ctx); err != nil {
		return done, err
	}
	if !maps.Equal(before.Parameters, o.Parameters) {
		done.Done = []string{"configured"}
	}
	if r.a.pg.Running() == 0 {
		return done, nil
	}
	var removed []string
	for name := range before.Parameters {
		if _, kept := o.Parameters[name]; !kept {
			removed = append(removed, name)
		}
	}
	var err error
	done.Restart, err = r.needRestart(ctx, removed)
	return done, err
}

// needRestart names the parameters that the running server does not have as the files say. The files are read for that:
// the server may not have done so yet.
func (r *runner) needRestart(ctx context.Context, removed []string) ([]string, error) {
	conn, err := r.a.connect(ctx, "postgres", orderSQLLimit)
	if err != nil {
		return nil, err
	}
	defer conn.Close(ctx) //nolint:errcheck // the query's error counts
	rows, err := conn.Query(ctx, `
SELECT name FROM pg_file_settings WHERE NOT applied AND error IS NOT NULL AND name IS NOT NULL
 UNION SELECT name FROM pg_settings WHERE pending_restart
    OR context = 'postmaster' AND name = ANY($1) AND source = 'configuration file' AND setting IS DISTINCT FROM boot_val`, removed)
	if err != nil {
		return nil, err
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	slices.Sort(names)
	return names, err
}
