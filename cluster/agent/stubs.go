package agent

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// ensureStubs brings each database that takes connections to the version of the stub schema.
func (r *runner) ensureStubs(ctx context.Context, conn *pgx.Conn, stubs StubSchema) ([]string, error) {
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
	var failed []error
	for _, d := range databases {
		if r.stubbed[d.OID] == stubs.Version {
			continue
		}
		changed, err := r.a.stubDatabase(ctx, d.Name, stubs)
		if err != nil { // the other databases get theirs; this one is tried again at the next poll
			failed = append(failed, fmt.Errorf("stubs in database %s: %w", d.Name, err))
			continue
		}
		if r.stubbed == nil {
			r.stubbed = map[uint32]string{}
		}
		r.stubbed[d.OID] = stubs.Version // so that polls don't open a connection to each database
		if changed {
			did = append(did, "stubs in "+d.Name)
		}
	}
	return did, errors.Join(failed...)
}

// stubDatabase runs the script if the database has another version. The script is a transaction, sent as one query.
func (a *Agent) stubDatabase(ctx context.Context, name string, stubs StubSchema) (changed bool, err error) {
	conn, err := a.connect(ctx, name, orderSQLLimit)
	if err != nil {
		return false, err
	}
	defer conn.Close(ctx) //nolint:errcheck // the statements' errors count
	var version *string
	err = conn.QueryRow(ctx, stubs.VersionQuery).Scan(&version)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return false, err
	}
	if err == nil && version != nil && *version == stubs.Version {
		return false, nil
	}
	_, err = conn.PgConn().Exec(ctx, stubs.SQL).ReadAll()
	return err == nil, err
}
