package regress

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// TestAutoUnderMixedLoad runs all kinds of statements under target auto. Each worker knows what its own rows must be,
// so a write that went to a replica is an error and a read that came too early is a difference. NEKI_SOAK gives the
// time (default 10s).
func TestAutoUnderMixedLoad(t *testing.T) {
	soak, err := time.ParseDuration(os.Getenv("NEKI_SOAK"))
	if err != nil {
		soak = 10 * time.Second
	}
	c := cluster(t)
	control := c.mustConnect(t)
	waitEligible(t, control)
	mustExec(t, control, "DROP TABLE IF EXISTS regress_auto; DROP SEQUENCE IF EXISTS regress_auto_seq")
	mustExec(t, control, "CREATE TABLE regress_auto (worker int, id bigint, v int, PRIMARY KEY (worker, id)); CREATE SEQUENCE regress_auto_seq")
	mustExec(t, control, `CREATE OR REPLACE FUNCTION regress_auto_bump(w int, i bigint) RETURNS int LANGUAGE sql VOLATILE AS
		'UPDATE regress_auto SET v = v + 1 WHERE worker = w AND id = i RETURNING v'`)
	const workers = 8
	var group sync.WaitGroup
	results := make([]autoWorker, workers)
	for n := range workers {
		w := &results[n]
		w.id, w.rows = n, map[int64]int{}
		w.conn = c.mustConnect(t, "__neki.target=auto", "__neki.replica_consistency=session", "__neki.replica_wait=10s")
		w.random = rand.New(rand.NewPCG(uint64(n), 1))
		group.Go(func() {
			for end := time.Now().Add(soak); time.Now().Before(end) && w.err == nil; w.steps++ {
				w.err = w.step(t.Context())
			}
		})
	}
	group.Wait()
	steps, onReplica := 0, 0
	for n := range results {
		steps, onReplica = steps+results[n].steps, onReplica+results[n].onReplica
		if err := results[n].err; err != nil {
			t.Errorf("worker %d, step %d: %v", n, results[n].steps, err)
		}
	}
	t.Logf("%d steps, %d reads on replicas", steps, onReplica)
	if onReplica == 0 {
		t.Error("no read went to a replica")
	}
	mustExec(t, control, "DROP TABLE regress_auto; DROP SEQUENCE regress_auto_seq; DROP FUNCTION regress_auto_bump(int, bigint)")
}

// autoWorker owns the rows of one worker number.
type autoWorker struct {
	id               int
	conn             *pgx.Conn
	random           *rand.Rand
	rows             map[int64]int // what must be there
	next             int64
	steps, onReplica int
	err              error
}

// step writes in one of many ways, then reads everything back.
func (w *autoWorker) step(ctx context.Context) error {
	ways := []func(context.Context) error{
		w.insert, w.update, w.remove, w.insertByCTE, w.nextval, w.lockAndUpdate, w.bump, w.explain, w.rollback, w.prepared,
	}
	n := w.random.IntN(len(ways))
	if err := ways[n](ctx); err != nil {
		return fmt.Errorf("way %d: %w", n, err)
	}
	return w.read(ctx)
}

func (w *autoWorker) read(ctx context.Context) error {
	rows, err := w.conn.Query(ctx, "SELECT id, v, pg_is_in_recovery() FROM regress_auto WHERE worker = $1", w.id)
	if err != nil {
		return err
	}
	got := map[int64]int{}
	var id int64
	var v int
	var replica bool
	if _, err := pgx.ForEachRow(rows, []any{&id, &v, &replica}, func() error {
		got[id] = v
		return nil
	}); err != nil {
		return err
	}
	if replica {
		w.onReplica++
	}
	if !maps.Equal(got, w.rows) {
		return fmt.Errorf("read %v, wrote %v (on a replica: %v)", got, w.rows, replica)
	}
	return nil
}

