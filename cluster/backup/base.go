package backup

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"neki/catalog"
)

// Options of one base backup.
type Options struct {
	ID   string // sorts by time; see NewID
	Node string // that it is taken from
	// MaxRate bounds the bytes per second that are read from the server; 0 = no bound.
	MaxRate int64
	// Base asks for what changed since another backup only, which a restore needs, too; "" = all. It takes PostgreSQL 17 with
	// summarize_wal.
	Base     string
	Topology json.RawMessage
	// Progress is told of the bytes of data that are stored, of all (an estimate).
	Progress func(done, total int64)
}

// NewID makes the id of a backup that begins now.
func NewID(at time.Time) string { return at.UTC().Format("20060102-150405.000") }

// Bounds of Postgres's MAX_RATE, which counts kilobytes.
const (
	leastRate = 32 << 10
	mostRate  = 1 << 30
)

// Take takes a base backup through a replication connection to a running primary, into the repository. It returns when
// all WAL that the backup needs is archived, which the server's archive_command sees to meanwhile; what an error leaves
// behind is no backup, and Expire or a later Remove of the id takes it away.
func (r *Repository) Take(ctx context.Context, conninfo string, o Options) (Backup, error) {
	var b Backup
	conn, err := connectReplication(ctx, conninfo)
	if err != nil {
		return b, err
	}
	defer closeConn(conn)
	b = Backup{ID: o.ID, Cluster: r.cluster, Shard: r.shard, Node: o.Node, Base: o.Base, StartedAt: time.Now().UTC(), Topology: o.Topology}
	if err := identify(ctx, conn, &b); err != nil {
		return b, err
	}
	if b.SystemID != r.systemID {
		return b, fmt.Errorf("base backup: the server is database system %s, not %s", b.SystemID, r.systemID)
	}
	if o.Base != "" {
		if err := r.uploadManifest(ctx, conn, o.Base); err != nil {
			return b, fmt.Errorf("incremental backup of %s: %w", o.Node, err)
		}
	}
	s := &sink{ctx: ctx, r: r, b: &b, o: o}
	if err := s.finish(s.receive(conn, baseBackupCommand(o))); err != nil {
		return b, fmt.Errorf("base backup of %s: %w", o.Node, errors.Join(err, r.discard(ctx, o.ID)))
	}
	b.FinishedAt = time.Now().UTC()
	if err := r.checkWAL(ctx, b); err != nil {
		return b, errors.Join(err, r.discard(ctx, o.ID))
	}
	if b.Base != "" {
		if _, err := r.Get(ctx, b.Base); err != nil { // it was removed meanwhile
			return b, errors.Join(fmt.Errorf("backup %s, to build on: %w", b.Base, err), r.discard(ctx, o.ID))
		}
	}
	return b, r.putMeta(ctx, b)
}

// discardLimit bounds the removal of a failed backup's parts, which the end of the caller's context must not stop.
const discardLimit = 30 * time.Second

func (r *Repository) discard(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), discardLimit)
	defer cancel()
	return r.Remove(ctx, id)
}

// checkWAL makes sure that recovery from the backup reaches a consistent state.
func (r *Repository) checkWAL(ctx context.Context, b Backup) error {
	reach, err := r.Contiguous(ctx, b, b.StopTimeline)
	if err != nil {
		return err
	}
	if reach.End < b.StopLSN {
		return fmt.Errorf("backup %s: the archive lacks WAL from %s on; the backup ends at %s", b.ID, reach.End, b.StopLSN)
	}
	return nil
}

func connectReplication(ctx context.Context, conninfo string) (*pgconn.PgConn, error) {
	cfg, err := pgconn.ParseConfig(conninfo)
	if err != nil {
		return nil, err
	}
	cfg.RuntimeParams["replication"] = "true"
	cfg.RuntimeParams["application_name"] = "neki_backup"
	conn, err := pgconn.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("base backup: %w", err)
	}
	return conn, nil
}

func closeConn(conn *pgconn.PgConn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx) // a stream cut in the middle is closed without a farewell
}

// identify asks the server what it is.
func identify(ctx context.Context, conn *pgconn.PgConn, b *Backup) error {
	for _, q := range []struct {
		command string
		take    func(row [][]byte) error
	}{
		{"IDENTIFY_SYSTEM", func(row [][]byte) error { b.SystemID = string(row[0]); return nil }},
		{"SHOW server_version", func(row [][]byte) error { b.PostgresVersion = string(row[0]); return nil }},
		{"SHOW wal_segment_size", func(row [][]byte) (err error) { b.SegmentSize, err = parseSize(string(row[0])); return err }},
	} {
		results, err := conn.Exec(ctx, q.command).ReadAll()
		if err != nil {
			return fmt.Errorf("base backup: %s: %w", q.command, err)
		}
		if len(results) != 1 || len(results[0].Rows) != 1 {
			return fmt.Errorf("base backup: %s gave no row", q.command)
		}
		if err := q.take(results[0].Rows[0]); err != nil {
			return fmt.Errorf("base backup: %s: %w", q.command, err)
		}
	}
	return nil
}

// parseSize reads a size as SHOW writes it, 16MB.
func parseSize(text string) (int64, error) {
	for unit, factor := range map[string]int64{"kB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30} {
		if digits, ok := strings.CutSuffix(text, unit); ok {
			n, err := strconv.ParseInt(digits, 10, 64)
			return n * factor, err
		}
	}
	return 0, fmt.Errorf("unknown size %q", text)
}

