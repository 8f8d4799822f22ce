package plan

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Database runs queries; a *pgx.Conn and a *pgxpool.Pool of pgx are one.
type Database interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// functionsQuery reads pg_proc in the form of Function, overloads that are alike to the planner folded into one row.
// Functions of uuid-ossp and pgcrypto are VOLATILE only because they give random values.
const functionsQuery = `SELECT n.nspname::pg_catalog.text, p.proname::pg_catalog.text,
 (p.pronargs - p.pronargdefaults - CASE WHEN p.provariadic <> 0 THEN 1 ELSE 0 END)::pg_catalog.int4,
 (CASE WHEN p.provariadic <> 0 THEN -1 ELSE p.pronargs END)::pg_catalog.int4,
 p.provolatile = 'v' AND coalesce(p.probin, '') NOT IN ('$libdir/uuid-ossp', '$libdir/pgcrypto')
 FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
 GROUP BY 1, 2, 3, 4, 5`

// relationsQuery reads the relations that have one of the names $1.
const relationsQuery = `SELECT n.nspname::pg_catalog.text, c.relname::pg_catalog.text
 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relname::pg_catalog.text = ANY ($1::pg_catalog.text[]) AND c.relkind NOT IN ('i', 'I', 't')
 AND n.nspname NOT IN ('neki', '__neki')`

// LoadFrom reads by db, from any instance of the database's home shard. virtual holds the names of the virtual schema's
// relations, of which FuncCatalog.Relation is asked.
func LoadFrom(db Database, virtual []string) Load {
	return func(ctx context.Context) ([]Function, []Relation, error) {
		rows, err := db.Query(ctx, functionsQuery)
		if err != nil {
			return nil, nil, fmt.Errorf("read pg_proc: %w", err)
		}
		functions, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Function])
		if err != nil {
			return nil, nil, fmt.Errorf("read pg_proc: %w", err)
		}
		rows, err = db.Query(ctx, relationsQuery, virtual)
		if err != nil {
			return nil, nil, fmt.Errorf("read pg_class: %w", err)
		}
		relations, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Relation])
		if err != nil {
			return nil, nil, fmt.Errorf("read pg_class: %w", err)
		}
		return functions, relations, nil
	}
}
