package pooler

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"neki/internal/pgerr"
)

// indexedTopology places users by tenant, and the lookup tables of its indexes by what they index: tenants and cities lie in
// turn on sh1 and sh2, emails by their hash.
const indexedTopology = `{
 "databases": {"DB": {"default_shard_group": "main",
   "global_secondary_indexes": {
     "users_email": {"schema": "public", "table": "users_by_email", "owner_table": "users", "columns": ["email"], "owner_sk_columns": ["tenant"],
       "unique": true, "ignore_null": true},
     "users_city": {"schema": "public", "table": "users_by_city", "owner_table": "users", "columns": ["city"], "owner_sk_columns": ["tenant"],
       "owner_pk_columns": ["id"], "ignore_null": true}},
   "schemas": {"public": {"tables": {
     "teams": {"shard_group": "data", "shard_index": "by_tenant"},
     "users": {"shard_group": "data", "shard_index": "by_tenant", "secondary_indexes": [{"name": "users_email"}, {"name": "users_city"}]},
     "users_by_email": {"shard_group": "hashed", "shard_index": "by_email"},
     "users_by_city": {"shard_group": "data", "shard_index": "by_city"}
   }}}}},
 "shard_groups": [
   {"uid": "main", "key_ranges": [{"shard_uid": "sh1"}]},
   {"uid": "hashed", "key_ranges": [{"shard_uid": "sh1", "end": "80"}, {"shard_uid": "sh2", "start": "80"}]},
   {"uid": "data", "key_ranges": [
     {"shard_uid": "sh1", "end": "0000000000000002"}, {"shard_uid": "sh2", "start": "0000000000000002", "end": "0000000000000003"},
     {"shard_uid": "sh1", "start": "0000000000000003", "end": "0000000000000004"}, {"shard_uid": "sh2", "start": "0000000000000004"}]}
 ],
 "shard_indexes": {
   "by_tenant": {"type": "range", "columns": ["tenant"]},
   "by_city": {"type": "range", "columns": ["city"]},
   "by_email": {"type": "xxhash", "columns": ["email"]}
 },
 "authoritative_shard_group": "main"
}`

const indexedSchema = `CREATE TABLE users (tenant int, id serial, email text, city int, name text, PRIMARY KEY (tenant, id));
CREATE TABLE users_by_email (email text PRIMARY KEY, tenant int);
CREATE TABLE users_by_city (city int, tenant int, id int, PRIMARY KEY (city, tenant, id));
CREATE TABLE teams (tenant int PRIMARY KEY, v text);
CREATE TABLE home (id int PRIMARY KEY, v text)`

// startIndexed gives two shards with users and its indexes; plain has a unique constraint in place of the unique one.
func startIndexed(t testing.TB, o gatewayOptions) *shards {
	t.Helper()
	s := startShards(t, 2, indexedTopology, o)
	s.everywhere(indexedSchema)
	simple(t, s.plain, "ALTER TABLE users ADD CONSTRAINT users_email UNIQUE (email)")
	s.learn()
	return s
}

// checkIndexes compares the lookup tables with the rows that they are about.
func (s *shards) checkIndexes() {
	s.t.Helper()
	const query = `SELECT 'email of rows', email, tenant::text, '' FROM users WHERE email IS NOT NULL
		UNION ALL SELECT 'email of entries', email, tenant::text, '' FROM users_by_email
		UNION ALL SELECT 'city of rows', city::text, tenant::text, id::text FROM users WHERE city IS NOT NULL
		UNION ALL SELECT 'city of entries', city::text, tenant::text, id::text FROM users_by_city`
	kinds := map[string][][]string{}
	for shard := 1; shard <= 2; shard++ {
		for _, row := range s.onShard(shard, query) {
			kinds[row[0]] = append(kinds[row[0]], row[1:])
			if odd := row[1] == "1" || row[1] == "3"; row[0] == "city of entries" && odd != (shard == 1) {
				s.t.Errorf("an entry of city %s is on shard %d", row[1], shard)
			}
		}
	}
	for _, column := range []string{"email", "city"} {
		if want, got := sorted(kinds[column+" of rows"]), sorted(kinds[column+" of entries"]); got != want {
			s.t.Errorf("%s: rows    %s\n\tentries %s", column, want, got)
		}
	}
}

