package sqlparse

import "math"

// Statement is one parsed and classified statement. It is immutable: plans share it.
type Statement struct {
	Kind    Kind
	Text    string  // as given to Parse; locations in Tree are byte offsets into it
	Tag     string  // command tag without counts: "SELECT", "CREATE TABLE"; as CreateCommandTag, but "SELECT" under row locks too
	Effects Effects // what it does, as far as the text shows it

	// Functions holds each function called by name once, whatever its arguments' types; operators and casts aren't calls.
	Functions []FuncRef
	// Relations holds each relation named once per alias and use; names of CTEs in their scope are left out.
	Relations []RelRef
	// Params is the highest $n, 0 for none.
	Params int

	Set        *SetStmt      // KindSet, KindReset
	Show       string        // KindShow: the name in lower case, "all" for SHOW ALL
	Tx         *TxStmt       // the transaction kinds
	Copy       *CopyStmt     // KindCopy
	Explain    *ExplainStmt  // KindExplain
	Prepared   *PreparedStmt // KindPrepare, KindExecute, KindDeallocate
	Discard    *DiscardStmt  // KindDiscard
	Call       *CallStmt     // KindCall
	Cursor     *CursorStmt   // KindDeclare, KindFetch, KindCloseCursor
	Channel    *ChannelStmt  // KindListen, KindUnlisten, KindNotify
	SetConfigs []SetConfig   // every call of set_config, in the order of the text

	Tree *ParseResult // for exec/build and pooler/plan; not to be changed. nil for KindEmpty
}

// FuncRef names a called function. Schema is empty for an unqualified call.
type FuncRef struct {
	Schema, Name string
	NArgs        int // arguments in parentheses, ORDER BY of WITHIN GROUP included
}

func (f FuncRef) String() string { return qualified(f.Schema, f.Name) }

// RelRef names a relation. Schema is empty for an unqualified name.
type RelRef struct {
	Schema, Name, Alias string
	Write               bool // target of a change: DML, DDL, LOCK, TRUNCATE, COPY FROM
}

func (r RelRef) String() string { return qualified(r.Schema, r.Name) }

func qualified(schema, name string) string {
	if schema == "" {
		return QuoteIdent(name)
	}
	return QuoteIdent(schema) + "." + QuoteIdent(name)
}

// SetStmt is SET or RESET.
type SetStmt struct {
	Name     string // lower case; "" when Multi or All
	Value    string // as flatten_set_variable_args makes it; "" when Default
	Args     []SetArg
	Local    bool
	Default  bool // RESET name, SET name TO DEFAULT
	All      bool // RESET ALL
	Current  bool // SET name FROM CURRENT (only valid in CREATE FUNCTION)
	Special  Special
	Tx       *TxStmt // the modes of SpecialTransaction and SpecialCharacteristics
	Snapshot string  // SET TRANSACTION SNAPSHOT
}

// SetArg is one value of a SET, before flattening.
type SetArg struct {
	Text string
	Kind SetArgKind
}

// SetArgKind tells how a value was written.
type SetArgKind uint8

const (
	SetArgString SetArgKind = iota // a quoted string or a bare word
	SetArgInteger
	SetArgFloat
	SetArgInterval
)

// Special marks the forms of SET with a grammar of their own.
type Special uint8

const (
	SpecialNone            Special = iota
	SpecialTransaction             // SET TRANSACTION modes, SET transaction_read_only ...: of this transaction
	SpecialCharacteristics         // SET SESSION CHARACTERISTICS AS TRANSACTION modes: defaults of the session
	SpecialSnapshot                // SET TRANSACTION SNAPSHOT
)

// SetConfig is one call of set_config.
type SetConfig struct {
	Name     string // lower case
	Value    string
	Null     bool // the value is NULL: the setting's default
	Local    bool
	Constant bool // all three arguments are constants; if not, only those that are have been filled in
	// Certain: the call is an item of the select list of a plain SELECT without FROM, WHERE, WITH or set operation, so
	// that it runs exactly once if the statement succeeds. Any other may run never or often.
	Certain bool
}

// TxStmt is a transaction statement, or the modes of SET TRANSACTION.
type TxStmt struct {
	Isolation  string // "read committed", "serializable" ...; "" when not given
	ReadOnly   *bool  // nil when not given
	Deferrable *bool
	Savepoint  string // SAVEPOINT, ROLLBACK TO, RELEASE
	GID        string // PREPARE TRANSACTION and its two ends
	Chain      bool   // AND CHAIN
}

