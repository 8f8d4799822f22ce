package sqlparse

import (
	"slices"
	"strings"
	"unsafe"

	"github.com/zeebo/xxh3"
)

// Shape is a statement's text with its literals lifted out: what the plan cache is keyed by. Two texts have the same
// Text if, and as good as only if, they have the same Hash; a cache compares Text, so that a collision is a miss.
type Shape struct {
	Hash       uint64    // keyed xxh3 of Text
	Text       []byte    // normalized text
	Literals   []Literal // lifted literals, in the order of the text
	Slots      int       // number of placeholders in Text: the elements of a collapsed IN list share one
	Statements int       // statements that aren't empty
}

// Literal is a constant that was lifted.
type Literal struct {
	Kind       LiteralKind
	Slot       int // which placeholder of the shape it fills
	Start, End int // byte offsets in the original text; a sign before a number is not part of it
}

// LiteralKind is how a literal was written, which decides its type.
type LiteralKind uint8

const (
	LiteralInt4    LiteralKind = iota // fits int4
	LiteralInt8                       // fits int8
	LiteralNumeric                    // larger, or with a point or an exponent
	LiteralString                     // '...'
	LiteralEString                    // E'...'
	LiteralDollar                     // $tag$...$tag$
	LiteralBString                    // B'...'
	LiteralXString                    // X'...'
)

// placeholders has the shape's text for each kind of literal. The strings that differ in spelling only have the same.
var placeholders = [...]string{"?i", "?l", "?n", "?s", "?s", "?s", "?b", "?x"}

// Shaper makes Shapes. It is reused: the slices of a Shape are valid until the next call. One goroutine owns it.
//
// In a shape comments are gone, white space is folded, unquoted names are in lower case, and literals of queries and
// changes of rows are placeholders that name their kind; IN lists of literals of one kind are a single one. Kept as
// they were written, because the value is part of what the statement means or of how it is planned, are
//
//   - all literals of other statements than SELECT, VALUES, TABLE, WITH, INSERT, UPDATE, DELETE, MERGE and EXPLAIN of these;
//   - in ORDER BY, GROUP BY, DISTINCT ON, LIMIT, OFFSET and FETCH; and if there is one in the first three, also those
//     of select lists and HAVING, whose expressions must be equal to the ones sorted or grouped by;
//   - after a type's name (date '...', interval '1' day) and in a type's modifiers (numeric(10,2), current_time(3));
//   - U&'...' and N'...', and the two integers whose type depends on a sign before them (2147483648, 9223372036854775808);
//   - arguments of functions that the gateway answers, watches or rewrites (set_config, nextval, pg_cancel_backend ...);
//   - everywhere, if the schemas neki or __neki or the view pg_settings are named anywhere in the text.
//
// NULL, TRUE and FALSE are no literals.
type Shaper struct {
	seed     uint64
	out      []byte
	literals []Literal
	slots    int
	levels   []shapeLevel
	bounds   depth
	lexer
	shapeState
}

// NewShaper makes a Shaper. All Shapers of a process use one seed, drawn at random at its start, so that clients can't
// make keys collide.
func NewShaper(seed uint64) *Shaper { return &Shaper{seed: seed} }

// Shape makes the shape of a text of any number of statements. The error is ErrUnparsable.
func (s *Shaper) Shape(text string) (Shape, error) {
	if strings.IndexByte(text, 0) >= 0 {
		return Shape{}, errSyntax("invalid byte sequence: 0x00")
	}
	var keep keepScope
	for {
		again, err := s.run(text, keep)
		if err != nil {
			return Shape{}, err
		}
		if again == keepByContext {
			break
		}
		keep = again
	}
	return Shape{
		Hash: xxh3.HashSeed(s.out, s.seed), Text: s.out, Literals: s.literals, Slots: s.slots, Statements: s.statements,
	}, nil
}

