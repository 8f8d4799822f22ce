package catalog

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// Keys are slash paths. Names in them have no slash: see ValidName.
const root = "/neki/v1/"

// Prefix gives the prefix of all keys of a cluster that Live follows.
func Prefix(cluster string) string { return root + cluster + "/" }

// ShardPrefix gives the prefix of all keys of a shard.
func ShardPrefix(cluster, shard string) string { return Prefix(cluster) + "shards/" + shard + "/" }

// ShardKey gives the key of a Shard.
func ShardKey(cluster, shard string) string { return ShardPrefix(cluster, shard) + "shard" }

// RuleKey gives the key of a shard's Rule.
func RuleKey(cluster, shard string) string { return ShardPrefix(cluster, shard) + "rule" }

// HistoryKey gives the key of what is known about one term of a shard.
func HistoryKey(cluster, shard string, term int64) string {
	return ShardPrefix(cluster, shard) + "history/" + sortableInt(term)
}

// OpKey gives the key of the one action that a shard undergoes.
func OpKey(cluster, shard string) string { return ShardPrefix(cluster, shard) + "op" }

// JobKey gives the key of a Job.
func JobKey(cluster, id string) string { return Prefix(cluster) + "operations/" + id }

// jobIndexKey gives the key that holds the ID of the job of a Key that goes on. The Key may be any text.
func jobIndexKey(cluster, key string) string {
	sum := sha256.Sum256([]byte(key))
	return Prefix(cluster) + "operation_keys/" + hex.EncodeToString(sum[:16])
}

// BackupKey gives the key of a backup.
func BackupKey(cluster, shard, id string) string {
	return ShardPrefix(cluster, shard) + "backups/" + id
}

// NodeKey gives the key of a Node.
func NodeKey(cluster, shard, node string) string {
	return ShardPrefix(cluster, shard) + "members/" + node
}

// LiveKey gives the key of a node's Liveness.
func LiveKey(cluster, shard, node string) string { return ShardPrefix(cluster, shard) + "live/" + node }

// GatewayKey gives the key of a Gateway.
func GatewayKey(cluster, gateway string) string { return Prefix(cluster) + "gateways/" + gateway }

func gatewayIndexKey(cluster string, index int) string {
	return Prefix(cluster) + "gateway_index/" + sortableInt(int64(index))
}

// AdminKey gives the key of an Admin.
func AdminKey(cluster, admin string) string { return Prefix(cluster) + "admin/members/" + admin }

// LeaderKey gives the key that the leading admin holds; its CreateRev is the epoch.
func LeaderKey(cluster string) string { return Prefix(cluster) + "admin/leader" }

// ProfileKey gives the key of a Profile.
func ProfileKey(cluster, profile string) string { return Prefix(cluster) + "profiles/" + profile }

// ParameterKey gives the key of a parameter's text; scope is gateway or admin.
func ParameterKey(cluster, scope, name string) string {
	return Prefix(cluster) + "parameters/" + scope + "/" + name
}

// TopologyKey gives the key of the Topology.
func TopologyKey(cluster string) string { return Prefix(cluster) + "topology" }

// TopologyHistoryPrefix gives the prefix of all revisions that the Topology ever had; it is not below Prefix, for
// gateways don't follow them.
func TopologyHistoryPrefix(cluster string) string { return "/neki/v1-topology/" + cluster + "/" }

// SchemaKey gives the key that is written, with any value, when DDL may have changed what plans depend on.
func SchemaKey(cluster string) string { return Prefix(cluster) + "schema" }

// EventPrefix gives the prefix of a cluster's Events; it is not below Prefix, for gateways don't follow them.
func EventPrefix(cluster string) string { return "/neki/v1-events/" + cluster + "/" }

// ValidName reports whether a name may be part of a key: letters, digits, '_', '-' and '.', at most 63, not starting
// with '.'.
func ValidName(name string) bool {
	if name == "" || len(name) > 63 || name[0] == '.' {
		return false
	}
	return strings.IndexFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("_-.", r)
	}) < 0
}

// sortableInt writes n such that texts sort as the numbers do.
func sortableInt(n int64) string {
	const width = 19
	digits := make([]byte, width)
	for i := width - 1; i >= 0; i-- {
		digits[i] = byte('0' + n%10)
		n /= 10
	}
	return string(digits)
}
