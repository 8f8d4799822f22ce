package pooler

import (
	"strings"
	"testing"
)

// TestPrepareOverShards: SQL's PREPARE and EXECUTE of statements whose rows lie by key, message by message as Postgres.
func TestPrepareOverShards(t *testing.T) {
	s := startTwoShards(t, gatewayOptions{})
	one := func(sql string) step { return step{q(sql), 1} }
	s.compareOverShards(t, copySetup, []sequence{
		{"by key", []step{
			one("PREPARE p AS SELECT k, v FROM t WHERE k = $1"), one("EXECUTE p(1)"), one("EXECUTE p('2')"), one("EXECUTE p(1 + 1)"), one("EXECUTE p(NULL)"),
			one("EXECUTE p"), one("EXECUTE p(1, 2)"), one("DEALLOCATE p"), one("EXECUTE p(1)"),
		}},
		{"over all", []step{
			one("PREPARE p(int) AS SELECT count(*), max(v) FROM t WHERE k > $1"), one("EXECUTE p(1)"), one("PREPARE q AS SELECT k FROM t ORDER BY k"), one("EXECUTE q"),
			one("PREPARE p AS SELECT k FROM t"), one("DEALLOCATE ALL"), one("EXECUTE q"),
		}},
		{"keys in an array", []step{one("PREPARE p AS SELECT k FROM t WHERE k = ANY ($1) ORDER BY k"), one("EXECUTE p('{1,3}')"), one("EXECUTE p('{1,2}')"), one("EXECUTE p(ARRAY[2,3])")}},
		{"changes", []step{
			one("PREPARE p(int, text) AS INSERT INTO t (k, v) VALUES ($1, $2)"), one("EXECUTE p(21, 'x')"), one("EXECUTE p(22, 'it''s')"), one("EXECUTE p(22, 'y')"),
			one("PREPARE u AS UPDATE t SET v = $1 WHERE k > $2"), one("EXECUTE u('z', 2)"), one("PREPARE d AS DELETE FROM t WHERE k = $1 RETURNING k, v"), one("EXECUTE d(22)"),
			one("SELECT k, v FROM t ORDER BY k"),
		}},
		{"in a transaction", []step{
			one("PREPARE p(int, text) AS INSERT INTO t (k, v) VALUES ($1, $2)"), one("BEGIN; EXECUTE p(21, 'x'); EXECUTE p(22, 'y'); ROLLBACK"), one("SELECT count(*) FROM t"),
			one("BEGIN"), one("EXECUTE p(1, 'twice')"), one("EXECUTE p(23, 'x')"), one("COMMIT"), one("SELECT count(*) FROM t"),
		}},
		{"in one string", []step{one("PREPARE p AS SELECT v FROM t WHERE k = $1; EXECUTE p(1); EXECUTE p(2)")}},
		{"errors", []step{one("PREPARE p AS SELECT nix FROM t WHERE k = $1"), one("PREPARE p(nix) AS SELECT k FROM t"), one("EXECUTE p(1)")}},
		{"prepared by the extended protocol", []step{
			{cat(parse("", "PREPARE p AS SELECT v FROM t WHERE k = $1"), bindTo("", ""), execute("", 0), syncMsg), 1}, one("EXECUTE p(2)"),
		}},
	})
	conn := s.connect("")
	simple(t, conn, "PREPARE p AS SELECT v FROM t WHERE k = $1")
	if err := conn.PgConn().ExecParams(t.Context(), "EXECUTE p(1)", nil, nil, nil, nil).Read().Err; err == nil || !strings.Contains(err.Error(), "[124]") {
		t.Errorf("by the extended protocol: %v", err)
	}
	if _, err := trySimple(conn, "EXECUTE p('x')"); err == nil || !strings.Contains(err.Error(), "22P02") {
		t.Errorf("a bad value: %v", err)
	}
}
