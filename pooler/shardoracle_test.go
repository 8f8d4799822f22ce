package pooler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"neki/internal/pgerr"
)

// oracleWorkers run at once, each with a schema of its own.
const oracleWorkers = 6

// TestShardOracle runs generated statements on plain Postgres and through gateways before one shard and before four: all
// answer alike (rows, names and types of columns, tag, SQLSTATE), or a gateway says NK013 or 0A000. NEKI_ORACLE_STATEMENTS
// and NEKI_ORACLE_SEED make it longer, or another; a failure tells both, and what to repeat it takes.
func TestShardOracle(t *testing.T) {
	count := envInt("NEKI_ORACLE_STATEMENTS", 20_000)
	if raceEnabled && os.Getenv("NEKI_ORACLE_STATEMENTS") == "" {
		count = 1_200
	}
	seed := envInt("NEKI_ORACLE_SEED", 1)
	var schemas []*worldSchema
	var ddl []string
	for i := range oracleWorkers {
		w := newWorldSchema("s"+strconv.Itoa(i+1), rand.New(rand.NewPCG(uint64(seed), uint64(i))))
		schemas, ddl = append(schemas, w), append(ddl, w.ddl())
	}
	four := startShards(t, 4, worldDocument(schemas, fourRanges), gatewayOptions{})
	one := startShards(t, 1, worldDocument(schemas, oneRange), gatewayOptions{})
	for _, s := range []*shards{four, one} {
		for i := range s.servers {
			s.onShard(i+1, strings.Join(ddl, ";\n"))
		}
		s.learnOf("s1", "h")
	}
	simple(t, four.plain, strings.Join(ddl, ";\n"))
	o := &oracleRun{seed: seed, refused: map[string]int{}, examples: map[string]string{}}
	var wg sync.WaitGroup
	for i, w := range schemas {
		worker := newOracleWorker(t, o, i, w, four, one)
		wg.Go(func() { worker.work(count / oracleWorkers) })
	}
	wg.Wait()
	o.report(t)
}

// oracleChecks: all rows are compared after one of so many changes, beside what the changes give.
var oracleChecks = envInt("NEKI_ORACLE_CHECKS", 12)

func envInt(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return otherwise
}

// oracleRun is what all workers count. mu guards it.
type oracleRun struct {
	mu                 sync.Mutex
	seed               int
	run, errors, wrong int
	refused            map[string]int
	examples           map[string]string
}

func (o *oracleRun) report(t *testing.T) {
	total := 0
	for _, n := range o.refused {
		total += n
	}
	t.Logf("seed %d: %d statements, %d failed alike, %d refused over shards (%.1f %%)", o.seed, o.run, o.errors, total, 100*float64(total)/float64(max(o.run, 1)))
	reasons := slices.SortedFunc(maps.Keys(o.refused), func(a, b string) int { return o.refused[b] - o.refused[a] })
	for i, m := range reasons {
		if i < 40 {
			t.Logf("%5d %s\n      e.g. %s", o.refused[m], m, o.examples[m])
		}
	}
	if total*10 >= o.run {
		t.Errorf("a tenth or more is refused")
	}
	if o.errors*5 > o.run {
		t.Errorf("a fifth or more fails: that proves little")
	}
}

// oracleSystem is one of the three that answer.
type oracleSystem struct {
	name string
	conn *pgconn.PgConn
	oids map[uint32]string // of the types that the schemas make
}

type oracleWorker struct {
	*oracleRun
	t                *testing.T
	id               int
	w                *worldSchema
	four, one, plain *oracleSystem
	inTx             bool
	savepoints       int
	lost             bool // the three may hold different rows: they are made equal before the next statement
	count            int
	history          []string // of the open transaction
	names, failures  int
}

