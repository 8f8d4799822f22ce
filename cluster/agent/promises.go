package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"neki/cluster/decide"
	"neki/cluster/pgproc"
)

// Promises are what a node must remember whatever happens to its data directory. They are on disk, outside it, before an
// order is answered.
type Promises = decide.Promises

// Member is what the node was last told to be. Unlike Promises it can be told again.
type Member struct {
	Term     int64    `json:"term,omitempty"` // of the leader that it follows, or its own
	Source   *Source  `json:"source,omitempty"`
	Peers    []string `json:"peers,omitempty"`
	Led      bool     `json:"led,omitempty"` // Standbys and Acks were ordered; until then no commit is acknowledged
	Standbys []string `json:"standbys,omitempty"`
	Acks     int      `json:"acks,omitempty"`
	Hold     string   `json:"hold,omitempty"` // why Postgres is to stay stopped
	// Closed: a primary that no client may use yet: its barrier is not acknowledged.
	Closed bool `json:"closed,omitempty"`
}

// memory keeps both in files of the agent's directory.
type memory struct {
	dir     string
	account pgproc.Account

	mu       sync.Mutex
	promises Promises
	member   Member
}

func openMemory(dir string, account pgproc.Account) (*memory, error) {
	m := &memory{dir: dir, account: account}
	for name, into := range map[string]any{"promises.json": &m.promises, "member.json": &m.member} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err == nil {
			err = json.Unmarshal(b, into)
		}
		if err != nil { // forgetting a promise would be worse than not starting
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return m, nil
}

func (m *memory) get() (Promises, Member) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.promises, m.member
}

// accept checks an order against what was promised, and keeps what it promises durably before it is begun.
func (m *memory) accept(kind decide.Kind, o Order) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	head := decide.Head{Epoch: o.Epoch, Term: o.Term, Sub: o.Sub, OpID: o.OpID}
	p, err := decide.Accept(m.promises, kind, head, decide.Flaws{})
	if err != nil {
		return err
	}
	before := m.promises
	before.OpID = p.OpID // who promised it is worth no flush
	if p == before {
		return nil
	}
	return m.putPromises(p)
}

func (m *memory) changePromises(change func(*Promises)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.promises
	change(&p)
	return m.putPromises(p)
}

func (m *memory) putPromises(p Promises) error {
	if err := m.put("promises.json", p); err != nil {
		return err
	}
	m.promises = p
	return nil
}

func (m *memory) changeMember(change func(*Member)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	member := m.member
	change(&member)
	if err := m.put("member.json", member); err != nil {
		return err
	}
	m.member = member
	return nil
}

func (m *memory) put(name string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return pgproc.ReplaceFile(filepath.Join(m.dir, name), append(b, '\n'), 0o600, pgproc.Account{})
}
