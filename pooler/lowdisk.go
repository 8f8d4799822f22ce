package pooler

import (
	"cmp"
	"strings"

	"neki/catalog"
	"neki/internal/pgerr"
	"neki/pooler/plan"
	"neki/sqlparse"
)

// mayWrite refuses what would take space on a shard whose disk is low. What gives space back is let through.
func (c *Session) mayWrite(shard string, snap *catalog.Snapshot) error {
	if !c.anyOf(takesSpace) {
		return nil
	}
	return refuseLow(snap.Shard(cmp.Or(shard, c.place.shard, homeShard(snap))))
}

// refuseLow refuses a write where the disk is low.
func refuseLow(sh *catalog.Shard) error {
	if sh == nil || !sh.ReadOnly {
		return nil
	}
	return pgerr.New(pgerr.ShardReadOnly, "shard \"%s\" is read-only: a disk of it is nearly full", sh.UID).
		WithDetail("Reads go on, and so do DROP and TRUNCATE. Writes go on by themselves once there is space again.").
		WithHint("neki.nodes shows how much is free, in disk_free.")
}

// takesSpace reports whether a statement may make the data larger.
func takesSpace(p *plan.Plan) bool {
	if p.Kind.IsTransaction() || p.Kind == sqlparse.KindVacuum || strings.HasPrefix(p.Tag, "DROP ") || p.Tag == "TRUNCATE TABLE" || p.Tag == "TRUNCATE" {
		return false
	}
	return p.Effects.Any(sqlparse.EffectWrites)
}

// anyOf reports whether something holds of a statement of the message or segment in hand.
func (c *Session) anyOf(holds func(*plan.Plan) bool) bool {
	for i := range c.work.parts {
		if p := c.work.parts[i].Plan; p != nil && holds(p) {
			return true
		}
	}
	return false
}
