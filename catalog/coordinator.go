package catalog

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"neki/internal/pgerr"
)

// Decision is what becomes of a transaction that is prepared on several shards. It is committed if the store has a
// decision that says so, and rolled back otherwise: see Coordinator.
type Decision struct {
	GID      string    `json:"gid"`
	Aborted  bool      `json:"aborted,omitempty"` // it can't be committed any more
	Shards   []string  `json:"shards,omitempty"`  // where it was prepared
	Database string    `json:"database,omitempty"`
	At       time.Time `json:"at,omitzero"`
	ModRev   int64     `json:"-"`
}

// gidPrefix is what names of transactions that are prepared for a gateway begin with. Names of a catalog have no colon.
const gidPrefix = "neki:"

// ParseGID takes the name of a prepared transaction apart: the cluster, the gateway and the incarnation of its
// coordinator. ok is false for those that others have prepared.
func ParseGID(gid string) (cluster, gateway, incarnation string, ok bool) {
	rest, ok := strings.CutPrefix(gid, gidPrefix)
	parts := strings.Split(rest, ":")
	if !ok || len(parts) != 4 {
		return "", "", "", false
	}
	return parts[0], parts[1], parts[2], true
}

// CoordinatorPrefix gives the prefix of the keys of coordinators that may decide. They are not below Prefix, for gateways
// don't follow them.
func CoordinatorPrefix(cluster string) string {
	return "/neki/v1-commits/" + cluster + "/coordinators/"
}

// DecisionPrefix gives the prefix of the keys of decisions.
func DecisionPrefix(cluster string) string { return "/neki/v1-commits/" + cluster + "/decisions/" }

// Coordinator decides for one gateway on commits over several shards.
//
// A commit is decided by one write, which the store takes only while the coordinator's own key is there. That key goes
// with the gateway's lease. So once it is gone, what is decided is all that will ever be, and what is prepared beside that
// may be rolled back by anybody; no record is needed of what is not committed. Each registration is an incarnation of its
// own, and names of prepared transactions tell which one they are of.
//
// It is safe for concurrent use and starts no goroutine.
type Coordinator struct {
	store   Store
	cluster string
	gateway string

	mu      sync.Mutex
	current incarnation
	count   uint64
	done    []string // decisions that nobody needs any more
}

type incarnation struct {
	key, name string
	rev       int64 // that made the key
}

// NewCoordinator makes a coordinator, which must be registered before it can decide.
func NewCoordinator(store Store, cluster, gateway string) *Coordinator {
	return &Coordinator{store: store, cluster: cluster, gateway: gateway}
}

