package pgproc

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// ControlData is what pg_controldata says of a data directory, running or not.
type ControlData struct {
	SystemID        string
	State           string // "in production", "shut down", "in archive recovery", ...
	Timeline        int32  // of the latest checkpoint
	Checkpoint      string // LSN of the latest checkpoint record
	Redo            string // where recovery would begin
	MinRecovery     string // what a standby must reach to be consistent; "0/0" on a primary
	MinRecoveryTLI  int32
	DataChecksums   bool
	Fields          map[string]string // every line, by its English name
	InBackupHistory bool              // a backup label start is recorded: a restore that has not finished
}

// ControlData runs pg_controldata.
func (p *Instance) ControlData(ctx context.Context) (ControlData, error) {
	out, err := p.run(ctx, "pg_controldata", "-D", p.DataDir())
	if err != nil {
		return ControlData{}, err
	}
	return parseControlData(out)
}

func parseControlData(out string) (ControlData, error) {
	fields := make(map[string]string)
	for line := range strings.Lines(out) {
		if name, value, ok := strings.Cut(line, ":"); ok {
			fields[name] = strings.TrimSpace(value)
		}
	}
	c := ControlData{
		SystemID: fields["Database system identifier"], State: fields["Database cluster state"],
		Checkpoint: fields["Latest checkpoint location"], Redo: fields["Latest checkpoint's REDO location"],
		MinRecovery:     fields["Minimum recovery ending location"],
		DataChecksums:   fields["Data page checksum version"] != "0",
		InBackupHistory: fields["Backup start location"] != "0/0", Fields: fields,
	}
	if c.SystemID == "" || c.Redo == "" {
		return c, fmt.Errorf("pg_controldata: unexpected output %q", tail(out, 200))
	}
	for name, to := range map[string]*int32{
		"Latest checkpoint's TimeLineID": &c.Timeline, "Min recovery ending loc's timeline": &c.MinRecoveryTLI,
	} {
		n, err := strconv.ParseInt(fields[name], 10, 32)
		if err != nil {
			return c, fmt.Errorf("pg_controldata: %s: %w", name, err)
		}
		*to = int32(n)
	}
	return c, nil
}

// stateInProduction is DB_IN_PRODUCTION of pg_control.h.
const stateInProduction = 6

// readControl reads the head of pg_control, whose first fields have stood in this order since Postgres 8.
func (p *Instance) readControl() (systemID uint64, state uint32, err error) {
	b, err := os.ReadFile(filepath.Join(p.DataDir(), "global", "pg_control"))
	if err != nil {
		return 0, 0, err
	}
	if len(b) < 20 {
		return 0, 0, fmt.Errorf("pg_control has only %d bytes", len(b))
	}
	return binary.NativeEndian.Uint64(b), binary.NativeEndian.Uint32(b[16:]), nil
}

func (p *Instance) state() (uint32, error) {
	_, state, err := p.readControl()
	return state, err
}

// SystemID gives the database system identifier without starting a program; "" when there is no data.
func (p *Instance) SystemID() string {
	id, _, err := p.readControl()
	if err != nil {
		return ""
	}
	return strconv.FormatUint(id, 10)
}
