package agent

import (
	"context"
	"errors"
	"time"

	"neki/catalog"
	"neki/cluster/backup"
	"neki/cluster/decide"
)

// Times of asking the archive.
const (
	archiveAsk   = time.Second     // how often, while a standby has no source
	archiveReply = 5 * time.Second // for an answer
)

// archiveAnswer is what the archive said of a segment.
type archiveAnswer struct {
	segment uint64
	said    decide.Archived
}

// watchArchive asks the archive for the segment that a standby needs next, for as long as it does not stream: whether to
// go on from there, or to make the data anew, is the admin's to decide.
func (a *Agent) watchArchive(ctx context.Context) error {
	if !a.cfg.Archive.on() {
		return nil
	}
	return every(ctx, archiveAsk, func(time.Time) {
		h, _ := a.health.latest(time.Second)
		if at := max(h.ReceiveLSN, h.ReplayLSN); h.Role == catalog.RoleReplica && !h.Streaming && at != 0 {
			segment := uint64(at) / segmentBytes
			a.archived.Store(&archiveAnswer{segment: segment, said: a.askArchive(ctx, segment)})
		}
	})
}

// askArchive looks for a segment under the names that it may have in the history that the shard's rule is of.
func (a *Agent) askArchive(ctx context.Context, segment uint64) decide.Archived {
	ctx, cancel := context.WithTimeout(ctx, archiveReply)
	defer cancel()
	r, err := a.repository()
	if err != nil {
		return decide.ArchiveSilent
	}
	limit, err := a.walLimit(ctx, r)
	if err != nil {
		return decide.ArchiveSilent
	}
	lines := []int32{limit.Timeline}
	for _, old := range limit.Ancestors {
		lines = append(lines, old.Timeline)
	}
	for _, line := range lines {
		name := backup.Segment{Timeline: line, Number: segment}.Name(segmentBytes)
		in, err := r.OpenWAL(ctx, name, limit)
		switch {
		case err == nil:
			_ = in.Close() // nothing was read
			return decide.ArchiveHas
		case !errors.Is(err, backup.ErrNotExist):
			a.log.Warn("the archive does not answer", "file", name, "error", err)
			return decide.ArchiveSilent
		}
	}
	return decide.ArchiveLacks
}

// archivedNow is the archive's answer about what a standby needs after a position.
func (a *Agent) archivedNow(ob *Observation) decide.Archived {
	at := max(ob.ReceiveLSN, ob.ReplayLSN)
	if !a.cfg.Archive.on() || ob.Primary || at == 0 {
		return decide.ArchiveNone
	}
	if answer := a.archived.Load(); answer != nil && answer.segment == uint64(at)/segmentBytes {
		return answer.said
	}
	return decide.ArchiveSilent
}