func newOracleWorker(t *testing.T, o *oracleRun, id int, w *worldSchema, four, one *shards) *oracleWorker {
	t.Helper()
	worker := &oracleWorker{oracleRun: o, t: t, id: id, w: w}
	plain, err := pgx.ConnectConfig(t.Context(), four.plain.Config())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = plain.Close(context.Background()) })
	worker.four = oracleSystemOf(t, "four shards", four.connect(""), w.name)
	worker.one = oracleSystemOf(t, "one shard", one.connect(""), w.name)
	worker.plain = oracleSystemOf(t, "postgres", plain, w.name)
	return worker
}

func oracleSystemOf(t *testing.T, name string, conn *pgx.Conn, schema string) *oracleSystem {
	t.Helper()
	s := &oracleSystem{name: name, conn: conn.PgConn(), oids: map[uint32]string{}}
	simple(t, conn, "SET search_path = "+schema+"; SET timezone = 'Europe/Berlin'; SET statement_timeout = '60s'")
	for _, row := range simple(t, conn, "SELECT 'mood'::regtype::oid, '_mood'::regtype::oid") {
		for i, cell := range row {
			oid, err := strconv.ParseUint(cell, 10, 32)
			if err != nil {
				t.Fatal(err)
			}
			s.oids[uint32(oid)] = []string{"mood", "mood[]"}[i]
		}
	}
	return s
}

// work runs statements until there were enough, or one was wrong.
func (o *oracleWorker) work(count int) {
	o.load()
	for o.count < count && o.failures < 4 {
		o.step()
	}
	if o.inTx {
		o.end("COMMIT")
	}
	o.compareTables()
}

// load fills the tables.
func (o *oracleWorker) load() {
	for _, t := range o.w.tables {
		_, columns := o.w.someColumns(&worldTable{columns: t.columns, primary: names(t.columns)})
		slices.Sort(columns)
		for i := range 30 {
			row := o.w.row(t, columns)
			if t.keyed && i < len(o.w.keys) && t.name == "t" {
				rest := row[strings.Index(row, valueMark+",")+1:]
				row = "(" + o.w.valueOf(t.key().kind, o.w.keys[i], false) + rest
			}
			o.compare(&oracleStatement{text: "INSERT INTO " + t.name + " VALUES " + row + " ON CONFLICT DO NOTHING"})
		}
	}
}

func names(columns []worldColumn) []string {
	var out []string
	for _, c := range columns {
		out = append(out, c.name)
	}
	return out
}

func (o *oracleWorker) step() {
	w := o.w
	switch {
	case !o.inTx && w.maybe(25):
		o.begin()
	case o.inTx && w.maybe(6):
		o.end(w.pick("COMMIT", "COMMIT", "ROLLBACK"))
	case o.inTx && w.maybe(6):
		o.savepoint()
	case o.inTx && w.maybe(12):
		o.cursor()
	case w.maybe(60):
		o.compareTables()
	case w.maybe(50):
		o.script()
	case w.n(10) < 3:
		if o.compare(&oracleStatement{text: w.change(), writes: true}) && w.maybe(oracleChecks) {
			o.compareTables()
		}
	default:
		q := w.query()
		o.compare(&oracleStatement{text: q.String(), ordered: q.ordered, tree: q})
	}
}

func (o *oracleWorker) begin() {
	o.history = nil
	o.compare(&oracleStatement{text: o.w.pick("BEGIN", "BEGIN", "START TRANSACTION", "BEGIN ISOLATION LEVEL REPEATABLE READ", "BEGIN READ ONLY"), plain: true, writes: true})
	o.inTx, o.savepoints = true, 0
}

func (o *oracleWorker) end(how string) {
	o.compare(&oracleStatement{text: how, plain: true, writes: true})
	o.inTx = false
}

func (o *oracleWorker) savepoint() {
	name := "sp" + strconv.Itoa(max(1, o.savepoints))
	switch {
	case o.savepoints == 0 || o.w.maybe(3):
		o.savepoints++
		o.compare(&oracleStatement{text: "SAVEPOINT sp" + strconv.Itoa(o.savepoints), plain: true, writes: true})
	case o.w.maybe(3):
		o.compare(&oracleStatement{text: "RELEASE " + name, plain: true, writes: true})
		o.savepoints--
	default:
		o.compare(&oracleStatement{text: "ROLLBACK TO " + name, plain: true, writes: true})
	}
}

