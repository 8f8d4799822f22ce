package backup

import (
	"context"
	"io"
)

// Engine keeps the backups and the WAL of one shard's database system. Repository is the one that is built in, PgBackRest another.
// It is safe for concurrent use.
type Engine interface {
	// Take takes a backup of a running primary and returns when all WAL that it needs is archived.
	Take(ctx context.Context, conninfo string, o Options) (Backup, error)
	// NextBase gives the backup that the next one may build on, of which at most that many follow a full one; "" = a full one.
	NextBase(ctx context.Context, most int) (string, error)
	// Backups lists the whole ones, the oldest first.
	Backups(ctx context.Context) ([]Backup, error)
	// Restore fills an empty directory with a backup.
	Restore(ctx context.Context, id, dataDir string, o RestoreOptions) (Backup, error)
	// Expire removes the backups that keep refuses and no other builds on, and the WAL that none of the others needs.
	Expire(ctx context.Context, keep func(Backup) bool) (removed []string, segments int, err error)

	// PushWAL and PushContent archive a file of WAL; ErrDifferent when the archive holds another of that name.
	PushWAL(ctx context.Context, file string) error
	PushContent(ctx context.Context, name string, content []byte) error
	// OpenWAL reads one; ErrNotExist when there is none that the limit allows.
	OpenWAL(ctx context.Context, name string, limit Limit) (io.ReadCloser, error)
	LimitOf(ctx context.Context, timeline int32) (Limit, error)
	// Contiguous gives how far the archive reaches without a gap from a backup's start.
	Contiguous(ctx context.Context, b Backup, timeline int32) (Reach, error)
	// Missing lists a server's segments that the archive lacks, of those after the first one that it has.
	Missing(ctx context.Context, local []Segment, size int64) ([]Segment, error)
}

var (
	_ Engine = (*Repository)(nil)
	_ Engine = (*PgBackRest)(nil)
)
