package backup

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path"
	"slices"
	"strings"
	"time"

	"neki/catalog"
)

// Backup is one base backup, as its backup.json says. Only whole backups have one.
type Backup struct {
	ID              string        `json:"id"`
	Cluster         string        `json:"cluster"`
	Shard           string        `json:"shard"`
	SystemID        string        `json:"system_id"`
	Node            string        `json:"node"`           // that it was taken from
	Base            string        `json:"base,omitempty"` // of an incremental one: the backup that it builds on
	PostgresVersion string        `json:"postgres_version"`
	Timeline        int32         `json:"timeline"`
	StartLSN        catalog.LSN   `json:"start_lsn"` // recovery begins here
	StopLSN         catalog.LSN   `json:"stop_lsn"`  // the data is consistent from here on
	StopTimeline    int32         `json:"stop_timeline"`
	SegmentSize     int64         `json:"segment_size"`
	StartedAt       time.Time     `json:"started_at"`
	FinishedAt      time.Time     `json:"finished_at"` // by the server's clock, after StopLSN: the earliest point in time to restore
	Files           []ArchiveFile `json:"files"`
	Bytes           int64         `json:"bytes"`        // of the data
	StoredBytes     int64         `json:"stored_bytes"` // as it is kept
	// Topology is the cluster's data topology at the time, if it has one.
	Topology json.RawMessage `json:"topology,omitempty"`
}

// ArchiveFile is one tar archive of a backup.
type ArchiveFile struct {
	Name     string `json:"name"`               // of the object
	OID      uint32 `json:"oid,omitempty"`      // of the tablespace; 0 = the data directory
	Location string `json:"location,omitempty"` // of the tablespace
	Bytes    int64  `json:"bytes"`              // of the tar archive
	SHA256   string `json:"sha256"`             // of the object
}

// Repository is what is kept of one shard's database system.
type Repository struct {
	store    Store
	cluster  string
	shard    string
	systemID string
	log      *slog.Logger
}

// ErrDifferent says that the archive holds other content under the name of a WAL file: another server has written the
// same timeline.
var ErrDifferent = errors.New("backup: the archive holds another file of that name")

// NewRepository gives a shard's part of a store; nothing is touched yet.
func NewRepository(store Store, cluster, shard, systemID string, log *slog.Logger) *Repository {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Repository{store: store, cluster: cluster, shard: shard, systemID: systemID, log: log}
}

// Store gives the store.
func (r *Repository) Store() Store { return r.store }

func (r *Repository) key(parts ...string) string {
	return path.Join(append([]string{r.cluster, r.shard, r.systemID}, parts...)...)
}

// Names of a backup's parts.
const (
	metaName     = "backup.json"
	manifestName = "backup_manifest"
	baseName     = "base.tar.gz"
)

// Backups lists the whole backups, the oldest first.
func (r *Repository) Backups(ctx context.Context) ([]Backup, error) {
	objects, err := r.store.List(ctx, r.key("base")+"/")
	if err != nil {
		return nil, fmt.Errorf("list backups of shard %s: %w", r.shard, err)
	}
	var list []Backup
	for _, o := range objects {
		if path.Base(o.Key) != metaName {
			continue
		}
		b, err := r.readMeta(ctx, o.Key)
		if errors.Is(err, ErrNotExist) { // expired meanwhile
			continue
		}
		if err != nil {
			return nil, err
		}
		list = append(list, b)
	}
	slices.SortFunc(list, func(a, b Backup) int {
		return cmpOr(a.FinishedAt.Compare(b.FinishedAt), strings.Compare(a.ID, b.ID))
	})
	return list, nil
}

func cmpOr(a, b int) int {
	if a != 0 {
		return a
	}
	return b
}

// Get reads one backup's description, or gives ErrNotExist.
func (r *Repository) Get(ctx context.Context, id string) (Backup, error) {
	if !catalog.ValidName(id) {
		return Backup{}, fmt.Errorf("backup %q: %w", id, ErrNotExist)
	}
	return r.readMeta(ctx, r.key("base", id, metaName))
}

func (r *Repository) readMeta(ctx context.Context, key string) (Backup, error) {
	text, err := r.read(ctx, key)
	if err != nil {
		return Backup{}, err
	}
	var b Backup
	if err := json.Unmarshal(text, &b); err != nil {
		return b, fmt.Errorf("%s: %w", key, err)
	}
	return b, nil
}

// maxSmall bounds the objects that are read into memory: descriptions and history files.
const maxSmall = 16 << 20

func (r *Repository) read(ctx context.Context, key string) ([]byte, error) {
	in, err := r.store.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(in, maxSmall))
	if err := errors.Join(err, in.Close()); err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	return text, nil
}

func (r *Repository) putMeta(ctx context.Context, b Backup) error {
	text, err := json.MarshalIndent(b, "", "  ")
	if err != nil {
		return err
	}
	return r.store.Put(ctx, r.key("base", b.ID, metaName), bytes.NewReader(append(text, '\n')))
}

// Remove removes a backup: first its description, so that what is left of an interrupted removal is no backup.
func (r *Repository) Remove(ctx context.Context, id string) error {
	if !catalog.ValidName(id) {
		return fmt.Errorf("backup %q: %w", id, ErrNotExist)
	}
	if err := r.store.Delete(ctx, r.key("base", id, metaName)); err != nil {
		return err
	}
	objects, err := r.store.List(ctx, r.key("base", id)+"/")
	if err != nil {
		return err
	}
	for _, o := range objects {
		if err := r.store.Delete(ctx, o.Key); err != nil {
			return err
		}
	}
	return nil
}
