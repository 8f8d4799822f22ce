package pooler

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"neki/internal/pgerr"
	"neki/settings"
)

// The size of the TPC-C-like database: a warehouse for each shard.
const (
	tpccWarehouses = 4
	tpccDistricts  = 3
	tpccCustomers  = 10
	tpccItems      = 30
	tpccClients    = 32
)

// tpccTables are sharded by their warehouse, which each calls by another name.
var tpccTables = map[string]string{
	"warehouse": "w_id", "district": "d_w_id", "customer": "c_w_id", "history": "h_w_id", "orders": "o_w_id",
	"new_order": "no_w_id", "order_line": "ol_w_id", "stock": "s_w_id",
}

const tpccSchema = `
CREATE TABLE warehouse (w_id int PRIMARY KEY, w_tax numeric(4,4), w_ytd numeric(12,2));
CREATE TABLE district (d_w_id int, d_id int, d_tax numeric(4,4), d_ytd numeric(12,2), d_next_o_id int, PRIMARY KEY (d_w_id, d_id));
CREATE TABLE customer (c_w_id int, c_d_id int, c_id int, c_balance numeric(12,2), c_ytd_payment numeric(12,2), c_payment_cnt int, PRIMARY KEY (c_w_id, c_d_id, c_id));
CREATE TABLE history (h_c_id int, h_c_d_id int, h_c_w_id int, h_d_id int, h_w_id int, h_date timestamptz DEFAULT now(), h_amount numeric(6,2));
CREATE TABLE orders (o_w_id int, o_d_id int, o_id int, o_c_id int, o_entry_d timestamptz, o_ol_cnt int, o_all_local bool, PRIMARY KEY (o_w_id, o_d_id, o_id));
CREATE TABLE new_order (no_w_id int, no_d_id int, no_o_id int, PRIMARY KEY (no_w_id, no_d_id, no_o_id));
CREATE TABLE order_line (ol_w_id int, ol_d_id int, ol_o_id int, ol_number int, ol_i_id int, ol_supply_w_id int, ol_quantity int, ol_amount numeric(8,2),
  PRIMARY KEY (ol_w_id, ol_d_id, ol_o_id, ol_number));
CREATE TABLE stock (s_w_id int, s_i_id int, s_quantity int, s_ytd int, s_remote_cnt int, PRIMARY KEY (s_w_id, s_i_id));
CREATE TABLE item (i_id int PRIMARY KEY, i_price numeric(5,2), i_name text)`

func tpccTopology() string {
	var tables, indexes, ranges []string
	for table, key := range tpccTables {
		tables = append(tables, fmt.Sprintf(`"%s": {"shard_group": "data", "shard_index": "by_%s"}`, table, key))
		indexes = append(indexes, fmt.Sprintf(`"by_%s": {"type": "modulo", "columns": ["%[1]s"], "index_params": {"modulus": %d}}`, key, tpccWarehouses))
	}
	for i := range tpccWarehouses {
		bounds := ""
		if i > 0 {
			bounds += fmt.Sprintf(`, "start": "%016x"`, i)
		}
		if i < tpccWarehouses-1 {
			bounds += fmt.Sprintf(`, "end": "%016x"`, i+1)
		}
		ranges = append(ranges, fmt.Sprintf(`{"shard_uid": "sh%d"%s}`, i+1, bounds))
	}
	return fmt.Sprintf(`{
 "databases": {"DB": {"default_shard_group": "main", "schemas": {"public": {"tables": {%s}, "reference_tables": {"item": {"shard_groups": ["data"]}}}}}},
 "shard_groups": [{"uid": "main", "key_ranges": [{"shard_uid": "sh1"}]}, {"uid": "data", "key_ranges": [%s]}],
 "shard_indexes": {%s}, "authoritative_shard_group": "main"}`, strings.Join(tables, ", "), strings.Join(ranges, ", "), strings.Join(indexes, ", "))
}

