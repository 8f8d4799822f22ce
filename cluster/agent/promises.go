package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"neki/catalog"
	"neki/cluster/pgproc"
	"neki/internal/pgerr"
)

// Promises are what a node must remember whatever happens to its data directory. They are on disk, outside it, before
// an order is answered. RevokedBelowTerm, RecruitFloor, RewindInProgress and ResignedTerm are failover's, which builds
// on this file; here they are only carried along.
type Promises struct {
	SystemID         string `json:"sysid,omitempty"`
	Epoch            int64  `json:"epoch"`    // highest of any admin that gave an order
	OwnTerm          int64  `json:"own_term"` // in which this node was told to lead; 0 = it never was
	OpID             string `json:"op_id,omitempty"`
	RevokedBelowTerm int64  `json:"revoked_below_term,omitempty"`
	RecruitFloor     *Floor `json:"recruit_floor,omitempty"`
	RewindInProgress bool   `json:"rewind_in_progress,omitempty"`
	ResignedTerm     int64  `json:"resigned_term,omitempty"`
}

// Floor is a position that a node must have passed to count in a quorum.
type Floor struct {
	Timeline int32       `json:"tli"`
	LSN      catalog.LSN `json:"lsn"`
}

// Member is what the node was last told to be. Unlike Promises it can be told again.
type Member struct {
	Term     int64    `json:"term,omitempty"` // of the leader that it follows, or its own
	Source   *Source  `json:"source,omitempty"`
	Peers    []string `json:"peers,omitempty"`
	Led      bool     `json:"led,omitempty"` // Standbys and Acks were ordered; until then no commit is acknowledged
	Standbys []string `json:"standbys,omitempty"`
	Acks     int      `json:"acks,omitempty"`
	Hold     string   `json:"hold,omitempty"` // why Postgres is to stay stopped
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

// accept checks an order against what was promised, and remembers its epoch durably.
func (m *memory) accept(o Order) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.promises
	switch {
	case o.OpID == "":
		return pgerr.New(pgerr.InvalidParameterValue, "an order needs an op_id")
	case o.Epoch < p.Epoch:
		return pgerr.New(pgerr.ObjectNotInPrerequisiteState, "order of epoch %d refused: epoch %d has given orders", o.Epoch, p.Epoch)
	case o.Term < max(p.OwnTerm, p.RevokedBelowTerm):
		return pgerr.New(pgerr.ObjectNotInPrerequisiteState, "order of term %d refused: this node is in term %d",
			o.Term, max(p.OwnTerm, p.RevokedBelowTerm))
	case o.Epoch == p.Epoch:
		return nil
	}
	p.Epoch, p.OpID = o.Epoch, o.OpID
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
