package admin

import (
	"context"
	"fmt"
	"time"

	"neki/catalog"
)

// laggards are the replicas that were told to lag, and since when.
type laggards map[string]time.Time

// look gives the events of what has changed since the last look: a replica lags whose lag is known to be more than is acceptable,
// and until it is down to four fifths of that. One whose lag is not known is told of as down or catching up, and nothing here.
func (lag laggards) look(snap *catalog.Snapshot, acceptable time.Duration, now time.Time) (events []catalog.Event) {
	there := map[string]bool{}
	for i := range snap.Nodes {
		n := &snap.Nodes[i]
		h := snap.Health(n.ID)
		if h == nil || h.Stale || !h.LagKnown || h.Role != catalog.RoleReplica && h.Role != catalog.RoleRdonly {
			continue
		}
		there[n.ID] = true
		since, lags := lag[n.ID]
		e := catalog.Event{Shard: n.Shard, Node: n.ID}
		switch {
		case !lags && h.Lag > acceptable:
			lag[n.ID] = now
			e.Kind, e.Detail = "lagging", fmt.Sprintf("is %v behind; acceptable are %v", h.Lag.Round(time.Millisecond), acceptable)
		case lags && h.Lag <= acceptable*4/5:
			delete(lag, n.ID)
			e.Kind, e.Detail, e.Duration = "caught_up", "lags no more", now.Sub(since)
		default:
			continue
		}
		events = append(events, e)
	}
	for id := range lag {
		if !there[id] && snap.Node(id) == nil {
			delete(lag, id)
		}
	}
	return events
}

// noteLag records what a look at the lag has found.
func (l *leader) noteLag(ctx context.Context, lag laggards, now time.Time) {
	snap := l.a.live.Snapshot()
	for _, e := range lag.look(snap, l.a.cfg.tuned(snap).AcceptableLag, now) {
		l.a.record(ctx, e)
	}
}
