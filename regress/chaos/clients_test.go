package chaos

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"neki/regress/chaos/check"
)

// stmtLimit bounds a statement of a client: longer than the gateway lets it wait.
const stmtLimit = 25 * time.Second

// clients work through the gateway and note what they see.
type clients struct {
	c    *cluster
	t    testing.TB
	rate time.Duration // pause of each client between two statements

	ctx  context.Context
	stop context.CancelFunc
	all  sync.WaitGroup
	key  atomic.Int64

	mu       sync.Mutex
	inserts  []check.Insert
	reads    []check.SetRead
	register []check.RegisterOp
	lists    []check.ListTxn
	balances []check.Balance
	states   map[string]int // errors by SQLSTATE
	lastOK   time.Duration
	gap      time.Duration // the longest between two acknowledged inserts
	acked    int
	on       map[string]int  // of them, by shard
	added    []time.Duration // what each statement or transaction took beyond what it does itself
}

// Tables of the clients; past is what tests write past the gateway. Of a row the server itself says on which timeline it was
// written.
const schema = `
DROP TABLE IF EXISTS acked, register, lists, accounts, past;
CREATE TABLE past (id bigint PRIMARY KEY);
CREATE TABLE acked (id bigint PRIMARY KEY,
	tli int NOT NULL DEFAULT ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::int);
CREATE TABLE register (k bigint PRIMARY KEY, v bigint NOT NULL);
CREATE TABLE lists (k bigint PRIMARY KEY, l bigint[] NOT NULL);
CREATE TABLE accounts (k bigint PRIMARY KEY, v bigint NOT NULL CHECK (v >= 0));
INSERT INTO register SELECT k, 0 FROM generate_series(1, 5 * 1000) k;
INSERT INTO lists SELECT k, '{}' FROM generate_series(1, 4 * 1000) k;
INSERT INTO accounts SELECT k, 100 FROM generate_series(1, 8) k`

// What schema fills in. Of registers and lists some are in use at a time, and then others: the search for an order of what
// was done with one key takes ever longer with the operations whose outcome is unknown, and each read of a list keeps it all.
const (
	registers = 5
	listKeys  = 4
	spells    = 1000 // so many times others
	spell     = 1500 // operations, or transactions over lists, with the same
	accounts  = 8
	money     = 800
)

// newClients makes the tables and no client yet.
func newClients(c *cluster, rate time.Duration) *clients {
	c.t.Helper()
	w := &clients{c: c, t: c.t, rate: rate, states: map[string]int{}, on: map[string]int{}}
	w.ctx, w.stop = context.WithCancel(context.Background())
	if len(c.shards) > 1 {
		c.spread()
	}
	c.must(30*time.Second, "tables", func() error {
		conn, err := c.connect(w.ctx)
		if err != nil {
			return err
		}
		defer conn.Close(w.ctx)                                  //nolint:errcheck // the statement's error counts
		for statement := range strings.SplitSeq(schema, ";\n") { // each by itself, for not all can be one transaction over shards
			if _, err := conn.Exec(w.ctx, statement); err != nil {
				return fmt.Errorf("%s: %w", statement, err)
			}
		}
		return nil
	})
	c.t.Cleanup(w.end)
	w.lastOK = w.now()
	return w
}

// end ends the clients and waits for them.
func (w *clients) end() {
	w.stop()
	w.all.Wait()
}

func (w *clients) now() time.Duration { return time.Since(w.c.began) }

// session is one client's connection.
type session struct {
	w    *clients
	conn *pgx.Conn
	n    int
	rng  *rand.Rand
}

// run starts n clients that do one kind of thing again and again.
func (w *clients) run(n int, seed uint64, do func(*session)) {
	for i := range n {
		w.all.Go(func() {
			s := &session{w: w, n: i, rng: rand.New(rand.NewPCG(seed, uint64(i)))}
			defer s.disconnect()
			for w.ctx.Err() == nil {
				if s.connect() {
					do(s)
				}
				pause := time.NewTimer(w.rate)
				select {
				case <-pause.C:
				case <-w.ctx.Done():
				}
				pause.Stop()
			}
		})
	}
}

func (s *session) connect() bool {
	if s.conn != nil && !s.conn.IsClosed() {
		return true
	}
	ctx, cancel := context.WithTimeout(s.w.ctx, stmtLimit)
	defer cancel()
	conn, err := s.w.c.connect(ctx)
	if err != nil {
		s.w.failed(err)
		return false
	}
	s.conn = conn
	return true
}

func (s *session) disconnect() {
	if s.conn != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = s.conn.Close(ctx)
	}
}

// limited bounds a statement. The end of the test doesn't end it: its outcome would be unknown for nothing.
func (s *session) limited() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), stmtLimit)
}

