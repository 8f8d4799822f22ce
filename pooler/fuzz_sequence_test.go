package pooler

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// A program is a conversation made of random bytes: steps of messages, valid ones and some that are not, each step sent
// in one write. Postgres and the gateway must answer it alike.

// choices draws from a program's bytes; when they are used up it gives 0.
type choices struct {
	bytes []byte
	at    int
}

func (c *choices) done() bool { return c.at >= len(c.bytes) }

// of draws a number below n, at most 256.
func (c *choices) of(n int) int {
	if c.done() {
		return 0
	}
	v := int(c.bytes[c.at]) % n
	c.at++
	return v
}

func pick[T any](c *choices, list []T) T { return list[c.of(len(list))] }

var (
	fuzzStatements = []string{"", "s1", "s2", "s1"}
	fuzzPortals    = []string{"", "p1", "p2", ""}
	fuzzSQL        = []string{
		"select 1", "select $1::int + 1", "select $1::text, $2::int", "select k from t order by k", "select g from generate_series(1, 5) g",
		"insert into t values (10)", "insert into t values ($1::int)", "delete from t where k = 10", "update t set k = k + 100 where k = 1", "select 1/0", "selct",
		"begin", "commit", "rollback", "savepoint a", "rollback to a", "release a", "begin read only", "commit and chain", "start transaction isolation level serializable",
		"set work_mem = '3MB'", "set local work_mem = '5MB'", "show work_mem", "reset work_mem", "select set_config('work_mem', '7MB', false)", "reset all",
		"set application_name = 'fuzz'", "set timezone = 'Asia/Tokyo'", "set datestyle = 'German'", "show datestyle", "set session characteristics as transaction read only",
		"prepare s1 as select 1", "prepare s2(int) as select $1 + 1", "execute s1", "execute s2(5)", "deallocate s1", "deallocate all", "discard all", "discard plans",
		"declare c cursor for select g from generate_series(1, 4) g", "fetch 2 from c", "close c", "declare h cursor with hold for select 7", "fetch h", "close all",
		"copy t from stdin", "copy t to stdout", "copy (select g from generate_series(1, 3) g) to stdout", "create temp table x (a int)", "insert into x values (1)", "select count(*) from x", "drop table x",
		"do $$ begin raise notice 'noted'; end $$", "lock table t", "", ";", "-- nothing", "select 1; select 2", "begin; select 1/0", "begin; insert into t values (11); commit; select 1/0",
		"insert into t values (12); select 1/0", "insert into t values (13); rollback", "select 'ä', nosuch", "select nosuch from t", "set nosuch = 1", "show nosuch", "set work_mem = '9MB'; select 1/0",
		"set role pg_monitor", "select current_user", "reset role", "set search_path = 'nowhere'", "show search_path", "values (1), (2)", "explain (costs off) select 1", "table t",
		"create table t2 (a int)", "drop table t2", "alter table t add v int", "select * from t", "truncate t", "analyze t", "vacuum t", "listen a", "unlisten a", "execute nosuch", "deallocate nosuch",
		"copy t from stdin; select 3", "select 4; copy t from stdin", "set constraints all deferred", "prepare transaction 'x'", "set transaction read only", "set standard_conforming_strings = on",
	}
	fuzzData = []string{"20\n", "21\n22\n", "x\n", "", "\\.\n", "2", "3\n"}
)

// fuzzProgram makes the steps of a program.
func fuzzProgram(program []byte) [][][]byte {
	c := &choices{bytes: program}
	var steps [][][]byte
	for len(steps) < 10 && !c.done() {
		var step [][]byte
		for n := 1 + c.of(6); n > 0 && !c.done(); n-- {
			step = append(step, fuzzMessages(c)...)
		}
		steps = append(steps, step)
	}
	return steps
}

// fuzzMessages makes a message, or several that belong together.
func fuzzMessages(c *choices) [][]byte {
	var m [][]byte
	switch c.of(16) {
	case 0, 1, 2:
		m = [][]byte{q(pick(c, fuzzSQL))}
	case 3, 4:
		name, sql := pick(c, fuzzStatements), pick(c, fuzzSQL)
		if name != "" && strings.HasPrefix(sql, "execute "+name) { // for ever
			sql = "select 6"
		}
		m = [][]byte{parse(name, sql), bindTo("", name), execute("", int32(c.of(3)))}
	case 5:
		name, sql := pick(c, fuzzStatements), pick(c, fuzzSQL)
		if name != "" && strings.HasPrefix(sql, "execute "+name) {
			sql = "select 6"
		}
		m = [][]byte{parse(name, sql)}
	case 6, 7:
		m = [][]byte{fuzzBind(c)}
	case 8:
		m = [][]byte{execute(pick(c, fuzzPortals), int32(c.of(3)))}
	case 9:
		kind, name := byte('S'), pick(c, fuzzStatements)
		if c.of(2) == 1 {
			kind, name = 'P', pick(c, fuzzPortals)
		}
		m = [][]byte{msgOf(pick(c, []byte("DDDC")), kind, name)}
	case 10, 11:
		m = [][]byte{syncMsg}
	case 12:
		m = [][]byte{flushMsg}
	case 13:
		m = [][]byte{data(pick(c, fuzzData))}
	case 14:
		m = [][]byte{pick(c, [][]byte{copyDone, msgOf('f', "given up"), msgOf('F', int32(1397), 1, 0, 1, int32(2), []byte("-3"), 0)})}
	case 15:
		m = fuzzMessages(c)
		i := c.of(len(m))
		m[i] = fuzzMutate(c, m[i])
	}
	return m
}

