package catalog

import (
	"testing"
	"time"
)

func TestRequestsSortByTime(t *testing.T) {
	at := time.Date(2026, 11, 30, 19, 40, 1, 5000, time.UTC)
	first := NewRequest(at, "")
	if got, ok := RequestTime(first); !ok || !got.Equal(at) {
		t.Fatalf("%s is of %v, %v; want %v", first, got, ok, at)
	}
	second := NewRequest(at, first)
	third := NewRequest(at.Add(-time.Hour), second) // another machine's clock
	if first >= second || second >= third {
		t.Fatalf("%s, %s, %s are not in order", first, second, third)
	}
	if _, ok := RequestTime("r1"); ok {
		t.Fatal("r1 is no request")
	}
}