// failed counts an error.
func (w *clients) failed(err error) {
	if err == nil || w.ctx.Err() != nil {
		return
	}
	code := "client"
	e, ok := errors.AsType[*pgconn.PgError](err)
	if ok {
		code = e.Code
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.states[code]++; w.states[code] <= 5 && !promised[code] {
		detail := ""
		if ok {
			detail = e.Detail + e.File + e.Routine
		}
		w.t.Logf("%6.1fs a client saw: %v (%s) %T", w.now().Seconds(), err, detail, err)
	}
}

// promised are the states that clients may see of a primary that is lost.
var promised = map[string]bool{"08006": true, "08007": true, "NK005": true, "57P01": true, "40001": true, "40P01": true, "25P02": true}

// outcome says what an error of a statement that commits by itself, or of a COMMIT, leaves the client to know.
func outcome(err error) check.Outcome {
	e, ours := errors.AsType[*pgconn.PgError](err)
	switch {
	case err == nil:
		return check.OK
	case ours && e.Severity != "FATAL" && !strings.HasPrefix(e.Code, "08"):
		return check.Failed // the server, or the gateway, says that it was not done
	case !ours && pgconn.SafeToRetry(err):
		return check.Failed
	}
	return check.Unknown
}

// insert adds a key.
func insert(s *session) {
	w := s.w
	in := check.Insert{Key: w.key.Add(1), Span: check.Span{Began: w.now()}, Outcome: check.Unknown}
	w.mu.Lock()
	at := len(w.inserts)
	w.inserts = append(w.inserts, in) // a read may see it before its client knows
	w.mu.Unlock()
	ctx, cancel := s.limited()
	defer cancel()
	var node string
	err := s.conn.QueryRow(ctx, "INSERT INTO acked (id) VALUES ($1) RETURNING tli, current_setting('cluster_name')", in.Key).Scan(&in.Timeline, &node)
	in.Ended, in.Outcome = w.now(), outcome(err)
	w.failed(err)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.inserts[at] = in
	w.added = append(w.added, in.Ended-in.Began)
	if in.Outcome == check.OK {
		w.acked++
		where, _, _ := strings.Cut(node, "-")
		w.on[where]++
		w.gap = max(w.gap, in.Ended-w.lastOK)
		w.lastOK = max(w.lastOK, in.Ended)
	}
}

// inUse gives the key that is the i-th of n in use, when so many things were done.
func inUse(i, n int64, did int) int64 { return min(int64(did/spell), spells-1)*n + i + 1 }

// touch reads, writes or swaps one row.
func touch(s *session) {
	w := s.w
	w.mu.Lock()
	did := len(w.register)
	w.mu.Unlock()
	op := check.RegisterOp{Client: s.n, Key: inUse(s.rng.Int64N(registers), registers, did), Kind: check.RegisterKind(s.rng.IntN(3)), New: w.key.Add(1)}
	ctx, cancel := s.limited()
	defer cancel()
	op.Began = w.now()
	var err error
	switch op.Kind {
	case check.Read:
		err = s.conn.QueryRow(ctx, "SELECT v FROM register WHERE k = $1", op.Key).Scan(&op.Value)
	case check.Write:
		_, err = s.conn.Exec(ctx, "UPDATE register SET v = $2 WHERE k = $1", op.Key, op.New)
	case check.Swap:
		err = s.conn.QueryRow(ctx, "SELECT v FROM register WHERE k = $1", op.Key).Scan(&op.Old)
		if err != nil {
			w.failed(err)
			return
		}
		op.Began = w.now()
		var tag pgconn.CommandTag
		tag, err = s.conn.Exec(ctx, "UPDATE register SET v = $2 WHERE k = $1 AND v = $3", op.Key, op.New, op.Old)
		op.Swapped = tag.RowsAffected() == 1
	}
	op.Ended, op.Outcome = w.now(), outcome(err)
	w.failed(err)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.register = append(w.register, op)
}

// transact runs statements in a transaction. Before COMMIT was sent, an error means that nothing was done.
func (s *session) transact(level pgx.TxIsoLevel, do func(context.Context, pgx.Tx) error) check.Outcome {
	ctx, cancel := s.limited()
	defer cancel()
	tx, err := s.conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: level})
	if err == nil {
		if err = do(ctx, tx); err != nil {
			_ = tx.Rollback(ctx)
		}
	}
	if err != nil {
		s.w.failed(err)
		return check.Failed
	}
	err = tx.Commit(ctx)
	s.w.failed(err)
	if errors.Is(err, pgx.ErrTxCommitRollback) {
		return check.Failed
	}
	return outcome(err)
}

