package agent

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

func TestSlots(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	open := func(want string) *slotFile {
		t.Helper()
		s, got, err := openSlots(path)
		if err != nil || string(got) != want {
			t.Fatalf("opened: %q, %v; want %q", got, err, want)
		}
		return s
	}
	s := open("")
	for i := range 5 {
		if err := s.put(fmt.Appendf(nil, "record %d", i)); err != nil {
			t.Fatal(err)
		}
		s = open(fmt.Sprintf("record %d", i))
	}
	if err := s.put(bytes.Repeat([]byte{'x'}, slotSize)); err == nil {
		t.Error("a record that doesn't fit was taken")
	}
	open("record 4")

	// A write that was cut short leaves the record before; two of them, which can't come from a crash, are an error.
	damage := func(slot int) {
		t.Helper()
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close() //nolint:errcheck // the write's error counts
		if _, err := f.WriteAt([]byte("torn"), int64(slot)*slotSize+slotHeader); err != nil {
			t.Fatal(err)
		}
	}
	damage(0)
	open("record 3")
	damage(1)
	if _, got, err := openSlots(path); err == nil {
		t.Errorf("two damaged records: %q", got)
	}
}

// A crash in the very first write: nothing was promised yet.
func TestSlotsFirstWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	b := make([]byte, 2*slotSize)
	copy(b, "torn")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	s, got, err := openSlots(path)
	if err != nil || got != nil {
		t.Fatalf("%q, %v", got, err)
	}
	if err := s.put([]byte("a")); err != nil {
		t.Fatal(err)
	}
	if _, got, err := openSlots(path); err != nil || string(got) != "a" {
		t.Errorf("%q, %v", got, err)
	}
}
