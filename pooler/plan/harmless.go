package plan

import "slices"

// harmless lists the functions of pg_catalog that are VOLATILE but may run on any replica: they change nothing, keep
// nothing in the connection, and tell the same of a replica as of the primary, or something that is asked of whatever
// instance one reads from. Not in it, on purpose: functions that describe the one instance or its files and processes
// (pg_stat_file, pg_ls_dir, pg_lock_status, pg_blocking_pids ...), that run a query given as text (query_to_xml,
// ts_stat), and those of cursors, large object descriptors, slots, origins and the backup mode.
var harmless = []string{ // sorted
	"array_sample", // 16
	"array_shuffle",
	"clock_timestamp",
	"current_query",
	"gen_random_uuid",
	"lo_get",
	"pg_collation_actual_version",
	"pg_database_collation_actual_version",
	"pg_database_size",
	"pg_get_wal_replay_pause_state",
	"pg_indexes_size",
	"pg_is_in_recovery",
	"pg_is_wal_replay_paused",
	"pg_jit_available",
	"pg_last_wal_receive_lsn",
	"pg_last_wal_replay_lsn",
	"pg_last_xact_replay_timestamp",
	"pg_partition_ancestors",
	"pg_partition_tree",
	"pg_relation_size",
	"pg_sleep",
	"pg_sleep_for",
	"pg_sleep_until",
	"pg_table_size",
	"pg_tablespace_size",
	"pg_total_relation_size",
	"random",
	"random_normal", // 16
	"timeofday",
	"uuidv4", // 18
	"uuidv7", // 18
}

// effective lists the functions of pg_catalog that are not VOLATILE, or are in no list of writers, and yet have effects:
// they assign a transaction id, or they tell of the connection that runs them.
var effective = []string{ // sorted
	"pg_current_xact_id",
	"pg_cursor",
	"pg_listening_channels",
	"pg_my_temp_schema",
	"pg_prepared_statement",
	"txid_current",
}

func isHarmless(name string) bool { return contains(harmless, name) }
func hasEffects(name string) bool { return contains(effective, name) }

func contains(sorted []string, name string) bool {
	_, ok := slices.BinarySearch(sorted, name)
	return ok
}
