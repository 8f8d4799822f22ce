package backend

import (
	"encoding/binary"
	"runtime"
	"strconv"
	"sync"
	"weak"
)

// Statement is a prepared statement as servers know it: one text with its parameter types, under one search path. All
// clients that prepare the same share one Statement, and a server connection prepares it once for them all.
type Statement struct {
	id    uint64
	parse []byte // the Parse message, under the shared name
	named int    // length of the shared name
	text  int    // length of the text
}

// Name gives the statement's name on servers.
func (s *Statement) Name() []byte { return s.parse[5 : 5+s.named] }

// Text gives the statement's SQL.
func (s *Statement) Text() []byte { return s.parse[5+s.named+1:][:s.text] }

// Parse gives the Parse message that makes the statement known to a server.
func (s *Statement) Parse() []byte { return s.parse }

// Unnamed appends a Parse message for the unnamed statement to dst.
func (s *Statement) Unnamed(dst []byte) []byte {
	rest := s.parse[5+s.named:]
	dst = append(dst, 'P')
	dst = binary.BigEndian.AppendUint32(dst, uint32(4+len(rest)))
	return append(dst, rest...)
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
	name := "neki_" + strconv.FormatUint(id, 36)
	s := &Statement{id: id, named: len(name), text: len(text)}
	b := make([]byte, 0, 7+len(name)+len(text)+len(types))
	b = append(b, 'P', 0, 0, 0, 0)
	b = append(append(b, name...), 0)
	b = append(append(b, text...), 0)
	b = append(b, types...)
	binary.BigEndian.PutUint32(b[1:], uint32(len(b)-1))
	s.parse = b
	return s
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
