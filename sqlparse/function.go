package sqlparse

import "strings"

// runsText reports whether a function runs SQL that it gets as text, where anything may hide.
func runsText(f FuncRef) bool {
	switch f.Name {
	case "query_to_xml", "query_to_xmlschema", "query_to_xml_and_xmlschema", "ts_stat", "crosstab", "crosstab2",
		"crosstab3", "crosstab4", "crosstabn", "xpath_table":
		return true
	}
	return f.Name == "ts_rewrite" && f.NArgs == 2
}

// functionEffects tells what a call of one of Postgres's own functions does, beyond its volatility. An unqualified name
// is taken for Postgres's function even if a user's shadows it: that errs on the safe side.
func functionEffects(name string) Effects {
	switch name {
	case "set_config":
		return EffectSessionState
	case "nextval", "setval", "currval", "lastval":
		return EffectSequence | EffectWrites
	case "setseed":
		return EffectSetSeed
	case "pg_notify":
		return EffectNotify | EffectWrites
	case "txid_current", "pg_current_xact_id", "pg_logical_emit_message", "pg_export_snapshot", "pg_switch_wal",
		"pg_create_restore_point", "pg_backup_start", "pg_start_backup", "pg_promote",
		"pg_replication_slot_advance", "pg_create_logical_replication_slot", "pg_logical_slot_get_changes",
		"pg_logical_slot_get_binary_changes", "pg_extension_config_dump", "pg_stat_statements_reset",
		"dblink", "dblink_exec", "dblink_connect", "dblink_open", "dblink_send_query":
		return EffectWrites
	case "lo_open":
		return EffectLargeObject | EffectWrites
	case "lo_creat", "lo_create", "lo_import", "lo_unlink", "lo_put", "lo_from_bytea", "lo_truncate",
		"lo_truncate64", "lowrite":
		return EffectWrites
	}
	if lock, ok := strings.CutPrefix(name, "pg_advisory_"); ok {
		return EffectWrites | advisoryEffects(lock)
	}
	if lock, ok := strings.CutPrefix(name, "pg_try_advisory_"); ok {
		return EffectWrites | advisoryEffects(lock)
	}
	return 0
}

func advisoryEffects(rest string) Effects {
	switch {
	case strings.HasPrefix(rest, "xact_"):
		return 0 // ends with its transaction
	case strings.HasPrefix(rest, "unlock"):
		return EffectAdvisoryUnlock
	}
	return EffectAdvisoryLock
}

// Harmless reports whether a function of Postgres's own is marked VOLATILE and yet neither writes nor leaves anything
// behind: its answer differs from call to call, no more. Such a call may run on a standby. The caller must know that
// the call means pg_catalog's function and not a user's of the same name.
func Harmless(f FuncRef) bool {
	if f.Schema != "" && f.Schema != "pg_catalog" {
		return false
	}
	switch f.Name {
	case "random", "random_normal", "clock_timestamp", "timeofday", "statement_timestamp", "gen_random_uuid", "uuidv4",
		"uuidv7", "pg_sleep", "pg_sleep_for", "pg_sleep_until", "pg_is_in_recovery", "pg_is_wal_replay_paused",
		"pg_get_wal_replay_pause_state", "pg_last_wal_receive_lsn", "pg_last_wal_replay_lsn",
		"pg_last_xact_replay_timestamp", "pg_current_wal_lsn", "pg_current_wal_insert_lsn", "pg_current_wal_flush_lsn",
		"pg_backend_pid", "pg_lock_status", "pg_blocking_pids", "pg_safe_snapshot_blocking_pids",
		"pg_isolation_test_session_is_blocked", "pg_listening_channels", "pg_notification_queue_usage",
		"pg_database_size", "pg_tablespace_size", "pg_relation_size", "pg_table_size", "pg_indexes_size",
		"pg_total_relation_size", "pg_relation_filenode", "pg_stat_file", "pg_ls_dir", "pg_ls_logdir", "pg_ls_waldir",
		"pg_ls_tmpdir", "pg_ls_archive_statusdir", "pg_read_file", "pg_read_binary_file", "pg_current_logfile",
		"pg_prepared_xact", "pg_prepared_statement", "pg_cursor", "pg_show_all_file_settings", "pg_hba_file_rules",
		"pg_ident_file_mappings", "pg_get_shmem_allocations", "pg_get_backend_memory_contexts", "pg_config",
		"pg_control_checkpoint", "pg_control_system", "pg_control_init", "pg_control_recovery",
		"pg_get_replication_slots", "pg_xact_status", "txid_status", "pg_xact_commit_timestamp",
		"pg_last_committed_xact", "pg_collation_actual_version", "pg_tablespace_databases", "pg_timezone_names",
		"inet_client_addr", "row_security_active", "pg_event_trigger_ddl_commands", "pg_partition_tree",
		"currtid2", "icu_unicode_version", "unicode_version", "pg_available_extension_versions",
		"pg_available_extensions":
		return true
	}
	return false
}
