package pooler

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"neki/internal/pgerr"
)

// ownTypesSchema has a type of each kind that is made of others.
const ownTypesSchema = `CREATE TYPE mood AS ENUM ('ok', 'sad');
CREATE TYPE pair AS (a int, m mood);
CREATE DOMAIN feel AS mood;
CREATE DOMAIN moods AS mood[];
CREATE TYPE moodrange AS RANGE (subtype = mood);
CREATE TYPE deep AS (p pair, ps pair[], r moodrange);
ALTER TABLE t ADD m mood, ADD ms mood[], ADD p pair, ADD ps pair[], ADD f feel, ADD fs moods, ADD r moodrange, ADD rs moodmultirange,
  ADD d deep, ADD i int4range`

const ownTypesColumns = `m, ms, p, ps, f, fs, r, rs, d, i, ROW(m, ms, 1), ARRAY[ROW(m)], pg_typeof(ms), tableoid::regclass, v`

// startOwnTypes gives two shards with the same types under different OIDs, and one row on each whose values are the same.
func startOwnTypes(t *testing.T) *shards {
	t.Helper()
	s := startTwoShards(t, gatewayOptions{})
	for i := range 7 {
		s.onShard(2, fmt.Sprintf("CREATE TYPE other%d AS ENUM ('x')", i))
	}
	s.everywhere(ownTypesSchema)
	s.learn()
	values := `'sad', '{ok,NULL,sad}', '(1,ok)', '{"(1,ok)",NULL,"(2,sad)"}', 'ok', '{sad}', '[ok,sad]', '{[ok,ok]}',
		ROW(ROW(7, 'sad')::pair, ARRAY[ROW(8, 'ok')::pair], '[ok,]'::moodrange)::deep, '[1,5)', 'v'`
	insert := "INSERT INTO t (m, ms, p, ps, f, fs, r, rs, d, i, v, k) VALUES (" + values + ", %d)"
	s.onShard(1, fmt.Sprintf(insert, 1))
	s.onShard(2, fmt.Sprintf(insert, 2))
	return s
}

// described is a result with what its columns are said to be.
type described struct {
	Fields []string
	Rows   [][][]byte
}

func describedOf(t *testing.T, r *pgconn.Result) described {
	t.Helper()
	if r.Err != nil {
		t.Fatal(r.Err)
	}
	d := described{Rows: r.Rows}
	for _, f := range r.FieldDescriptions {
		d.Fields = append(d.Fields, fmt.Sprintf("%s %d of %d.%d", f.Name, f.DataTypeOID, f.TableOID, f.TableAttributeNumber))
	}
	return d
}

// TestP12OwnTypes: types that users made have one OID each as clients see it, in descriptions and inside of values.
func TestP12OwnTypes(t *testing.T) {
	s := startOwnTypes(t)
	conn := s.connect("").PgConn()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	query := "SELECT " + ownTypesColumns + " FROM t WHERE k = $1"
	for _, format := range []int16{0, 1} {
		run := func(key string) described {
			return describedOf(t, conn.ExecParams(ctx, query, [][]byte{[]byte(key)}, nil, nil, []int16{format}).Read())
		}
		home, other := run("1"), run("2")
		if diff := cmp.Diff(home, other); diff != "" || len(home.Rows) != 1 {
			t.Errorf("format %d: %s", format, diff)
		}
		all := describedOf(t, conn.ExecParams(ctx, "SELECT "+ownTypesColumns+" FROM t", nil, nil, nil, []int16{format}).Read())
		if len(all.Rows) != 2 {
			t.Fatalf("%d rows", len(all.Rows))
		}
		for i, row := range all.Rows {
			if diff := cmp.Diff(home.Rows[0], row); diff != "" {
				t.Errorf("format %d, row %d of all shards: %s", format, i, diff)
			}
		}
		if diff := cmp.Diff(home.Fields, all.Fields); diff != "" {
			t.Errorf("columns of all shards: %s", diff)
		}
	}
	if _, err := conn.Prepare(ctx, "all", query, nil); err != nil {
		t.Fatal(err)
	}
	want := execUndescribed(t, conn, "all", "1")
	if got := execUndescribed(t, conn, "all", "2"); !cmp.Equal(want, got) {
		t.Errorf("without a description: %s", cmp.Diff(want, got))
	}
	home, err := conn.Prepare(ctx, "params", "SELECT $1::mood, $2::pair[], v FROM t WHERE k = $3", nil)
	if err != nil {
		t.Fatal(err)
	}
	mood := home.ParamOIDs[0]
	for _, key := range []string{"1", "2"} {
		r := conn.ExecParams(ctx, "SELECT count(*), $2 FROM t WHERE k = $3 AND m = $1", [][]byte{[]byte("sad"), []byte("{ok}"), []byte(key)},
			[]uint32{mood, moodArray(t, s), 23}, nil, []int16{1}).Read()
		if r.Err != nil || !bytes.Equal(r.Rows[0][0], []byte{0, 0, 0, 0, 0, 0, 0, 1}) {
			t.Errorf("parameters with types on the shard of %s: %v, %v", key, r.Rows, r.Err)
		} else if oid := r.Rows[0][1][8:12]; !bytes.Equal(oid, []byte{byte(mood >> 24), byte(mood >> 16), byte(mood >> 8), byte(mood)}) {
			t.Errorf("an array's type on the shard of %s: %v, want %d", key, oid, mood)
		}
	}
}

