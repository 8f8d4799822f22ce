package catalog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// The typed accessors. Each Put takes the ModRev of the document that the change was made on (0 = it must not be there
// yet, AnyRev = whatever is there) and gives the new one; ErrConflict means that another was faster.

// AnyRev makes a Put unconditional.
const AnyRev int64 = -1

func revCond(rev int64) Cond {
	if rev == AnyRev {
		return Always()
	}
	return ModRev("", rev)
}

func putJSON(ctx context.Context, store Store, key string, value any, rev int64) (int64, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return 0, fmt.Errorf("catalog: encode %s: %w", key, err)
	}
	rev, err = store.Put(ctx, key, text, revCond(rev))
	if err != nil {
		return 0, fmt.Errorf("catalog: put %s: %w", key, err)
	}
	return rev, nil
}

func getJSON(ctx context.Context, store Store, key string, into any) (Entry, error) {
	e, err := store.Get(ctx, key)
	if err != nil {
		return e, fmt.Errorf("catalog: get %s: %w", key, err)
	}
	if err := json.Unmarshal(e.Value, into); err != nil {
		return e, fmt.Errorf("catalog: decode %s: %w", key, err)
	}
	return e, nil
}

func checkNames(names ...string) error {
	for _, n := range names {
		if !ValidName(n) {
			return fmt.Errorf("catalog: %q is not a name of letters, digits, '_', '-' and '.'", n)
		}
	}
	return nil
}

// PutShard writes a shard's document.
func PutShard(ctx context.Context, store Store, cluster string, s Shard, rev int64) (int64, error) {
	if err := checkNames(cluster, s.UID); err != nil {
		return 0, err
	}
	return putJSON(ctx, store, ShardKey(cluster, s.UID), s, rev)
}

// GetShard reads a shard's document, linearizably.
func GetShard(ctx context.Context, store Store, cluster, uid string) (Shard, error) {
	var s Shard
	e, err := getJSON(ctx, store, ShardKey(cluster, uid), &s)
	s.ModRev = e.ModRev
	return s, err
}

// UpdateShard reads a shard's document, changes it and writes it, again when another was faster. change must have no
// effects besides; its error ends the update.
func UpdateShard(ctx context.Context, store Store, cluster, uid string, change func(*Shard) error) (Shard, error) {
	for {
		s, err := GetShard(ctx, store, cluster, uid)
		if err != nil {
			return s, err
		}
		if err := change(&s); err != nil {
			return s, err
		}
		rev, err := PutShard(ctx, store, cluster, s, s.ModRev)
		if errors.Is(err, ErrConflict) {
			continue
		}
		s.ModRev = rev
		return s, err
	}
}

// PutNode writes a node's document.
func PutNode(ctx context.Context, store Store, cluster string, n Node, rev int64) (int64, error) {
	if err := checkNames(cluster, n.Shard, n.ID); err != nil {
		return 0, err
	}
	return putJSON(ctx, store, NodeKey(cluster, n.Shard, n.ID), n, rev)
}

// GetNode reads a node's document, linearizably.
func GetNode(ctx context.Context, store Store, cluster, shard, id string) (Node, error) {
	var n Node
	e, err := getJSON(ctx, store, NodeKey(cluster, shard, id), &n)
	n.ModRev = e.ModRev
	return n, err
}

// UpdateNode is UpdateShard for a node's document.
func UpdateNode(ctx context.Context, store Store, cluster, shard, id string, change func(*Node) error) (Node, error) {
	for {
		n, err := GetNode(ctx, store, cluster, shard, id)
		if err != nil {
			return n, err
		}
		if err := change(&n); err != nil {
			return n, err
		}
		rev, err := PutNode(ctx, store, cluster, n, n.ModRev)
		if errors.Is(err, ErrConflict) {
			continue
		}
		n.ModRev = rev
		return n, err
	}
}

// DeleteNode removes a node's document.
func DeleteNode(ctx context.Context, store Store, cluster, shard, id string, rev int64) error {
	_, err := store.Delete(ctx, NodeKey(cluster, shard, id), revCond(rev))
	return err
}

// PutProfile writes a profile.
func PutProfile(ctx context.Context, store Store, cluster string, p Profile, rev int64) (int64, error) {
	if err := checkNames(cluster, p.Name); err != nil {
		return 0, err
	}
	return putJSON(ctx, store, ProfileKey(cluster, p.Name), p, rev)
}

