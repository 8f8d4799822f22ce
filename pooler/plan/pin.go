package plan

import "neki/sqlparse"

// KeyIndex computes keyspace ids from values on the wire. catalog.Index is one.
type KeyIndex interface {
	KeyText(oid uint32, value []byte) (uint64, error)
	KeyBinary(oid uint32, value []byte) (uint64, error)
}

// KeyGroup knows which shard has which keyspace ids. catalog.Group is one.
type KeyGroup interface {
	ShardOf(key uint64) string
}

// KeySource says where a key's value comes from.
type KeySource uint8

// The sources of keys.
const (
	KeyConst   KeySource = iota // it stands in the plan
	KeyLiteral                  // a literal of the text, by its slot; of a collapsed IN list each
	KeyParam                    // a parameter
	KeyEval                     // a column of the row of Spread.Eval
	KeyRow                      // a column of a row that goes through the gateway: InsertRows
)

// KeyExpr is a value of a shard key.
type KeyExpr struct {
	Source   KeySource
	At       int    // slot of the literal, index of the parameter (from 0), or column
	Const    string // of KeyConst, in text form
	Null     bool   // of KeyConst
	OID      uint32 // the type as which the value is read; of a parameter: unless the client has given another
	Negative bool   // a minus stands before the literal
	Array    bool   // the value is an array of keys: = ANY ($1)
	Index    KeyIndex
	Group    KeyGroup
}

// Pin restricts the rows of one relation to those with one of several keys.
type Pin struct {
	Relation int // relations are counted; of those of one number all pins hold
	Keys     []KeyExpr
}

// Values are the values of one execution. Text is the statement as the client wrote it.
type Values struct {
	Text    []byte
	Params  [][]byte // nil = NULL
	Formats []int16  // as in Bind: none, one for all, or one each
	OIDs    []uint32 // as in Parse: may be shorter; 0 = not given
	Eval    [][]byte // the row of Spread.Eval, in text form

	literals []sqlparse.Literal
}