// TestTablesHaveOneOID: columns of a table are said to be of the same table whichever shard the row is on, also when the
// statement is run again and again and its answer passes as it is.
func TestTablesHaveOneOID(t *testing.T) {
	s := startOwnTypes(t)
	s.everywhere("DROP TABLE t; CREATE TABLE t (k int PRIMARY KEY, v text)")
	s.onShard(1, "INSERT INTO t VALUES (1, 'v')")
	s.onShard(2, "INSERT INTO t VALUES (2, 'v')")
	s.learn()
	if one, two := s.onShard(1, "SELECT 't'::regclass::oid"), s.onShard(2, "SELECT 't'::regclass::oid"); cmp.Equal(one, two) {
		t.Fatalf("the shards' own OIDs are the same: %v", one)
	}
	conn := s.connect("").PgConn()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var first described
	for range 4 {
		for _, key := range []string{"1", "2"} {
			got := describedOf(t, conn.ExecParams(ctx, "SELECT v FROM t WHERE k = $1", [][]byte{[]byte(key)}, nil, nil, nil).Read())
			if first.Fields == nil {
				first = got
			}
			if diff := cmp.Diff(first, got); diff != "" {
				t.Errorf("extended, key %s: %s", key, diff)
			}
			results, err := conn.Exec(ctx, "SELECT v FROM t WHERE k = "+key).ReadAll()
			if err != nil || len(results) != 1 {
				t.Fatalf("%d results, %v", len(results), err)
			}
			if diff := cmp.Diff(first, describedOf(t, results[0])); diff != "" {
				t.Errorf("simple, key %s: %s", key, diff)
			}
		}
	}
}

func moodArray(t *testing.T, s *shards) uint32 {
	t.Helper()
	var oid uint32
	if _, err := fmt.Sscan(s.onShard(1, "SELECT '_mood'::regtype::oid")[0][0], &oid); err != nil {
		t.Fatal(err)
	}
	return oid
}

// execUndescribed executes a prepared statement with results in binary, without asking what they are.
func execUndescribed(t *testing.T, conn *pgconn.PgConn, name, param string) (rows [][][]byte) {
	t.Helper()
	f := conn.Frontend()
	f.SendBind(&pgproto3.Bind{PreparedStatement: name, Parameters: [][]byte{[]byte(param)}, ResultFormatCodes: []int16{1}})
	f.SendExecute(&pgproto3.Execute{})
	f.SendSync(&pgproto3.Sync{})
	if err := f.Flush(); err != nil {
		t.Fatal(err)
	}
	for {
		msg, err := f.Receive()
		if err != nil {
			t.Fatal(err)
		}
		switch msg := msg.(type) {
		case *pgproto3.DataRow:
			var row [][]byte
			for _, v := range msg.Values {
				row = append(row, bytes.Clone(v))
			}
			rows = append(rows, row)
		case *pgproto3.RowDescription:
			t.Error("a RowDescription that nobody asked for")
		case *pgproto3.ErrorResponse:
			t.Error(msg.Message)
		case *pgproto3.ReadyForQuery:
			return rows
		}
	}
}