// ShapeBytes is Shape for a text in a buffer. It keeps nothing of the buffer.
func (s *Shaper) ShapeBytes(text []byte) (Shape, error) {
	defer func() { s.text = "" }()
	return s.Shape(unsafe.String(unsafe.SliceData(text), len(text)))
}

// Slot finds the literal of a constant by its location in a tree of the same text: its index, -1 if it wasn't lifted.
// The location of a negative number is that of its first sign.
func (sh Shape) Slot(text string, location int) int {
	if location < 0 || location >= len(text) {
		return -1
	}
	if text[location] == '-' {
		location = behindSigns(text, location)
	}
	i, found := slices.BinarySearchFunc(sh.Literals, location, func(l Literal, at int) int { return l.Start - at })
	if !found {
		return -1
	}
	return i
}

// behindSigns gives the place behind signs and parentheses before a number.
func behindSigns(text string, location int) int {
	l := lexer{text: text, pos: location}
	for l.pos < len(text) && (text[l.pos] == '-' || text[l.pos] == '(') {
		l.pos++
		l.skipBlank()
	}
	return l.pos
}

// keepScope says which literals stay in the shape besides those that context keeps.
type keepScope uint8

const (
	keepByContext keepScope = iota
	keepTargets             // those of select lists and HAVING too
	keepAll
)

// clause is the part of a query that a token stands in, as far as it matters to literals.
type clause uint8

const (
	clauseOther  clause = iota
	clauseTarget        // select list, HAVING
	clauseOrder         // ORDER BY, GROUP BY, DISTINCT ON
	clauseLimit         // LIMIT, OFFSET, FETCH
)

// shapeMode says what becomes of a statement's literals.
type shapeMode uint8

const (
	modeStart   shapeMode = iota // before its first word
	modeExplain                  // between EXPLAIN and what is explained
	modeLift
	modeKeep
)

// typeState follows a type's name, after :: or AS.
type typeState uint8

const (
	typeNone typeState = iota
	typeNext           // a name must follow
	typeName           // behind a name
)

// shapeLevel is what holds within one pair of parentheses.
type shapeLevel struct {
	clause clause
	keep   bool      // literals stay
	target bool      // within a select list or HAVING further out
	typ    typeState // to go on with behind the parenthesis
	list   inList
}

// inList follows an IN list as long as it may be collapsed.
type inList struct {
	active bool
	wait   bool // for an element
	out    int  // where the list begins in the shape
	first  int  // its first literal
}

// shapeState is the state between two tokens.
type shapeState struct {
	shapeLevel
	scope      keepScope
	mode       shapeMode
	body       bodyDepth
	statements int
	began      bool // the statement has a token
	separate   bool // a semicolon stands between the last statement and the next
	orders     bool // a literal was seen in clauseOrder
	targets    bool // one was lifted in clauseTarget

	word      word // of the last token
	kind      tokenKind
	char      byte // its first byte, if it was punctuation
	operand   bool // it ended an operand or a type's name: a literal behind it is prefixed by it
	callable  bool // it was a name that a parenthesis may follow without a space
	distincts bool // SELECT DISTINCT ON came just before
}

// run shapes the text once. It returns a wider scope if literals that were lifted must stay after all.
func (s *Shaper) run(text string, scope keepScope) (keepScope, error) {
	s.lexer = lexer{text: text}
	s.shapeState = shapeState{scope: scope}
	s.out, s.literals, s.levels, s.slots = s.out[:0], s.literals[:0], s.levels[:0], 0
	s.bounds.reset()
	for {
		t := s.next()
		var again keepScope
		switch t.kind {
		case tokenEnd:
			if s.orders && s.targets {
				return keepTargets, nil
			}
			return keepByContext, nil
		case tokenBad:
			return 0, errToken(text, t)
		case tokenIdent:
			again = s.ident(t)
		case tokenQuoted:
			again = s.quotedName(t)
		case tokenPunct:
			s.punctuation(text[t.start])
		case tokenOperator, tokenCast, tokenPair, tokenParam:
			s.plain(t)
		default:
			s.constant(t)
		}
		if again != keepByContext && again > scope {
			return again, nil
		}
		if s.bounds.exceeded() {
			return 0, errTooDeep()
		}
	}
}