func TestIndexUpkeep(t *testing.T) {
	s := startIndexed(t, gatewayOptions{})
	conn := s.connect("")
	steps := []struct{ sql, tag, code string }{
		{sql: "INSERT INTO users (tenant, id, email, city, name) VALUES (1, 1, 'a', 2, 'Ann')", tag: "INSERT 0 1"},
		{sql: "INSERT INTO users (tenant, id, email, city, name) VALUES (2, 1, 'a', 2, 'Bob')", code: "23505"},
		{sql: "INSERT INTO users (tenant, id, email, city, name) VALUES (2, 1, 'b', 1, 'Bob'), (3, 1, 'c', 4, 'Cyd'), (1, 2, NULL, NULL, 'Dan')", tag: "INSERT 0 3"},
		{sql: "INSERT INTO users (tenant, id, email) VALUES (4, 1, 'd'), (4, 2, 'd')", code: "23505"},
		{sql: "INSERT INTO users (tenant, id, email) VALUES (4, 1, 'd'), (1, 1, 'e')", code: "23505"},
		{sql: "UPDATE users SET city = 3 WHERE tenant = 1 AND id = 1", tag: "UPDATE 1"},
		{sql: "UPDATE users SET name = upper(name) WHERE email = 'a'", tag: "UPDATE 1"},
		{sql: "UPDATE users SET email = 'b' WHERE email = 'c'", code: "23505"},
		{sql: "UPDATE users SET email = 'new', city = city + 1 WHERE email IN ('c', 'none')", tag: "UPDATE 1"},
		{sql: "UPDATE users SET city = tenant", tag: "UPDATE 4"},
		{sql: "UPDATE users SET email = NULL WHERE email = 'b'", tag: "UPDATE 1"},
		{sql: "UPDATE users SET email = 'dan' WHERE tenant = 1 AND id = 2", tag: "UPDATE 1"},
		{sql: "INSERT INTO users (tenant, id, email) VALUES (1, 1, 'z'), (4, 1, 'z') ON CONFLICT (tenant, id) DO NOTHING", tag: "INSERT 0 1"},
		{sql: "INSERT INTO users (tenant, id, email, name) VALUES (1, 1, 'y', 'Y'), (4, 9, 'y', 'Y') ON CONFLICT (tenant, id) DO UPDATE SET name = excluded.name", tag: "INSERT 0 2"},
		{sql: "INSERT INTO users (tenant, id, email, city) SELECT tenant + 1, id + 10, email || '2', city FROM users WHERE tenant < 4", tag: "INSERT 0 4"},
		{sql: "INSERT INTO users (tenant, id, city) SELECT tenant, id + 100, 7 FROM users WHERE tenant < 3", tag: "INSERT 0 5"},
		{sql: "DELETE FROM users WHERE email = 'new'", tag: "DELETE 1"},
		{sql: "DELETE FROM users WHERE city = 7 -- gone\n;", tag: "DELETE 5"},
		{sql: "DELETE FROM users WHERE email = 'nobody'", tag: "DELETE 0"},
	}
	for _, step := range steps {
		for name, conn := range map[string]*pgx.Conn{"the gateway": conn, "Postgres": s.plain} {
			tag, err := conn.Exec(t.Context(), step.sql, pgx.QueryExecModeSimpleProtocol)
			if pgerr.Code(err) != step.code || err == nil && tag.String() != step.tag {
				t.Errorf("%s: %s gives %q, %v", step.sql, name, tag, err)
			}
		}
		s.checkIndexes()
	}
	query := "SELECT tenant, id, email, city, name FROM users"
	if got, want := sorted(simple(t, conn, query)), sorted(simple(t, s.plain, query)); got != want {
		t.Errorf("rows: %s\nwant: %s", got, want)
	}
}

