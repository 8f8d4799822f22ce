package sqlparse

import (
	"strconv"
	"strings"

	pg_query "github.com/pganalyze/pg_query_go/v5"
)

// tokens reads the tokens of a statement that has parsed already.
type tokens struct {
	lexer
	end int
	at  token
}

func newTokens(text string, span Span) *tokens {
	t := &tokens{lexer: lexer{text: text, pos: span.Start}, end: span.End}
	t.advance()
	return t
}

func (t *tokens) advance() {
	t.at = t.next()
	if t.at.start >= t.end {
		t.at = token{tokenEnd, t.end, t.end}
	}
}

func (t *tokens) done() bool { return t.at.kind == tokenEnd || t.at.kind == tokenBad }

func (t *tokens) punct(c byte) bool { return t.at.kind == tokenPunct && t.text[t.at.start] == c }

func (t *tokens) word() word {
	if t.at.kind != tokenIdent {
		return wordNone
	}
	return wordOf(t.text[t.at.start:t.at.end])
}

// skipParens moves behind the parenthesis that closes the one at hand. It gives the parts between the commas of its own
// level, and where the closing one stands.
func (t *tokens) skipParens() (parts []Span, end int) {
	depth := 0
	part := Span{-1, -1}
	flush := func() {
		if part.Start >= 0 {
			parts = append(parts, part)
		}
		part = Span{-1, -1}
	}
	for ; !t.done(); t.advance() {
		opens, closes := t.punct('(') || t.punct('['), t.punct(')') || t.punct(']')
		if closes {
			depth--
		}
		switch {
		case closes && depth == 0:
			flush()
			end = t.at.start
			t.advance()
			return parts, end
		case depth == 1 && t.punct(','):
			flush()
		case depth > 0:
			if part.Start < 0 {
				part.Start = t.at.start
			}
			part.End = t.at.end
		}
		if opens {
			depth++
		}
	}
	return parts, t.end
}

// skipTo moves to the first token of the word outside parentheses, and behind it.
func (t *tokens) skipTo(w word) {
	for !t.done() && t.word() != w {
		if t.punct('(') {
			_, _ = t.skipParens()
			continue
		}
		t.advance()
	}
	t.advance()
}

// inner parses the rest of the statement's text by itself.
func (t *tokens) inner(offset int) (*Statement, error) {
	return Parse(t.text[offset:t.end])
}

func newExplain(n *pg_query.ExplainStmt, text string, span Span) (*ExplainStmt, error) {
	e := &ExplainStmt{Format: "text"}
	for _, o := range n.Options {
		d := o.GetDefElem()
		option := ExplainOption{Name: strings.ToLower(d.GetDefname()), Value: optionText(d.GetArg())}
		e.Options = append(e.Options, option)
		switch option.Name {
		case "analyze":
			e.Analyze = boolOption(option.Value)
		case "format":
			e.Format = strings.ToLower(option.Value)
		}
	}
	t := newTokens(text, span)
	t.advance() // EXPLAIN
	if t.punct('(') && t.beginsOptions() {
		_, _ = t.skipParens()
	} else {
		for t.word() == wordAnalyze || t.word() == wordVerbose {
			t.advance()
		}
	}
	e.Offset = t.at.start
	var err error
	e.Query, err = t.inner(e.Offset)
	return e, err
}

// beginsOptions tells EXPLAIN (options) from EXPLAIN (SELECT ...).
func (t *tokens) beginsOptions() bool {
	ahead := *t
	ahead.advance()
	switch ahead.word() {
	case wordSelect, wordValues, wordTable, wordWith:
		return false
	}
	return !ahead.punct('(')
}

func newPrepare(n *PrepareStmt, text string, span Span) (*PreparedStmt, error) {
	p := &PreparedStmt{Name: n.Name}
	t := newTokens(text, span)
	t.advance() // PREPARE
	_ = t.skipName()
	if t.punct('(') {
		types, _ := t.skipParens()
		for _, s := range types {
			p.Types = append(p.Types, s.Of(text))
		}
	}
	t.advance() // AS
	p.Offset = t.at.start
	var err error
	p.Query, err = t.inner(p.Offset)
	return p, err
}