// CopyStmt is COPY.
type CopyStmt struct {
	From     bool
	Client   bool       // FROM STDIN, TO STDOUT
	Program  bool       // FROM PROGRAM, TO PROGRAM
	Filename string     // a file on the server, or the program
	Query    *Statement // COPY (query) TO
	Relation RelRef     // when there is no query
	Columns  []string
	MoreAt   int // FROM: where in the text more columns can be named: within the list of Columns, or a list of its own
	Options  []CopyOption
	Where    bool // COPY FROM ... WHERE
}

// CopyOption is one option; Value is "" for a flag without value, and lists are in Values.
type CopyOption struct {
	Name   string // lower case
	Value  string
	Values []string
}

// Option gives the last option of the name.
func (c *CopyStmt) Option(name string) (CopyOption, bool) {
	for i := len(c.Options) - 1; i >= 0; i-- {
		if c.Options[i].Name == name {
			return c.Options[i], true
		}
	}
	return CopyOption{}, false
}

// ExplainStmt is EXPLAIN. Options of neki's own are among Options under their lower-case names: neki_plan, neki_pg_plan.
type ExplainStmt struct {
	Query   *Statement // what is explained; its Text is the part behind the options
	Offset  int        // where Query's text begins
	Options []ExplainOption
	Analyze bool
	Format  string // lower case; "text" by default
}

// ExplainOption is one option as written; Value is "" when none was given (which means on).
type ExplainOption struct{ Name, Value string }

// Option reports the last value of a boolean option: on when it is given without value, false when it is absent.
func (e *ExplainStmt) Option(name string) bool {
	on := false
	for _, o := range e.Options {
		if o.Name == name {
			on = boolOption(o.Value)
		}
	}
	return on
}

// PreparedStmt is PREPARE, EXECUTE or DEALLOCATE.
type PreparedStmt struct {
	Name   string
	All    bool       // DEALLOCATE ALL
	Query  *Statement // PREPARE: what is prepared; its Text is the part behind AS
	Offset int        // where Query's text begins
	Types  []string   // PREPARE: the parameter types as written
	Params []Span     // EXECUTE: where the argument expressions lie in Text
	Values []*Node    // EXECUTE: the argument expressions
}

// DiscardStmt is DISCARD.
type DiscardStmt struct{ Target DiscardTarget }

// DiscardTarget is what DISCARD throws away.
type DiscardTarget uint8

const (
	DiscardAll DiscardTarget = iota
	DiscardPlans
	DiscardSequences
	DiscardTemp
)

// CallStmt is CALL.
type CallStmt struct {
	Schema, Name string
	Args         []CallArg
}

// CallArg is one argument; Name is "" for a positional one.
type CallArg struct {
	Name     string
	Value    string // text of a constant, decoded
	Null     bool
	Kind     ConstKind
	Constant bool   // a constant, perhaps cast; else only Node tells
	Cast     string // the type's name when it is cast
	Node     *Node
}

// ConstKind is the kind of a constant in a tree.
type ConstKind uint8

const (
	ConstNull ConstKind = iota
	ConstInteger
	ConstFloat
	ConstBool
	ConstString
	ConstBits
)

// CursorStmt is DECLARE, FETCH, MOVE or CLOSE.
type CursorStmt struct {
	Name   string // "" for CLOSE ALL
	All    bool   // CLOSE ALL
	Hold   bool
	Binary bool
	Scroll bool
	Move   bool       // MOVE
	Moves  FetchMoves // FETCH and MOVE
	Count  int64      // ... how many rows, or which; FetchAll: all
	Query  *Statement // DECLARE: what the cursor reads; its Text is the part behind FOR
	Offset int        // where Query's text begins
}

// FetchMoves says how FETCH counts.
type FetchMoves uint8

// The ways of FETCH.
const (
	FetchForward FetchMoves = iota
	FetchBackward
	FetchAbsolute
	FetchRelative
)

// FetchAll is the count of FETCH ALL.
const FetchAll = math.MaxInt64

// ChannelStmt is LISTEN, UNLISTEN or NOTIFY.
type ChannelStmt struct {
	Name    string
	All     bool // UNLISTEN *
	Payload string
}
