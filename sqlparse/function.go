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
	case "pg_listening_channels":
		return EffectChannels
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
