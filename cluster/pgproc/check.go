package pgproc

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"neki/internal/pgerr"
)

// CheckSettings has the server's own program check settings: names, types and bounds. Whether the machine has room for
// them only a start shows. It is no matter whether the server runs.
func (p *Instance) CheckSettings(ctx context.Context, s Settings) error {
	if len(s) == 0 {
		return nil
	}
	args := []string{"-D", p.DataDir(), "-C", "server_version"}
	for _, name := range slices.Sorted(maps.Keys(s)) {
		args = append(args, "-c", name+"="+s[name])
	}
	out, err := p.run(ctx, "postgres", args...)
	if err == nil {
		return nil
	}
	for line := range strings.Lines(out + err.Error()) {
		if _, text, found := strings.Cut(line, "FATAL:"); found {
			return pgerr.New(pgerr.InvalidParameterValue, "%s", strings.TrimSpace(text))
		}
	}
	return fmt.Errorf("check settings: %w", err)
}

// Managed tells whether the agent, or what keeps a shard alive, depends on a parameter: it is nobody else's to set.
func Managed(name string) bool {
	switch name {
	case "cluster_name", "port", "listen_addresses", "unix_socket_directories", "unix_socket_permissions", "data_directory", "hba_file",
		"ident_file", "config_file", "external_pid_file", "primary_conninfo", "primary_slot_name", "synchronous_standby_names",
		"synchronous_commit", "wal_level", "hot_standby", "wal_log_hints", "full_page_writes", "fsync", "restart_after_crash",
		"archive_mode", "archive_command", "archive_library", "archive_cleanup_command", "restore_command",
		"wal_receiver_status_interval", "wal_receiver_timeout", "wal_sender_timeout", "wal_retrieve_retry_interval",
		"superuser_reserved_connections", "logging_collector", "log_destination", "log_line_prefix", "password_encryption",
		"event_source", "promote_trigger_file", "default_transaction_read_only", "allow_system_table_mods":
		return true
	}
	return strings.HasPrefix(name, "recovery_target")
}