func baseBackupCommand(o Options) string {
	options := []string{
		"LABEL '" + strings.ReplaceAll("neki "+o.ID, "'", "''") + "'", "PROGRESS true", "CHECKPOINT 'fast'", "WAL false", "WAIT true",
		"MANIFEST 'yes'", "MANIFEST_CHECKSUMS 'CRC32C'", "TABLESPACE_MAP false",
	}
	if o.Base != "" {
		options = append(options, "INCREMENTAL")
	}
	if o.MaxRate > 0 {
		options = append(options, fmt.Sprintf("MAX_RATE %d", min(max(o.MaxRate, leastRate), mostRate)>>10))
	}
	return "BASE_BACKUP (" + strings.Join(options, ", ") + ")"
}

// sink takes the messages of one BASE_BACKUP: a result with the start, one with the tablespaces, a COPY with all
// archives, and a result with the end.
type sink struct {
	ctx  context.Context
	r    *Repository
	b    *Backup
	o    Options
	into *upload // the archive or manifest that is coming
	kind byte    // its

	locations map[string]uint32 // tablespaces by location
	total     int64
}

func (s *sink) receive(conn *pgconn.PgConn, command string) error {
	conn.Frontend().SendQuery(&pgproto3.Query{String: command})
	if err := conn.Frontend().Flush(); err != nil {
		return err
	}
	var failure error
	for {
		msg, err := conn.ReceiveMessage(s.ctx)
		if err != nil {
			return errors.Join(failure, err)
		}
		switch m := msg.(type) {
		case *pgproto3.DataRow:
			err = s.row(m.Values)
		case *pgproto3.CopyData:
			err = s.data(m.Data)
		case *pgproto3.ErrorResponse:
			failure = pgconn.ErrorResponseToPgError(m)
		case *pgproto3.ReadyForQuery:
			return failure
		}
		if err != nil {
			return err
		}
	}
}

// row takes a row of one of the results: they have no names of their own, only their order.
func (s *sink) row(v [][]byte) error {
	if len(v) == 2 { // start, and after the archives the end
		at, err := catalog.ParseLSN(string(v[0]))
		if err != nil {
			return err
		}
		timeline, err := strconv.ParseInt(string(v[1]), 10, 32)
		if s.b.StartLSN == 0 {
			s.b.StartLSN, s.b.Timeline = at, int32(timeline)
		} else {
			s.b.StopLSN, s.b.StopTimeline = at, int32(timeline)
		}
		return err
	}
	if len(v) != 3 {
		return fmt.Errorf("unexpected row of %d columns", len(v))
	}
	kilobytes, err := strconv.ParseInt(string(v[2]), 10, 64)
	if err != nil {
		return err
	}
	s.total += kilobytes << 10
	if v[0] == nil {
		return nil
	}
	oid, err := strconv.ParseUint(string(v[0]), 10, 32)
	if s.locations == nil {
		s.locations = map[string]uint32{}
	}
	s.locations[string(v[1])] = uint32(oid)
	return err
}

// data takes one message of the COPY; its first byte says what it is.
func (s *sink) data(d []byte) error {
	if len(d) == 0 {
		return fmt.Errorf("empty message")
	}
	switch rest := d[1:]; d[0] {
	case 'n': // a new archive: its name, and the tablespace's location
		name, location, ok := bytes.Cut(rest, []byte{0})
		if !ok {
			return fmt.Errorf("malformed message")
		}
		return s.begin('n', string(name), string(bytes.TrimRight(location, "\x00")))
	case 'm':
		return s.begin('m', manifestName, "")
	case 'd':
		if s.into == nil {
			return fmt.Errorf("data before any archive")
		}
		return s.into.write(rest)
	case 'p':
		if len(rest) == 8 && s.o.Progress != nil {
			done := int64(binary.BigEndian.Uint64(rest))
			s.o.Progress(done, max(done, s.total))
		}
		return nil
	default:
		return fmt.Errorf("unexpected message %q", d[0])
	}
}

func (s *sink) begin(kind byte, name, location string) error {
	if err := s.finish(nil); err != nil {
		return err
	}
	s.kind = kind
	f := ArchiveFile{Name: name, Location: location}
	if kind == 'n' {
		f.Name = strings.TrimSuffix(name, ".gz") + ".gz"
		if f.OID = s.locations[location]; location != "" && f.OID == 0 {
			return fmt.Errorf("archive %s of an unknown tablespace", name)
		}
		if !validArchiveName(f.Name) {
			return fmt.Errorf("unexpected archive %q", name)
		}
	}
	s.into = s.r.upload(s.ctx, s.r.key("base", s.b.ID, f.Name), f, kind == 'n')
	return nil
}

// validArchiveName: base.tar.gz, or the tablespace's number.
func validArchiveName(name string) bool {
	stem, ok := strings.CutSuffix(name, ".tar.gz")
	if _, err := strconv.ParseUint(stem, 10, 32); err != nil && name != baseName {
		return false
	}
	return ok
}

// finish ends the archive that is coming, and waits until it is stored; after a failure, which it returns, it drops it.
func (s *sink) finish(failed error) error {
	if s.into == nil {
		return failed
	}
	f, stored, err := s.into.close(failed)
	if s.kind == 'n' && err == nil {
		s.b.Files = append(s.b.Files, f)
		s.b.Bytes += f.Bytes
	}
	s.b.StoredBytes += stored
	s.into = nil
	return err
}