// appendLists appends to some lists and reads others, in one serializable transaction.
func appendLists(s *session) {
	w := s.w
	w.mu.Lock()
	did := len(w.lists)
	w.mu.Unlock()
	var txn check.ListTxn
	txn.Outcome = s.transact(pgx.Serializable, func(ctx context.Context, tx pgx.Tx) error {
		for range 1 + s.rng.IntN(3) {
			op := check.ListOp{Append: s.rng.IntN(2) == 0, Key: inUse(s.rng.Int64N(listKeys), listKeys, did)}
			var err error
			if op.Append {
				op.Value = w.key.Add(1)
				_, err = tx.Exec(ctx, "UPDATE lists SET l = l || $2::bigint WHERE k = $1", op.Key, op.Value)
			} else {
				err = tx.QueryRow(ctx, "SELECT l FROM lists WHERE k = $1", op.Key).Scan(&op.List)
			}
			txn.Ops = append(txn.Ops, op)
			if err != nil {
				return err
			}
		}
		return nil
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lists = append(w.lists, txn)
}

// bank transfers, or looks at all accounts.
func bank(s *session) {
	w := s.w
	if s.rng.IntN(2) == 0 {
		from, to, much := s.rng.Int64N(accounts)+1, s.rng.Int64N(accounts)+1, s.rng.Int64N(20)
		s.transact(pgx.ReadCommitted, func(ctx context.Context, tx pgx.Tx) error {
			tag, err := tx.Exec(ctx, "UPDATE accounts SET v = v - $2 WHERE k = $1 AND v >= $2", from, much)
			if err == nil && tag.RowsAffected() == 1 {
				_, err = tx.Exec(ctx, "UPDATE accounts SET v = v + $2 WHERE k = $1", to, much)
			}
			return err
		})
		return
	}
	b := check.Balance{Where: "the gateway", Span: check.Span{Began: w.now()}}
	o := s.transact(pgx.RepeatableRead, func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, "SELECT sum(v)::bigint, min(v) FROM accounts").Scan(&b.Sum, &b.Least)
	})
	b.Ended = w.now()
	if o == check.OK {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.balances = append(w.balances, b)
	}
}

// inTransaction inserts a row in a transaction of less than a tenth of a second.
func inTransaction(s *session) {
	w := s.w
	rest := time.Duration(s.rng.IntN(80)) * time.Millisecond
	began := w.now()
	s.transact(pgx.ReadCommitted, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO past VALUES ($1)", w.key.Add(1)<<32)
		if err == nil {
			_, err = tx.Exec(ctx, "SELECT pg_sleep($1)", rest.Seconds())
		}
		return err
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.added = append(w.added, w.now()-began-rest)
}

// takeAdded gives what each statement or transaction took beyond what it does itself, since the last call.
func (w *clients) takeAdded() []time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := w.added
	w.added = nil
	return list
}

// unusual is a time without an acknowledgement that has to be explained.
const unusual = 30 * time.Second

