package adminsql

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"neki/internal/pgerr"
)

// Short names keep the column tables readable.
const (
	text        = pgtype.TextOID
	int4        = pgtype.Int4OID
	int8        = pgtype.Int8OID
	float8      = pgtype.Float8OID
	boolean     = pgtype.BoolOID
	interval    = pgtype.IntervalOID
	timestamptz = pgtype.TimestamptzOID
	textArray   = pgtype.TextArrayOID
	jsonb       = pgtype.JSONBOID
	pgLSN       = PGLSNOID
)

// defineRelations lists everything that can stand in FROM, sorted by schema and name.
func (s *Schema) defineRelations() []*Relation {
	all := []*Relation{
		s.replicas(), s.nodes(), s.shards(), s.gateways(), s.admins(),
		s.sessions(), s.pools(), s.settings(), s.parameters(),
		s.operations(), s.backups(), s.profiles(), s.gatewayGroups(), s.plans(), s.statements(), s.metrics(), s.events(), s.replicaChoice(),
		s.dataTopology(), s.topologyHistory(), s.shardGroups(), s.keyRanges(), s.shardIndexes(), s.placedTables(),
		s.placedSequences(), s.shardFor(),
	}
	all = append(all, s.metaFunctions()...)
	slices.SortFunc(all, func(a, b *Relation) int {
		return cmp.Or(cmp.Compare(b.Schema, a.Schema), cmp.Compare(a.Name, b.Name)) // "neki" before "__neki"
	})
	return all
}

// missing is the answer of a relation whose facts this process does not have.
func missing(what string) error {
	return pgerr.New(pgerr.ObjectNotInPrerequisiteState, "%s are not kept by this process", what).
		WithHint("Connect through a gateway.")
}

// orNull turns the zero value, which stands for unknown in the row structs, into NULL.
func orNull[T comparable](v T) any {
	var zero T
	if v == zero {
		return nil
	}
	return v
}

// timeOrNull does so for times, whose zero value is not always == to another.
func timeOrNull(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t
}

// collect makes one row of each element.
func collect[E any](all []E, row func(E) []any) [][]any {
	rows := make([][]any, 0, len(all))
	for _, e := range all {
		rows = append(rows, row(e))
	}
	return rows
}

// ignoreArgs adapts a relation's scan that needs neither the session nor arguments.
func ignoreArgs(scan func(ctx context.Context) ([][]any, error)) func(context.Context, Session, []any) ([][]any, error) {
	return func(ctx context.Context, _ Session, _ []any) ([][]any, error) { return scan(ctx) }
}
