package catalog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// PutTopology writes a revision of the data topology, and keeps it for ever. rev is the Revision that the change was made
// on: 0 = there must be none yet, AnyRev = whatever is there. It gives the new one. ErrConflict means that another was
// faster. Whether the document is good is the caller's to check.
func PutTopology(ctx context.Context, store Store, cluster string, t TopologyDocument, rev int64) (int64, error) {
	if err := checkNames(cluster); err != nil {
		return 0, err
	}
	for {
		current, err := GetTopology(ctx, store, cluster)
		if err != nil {
			return 0, err
		}
		if rev != AnyRev && rev != current.Revision {
			return 0, fmt.Errorf("catalog: the topology is at revision %d: %w", current.Revision, ErrConflict)
		}
		t.Revision = current.Revision + 1
		if t.At.IsZero() {
			t.At = time.Now()
		}
		text, err := json.Marshal(t)
		if err != nil {
			return 0, fmt.Errorf("catalog: encode the topology: %w", err)
		}
		key := TopologyKey(cluster)
		_, err = store.Txn(ctx, []Cond{ModRev(key, current.ModRev)},
			[]Op{PutOp(key, text), PutOp(TopologyHistoryPrefix(cluster)+sortableInt(t.Revision), text)})
		switch {
		case err == nil:
			return t.Revision, nil
		case !errors.Is(err, ErrConflict):
			return 0, fmt.Errorf("catalog: put the topology: %w", err)
		}
	}
}

// GetTopology reads the data topology, linearizably. Its Revision is 0 when there is none.
func GetTopology(ctx context.Context, store Store, cluster string) (TopologyDocument, error) {
	var t TopologyDocument
	e, err := getJSON(ctx, store, TopologyKey(cluster), &t)
	if errors.Is(err, ErrNotFound) {
		return TopologyDocument{}, nil
	}
	t.ModRev = e.ModRev
	return t, err
}

// TopologyHistory gives all revisions that the data topology ever had, newest first.
func TopologyHistory(ctx context.Context, store Store, cluster string) ([]TopologyDocument, error) {
	entries, _, err := store.List(ctx, TopologyHistoryPrefix(cluster))
	if err != nil {
		return nil, fmt.Errorf("catalog: list the topology's revisions: %w", err)
	}
	all := make([]TopologyDocument, len(entries))
	for i, e := range entries {
		t := &all[len(entries)-1-i]
		if err := json.Unmarshal(e.Value, t); err != nil {
			return nil, fmt.Errorf("catalog: decode %s: %w", e.Key, err)
		}
		t.ModRev = e.ModRev
	}
	return all, nil
}