func newExecute(n *ExecuteStmt, text string, span Span) *PreparedStmt {
	p := &PreparedStmt{Name: n.Name, Values: n.Params}
	t := newTokens(text, span)
	t.advance() // EXECUTE
	_ = t.skipName()
	if t.punct('(') {
		p.Params, _ = t.skipParens()
	}
	return p
}

func newDeclare(n *DeclareCursorStmt, text string, span Span) (*CursorStmt, error) {
	const binary, scroll, hold = 0x0001, 0x0002, 0x0020
	c := &CursorStmt{
		Name: n.Portalname, Hold: n.Options&hold != 0, Binary: n.Options&binary != 0, Scroll: n.Options&scroll != 0,
	}
	t := newTokens(text, span)
	t.advance() // DECLARE
	t.advance() // name
	t.skipTo(wordFor)
	c.Offset = t.at.start
	var err error
	c.Query, err = t.inner(c.Offset)
	return c, err
}

func newCopy(n *pg_query.CopyStmt, text string, span Span) (*CopyStmt, error) {
	c := &CopyStmt{
		From: n.IsFrom, Program: n.IsProgram, Filename: n.Filename, Client: n.Filename == "" && !n.IsProgram,
		Columns: stringsOf(n.Attlist), Where: n.WhereClause != nil,
	}
	for _, o := range n.Options {
		c.Options = append(c.Options, newCopyOption(o.GetDefElem()))
	}
	if n.Query == nil {
		c.Relation = RelRef{Schema: n.Relation.GetSchemaname(), Name: n.Relation.GetRelname(), Write: n.IsFrom}
		if c.From {
			c.MoreAt = columnsAt(text, span)
		}
		return c, nil
	}
	t := newTokens(text, span)
	t.advance() // COPY
	start := t.at.end
	_, t.end = t.skipParens()
	var err error
	c.Query, err = t.inner(start)
	return c, err
}

// columnsAt finds the end of the list of columns in COPY ... FROM, or where one could stand.
func columnsAt(text string, span Span) int {
	t := newTokens(text, span)
	t.advance() // COPY
	for !t.done() && t.word() != wordFrom {
		if t.punct('(') {
			_, end := t.skipParens()
			return end
		}
		t.advance()
	}
	return t.at.start
}

func newCopyOption(d *DefElem) CopyOption {
	o := CopyOption{Name: strings.ToLower(d.GetDefname())}
	if list := d.GetArg().GetList(); list != nil {
		for _, item := range list.Items {
			o.Values = append(o.Values, optionText(item))
		}
		return o
	}
	o.Value = optionText(d.GetArg())
	return o
}

// optionText gives the value of an option as text.
func optionText(n *Node) string {
	switch v := unwrap(n).(type) {
	case *String:
		return v.Sval
	case *Integer:
		return strconv.Itoa(int(v.Ival))
	case *Float:
		return v.Fval
	case *Boolean:
		return strconv.FormatBool(v.Boolval)
	case *A_Star:
		return "*"
	case *TypeName:
		return strings.Join(stringsOf(v.Names), ".")
	}
	return constantOf(n).text
}

func newCallStmt(n *pg_query.CallStmt) *CallStmt {
	names := stringsOf(n.Funccall.GetFuncname())
	c := &CallStmt{}
	if len(names) > 0 {
		c.Name = names[len(names)-1]
	}
	if len(names) > 1 {
		c.Schema = names[len(names)-2]
	}
	for _, a := range n.Funccall.GetArgs() {
		arg := CallArg{Node: a}
		if named := a.GetNamedArgExpr(); named != nil {
			arg.Name, arg.Node = named.Name, named.Arg
		}
		v := constantOf(arg.Node)
		arg.Value, arg.Kind, arg.Cast, arg.Constant = v.text, v.kind, v.cast, v.ok
		arg.Null = v.ok && v.kind == ConstNull
		c.Args = append(c.Args, arg)
	}
	return c
}