// GetProfile reads a profile, linearizably.
func GetProfile(ctx context.Context, store Store, cluster, name string) (Profile, error) {
	var p Profile
	e, err := getJSON(ctx, store, ProfileKey(cluster, name), &p)
	p.ModRev = e.ModRev
	return p, err
}

// PutRule writes a shard's rule.
func PutRule(ctx context.Context, store Store, cluster, shard string, r Rule, rev int64) (int64, error) {
	if err := checkNames(cluster, shard); err != nil {
		return 0, err
	}
	return putJSON(ctx, store, RuleKey(cluster, shard), r, rev)
}

// GetRule reads a shard's rule, linearizably.
func GetRule(ctx context.Context, store Store, cluster, shard string) (Rule, error) {
	var r Rule
	e, err := getJSON(ctx, store, RuleKey(cluster, shard), &r)
	r.ModRev = e.ModRev
	return r, err
}

// GetOperation reads the operation that a shard undergoes, linearizably; ErrNotFound when there is none.
func GetOperation(ctx context.Context, store Store, cluster, shard string) (Operation, error) {
	var o Operation
	e, err := getJSON(ctx, store, OpKey(cluster, shard), &o)
	o.ModRev = e.ModRev
	return o, err
}

// PutOperation asks for an operation, and puts the job that shows it; ErrConflict when there is one already.
func PutOperation(ctx context.Context, store Store, cluster, shard string, o Operation) (int64, error) {
	if err := checkNames(cluster, shard, o.ID); err != nil {
		return 0, err
	}
	text, err := json.Marshal(o)
	if err != nil {
		return 0, fmt.Errorf("catalog: encode operation %s: %w", o.ID, err)
	}
	job, err := json.Marshal(JobOf(shard, &o))
	if err != nil {
		return 0, fmt.Errorf("catalog: encode the job of operation %s: %w", o.ID, err)
	}
	key, jobKey := OpKey(cluster, shard), JobKey(cluster, o.ID)
	rev, err := store.Txn(ctx, []Cond{Absent(key), Absent(jobKey)}, []Op{PutOp(key, text), PutOp(jobKey, job)})
	if err != nil {
		return 0, fmt.Errorf("catalog: put %s: %w", key, err)
	}
	return rev, nil
}

// PutParameter writes a parameter's text; scope is gateway or admin. Whether the text is good is the caller's to check.
func PutParameter(ctx context.Context, store Store, cluster, scope, name, value string) (int64, error) {
	if err := checkNames(cluster, scope, name); err != nil {
		return 0, err
	}
	return store.Put(ctx, ParameterKey(cluster, scope, name), []byte(value), Always())
}

// DeleteParameter takes a parameter back to its default.
func DeleteParameter(ctx context.Context, store Store, cluster, scope, name string) error {
	_, err := store.Delete(ctx, ParameterKey(cluster, scope, name), Always())
	return err
}

// TouchSchema tells all gateways that DDL may have changed what their plans depend on.
//
// It gives the revision of the schema that Snapshots have then.
func TouchSchema(ctx context.Context, store Store, cluster string) (int64, error) {
	return store.Put(ctx, SchemaKey(cluster), []byte("{}"), Always())
}

// PutLiveness writes what an agent says of itself, under its lease.
func PutLiveness(ctx context.Context, lease Lease, cluster string, l Liveness) error {
	if err := checkNames(cluster, l.Shard, l.Node); err != nil {
		return err
	}
	return putLeased(ctx, lease, LiveKey(cluster, l.Shard, l.Node), l, Always())
}

// PutAdmin writes what an admin says of itself, under its lease.
func PutAdmin(ctx context.Context, lease Lease, cluster string, a Admin) error {
	if err := checkNames(cluster, a.ID); err != nil {
		return err
	}
	return putLeased(ctx, lease, AdminKey(cluster, a.ID), a, Always())
}

func putLeased(ctx context.Context, lease Lease, key string, value any, cond Cond) error {
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("catalog: encode %s: %w", key, err)
	}
	if _, err := lease.Put(ctx, key, text, cond); err != nil {
		return fmt.Errorf("catalog: put %s: %w", key, err)
	}
	return nil
}

// maxGateways is how many gateways a cluster can have: their indexes fit the high bits of virtual pids.
const maxGateways = 256

