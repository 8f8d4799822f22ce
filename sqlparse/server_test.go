package sqlparse_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"neki/internal/testpg"
	"neki/sqlparse"
)

// TestSetAgainstPostgres: set_config with what SetStmt says gives the setting the value that the SET itself gives.
func TestSetAgainstPostgres(t *testing.T) {
	server := testpg.Start(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	server.Exec(`create role "Some one"; create role plain`)
	direct, replayed := server.Conn(ctx), server.Conn(ctx)
	for _, sql := range []string{
		"set work_mem = '4MB'", "set work_mem to 100", "set seq_page_cost = 1.50", "set enable_seqscan = off",
		"set enable_seqscan to false", "set a.b = 'C d'", "set A.B to c", "set a.b = -5", "set a.b to 1.5e3", "set a.b = on",
		"set search_path = a, \"B\", 'c d', \"$user\"", "set search_path to ''", "set search_path to 'a, b'", "set search_path = user1, \"select\"",
		"set search_path = public", "set schema 'Some x'", "set datestyle = iso, dmy", "set datestyle = 'SQL, MDY'", "set temp_tablespaces = ''",
		"set time zone 'UTC'", "set time zone utc", "set time zone 'Europe/Rome'", "set time zone -5", "set time zone 5.5", "set time zone local",
		"set time zone interval '-08:00' hour to minute", "set time zone interval '8' hour", "set time zone interval '5:30' hour",
		"set time zone interval '90' hour to minute", "set time zone interval '+3:30' hour to minute", "set time zone interval(2) '5'",
		"set time zone interval '5 hours'", "set time zone interval '1:30:15' hour to minute", "set time zone interval '-8' hour",
		"set time zone interval '2 hours 15 minutes' hour", "set timezone = 'UTC'",
		"set names 'latin1'", "set names", "set client_encoding to 'utf8'", "set xml option document", "set xml option content",
		"set role \"Some one\"", "set role plain", "set role none", "set session authorization plain", "set session authorization default",
		"set intervalstyle = iso_8601", "set bytea_output to \"escape\"", "set application_name = 'it''s \\ me'", "set application_name = E'a\\tb'",
		"set application_name = U&'d\\0061t'", "set statement_timeout = '5s'", "set extra_float_digits = -3", "reset work_mem", "set work_mem to default",
		"set session work_mem = '5MB'", "set default_transaction_isolation = 'repeatable read'", "set default_transaction_isolation to serializable",
	} {
		stmt, err := sqlparse.Parse(sql)
		if err != nil {
			t.Errorf("%s: %v", sql, err)
			continue
		}
		if _, err := direct.Exec(ctx, sql); err != nil {
			t.Errorf("%s: %v", sql, err)
			continue
		}
		set, args := "select set_config($1, $2, false)", []any{stmt.Set.Name, stmt.Set.Value}
		if stmt.Set.Default {
			set, args = "reset "+stmt.Set.Name, nil
		}
		if _, err := replayed.Exec(ctx, set, args...); err != nil {
			t.Errorf("%s: replayed with %v: %v", sql, args, err)
			continue
		}
		var want, got string
		if err := direct.QueryRow(ctx, "select current_setting($1)", stmt.Set.Name).Scan(&want); err != nil {
			t.Fatal(err)
		}
		if err := replayed.QueryRow(ctx, "select current_setting($1)", stmt.Set.Name).Scan(&got); err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Errorf("%s: %s is %q, replayed %q", sql, stmt.Set.Name, want, got)
		}
	}
}

// statements gives the lines of the classification's test data.
func statements(t *testing.T) (texts []string) {
	t.Helper()
	paths, err := filepath.Glob("testdata/classify/*")
	if err != nil || len(paths) == 0 {
		t.Fatal("no test data", err)
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		input, _, _ := strings.Cut(string(data), "\n----\n")
		for line := range strings.Lines(strings.TrimPrefix(input, "classify\n")) {
			texts = append(texts, strings.TrimSpace(line))
		}
	}
	return texts
}