// tpccConditions are the consistency conditions 1 to 4 of TPC-C (3.3.2), and what payments add up to: each query gives the
// rows that break one.
var tpccConditions = map[string]string{
	"1: a warehouse has what its districts have": `SELECT w_id, w_ytd, sum(d_ytd) FROM warehouse JOIN district ON d_w_id = w_id
		GROUP BY w_id, w_ytd HAVING w_ytd <> sum(d_ytd)`,
	"2: the next order is behind the newest": `SELECT d_w_id, d_id FROM district
		LEFT JOIN (SELECT o_w_id, o_d_id, max(o_id) AS o FROM orders GROUP BY 1, 2) a ON o_w_id = d_w_id AND o_d_id = d_id
		LEFT JOIN (SELECT no_w_id, no_d_id, max(no_o_id) AS n FROM new_order GROUP BY 1, 2) b ON no_w_id = d_w_id AND no_d_id = d_id
		WHERE d_next_o_id - 1 <> coalesce(o, 0) OR coalesce(o, 0) <> coalesce(n, 0)`,
	"3: new orders have no gaps": `SELECT no_w_id, no_d_id FROM new_order GROUP BY no_w_id, no_d_id
		HAVING max(no_o_id) - min(no_o_id) + 1 <> count(*)`,
	"4: orders have all of their lines": `SELECT a.o_w_id, a.o_d_id, a.lines, b.n FROM (SELECT o_w_id, o_d_id, sum(o_ol_cnt) AS lines FROM orders GROUP BY 1, 2) a
		FULL JOIN (SELECT ol_w_id, ol_d_id, count(*) AS n FROM order_line GROUP BY 1, 2) b ON ol_w_id = o_w_id AND ol_d_id = o_d_id
		WHERE a.lines IS DISTINCT FROM b.n`,
	"payments are in the history": `SELECT a.y, b.h FROM (SELECT sum(w_ytd) AS y FROM warehouse) a, (SELECT coalesce(sum(h_amount), 0) AS h FROM history) b WHERE a.y <> b.h`,
	"customers have paid them":    `SELECT a.y, b.c FROM (SELECT sum(c_ytd_payment) AS y FROM customer) a, (SELECT -sum(c_balance) AS c FROM customer) b WHERE a.y <> b.c`,
	"stock went where it was ordered": `SELECT a.y, b.q FROM (SELECT sum(s_ytd) AS y FROM stock) a,
		(SELECT coalesce(sum(ol_quantity), 0) AS q FROM order_line) b WHERE a.y <> b.q`,
}

// TestShardsTPCC: new orders and payments of 32 clients, which reach into other warehouses, leave TPC-C's conditions true,
// committed in two phases and one shard after the other.
func TestShardsTPCC(t *testing.T) {
	for _, mode := range []string{"multi", "atomic"} {
		t.Run(mode, func(t *testing.T) {
			s := startShards(t, tpccWarehouses, tpccTopology(), gatewayOptions{parameters: func(p *settings.Parameters) { p.PoolCapacity = 36 }})
			for i := range s.servers {
				s.onShard(i+1, tpccSchema)
			}
			s.learnOf("public", "item")
			conn := s.connect("")
			tpccLoad(t, conn)
			var done, retried atomic.Int64
			var wg sync.WaitGroup
			for i := range tpccClients {
				c := &tpccClient{t: t, conn: s.connect("-c __neki.tx_mode=" + mode), rand: rand.New(rand.NewPCG(1, uint64(i))), home: 1 + i%tpccWarehouses}
				wg.Go(func() { c.work(envInt("NEKI_TPCC_ROUNDS", 5), &done, &retried) })
			}
			wg.Wait()
			t.Logf("%d transactions, %d begun anew", done.Load(), retried.Load())
			for what, sql := range tpccConditions {
				if rows := simple(t, conn, sql); len(rows) != 0 {
					t.Errorf("%s, but not: %v", what, rows)
				}
			}
			for i := range s.servers {
				if left := s.onShard(i+1, "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"); len(left) != 0 {
					t.Errorf("shard %d has left prepared: %v", i+1, left)
				}
			}
		})
	}
}

// tpccLoad fills the tables through the gateway.
func tpccLoad(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	run := func(sql string, args ...any) {
		t.Helper()
		simple(t, conn, fmt.Sprintf(sql, args...))
	}
	run("INSERT INTO item SELECT i, 1 + i / 10.0, 'item ' || i FROM generate_series(1, %d) i", tpccItems)
	for w := 1; w <= tpccWarehouses; w++ {
		run("INSERT INTO warehouse VALUES (%d, 0.1, 0)", w)
		run("INSERT INTO district SELECT %d, d, 0.05, 0, 1 FROM generate_series(1, %d) d", w, tpccDistricts)
		run("INSERT INTO customer SELECT %d, d, c, 0, 0, 0 FROM generate_series(1, %d) d, generate_series(1, %d) c", w, tpccDistricts, tpccCustomers)
		run("INSERT INTO stock SELECT %d, i, 100, 0, 0 FROM generate_series(1, %d) i", w, tpccItems)
	}
}

type tpccClient struct {
	t    *testing.T
	conn *pgx.Conn
	rand *rand.Rand
	home int
}

func (c *tpccClient) upTo(n int) int { return 1 + c.rand.IntN(n) }

// elsewhere gives another warehouse in one of n cases.
func (c *tpccClient) elsewhere(n int) int {
	if c.rand.IntN(n) == 0 {
		return 1 + c.rand.IntN(tpccWarehouses)
	}
	return c.home
}

// work runs transactions, each until it commits.
func (c *tpccClient) work(rounds int, done, retried *atomic.Int64) {
	ctx, cancel := context.WithTimeout(c.t.Context(), 4*time.Minute)
	defer cancel()
	for range rounds {
		run := c.newOrder
		if c.rand.IntN(2) == 0 {
			run = c.payment
		}
		for {
			err := pgx.BeginFunc(ctx, c.conn, func(tx pgx.Tx) error { return run(ctx, tx) })
			if err == nil || err == errRolledBack {
				break
			}
			switch pgerr.Code(err) {
			case "40001", "40P01", "55P03":
				retried.Add(1)
				continue
			}
			c.t.Errorf("client of warehouse %d: %v", c.home, err)
			return
		}
		done.Add(1)
	}
}

