package backup

import (
	"fmt"
	"strconv"
	"strings"

	"neki/catalog"
)

// Segment is a WAL segment's place: a file of pg_wal by its timeline and number.
type Segment struct {
	Timeline int32
	Number   uint64
}

// DefaultSegmentSize is Postgres's, unless initdb is told otherwise.
const DefaultSegmentSize = 16 << 20

// Name is the file's name in pg_wal.
func (s Segment) Name(size int64) string {
	perID := uint64(1<<32) / uint64(size)
	return fmt.Sprintf("%08X%08X%08X", uint32(s.Timeline), s.Number/perID, s.Number%perID)
}

// Start is the position of the segment's first byte.
func (s Segment) Start(size int64) catalog.LSN { return catalog.LSN(s.Number * uint64(size)) }

// SegmentOf gives the segment that holds the position.
func SegmentOf(timeline int32, at catalog.LSN, size int64) Segment {
	return Segment{Timeline: timeline, Number: uint64(at) / uint64(size)}
}

const segmentDigits = 24

// ParseSegment reads a segment's file name; a .partial one is none.
func ParseSegment(name string, size int64) (Segment, bool) {
	if len(name) != segmentDigits || strings.IndexFunc(name, notHex) >= 0 {
		return Segment{}, false
	}
	timeline, err1 := strconv.ParseUint(name[:8], 16, 31)
	id, err2 := strconv.ParseUint(name[8:16], 16, 32)
	part, err3 := strconv.ParseUint(name[16:], 16, 32)
	perID := uint64(1<<32) / uint64(size)
	if err1 != nil || err2 != nil || err3 != nil || part >= perID {
		return Segment{}, false
	}
	return Segment{Timeline: int32(timeline), Number: id*perID + part}, true
}

func notHex(r rune) bool { return (r < '0' || r > '9') && (r < 'A' || r > 'F') }

// parseHistoryName reads the timeline of a history file's name, 00000002.history.
func parseHistoryName(name string) (int32, bool) {
	digits, ok := strings.CutSuffix(name, ".history")
	if !ok || len(digits) != 8 || strings.IndexFunc(digits, notHex) >= 0 {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 16, 31)
	return int32(n), err == nil
}

// historyName is the file's name.
func historyName(timeline int32) string { return fmt.Sprintf("%08X.history", uint32(timeline)) }

// Ancestor is a line of a history file: the timeline was left at Switch.
type Ancestor struct {
	Timeline int32
	Switch   catalog.LSN
}

// parseHistory reads a history file: the ancestors of a timeline, the oldest first.
func parseHistory(text string) ([]Ancestor, error) {
	var list []Ancestor
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		if len(fields) < 2 {
			return nil, fmt.Errorf("history line %q", line)
		}
		timeline, err := strconv.ParseInt(fields[0], 10, 32)
		if err != nil {
			return nil, fmt.Errorf("history line %q: %w", line, err)
		}
		at, err := catalog.ParseLSN(fields[1])
		if err != nil {
			return nil, fmt.Errorf("history line %q: %w", line, err)
		}
		list = append(list, Ancestor{Timeline: int32(timeline), Switch: at})
	}
	return list, nil
}
