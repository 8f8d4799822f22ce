package agent

import (
	"testing"
	"time"
)

// A flush that has begun and does not end shows a disk that doesn't answer.
func TestStalled(t *testing.T) {
	var f flushing
	began := time.Now()
	if f.stalled(began.Add(time.Hour)) {
		t.Error("without a flush")
	}
	f.since.Store(&began)
	if f.stalled(began.Add(stallAfter-1)) || !f.stalled(began.Add(stallAfter)) {
		t.Error("not by the time it takes")
	}
}