// TestOwnTypesThatChange: a composite type that gets another field within the transaction.
func TestOwnTypesThatChange(t *testing.T) {
	s := startOwnTypes(t)
	s.everywhere("CREATE TYPE plain AS (a int); ALTER TABLE t ADD pl plain")
	s.learn()
	conn := s.connect("").PgConn()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, sql := range []string{
		"SELECT pl FROM t", "BEGIN", "SELECT pl FROM t WHERE k = 2", "ALTER TYPE plain ADD ATTRIBUTE m mood", "UPDATE t SET pl = (1, 'ok')",
	} {
		if _, err := conn.Exec(ctx, sql).ReadAll(); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	run := func(key string) described {
		return describedOf(t, conn.ExecParams(ctx, "SELECT pl FROM t WHERE k = $1", [][]byte{[]byte(key)}, nil, nil, []int16{1}).Read())
	}
	if home, other := run("1"), run("2"); !cmp.Equal(home, other) {
		t.Error(cmp.Diff(home, other))
	}
}

// TestOwnTypeOfOneShard: a type that the home does not have is an error, not another type's OID.
func TestOwnTypeOfOneShard(t *testing.T) {
	s := startOwnTypes(t)
	conn := s.connect("")
	if got := one(t, conn, "SELECT m FROM t WHERE k = 2"); got != "sad" {
		t.Errorf("before: %s", got)
	}
	s.onShard(2, "CREATE TYPE alone AS ENUM ('here'); ALTER TABLE t ALTER m TYPE alone USING 'here'::alone")
	if _, err := trySimple(conn, "SELECT m FROM t WHERE k = 2"); pgerr.Code(err) == "" {
		t.Errorf("a type that only one shard has: %v", err)
	}
}

// TestOwnTypesOfParametersElsewhere: each shard is told of a parameter that only another shard's row of a split INSERT has,
// when its type is one of a user's.
func TestOwnTypesOfParametersElsewhere(t *testing.T) {
	s := startOwnTypes(t)
	conn := s.connect("").PgConn()
	params := [][]byte{[]byte("3"), []byte("ok"), []byte("1"), []byte("12"), []byte("sad"), nil}
	const sql = "INSERT INTO t (k, m, n) VALUES ($1, $2::mood, $3), ($4, $5, $6)"
	if r := conn.ExecParams(t.Context(), sql, params, nil, nil, nil).Read(); r.Err != nil || r.CommandTag.String() != "INSERT 0 2" {
		t.Errorf("unnamed: %s, %v", r.CommandTag, r.Err)
	}
	if _, err := conn.Prepare(t.Context(), "st", sql, []uint32{23, 0, 23}); err != nil {
		t.Fatal(err)
	}
	r := conn.ExecPrepared(t.Context(), "st", [][]byte{{0, 0, 0, 14}, []byte("ok"), nil, []byte("0"), []byte("sad"), nil}, []int16{1, 0, 1, 0, 0, 0}, nil).Read()
	if r.Err != nil {
		t.Errorf("named: %v", r.Err)
	}
	for shard, want := range map[int]string{1: "[[0 sad ] [3 ok 1]]", 2: "[[12 sad ] [14 ok ]]"} {
		if got := fmt.Sprint(s.onShard(shard, "SELECT k, m, n FROM t WHERE k NOT IN (1, 2) ORDER BY k")); got != want {
			t.Errorf("shard %d has %s", shard, got)
		}
	}
}

// TestRollbackOfWhatTheGatewayFailed: a transaction that is on one shard so far, and fails in the gateway, ends like any other.
func TestRollbackOfWhatTheGatewayFailed(t *testing.T) {
	s := startOwnTypes(t)
	conn := s.connect("")
	for _, fails := range []string{
		"SELECT 1 FROM t FULL JOIN u ON t.n = u.id WHERE t.m IS NULL",
		"MERGE INTO t USING u ON t.n = u.id WHEN MATCHED THEN DELETE", "DELETE FROM t USING u WHERE t.n = u.id",
		"SELECT m, count(*) FROM t GROUP BY m ORDER BY m", "UPDATE t SET k = k + 1",
	} {
		for _, end := range []string{"ROLLBACK", "COMMIT", "ROLLBACK TO a"} {
			simple(t, conn, "BEGIN; SAVEPOINT a")
			simple(t, conn, "UPDATE t SET v = 'w' WHERE k = 2")
			simpleErr := error(nil)
			if len(fails)%2 == 0 {
				_, simpleErr = trySimple(conn, fails)
			} else {
				simpleErr = conn.PgConn().ExecParams(t.Context(), fails, nil, nil, nil, nil).Read().Err
			}
			if _, err := trySimple(conn, end); err != nil || conn.PgConn().TxStatus() == 'E' {
				t.Fatalf("%s after %q (%v): %v", end, fails, simpleErr, err)
			}
			if _, err := trySimple(conn, "ROLLBACK"); err != nil {
				t.Fatal(err)
			}
			if got := one(t, conn, "SELECT count(*) FROM t WHERE v = 'w'"); got != "0" && simpleErr != nil {
				t.Errorf("%s after %q leaves %s rows", end, fails, got)
			}
			simple(t, conn, "UPDATE t SET v = 'v'")
		}
	}
}
