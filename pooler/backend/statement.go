package backend

import (
	"encoding/binary"
	"runtime"
	"strconv"
	"sync"
	"weak"
)

// Statement is a prepared statement as servers know it: one text with its parameter types, under one search path. All
// clients that prepare the same by the protocol share one Statement, and a server connection prepares it once for them
// all. One made by SQL's PREPARE is its client's alone.
type Statement struct {
	id    uint64
	name  []byte
	text  []byte
	types []byte // the end of the Parse message: a count and the OIDs
	parse []byte // the Parse message, under the shared name; or the messages that run the PREPARE
	sql   bool   // made by PREPARE
}

// Name gives the statement's name on servers.
func (s *Statement) Name() []byte { return s.name }

// Text gives the statement's SQL: of PREPARE, the part behind AS.
func (s *Statement) Text() []byte { return s.text }

// Types gives the parameter types that were named: a count and the OIDs, as in Parse. A PREPARE has them in its text.
func (s *Statement) Types() []byte { return s.types }

// Parse gives the messages that make the statement known to a server.
func (s *Statement) Parse() []byte { return s.parse }

// AppendParse appends the Parse message for the statement under another name.
func (s *Statement) AppendParse(dst []byte, name string) []byte {
	return append(dst, appendParse(nil, name, s.text, s.types)...)
}

// Statements interns prepared statements. One that no client or server holds any more is dropped by the collector.
// It is safe for concurrent use.
type Statements struct {
	mu    sync.Mutex
	next  uint64
	byKey map[string]weak.Pointer[Statement]
}

// NewStatements makes an empty registry.
func NewStatements() *Statements {
	return &Statements{byKey: make(map[string]weak.Pointer[Statement])}
}

// Intern gives the Statement of a text with its parameter types (the end of a Parse message: a count and the OIDs)
// under a search path.
func (r *Statements) Intern(text, types []byte, searchPath string) *Statement {
	key := make([]byte, 0, len(text)+len(types)+len(searchPath)+2)
	key = append(append(append(append(append(key, text...), 0), types...), 0), searchPath...)
	r.mu.Lock()
	defer r.mu.Unlock()
	if p, ok := r.byKey[string(key)]; ok {
		if s := p.Value(); s != nil {
			return s
		}
	}
	r.next++
	s := newStatement(r.next, text, types)
	owned := string(key)
	r.byKey[owned] = weak.Make(s)
	runtime.AddCleanup(s, r.drop, owned)
	return s
}

func (r *Statements) drop(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p, ok := r.byKey[key]; ok && p.Value() == nil {
		delete(r.byKey, key)
	}
}

func newStatement(id uint64, text, types []byte) *Statement {
	name := serverName(id)
	b := appendParse(make([]byte, 0, 7+len(name)+len(text)+len(types)), name, text, types)
	at := 5 + len(name) + 1
	return &Statement{
		id: id, name: b[5 : 5+len(name)], text: b[at : at+len(text)], types: b[at+len(text)+1:], parse: b,
	}
}

// NamePrefix begins the names that the gateway gives to prepared statements on servers.
const NamePrefix = "neki_"

func serverName(id uint64) string { return NamePrefix + strconv.FormatUint(id, 36) }

func appendParse(dst []byte, name string, text, types []byte) []byte {
	dst = append(dst, 'P')
	dst = binary.BigEndian.AppendUint32(dst, uint32(4+len(name)+1+len(text)+1+len(types)))
	dst = append(append(dst, name...), 0)
	dst = append(append(dst, text...), 0)
	return append(dst, types...)
}

// Preparing is the name of the statement and the portal that run a PREPARE. One that has failed leaves them behind, so
// the statement is closed before; the portal ends with its transaction.
const Preparing = "neki-prepare"

// Made gives the Statement of a PREPARE, under a name that no other statement has. The client's name stands in the text
// from start to end, what is prepared begins at query.
func (r *Statements) Made(prepare []byte, start, end, query int) *Statement {
	r.mu.Lock()
	r.next++
	id := r.next
	r.mu.Unlock()
	name := serverName(id)
	text := AppendRenamed(nil, prepare, start, end, []byte(name))
	b := append(appendClose(nil, 'S', []byte(Preparing)), appendParse(nil, Preparing, text, []byte{0, 0})...)
	b = append(b, 'B', 0, 0, 0, byte(4+2*len(Preparing)+2+6))
	b = append(append(b, Preparing...), 0)
	b = append(append(b, Preparing...), 0)
	b = append(b, 0, 0, 0, 0, 0, 0)
	b = append(b, 'E', 0, 0, 0, byte(4+len(Preparing)+1+4))
	b = append(append(b, Preparing...), 0)
	b = append(b, 0, 0, 0, 0)
	b = appendClose(b, 'P', []byte(Preparing))
	return &Statement{id: id, name: []byte(name), text: text[query+len(text)-len(prepare):], types: []byte{0, 0}, parse: b, sql: true}
}

// AppendRenamed appends text with its bytes from start to end, the name of a prepared statement, replaced by name. It is
// quoted, so that it needs no blanks around it.
func AppendRenamed(dst, text []byte, start, end int, name []byte) []byte {
	dst = append(dst, text[:start]...)
	dst = append(append(append(dst, '"'), name...), '"')
	return append(dst, text[end:]...)
}

// preparedSet is what a server connection has prepared, least recently used first out.
type preparedSet struct {
	limit int
	byID  map[uint64]*preparedEntry
	// A ring through head: head.next is the most recently used.
	head preparedEntry
}

type preparedEntry struct {
	stmt       *Statement
	at         uint64 // when it was prepared
	next, prev *preparedEntry
}

// has reports whether s is prepared, and makes it the most recently used.
func (p *preparedSet) has(s *Statement) bool {
	e, ok := p.byID[s.id]
	if !ok {
		return false
	}
	e.unlink()
	p.front(e)
	return true
}

// add notes that s is being prepared and gives the one to close for it, or nil.
func (p *preparedSet) add(s *Statement) (evicted *Statement) {
	if p.byID == nil {
		p.byID = make(map[uint64]*preparedEntry)
		p.head.next, p.head.prev = &p.head, &p.head
	}
	if len(p.byID) >= p.limit {
		last := p.head.prev
		p.remove(last.stmt)
		evicted = last.stmt
	}
	e := &preparedEntry{stmt: s}
	p.byID[s.id] = e
	p.front(e)
	return evicted
}

func (p *preparedSet) remove(s *Statement) {
	if e, ok := p.byID[s.id]; ok {
		e.unlink()
		delete(p.byID, s.id)
	}
}

func (p *preparedSet) clear() { *p = preparedSet{limit: p.limit} }

func (p *preparedSet) front(e *preparedEntry) {
	e.prev, e.next = &p.head, p.head.next
	e.prev.next, e.next.prev = e, e
}

func (e *preparedEntry) unlink() { e.prev.next, e.next.prev = e.next, e.prev }

// missingName is the name of a prepared statement that no server has.
const missingName = "neki-abort"

// AppendFailure appends a Bind that fails on every server: it undoes the segment.
func AppendFailure(dst []byte) []byte {
	dst = append(dst, 'B')
	dst = binary.BigEndian.AppendUint32(dst, uint32(4+1+len(missingName)+1+6))
	dst = append(append(append(dst, 0), missingName...), 0)
	return append(dst, 0, 0, 0, 0, 0, 0)
}