// cursor reads a query in pieces.
func (o *oracleWorker) cursor() {
	q := o.w.query()
	if !q.ordered {
		return
	}
	o.names++
	name := "c" + strconv.Itoa(o.names)
	if o.compare(&oracleStatement{text: "DECLARE " + name + " CURSOR FOR " + q.String(), plain: true, writes: true}) {
		for _, how := range []string{"FETCH ", "FETCH 3 FROM ", "MOVE 2 IN ", "FETCH ALL FROM ", "CLOSE "} {
			if !o.compare(&oracleStatement{text: how + name, plain: true, ordered: true, writes: true}) {
				return
			}
		}
	}
}

// script sends several statements in one string.
func (o *oracleWorker) script() {
	parts := []string{o.w.change(), o.w.query().String()}
	if o.w.maybe(2) {
		slices.Reverse(parts)
	}
	o.compare(&oracleStatement{text: strings.Join(parts, "; "), plain: true, writes: true})
}

func (o *oracleWorker) compareTables() {
	for _, t := range o.w.tables {
		o.compare(&oracleStatement{text: "SELECT * FROM " + t.name})
	}
}

// oracleStatement is a statement to compare.
type oracleStatement struct {
	text    string
	ordered bool // the order of its rows is total
	plain   bool // by the simple protocol, with literals
	writes  bool
	tree    *selection // of a query
}

// compare runs a statement on all three, and reports whether all have done it.
func (o *oracleWorker) compare(st *oracleStatement) bool {
	if o.lost {
		o.restore()
	}
	mode := o.mode(st)
	o.count++
	a := o.four.ask(o, st.text, mode)
	if a.refused() {
		o.noteRefused(st, a, mode)
		return false
	}
	b, c := o.one.ask(o, st.text, mode), o.plain.ask(o, st.text, mode)
	o.history = append(o.history, fmt.Sprintf("%v %s", mode, render(st.text, false)))
	o.mu.Lock()
	o.run++
	if c.state != "" {
		o.errors++
	}
	o.mu.Unlock()
	if b.refused() {
		o.lost = st.writes || o.inTx
		if o.inTx {
			o.rollbackAll()
		}
		return false
	}
	for _, got := range []*oracleAnswer{a, b} {
		if diff := got.differs(c, st.ordered); diff != "" {
			o.fail(st, mode, got, diff)
			return false
		}
	}
	return c.state == ""
}

func (o *oracleWorker) noteRefused(st *oracleStatement, a *oracleAnswer, mode oracleMode) {
	o.history = append(o.history, fmt.Sprintf("%v %s -- %s", mode, render(st.text, false), a.message))
	o.mu.Lock()
	o.run++
	o.refused[a.message]++
	if o.examples[a.message] == "" {
		o.examples[a.message] = render(st.text, false)
	}
	o.mu.Unlock()
	if o.inTx {
		o.rollbackAll()
	}
}

// rollbackAll ends a transaction that one of the three could not go on with.
func (o *oracleWorker) rollbackAll() {
	o.inTx = false
	for _, s := range []*oracleSystem{o.four, o.one, o.plain} {
		if a := s.ask(o, "ROLLBACK", oracleMode{}); a.state != "" || s.conn.TxStatus() != 'I' {
			o.t.Errorf("seed %d, worker %d: ROLLBACK leaves %c: %s\n  %s", o.seed, o.id, s.conn.TxStatus(), a, strings.Join(o.history, "\n  "))
		}
	}
}

