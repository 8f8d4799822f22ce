package pooler

import (
	"context"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"neki/internal/pgerr"
)

// numberedTopology places t, u, ser, child, teams, named and users by key over three shards; ref is on all, everything else on sh1.
const numberedTopology = `{
 "databases": {"DB": {"default_shard_group": "main",
   "global_secondary_indexes": {"users_email": {"schema": "public", "table": "users_by_email", "owner_table": "users",
     "columns": ["email"], "owner_sk_columns": ["k"], "unique": true, "ignore_null": true}},
   "schemas": {"public": {
     "tables": {
       "t": {"shard_group": "data"}, "u": {"shard_group": "data"}, "ser": {"shard_group": "data"}, "child": {"shard_group": "data"},
       "teams": {"shard_group": "data"}, "named": {"shard_group": "data", "shard_index": "by_lower"},
       "users": {"shard_group": "data", "secondary_indexes": [{"name": "users_email"}]},
       "users_by_email": {"shard_group": "data", "shard_index": "by_email"}},
     "reference_tables": {"ref": {"shard_groups": ["data"]}}
   }}}},
 "shard_groups": [
   {"uid": "main", "key_ranges": [{"shard_uid": "sh1"}]},
   {"uid": "data", "default_shard_index": "by_k", "key_ranges": [
     {"shard_uid": "sh1", "end": "0000000000000002"}, {"shard_uid": "sh2", "start": "0000000000000002", "end": "0000000000000003"},
     {"shard_uid": "sh3", "start": "0000000000000003"}]}],
 "shard_indexes": {"by_k": {"type": "range", "columns": ["k"]}, "by_email": {"type": "xxhash", "columns": ["email"]},
   "by_lower": {"type": "xxhash", "columns": ["lower(name)"]}},
 "authoritative_shard_group": "main"
}`

const numberedSchema = `CREATE TABLE t (k int PRIMARY KEY, v text, n int);
CREATE TABLE u (k int, id int, v text, PRIMARY KEY (k, id));
CREATE TABLE ser (k int, id serial);
CREATE TABLE ref (id int PRIMARY KEY, name text);
CREATE TABLE parent (k int);
CREATE TABLE child () INHERITS (parent);
CREATE TABLE teams (k int PRIMARY KEY, v text);
CREATE TABLE users (k int REFERENCES teams ON DELETE CASCADE, id int, email text, PRIMARY KEY (k, id));
CREATE TABLE users_by_email (email text PRIMARY KEY, k int);
CREATE TABLE named (name text);
CREATE TABLE home (id int PRIMARY KEY, v text);
CREATE SEQUENCE s`

// numbered makes a number: all but the last of statements succeed.
type numbered struct {
	prepare    string // by the protocol, as p
	pipeline   string // comes before the statement, without a Sync in between
	flushed    bool   // ... and its answer is awaited
	statements []string
	binary     bool // the last is run by the extended protocol, for values in binary
}