func TestIndexLookup(t *testing.T) {
	s := startIndexed(t, gatewayOptions{})
	conn := s.connect("")
	for i := range 12 {
		for _, conn := range []*pgx.Conn{conn, s.plain} {
			sql := "INSERT INTO users (tenant, id, email, city, name) VALUES ($1, $2, $3, $4, $5)"
			if _, err := conn.Exec(t.Context(), sql, 1+i%4, i, fmt.Sprintf("u%d@x", i), 1+i%3, fmt.Sprintf("name %d", i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	s.checkIndexes()
	for _, q := range []struct {
		sql  string
		args []any
	}{
		{"SELECT name, id FROM users WHERE email = $1", []any{"u3@x"}},
		{"SELECT name, id FROM users WHERE email = $1", []any{"nobody"}},
		{"SELECT name, id FROM users WHERE email = $1", []any{nil}},
		{"SELECT name, id FROM users WHERE email IN ($1, $2) ORDER BY id", []any{"u3@x", "u6@x"}},
		{"SELECT name, id FROM users WHERE email = ANY ($1) ORDER BY id", []any{[]string{"u3@x", "u6@x", "u11@x"}}},
		{"SELECT name, id FROM users WHERE city = $1 ORDER BY id", []any{2}},
		{"SELECT count(*), max(name) FROM users WHERE city = $1 AND name LIKE 'name%'", []any{2}},
		{"SELECT name, id FROM users WHERE email = $1 AND tenant = $2", []any{"u3@x", 4}},
		{"SELECT name, id FROM users WHERE email = $1 OR city = $2 ORDER BY id", []any{"u3@x", 1}},
		{"SELECT a.name, b.id FROM users a JOIN users b ON a.tenant = b.tenant WHERE a.email = $1 ORDER BY b.id", []any{"u3@x"}},
		{"SELECT upper(name) FROM users WHERE email = $1 ORDER BY name", []any{"u3@x"}},
	} {
		want := queried(t, s.plain, q.sql, q.args)
		if got := queried(t, conn, q.sql, q.args); got != want {
			t.Errorf("%s %v gives %s, want %s", q.sql, q.args, got, want)
		}
		for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeSimpleProtocol, pgx.QueryExecModeExec, pgx.QueryExecModeDescribeExec} {
			if got := queried(t, conn, q.sql, append([]any{mode}, q.args...)); got != want {
				t.Errorf("%s %v in mode %v gives %s, want %s", q.sql, q.args, mode, got, want)
			}
		}
	}
	if lines := fmt.Sprint(simple(t, conn, "EXPLAIN (NEKI_PLAN) SELECT 1 FROM users WHERE email = 'x'")[0]); lines != "[Route: Lookup]" {
		t.Errorf("EXPLAIN says %s", lines)
	}
	if _, err := trySimple(conn, "SELECT * FROM users_by_email"); pgerr.Code(err) != pgerr.FeatureNotSupported {
		t.Errorf("the lookup table can be read: %v", err)
	}
}

func queried(t *testing.T, conn *pgx.Conn, sql string, args []any) string {
	t.Helper()
	rows, err := conn.Query(t.Context(), sql, args...)
	if err != nil {
		return err.Error()
	}
	got, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
		values, err := row.Values()
		return fmt.Sprint(values), err
	})
	return fmt.Sprint(got, err)
}

// TestIndexInTransactions: a transaction sees what it has done to an index, and undoes it as a whole or to a savepoint.
func TestIndexInTransactions(t *testing.T) {
	for _, mode := range []string{"multi", "atomic"} {
		t.Run(mode, func(t *testing.T) {
			s := startIndexed(t, gatewayOptions{})
			conn := s.connect("")
			simple(t, conn, "SET __neki.tx_mode = '"+mode+"'")
			simple(t, conn, "INSERT INTO users (tenant, id, email, city) VALUES (1, 1, 'a', 2), (2, 1, 'b', 1)")
			simple(t, conn, "BEGIN")
			simple(t, conn, "INSERT INTO users (tenant, id, email, city) VALUES (3, 1, 'c', 4)")
			simple(t, conn, "UPDATE users SET email = 'd' WHERE email = 'a'")
			if got := sorted(simple(t, conn, "SELECT tenant, email FROM users WHERE email IN ('a', 'c', 'd')")); got != "1,d 3,c" {
				t.Errorf("within: %s", got)
			}
			simple(t, conn, "SAVEPOINT p")
			if _, err := trySimple(conn, "UPDATE users SET email = 'b' WHERE email = 'c'"); pgerr.Code(err) != "23505" {
				t.Errorf("a duplicate: %v", err)
			}
			simple(t, conn, "ROLLBACK TO p")
			simple(t, conn, "DELETE FROM users WHERE email = 'b'")
			simple(t, conn, "ROLLBACK TO p")
			if got := sorted(simple(t, conn, "SELECT tenant FROM users WHERE email = 'b'")); got != "2" {
				t.Errorf("after the savepoint: %q", got)
			}
			simple(t, conn, "COMMIT")
			s.checkIndexes()
			simple(t, conn, "BEGIN")
			simple(t, conn, "DELETE FROM users")
			simple(t, conn, "ROLLBACK")
			s.checkIndexes()
			if got := sorted(simple(t, conn, "SELECT tenant, email FROM users WHERE city IN (1, 2, 4)")); got != "1,d 2,b 3,c" {
				t.Errorf("at the end: %s", got)
			}
		})
	}
}

// TestIndexUnderConcurrency: writers that meet on the same rows and values leave an index that is as the rows are.
func TestIndexUnderConcurrency(t *testing.T) {
	for _, mode := range []string{"multi", "atomic"} {
		t.Run(mode, func(t *testing.T) {
			s := startIndexed(t, gatewayOptions{})
			var wg sync.WaitGroup
			for w := range 6 {
				conn := s.connect("")
				simple(t, conn, "SET __neki.tx_mode = '"+mode+"'; SET lock_timeout = '200ms'")
				random := rand.New(rand.NewPCG(uint64(w), 7))
				wg.Go(func() {
					for range 40 {
						writeIndexed(t, conn, random)
					}
				})
			}
			wg.Wait()
			s.checkIndexes()
			conn := s.connect("")
			for _, row := range simple(t, conn, "SELECT email, tenant FROM users WHERE email IS NOT NULL") {
				if got := one(t, conn, "SELECT tenant FROM users WHERE email = '"+row[0]+"'"); got != row[1] {
					t.Errorf("by the index %s has tenant %s, not %s", row[0], got, row[1])
				}
			}
		})
	}
}

// writeIndexed changes a few rows, in one transaction or several.
func writeIndexed(t *testing.T, conn *pgx.Conn, random *rand.Rand) {
	tenant, id, email, city := 1+random.IntN(4), random.IntN(4), random.IntN(8), 1+random.IntN(4)
	statements := []string{
		fmt.Sprintf("INSERT INTO users (tenant, id, email, city) VALUES (%d, %d, 'm%d', %d)", tenant, id, email, city),
		fmt.Sprintf("UPDATE users SET email = 'm%d' WHERE tenant = %d AND id = %d", email, tenant, id),
		fmt.Sprintf("UPDATE users SET city = %d WHERE email = 'm%d'", city, email),
		fmt.Sprintf("DELETE FROM users WHERE email = 'm%d'", email),
		fmt.Sprintf("UPDATE users SET city = city %% 4 + 1, email = NULL WHERE city = %d", city),
	}
	sql := statements[random.IntN(len(statements))]
	if random.IntN(3) == 0 {
		sql = "BEGIN; " + sql + "; " + statements[random.IntN(len(statements))] + "; COMMIT"
	}
	_, err := conn.Exec(context.Background(), sql, pgx.QueryExecModeSimpleProtocol)
	switch pgerr.Code(err) {
	case "", "23505", "55P03", "40P01", "40001":
		if err != nil && pgerr.Code(err) == "" {
			t.Errorf("%s: %v", sql, err)
		}
	default:
		t.Errorf("%s: %v", sql, err)
	}
	if conn.PgConn().TxStatus() != 'I' {
		if _, err := conn.Exec(context.Background(), "ROLLBACK", pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Error(err)
		}
	}
}
