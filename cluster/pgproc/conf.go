package pgproc

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// Settings are parameters for the file that is included last.
type Settings map[string]string

// DevSettings are parameters for many small servers on one machine. They are the ones that every member needs for
// replication and takeover (timeouts far below Postgres's defaults, which are the usual hidden delays), with memory
// and WAL kept small.
//
// synchronous_standby_names is never empty on a member that may be promoted: a change from ” to a name is effective
// only when the checkpointer reads it, so commits could be acknowledged with no standby at all. FencedStandbys, a
// name that nobody has, lets none be acknowledged.
//
// An idle receiver hears from its primary only when it asks, after half of wal_receiver_timeout (measured; the status
// interval and wal_sender_timeout don't matter). Half of 4 s leaves a second until a silence of 3 s counts as a cut link.
func DevSettings() Settings {
	return Settings{
		"shared_buffers": "24MB", "huge_pages": "off", "max_connections": "100", "max_prepared_transactions": "100",
		"superuser_reserved_connections": "5",
		"wal_buffers":                    "1MB", "min_wal_size": "32MB", "max_wal_size": "256MB", "checkpoint_timeout": "5min",
		"wal_level": "logical", "hot_standby": "on", "wal_log_hints": "on", "full_page_writes": "on", "fsync": "on",
		"synchronous_commit": "on", "synchronous_standby_names": FencedStandbys,
		"restart_after_crash": "off", "recovery_target_timeline": "latest",
		"wal_receiver_status_interval": "1s", "wal_receiver_timeout": "4s", "wal_sender_timeout": "5s",
		"wal_retrieve_retry_interval": "200ms", "hot_standby_feedback": "on", "max_standby_streaming_delay": "5s",
		"max_wal_senders": "10", "max_replication_slots": "10", "wal_keep_size": "128MB", "max_slot_wal_keep_size": "4GB",
		"tcp_keepalives_idle": "2", "tcp_keepalives_interval": "1", "tcp_keepalives_count": "3",
		"logging_collector": "off", "log_destination": "stderr", "log_line_prefix": "%m [%p] %q%u@%d ",
		"log_timezone": "UTC", "timezone": "UTC", "log_checkpoints": "off", "autovacuum_max_workers": "2",
		"password_encryption": "scram-sha-256",
	}
}

// FencedStandbys names a standby that never exists: under it no commit is acknowledged.
const FencedStandbys = `ANY 1 ("__neki_fenced__")`

// With returns a copy of s in which those of more are set.
func (s Settings) With(more Settings) Settings {
	c := maps.Clone(s)
	if c == nil {
		c = Settings{}
	}
	maps.Copy(c, more)
	return c
}

// render writes the settings in name order.
func (s Settings) render() []byte {
	var b bytes.Buffer
	b.WriteString("# Written by neki; changes here are lost. Use neki.set_parameter().\n")
	for _, name := range slices.Sorted(maps.Keys(s)) {
		fmt.Fprintf(&b, "%s = '%s'\n", name, strings.ReplaceAll(s[name], "'", "''"))
	}
	return b.Bytes()
}

// WriteSettings replaces the included file and reports whether it changed. The server must be reloaded (or restarted)
// to see it.
func (p *Instance) WriteSettings(s Settings) (changed bool, err error) {
	return p.writeConf(SettingsFile, s.render())
}

// Overrides reports whether an ALTER SYSTEM has set one of the parameters, above what WriteSettings wrote; also when that
// can't be told.
func (p *Instance) Overrides(names ...string) bool {
	b, err := os.ReadFile(filepath.Join(p.DataDir(), "postgresql.auto.conf"))
	return err != nil || slices.ContainsFunc(names, func(name string) bool { return bytes.Contains(b, []byte(name)) })
}

// HBARule is one line of pg_hba.conf, in the file's own words.
type HBARule string

// DefaultHBA lets the superuser in over the Unix socket, whose directory is closed to others, and everybody else by
// SCRAM only, replication by the named role.
func DefaultHBA(replicationRole string) []HBARule {
	rules := []HBARule{
		"local all " + Superuser + " trust",
		"local replication " + Superuser + " trust",
		"local all all scram-sha-256",
	}
	for _, from := range []string{"0.0.0.0/0", "::/0"} {
		rules = append(rules,
			HBARule("host all "+Superuser+" "+from+" reject"),
			HBARule("host replication "+replicationRole+" "+from+" scram-sha-256"),
			HBARule("host all all "+from+" scram-sha-256"))
	}
	return rules
}