var refusals = map[string]numbered{
	"101": {statements: []string{"SELECT * FROM neki.shards, t"}},
	"102": {statements: []string{"SELECT current_setting('__neki.target'), v FROM t"}},
	"103": {statements: []string{"COPY neki.shards TO STDOUT (FORMAT binary)"}},
	"104": {statements: []string{"BEGIN", "DECLARE c CURSOR FOR SELECT * FROM neki.shards"}},
	"105": {statements: []string{"CREATE TABLE made AS SELECT * FROM neki.shards"}},
	"111": {pipeline: "SELECT v FROM home", flushed: true, statements: []string{"UPDATE t SET v = 'x'"}},
	"113": {statements: []string{"PREPARE p AS SELECT * FROM neki.shards", "EXPLAIN EXECUTE p"}},
	"114": {prepare: "BEGIN", statements: []string{"EXECUTE p"}},
	"115": {statements: []string{
		"INSERT INTO t (k, v) VALUES (1, 'x')", "BEGIN", "SELECT set_config('my.own', v, true) FROM t WHERE k = 1", "SELECT v FROM t WHERE k = 2",
	}},
	"116": {statements: []string{"BEGIN", "UPDATE t SET v = 'x'", "PREPARE TRANSACTION 'both'"}},
	"117": {statements: []string{"SELECT pg_advisory_lock(k) FROM t"}},
	"119": {statements: []string{"CREATE TABLE made AS SELECT * FROM t"}},
	"120": {statements: []string{"BEGIN", "DECLARE c CURSOR FOR SELECT '(1,1)'::point FROM t", "FETCH c"}, binary: true},
	"122": {statements: []string{"COPY t FROM '/tmp/neki-copy'"}},
	"123": {statements: []string{"COPY t TO '/tmp/neki-copy'"}},
	"124": {statements: []string{"PREPARE p AS SELECT v FROM t WHERE k = $1", "EXPLAIN EXECUTE p(1)"}},
	"126": {statements: []string{"SET __neki.shard = 'sh2'", "SELECT 'x'::lone"}},
	"127": {statements: []string{"INSERT INTO ser (k) VALUES (2)", "SELECT currval('ser_id_seq')"}, binary: true},
	"201": {statements: []string{"DELETE FROM t WHERE CURRENT OF c"}},
	"202": {statements: []string{"UPDATE t SET k = 6 WHERE k = 5"}},
	"204": {statements: []string{"WITH x AS (INSERT INTO t VALUES (1, 'a'), (2, 'b') RETURNING k) SELECT * FROM x"}},
	"205": {statements: []string{"MERGE INTO t USING u ON t.v = u.v WHEN MATCHED THEN DELETE"}},
	"206": {statements: []string{"DELETE FROM ref WHERE id IN (SELECT k FROM t)"}},
	"207": {statements: []string{"UPDATE t SET v = u.v FROM u WHERE u.id = t.n"}},
	"208": {statements: []string{"INSERT INTO t (k, v) VALUES ((SELECT max(id) FROM home), 'a')"}},
	"209": {statements: []string{"INSERT INTO u (k, id) VALUES (1, 1), (2, 2) ON CONFLICT (id) DO NOTHING"}},
	"210": {statements: []string{"SELECT nextval('s') FROM t"}},
	"211": {statements: []string{"SELECT v, count(*) FROM t GROUP BY ROLLUP (v)"}},
	"212": {statements: []string{"SELECT upper(v), count(*) FROM t GROUP BY upper(v)"}},
	"213": {statements: []string{"SELECT k FROM t ORDER BY n FOR UPDATE"}},
	"215": {statements: []string{"CREATE TEMP TABLE mine (a int)", "SELECT * FROM mine, t"}},
	"216": {statements: []string{"SELECT count(*), v FROM t WHERE xmlparse(document v preserve whitespace)::text > '' GROUP BY v"}},
	"217": {statements: []string{"SELECT max(p.k) FROM parent p, t WHERE t.n = p.k"}},
	"230": {statements: []string{"WITH d AS (DELETE FROM users RETURNING 1) SELECT count(*) FROM d"}},
	"231": {statements: []string{"INSERT INTO teams VALUES (1, 'x')", "INSERT INTO users VALUES (1, 1, 'a')", "UPDATE users SET id = 7, email = 'b' WHERE k = 1"}},
	"232": {statements: []string{"INSERT INTO users (k, id, email) VALUES (1, 1, 'b') ON CONFLICT DO NOTHING"}},
	"233": {statements: []string{"UPDATE users SET email = 'z' FROM teams t WHERE t.k = users.k RETURNING (t).*"}},
	"234": {statements: []string{"COPY users FROM STDIN"}},
	"235": {statements: []string{"TRUNCATE users"}},
	"236": {statements: []string{"DELETE FROM teams WHERE k = 1"}},
	"400": {statements: []string{"INSERT INTO named VALUES ('\u00c4')"}},
}

// run gives the error of the last statement.
func (r numbered) run(conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if r.prepare != "" {
		if _, err := conn.PgConn().Prepare(ctx, "p", r.prepare, nil); err != nil {
			return err
		}
	}
	last := len(r.statements) - 1
	for _, sql := range r.statements[:last] {
		if _, err := trySimple(conn, sql); err != nil {
			return err
		}
	}
	sql := r.statements[last]
	switch {
	case strings.HasPrefix(sql, "COPY") && r.pipeline == "":
		if strings.Contains(sql, "FROM") {
			_, err := conn.PgConn().CopyFrom(ctx, strings.NewReader(""), sql)
			return err
		}
		_, err := conn.PgConn().CopyTo(ctx, io.Discard, sql)
		return err
	case r.binary:
		return conn.PgConn().ExecParams(ctx, sql, nil, nil, nil, []int16{1}).Read().Err
	case r.pipeline != "":
		return inPipeline(ctx, conn.PgConn(), r.flushed, r.pipeline, sql)
	}
	_, err := trySimple(conn, sql)
	return err
}

