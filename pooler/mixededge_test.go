package pooler

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// TestStringsThatLoseTheServer: a string of statements whose server is ended in the midst ends with the server's last word,
// whoever answers its parts, and nothing of it stays.
func TestStringsThatLoseTheServer(t *testing.T) {
	const die = "DO $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(60); END $$"
	b := newBothWays(t, 1)
	for _, tc := range []struct{ sql, rows string }{
		{"INSERT INTO t VALUES (10); $die; $own; INSERT INTO t VALUES (11)", "2"},
		{"INSERT INTO t VALUES (10); $own; $die; INSERT INTO t VALUES (11)", "2"},
		{"$own; INSERT INTO t VALUES (10); $die", "2"},
		{"INSERT INTO t VALUES (10); $own; INSERT INTO t VALUES (11); $own; $die; $own", "2"},
		{"BEGIN; INSERT INTO t VALUES (10); $own; $die; COMMIT; $own", "2"},
		{"INSERT INTO t VALUES (10); $own; COMMIT; $own; INSERT INTO t VALUES (11); $die", "3"},
		{"SET work_mem = '3MB'; $own; INSERT INTO t VALUES (10); $die; $own", "2"},
	} {
		ask := func(cfg *pgx.ConnConfig, own string) string {
			b.prepare(t)
			text := strings.NewReplacer("$own", own, "$die", die).Replace(tc.sql)
			return alike(converse(t, cfg, []step{{q(text), 1}})[0])
		}
		want, got := ask(b.direct, ownAsked), ask(b.through, ownPart)
		if got != want {
			t.Errorf("%s\n  gateway  %s\n  postgres %s", tc.sql, got, want)
		}
		eventually(t, "what was begun is undone", func() bool {
			return b.g.group.Primary.Text("SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%INSERT INTO t%' AND state <> 'idle' AND pid <> pg_backend_pid()") == "0"
		})
		if rows := b.g.group.Primary.Text("SELECT count(*) FROM t"); rows != tc.rows {
			t.Errorf("%s: %s rows", tc.sql, rows)
		}
	}
}

// TestStringsThatDoNotParse: a part that Postgres can't parse makes the whole string fail, and one that only the gateway's
// parser does not know is run.
func TestStringsThatDoNotParse(t *testing.T) {
	b := newBothWays(t, 1)
	for _, sql := range []string{
		"INSERT INTO t VALUES (10); $own; selct 1", "$own; selct 1; SELECT 1", "selct 1; $own", "INSERT INTO t VALUES (10); $own; SELECT 'x", "$own; SELECT (1; $own",
		"INSERT INTO t VALUES (10); $own; CREATE TABLE t2 (system_user int); $own; SELECT count(*) FROM t2",
		"CREATE TABLE t2 (system_user int); $own; SELECT 1/0", "$own; CREATE TABLE t2 (system_user int)",
	} {
		b.compareStrings(t, sql)
	}
}

// TestParseBeforeItsShard: a statement is parsed and described without a Sync, as drivers do that want its types first;
// which shards it runs on is known when its values come.
func TestParseBeforeItsShard(t *testing.T) {
	s := startTwoShards(t, gatewayOptions{})
	one := func(sql string) step { return step{q(sql), 1} }
	var all []sequence
	for _, name := range []string{"", "s"} {
		ran := func(params ...string) []byte {
			return cat(bindTo("", name, params...), describe('P', ""), execute("", 0))
		}
		asked := func(sql string, params ...string) step {
			return step{cat(parse(name, sql), describe('S', name), flushMsg, ran(params...), syncMsg), 1}
		}
		again := func(params ...string) step { return step{cat(ran(params...), syncMsg), 1} }
		const change = "UPDATE t SET v = 'x' WHERE k IN ($1, $2) RETURNING k"
		all = append(all,
			sequence{"IN " + name, []step{asked("SELECT k, v FROM t WHERE k IN ($1, $2) ORDER BY k", "1", "2"), again("2", "3"), again("1", "3")}},
			sequence{"equal " + name, []step{asked("SELECT k, v FROM t WHERE k = $1", "2"), again("1"), again("2")}},
			sequence{"another first " + name, []step{asked("SELECT k, v FROM t WHERE k = $1", "1"), again("2")}},
			sequence{"changes " + name, []step{asked(change, "1", "2"), one("SELECT k, v FROM t ORDER BY k")}},
			sequence{"a change of one " + name, []step{asked("INSERT INTO t (k, v) VALUES ($1, 'y')", "22"), again("21"), one("SELECT k, v FROM t ORDER BY k")}},
			sequence{"two of it " + name, []step{
				{cat(parse(name, "INSERT INTO t (k, v) VALUES ($1, 'y')"), describe('S', name), flushMsg, ran("22"), ran("21"), syncMsg), 1},
				{cat(ran("24"), flushMsg, ran("23"), syncMsg), 1},
				{cat(ran("26"), flushMsg, ran("1"), syncMsg), 1},
				one("SELECT k, v FROM t ORDER BY k"),
			}},
			sequence{"in a block " + name, []step{one("BEGIN"), asked(change, "1", "2"), one("SELECT k, v FROM t ORDER BY k"), one("ROLLBACK")}},
			sequence{"behind another " + name, []step{
				{cat(parse("o", "INSERT INTO t (k, v) VALUES (31, 'z')"), bindTo("", "o"), execute("", 0), flushMsg,
					parse(name, "SELECT k FROM t WHERE k IN ($1, $2) ORDER BY k"), ran("31", "2"), syncMsg), 1},
				one("SELECT k, v FROM t ORDER BY k"),
			}},
			sequence{"before an error " + name, []step{
				{cat(parse(name, change), describe('S', name), flushMsg, ran("1", "2"), flushMsg, parse("", "SELECT 1/0"), bindTo("", ""), execute("", 0), syncMsg), 1},
				one("SELECT k, v FROM t ORDER BY k"),
			}},
		)
	}
	s.compareOverShards(t, copySetup, all)
}
