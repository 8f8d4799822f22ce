package plan

import (
	"fmt"
	"strings"

	"neki/catalog"
	"neki/exec"
)

// Spread is how a statement is run whose rows lie on several shards. It is immutable, as the plan that has it.
//
// Its steps: Eval, if any, on one shard; then the legs, each on its shards; then the answer, from the legs' rows: those
// of leg 0 as they come (Pass), or those of Spec, whose sources are the legs.
//
// Parameters: the text of a leg keeps the client's $1, $2, ..., though it may not name all of them. A leg is parsed with
// the types of all parameters, which are those of the client's own text on any shard.
type Spread struct {
	Legs []Leg

	// Pass > 0: the answer's rows are those of leg 0, undecoded, its columns the first Pass ones of the leg's (of fewer, all), and
	// described as a shard describes them. Spec is nil when nothing else is to be done with them.
	Pass int

	// Through > 0: nothing is to be done with the rows of the one leg but to merge them, so its first Through columns may be given
	// as they come, in the client's format, in place of what Spec makes of them, which is the same.
	Through int

	// Spec makes the answer of the legs' rows. It is opened with an exec.Env whose Caller is a LegOpener.
	Spec *exec.Spec

	// Params are the parameters that Spec reads (from 0): their values are decoded to the types of Spec.ParamTypes. Those of
	// the others may be NULL.
	Params []int

	// Write: the legs change rows. The answer's command tag has the sum of the legs' counts, and RETURNING gives the rows
	// of all.
	Write bool

	// Copies: every shard of the leg does the same work on its own copy of a reference table, so that one of them
	// gives the tag and the rows.
	Copies bool

	// Move says how the rows of INSERT ... SELECT are brought to other shards; the legs are made of them.
	Move *MoveRows

	// Eval is computed first: what must be the same on all shards.
	Eval *Eval

	// Upkeep is done with what the legs have changed. The rows of the answer are kept until then.
	Upkeep *Upkeep

	// Steps tell what is done with the legs' rows, for EXPLAIN.
	Steps []string
}

// Leg is one statement for a set of shards.
type Leg struct {
	SQL     string        // "" = the client's own bytes
	Suffix  string        // what is written behind its last token
	Fills   []Fill        // what is written into SQL before it is sent, by place
	Rows    *RowSplit     // INSERT: each shard gets those rows of VALUES that belong to it; see Plan.LegTexts
	Route   Route         // which shards
	Columns []exec.Column // as the engine reads them; type 0: not known, passed on only
	Merge   []MergeKey    // each shard gives its rows in this order, and so does the leg
	Name    string        // of the source, for EXPLAIN
	Keep    bool          // it may be read again and again in one run: its rows had better be kept
}

// MergeKey is one key of the order in which a leg's shards give their rows.
type MergeKey struct {
	Column           int
	OID              uint32
	Desc, NullsFirst bool
}

// Fill is a place in a leg's text where a value is written as a constant with its type: 'text'::type.
type Fill struct {
	At    int    // byte offset in SQL
	Value int    // column of Eval's row
	Type  string // its type's name
}

// Eval gives one row of values.
type Eval struct {
	SQL       string // a query of one row; "": there is none
	Params    bool   // it may name parameters
	Shard     string // uid, on which SQL runs
	At        []int  // the places of its columns in the row
	Columns   int    // of the row
	Sequences []EvalSequence
}

// EvalSequence is a value of the row that is taken from a sequence.
type EvalSequence struct {
	At    int
	Name  Relation
	Shard string // uid, on which the sequence is
}

// String tells what is computed.
func (e *Eval) String() string {
	var parts []string
	for _, q := range e.Sequences {
		parts = append(parts, fmt.Sprintf("{%d} next of %s.%s", q.At+1, q.Name.Schema, q.Name.Name))
	}
	if e.SQL != "" {
		parts = append(parts, e.SQL+" on "+e.Shard)
	}
	return strings.Join(parts, ", ")
}

// RowSplit says where the rows of VALUES stand in a leg's text.
type RowSplit struct {
	Rows  []RowText // in the order of the text
	Index *catalog.Index
	Group *catalog.Group
}

// RowText is one row of VALUES with what its shard is computed from.
type RowText struct {
	Start, End int // byte offsets in SQL, parentheses included
	Key        KeyExpr
}

// LegOpener runs the legs: the Caller of the exec.Env that a Spread's Spec is opened with.
type LegOpener interface {
	OpenLeg(leg int, need exec.Need) (exec.Node, error)
}
