package agent

import (
	"context"
	"fmt"
	"hash/fnv"

	"github.com/jackc/pgx/v5"
)

// stubMarker begins the comment on schema neki that says which text of the stubs a database holds.
const stubMarker = "controls the cluster; connect through a gateway. Stubs "

// ensureStubs runs the stub text in each database that takes connections and doesn't hold this version of it.
func (r *runner) ensureStubs(ctx context.Context, conn *pgx.Conn, text string) ([]string, error) {
	h := fnv.New64a()
	_, _ = h.Write([]byte(text)) // a hash never fails
	version := fmt.Sprintf("%016x", h.Sum64())
	rows, err := conn.Query(ctx, "SELECT oid, datname::text FROM pg_database WHERE datallowconn ORDER BY oid")
	if err != nil {
		return nil, err
	}
	type database struct {
		OID  uint32
		Name string
	}
	databases, err := pgx.CollectRows(rows, pgx.RowToStructByPos[database])
	if err != nil {
		return nil, err
	}
	var did []string
	for _, d := range databases {
		if r.stubbed[d.OID] == version {
			continue
		}
		changed, err := r.a.stubDatabase(ctx, d.Name, text, version)
		if err != nil {
			return did, fmt.Errorf("stubs in database %s: %w", d.Name, err)
		}
		if r.stubbed == nil {
			r.stubbed = map[uint32]string{}
		}
		r.stubbed[d.OID] = version // so that polls don't open a connection to each database
		if changed {
			did = append(did, "stubs in "+d.Name)
		}
	}
	return did, nil
}

// stubDatabase runs the text in one transaction. Users' event triggers don't fire in it.
func (a *Agent) stubDatabase(ctx context.Context, name, text, version string) (changed bool, err error) {
	conn, err := a.connect(ctx, name, orderSQLLimit)
	if err != nil {
		return false, err
	}
	defer conn.Close(ctx) //nolint:errcheck // the statements' errors count
	var comment *string
	err = conn.QueryRow(ctx, "SELECT (SELECT obj_description(oid, 'pg_namespace') FROM pg_namespace WHERE nspname = 'neki')").
		Scan(&comment)
	if err != nil {
		return false, err
	}
	if comment != nil && *comment == stubMarker+version {
		return false, nil
	}
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SET LOCAL session_replication_role = replica"); err != nil {
			return err
		}
		if _, err := tx.Conn().PgConn().Exec(ctx, text).ReadAll(); err != nil { // it holds many statements
			return err
		}
		_, err := tx.Exec(ctx, "COMMENT ON SCHEMA neki IS '"+stubMarker+version+"'")
		return err
	})
	return err == nil, err
}
