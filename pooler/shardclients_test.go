package pooler

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// fillForClients puts rows on both shards whose texts are awkward for COPY.
func fillForClients(s *shards, conn *pgx.Conn) {
	s.t.Helper()
	var rows []string
	for k := 1; k <= 40; k++ {
		rows = append(rows, fmt.Sprintf(`(%d, E'row %[1]d\ttab, "quoted"\nline \\ ü', %s)`, k, []string{"NULL", fmt.Sprint(k)}[k%2]))
	}
	simple(s.t, conn, "INSERT INTO t (k, v, n) VALUES "+strings.Join(rows, ", "))
	simple(s.t, conn, `INSERT INTO ref (id, name, at) VALUES (1, 'one', '2024-01-01'), (2, 'a\b', '2024-01-02')`)
	simple(s.t, conn, "INSERT INTO home (id, v) VALUES (1, 'x')")
}

const allOfThem = "SELECT k, v, n FROM t ORDER BY k; SELECT id, name, at FROM ref ORDER BY id; SELECT id, v FROM home ORDER BY id"

// placed gives how many rows of t and ref each shard has.
func placed(s *shards) string {
	s.t.Helper()
	out := ""
	for i := range s.servers {
		out += fmt.Sprint(s.onShard(i+1, "SELECT (SELECT count(*) FROM t), (SELECT count(*) FROM ref), (SELECT count(*) FROM t WHERE k IN (1, 3))"))
	}
	return out
}

// TestShardsPsqlCopy: psql's \copy out of a sharded table and back into it, in each format.
func TestShardsPsqlCopy(t *testing.T) {
	s := startTwoShards(t, gatewayOptions{})
	conn := s.connect("")
	fillForClients(s, conn)
	want, where := outcome(conn, allOfThem), placed(s)
	file := filepath.Join(t.TempDir(), "t")
	for _, format := range []string{"(FORMAT text)", "(FORMAT csv, HEADER)", "(FORMAT binary)", "(FORMAT csv, DELIMITER ';', NULL 'none')"} {
		s.program(t, "", "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-c", `\copy t TO '`+file+`' WITH `+format,
			"-c", "DELETE FROM t", "-c", `\copy t FROM '`+file+`' WITH `+format)
		if got := outcome(conn, allOfThem); got != want || placed(s) != where {
			t.Errorf("%s: %s on %s, want %s on %s", format, got, placed(s), want, where)
		}
	}
}

// TestShardsPgDump: what pg_dump reads of a sharded database, pg_restore and psql put back where it was.
func TestShardsPgDump(t *testing.T) {
	s := startTwoShards(t, gatewayOptions{})
	conn := s.connect("")
	fillForClients(s, conn)
	want, where := outcome(conn, allOfThem), placed(s)
	dir := t.TempDir()
	const drop = "DROP TABLE t, u, w, ref, home"
	for _, format := range []string{"custom", "plain"} {
		file := filepath.Join(dir, format)
		s.program(t, "", "pg_dump", "-F", format, "--no-owner", "-f", file)
		simple(t, conn, drop)
		if format == "plain" {
			s.program(t, "", "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", file)
		} else {
			s.program(t, "", "pg_restore", "--exit-on-error", "--no-owner", "-d", s.dbname, file)
		}
		if got := outcome(conn, allOfThem); got != want || placed(s) != where {
			t.Errorf("%s: %s on %s, want %s on %s", format, got, placed(s), want, where)
		}
	}
}

// psycopgCopy copies rows into t and out of it.
const psycopgCopy = `
import sys, psycopg
with psycopg.connect("") as conn:
    with conn.cursor() as cur:
        cur.execute("DELETE FROM t")
        for binary in (False, True):
            fmt = " (FORMAT binary)" if binary else ""
            base = 100 if binary else 0
            with cur.copy("COPY t (v, k, n) FROM STDIN" + fmt) as copy:
                if binary:
                    copy.set_types(["text", "int4", "int4"])
                for k in range(base + 1, base + 21):
                    copy.write_row(("v\t%d\n" % k, k, None if k % 2 else k))
            with cur.copy("COPY (SELECT k, v, n FROM t ORDER BY k) TO STDOUT" + fmt) as copy:
                copy.set_types(["int4", "text", "int4"])
                rows = list(copy.rows())
        want = [(k, "v\t%d\n" % k, None if k % 2 else k) for b in (0, 100) for k in range(b + 1, b + 21)]
        if rows != want:
            sys.exit("read %r" % rows)
`

// TestShardsPsycopgCopy: psycopg's COPY, in text and binary, both ways.
func TestShardsPsycopgCopy(t *testing.T) {
	const module = "/usr/lib/python3/dist-packages/psycopg"
	if _, err := os.Stat(module); err != nil && os.Getenv("CI") != "true" {
		t.Skip("scripts/setup.sh test installs psycopg")
	}
	s := startTwoShards(t, gatewayOptions{})
	s.program(t, "", "/usr/bin/python3", "-c", psycopgCopy)
	if got := placed(s); got != "[[2 0 2]][[38 0 0]]" {
		t.Errorf("placed %s", got)
	}
	if got := one(t, s.connect(""), "SELECT count(*) FROM t"); got != "40" {
		t.Errorf("%s rows", got)
	}
}

// TestShardsPgxCopyFrom: pgx's CopyFrom, which is in binary.
func TestShardsPgxCopyFrom(t *testing.T) {
	s := startTwoShards(t, gatewayOptions{})
	for _, conn := range []*pgx.Conn{s.connect(""), s.plain} {
		n, err := conn.CopyFrom(t.Context(), pgx.Identifier{"t"}, []string{"v", "k"}, pgx.CopyFromSlice(1000, func(i int) ([]any, error) {
			return []any{fmt.Sprint("v", i), i + 1}, nil
		}))
		if err != nil || n != 1000 {
			t.Fatalf("%d rows, %v", n, err)
		}
	}
	s.both(s.connect(""), "SELECT k, v FROM t ORDER BY k")
	if got := s.onShard(2, "SELECT count(*) FROM t WHERE k IN (1, 3)")[0][0]; got != "0" {
		t.Errorf("%s rows are on the wrong shard", got)
	}
}
