package pooler

import (
	"fmt"
	"strings"
	"testing"

	"neki/catalog"
	"neki/internal/pgerr"
)

// TestIndexFill: an index on a table that has rows is filled, looked at and enabled as docs/sharding.md says.
func TestIndexFill(t *testing.T) {
	off := strings.ReplaceAll(indexedTopology, `"ignore_null": true`, `"ignore_null": true, "enabled": false`)
	s := startShards(t, 2, off, gatewayOptions{})
	s.everywhere(indexedSchema)
	s.learn()
	for tenant := 1; tenant <= 4; tenant++ { // before there was an index
		s.onShard(2-tenant%2, fmt.Sprintf("INSERT INTO users (tenant, id, email, city) SELECT %d, i, 'm%d.' || i, i %% 4 + 1 FROM generate_series(1, 50) AS i", tenant, tenant))
	}
	conn := s.connect("")
	simple(t, conn, "UPDATE users SET email = 'changed', city = NULL WHERE tenant = 1 AND id = 1")
	simple(t, conn, "DELETE FROM users WHERE tenant = 2 AND id = 2")
	simple(t, conn, `INSERT INTO users_by_email (email, tenant) SELECT email, tenant FROM users WHERE email IS NOT NULL FOR SHARE ON CONFLICT (email) DO NOTHING`)
	simple(t, conn, `INSERT INTO users_by_city (city, tenant, id) SELECT city, tenant, id FROM users WHERE city IS NOT NULL FOR SHARE
		ON CONFLICT (city, tenant, id) DO NOTHING`)
	s.checkIndexes()
	for _, look := range []string{
		"SELECT u.tenant, u.id, u.email FROM users u LEFT JOIN users_by_email e ON e.email = u.email AND e.tenant = u.tenant WHERE u.email IS NOT NULL AND e.email IS NULL",
		"SELECT e.email FROM users_by_email e LEFT JOIN users u ON u.email = e.email AND u.tenant = e.tenant WHERE u.email IS NULL",
		"SELECT email FROM users WHERE email IS NOT NULL GROUP BY email HAVING count(*) > 1",
	} {
		if rows := simple(t, conn, look); len(rows) > 0 {
			t.Errorf("%s finds %v", look, rows)
		}
	}
	s.onShard(1, "DELETE FROM users_by_email WHERE email = 'm3.7'")
	s.onShard(2, "DELETE FROM users_by_email WHERE email = 'm3.7'")
	look := "SELECT u.tenant, u.id FROM users u LEFT JOIN users_by_email e ON e.email = u.email AND e.tenant = u.tenant WHERE u.email IS NOT NULL AND e.email IS NULL"
	if got := sorted(simple(t, conn, look)); got != "3,7" {
		t.Errorf("the missing entry is not found: %s", got)
	}
	simple(t, conn, "INSERT INTO users_by_email (email, tenant) VALUES ('m3.7', 3)")
	document := strings.ReplaceAll(indexedTopology, `"DB"`, `"`+s.dbname+`"`)
	now := s.live.Snapshot().Topology().Revision
	if _, err := catalog.PutTopology(t.Context(), s.store, testCluster, catalog.TopologyDocument{Document: []byte(document)}, now); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the topology is known", func() bool { return s.live.Snapshot().Topology().Revision > now })
	if got := sorted(simple(t, conn, "SELECT tenant, id FROM users WHERE email IN ('m3.7', 'changed', 'm4.50', 'm2.2')")); got != "1,1 3,7 4,50" {
		t.Errorf("by the index: %s", got)
	}
	if _, err := trySimple(conn, "DELETE FROM users_by_email"); pgerr.Code(err) != pgerr.FeatureNotSupported {
		t.Errorf("the lookup table can be changed: %v", err)
	}
}

// TestIndexRefusals: what could leave an index behind is refused.
func TestIndexRefusals(t *testing.T) {
	s := startIndexed(t, gatewayOptions{})
	s.everywhere("ALTER TABLE users ADD FOREIGN KEY (tenant) REFERENCES teams ON DELETE CASCADE")
	db := s.server.dbs.get(s.dbname)
	if err := db.relations.Refresh(); err != nil {
		t.Fatal(err)
	}
	conn := s.connect("")
	simple(t, conn, "INSERT INTO teams VALUES (1, 'x'), (2, 'y')")
	simple(t, conn, "INSERT INTO users (tenant, id, email, city) VALUES (1, 1, 'a', 2), (2, 1, 'b', 1)")
	for sql, number := range map[string]string{
		"DELETE FROM teams WHERE tenant = 1":                                                                      "[236]",
		"UPDATE users SET email = 'z' FROM teams t WHERE t.tenant = users.tenant RETURNING (t).*":                 "[233]",
		"COPY users FROM STDIN":                                                                                   "[234]",
		"TRUNCATE users":                                                                                          "[235]",
		"TRUNCATE teams, users, users_by_email, users_by_city CASCADE":                                            "[235]",
		"WITH d AS (DELETE FROM users RETURNING 1) SELECT count(*) FROM d":                                        "[230]",
		"UPDATE users SET id = 7 WHERE tenant = 1":                                                                "[231]",
		"INSERT INTO users (tenant, id, email) VALUES (1, 1, 'b') ON CONFLICT DO NOTHING":                         "[232]",
		"MERGE INTO users u USING teams t ON u.tenant = t.tenant AND t.tenant = 1 WHEN MATCHED THEN DO NOTHING":   "[230]",
		"INSERT INTO users (tenant, id) VALUES (1, 1) ON CONFLICT (tenant, id) DO UPDATE SET email = 'twice'":     "[232]",
		"INSERT INTO users (tenant, id) VALUES (1, 1) ON CONFLICT (tenant, id) DO UPDATE SET city = users.id + 1": "[232]",
	} {
		if _, err := trySimple(conn, sql); pgerr.Code(err) != pgerr.NotImplemented || !strings.Contains(err.Error(), number) {
			t.Errorf("%s: %v, want %s", sql, err, number)
		}
	}
	simple(t, conn, "UPDATE teams SET v = 'z' WHERE tenant = 1")
	simple(t, conn, "SET __neki.shard = 'sh1'")
	if _, err := trySimple(conn, "DELETE FROM users"); pgerr.Code(err) != pgerr.FeatureNotSupported {
		t.Errorf("past the index: %v", err)
	}
	simple(t, conn, "RESET __neki.shard")
	s.checkIndexes()
	simple(t, conn, "TRUNCATE teams, users, users_by_email, users_by_city")
	s.checkIndexes()
	if got := one(t, conn, "SELECT count(*) FROM users"); got != "0" {
		t.Errorf("after TRUNCATE: %s", got)
	}
}