// RegisterGateway writes what a gateway says of itself, under its lease, with the smallest index that is free, and
// gives it back with that index.
func RegisterGateway(ctx context.Context, store Store, lease Lease, cluster string, g Gateway) (Gateway, error) {
	if err := checkNames(cluster, g.ID); err != nil {
		return g, err
	}
	for {
		index, err := freeIndex(ctx, store, cluster)
		if err != nil {
			return g, err
		}
		g.Index = index
		text, err := json.Marshal(g)
		if err != nil {
			return g, fmt.Errorf("catalog: encode gateway %s: %w", g.ID, err)
		}
		key := gatewayIndexKey(cluster, index)
		rev, err := lease.Txn(ctx, []Cond{Absent(key)},
			[]Op{PutOp(key, []byte(g.ID)), PutOp(GatewayKey(cluster, g.ID), text)})
		if errors.Is(err, ErrConflict) {
			continue
		}
		g.ModRev = rev
		return g, err
	}
}

// AnnounceGateway writes anew what a registered gateway says of itself, under the lease of its registration.
func AnnounceGateway(ctx context.Context, lease Lease, cluster string, g Gateway) error {
	return putLeased(ctx, lease, GatewayKey(cluster, g.ID), g, Always())
}

func freeIndex(ctx context.Context, store Store, cluster string) (int, error) {
	prefix := strings.TrimSuffix(gatewayIndexKey(cluster, 0), sortableInt(0))
	taken, _, err := store.List(ctx, prefix)
	if err != nil {
		return 0, fmt.Errorf("catalog: list gateways: %w", err)
	}
	for i := range maxGateways {
		if i == len(taken) || taken[i].Key != gatewayIndexKey(cluster, i) {
			return i, nil
		}
	}
	return 0, fmt.Errorf("catalog: the cluster has %d gateways already", maxGateways)
}

// AcquireLeader makes the admin the leader, under its lease, and gives its epoch; ErrConflict when there is another.
func AcquireLeader(ctx context.Context, lease Lease, cluster string, a Admin) (epoch int64, err error) {
	text, err := json.Marshal(a)
	if err != nil {
		return 0, fmt.Errorf("catalog: encode admin %s: %w", a.ID, err)
	}
	return lease.Put(ctx, LeaderKey(cluster), text, Absent(""))
}

// LeaderCond holds as long as the admin that got the epoch still leads. It belongs in every Txn of a leader.
func LeaderCond(cluster string, epoch int64) Cond { return CreateRev(LeaderKey(cluster), epoch) }

// AppendEvent records an event; its ID comes from its time, which is set when zero.
func AppendEvent(ctx context.Context, store Store, cluster string, e Event) (Event, error) {
	if e.At.IsZero() {
		e.At = time.Now()
	}
	for nanos := e.At.UnixNano(); ; nanos++ {
		e.ID = sortableInt(nanos)
		_, err := putJSON(ctx, store, EventPrefix(cluster)+e.ID, e, 0)
		if !errors.Is(err, ErrConflict) {
			return e, err
		}
	}
}

// ListEvents gives the newest events, newest first, at most limit, and removes none.
func ListEvents(ctx context.Context, store Store, cluster string, limit int) ([]Event, error) {
	entries, _, err := store.List(ctx, EventPrefix(cluster))
	if err != nil {
		return nil, fmt.Errorf("catalog: list events: %w", err)
	}
	events := make([]Event, 0, min(limit, len(entries)))
	for i := len(entries) - 1; i >= 0 && len(events) < limit; i-- {
		var e Event
		if err := json.Unmarshal(entries[i].Value, &e); err != nil {
			return nil, fmt.Errorf("catalog: decode %s: %w", entries[i].Key, err)
		}
		events = append(events, e)
	}
	return events, nil
}

// TrimEvents removes all but the newest keep events: what the leading admin does now and then.
func TrimEvents(ctx context.Context, store Store, cluster string, keep int) error {
	entries, _, err := store.List(ctx, EventPrefix(cluster))
	if err != nil {
		return fmt.Errorf("catalog: list events: %w", err)
	}
	for i := 0; i < len(entries)-keep; i++ {
		if _, err := store.Delete(ctx, entries[i].Key, Always()); err != nil {
			return fmt.Errorf("catalog: trim events: %w", err)
		}
	}
	return nil
}
