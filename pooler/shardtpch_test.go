package pooler

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"neki/internal/pgerr"
)

// tpchTopology has orders beside their lines, customers, parts and suppliers elsewhere, and copies of nations and regions.
const tpchTopology = `{
 "databases": {"DB": {"default_shard_group": "main", "schemas": {"public": {"tables": {
   "orders": {"shard_group": "data", "shard_index": "by_o"}, "lineitem": {"shard_group": "data", "shard_index": "by_l"},
   "customer": {"shard_group": "data", "shard_index": "by_c"}, "part": {"shard_group": "data", "shard_index": "by_p"},
   "supplier": {"shard_group": "data", "shard_index": "by_s"}},
   "reference_tables": {"nation": {"shard_groups": ["data"]}, "region": {"shard_groups": ["data"]}}}}}},
 "shard_groups": [{"uid": "main", "key_ranges": [{"shard_uid": "sh1"}]}, RANGES],
 "shard_indexes": {"by_o": {"type": "xxhash", "columns": ["o_orderkey"]}, "by_l": {"type": "xxhash", "columns": ["l_orderkey"]},
   "by_c": {"type": "xxhash", "columns": ["c_custkey"]}, "by_p": {"type": "xxhash", "columns": ["p_partkey"]}, "by_s": {"type": "xxhash", "columns": ["s_suppkey"]}},
 "authoritative_shard_group": "main"}`

const tpchSchema = `
CREATE TABLE region (r_regionkey int PRIMARY KEY, r_name char(25));
CREATE TABLE nation (n_nationkey int PRIMARY KEY, n_name char(25), n_regionkey int);
CREATE TABLE supplier (s_suppkey int PRIMARY KEY, s_name char(25), s_nationkey int, s_acctbal numeric(15,2));
CREATE TABLE part (p_partkey int PRIMARY KEY, p_name varchar(55), p_brand char(10), p_type varchar(25), p_size int, p_container char(10));
CREATE TABLE customer (c_custkey int PRIMARY KEY, c_name varchar(25), c_address varchar(40), c_nationkey int, c_phone char(15), c_acctbal numeric(15,2),
  c_mktsegment char(10), c_comment varchar(117));
CREATE TABLE orders (o_orderkey int8 PRIMARY KEY, o_custkey int, o_orderstatus char(1), o_totalprice numeric(15,2), o_orderdate date, o_orderpriority char(15),
  o_shippriority int);
CREATE TABLE lineitem (l_orderkey int8, l_linenumber int, l_partkey int, l_suppkey int, l_quantity numeric(15,2), l_extendedprice numeric(15,2),
  l_discount numeric(15,2), l_tax numeric(15,2), l_returnflag char(1), l_linestatus char(1), l_shipdate date, l_commitdate date, l_receiptdate date,
  l_shipinstruct char(25), l_shipmode char(10), PRIMARY KEY (l_orderkey, l_linenumber))`