// progress waits until more inserts were acknowledged, some of them on each shard, and gives the longest time without one since the last call.
func (w *clients) progress(more int, limit time.Duration) time.Duration {
	w.t.Helper()
	w.mu.Lock()
	want, before := w.acked+more, maps.Clone(w.on)
	w.mu.Unlock()
	explained := false
	w.c.must(limit, fmt.Sprintf("%d acknowledged inserts more", more), func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if idle := w.now() - w.lastOK; idle > unusual && !explained {
			explained = true
			w.c.explain(fmt.Sprintf("nothing was acknowledged for %v", idle.Round(time.Millisecond)))
		}
		if w.acked < want {
			return fmt.Errorf("%d of %d, errors %v", w.acked, want, w.states)
		}
		for _, shard := range w.c.shards {
			if w.on[shard] == before[shard] {
				return fmt.Errorf("none on %s, errors %v", shard, w.states)
			}
		}
		return nil
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	gap := w.gap
	w.gap = 0
	return gap
}

// readAll reads every key from somewhere.
func (w *clients) readAll(where string, connect func(context.Context) (*pgx.Conn, error)) error {
	ctx, cancel := context.WithTimeout(context.Background(), stmtLimit)
	defer cancel()
	r := check.SetRead{Where: where, Span: check.Span{Began: w.now()}}
	conn, err := connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(ctx) //nolint:errcheck // the query's error counts
	rows, err := conn.Query(ctx, "SELECT id FROM acked")
	if err == nil {
		r.Keys, err = pgx.CollectRows(rows, pgx.RowTo[int64])
	}
	if err != nil {
		return err
	}
	r.Ended = w.now()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reads = append(w.reads, r)
	return nil
}

// verify reads all keys from the primary and checks them against what was acknowledged before: after a failover, and not
// at the end alone.
func (w *clients) verify() {
	w.t.Helper()
	w.c.must(30*time.Second, "read of all keys", func() error { return w.readAll("the gateway", w.c.connect) })
	report(w.t, w.judgeSet())
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reads = slices.Delete(w.reads, 0, len(w.reads)-1) // those before were judged: a long run must not keep them all
}

// judgeSet checks the last read.
func (w *clients) judgeSet() []check.Violation {
	w.mu.Lock()
	inserts, read := slices.Clone(w.inserts), w.reads[len(w.reads)-1:]
	w.mu.Unlock()
	return check.Set(inserts, read)
}

func report(t testing.TB, found []check.Violation) {
	t.Helper()
	for _, v := range found {
		t.Error(v)
	}
}

// finish ends the clients and checks everything. The cluster must be whole.
func (w *clients) finish() {
	w.t.Helper()
	w.end()
	w.verify()
	w.members()
	final := map[int64][]int64{}
	w.c.must(30*time.Second, "the lists at the end", func() error {
		ctx, cancel := context.WithTimeout(context.Background(), stmtLimit)
		defer cancel()
		conn, err := w.c.connect(ctx)
		if err != nil {
			return err
		}
		defer conn.Close(ctx) //nolint:errcheck // the query's error counts
		var k int64
		var l []int64
		rows, err := conn.Query(ctx, "SELECT k, l FROM lists")
		if err == nil {
			_, err = pgx.ForEachRow(rows, []any{&k, &l}, func() error { final[k] = slices.Clone(l); return nil })
		}
		return err
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	report(w.t, check.Set(w.inserts, w.reads))
	if len(w.c.shards) == 1 {
		report(w.t, check.Epochs(w.inserts))
	}
	report(w.t, check.Registers(w.register, 30*time.Second))
	report(w.t, check.Lists(w.lists, check.Serializable, final))
	report(w.t, check.Bank(w.balances, money))
	unknown := 0
	for _, in := range w.inserts {
		if in.Outcome == check.Unknown {
			unknown++
		}
	}
	w.t.Logf("%d inserts acknowledged, %d unknown; %d operations on registers, %d transactions on lists, %d sums; errors %v",
		w.acked, unknown, len(w.register), len(w.lists), len(w.balances), w.states)
}

// members reads every member itself: each has the same, and all that was acknowledged.
func (w *clients) members() {
	w.t.Helper()
	for _, shard := range w.c.shards {
		var ends []check.End
		w.c.must(30*time.Second, "members of "+shard+" that are the same", func() error {
			ends = nil
			for _, n := range w.c.membersOf(shard) {
				e, err := w.endOf(n)
				if err != nil {
					return err
				}
				ends = append(ends, e)
			}
			if v := check.Same(ends); len(v) > 0 {
				return errors.New(v[0].String())
			}
			return nil
		})
		if len(w.c.shards) > 1 {
			continue
		}
		for _, n := range w.c.membersOf(shard) {
			w.c.must(10*time.Second, "read of "+n.id, func() error {
				return w.readAll(n.id, func(ctx context.Context) (*pgx.Conn, error) { return n.connect(ctx) })
			})
		}
	}
}

// connect opens a superuser's connection to the instance itself.
func (n *node) connect(ctx context.Context) (*pgx.Conn, error) {
	return pgx.Connect(ctx, n.socketDSN("postgres"))
}

// endOf asks a member where it is and what it has. The position of a primary moves when a checkpoint is written, so it is
// what was replayed of its last commit that is compared: that there is nothing beyond shows by the rows.
func (w *clients) endOf(n *node) (check.End, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn, err := n.connect(ctx)
	if err != nil {
		return check.End{}, err
	}
	defer conn.Close(ctx) //nolint:errcheck // the query's error counts
	e := check.End{Node: n.id}
	err = conn.QueryRow(ctx, `SELECT CASE WHEN pg_is_in_recovery() THEN (SELECT received_tli FROM pg_stat_wal_receiver)
			ELSE ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::int END`).Scan(&e.Timeline)
	for _, table := range []string{"acked", "register", "lists", "accounts"} { // not every shard has them all
		var has bool
		var rows *string
		if err == nil {
			err = conn.QueryRow(ctx, "SELECT to_regclass($1) IS NOT NULL", table).Scan(&has)
		}
		if err == nil && has {
			err = conn.QueryRow(ctx, "SELECT md5(string_agg(r::text, ',' ORDER BY r)) FROM "+table+" r").Scan(&rows)
		}
		if rows != nil {
			e.Rows += *rows
		}
	}
	return e, err
}
