package pooler

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"neki/internal/pgerr"
)

// ownPart stands in a string for a statement that the gateway answers; ownAsked is what Postgres is asked instead, as long
// to a character, so that positions compare.
const (
	ownPart  = "SHOW __neki.shard"
	ownAsked = "SELECT '' AS shar"
)

// mixedStrings are strings of statements of which the gateway answers some.
var mixedStrings = []string{
	"INSERT INTO t VALUES (10); $own; SELECT 1/0",
	"INSERT INTO t VALUES (10); $own; INSERT INTO t VALUES (10)",
	"INSERT INTO t VALUES (10); $own; INSERT INTO t VALUES (11); SELECT k FROM t ORDER BY k",
	"INSERT INTO t VALUES (10); $own; SELECT nosuch FROM t",
	"$own; INSERT INTO t VALUES (10); SELECT 'ä', nosuch FROM t; SELECT 1",
	"INSERT INTO t VALUES (10); $own; COMMIT; SELECT 1/0",
	"INSERT INTO t VALUES (10); $own; ROLLBACK; INSERT INTO t VALUES (11); $own; INSERT INTO t VALUES (12)",
	"INSERT INTO t VALUES (10); COMMIT; $own; INSERT INTO t VALUES (11); $own; SELECT 1/0",
	"INSERT INTO t VALUES (10); $own; COMMIT; INSERT INTO t VALUES (11); INSERT INTO t VALUES (11)",
	"INSERT INTO t VALUES (10); $own; BEGIN; INSERT INTO t VALUES (11); $own; SELECT 1/0",
	"INSERT INTO t VALUES (10); $own; BEGIN; INSERT INTO t VALUES (11); $own",
	"BEGIN; INSERT INTO t VALUES (10); $own; COMMIT; INSERT INTO t VALUES (11); $own; SELECT 1/0",
	"BEGIN; INSERT INTO t VALUES (10); $own; ROLLBACK; INSERT INTO t VALUES (11); $own; COMMIT; INSERT INTO t VALUES (12)",
	"INSERT INTO t VALUES (10); $own; SAVEPOINT a",
	"INSERT INTO t VALUES (10); $own; RELEASE a", "INSERT INTO t VALUES (10); $own; ROLLBACK TO a; SELECT 1",
	"INSERT INTO t VALUES (10); $own; COMMIT AND CHAIN; SELECT 1",
	"INSERT INTO t VALUES (10); $own; ROLLBACK AND CHAIN; SELECT 1",
	"INSERT INTO t VALUES (10); $own; VACUUM t",
	"SET work_mem = '3MB'; $own; SELECT 1/0", "SET work_mem = '3MB'; $own; SHOW work_mem",
	"SET LOCAL work_mem = '3MB'; $own; SHOW work_mem; $own; SELECT k FROM t ORDER BY k",
	"DECLARE c CURSOR FOR SELECT k FROM t ORDER BY k; $own; FETCH ALL FROM c",
	"CREATE TABLE t2 (a int); $own; INSERT INTO t2 VALUES (1); $own; SELECT 1/0",
	"CREATE TABLE t2 (a int); $own; INSERT INTO t2 VALUES (1); $own; SELECT a FROM t2",
	"LOCK TABLE t; $own; SELECT count(*) FROM t",
	"INSERT INTO t VALUES (10); $own;; ; /* nothing */ ; SELECT count(*) FROM t",
	"PREPARE s AS SELECT 5; $own; EXECUTE s; DEALLOCATE s",
	"INSERT INTO t VALUES (10); $own; DISCARD ALL",
	"INSERT INTO t VALUES (10); $own; LISTEN a; NOTIFY a; $own; SELECT 1",
	"SELECT 1; $own; SELECT 2; $own; SELECT 3",
}

// TestStringsAreOneTransaction: whether the gateway answers some of a string's statements makes no difference.
func TestStringsAreOneTransaction(t *testing.T) {
	for _, size := range poolSizes {
		t.Run(fmt.Sprintf("pool of %d", size), func(t *testing.T) {
			b := newBothWays(t, size)
			for _, sql := range mixedStrings {
				b.compareStrings(t, sql)
			}
		})
	}
}