// tpchQueries ask what those of TPC-H ask, of a small database.
var tpchQueries = []struct{ name, sql string }{
	{"Q1", `SELECT l_returnflag, l_linestatus, sum(l_quantity) AS sum_qty, sum(l_extendedprice) AS sum_base_price,
	sum(l_extendedprice * (1 - l_discount)) AS sum_disc_price, sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)) AS sum_charge,
	avg(l_quantity) AS avg_qty, avg(l_extendedprice) AS avg_price, avg(l_discount) AS avg_disc, count(*) AS count_order
	FROM lineitem WHERE l_shipdate <= date '1998-12-01' - interval '90' day
	GROUP BY l_returnflag, l_linestatus ORDER BY l_returnflag, l_linestatus`},
	{"Q3", `SELECT l_orderkey, sum(l_extendedprice * (1 - l_discount)) AS revenue, o_orderdate, o_shippriority
	FROM customer, orders, lineitem
	WHERE c_mktsegment = 'BUILDING' AND c_custkey = o_custkey AND l_orderkey = o_orderkey AND o_orderdate < date '1995-03-15' AND l_shipdate > date '1995-03-15'
	GROUP BY l_orderkey, o_orderdate, o_shippriority ORDER BY revenue DESC, o_orderdate LIMIT 10`},
	{"Q4", `SELECT o_orderpriority, count(*) AS order_count FROM orders
	WHERE o_orderdate >= date '1993-07-01' AND o_orderdate < date '1993-07-01' + interval '3' month
	AND EXISTS (SELECT * FROM lineitem WHERE l_orderkey = o_orderkey AND l_commitdate < l_receiptdate)
	GROUP BY o_orderpriority ORDER BY o_orderpriority`},
	{"Q5", `SELECT n_name, sum(l_extendedprice * (1 - l_discount)) AS revenue
	FROM customer, orders, lineitem, supplier, nation, region
	WHERE c_custkey = o_custkey AND l_orderkey = o_orderkey AND l_suppkey = s_suppkey AND c_nationkey = s_nationkey AND s_nationkey = n_nationkey
	AND n_regionkey = r_regionkey AND r_name = 'ASIA' AND o_orderdate >= date '1994-01-01' AND o_orderdate < date '1994-01-01' + interval '1' year
	GROUP BY n_name ORDER BY revenue DESC`},
	{"Q6", `SELECT sum(l_extendedprice * l_discount) AS revenue FROM lineitem
	WHERE l_shipdate >= date '1994-01-01' AND l_shipdate < date '1994-01-01' + interval '1' year AND l_discount BETWEEN 0.06 - 0.01 AND 0.06 + 0.01 AND l_quantity < 24`},
	{"Q10", `SELECT c_custkey, c_name, sum(l_extendedprice * (1 - l_discount)) AS revenue, c_acctbal, n_name, c_address, c_phone, c_comment
	FROM customer, orders, lineitem, nation
	WHERE c_custkey = o_custkey AND l_orderkey = o_orderkey AND o_orderdate >= date '1993-10-01' AND o_orderdate < date '1993-10-01' + interval '3' month
	AND l_returnflag = 'R' AND c_nationkey = n_nationkey
	GROUP BY c_custkey, c_name, c_acctbal, c_phone, n_name, c_address, c_comment ORDER BY revenue DESC LIMIT 20`},
	{"Q12", `SELECT l_shipmode, sum(CASE WHEN o_orderpriority = '1-URGENT' OR o_orderpriority = '2-HIGH' THEN 1 ELSE 0 END) AS high_line_count,
	sum(CASE WHEN o_orderpriority <> '1-URGENT' AND o_orderpriority <> '2-HIGH' THEN 1 ELSE 0 END) AS low_line_count
	FROM orders, lineitem
	WHERE o_orderkey = l_orderkey AND l_shipmode IN ('MAIL', 'SHIP') AND l_commitdate < l_receiptdate AND l_shipdate < l_commitdate
	AND l_receiptdate >= date '1994-01-01' AND l_receiptdate < date '1994-01-01' + interval '1' year
	GROUP BY l_shipmode ORDER BY l_shipmode`},
	{"Q14", `SELECT 100.00 * sum(CASE WHEN p_type LIKE 'PROMO%' THEN l_extendedprice * (1 - l_discount) ELSE 0 END) / sum(l_extendedprice * (1 - l_discount)) AS promo_revenue
	FROM lineitem, part WHERE l_partkey = p_partkey AND l_shipdate >= date '1995-09-01' AND l_shipdate < date '1995-09-01' + interval '1' month`},
	{"Q18", `SELECT c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice, sum(l_quantity)
	FROM customer, orders, lineitem
	WHERE o_orderkey IN (SELECT l_orderkey FROM lineitem GROUP BY l_orderkey HAVING sum(l_quantity) > 160) AND c_custkey = o_custkey AND o_orderkey = l_orderkey
	GROUP BY c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice ORDER BY o_totalprice DESC, o_orderdate LIMIT 100`},
	{"Q19", `SELECT sum(l_extendedprice * (1 - l_discount)) AS revenue FROM lineitem, part
	WHERE (p_partkey = l_partkey AND p_brand = 'Brand#12' AND p_container IN ('SM CASE', 'SM BOX', 'SM PACK', 'SM PKG') AND l_quantity >= 1 AND l_quantity <= 1 + 10
	  AND p_size BETWEEN 1 AND 5 AND l_shipmode IN ('AIR', 'AIR REG') AND l_shipinstruct = 'DELIVER IN PERSON')
	OR (p_partkey = l_partkey AND p_brand = 'Brand#23' AND p_container IN ('MED BAG', 'MED BOX', 'MED PKG', 'MED PACK') AND l_quantity >= 10 AND l_quantity <= 10 + 10
	  AND p_size BETWEEN 1 AND 10 AND l_shipmode IN ('AIR', 'AIR REG') AND l_shipinstruct = 'DELIVER IN PERSON')
	OR (p_partkey = l_partkey AND p_brand = 'Brand#34' AND p_container IN ('LG CASE', 'LG BOX', 'LG PACK', 'LG PKG') AND l_quantity >= 20 AND l_quantity <= 20 + 10
	  AND p_size BETWEEN 1 AND 15 AND l_shipmode IN ('AIR', 'AIR REG') AND l_shipinstruct = 'DELIVER IN PERSON')`},
}