func fuzzBind(c *choices) []byte {
	portal, name := pick(c, fuzzPortals), pick(c, fuzzStatements)
	switch c.of(5) {
	case 0:
		return bindTo(portal, name, "5")
	case 1:
		return bindTo(portal, name, "x", "6")
	case 2:
		return msgOf('B', portal, name, 1, 1, 1, int32(4), []byte{0, 0, 0, 9}, 1, 1)
	}
	return bindTo(portal, name)
}

// fuzzMutate spoils the body of a message, but not its frame.
func fuzzMutate(c *choices, m []byte) []byte {
	m = append([]byte(nil), m...)
	switch at := 5 + c.of(max(1, len(m)-5)); c.of(5) {
	case 0:
		m = m[:min(at, len(m))]
	case 1:
		m = append(m, byte(c.of(256)))
	case 2:
		if at < len(m) {
			m[at] = byte(c.of(256))
		}
	case 3:
		if at < len(m) {
			m[at] = 0
		}
	case 4:
		if len(m) > 5 {
			m = append(m[:min(at, len(m))], m[min(at+1, len(m)):]...)
		}
	}
	binary.BigEndian.PutUint32(m[1:], uint32(len(m)-1))
	return m
}

// fuzzEnd ends a step in any state of the conversation: a COPY, a segment that is skipped. Two Closes and a Sync follow,
// so that their answers end those of the step.
var fuzzEnd = cat(copyDone, syncMsg, closing('P', "fuzz-end"), closing('P', "fuzz-end"), syncMsg)

// fuzzAnswers gives what a server says to the steps. One that ends the connection says no more.
func fuzzAnswers(t testing.TB, cfg *pgx.ConnConfig, steps [][][]byte) []string {
	t.Helper()
	c := newWireClient(t, cfg)
	defer c.conn.Close()
	var all []string
	for _, step := range steps {
		if _, err := c.conn.Write(append(cat(step...), fuzzEnd...)); err != nil {
			return append(all, "(gone)")
		}
		out, ended := fuzzListen(c)
		all = append(all, out)
		if ended {
			return all
		}
	}
	return all
}

func fuzzListen(c *wireClient) (out string, ended bool) {
	var frames []string
	types := ""
	_ = c.conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	for !strings.HasSuffix(types, "33Z") {
		typ, body, err := readFrame(c.conn)
		if err != nil {
			if os.IsTimeout(err) {
				frames = append(frames, "(silence)")
			}
			return strings.Join(frames, " "), true
		}
		types += string(typ)
		frames = append(frames, readable(typ, body))
	}
	return strings.Join(frames, " "), false
}

// differs runs the steps both ways and describes the first difference, "" when there is none.
func (b *bothWays) differs(t testing.TB, steps [][][]byte) string {
	if unseen(steps) {
		return ""
	}
	b.prepare(t)
	want := fuzzAnswers(t, b.direct, steps)
	b.prepare(t)
	got := fuzzAnswers(t, b.through, steps)
	for i := range max(len(want), len(got)) {
		w, g := "(none)", "(none)"
		if i < len(want) {
			w = want[i]
		}
		if i < len(got) {
			g = got[i]
		}
		if strings.Contains(g, "|CNK013|") { // said to be out of reach
			return ""
		}
		if w != g && !knownDifference(w, g) {
			return fmt.Sprintf("step %d\n  gateway  %s\n  postgres %s", i+1, g, w)
		}
	}
	if after := fuzzAnswers(t, b.through, [][][]byte{{q("select 'next'")}}); !strings.Contains(after[0], "next") {
		return "the next client: " + after[0]
	}
	return ""
}

// unseen reports whether a program makes prepared statements where the gateway does not know of them: while code that it
// can't see pins the session (docs/limits.md).
func unseen(steps [][][]byte) bool {
	all := string(bytes.Join(slices.Concat(steps...), nil))
	return (strings.Contains(all, "F\x00\x00") || strings.Contains(all, "do $$")) && strings.Contains(all, "prepare")
}