// inPipeline sends two statements without a Sync between them and gives their error. flushed: the first is answered before the
// second is sent.
func inPipeline(ctx context.Context, conn *pgconn.PgConn, flushed bool, statements ...string) error {
	fe := conn.Frontend()
	var failure error
	await := func(done func(pgproto3.BackendMessage) bool) error {
		if err := fe.Flush(); err != nil {
			return err
		}
		for {
			m, err := conn.ReceiveMessage(ctx)
			if err != nil {
				return err
			}
			if e, ok := m.(*pgproto3.ErrorResponse); ok {
				failure = pgerr.FromResponse(e)
			}
			if done(m) {
				return nil
			}
		}
	}
	for i, sql := range statements {
		fe.Send(&pgproto3.Parse{Query: sql})
		fe.Send(&pgproto3.Bind{})
		fe.Send(&pgproto3.Execute{})
		if !flushed || i > 0 {
			continue
		}
		fe.Send(&pgproto3.Flush{})
		if err := await(func(m pgproto3.BackendMessage) bool { _, done := m.(*pgproto3.CommandComplete); return done }); err != nil {
			return err
		}
	}
	fe.Send(&pgproto3.Sync{})
	if err := await(func(m pgproto3.BackendMessage) bool { _, done := m.(*pgproto3.ReadyForQuery); return done }); err != nil {
		return err
	}
	return failure
}

// TestNumbersOfNK013: each number of docs/errors.md is one that a statement makes, and the code has no others.
func TestNumbersOfNK013(t *testing.T) {
	documented := numbersIn(t, regexp.MustCompile(`(?m)^\| ([1-9][0-9]{2}) \|`), "../docs/errors.md")
	var sources []string
	for _, pattern := range []string{"*.go", "plan/*.go", "backend/*.go", "fanout/*.go", "../admin_sql/*.go", "../catalog/*.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if !strings.HasSuffix(f, "_test.go") {
				sources = append(sources, f)
			}
		}
	}
	raised := numbersIn(t, regexp.MustCompile(`"(?:not implemented: )?\[([1-9][0-9]{2})\] |[nN]otImplemented\w+ = ([1-9][0-9]{2})`), sources...)
	raised = append(raised, numbersIn(t, regexp.MustCompile(`(?m)^\t\w+ += ([1-9][0-9]{2})$`), "plan/shardnumbers.go", "plan/virtual.go")...)
	for _, n := range raised {
		if !slices.Contains(documented, n) {
			t.Errorf("[%s] is raised by the code, but not in docs/errors.md", n)
		}
	}
	for _, n := range documented {
		if _, ok := refusals[n]; !ok {
			t.Errorf("[%s] of docs/errors.md has no statement here", n)
		}
	}
	late := &lateFacts{}
	s := startShards(t, 3, numberedTopology, gatewayOptions{config: late.addSchema})
	late.server = s.server
	s.everywhere(numberedSchema)
	s.onShard(2, "CREATE TYPE lone AS ENUM ('x')")
	s.learn()
	for _, n := range slices.Sorted(maps.Keys(refusals)) {
		conn := s.connect("")
		err := refusals[n].run(conn)
		if pgerr.Code(err) != pgerr.NotImplemented || !strings.Contains(err.Error(), "["+n+"]") {
			t.Errorf("%s: %v, want NK013 [%s]", refusals[n].statements, err, n)
		}
		_ = conn.Close(t.Context())
		if !slices.Contains(documented, n) {
			t.Errorf("[%s] is not in docs/errors.md", n)
		}
		next := s.connect("") // is not hurt by what was given up
		if got := one(t, next, "SELECT count(*) FROM u"); got != "0" {
			t.Errorf("after [%s]: %s", n, got)
		}
		_ = next.Close(t.Context())
	}
}

// numbersIn gives what an expression captures in files.
func numbersIn(t *testing.T, re *regexp.Regexp, files ...string) []string {
	t.Helper()
	var out []string
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range re.FindAllStringSubmatch(string(text), -1) {
			out = append(out, strings.Join(m[1:], ""))
		}
	}
	if len(out) == 0 {
		t.Fatalf("no numbers in %v", files)
	}
	return out
}