// TestShardsTPCH: queries like those of TPC-H over four shards give what Postgres gives, byte for byte.
func TestShardsTPCH(t *testing.T) {
	s := startShards(t, 4, strings.Replace(tpchTopology, "RANGES", fourRanges, 1), gatewayOptions{})
	s.everywhere(tpchSchema)
	s.learnOf("public", "lineitem")
	conn := s.connect("")
	for _, insert := range tpchData(rand.New(rand.NewPCG(1, 1))) {
		s.both(conn, insert)
	}
	for _, q := range tpchQueries {
		t.Run(q.name, func(t *testing.T) {
			for _, format := range []int16{0, 1} {
				want, got := tpchAsk(t, s.plain, q.sql, format), tpchAsk(t, conn, q.sql, format)
				if want != got {
					t.Errorf("format %d\n shards: %q\n plain:  %q", format, got, want)
				}
				if strings.Count(want, "\n") < 2 || strings.Contains(want, "NULL") {
					t.Errorf("the data say nothing: %q", want)
				}
			}
			if want, got := outcome(s.plain, q.sql), outcome(conn, q.sql); want != got {
				t.Errorf("simple\n shards: %s\n plain:  %s", got, want)
			}
		})
	}
}

// tpchAsk gives an answer by the extended protocol.
func tpchAsk(t *testing.T, conn *pgx.Conn, sql string, format int16) string {
	t.Helper()
	r := conn.PgConn().ExecParams(t.Context(), sql, nil, nil, nil, []int16{format}).Read()
	if r.Err != nil {
		return "error " + pgerr.Code(r.Err) + " " + r.Err.Error()
	}
	var b strings.Builder
	for _, f := range r.FieldDescriptions {
		fmt.Fprintf(&b, "%s:%d ", f.Name, f.DataTypeOID)
	}
	for _, row := range r.Rows {
		b.WriteString("\n")
		for _, v := range row {
			if v == nil {
				b.WriteString("NULL")
			}
			fmt.Fprintf(&b, "%s,", v)
		}
	}
	return b.String() + "\n" + r.CommandTag.String()
}

// tpchData gives INSERTs of a small database, dense enough that every query finds rows.
func tpchData(r *rand.Rand) []string {
	pick := func(list ...string) string { return list[r.IntN(len(list))] }
	insert := func(table string, n int, row func(i int) string) string {
		var rows []string
		for i := range n {
			rows = append(rows, "("+row(i)+")")
		}
		return "INSERT INTO " + table + " VALUES " + strings.Join(rows, ", ")
	}
	cents := func(n int) string { return fmt.Sprintf("%d.%02d", r.IntN(n), r.IntN(100)) }
	regions := []string{"AFRICA", "AMERICA", "ASIA", "EUROPE", "MIDDLE EAST"}
	out := []string{
		insert("region", 5, func(i int) string { return fmt.Sprintf("%d, '%s'", i, regions[i]) }),
		insert("nation", 10, func(i int) string { return fmt.Sprintf("%d, 'NATION %d', %d", i, i, i%5) }),
		insert("supplier", 20, func(i int) string { return fmt.Sprintf("%d, 'Supplier#%09d', %d, %s", i, i, i%10, cents(9000)) }),
		insert("customer", 60, func(i int) string {
			return fmt.Sprintf("%d, 'Customer#%09d', 'street %d', %d, '%02d-555', %s, '%s', 'comment %d'", i, i, r.IntN(99), i%10, i%10, cents(9000),
				pick("BUILDING", "AUTOMOBILE", "MACHINERY"), i)
		}),
		insert("part", 60, func(i int) string {
			return fmt.Sprintf("%d, 'part %d', '%s', '%s', %d, '%s'", i, i, pick("Brand#12", "Brand#23", "Brand#34"), pick("PROMO BRUSHED TIN", "STANDARD COPPER", "PROMO PLATED STEEL"),
				1+r.IntN(6), pick("SM CASE", "SM BOX", "MED BAG", "MED BOX", "LG CASE", "LG PKG"))
		}),
	}
	var lines []string
	out = append(out, insert("orders", 800, func(i int) string {
		day := r.IntN(2400)
		for n := range 1 + r.IntN(6) {
			ship := day + 1 + r.IntN(120)
			lines = append(lines, fmt.Sprintf("(%d, %d, %d, %d, %d, %s, 0.%02d, 0.%02d, '%s', '%s', date '1992-01-01' + %d, date '1992-01-01' + %d, date '1992-01-01' + %d, '%s', '%s')",
				i*7, n+1, r.IntN(60), r.IntN(20), 1+r.IntN(50), cents(50000), r.IntN(11), r.IntN(9), pick("R", "A", "N"), pick("O", "F"), ship, day+30+r.IntN(60), ship+1+r.IntN(30),
				pick("DELIVER IN PERSON", "NONE"), pick("AIR", "AIR REG", "MAIL", "SHIP", "TRUCK")))
		}
		return fmt.Sprintf("%d, %d, '%s', %s, date '1992-01-01' + %d, '%s', 0", i*7, r.IntN(60), pick("O", "F", "P"), cents(400000), day,
			pick("1-URGENT", "2-HIGH", "3-MEDIUM", "4-NOT SPECIFIED", "5-LOW"))
	}))
	for len(lines) > 0 {
		n := min(len(lines), 100)
		out, lines = append(out, "INSERT INTO lineitem VALUES "+strings.Join(lines[:n], ", ")), lines[n:]
	}
	return out
}
