package regress

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lib/pq"
)

// libpqText is the connection string of lib/pq; each extra is one more key=value.
func (c *devCluster) libpqText(extra ...string) string {
	return fmt.Sprintf("host=%s port=%s user=%s password='%s' dbname=%s sslmode=%s sslrootcert='%s' connect_timeout=10 %s",
		c.env["PGHOST"], c.env["PGPORT"], c.env["PGUSER"], c.env["PGPASSWORD"], c.env["PGDATABASE"], c.env["PGSSLMODE"],
		c.env["PGSSLROOTCERT"], strings.Join(extra, " "))
}

func openLibpq(t *testing.T, text string) *sql.DB {
	t.Helper()
	db, err := sql.Open("postgres", text)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	db.SetMaxOpenConns(4)
	return db
}

// TestLibpq does through database/sql and lib/pq what drivers/ does in other languages.
func TestLibpq(t *testing.T) {
	c := cluster(t)
	db := openLibpq(t, c.libpqText())
	for _, text := range []string{
		"DROP TABLE IF EXISTS drv_libpq", "CREATE TABLE drv_libpq (id int PRIMARY KEY, v text)",
		"INSERT INTO drv_libpq VALUES (1, 'one'), (2, 'two')",
	} {
		if _, err := db.Exec(text); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("prepared", func(t *testing.T) { libpqPrepared(t, db) })
	t.Run("transactions", func(t *testing.T) { libpqTransactions(t, db) })
	t.Run("copy", func(t *testing.T) { libpqCopy(t, db) })
	t.Run("notifications", func(t *testing.T) { libpqNotifications(t, c, db) })
	t.Run("cancel", func(t *testing.T) { libpqCancel(t, db) })
	t.Run("replica", func(t *testing.T) {
		replica := openLibpq(t, c.libpqText("options='-c __neki.target=replica -c __neki.replica_consistency=bounded:30s'"))
		for range 3 {
			var recovering bool
			var rows int
			if err := replica.QueryRow("SELECT pg_is_in_recovery(), count(*) FROM drv_libpq WHERE id < $1", 3).Scan(&recovering, &rows); err != nil {
				t.Fatal(err)
			}
			if !recovering || rows != 2 {
				t.Errorf("standby %v, %d rows", recovering, rows)
			}
		}
		_, err := replica.Exec("INSERT INTO drv_libpq VALUES (9, 'refused')")
		wantLibpq(t, err, "25006")
	})
	if _, err := db.Exec("DROP TABLE drv_libpq"); err != nil {
		t.Error(err)
	}
}

func wantLibpq(t *testing.T, err error, code string) {
	t.Helper()
	var pqErr *pq.Error
	if !errors.As(err, &pqErr) || string(pqErr.Code) != code {
		t.Errorf("got %v, want SQLSTATE %s", err, code)
	}
}

func libpqPrepared(t *testing.T, db *sql.DB) {
	stmt, err := db.Prepare("SELECT v FROM drv_libpq WHERE id = $1")
	if err != nil {
		t.Fatal(err)
	}
	defer stmt.Close()
	for id, want := range map[int]string{1: "one", 2: "two"} {
		tx, err := db.Begin()
		if err != nil {
			t.Fatal(err)
		}
		var got string
		if err := tx.Stmt(stmt).QueryRow(id).Scan(&got); err != nil || got != want {
			t.Errorf("%d: %s, %v", id, got, err)
		}
		if err := tx.Commit(); err != nil {
			t.Error(err)
		}
	}
}

func libpqTransactions(t *testing.T, db *sql.DB) {
	tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelSerializable})
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"INSERT INTO drv_libpq VALUES (4, 'kept')", "SAVEPOINT s"} {
		if _, err := tx.Exec(text); err != nil {
			t.Fatal(err)
		}
	}
	_, err = tx.Exec("INSERT INTO drv_libpq VALUES ($1, 'twice')", 4)
	wantLibpq(t, err, "23505")
	if _, err := tx.Exec("ROLLBACK TO s"); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	var n int
	if err := db.QueryRow("SELECT count(*) FROM drv_libpq").Scan(&n); err != nil || n != 3 {
		t.Errorf("%d rows, %v", n, err)
	}
}

func libpqCopy(t *testing.T, db *sql.DB) {
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	stmt, err := tx.Prepare(pq.CopyIn("drv_libpq", "id", "v"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2000 {
		if _, err := stmt.Exec(100+i, "copied"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := stmt.Exec(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(stmt.Close(), tx.Commit()); err != nil {
		t.Fatal(err)
	}
	rows, err := db.Exec("DELETE FROM drv_libpq WHERE v = 'copied'")
	if err != nil {
		t.Fatal(err)
	}
	if n, _ := rows.RowsAffected(); n != 2000 {
		t.Errorf("%d rows were copied", n)
	}
}

func libpqNotifications(t *testing.T, c *devCluster, db *sql.DB) {
	listener := pq.NewListener(c.libpqText(), time.Second, time.Minute, nil)
	defer listener.Close()
	if err := listener.Listen("drv_libpq"); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec("SELECT pg_notify('drv_libpq', $1)", "hello"); err != nil {
		t.Fatal(err)
	}
	select {
	case n := <-listener.Notify:
		if n.Extra != "hello" {
			t.Errorf("payload %q", n.Extra)
		}
	case <-time.After(10 * time.Second):
		t.Error("no notification")
	}
}

func libpqCancel(t *testing.T, db *sql.DB) {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := db.ExecContext(ctx, "SELECT pg_sleep(10)")
	wantLibpq(t, err, "57014")
	var n int
	if err := db.QueryRow("SELECT 42").Scan(&n); err != nil || n != 42 {
		t.Errorf("%d, %v", n, err)
	}
}