// begin counts a statement at its first token, and writes the space before a token.
func (s *Shaper) begin(space bool) {
	if !s.began {
		s.began = true
		s.statements++
		if s.separate {
			s.out = append(s.out, ';', ' ')
		}
		return
	}
	if space && !s.joins() {
		s.out = append(s.out, ' ')
	}
}

// joins reports that the last token takes no space behind it.
func (s *Shaper) joins() bool {
	return s.kind == tokenCast || s.kind == tokenPunct && (s.char == '(' || s.char == '[' || s.char == '.')
}

// after notes the token just written.
func (s *Shaper) after(kind tokenKind, char byte, w word) {
	s.kind, s.char, s.word = kind, char, w
	s.callable, s.operand = false, false
}

// ident writes an unquoted identifier in lower case and follows what it means.
func (s *Shaper) ident(t token) keepScope {
	dotted := s.kind == tokenPunct && s.char == '.'
	s.begin(true)
	at := len(s.out)
	s.out = appendLower(s.out, s.text[t.start:t.end])
	w := lookupWord(s.out[at:])
	if w == wordKeepAll && s.mode != modeKeep && s.scope != keepAll {
		return keepAll
	}
	if dotted && w != wordGatewayFunction {
		w = wordNone
	}
	s.bounds.token(tokenIdent, 0, w)
	s.body.word(w, s.word)
	s.setMode(w)
	s.setClause(w)
	s.setType(w)
	s.list.active = false
	s.after(tokenIdent, 0, w)
	s.operand = !beginsExpression(w)
	s.callable = s.operand || w == wordGatewayFunction
	return keepByContext
}

// quotedName writes a quoted identifier. One in Unicode escapes may be any name.
func (s *Shaper) quotedName(t token) keepScope {
	name := s.text[t.start:t.end]
	if s.mode != modeKeep && s.scope != keepAll && name[0] != '"' {
		return keepAll
	}
	s.begin(true)
	s.out = append(s.out, name...)
	w := wordNone
	if name[0] == '"' {
		w = lookupWord(s.out[len(s.out)-len(name)+1 : len(s.out)-1])
	}
	if w == wordKeepAll && s.mode != modeKeep && s.scope != keepAll {
		return keepAll
	}
	if w != wordGatewayFunction {
		w = wordNone
	}
	s.setMode(w)
	s.setType(w)
	s.list.active = false
	s.after(tokenQuoted, 0, w)
	s.operand, s.callable = true, true
	return keepByContext
}

// plain writes a token as it is.
func (s *Shaper) plain(t token) {
	s.begin(t.kind != tokenCast)
	s.setMode(wordNone)
	s.out = append(s.out, s.text[t.start:t.end]...)
	s.bounds.token(t.kind, 0, wordNone)
	s.typ = typeNone
	if t.kind == tokenCast {
		s.typ = typeNext
	}
	s.list.active = false
	s.after(t.kind, 0, wordNone)
	s.operand = t.kind == tokenParam
}

// constant lifts a literal, or writes it as it is.
func (s *Shaper) constant(t token) {
	s.begin(true)
	s.setMode(wordNone)
	kind, lift := literalKind(s.text[t.start:t.end], t.kind)
	inTarget := s.clause == clauseTarget || s.target
	if s.clause == clauseOrder {
		s.orders = true
	}
	lift = lift && s.mode == modeLift && !s.keep && !s.operand && s.clause <= clauseTarget && s.scope != keepAll &&
		!(s.scope == keepTargets && inTarget)
	if lift {
		s.targets = s.targets || inTarget
		s.lift(kind, t)
	} else {
		s.list.active = false
		s.out = append(s.out, s.text[t.start:t.end]...)
	}
	s.typ = typeNone
	s.after(t.kind, 0, wordNone)
	s.operand = true
}

