package agent

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// slotFile keeps one record durably in a file of fixed size: two slots that are written in turn, in place. A write needs no
// space, so it works on a full disk, and is one flush of a block that is there already, which is the fastest that a disk
// can promise anything. A crash in the middle of one leaves the other slot.
type slotFile struct {
	path string
	seq  uint64
}

const (
	slotSize   = 16 << 10
	slotHeader = 16 // sequence number, length, checksum
)

// openSlots opens the file, or makes it, and gives the newest record, nil when there is none.
func openSlots(path string) (*slotFile, []byte, error) {
	s := &slotFile{path: path}
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) || err == nil && len(b) < 2*slotSize && len(bytes.Trim(b, "\x00")) == 0 {
		return s, nil, s.create()
	}
	if err != nil {
		return nil, nil, err
	}
	var newest []byte
	empty := false
	for i := range 2 {
		slot := b[min(i*slotSize, len(b)):min((i+1)*slotSize, len(b))]
		seq, record, ok := readSlot(slot)
		empty = empty || len(bytes.Trim(slot, "\x00")) == 0
		if ok && seq >= s.seq {
			s.seq, newest = seq, record
		}
	}
	if newest == nil && !empty { // an empty one means that no write has ever been finished
		return nil, nil, fmt.Errorf("%s: neither record is whole", path)
	}
	return s, newest, nil
}

// create makes the file with its full size, durably.
func (s *slotFile) create() error {
	f, err := os.OpenFile(s.path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(make([]byte, 2*slotSize), 0)
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(s.path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func readSlot(slot []byte) (seq uint64, record []byte, ok bool) {
	if len(slot) < slotHeader {
		return 0, nil, false
	}
	seq = binary.BigEndian.Uint64(slot)
	n := int(binary.BigEndian.Uint32(slot[8:]))
	if seq == 0 || n > len(slot)-slotHeader {
		return 0, nil, false
	}
	record = slot[slotHeader : slotHeader+n]
	return seq, record, checksum(slot[:12], record) == binary.BigEndian.Uint32(slot[12:])
}

func checksum(head, record []byte) uint32 {
	return crc32.Update(crc32.ChecksumIEEE(head), crc32.IEEETable, record)
}

// put makes record the newest; it is on disk when put returns without error.
func (s *slotFile) put(record []byte) error {
	if len(record) > slotSize-slotHeader {
		return fmt.Errorf("%s: a record of %d bytes is too long", s.path, len(record))
	}
	slot := make([]byte, slotHeader, slotHeader+len(record))
	binary.BigEndian.PutUint64(slot, s.seq+1)
	binary.BigEndian.PutUint32(slot[8:], uint32(len(record)))
	binary.BigEndian.PutUint32(slot[12:], checksum(slot[:12], record))
	f, err := os.OpenFile(s.path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(append(slot, record...), int64(s.seq%2)*slotSize)
	if err == nil {
		err = unix.Fdatasync(int(f.Fd()))
	}
	if err = errors.Join(err, f.Close()); err == nil {
		s.seq++
	}
	return err
}