// restore gives the one shard the rows that the others have.
func (o *oracleWorker) restore() {
	o.lost = false
	o.rollbackAll()
	for _, t := range o.w.tables {
		for _, s := range []*oracleSystem{o.four, o.one} {
			if a := s.ask(o, "TRUNCATE "+t.name, oracleMode{}); a.state != "" {
				o.t.Errorf("%s: TRUNCATE: %s %s", s.name, a.state, a.message)
			}
			var b strings.Builder
			if _, err := o.plain.conn.CopyTo(o.t.Context(), &b, "COPY "+t.name+" TO STDOUT"); err != nil {
				o.t.Error(err)
			}
			if _, err := s.conn.CopyFrom(o.t.Context(), strings.NewReader(b.String()), "COPY "+t.name+" FROM STDIN"); err != nil {
				o.t.Errorf("%s: COPY: %v", s.name, err)
			}
		}
	}
}

// fail reports a difference, and makes the query that shows it smaller.
func (o *oracleWorker) fail(st *oracleStatement, mode oracleMode, got *oracleAnswer, diff string) {
	o.failures++
	text := st.text
	if st.tree != nil && !o.inTx {
		text = o.shrink(st.tree, mode, st.ordered).String()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.wrong++
	o.t.Errorf("seed %d, worker %d, statement %d (%v), %s:\n%s\n%s\nsmallest: %s\n%s\nbefore it in the transaction (%v):\n  %s", o.seed, o.id, o.count, mode, got.system,
		render(st.text, false), diff, render(text, false), o.tables(), o.inTx, strings.Join(o.history[max(0, len(o.history)-12):], "\n  "))
	if o.lost = st.writes; o.inTx {
		o.lost = true
		o.rollbackAll()
	}
}

func (o *oracleWorker) tables() string {
	ddl := o.w.ddl()
	return ddl[strings.Index(ddl, "\n")+1:]
}

// shrink leaves out parts of a query as long as the answers differ.
func (o *oracleWorker) shrink(q *selection, mode oracleMode, ordered bool) *selection {
	for again := true; again; {
		again = false
		for _, s := range q.smaller() {
			ordered := ordered && len(s.order) == len(s.list)
			if s.limit+s.offset != "" && !ordered {
				continue
			}
			want := o.plain.ask(o, s.String(), mode)
			for _, system := range []*oracleSystem{o.four, o.one} {
				got := system.ask(o, s.String(), mode)
				if !again && !got.refused() && want.state == "" && got.differs(want, ordered) != "" {
					q, again = s, true
				}
			}
			if again {
				break
			}
		}
	}
	return q
}

// oracleMode is how a statement is run.
type oracleMode struct {
	extended, binary, params, declared, named bool
}

func (m oracleMode) String() string {
	if !m.extended {
		return "simple"
	}
	out := "extended"
	for _, f := range []struct {
		on   bool
		name string
	}{{m.binary, "binary"}, {m.params, "parameters"}, {m.declared, "declared"}, {m.named, "named"}} {
		if f.on {
			out += " " + f.name
		}
	}
	return out
}

func (o *oracleWorker) mode(st *oracleStatement) oracleMode {
	r := o.w.rand
	m := oracleMode{r.IntN(2) == 0, r.IntN(2) == 0, r.IntN(3) > 0, r.IntN(2) == 0, r.IntN(3) == 0}
	if st.plain || !m.extended {
		return oracleMode{}
	}
	return m
}

// render makes literals of the values in a text, or parameters with their types said.
func render(text string, params bool) string {
	out, _, _ := renderParams(text, params, false)
	return out
}

func renderParams(text string, params, declared bool) (out string, values [][]byte, oids []uint32) {
	parts := strings.Split(text, valueMark)
	var b strings.Builder
	for i, part := range parts {
		if i%2 == 0 {
			b.WriteString(part)
			continue
		}
		f := strings.Split(part, valueSep)
		k, _ := strconv.Atoi(f[0])
		fact := &kindFacts[k]
		switch {
		case params && len(values) < 60:
			values = append(values, []byte(f[1]))
			fmt.Fprintf(&b, "$%d", len(values))
			if f[2] != "" || !declared || fact.oid == 0 {
				b.WriteString("::" + fact.sql)
			}
			oid := fact.oid
			if !declared {
				oid = 0
			}
			oids = append(oids, oid)
		case f[2] == "" && (kind(k) == kInt || kind(k) == kBig || kind(k) == kNum):
			b.WriteString(f[1])
		default:
			b.WriteString("'" + strings.ReplaceAll(f[1], "'", "''") + "'")
			if f[2] != "" {
				b.WriteString("::" + fact.sql)
			}
		}
	}
	return b.String(), values, oids
}

// oracleAnswer is what a statement gave: of each result the columns, the rows and the tag.
type oracleAnswer struct {
	system         string
	results        []oracleResult
	state, message string
}

type oracleResult struct {
	columns, tag string
	rows         []string
}

func (a *oracleAnswer) refused() bool {
	return a.state == pgerr.NotImplemented || a.state == pgerr.FeatureNotSupported
}

// differs gives how two answers differ, "" if they don't.
func (a *oracleAnswer) differs(want *oracleAnswer, ordered bool) string {
	same := a.state == want.state && len(a.results) == len(want.results)
	for i := range a.results {
		if !same || want.state != "" {
			break
		}
		x, y := &a.results[i], &want.results[i]
		if !ordered {
			slices.Sort(x.rows)
			slices.Sort(y.rows)
		}
		same = x.columns == y.columns && x.tag == y.tag && slices.Equal(x.rows, y.rows)
	}
	if same {
		return ""
	}
	return a.String() + "\n" + want.String()
}

func (a *oracleAnswer) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s %s", a.system, a.state, a.message)
	for _, r := range a.results {
		fmt.Fprintf(&b, "%s\n  %s (%d rows)\n    %s", r.tag, r.columns, len(r.rows), strings.Join(r.rows[:min(12, len(r.rows))], "\n    "))
	}
	return b.String()
}

