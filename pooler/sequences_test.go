package pooler

import (
	"fmt"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"neki/internal/pgerr"
	"neki/settings"
)

// startSerials gives two shards whose sharded tables count by a serial and by an identity.
func startSerials(t *testing.T, o gatewayOptions) *shards {
	t.Helper()
	s := startTwoShards(t, o)
	s.everywhere(`DROP TABLE u; CREATE TABLE u (k int, id bigserial, v text, PRIMARY KEY (k, id));
		ALTER TABLE t ADD no int GENERATED ALWAYS AS IDENTITY; CREATE TABLE local (id serial, v text); CREATE SEQUENCE free`)
	s.learn()
	return s
}

// TestSequencesAsPostgres: one session sees what it would on a plain server.
func TestSequencesAsPostgres(t *testing.T) {
	s := startSerials(t, gatewayOptions{})
	conn := s.connect("")
	for _, sql := range []string{
		"SELECT lastval()",
		"INSERT INTO u (k, v) VALUES (1, 'a'), (2, 'b'), (4, 'c') RETURNING id, k",
		"SELECT lastval()",
		"SELECT currval('u_id_seq'), lastval()::text",
		"SELECT currval(pg_get_serial_sequence('u', 'id')) AS it, 'lastval' AS name",
		"SELECT currval('public.u_id_seq'::regclass)",
		"SELECT currval('free')",
		"INSERT INTO t (k, n) VALUES (2, 1) RETURNING no",
		"SELECT lastval(), currval('u_id_seq')",
		"INSERT INTO t (k, n) VALUES (4, currval('u_id_seq')), (6, 1 + currval('public.u_id_seq')) RETURNING k, n, no",
		"INSERT INTO u (k) VALUES (1) RETURNING id",
		"INSERT INTO u (k, id) VALUES (1, DEFAULT) RETURNING id",
		"INSERT INTO u (k, id) VALUES (1, 1000) RETURNING id",
		"SELECT setval('u_id_seq', 50)",
		"INSERT INTO u (k) VALUES (1), (2) RETURNING id",
		"SELECT currval('u_id_seq')",
		"BEGIN; INSERT INTO u (k) VALUES (2) RETURNING id; ROLLBACK",
		"INSERT INTO u (k) VALUES (2) RETURNING id",
		"ALTER SEQUENCE u_id_seq RESTART WITH 500",
		"INSERT INTO u (k) VALUES (2) RETURNING id",
		"TRUNCATE u RESTART IDENTITY",
		"INSERT INTO u (k) VALUES (2), (1) RETURNING id",
		"DISCARD SEQUENCES",
		"SELECT lastval()",
		"SELECT currval('u_id_seq')",
		"INSERT INTO t (k, no) VALUES (8, 7)",
		"INSERT INTO t (k, no) OVERRIDING SYSTEM VALUE VALUES (8, 77) RETURNING no",
	} {
		want, wantErr := trySimple(s.plain, sql)
		got, err := trySimple(conn, sql)
		if pgerr.Code(err) != pgerr.Code(wantErr) || sorted(got) != sorted(want) {
			t.Errorf("%s: %v, %v; plain %v, %v", sql, got, err, want, wantErr)
		}
	}
	var last int64
	simple(t, conn, "INSERT INTO u (k) VALUES (2)")
	if _, err := trySimple(conn, "INSERT INTO u (k) VALUES (2); SELECT lastval()"); pgerr.Code(err) != pgerr.NotImplemented {
		t.Errorf("in a string of several: %v", err)
	}
	err := conn.QueryRow(t.Context(), "SELECT lastval()", pgx.QueryExecModeExec).Scan(&last)
	if pgerr.Code(err) != pgerr.NotImplemented {
		t.Errorf("by the extended protocol: %d, %v", last, err)
	}
}

// TestSequencesStayLocal: an INSERT on one shard does not take the sequence's shard into its transaction.
func TestSequencesStayLocal(t *testing.T) {
	s := startSerials(t, gatewayOptions{})
	conn := s.connect("-c __neki.tx_mode=single")
	simple(t, conn, "BEGIN")
	for range 20 {
		simple(t, conn, "INSERT INTO u (k) VALUES (2)")
	}
	simple(t, conn, "COMMIT")
	if got := one(t, conn, "SELECT count(DISTINCT id) FROM u"); got != "20" {
		t.Errorf("%s ids", got)
	}
}

// TestSequencesOfMany: clients that share few connections, in transactions too, get values that nobody else has.
func TestSequencesOfMany(t *testing.T) {
	s := startSerials(t, gatewayOptions{parameters: func(p *settings.Parameters) { p.PoolCapacity = 2 }})
	const clients, each = 8, 30
	var wg sync.WaitGroup
	for i := range clients {
		conn := s.connect("")
		wg.Go(func() {
			for j := range each {
				sql := fmt.Sprintf("INSERT INTO u (k) VALUES (%d), (%d)", 1+i%2, 1+j%2)
				if j%3 == 0 {
					sql = "BEGIN; " + sql + "; COMMIT"
				}
				if _, err := trySimple(conn, sql); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if got := simple(t, s.connect(""), "SELECT count(*), count(DISTINCT id) FROM u"); fmt.Sprint(got) != "[[480 480]]" {
		t.Errorf("rows and ids: %v", got)
	}
}

// TestSequencesNeedRights: values are for roles that may have them.
func TestSequencesNeedRights(t *testing.T) {
	s := startSerials(t, gatewayOptions{})
	conn := s.connect("")
	simple(t, conn, "INSERT INTO u (k) VALUES (1)") // so that there are values left
	role := s.dbname + "_clerk"
	simple(t, conn, "CREATE ROLE "+role+" LOGIN PASSWORD 'clerk'")
	t.Cleanup(func() { simple(t, s.connect(""), "DROP OWNED BY "+role+"; DROP ROLE "+role) })
	simple(t, conn, "GRANT INSERT ON u TO "+role)
	cfg := s.config("")
	cfg.User, cfg.Password = role, "clerk"
	clerk := s.connectAs(cfg)
	if _, err := trySimple(clerk, "INSERT INTO u (k) VALUES (2)"); pgerr.Code(err) != pgerr.InsufficientPrivilege {
		t.Errorf("without USAGE: %v", err)
	}
	simple(t, conn, "GRANT USAGE ON SEQUENCE u_id_seq TO "+role)
	simple(t, clerk, "INSERT INTO u (k) VALUES (2)")
}