// run sends a statement and gives its command tag.
func run(ctx context.Context, conn *pgx.Conn, stmt *sqlparse.Statement) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	switch copies := stmt.Copy; {
	case copies == nil || !copies.Client:
	case copies.From:
		tag, err := conn.PgConn().CopyFrom(ctx, strings.NewReader(""), stmt.Text)
		return tag.String(), err
	default:
		tag, err := conn.PgConn().CopyTo(ctx, io.Discard, stmt.Text)
		return tag.String(), err
	}
	results, err := conn.PgConn().Exec(ctx, stmt.Text).ReadAll()
	if err != nil {
		return "", err
	}
	return results[0].CommandTag.String(), nil
}

// clean ends what a statement left in the session.
func clean(ctx context.Context, t *testing.T, conn *pgx.Conn) {
	t.Helper()
	for _, sql := range []string{"rollback", "reset session authorization", "discard all"} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
}

// objects are what most statements of the test data name.
const objects = `
create table t (a int primary key, b text, c int, d int, e int, g int, f int);
create table u (like t including all); create table v (like t including all); create table w (like t including all);
create schema s; create table s.t (like t including all); create table s.u (like t including all);
create sequence a; create sequence q; create materialized view m as select 1 as a;
create function f() returns int language sql as 'select 1'; create function g() returns bool language sql as 'select true';
create function h() returns int language sql as 'select 1'; create function f(int) returns int language sql as 'select 1';
create procedure p() language plpgsql as 'begin end'; create role r; create view pub as select 1`

// TestStandbyAgrees: what a hot standby refuses is not ReadOnly; and what is said to be ReadOnly, it doesn't refuse.
func TestStandbyAgrees(t *testing.T) {
	group := testpg.Cluster(t, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	group.Primary.Exec(objects)
	group.WaitCaughtUp()
	conn := group.Replicas[0].Conn(ctx)
	refused := 0
	for _, sql := range statements(t) {
		stmt, err := sqlparse.Parse(sql)
		if err != nil || stmt.Kind == sqlparse.KindEmpty {
			continue
		}
		_, err = run(ctx, conn, stmt)
		var pg *pgconn.PgError
		if errors.As(err, &pg) && (pg.Code == "25006" || strings.Contains(pg.Message, "during recovery")) {
			refused++
			if stmt.ReadOnly(func(sqlparse.FuncRef) bool { return false }) {
				t.Errorf("%s: the standby says %s, ReadOnly says it may", sql, pg.Message)
			}
		}
		clean(ctx, t, conn)
	}
	if refused < 30 {
		t.Errorf("the standby refused %d statements only: the test data names what isn't there", refused)
	}
}

// TestTagsAgainstPostgres: a statement's Tag is that of Postgres, without counts.
func TestTagsAgainstPostgres(t *testing.T) {
	server := testpg.Start(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	conn := server.Conn(ctx)
	compared := 0
	for _, sql := range statements(t) {
		stmt, err := sqlparse.Parse(sql)
		if err != nil || stmt.Kind == sqlparse.KindEmpty || stmt.Kind == sqlparse.KindExplain ||
			stmt.Kind == sqlparse.KindPrepareTransaction { // outside a transaction it is a ROLLBACK
			continue
		}
		if _, err := conn.Exec(ctx, "drop schema if exists s cascade; drop schema public cascade; create schema public; "+
			"drop role if exists r, u, g"); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(ctx, objects); err != nil {
			t.Fatal(err)
		}
		tag, err := run(ctx, conn, stmt)
		if err != nil {
			clean(ctx, t, conn)
			continue
		}
		got := strings.TrimRight(tag, " 0123456789")
		want := stmt.Tag
		if want == "CREATE TABLE AS" || want == "SELECT INTO" {
			want = "SELECT" // the tag of the event, not of the answer
		}
		compared++
		if got != want && want != "CREATE MATERIALIZED VIEW" {
			t.Errorf("%s: tag %q, Postgres says %q", sql, stmt.Tag, got)
		}
		clean(ctx, t, conn)
	}
	if compared < 150 {
		t.Errorf("%d tags compared only: the test data names what isn't there", compared)
	}
}