// compareStrings has the string run both ways, and looks at what it left.
func (b *bothWays) compareStrings(t *testing.T, sql string) {
	t.Helper()
	steps := func(own string) []step {
		return []step{
			{q(strings.ReplaceAll(sql, "$own", own)), 1},
			{q("SELECT k FROM t ORDER BY k"), 1},
			{q("ROLLBACK"), 1},
			{q("SELECT k FROM t ORDER BY k; SELECT to_regclass('t2'), current_setting('work_mem')"), 1},
		}
	}
	b.prepare(t)
	want := converse(t, b.direct, steps(ownAsked))
	b.prepare(t)
	got := converse(t, b.through, steps(ownPart))
	for i := range want {
		if alike(got[i]) != alike(want[i]) {
			t.Errorf("%s: answer %d\n  gateway  %s\n  postgres %s", sql, i+1, alike(got[i]), alike(want[i]))
		}
	}
}

var ownPID = regexp.MustCompile(`A\{"(?:[^"\\]|\\.)*a\\x00\\x00"\}`)

// alike takes out of answers what those to the two statements differ in.
func alike(s string) string {
	s = strings.NewReplacer(`C{"SHOW\x00"}`, `C{"SELECT 1\x00"}`, `T{__neki.shard `, `T{shar `).Replace(s)
	return ownPID.ReplaceAllString(s, "A")
}

// TestStringsAroundCopy: a COPY FROM STDIN may stand among statements that the gateway answers.
func TestStringsAroundCopy(t *testing.T) {
	b := newBothWays(t, 1)
	for _, end := range []string{"SELECT 'after'", "SELECT 1/0", "COPY t FROM STDIN"} {
		conversation := func(own string) []step {
			return []step{
				{q("INSERT INTO t VALUES (10); " + own + "; COPY t FROM STDIN; " + own + "; " + end), 0},
				{cat(data("20\n"), data("21\n"), copyDone), 0},
				{cat(data("30\n"), copyDone), 0},
				{q("SELECT k FROM t ORDER BY k"), 1},
				{q("INSERT INTO t VALUES (11); " + own + "; COPY t FROM STDIN; " + own), 0},
				{cat(data("x\n"), copyDone), 1},
				{q("SELECT k FROM t ORDER BY k"), 1},
			}
		}
		b.prepare(t)
		want := converse(t, b.direct, conversation(ownAsked))
		b.prepare(t)
		got := converse(t, b.through, conversation(ownPart))
		for i := range want {
			if g, w := alike(got[i]), alike(want[i]); g != w {
				t.Errorf("%s: answer %d\n  gateway  %s\n  postgres %s", end, i+1, g, w)
			}
		}
	}
}

// TestStringsThatSet: a setting of the gateway may be changed in a string as long as nothing was written, and is taken back
// when the string fails.
func TestStringsThatSet(t *testing.T) {
	g := startWithSchema(t, 1)
	conn := g.connect("")
	simple(t, conn, "CREATE TABLE st (k int)")
	for _, c := range []struct{ sql, code, target, rows string }{
		{"SET __neki.fanout = 'single'; INSERT INTO st VALUES (1)", "", "single", "1"},
		{"SELECT 1; SET __neki.fanout = 'single'; INSERT INTO st VALUES (1); SHOW __neki.fanout", "", "single", "1"},
		{"SELECT 1; SET __neki.fanout = 'single'; INSERT INTO st VALUES (1); SHOW __neki.fanout; SELECT 1/0", "22012", "scatter", "0"},
		{"INSERT INTO st VALUES (1); SET __neki.fanout = 'single'", pgerr.ActiveSQLTransaction, "scatter", "0"},
		{"SET __neki.fanout = 'single'; INSERT INTO st VALUES (1); RESET ALL; SHOW __neki.target", pgerr.ActiveSQLTransaction, "scatter", "0"},
		{"SET __neki.fanout = 'single'; SELECT 1; RESET ALL; SELECT 1", "", "scatter", "0"},
		{"SET __neki.fanout = 'single'; SELECT 1; RESET ALL; SHOW __neki.fanout; SELECT 1; SELECT 1/0", "22012", "scatter", "0"},
		{"SET __neki.target = 'replica'; SELECT pg_is_in_recovery()::text; SET __neki.target = 'primary'; INSERT INTO st SELECT 1 WHERE NOT pg_is_in_recovery()", "", "scatter", "1"},
		{"INSERT INTO st VALUES (1); SELECT nosuch FROM neki.shards", "42703", "scatter", "0"},
	} {
		simple(t, conn, "TRUNCATE st")
		simple(t, conn, "RESET ALL")
		_, err := trySimple(conn, c.sql)
		if pgerr.Code(err) != c.code {
			t.Errorf("%s: %v, want %q", c.sql, err, c.code)
		}
		if got := one(t, conn, "SHOW __neki.fanout"); got != c.target {
			t.Errorf("%s: fanout is %q, want %q", c.sql, got, c.target)
		}
		if got := one(t, conn, "SELECT count(*) FROM st"); got != c.rows {
			t.Errorf("%s: %s rows, want %s", c.sql, got, c.rows)
		}
	}
}

