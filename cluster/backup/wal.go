package backup

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"neki/catalog"
)

// walKey gives the key of a file of pg_wal and whether it is kept compressed; ok is false for what is no WAL file.
func (r *Repository) walKey(name string) (key string, zipped, ok bool) {
	if _, isHistory := parseHistoryName(name); isHistory {
		return r.key("wal", name), false, true
	}
	segment := name
	for _, suffix := range []string{".partial", ".backup"} {
		segment = strings.TrimSuffix(segment, suffix)
	}
	if strings.HasSuffix(name, ".backup") { // 000000010000000000000002.00000028.backup
		segment, _, _ = strings.Cut(segment, ".")
	}
	if len(segment) != segmentDigits || strings.IndexFunc(segment, notHex) >= 0 {
		return "", false, false
	}
	return r.key("wal", segment[:8], name+".gz"), true, true
}

// PushWAL archives a file of pg_wal and returns once it is durable. It is archive_command's work: the same file may come
// again, also from another server; other content under the name is ErrDifferent and changes nothing.
func (r *Repository) PushWAL(ctx context.Context, file string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("archive: %w", err)
	}
	return r.PushContent(ctx, filepath.Base(file), content)
}

// PushContent is PushWAL for a file that has been read.
func (r *Repository) PushContent(ctx context.Context, name string, content []byte) error {
	key, zipped, ok := r.walKey(name)
	if !ok {
		return fmt.Errorf("archive: %s is no WAL file", name)
	}
	body := content
	if zipped {
		var err error
		if body, err = compress(content); err != nil {
			return err
		}
	}
	err := r.store.Put(ctx, key, bytes.NewReader(body))
	if !errors.Is(err, ErrExists) {
		return err
	}
	same, err := r.holds(ctx, key, zipped, content)
	if err != nil {
		return fmt.Errorf("archive: compare %s: %w", key, err)
	}
	if !same {
		return fmt.Errorf("%s: %w", key, ErrDifferent)
	}
	return nil
}

func compress(content []byte) ([]byte, error) {
	var out bytes.Buffer
	zip, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	_, err = zip.Write(content)
	if err := errors.Join(err, zip.Close()); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// holds reports whether the object has just that content.
func (r *Repository) holds(ctx context.Context, key string, zipped bool, content []byte) (bool, error) {
	in, err := r.open(ctx, key, zipped)
	if err != nil {
		return false, err
	}
	buf := make([]byte, 64<<10)
	rest := content
	for {
		n, err := in.Read(buf)
		if n > len(rest) || !bytes.Equal(buf[:n], rest[:n]) {
			return false, in.Close()
		}
		rest = rest[n:]
		if errors.Is(err, io.EOF) {
			return len(rest) == 0, in.Close()
		}
		if err != nil {
			return false, errors.Join(err, in.Close())
		}
	}
}

// open reads an object's content; a compressed one is checked by gzip's sum when it is read to its end.
func (r *Repository) open(ctx context.Context, key string, zipped bool) (io.ReadCloser, error) {
	in, err := r.store.Get(ctx, key)
	if err != nil || !zipped {
		return in, err
	}
	zip, err := gzip.NewReader(in)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", key, err), in.Close())
	}
	return unzipper{zip, in}, nil
}

type unzipper struct {
	*gzip.Reader
	under io.Closer
}

func (u unzipper) Close() error { return errors.Join(u.Reader.Close(), u.under.Close()) }

// Limit says which WAL belongs to the history that a server is to follow. The zero value allows all.
//
// Without it a standby could follow what an old primary archived after it had been deposed, or a timeline that a
// promotion which came to nothing has begun.
type Limit struct {
	Timeline  int32      // of the present term; a later one doesn't exist for the server
	Ancestors []Ancestor // of Timeline, with where each was left
	// SegmentSize of the system; 0 = DefaultSegmentSize.
	SegmentSize int64
}

// Allows reports whether a file of pg_wal belongs to the history.
func (l Limit) Allows(name string) bool {
	if l.Timeline == 0 {
		return true
	}
	if t, ok := parseHistoryName(name); ok {
		return t == l.Timeline || slices.ContainsFunc(l.Ancestors, func(a Ancestor) bool { return a.Timeline == t })
	}
	size := l.SegmentSize
	if size == 0 {
		size = DefaultSegmentSize
	}
	s, ok := ParseSegment(name, size)
	if !ok || s.Timeline == l.Timeline {
		return ok
	}
	for _, a := range l.Ancestors {
		if a.Timeline == s.Timeline {
			return s.Start(size) < a.Switch
		}
	}
	return false
}

// OpenWAL reads a file of the archive; ErrNotExist when there is none that the limit allows. One that is damaged gives
// an error at its end.
func (r *Repository) OpenWAL(ctx context.Context, name string, limit Limit) (io.ReadCloser, error) {
	key, zipped, ok := r.walKey(name)
	if !ok || !limit.Allows(name) {
		return nil, fmt.Errorf("WAL file %s: %w", name, ErrNotExist)
	}
	return r.open(ctx, key, zipped)
}