// ask runs a statement.
func (s *oracleSystem) ask(o *oracleWorker, text string, mode oracleMode) *oracleAnswer {
	ctx, cancel := context.WithTimeout(o.t.Context(), 90*time.Second)
	defer cancel()
	a := &oracleAnswer{system: s.name}
	if !mode.extended {
		results, err := s.conn.Exec(ctx, render(text, false)).ReadAll()
		s.fill(a, results, err)
		return a
	}
	sql, values, oids := renderParams(text, mode.params, mode.declared)
	formats := []int16{0}
	if mode.binary {
		formats[0] = 1
	}
	var r *pgconn.Result
	if mode.named {
		if _, err := s.conn.Prepare(ctx, "st", sql, oids); err != nil {
			s.fill(a, nil, err)
			return a
		}
		r = s.conn.ExecPrepared(ctx, "st", values, nil, formats).Read()
		if err := s.conn.Deallocate(ctx, "st"); err != nil {
			r.Err = errors.Join(r.Err, err)
		}
	} else {
		r = s.conn.ExecParams(ctx, sql, values, oids, nil, formats).Read()
	}
	s.fill(a, []*pgconn.Result{r}, r.Err)
	return a
}

func (s *oracleSystem) fill(a *oracleAnswer, results []*pgconn.Result, err error) {
	if err != nil {
		a.state, a.message = "connection", err.Error()
		var pg *pgconn.PgError
		if errors.As(err, &pg) {
			a.state, a.message = pg.Code, pg.Message+" "+pg.Detail
		}
		return
	}
	for _, r := range results {
		out := oracleResult{tag: r.CommandTag.String()}
		var head strings.Builder
		for _, f := range r.FieldDescriptions {
			name := s.oids[f.DataTypeOID]
			if name == "" {
				name = strconv.Itoa(int(f.DataTypeOID))
			}
			fmt.Fprintf(&head, "%s/%s/%d ", f.Name, name, f.Format)
		}
		out.columns = head.String()
		for _, row := range r.Rows {
			var b strings.Builder
			for _, cell := range row {
				if cell == nil {
					b.WriteString("NULL|")
				} else {
					fmt.Fprintf(&b, "%q|", cell)
				}
			}
			out.rows = append(out.rows, b.String())
		}
		a.results = append(a.results, out)
	}
}