// Register makes a new incarnation, that lasts as long as the lease.
func (c *Coordinator) Register(ctx context.Context, lease Lease) error {
	if err := checkNames(c.cluster, c.gateway); err != nil {
		return err
	}
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails
	now := incarnation{name: hex.EncodeToString(random[:])}
	now.key = CoordinatorPrefix(c.cluster) + now.name
	var err error
	if now.rev, err = lease.Put(ctx, now.key, []byte(strconv.Quote(c.gateway)), Absent("")); err != nil {
		return fmt.Errorf("catalog: register the coordinator: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.current = now
	return nil
}

// Commit is a commit to be decided.
type Commit struct {
	GID    string
	holder incarnation
}

// errNoCoordinator: nothing is prepared yet.
var errNoCoordinator = pgerr.New(pgerr.ObjectNotInPrerequisiteState, "a commit over several shards needs the catalog, which can't be reached").
	WithHint("Run the transaction again when it is back.")

// Begin names a commit. Under that name it may be prepared.
func (c *Coordinator) Begin() (Commit, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current.rev == 0 {
		return Commit{}, errNoCoordinator
	}
	c.count++
	gid := gidPrefix + c.cluster + ":" + c.gateway + ":" + c.current.name + ":" + strconv.FormatUint(c.count, 10)
	return Commit{GID: gid, holder: c.current}, nil
}

// ErrAborted says that a commit was decided against, because its coordinator was taken for dead or too slow.
var ErrAborted = errors.New("catalog: the commit was decided against")

// mostDone bounds the deletes that go with one write.
const mostDone = 64

// Decide makes the commit final, once it is prepared on all shards. ErrAborted means that it is not and never will be;
// any other error, that nobody knows yet.
func (c *Coordinator) Decide(ctx context.Context, commit Commit, database string, shards []string) error {
	text, err := json.Marshal(Decision{GID: commit.GID, Shards: shards, Database: database, At: time.Now().UTC()})
	if err != nil {
		return err
	}
	key := DecisionPrefix(c.cluster) + commit.GID
	ops := append([]Op{PutOp(key, text)}, c.takeDone()...)
	for {
		_, err := c.store.Txn(ctx, []Cond{CreateRev(commit.holder.key, commit.holder.rev), Absent(key)}, ops)
		if err == nil {
			return nil
		}
		if errors.Is(err, ErrConflict) {
			if err = c.decided(ctx, key); err == nil || errors.Is(err, ErrAborted) {
				return err
			}
		}
		if ctx.Err() != nil {
			return fmt.Errorf("catalog: decide on %s: %w", commit.GID, err)
		}
		pause(ctx, backoffFirst)
	}
}

// decided reads a decision: it may be one's own, of a write whose answer was lost.
func (c *Coordinator) decided(ctx context.Context, key string) error {
	var d Decision
	_, err := getJSON(ctx, c.store, key, &d)
	switch {
	case err == nil && !d.Aborted:
		return nil
	case err == nil || errors.Is(err, ErrNotFound):
		return ErrAborted
	}
	return err
}

// Done says that a commit is carried out, durably, on all of its shards: its decision is deleted with the next one.
func (c *Coordinator) Done(commit Commit) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done = append(c.done, commit.GID)
}

// takeDone gives deletes to go with a write. Should that fail, the decisions stay until the admin finds them.
func (c *Coordinator) takeDone() []Op {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := min(len(c.done), mostDone)
	ops := make([]Op, n)
	for i, gid := range c.done[:n] {
		ops[i] = DeleteOp(DecisionPrefix(c.cluster) + gid)
	}
	c.done = c.done[n:]
	return ops
}

// Commits is a view of all commits over several shards that are not over.
type Commits struct {
	Live      map[string]bool // incarnations that may still decide
	Decisions map[string]Decision
}

// ListCommits reads who may decide, and only then what was decided: what is prepared for an incarnation that is not
// live, and was prepared before this began, is committed if there is a decision in the view, and else never will be.
func ListCommits(ctx context.Context, store Store, cluster string) (Commits, error) {
	view := Commits{Live: map[string]bool{}, Decisions: map[string]Decision{}}
	prefix := CoordinatorPrefix(cluster)
	coordinators, _, err := store.List(ctx, prefix)
	if err != nil {
		return view, fmt.Errorf("catalog: list coordinators: %w", err)
	}
	for _, e := range coordinators {
		view.Live[strings.TrimPrefix(e.Key, prefix)] = true
	}
	decisions, _, err := store.List(ctx, DecisionPrefix(cluster))
	if err != nil {
		return view, fmt.Errorf("catalog: list decisions: %w", err)
	}
	for _, e := range decisions {
		var d Decision
		if err := json.Unmarshal(e.Value, &d); err != nil {
			return view, fmt.Errorf("catalog: decode %s: %w", e.Key, err)
		}
		d.ModRev = e.ModRev
		view.Decisions[d.GID] = d
	}
	return view, nil
}

// Abort decides against a commit, whatever its coordinator wants; ErrConflict when it is decided already.
func Abort(ctx context.Context, store Store, cluster, gid string) error {
	text, err := json.Marshal(Decision{GID: gid, Aborted: true, At: time.Now().UTC()})
	if err != nil {
		return err
	}
	_, err = store.Put(ctx, DecisionPrefix(cluster)+gid, text, Absent(""))
	return err
}

// ForgetDecision deletes a decision that nobody needs any more.
func ForgetDecision(ctx context.Context, store Store, cluster string, d Decision) error {
	key := DecisionPrefix(cluster) + d.GID
	_, err := store.Delete(ctx, key, ModRev(key, d.ModRev))
	if errors.Is(err, ErrConflict) {
		return nil
	}
	return err
}
