package pooler

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"neki/internal/pgerr"
)

// copiedOut runs COPY ... TO STDOUT.
func copiedOut(conn *pgx.Conn, sql string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var b bytes.Buffer
	tag, err := conn.PgConn().CopyTo(ctx, &b, sql)
	if err != nil {
		return "error " + pgerr.Code(err) + " " + err.Error()
	}
	return b.String() + "\n" + tag.String()
}

// linesOf sorts the lines of a copy whose order is not told.
func linesOf(s string) string {
	lines := strings.Split(s, "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func TestCopyToOverShards(t *testing.T) {
	s := startTwoShards(t, gatewayOptions{})
	conn := s.connect("")
	s.both(conn, "INSERT INTO t (k, v, n) VALUES (1, 'a', 10), (2, E'b\\tc\\\\', 20), (3, NULL, NULL), (4, 'x,\"y\"', 5), (5, '', 6), (6, E'two\\nlines', 1)")
	s.both(conn, "INSERT INTO ref (id, name) VALUES (1, 'one'), (2, 'two')")
	for _, sql := range []string{
		"COPY t TO STDOUT",
		"COPY t (v, k) TO STDOUT (FORMAT csv)",
		"COPY t (v, k) TO STDOUT (FORMAT csv, HEADER)",
		"COPY t TO STDOUT (HEADER true, NULL 'none', DELIMITER '|')",
		"COPY t TO STDOUT WITH CSV HEADER QUOTE '''' FORCE QUOTE v",
		"COPY t (v) TO STDOUT (FORMAT csv, FORCE_QUOTE *, ESCAPE '\\')",
		"COPY (SELECT k, v FROM t ORDER BY k DESC) TO STDOUT",
		"COPY (SELECT count(*), sum(n) FROM t) TO STDOUT (FORMAT csv, HEADER)",
		"COPY (SELECT v, n FROM t WHERE k = 4) TO STDOUT (FORMAT csv, HEADER)",
		"COPY (SELECT v, n FROM t WHERE k IN (1, 2) ORDER BY k) TO STDOUT (FORMAT csv, HEADER)",
		"COPY (SELECT k, n FROM t ORDER BY k) TO STDOUT (FORMAT binary)",
		"COPY (SELECT k, n FROM t WHERE k < 0) TO STDOUT (FORMAT binary)",
		"COPY (SELECT k, n FROM t WHERE k < 0) TO STDOUT (HEADER)",
		"COPY (UPDATE t SET n = n + 1 RETURNING k, n) TO STDOUT",
		"COPY (UPDATE t SET n = n + 1) TO STDOUT",
		"COPY (INSERT INTO t (k, v) VALUES (11, 'e'), (12, 'f') RETURNING k) TO STDOUT",
		"COPY ref (id, name) TO STDOUT",
		"COPY t TO STDOUT (FORMAT csv, HEADER match)",
		"COPY t TO STDOUT (QUOTE 'x')",
		"COPY t (nix) TO STDOUT (HEADER)",
		"COPY (SELECT k / 0 FROM t ORDER BY k) TO STDOUT",
	} {
		want, got := copiedOut(s.plain, sql), copiedOut(conn, sql)
		if !strings.Contains(sql, "binary") {
			want, got = linesOf(want), linesOf(got)
		}
		if want != got {
			t.Errorf("%s\n shards: %q\n plain:  %q", sql, got, want)
		}
	}
	s.both(conn, "SELECT k, v, n FROM t ORDER BY k")
	if got := copiedOut(conn, "COPY t TO '/tmp/neki-copy'"); !strings.Contains(got, "[123]") {
		t.Errorf("to a file: %s", got)
	}
	if got := copiedOut(conn, "COPY (SELECT k FROM t ORDER BY k) TO STDOUT (ENCODING 'latin1')"); !strings.Contains(got, pgerr.NotImplemented) {
		t.Errorf("in another encoding: %s", got)
	}
}

// compareOverShards has conversations with the shards and with plain Postgres. setup is run before each.
func (s *shards) compareOverShards(t *testing.T, setup string, all []sequence) {
	for _, tc := range all {
		t.Run(strings.ReplaceAll(tc.name, " ", "_"), func(t *testing.T) {
			s.both(s.connect(""), setup)
			want := converse(t, s.plain.Config(), tc.steps)
			got := converse(t, s.config(""), tc.steps)
			for i := range tc.steps {
				if got[i] != want[i] {
					t.Errorf("step %d: %q\n gateway  %s\n postgres %s", i+1, tc.steps[i].send, got[i], want[i])
				}
			}
		})
	}
}

const copySetup = "DELETE FROM t; INSERT INTO t (k, v) VALUES (1, 'a'), (2, 'b'), (3, 'c')"

// TestCopyToConversations: Describe tells of no rows, and a row limit is none for COPY.
func TestCopyToConversations(t *testing.T) {
	s := startTwoShards(t, gatewayOptions{})
	run := func(sql string) []byte {
		return cat(parse("", sql), bindTo("", ""), describe('P', ""), execute("", 1), syncMsg)
	}
	s.compareOverShards(t, copySetup, []sequence{
		{"simple", []step{{q("COPY (SELECT k, v FROM t ORDER BY k) TO STDOUT (FORMAT csv, HEADER)"), 1}}},
		{"among others", []step{{q("SELECT 1; COPY (SELECT k FROM t ORDER BY k) TO STDOUT; SELECT 2"), 1}}},
		{"extended", []step{{run("COPY (SELECT k, v FROM t ORDER BY k) TO STDOUT (FORMAT csv, HEADER)"), 1}}},
		{"extended as the shards write it", []step{{run("COPY (SELECT 'x' FROM t) TO STDOUT"), 1}}},
		{"extended and described", []step{{cat(parse("s", "COPY (SELECT k FROM t ORDER BY k) TO STDOUT"), describe('S', "s"), syncMsg), 1}}},
	})
}
