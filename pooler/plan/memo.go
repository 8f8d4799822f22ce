package plan

import (
	"unsafe"

	"neki/catalog"
	"neki/sqlparse"
)

// Memo remembers the plans of a session's last few statements with their texts, so that a statement that repeats, but
// for its literals, is not even lexed: what lies between the literals is compared byte for byte. One goroutine owns it;
// the zero value is ready.
type Memo struct {
	entries [memoSize]memoEntry
	next    uint8
	epoch   uint64
}

type memoEntry struct {
	plan *Plan
	env  *Env
}

// memoSize is how many statements are remembered: those of a usual transaction.
const memoSize = 4

// Recall gives the plan of text if one of the session's last statements was of the same shape, and the plan is still
// what Plan would give. nil: it must be planned, and then kept.
func (pl *Planner) Recall(m *Memo, text []byte, snap *catalog.Snapshot, env *Env) *Plan {
	if epoch := pl.epoch.Load(); m.epoch != epoch {
		*m = Memo{epoch: epoch}
		return nil
	}
	for i := range m.entries {
		e := &m.entries[i]
		if e.plan == nil || e.env != env || !e.plan.template.matches(text) || !e.plan.Fresh(snap, env) {
			continue
		}
		e.plan.hits.Add(1)
		add(&pl.cache.hits)
		return e.plan
	}
	return nil
}

// Keep remembers that the session's last statement, made under env, has the plan p.
func (m *Memo) Keep(p *Plan, env *Env) {
	if p.template == nil {
		return
	}
	for i := range m.entries {
		if m.entries[i].plan == p && m.entries[i].env == env {
			return
		}
	}
	m.entries[m.next%memoSize] = memoEntry{plan: p, env: env}
	m.next++
}

// template is the text that a plan was made from, and where its literals are. A text that differs from it in nothing but
// the value of simple literals has the same shape.
type template struct {
	text     string
	literals []sqlparse.Literal
}

// templateLimit bounds the text that a plan keeps for comparison.
const templateLimit = 1 << 10

// simpleDigits is the length up to which any run of digits is an int4.
const simpleDigits = 9

// newTemplate makes the template of a text; nil when its literals are not all simple.
func newTemplate(text string, literals []sqlparse.Literal, byText bool) *template {
	if len(text) > templateLimit {
		return nil
	}
	if byText {
		return &template{text: text}
	}
	for _, l := range literals {
		simple := false
		switch l.Kind {
		case sqlparse.LiteralInt4:
			simple = intLength([]byte(text[l.Start:])) == l.End-l.Start
		case sqlparse.LiteralString:
			simple = stringLength([]byte(text[l.Start:])) == l.End-l.Start
		}
		if !simple {
			return nil
		}
	}
	return &template{text: text, literals: append([]sqlparse.Literal(nil), literals...)}
}

func (t *template) size() int64 {
	if t == nil {
		return 0
	}
	return int64(unsafe.Sizeof(*t)) + int64(len(t.text)) + int64(len(t.literals))*int64(unsafe.Sizeof(sqlparse.Literal{}))
}

// intLength gives the length of the digits that b begins with, -1 when they may be more than an int4.
func intLength(b []byte) int {
	n := 0
	for n < len(b) && b[n]-'0' <= 9 {
		n++
	}
	if n == 0 || n > simpleDigits {
		return -1
	}
	return n
}

// stringLength gives the length of the plain string '...' that b begins with, -1 when it is none: with a quote or
// backslash in it, or without end.
func stringLength(b []byte) int {
	if len(b) == 0 || b[0] != '\'' {
		return -1
	}
	for i := 1; i < len(b); i++ {
		switch b[i] {
		case '\\', 0:
			return -1
		case '\'':
			if i+1 < len(b) && b[i+1] == '\'' {
				return -1
			}
			return i + 1
		}
	}
	return -1
}

// matches reports whether text is the template but for the values of its literals.
func (t *template) matches(text []byte) bool {
	if t == nil {
		return false
	}
	at, from := 0, 0
	for i := range t.literals {
		l := &t.literals[i]
		between := t.text[from:l.Start]
		if len(text)-at < len(between) || string(text[at:at+len(between)]) != between {
			return false
		}
		at += len(between)
		n := 0
		if l.Kind == sqlparse.LiteralInt4 {
			n = intLength(text[at:])
		} else {
			n = stringLength(text[at:])
		}
		if n < 0 {
			return false
		}
		at += n
		from = l.End
	}
	return string(text[at:]) == t.text[from:]
}