// TestResetInStrings: RESET ALL is taken back too, and what follows it goes where it says.
func TestResetInStrings(t *testing.T) {
	g := startWithSchema(t, 1)
	conn := g.connect("")
	simple(t, conn, "CREATE TABLE rs (k int)")
	simple(t, conn, "SET __neki.target = 'replica'; SET work_mem = '3MB'")
	if _, err := trySimple(conn, "RESET ALL; SHOW __neki.target; SELECT 1/0"); pgerr.Code(err) != pgerr.DivisionByZero {
		t.Error(err)
	}
	if got := one(t, conn, "SHOW __neki.target") + one(t, conn, "SHOW work_mem"); got != "replica3MB" {
		t.Error(got)
	}
	if got := one(t, conn, "RESET ALL; SHOW __neki.target; INSERT INTO rs VALUES (1); SHOW work_mem"); got != "4MB" {
		t.Error(got)
	}
	if got := one(t, conn, "SHOW __neki.target; SELECT count(*) FROM rs"); got != "1" {
		t.Error(got)
	}
}

// TestStringPositions: an error of the gateway's own says where in the whole string it is.
func TestStringPositions(t *testing.T) {
	g := startWithSchema(t, 0)
	conn := g.connect("")
	plain, err := pgx.Connect(t.Context(), g.group.Primary.DSN())
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close(t.Context())
	for _, sql := range []string{
		"SELECT 'ä'; $own; SELECT 'ä', nosuch", "$own; SELECT 1; SELECT nosuch; SELECT 2", "SELECT 1; $own; SELECT k FROM nosuch; $own",
		"PREPARE äöü(int) AS SELECT $1; $own; EXECUTE äöü(nosuch); $own", "SELECT 1; $own; selct; $own",
	} {
		_, wantErr := trySimple(plain, strings.ReplaceAll(sql, "$own", ownAsked))
		_, err := trySimple(conn, strings.ReplaceAll(sql, "$own", ownPart))
		if want, got := pgerr.From(wantErr), pgerr.From(err); want == nil || got == nil || got.Position != want.Position || got.Code != want.Code {
			t.Errorf("%s: %+v, Postgres %+v", sql, got, want)
		}
	}
	const before = "SELECT 'ä'; "
	for _, c := range []struct{ sql, at string }{
		{"SELECT nosuch FROM neki.shards", "nosuch"}, {"SELECT 1 FROM neki.nosuch", "neki.nosuch"}, {"SELECT neki.nosuch(1)", "neki.nosuch"},
	} {
		_, err := trySimple(conn, before+c.sql)
		e := pgerr.From(err)
		want := len([]rune(before)) + strings.Index(c.sql, c.at) + 1
		if e == nil || int(e.Position) != want {
			t.Errorf("%s: %v at %d, want %d", c.sql, err, e.Position, want)
		}
	}
}
