package plan

import (
	"neki/catalog"
	"neki/internal/pgerr"
	"neki/settings"
	"neki/sqlparse"
)

// TxState is what a session's transaction means for the choice of an instance.
type TxState uint8

// The states.
const (
	TxNone      TxState = iota // no transaction block
	TxReadWrite                // in one that may write, or that is SERIALIZABLE (a standby can't run those)
	TxReadOnly                 // in one begun READ ONLY
	TxPinned                   // no block, but the session holds a connection to the primary that has state of its own
)

// BeginState gives the state that a transaction block begins in. readOnly and isolation are what BEGIN, SET TRANSACTION
// and the session's defaults come to; isolation is as Postgres shows it, e.g. "repeatable read".
func BeginState(readOnly bool, isolation string) TxState {
	if readOnly && isolation != "serializable" {
		return TxReadOnly
	}
	return TxReadWrite
}

// Access says which kind of instance may serve the plan under the session's settings: catalog.RolePrimary, RoleReplica
// or RoleRdonly. The error is 25006, when a statement known to write comes under a target that can't write. Of a string
// of several statements outside a transaction, which Postgres runs as one, see AccessAll.
func Access(p *Plan, n settings.Neki, tx TxState) (catalog.Role, *pgerr.Error) {
	switch n.Target {
	case settings.TargetReplica, settings.TargetRdonly:
		if p.Verdict == Write {
			return catalog.RoleUnknown, refusal(p, n.Target)
		}
		if n.Target == settings.TargetRdonly {
			return catalog.RoleRdonly, nil
		}
		return catalog.RoleReplica, nil
	case settings.TargetAuto:
		if tx == TxReadOnly || tx == TxNone && (p.Proven() || beginsReadOnly(p)) {
			return catalog.RoleReplica, nil
		}
	}
	return catalog.RolePrimary, nil
}

// beginsReadOnly reports whether the plan begins a transaction that can run on a replica by its own words.
func beginsReadOnly(p *Plan) bool {
	return p.Kind == sqlparse.KindBegin && p.Tx.ReadOnly != nil && BeginState(*p.Tx.ReadOnly, p.Tx.Isolation) == TxReadOnly
}

// AccessAll is Access for statements that run on one connection in one implicit transaction: all must be proven reads
// for a replica under target auto. The first one refused decides for all.
func AccessAll(parts []Part, n settings.Neki, tx TxState) (catalog.Role, *pgerr.Error) {
	role := catalog.RoleUnknown
	for i := range parts {
		r, err := Access(parts[i].Plan, n, tx)
		if err != nil {
			return r, err
		}
		if role == catalog.RoleUnknown || r == catalog.RolePrimary {
			role = r
		}
	}
	if role == catalog.RoleUnknown {
		role = catalog.RolePrimary
	}
	return role, nil
}

// refusal is the error of Postgres's own PreventCommandIfReadOnly, with the reason added.
func refusal(p *Plan, target settings.Target) *pgerr.Error {
	return pgerr.New(pgerr.ReadOnlySQLTransaction, "cannot execute %s in a read-only transaction", p.refused).
		WithDetail("The session's __neki.target is %s: nothing is sent to a primary.", target).
		WithHint("SET __neki.target = 'primary' or 'auto', outside a transaction, to write.")
}

// Destination gives the uid of the shard that a plan with a backend route goes to: as routed, or as __neki.shard says.
func Destination(p *Plan, n settings.Neki, snap *catalog.Snapshot) (string, *pgerr.Error) {
	if n.Shard == "" || p.Verdict == Neutral {
		if p.Route.Shard == "" && p.Route.Backend() {
			return "", pgerr.New(pgerr.NoServingPrimary, "no shard is known yet").
				WithHint("neki.shards lists the shards; CALL neki.create_shard makes one.")
		}
		return p.Route.Shard, nil
	}
	if p.shardRefused != "" {
		return "", pgerr.New(pgerr.FeatureNotSupported, "%s is not allowed while __neki.shard is set", p.shardRefused).
			WithDetail("__neki.shard is %q.", n.Shard).
			WithHint("RESET __neki.shard.")
	}
	if snap.Shard(n.Shard) == nil {
		return "", pgerr.New(pgerr.InvalidParameterValue, "shard %q of __neki.shard does not exist", n.Shard).
			WithHint("neki.shards lists the shards; RESET __neki.shard routes statements by themselves.")
	}
	return n.Shard, nil
}
