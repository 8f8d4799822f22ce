package agent

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"sync"

	"neki/cluster/decide"
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
	Hold     string   `json:"hold,omitempty"`     // why Postgres is to stay stopped
	Archive  bool     `json:"archive,omitempty"`  // it reads the archive until it streams
	Restored string   `json:"restored,omitempty"` // the newest Request for which its data was made
	// Parameters are those of the instance's profile.
	Parameters map[string]string `json:"parameters,omitempty"`
	// Closed: a primary that no client may use yet: its barrier is not acknowledged.
	Closed bool `json:"closed,omitempty"`
}

// memory keeps both in a file of the agent's directory.
type memory struct {
	mu   sync.Mutex
	file *slotFile
	memories
}

// memories are what is kept, as one record.
type memories struct {
	Promises Promises `json:"promises"`
	Member   Member   `json:"member"`
}

func openMemory(dir string) (*memory, error) {
	path := filepath.Join(dir, "agent.state")
	file, record, err := openSlots(path)
	if err != nil {
		return nil, err
	}
	m := &memory{file: file}
	if record == nil {
		return m, nil
	}
	if err := json.Unmarshal(record, &m.memories); err != nil { // forgetting a promise would be worse than not starting
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
}

func (m *memory) get() (Promises, Member) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.Promises, m.Member
}

// accept checks an order against what was promised, and keeps what it promises durably before it is begun.
func (m *memory) accept(kind decide.Kind, o Order) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	head := decide.Head{Epoch: o.Epoch, Term: o.Term, Sub: o.Sub, OpID: o.OpID}
	p, err := decide.Accept(m.Promises, kind, head, decide.Flaws{})
	if err != nil {
		return err
	}
	before := m.Promises
	before.OpID = p.OpID // who promised it is worth no flush
	if p == before {
		return nil
	}
	return m.put(memories{Promises: p, Member: m.Member})
}

func (m *memory) changePromises(change func(*Promises)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	next := m.memories
	change(&next.Promises)
	return m.put(next)
}

func (m *memory) changeMember(change func(*Member)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	next := m.memories
	change(&next.Member)
	return m.put(next)
}

// changeBoth is for what must not be seen, nor come out of a crash, by halves.
func (m *memory) changeBoth(change func(*Promises, *Member)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	next := m.memories
	change(&next.Promises, &next.Member)
	return m.put(next)
}

// put makes next what is remembered, once it is on disk.
func (m *memory) put(next memories) error {
	record, err := json.Marshal(next)
	if err != nil {
		return err
	}
	if err := m.file.put(record); err != nil {
		return err
	}
	m.memories = next
	return nil
}
