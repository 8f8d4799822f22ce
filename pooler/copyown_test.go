package pooler

import (
	"bytes"
	"testing"

	"neki/internal/pgerr"
)

// TestCopyOfTheSchema compares COPY of rows that the gateway makes with Postgres's own of the same values.
func TestCopyOfTheSchema(t *testing.T) {
	g := startWithSchema(t, 1)
	conn := g.connect("")
	pg := g.group.Primary.Conn(t.Context())
	const list = `SELECT E'a\tb\n"c",\\' AS a, NULL::text AS "B", 'plain' AS c, '' AS d, 1.5 AS e`
	copyOut := func(own bool, query, options string) string {
		var b bytes.Buffer
		c := pg.PgConn()
		if own {
			c = conn.PgConn()
			query += " FROM neki.shards"
		}
		tag, err := c.CopyTo(t.Context(), &b, "COPY ("+query+") TO STDOUT "+options)
		if err != nil || tag.String() != "COPY 1" {
			t.Errorf("%s: %s, %v", options, tag, err)
		}
		return b.String()
	}
	for _, options := range []string{
		"", "(FORMAT csv)", "WITH CSV HEADER", "(FORMAT csv, FORCE_QUOTE *, NULL 'nil')", "(DELIMITER '|', NULL '-')",
		"(FORMAT csv, DELIMITER ';', QUOTE '''', ESCAPE '\\')", "(FORMAT text, HEADER)", "(FORMAT csv, NULL 'plain')",
	} {
		if own, want := copyOut(true, list, options), copyOut(false, list, options); own != want {
			t.Errorf("%s:\n%q\nPostgres:\n%q", options, own, want)
		}
	}
	if got, want := copyOut(true, `SELECT '\.'`, "(FORMAT csv)"), copyOut(false, `SELECT '\.'`, "(FORMAT csv)"); got != want {
		t.Errorf("a lone end mark: %q, want %q", got, want)
	}
	var b bytes.Buffer
	if _, err := conn.PgConn().CopyTo(t.Context(), &b, "COPY neki.replicas (node, role) TO STDOUT"); err != nil || b.String() != "sh1-b\treplica\n" {
		t.Errorf("COPY of a relation: %q, %v", b.String(), err)
	}
	for sql, code := range map[string]string{
		"COPY neki.replicas FROM STDIN":                    pgerr.WrongObjectType,
		"COPY neki.replicas TO '/tmp/x'":                   pgerr.FeatureNotSupported,
		"COPY neki.replicas TO STDOUT (FORMAT binary)":     pgerr.NotImplemented,
		"COPY neki.replicas TO STDOUT (FORMAT xml)":        pgerr.InvalidParameterValue,
		"COPY neki.replicas (nosuch) TO STDOUT":            pgerr.UndefinedColumn,
		"COPY neki.replicas TO STDOUT (QUOTE '!')":         pgerr.FeatureNotSupported,
		"CREATE TEMP TABLE x AS SELECT * FROM neki.shards": pgerr.NotImplemented,
	} {
		if _, err := trySimple(conn, sql); pgerr.Code(err) != code {
			t.Errorf("%s: %v, want %s", sql, err, code)
		}
	}
}