// FetchWAL puts a file of the archive at dst, whole or not at all; ErrNotExist when there is none that the limit allows.
func (r *Repository) FetchWAL(ctx context.Context, name, dst string, limit Limit) error {
	in, err := r.OpenWAL(ctx, name, limit)
	if err != nil {
		return err
	}
	if err := errors.Join(place(ctx, in, dst), in.Close()); err != nil {
		return fmt.Errorf("WAL file %s: %w", name, err)
	}
	return nil
}

// place writes a file by way of a flushed neighbour.
func place(ctx context.Context, in io.Reader, dst string) error {
	f, err := os.CreateTemp(filepath.Dir(dst), partial+"*")
	if err != nil {
		return err
	}
	err = fillAndSync(ctx, f, in)
	if err == nil {
		err = os.Rename(f.Name(), dst)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return err
	}
	return syncDir(filepath.Dir(dst))
}

// archived is what the archive holds: the segments, sorted, and the histories of timelines.
type archived struct {
	segments  []Segment
	histories map[int32][]Ancestor
	size      int64
}

func (r *Repository) archived(ctx context.Context, size int64) (archived, error) {
	a := archived{histories: map[int32][]Ancestor{}, size: size}
	objects, err := r.store.List(ctx, r.key("wal")+"/")
	if err != nil {
		return a, fmt.Errorf("list the WAL archive of shard %s: %w", r.shard, err)
	}
	for _, o := range objects {
		name := strings.TrimSuffix(path.Base(o.Key), ".gz")
		if s, ok := ParseSegment(name, size); ok {
			a.segments = append(a.segments, s)
		}
		timeline, ok := parseHistoryName(name)
		if !ok {
			continue
		}
		text, err := r.read(ctx, o.Key)
		if err != nil {
			return a, err
		}
		if a.histories[timeline], err = parseHistory(string(text)); err != nil {
			return a, fmt.Errorf("%s: %w", o.Key, err)
		}
	}
	slices.SortFunc(a.segments, compareSegments)
	return a, nil
}

func compareSegments(a, b Segment) int {
	return cmpOr(int(a.Timeline)-int(b.Timeline), compareUint(a.Number, b.Number))
}

func compareUint(a, b uint64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func (a archived) has(s Segment) bool {
	_, found := slices.BinarySearchFunc(a.segments, s, compareSegments)
	return found
}

// Reach tells how far recovery from the backup gets along the history of the timeline with the archive alone: to End,
// on Timeline. Whether WAL after it is lost or not written yet, the archive can't know.
type Reach struct {
	Timeline int32
	End      catalog.LSN // the first position that is not in the archive
}

// Contiguous gives how far the archive reaches without a gap from the backup's start, towards the timeline (0: the newest
// one that descends from the backup's).
func (r *Repository) Contiguous(ctx context.Context, b Backup, timeline int32) (Reach, error) {
	a, err := r.archived(ctx, b.SegmentSize)
	if err != nil {
		return Reach{}, err
	}
	if timeline == 0 {
		timeline = a.newest(b)
	}
	return a.reach(b, timeline), nil
}

// newest is the latest timeline that descends from the backup's beyond its end.
func (a archived) newest(b Backup) int32 {
	newest := b.Timeline
	for t, ancestors := range a.histories {
		for _, old := range ancestors {
			if old.Timeline == b.StopTimeline && old.Switch >= b.StopLSN && t > newest {
				newest = t
			}
		}
	}
	return newest
}

// reach follows the history segment by segment. The segment in which a timeline was left is looked for under the new
// timeline first, as recovery does.
func (a archived) reach(b Backup, timeline int32) Reach {
	ancestors := a.histories[timeline]
	number := uint64(b.StartLSN) / uint64(a.size)
	for ; ; number++ {
		found := a.has(Segment{timeline, number})
		for i := len(ancestors) - 1; i >= 0 && !found; i-- {
			old := ancestors[i]
			found = old.Timeline >= b.Timeline && Segment{Number: number}.Start(a.size) < old.Switch && a.has(Segment{old.Timeline, number})
		}
		if !found {
			return Reach{Timeline: timeline, End: Segment{Number: number}.Start(a.size)}
		}
	}
}

// LimitOf is the limit of a server that is to follow the timeline, by the archive's own history file of it. Until that
// is archived there is an error.
func (r *Repository) LimitOf(ctx context.Context, timeline int32) (Limit, error) {
	l := Limit{Timeline: timeline}
	if timeline <= 1 {
		return l, nil
	}
	text, err := r.read(ctx, r.key("wal", historyName(timeline)))
	if err != nil {
		return l, err
	}
	l.Ancestors, err = parseHistory(string(text))
	return l, err
}

// Missing lists those of a server's complete segments that the archive lacks, of those that come after the first one that
// it has: what an old primary completed and could not archive before it was lost, its successor has, too.
func (r *Repository) Missing(ctx context.Context, local []Segment, size int64) ([]Segment, error) {
	a, err := r.archived(ctx, size)
	if err != nil {
		return nil, err
	}
	return a.missing(local), nil
}

func (a archived) missing(local []Segment) (missing []Segment) {
	if len(a.segments) == 0 {
		return nil
	}
	first := a.segments[0].Number
	for _, s := range a.segments {
		first = min(first, s.Number)
	}
	for _, s := range local {
		if s.Number > first && !a.has(s) {
			missing = append(missing, s)
		}
	}
	return missing
}
