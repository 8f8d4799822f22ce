package sqlparse

import "strings"

// Kind is what sort of statement it is, as far as the gateway treats sorts differently.
type Kind uint8

const (
	KindEmpty  Kind = iota // white space, comments and semicolons only
	KindSelect             // SELECT, VALUES, TABLE, WITH ... SELECT, SELECT INTO
	KindInsert
	KindUpdate
	KindDelete
	KindMerge
	KindSet   // SET, SET ROLE, SET TRANSACTION ...; not SET CONSTRAINTS
	KindReset // RESET, RESET ALL
	KindShow
	KindBegin // BEGIN, START TRANSACTION
	KindCommit
	KindRollback
	KindSavepoint
	KindRollbackTo
	KindRelease
	KindPrepareTransaction
	KindCommitPrepared
	KindRollbackPrepared
	KindCopy
	KindExplain
	KindPrepare
	KindExecute
	KindDeallocate
	KindDiscard
	KindListen
	KindUnlisten
	KindNotify
	KindDeclare
	KindFetch // FETCH, MOVE
	KindCloseCursor
	KindLock
	KindCall
	KindDo
	KindDDL // CREATE, ALTER, DROP, TRUNCATE, GRANT, COMMENT ..., also CREATE TABLE AS
	KindVacuum
	KindLoad
	KindOther // CHECKPOINT, SET CONSTRAINTS
)

var kindNames = [...]string{
	"empty", "select", "insert", "update", "delete", "merge", "set", "reset", "show", "begin", "commit", "rollback",
	"savepoint", "rollback to", "release", "prepare transaction", "commit prepared", "rollback prepared", "copy",
	"explain", "prepare", "execute", "deallocate", "discard", "listen", "unlisten", "notify", "declare", "fetch",
	"close", "lock", "call", "do", "ddl", "vacuum", "load", "other",
}

func (k Kind) String() string { return kindNames[k] }

// IsTransaction reports whether the statement only begins, ends or marks a transaction.
func (k Kind) IsTransaction() bool { return k >= KindBegin && k <= KindRollbackPrepared }

// IsDML reports whether the statement is a query or a change of rows: the kinds that may be deparsed and whose
// literals are lifted.
func (k Kind) IsDML() bool { return k >= KindSelect && k <= KindMerge }

// Effects is a set of what a statement does or leaves behind, as far as its text shows it.
type Effects uint32

const (
	EffectWrites         Effects = 1 << iota // a hot standby refuses it, or must not be asked (protocol.md, What counts as a write)
	EffectLocks                              // row locks: FOR UPDATE and its three weaker sisters; EffectWrites is set too
	EffectSessionState                       // changes a setting, role or authorization of the session
	EffectTempObject                         // makes a temporary object, or lets later statements make one
	EffectAdvisoryLock                       // takes a session advisory lock
	EffectAdvisoryUnlock                     // gives one back
	EffectListen                             // LISTEN
	EffectNotify                             // NOTIFY, pg_notify
	EffectHoldCursor                         // a cursor WITH HOLD, which outlives its transaction
	EffectLoadLibrary                        // LOAD
	EffectSetSeed                            // setseed(), SET seed
	EffectPrepared                           // makes or drops an SQL-level prepared statement
	EffectSequence                           // nextval, currval, setval, lastval: what they answer lives in the session or the gateway
	EffectCursor                             // opens a portal by DECLARE
	EffectOpaque                             // may do anything unseen: DO, CALL, EXECUTE, functions that run SQL given as text; a user's functions don't count
	EffectLargeObject                        // opens a large object's descriptor
	EffectChannels                           // asks what the session listens to
)

var effectNames = [...]string{
	"writes", "locks", "session", "temp", "advisory_lock", "advisory_unlock", "listen", "notify", "hold_cursor",
	"load", "setseed", "prepared", "sequence", "cursor", "opaque", "large_object", "channels",
}

// Has reports whether all of the given effects are in the set.
func (e Effects) Has(want Effects) bool { return e&want == want }

// Any reports whether one of the given effects is in the set.
func (e Effects) Any(of Effects) bool { return e&of != 0 }

func (e Effects) String() string {
	var names []string
	for i, name := range effectNames {
		if e&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, "|")
}
