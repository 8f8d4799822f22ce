package pgproc

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// asideSuffix comes after the data directory's name, and before the time.
const asideSuffix = ".fenced-"

// SetAside takes the data directory of a stopped server out of its place, for another to take it. It is kept under a name
// with the time, until RemoveAside, if the volume has space for both; else it is removed. kept is "" then. What was laid
// aside before goes: nobody has made use of it.
func (p *Instance) SetAside(now time.Time) (kept string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.checkStopped(); err != nil {
		return "", err
	}
	if _, err := os.Stat(p.DataDir()); errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err := p.removeAside(); err != nil {
		return "", err
	}
	size, err := sizeOf(p.DataDir())
	if err != nil {
		return "", err
	}
	var st unix.Statfs_t
	if err := unix.Statfs(p.cfg.Dir, &st); err != nil {
		return "", err
	}
	if free := int64(st.Bavail) * st.Bsize; free < size+size/5 {
		return "", os.RemoveAll(p.DataDir())
	}
	kept = p.DataDir() + asideSuffix + now.UTC().Format("20060102T150405")
	return kept, os.Rename(p.DataDir(), kept)
}

// RemoveAside removes what SetAside has kept, and reports whether there was anything.
func (p *Instance) RemoveAside() (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	found, err := p.asides()
	if err != nil || len(found) == 0 {
		return false, err
	}
	return true, p.removeAside()
}

func (p *Instance) asides() ([]string, error) { return filepath.Glob(p.DataDir() + asideSuffix + "*") }

func (p *Instance) removeAside() error {
	found, err := p.asides()
	for _, dir := range found {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	return err
}

// sizeOf adds up the files below a directory.
func sizeOf(dir string) (total int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if info, err := d.Info(); err == nil {
			total += info.Size()
		}
		return nil
	})
	return total, err
}
