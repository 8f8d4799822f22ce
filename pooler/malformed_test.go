package pooler

// malformedSequences have messages that are framed well but wrong inside: an error like any other, after which the
// conversation goes on.
var malformedSequences = []sequence{
	{"a query without its end", []step{{msgOf('Q', []byte("select 1")), 1}, {q("select 2"), 1}}},
	{"a query with data behind it", []step{{msgOf('Q', "select 1", "x"), 1}, {q("select 2"), 1}}},
	{"a query of nothing", []step{{msgOf('Q'), 1}, {q("select 2"), 1}}},
	{"a bad query in a block", []step{{q("begin; insert into t values (10)"), 1}, {msgOf('Q', []byte("x")), 1}, {q("commit"), 1}, {q("select count(*) from t"), 1}}},
	{"a bad query within a segment", []step{
		{cat(parse("", "insert into t values (10)"), bindTo("", ""), execute("", 0), msgOf('Q', []byte("x"))), 1},
		{cat(syncMsg), 1}, {q("select count(*) from t"), 1},
	}},
	{"a bad query in a failed block", []step{{q("begin; select 1/0"), 1}, {msgOf('Q', []byte("x")), 1}, {q("commit"), 1}}},
	{"Parse without a name", []step{{cat(msgOf('P', []byte("x")), bindTo("", ""), syncMsg), 1}, {q("select 2"), 1}}},
	{"Parse without a text", []step{{cat(msgOf('P', "", []byte("select 1")), syncMsg), 1}}},
	{"Parse without a count of types", []step{{cat(msgOf('P', "", "select 1"), syncMsg), 1}, {cat(msgOf('P', "", "select 1", []byte{0}), syncMsg), 1}}},
	{"Parse with too few types", []step{{cat(msgOf('P', "s", "select 1", 2, int32(23)), syncMsg), 1}, {cat(parse("s", "select 1"), syncMsg), 1}}},
	{"Parse with data behind it", []step{{cat(msgOf('P', "s", "select 1", 0, []byte("x")), syncMsg), 1}, {cat(parse("s", "select 1"), syncMsg), 1}}},
	{"Parse with more types than it can", []step{{cat(msgOf('P', "", "select 1", -1), syncMsg), 1}}},
	{"Parse of nothing", []step{{cat(msgOf('P'), syncMsg), 1}}},
	{"a bad Parse keeps the unnamed statement", []step{
		{cat(parse("", "select 7"), syncMsg), 1}, {cat(msgOf('P', "", []byte("select 1")), syncMsg), 1}, {cat(bindTo("", ""), execute("", 0), syncMsg), 1},
	}},
	{"Bind without names", []step{{cat(msgOf('B'), syncMsg), 1}, {cat(msgOf('B', []byte("x")), syncMsg), 1}, {cat(msgOf('B', "", []byte("x")), syncMsg), 1}, {cat(msgOf('B', "", ""), syncMsg), 1}}},
	{"Bind of an unknown statement, without the rest", []step{{cat(msgOf('B', "", "nosuch"), syncMsg), 1}}},
	{"Bind without the rest", []step{{cat(parse("s", "select $1::text"), msgOf('B', "", "s"), syncMsg), 1}, {cat(msgOf('B', "", "s", 0, 1), syncMsg), 1}, {cat(msgOf('B', "", "s", 0, 1, int32(9), []byte("x")), syncMsg), 1}}},
	{"Bind with a negative length", []step{{cat(parse("s", "select $1::text"), msgOf('B', "", "s", 0, 1, int32(-2), 0), syncMsg), 1}}},
	{"Bind with NULL", []step{{cat(parse("s", "select $1::text"), msgOf('B', "", "s", 0, 1, int32(-1), 0), execute("", 0), syncMsg), 1}}},
	{"Bind with data behind it", []step{{cat(parse("s", "select 1"), msgOf('B', "", "s", 0, 0, 0, []byte("x")), execute("", 0), syncMsg), 1}}},
	{"Bind with wrong formats", []step{
		{cat(parse("s", "select $1::text"), msgOf('B', "", "s", 1, 7, 1, int32(1), []byte("x"), 0), execute("", 0), syncMsg), 1},
		{cat(msgOf('B', "", "s", 0, 1, int32(1), []byte("x"), 1, 7), describe('P', ""), execute("", 0), syncMsg), 1},
		{cat(msgOf('B', "", "s", 2, 0, 0, 1, int32(1), []byte("x"), 0), execute("", 0), syncMsg), 1},
		{cat(msgOf('B', "", "s", 0, 1, int32(1), []byte("x"), 3, 0, 0, 0), execute("", 0), syncMsg), 1},
	}},
	{"Bind with the wrong number of parameters", []step{
		{cat(parse("mine", "select $1::text"), msgOf('B', "", "mine", 0, 2, int32(-1), int32(-1), 0), execute("", 0), syncMsg), 1},
		{cat(parse("", "select $1::text"), msgOf('B', "", "", 0, 0, 0), execute("", 0), syncMsg), 1},
		{cat(bindTo("", "mine"), execute("", 0), syncMsg), 1},
	}},
	{"Describe without a target", []step{{cat(msgOf('D'), syncMsg), 1}, {cat(msgOf('D', byte('S')), syncMsg), 1}, {cat(msgOf('D', byte('S'), []byte("x")), syncMsg), 1}, {cat(msgOf('D', byte('S'), "x", []byte("y")), syncMsg), 1}}},
	{"Describe of something else", []step{{cat(msgOf('D', byte('X'), ""), syncMsg), 1}, {cat(parse("", "select 1"), msgOf('D', byte(200), ""), bindTo("", ""), syncMsg), 1}}},
	{"Close without a target", []step{{cat(msgOf('C'), syncMsg), 1}, {cat(msgOf('C', byte('P'), []byte("x")), syncMsg), 1}, {cat(msgOf('C', byte('S'), "x", []byte("y")), syncMsg), 1}}},
	{"Close of something else", []step{{cat(parse("s", "select 1"), msgOf('C', byte('X'), "s"), syncMsg), 1}, {cat(describe('S', "s"), syncMsg), 1}}},
	{"Execute without its end", []step{{cat(msgOf('E'), syncMsg), 1}, {cat(msgOf('E', ""), syncMsg), 1}, {cat(msgOf('E', []byte("x")), syncMsg), 1}, {cat(msgOf('E', "", 1), syncMsg), 1}}},
	{"Execute with data behind it", []step{{cat(parse("", "select 1"), bindTo("", ""), msgOf('E', "", int32(0), []byte("x")), syncMsg), 1}}},
	{"Execute with a negative limit", []step{{cat(parse("", "select 1"), bindTo("", ""), execute("", -5), syncMsg), 1}}},
	{"Sync with a body", []step{{msgOf('S', "x"), 1}, {q("select 1"), 1}}},
	{"Sync with a body after a statement", []step{
		{cat(parse("", "insert into t values (10)"), bindTo("", ""), execute("", 0), msgOf('S', "x")), 1}, {q("select count(*) from t"), 1},
	}},
	{"Sync with a body after an error", []step{{cat(parse("", "select 1/0"), bindTo("", ""), execute("", 0), msgOf('S', "x")), 1}, {q("select 1"), 1}}},
	{"Sync with a body in a block", []step{{q("begin"), 1}, {msgOf('S', "x"), 1}, {q("rollback"), 1}}},
	{"Flush with a body", []step{{cat(msgOf('H', "x"), parse("", "select 1"), syncMsg), 1}, {q("select 1"), 1}}},
	{"Flush with a body after a statement", []step{
		{cat(parse("", "insert into t values (10)"), bindTo("", ""), execute("", 0), msgOf('H', "x"), parse("", "select 1"), syncMsg), 1}, {q("select count(*) from t"), 1},
	}},
	{"a function call without its end", []step{
		{msgOf('F'), 1}, {msgOf('F', int32(1397)), 1}, {msgOf('F', int32(1397), 1, 0, 1, int32(9), []byte("x"), 0), 1},
		{msgOf('F', int32(1397), 1, 0, 1, int32(2), []byte("-3"), 0, []byte("x")), 1}, {msgOf('F', int32(1397), 1, 7, 1, int32(2), []byte("-3"), 0), 1}, {q("select 1"), 1},
	}},
	{"a function call within a segment", []step{
		{cat(parse("", "insert into t values (10)"), bindTo("", ""), execute("", 0), msgOf('F', int32(1397), 1, 0, 1, int32(2), []byte("-3"), 0)), 1},
		{cat(parse("", "insert into t values (11)"), bindTo("", ""), execute("", 0), flushMsg), 0},
		{msgOf('F', int32(1397)), 1}, {syncMsg, 1}, {q("select k from t order by k"), 1},
	}},
	{"a function call that fails", []step{{msgOf('F', int32(1397), 1, 0, 1, int32(1), []byte("x"), 0), 1}, {q("begin"), 1}, {msgOf('F', int32(1), 0, 0, 0), 1}, {q("commit"), 1}}},
	{"a query within a segment", []step{
		{cat(parse("", "insert into t values (10)"), bindTo("", ""), execute("", 0), q("select 1/0")), 1},
		{cat(parse("", "insert into t values (11)"), bindTo("", ""), execute("", 0), q("select 1")), 1},
		{q("select k from t order by k"), 1},
	}},
	{"Terminate without a Sync", []step{
		{q("begin; insert into t values (10)"), 1},
		{cat(parse("", "commit"), bindTo("", ""), execute("", 0), msgOf('X')), 0},
	}},
	{"a message of no type", []step{{cat(parse("", "select 1"), msgOf('x', "y")), 0}}},
	{"a password", []step{{msgOf('p', "y"), 0}}},
	{"a message of no type after an error", []step{{cat(parse("", "selct"), flushMsg), 0}, {msgOf(0), 0}}},
	{"something else while a copy runs", []step{{q("copy t from stdin"), 0}, {q("select 1"), 0}}},
	{"a copy message with a bad body", []step{{q("copy t from stdin"), 0}, {msgOf('c', "x"), 1}, {q("copy t from stdin"), 0}, {msgOf('f', []byte("x")), 1}, {q("copy t from stdin"), 0}, {cat(msgOf('S', "x"), copyDone), 1}}},
}