var (
	inFailedBlock = regexp.MustCompile(`E\{SERROR\|VERROR\|C[^}]*\} Z\{"E"\}`)
	inCopy        = regexp.MustCompile(`unexpected message type 0x..`)
)

// knownDifference reports whether the gateway differs as docs/limits.md says. In a transaction that has failed, an error of
// any kind may be 25P02, because the statement has to be prepared first. A message within a COPY may be named by the type of
// the one that the server got. What the gateway itself has answered does not make a pipeline.
func knownDifference(postgres, gateway string) bool {
	if strings.Contains(gateway, "C25P02") {
		return inFailedBlock.ReplaceAllString(postgres, "") == inFailedBlock.ReplaceAllString(gateway, "")
	}
	return inCopy.ReplaceAllString(postgres, "") == inCopy.ReplaceAllString(gateway, "") ||
		strings.Contains(postgres, "cannot be executed within a pipeline")
}

// check reports the shortest program it finds that both ways answer differently.
func (b *bothWays) check(t testing.TB, steps [][][]byte) (same bool) {
	t.Helper()
	difference := b.differs(t, steps)
	if difference == "" {
		return true
	}
	// What has spoilt a connection spoils the programs after it too.
	for again := !strings.HasPrefix(difference, "the next client") && !strings.Contains(difference, "(silence)"); again; {
		again = false
		for i := range steps {
			for j := range steps[i] {
				fewer := without(steps, i, j)
				if d := b.differs(t, fewer); d != "" {
					steps, difference, again = fewer, d, true
					break
				}
			}
			if again {
				break
			}
		}
	}
	var text strings.Builder
	for i, step := range steps {
		fmt.Fprintf(&text, "\n  %d:", i+1)
		for _, m := range step {
			fmt.Fprintf(&text, " %c%q", m[0], m[5:])
		}
	}
	t.Errorf("answers differ at %s\nprogram%s", difference, text.String())
	return false
}

// without gives the steps without one message.
func without(steps [][][]byte, i, j int) [][][]byte {
	var out [][][]byte
	for k, step := range steps {
		if k == i {
			step = append(append([][]byte(nil), step[:j]...), step[j+1:]...)
		}
		if len(step) > 0 {
			out = append(out, step)
		}
	}
	return out
}

// fuzzTimes is how many conversations TestRandomSequences has for each size of the pool, unless NEKI_FUZZ_SEQUENCES says for
// how long. fuzzSeed is where it begins then: what fails, fails again.
const (
	fuzzTimes = 60
	fuzzSeed  = 7
)

// TestRandomSequences has random conversations with Postgres and with gateways. With NEKI_FUZZ_SEQUENCES=1m they are others
// each time; NEKI_FUZZ_SEED repeats a run.
func TestRandomSequences(t *testing.T) {
	limit, seed := time.Hour, uint64(fuzzSeed)
	times := fuzzTimes
	if s := os.Getenv("NEKI_FUZZ_SEQUENCES"); s != "" {
		var err error
		if limit, err = time.ParseDuration(s); err != nil {
			t.Fatal(err)
		}
		times, seed = math.MaxInt, uint64(time.Now().UnixNano())
	}
	if s := os.Getenv("NEKI_FUZZ_SEED"); s != "" {
		if _, err := fmt.Sscan(s, &seed); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("NEKI_FUZZ_SEED=%d", seed)
	for _, size := range poolSizes {
		t.Run(fmt.Sprintf("pool of %d", size), func(t *testing.T) {
			b := newBothWays(t, size)
			random := rand.New(rand.NewPCG(seed, uint64(size)))
			failures, n := 0, 0
			for end := time.Now().Add(limit); n < times && time.Now().Before(end) && failures < 8; n++ {
				program := make([]byte, 8+random.IntN(120))
				for i := range program {
					program[i] = byte(random.Uint32())
				}
				if !b.check(t, fuzzProgram(program)) {
					failures++
				}
			}
			t.Logf("%d conversations", n)
		})
	}
}

// FuzzSequences has the conversations that a fuzzer thinks of with Postgres and with a gateway.
func FuzzSequences(f *testing.F) {
	b := newBothWays(f, 1)
	for _, seed := range []string{
		"\x00\x00\x00", "\x02\x03\x00\x05\x03\x00\x06\x01", "\x01\x05\x01\x02\x06\x00\x01\x03\x08\x00\x02", "\x00\x00\x2d\x0d\x00\x0e\x00", "\x03\x0f\x00\x00\x01\x05",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, program []byte) {
		if len(program) > 400 {
			t.Skip("too long")
		}
		b.check(t, fuzzProgram(program))
	})
}
