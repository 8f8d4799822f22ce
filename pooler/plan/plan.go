package plan

import (
	"sync/atomic"

	"neki/sqlparse"
)

// RouteKind says who answers a statement.
type RouteKind uint8

// The kinds of routes.
const (
	RouteOne       RouteKind = iota // the data of one shard
	RouteAny                        // a shard, but each would answer alike: no relation is named
	RouteLocal                      // the session itself; nothing is sent
	RouteVirtual                    // the engine, over the neki schema
	RouteControl                    // transaction control and DISCARD: the session, and the connections that it holds
	RouteEqual                      // one shard, by a key
	RouteIn                         // the shards of several keys
	RouteScatter                    // every shard of a group
	RouteNone                       // no row can meet the conditions: any one shard gives the empty answer
	RouteReference                  // any shard that has copies of the reference tables; a write: all of them
	RouteLookup                     // the shards that the lookup table of a global secondary index gives
)

var routeWords = [...]string{
	"one shard", "any shard", "gateway", "neki schema", "session's connections", "EqualUnique", "IN", "Scatter", "None",
	"Reference", "Lookup",
}

// String names the kind as EXPLAIN (NEKI_PLAN) does.
func (k RouteKind) String() string { return routeWords[k] }

// Route is where a statement goes. Which shards that are in one execution, [Route.Shards] says.
type Route struct {
	Kind  RouteKind
	Shard string   // uid, for RouteOne and RouteAny; else a shard that is needed beside those of the pins, or ""
	Pins  []Pin    // for RouteEqual, RouteIn and RouteLookup
	All   []string // uids: for RouteScatter, of the group; for RouteReference and RouteNone, those that may be chosen
}

// Backend reports whether the statement is sent to a shard.
func (r *Route) Backend() bool {
	return r.Kind != RouteLocal && r.Kind != RouteVirtual && r.Kind != RouteControl
}

// Verdict is what is known of a statement's writing.
type Verdict uint8

// The verdicts.
const (
	Unproven Verdict = iota // may write: for the primary under target auto; a standby refuses it by itself if it does
	Read                    // proven to be a read that any replica can serve
	Write                   // known to write: refused under target replica and rdonly
	Neutral                 // touches no data: SET, SHOW, transaction control ...; good on any kind of instance
)

var verdictWords = [...]string{"unproven", "read", "write", "neutral"}

// String names the verdict as EXPLAIN (NEKI_PLAN) does.
func (v Verdict) String() string { return verdictWords[v] }

// Pins is what a statement leaves behind in its server connection, so that the connection stays the client's.
type Pins uint16

// The causes of pins.
const (
	PinTempObject Pins = 1 << iota
	PinAdvisoryLock
	PinListen
	PinHoldCursor
	PinLoad
	PinSetSeed
	PinSequence // currval and lastval: what they answer lives in the connection
	PinOpaque   // the parser can't see what it leaves: unparsable text, DO, CALL
)

var pinWords = [...]string{
	"temp object", "session advisory lock", "LISTEN", "WITH HOLD cursor", "LOAD", "setseed",
	"currval or lastval", "unknown effects",
}

// Reasons gives the causes in words, as neki.sessions shows them.
func (p Pins) Reasons() []string {
	var out []string
	for i, w := range pinWords {
		if p&(1<<i) != 0 {
			out = append(out, w)
		}
	}
	return out
}

// Plan is what was decided about a statement. Only its counters change after it was made.
type Plan struct {
	hits atomic.Int64
	_    [56]byte // the counter must not share a cache line with what every hit reads

	Query       string // the text for people to see: constants replaced by $n
	Secret      bool   // the text may hold a password
	Fingerprint string // 16 hex digits; "" when the text does not parse
	Kind        sqlparse.Kind
	Tag         string // the command, as errors name it: "INSERT", "CREATE TABLE"
	Route       Route
	Verdict     Verdict
	Why         string // what decided the verdict, e.g. "calls volatile function nextval"
	Effects     sqlparse.Effects
	Pins        Pins
	Tables      []string // relations that are named, as written
	ByText      bool     // depends on literals: valid for this very text only

	Set        *sqlparse.SetStmt    // SET and RESET; to be remembered when it succeeds
	SetConfigs []sqlparse.SetConfig // set_config calls; to be remembered when the statement succeeds
	Show       string               // name asked by SHOW, lower case; "all"
	Tx         *sqlparse.TxStmt
	Copy       *sqlparse.CopyStmt
	CopyOut    *CopyOut // of a COPY whose rows the gateway makes: by Spread, or by Statement, its query
	CopyIn     *CopyIn  // of a COPY whose rows the gateway splits
	Prepared   *sqlparse.PreparedStmt
	Discard    *sqlparse.DiscardStmt
	Cursor     *sqlparse.CursorStmt
	Channel    *sqlparse.ChannelStmt
	Call       *sqlparse.CallStmt  // of a procedure of the neki schema
	Explain    *Explain            // of EXPLAIN; its Inner is the plan of the statement explained
	Inner      *Plan               // of PREPARE: the plan of the statement prepared
	Runs       string              // name of the prepared statement that it runs: EXECUTE, also explained or to fill a table
	Statement  *sqlparse.Statement // with its tree; only for RouteVirtual
	ParseError error               // why the text does not parse; it is sent as it is nevertheless

	// ShowsPrepared: it reads pg_prepared_statements, which is to show the client's.
	ShowsPrepared bool

	// ChangesDefaults: ALTER ROLE or DATABASE ... SET, after which new sessions begin with other settings.
	ChangesDefaults bool

	// ChangesFunctions: DDL after which volatilities may differ. The session calls Functions.Invalidate when it has
	// succeeded, and again when its transaction has ended.
	ChangesFunctions bool

	// Spread says how the statement runs on several shards. nil, and not SpreadByText: the client's own bytes go to the
	// one shard that Route.Shards gives.
	Spread *Spread
	// SpreadByText: should Route.Shards give several shards, the Spread is that of the plan which Planner.Spread gives.
	SpreadByText bool

	refused      string // what a read-only session is told it can't execute
	shardRefused string // what a session with __neki.shard is told it can't execute; "" = allowed
	quietArgs    bool   // of EXECUTE: its arguments have no effect of their own
	plain        bool   // see Plain
	disproved    atomic.Bool
	result       atomic.Int32 // see NoteResult
	stats        atomic.Pointer[entry]
	key          string // what is compared on a cache hit: Query, or the original text when ByText
	bytes        int64
	version      version
	template     *template
	planner      *Planner // whose shapers read keys
	marker       bool     // of a shape whose plans are ByText; never given out
}

// version is what a cached plan was made under.
type version struct {
	catalog   uint64
	functions uint64
}

// Part is one statement of a string of statements.
type Part struct {
	Plan       *Plan
	Start, End int // byte offsets into the string
}

// Hits counts how often the plan came from the cache.
func (p *Plan) Hits() int64 { return p.hits.Load() }

// Bytes estimates the memory that the plan holds.
func (p *Plan) Bytes() int64 { return p.bytes }

// Text gives the statement's SQL, with its literals, of a plan that is not one of many texts: utility statements are such.
func (p *Plan) Text() string { return p.key }

// Proven reports whether the plan is a proven read. It takes a lesson into account: see Disprove.
func (p *Plan) Proven() bool { return p.Verdict == Read && !p.disproved.Load() }

// Disprove notes that a replica refused the statement with 25006 although it was taken for a read, e.g. because a view
// hides a call of nextval. Under target auto it goes to the primary from now on; the session runs it there again if
// nothing has reached the client yet.
func (p *Plan) Disprove() { p.disproved.Store(true) }
