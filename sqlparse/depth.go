package sqlparse

// MaxDepth bounds how deep a statement's tree may be. Postgres's grammar, as linked in, has no stack check of its own
// in all places: from about 22 000 levels it kills the process. Postgres itself gives up a little later, with 54001.
const MaxDepth = 2000

// level holds the counts of one open parenthesis.
type level struct {
	operators int32 // in a chain that a comma, AND, OR, WHEN, THEN or ELSE ends
	betweens  int32 // BETWEENs whose AND has not come: that AND ends no chain
	joins     int32 // in a chain that a comma ends
	sets      int32 // set operations: nothing but the closing parenthesis ends their chain
	cases     int32 // open CASEs
}

// depth counts how deep the tree of the tokens seen so far can be: chains of operators, casts, subscripts, joins and
// set operations, summed over the open parentheses. The zero value is ready; reset keeps its memory.
type depth struct {
	level
	total int32 // of this level and those below
	open  []level
}

func (d *depth) reset() {
	d.level, d.total, d.open = level{}, 0, d.open[:0]
}

// parens gives the number of open parentheses and brackets.
func (d *depth) parens() int { return len(d.open) }

func (d *depth) exceeded() bool { return d.total > MaxDepth }

// token counts a token; w is the word of an identifier. A word behind a point is a column's name and no keyword:
// callers pass wordNone for it.
func (d *depth) token(kind tokenKind, first byte, w word) {
	switch kind {
	case tokenOperator, tokenCast:
		d.operator()
	case tokenPunct:
		d.punct(first)
	case tokenIdent:
		if w != wordNone {
			d.word(w)
		}
	default:
	}
}

func (d *depth) operator() {
	d.operators++
	d.total++
}

// endChain ends the chain of operators.
func (d *depth) endChain() {
	d.total -= d.operators
	d.operators = 0
}

func (d *depth) punct(c byte) {
	switch c {
	case '(', '[':
		d.operator()
		d.open = append(d.open, d.level)
		d.level = level{}
	case ')', ']':
		n := len(d.open)
		if n == 0 {
			return
		}
		d.total -= d.operators + d.joins + d.sets + d.cases
		d.level = d.open[n-1]
		d.open = d.open[:n-1]
		if c == ')' {
			d.operators-- // "f(a) + f(b)" is a chain of one; a subscript goes on counting
			d.total--
		}
	case ',':
		d.total -= d.operators + d.joins
		d.operators, d.joins = 0, 0
	}
}

func (d *depth) word(w word) {
	switch w {
	case wordAnd:
		if d.betweens > 0 {
			d.betweens--
			return
		}
		d.endChain()
	case wordOr, wordWhen, wordThen, wordElse:
		d.endChain()
	case wordBetween:
		d.betweens++
		d.operator()
	case wordNot, wordIs, wordIsNull, wordNotNull, wordCollate, wordAt, wordOperator, wordLike, wordIlike,
		wordSimilar, wordIn:
		d.operator()
	case wordJoin:
		d.joins++
		d.total++
	case wordUnion, wordExcept, wordIntersect:
		d.sets++
		d.total++
	case wordCase:
		d.cases++
		d.total++
	case wordEnd:
		if d.cases > 0 {
			d.cases--
			d.total--
		}
	default:
	}
}
