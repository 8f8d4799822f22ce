package admin

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"time"

	"neki/catalog"
	"neki/cluster/agent"
)

// likeOthers gives a new shard's primary the roles, databases, settings, schemas and extensions that the other shards have. It
// does nothing for the first shard of a cluster.
func (s *shardLoop) likeOthers(ctx context.Context, v *view) error {
	from := model(s.l.a.live.Snapshot(), s.uid)
	to := v.nodes[v.shard.Doc.Primary]
	if from == nil || to == nil {
		return nil
	}
	began := time.Now()
	var done []string
	for before := []agent.Global(nil); ; {
		globals, err := s.l.a.client(from).Globals(ctx)
		if err != nil {
			return fmt.Errorf("roles and databases of shard %s: %w", from.Shard, err)
		}
		if reflect.DeepEqual(globals, before) { // nobody has changed them meanwhile
			break
		}
		r, err := s.l.a.client(to).MakeGlobals(ctx, agent.GlobalsOrder{Order: s.orderOf(v, "globals"), Globals: globals})
		if err != nil {
			return fmt.Errorf("roles and databases as shard %s has them: %w", from.Shard, err)
		}
		done, before = append(done, r.Done...), globals
	}
	if len(done) > 0 {
		s.l.a.record(ctx, catalog.Event{
			Kind: "applied", Shard: s.uid, Node: to.ID, Detail: "as on shard " + from.Shard + ": " + strings.Join(done, ", "), Duration: time.Since(began),
		})
	}
	return nil
}

// notLikeOthers tells why the shard is not opened yet, once for each reason.
func (s *shardLoop) notLikeOthers(ctx context.Context, v *view, err error) {
	if text := err.Error(); text != s.unlike && ctx.Err() == nil {
		s.unlike = text
		s.l.a.record(ctx, catalog.Event{Kind: "problem", Shard: s.uid, Node: v.shard.Doc.Primary, Detail: "the shard is not opened: " + text})
	}
}

// model is the primary of the shard that others are to be like: the authoritative one, else any that is ready; nil when there is
// none, or the shard is the authoritative one itself.
func model(snap *catalog.Snapshot, shard string) *catalog.Node {
	if own := snap.Shard(shard); own != nil && own.Authoritative {
		return nil
	}
	var found *catalog.Node
	for i := range snap.Shards {
		sh := &snap.Shards[i]
		if sh.UID == shard || !sh.Ready {
			continue
		}
		if n := snap.Node(sh.Primary); n != nil && (found == nil || sh.Authoritative) {
			found = n
		}
	}
	return found
}