// any gives one of the worker's rows, after making one if there is none.
func (w *autoWorker) any(ctx context.Context) (int64, error) {
	for id := range w.rows {
		return id, nil
	}
	return w.next, w.insert(ctx)
}

func (w *autoWorker) insert(ctx context.Context) error {
	if len(w.rows) > 50 {
		return w.remove(ctx)
	}
	w.next++
	_, err := w.conn.Exec(ctx, "INSERT INTO regress_auto VALUES ($1, $2, 0)", w.id, w.next)
	w.rows[w.next] = 0
	return err
}

func (w *autoWorker) update(ctx context.Context) error {
	id, err := w.any(ctx)
	if err != nil {
		return err
	}
	w.rows[id] = w.random.IntN(1000)
	_, err = w.conn.Exec(ctx, "UPDATE regress_auto SET v = $3 WHERE worker = $1 AND id = $2", w.id, id, w.rows[id])
	return err
}

func (w *autoWorker) remove(ctx context.Context) error {
	id, err := w.any(ctx)
	if err != nil {
		return err
	}
	delete(w.rows, id)
	_, err = w.conn.Exec(ctx, "DELETE FROM regress_auto WHERE worker = $1 AND id = $2", w.id, id)
	return err
}

func (w *autoWorker) insertByCTE(ctx context.Context) error {
	w.next++
	w.rows[w.next] = 7
	var n int
	return w.conn.QueryRow(ctx, `WITH made AS (INSERT INTO regress_auto VALUES ($1, $2, 7) RETURNING v)
		SELECT count(*) FROM made`, w.id, w.next).Scan(&n)
}

func (w *autoWorker) nextval(ctx context.Context) error {
	var n int64
	return w.conn.QueryRow(ctx, "SELECT nextval('regress_auto_seq')").Scan(&n)
}

func (w *autoWorker) lockAndUpdate(ctx context.Context) error {
	id, err := w.any(ctx)
	if err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, w.conn, func(tx pgx.Tx) error {
		var v int
		if err := tx.QueryRow(ctx, "SELECT v FROM regress_auto WHERE worker = $1 AND id = $2 FOR UPDATE", w.id, id).Scan(&v); err != nil {
			return err
		}
		w.rows[id] = v + 10
		_, err := tx.Exec(ctx, "UPDATE regress_auto SET v = $3 WHERE worker = $1 AND id = $2", w.id, id, v+10)
		return err
	})
}

func (w *autoWorker) bump(ctx context.Context) error {
	id, err := w.any(ctx)
	if err != nil {
		return err
	}
	w.rows[id]++
	var v int
	if err := w.conn.QueryRow(ctx, "SELECT regress_auto_bump($1, $2)", w.id, id).Scan(&v); err != nil {
		return err
	}
	if v != w.rows[id] {
		return fmt.Errorf("the function gave %d, want %d", v, w.rows[id])
	}
	return nil
}

func (w *autoWorker) explain(ctx context.Context) error {
	w.next++
	w.rows[w.next] = 3
	_, err := w.conn.Exec(ctx, fmt.Sprintf("EXPLAIN ANALYZE INSERT INTO regress_auto VALUES (%d, %d, 3)", w.id, w.next))
	return err
}

func (w *autoWorker) rollback(ctx context.Context) error {
	tx, err := w.conn.Begin(ctx)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, "DELETE FROM regress_auto WHERE worker = $1", w.id); err != nil {
		return err
	}
	return tx.Rollback(ctx)
}

func (w *autoWorker) prepared(ctx context.Context) error {
	w.next++
	w.rows[w.next] = 5
	_, err := w.conn.Exec(ctx, fmt.Sprintf("PREPARE auto_insert AS INSERT INTO regress_auto VALUES (%d, $1, 5)", w.id))
	if err == nil {
		_, err = w.conn.Exec(ctx, fmt.Sprintf("EXECUTE auto_insert(%d)", w.next))
	}
	if err == nil {
		_, err = w.conn.Exec(ctx, "DEALLOCATE auto_insert")
	}
	return err
}
