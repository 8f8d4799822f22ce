package sqlparse

import "strings"

// Outline is what the first tokens tell of a statement that the parser does not know: newer syntax than the grammar
// linked in, mostly. It is enough to send DDL of a table to where the table lives; it proves nothing harmless.
type Outline struct {
	Kind     Kind   // by the first word; KindOther when that tells nothing
	Tag      string // of CREATE, ALTER and DROP TABLE, else ""
	Relation RelRef // the table of those, Write set; empty if there isn't one
	Neki     bool   // one of the schemas neki and __neki is named somewhere
}

// outlineKinds has the kinds that the first word of a statement decides, but for WITH, which may be any query.
var outlineKinds = map[string]Kind{
	"select": KindSelect, "values": KindSelect, "table": KindSelect, "insert": KindInsert, "update": KindUpdate,
	"delete": KindDelete, "merge": KindMerge, "create": KindDDL, "alter": KindDDL, "drop": KindDDL, "grant": KindDDL,
	"revoke": KindDDL, "comment": KindDDL, "truncate": KindDDL, "vacuum": KindVacuum, "analyze": KindVacuum,
	"analyse": KindVacuum, "set": KindSet, "reset": KindReset, "show": KindShow, "copy": KindCopy,
	"explain": KindExplain, "prepare": KindPrepare, "declare": KindDeclare, "call": KindCall, "do": KindDo,
}

// Sketch reads the outline of one statement. It never fails: what it doesn't know it leaves empty.
func Sketch(text string) Outline {
	o := Outline{Kind: KindOther}
	t := newTokens(text, Span{0, len(text)})
	first := t.name()
	if kind, ok := outlineKinds[first]; ok && t.at.kind == tokenIdent {
		o.Kind = kind
	}
	if o.Kind == KindDDL && (first == "create" || first == "alter" || first == "drop") {
		t.advance()
		o.table(t, first)
	}
	l := lexer{text: text}
	for at := l.next(); at.kind != tokenEnd && at.kind != tokenBad; at = l.next() {
		word := text[at.start:at.end]
		o.Neki = o.Neki || at.kind == tokenIdent && (strings.EqualFold(word, "neki") || strings.EqualFold(word, "__neki")) ||
			at.kind == tokenQuoted && (word == `"neki"` || word == `"__neki"`)
	}
	return o
}

// table reads [UNLOGGED | FOREIGN ...] TABLE [IF [NOT] EXISTS] [ONLY] name behind the verb.
func (o *Outline) table(t *tokens, verb string) {
	for !t.done() && t.name() != "table" {
		switch t.name() {
		case "temp", "temporary", "local", "global", "unlogged":
			t.advance()
		default:
			return
		}
	}
	t.advance()
	o.Tag = strings.ToUpper(verb) + " TABLE"
	for word := t.name(); t.at.kind == tokenIdent; word = t.name() {
		if word != "if" && word != "not" && word != "exists" && word != "only" {
			break
		}
		t.advance()
	}
	o.Relation = RelRef{Name: t.name(), Write: true}
	for t.advance(); t.punct('.'); t.advance() {
		t.advance()
		o.Relation.Schema, o.Relation.Name = o.Relation.Name, t.name()
	}
	if o.Relation.Name == "" {
		o.Relation = RelRef{}
	}
}

// name gives the identifier at hand as Postgres reads it, "" if there is none. One in Unicode escapes is none.
func (t *tokens) name() string {
	word := t.text[t.at.start:t.at.end]
	switch {
	case t.at.kind == tokenIdent:
		return string(appendLower(nil, word))
	case t.at.kind == tokenQuoted && word[0] == '"':
		return strings.ReplaceAll(word[1:len(word)-1], `""`, `"`)
	}
	return ""
}