// errRolledBack is what one new order in twenty ends with: the customer's item is unknown.
var errRolledBack = fmt.Errorf("an unknown item")

// payment: the customer of another warehouse in 3 of 10 cases.
func (c *tpccClient) payment(ctx context.Context, tx pgx.Tx) error {
	d, w, cust, amount := c.upTo(tpccDistricts), c.elsewhere(3), c.upTo(tpccCustomers), fmt.Sprintf("%d.%02d", c.upTo(50), c.rand.IntN(100))
	b := &pgx.Batch{}
	if c.rand.IntN(2) == 0 { // statements one by one, as an interactive program
		for _, st := range tpccPayment(c.home, d, w, cust, amount) {
			if _, err := tx.Exec(ctx, st.sql, st.args...); err != nil {
				return err
			}
		}
		return nil
	}
	for _, st := range tpccPayment(c.home, d, w, cust, amount) {
		b.Queue(st.sql, st.args...)
	}
	return tx.SendBatch(ctx, b).Close()
}

type tpccStatement struct {
	sql  string
	args []any
}

func tpccPayment(home, d, w, cust int, amount string) []tpccStatement {
	return []tpccStatement{
		{"UPDATE warehouse SET w_ytd = w_ytd + $2::numeric WHERE w_id = $1", []any{home, amount}},
		{"UPDATE district SET d_ytd = d_ytd + $3::numeric WHERE d_w_id = $1 AND d_id = $2", []any{home, d, amount}},
		{`UPDATE customer SET c_balance = c_balance - $4::numeric, c_ytd_payment = c_ytd_payment + $4::numeric, c_payment_cnt = c_payment_cnt + 1
			WHERE c_w_id = $1 AND c_d_id = $2 AND c_id = $3`, []any{w, d, cust, amount}},
		{"INSERT INTO history (h_c_id, h_c_d_id, h_c_w_id, h_d_id, h_w_id, h_amount) VALUES ($1, $2, $3, $4, $5, $6::numeric)", []any{cust, d, w, d, home, amount}},
	}
}

// newOrder: an item of another warehouse in one of four lines. Stock is locked in one order by all.
func (c *tpccClient) newOrder(ctx context.Context, tx pgx.Tx) error {
	d, n := c.upTo(tpccDistricts), 2+c.rand.IntN(4)
	var o int
	err := tx.QueryRow(ctx, "UPDATE district SET d_next_o_id = d_next_o_id + 1 WHERE d_w_id = $1 AND d_id = $2 RETURNING d_next_o_id - 1", c.home, d).Scan(&o)
	if err != nil {
		return err
	}
	local := true
	items := map[[2]int]int{}
	for range n {
		line := [2]int{c.elsewhere(4), c.upTo(tpccItems)}
		items[line] = c.upTo(5)
		local = local && line[0] == c.home
	}
	if _, err := tx.Exec(ctx, "INSERT INTO orders VALUES ($1, $2, $3, $4, now(), $5, $6)", c.home, d, o, c.upTo(tpccCustomers), len(items), local); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, "INSERT INTO new_order VALUES ($1, $2, $3)", c.home, d, o); err != nil {
		return err
	}
	number := 0
	for w := 1; w <= tpccWarehouses; w++ {
		for i := 1; i <= tpccItems; i++ {
			q, has := items[[2]int{w, i}]
			if !has {
				continue
			}
			number++
			if err := c.orderLine(ctx, tx, d, o, number, w, i, q); err != nil {
				return err
			}
		}
	}
	if c.rand.IntN(20) == 0 {
		return errRolledBack
	}
	return nil
}

func (c *tpccClient) orderLine(ctx context.Context, tx pgx.Tx, d, o, number, w, i, quantity int) error {
	var price string
	if err := tx.QueryRow(ctx, "SELECT i_price::text FROM item WHERE i_id = $1", i).Scan(&price); err != nil {
		return err
	}
	remote := 0
	if w != c.home {
		remote = 1
	}
	if _, err := tx.Exec(ctx, `UPDATE stock SET s_quantity = CASE WHEN s_quantity >= $3 + 10 THEN s_quantity - $3 ELSE s_quantity - $3 + 91 END,
		s_ytd = s_ytd + $3, s_remote_cnt = s_remote_cnt + $4 WHERE s_w_id = $1 AND s_i_id = $2`, w, i, quantity, remote); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, "INSERT INTO order_line VALUES ($1, $2, $3, $4, $5, $6, $7::int, $7::int * $8::numeric)", c.home, d, o, number, i, w, quantity, price)
	return err
}