func (s *Shaper) lift(kind LiteralKind, t token) {
	if s.list.active {
		first := s.list.first
		same := len(s.literals) == first || placeholders[s.literals[first].Kind] == placeholders[kind]
		s.list.active = s.list.wait && same
		s.list.wait = false
	}
	s.literals = append(s.literals, Literal{Kind: kind, Slot: s.slots, Start: t.start, End: t.end})
	s.slots++
	s.out = append(s.out, placeholders[kind]...)
}

// punctuation writes one of , ( ) [ ] . ; : and follows the levels of parentheses.
func (s *Shaper) punctuation(c byte) {
	if c == ';' && s.bounds.parens() == 0 && s.body == 0 {
		s.endStatement()
		return
	}
	space := c == ':' || c == '(' && !s.callable
	s.begin(space)
	s.bounds.token(tokenPunct, c, wordNone)
	operand := false
	switch c {
	case '(', '[':
		s.open(c)
	case ')', ']':
		s.closeLevel(c)
		operand = true
	case ',':
		s.out = append(s.out, ',')
		s.list.active = s.list.active && !s.list.wait
		s.list.wait = true
		s.typ = typeNone
	case '.':
		s.out = append(s.out, '.')
		s.list.active = false
		if s.typ == typeName {
			s.typ = typeNext
		}
	default:
		s.out = append(s.out, c)
		s.list.active = false
		s.typ = typeNone
	}
	if c != '(' && c != '[' {
		s.distincts = false
	}
	s.after(tokenPunct, c, wordNone)
	s.operand = operand
}

// endStatement begins anew behind a semicolon.
func (s *Shaper) endStatement() {
	began := s.began || s.separate
	s.shapeState = shapeState{
		scope: s.scope, statements: s.statements, orders: s.orders, targets: s.targets, separate: began,
	}
	s.bounds.reset()
}

// open enters a parenthesis or bracket.
func (s *Shaper) open(c byte) {
	inner := shapeLevel{
		keep:   s.keep || s.clause >= clauseOrder || s.distincts,
		target: s.target || s.clause == clauseTarget,
	}
	switch {
	case s.typ == typeName, s.word == wordTypmod, s.word == wordGatewayFunction:
		inner.keep = true
	case s.typ == typeNext: // AS (
		inner.keep = inner.keep || !s.queryFollows()
		s.typ = typeNone
	}
	if s.distincts {
		inner.clause = clauseOrder
		s.distincts = false
	}
	s.out = append(s.out, c)
	if s.word == wordIn && c == '(' {
		inner.list = inList{active: true, wait: true, out: len(s.out), first: len(s.literals)}
	}
	s.list.active = false
	s.levels = append(s.levels, s.shapeLevel)
	s.shapeLevel = inner
}

// queryFollows reports whether a parenthesis opens a query, as in WITH x AS (SELECT ...).
func (s *Shaper) queryFollows() bool {
	ahead := s.lexer
	t := ahead.next()
	if t.kind == tokenPunct && ahead.text[t.start] == '(' {
		return true
	}
	if t.kind != tokenIdent {
		return false
	}
	return isQueryWord(wordOf(ahead.text[t.start:t.end]))
}

// closeLevel leaves a parenthesis or bracket. A list of nothing but literals of one kind becomes one placeholder.
func (s *Shaper) closeLevel(c byte) {
	if l := s.list; l.active && !l.wait {
		placeholder := placeholders[s.literals[l.first].Kind]
		s.out = append(append(s.out[:l.out], placeholder...), "..."...)
		slot := s.literals[l.first].Slot
		for i := l.first; i < len(s.literals); i++ {
			s.literals[i].Slot = slot
		}
		s.slots = slot + 1
	}
	s.out = append(s.out, c)
	if n := len(s.levels); n > 0 {
		s.shapeLevel = s.levels[n-1]
		s.levels = s.levels[:n-1]
		return
	}
	s.list.active = false
}