// ClosedHBA lets nobody in but the superuser over the Unix socket and the named role, for replication and pg_rewind.
func ClosedHBA(replicationRole string) []HBARule {
	rules := []HBARule{
		"local all " + Superuser + " trust",
		"local replication " + Superuser + " trust",
	}
	for _, from := range []string{"0.0.0.0/0", "::/0"} {
		rules = append(rules,
			HBARule("host replication "+replicationRole+" "+from+" scram-sha-256"),
			HBARule("host postgres "+replicationRole+" "+from+" scram-sha-256"))
	}
	return rules
}

// WriteHBA replaces pg_hba.conf and reports whether it changed.
func (p *Instance) WriteHBA(rules []HBARule) (changed bool, err error) {
	var b bytes.Buffer
	b.WriteString("# Written by neki; changes here are lost.\n")
	for _, r := range rules {
		b.WriteString(string(r))
		b.WriteByte('\n')
	}
	return p.writeConf("pg_hba.conf", b.Bytes())
}

// SetStandby makes or removes standby.signal, which decides whether the next start is a standby.
func (p *Instance) SetStandby(on bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	path := filepath.Join(p.DataDir(), "standby.signal")
	if on {
		_, err := p.replaceFile(ReplaceFile, path, nil)
		return err
	}
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return err
	}
	return syncDir(p.DataDir())
}

// IsStandby reports whether standby.signal is there.
func (p *Instance) IsStandby() bool {
	_, err := os.Stat(filepath.Join(p.DataDir(), "standby.signal"))
	return err == nil
}

// WritePassfile writes a libpq password file for the replication role, outside the data directory so that no base
// backup carries it, and returns its path.
func (p *Instance) WritePassfile(user, password string) (string, error) {
	escape := strings.NewReplacer(`\`, `\\`, `:`, `\:`)
	path := filepath.Join(p.socketDir, "pgpass")
	_, err := p.replaceFile(ReplaceFile, path, fmt.Appendf(nil, "*:*:*:%s:%s\n", escape.Replace(user), escape.Replace(password)))
	return path, err
}

// writeConf replaces a file of the configuration. It is not flushed: each start writes it anew.
func (p *Instance) writeConf(name string, content []byte) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.HasData() {
		return false, fmt.Errorf("%s: the data directory is empty", name)
	}
	changed, err := p.replaceFile(swapFile, filepath.Join(p.DataDir(), name), content)
	if errors.Is(err, syscall.ENOSPC) { // orders must be obeyed on a full disk, too; the old file's blocks are there
		return true, overwrite(filepath.Join(p.DataDir(), name), content)
	}
	return changed, err
}

// replaceFile gives path the content; equal content is left alone.
func (p *Instance) replaceFile(replace func(string, []byte, os.FileMode, Account) error, path string, content []byte) (bool, error) {
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, content) {
		return false, nil
	}
	return true, replace(path, content, 0o600, p.cfg.Account)
}

// overwrite writes over a file in place.
func overwrite(path string, content []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	if _, err = f.WriteAt(content, 0); err == nil {
		err = f.Truncate(int64(len(content)))
	}
	return errors.Join(err, f.Close())
}

// ReplaceFile writes a file durably and at once: a reader, and a crash at any moment, sees the old or the new one.
func ReplaceFile(path string, content []byte, mode os.FileMode, owner Account) error {
	if err := replace(path, content, mode, owner, (*os.File).Sync); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// swapFile is ReplaceFile for what need not outlive a crash of the machine.
func swapFile(path string, content []byte, mode os.FileMode, owner Account) error {
	return replace(path, content, mode, owner, func(*os.File) error { return nil })
}

func replace(path string, content []byte, mode os.FileMode, owner Account, sync func(*os.File) error) (err error) {
	tmp := path + ".new"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			_ = os.Remove(tmp)
		}
	}()
	if _, err = f.Write(content); err != nil {
		return err
	}
	if err = owner.Own(tmp); err != nil {
		return err
	}
	if err = sync(f); err != nil {
		return err
	}
	if err = f.Close(); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close() //nolint:errcheck // opened for reading
	return d.Sync()
}

// ReadSettings reads the included file as WriteSettings writes it; what a copied data directory brought along.
func (p *Instance) ReadSettings() (Settings, error) {
	text, err := os.ReadFile(filepath.Join(p.DataDir(), SettingsFile))
	if os.IsNotExist(err) {
		return Settings{}, nil
	}
	if err != nil {
		return nil, err
	}
	s := Settings{}
	for line := range strings.Lines(string(text)) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), " = '")
		if !ok || strings.HasPrefix(name, "#") {
			continue
		}
		s[name] = strings.ReplaceAll(strings.TrimSuffix(value, "'"), "''", "'")
	}
	return s, nil
}
