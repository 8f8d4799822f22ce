package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// DirStore keeps objects as files below a directory, which may be a network file system that all machines mount.
type DirStore struct{ dir string }

// partial marks files that are being written. A crash may leave some; List doesn't show them.
const partial = ".neki-part-"

// NewDirStore makes the directory when it is missing.
func NewDirStore(dir string) (*DirStore, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(abs, 0o750); err != nil {
		return nil, fmt.Errorf("backup directory: %w", err)
	}
	return &DirStore{dir: abs}, nil
}

// String gives the directory.
func (s *DirStore) String() string { return s.dir }

func (s *DirStore) path(key string) (string, error) {
	if !filepath.IsLocal(key) {
		return "", fmt.Errorf("backup: %q is no key", key)
	}
	return filepath.Join(s.dir, filepath.FromSlash(key)), nil
}

// Put links a flushed temporary file to its name: a link, unlike a rename, fails when the name is taken.
func (s *DirStore) Put(ctx context.Context, key string, r io.Reader) error {
	return s.write(ctx, key, r, func(tmp, path string) error {
		if err := os.Link(tmp, path); err != nil {
			if errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("%s: %w", key, ErrExists)
			}
			return err
		}
		return os.Remove(tmp)
	})
}

// Replace renames a flushed temporary file to its name.
func (s *DirStore) Replace(ctx context.Context, key string, r io.Reader) error {
	return s.write(ctx, key, r, os.Rename)
}

func (s *DirStore) write(ctx context.Context, key string, r io.Reader, place func(tmp, path string) error) error {
	path, err := s.path(key)
	if err != nil {
		return err
	}
	if err := s.makeParents(filepath.Dir(path)); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), partial+"*")
	if err != nil {
		return err
	}
	if err := fillAndSync(ctx, f, r); err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("%s: %w", key, err)
	}
	if err := place(f.Name(), path); err != nil {
		_ = os.Remove(f.Name())
		return err
	}
	return syncDir(filepath.Dir(path))
}

// makeParents makes what is missing on the way to dir, and flushes each directory that got a new entry.
func (s *DirStore) makeParents(dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if dir != s.dir {
		if err := s.makeParents(filepath.Dir(dir)); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncDir(filepath.Dir(dir))
}

// fillAndSync writes r to f, flushes and closes it.
func fillAndSync(ctx context.Context, f *os.File, r io.Reader) error {
	_, err := io.Copy(f, contextReader{ctx, r})
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// Get opens the file.
func (s *DirStore) Get(_ context.Context, key string) (io.ReadCloser, error) {
	path, err := s.path(key)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", key, ErrNotExist)
	}
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && st.IsDir() { // the beginning of other keys
		err = fmt.Errorf("%s: %w", key, ErrNotExist)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// List walks the directory of the prefix.
func (s *DirStore) List(ctx context.Context, prefix string) ([]Object, error) {
	path, err := s.path(prefix)
	if err != nil {
		return nil, err
	}
	var found []Object
	err = filepath.WalkDir(path, func(name string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist): // removed meanwhile, or the prefix itself
			return nil
		case err != nil:
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case d.IsDir() || strings.HasPrefix(d.Name(), partial):
			return nil
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		key, err := filepath.Rel(s.dir, name)
		found = append(found, Object{Key: filepath.ToSlash(key), Size: info.Size(), Modified: info.ModTime()})
		return err
	})
	return found, err
}

// Delete removes the file, and directories that become empty.
func (s *DirStore) Delete(_ context.Context, key string) error {
	path, err := s.path(key)
	if err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := syncDir(filepath.Dir(path)); err != nil {
		return err
	}
	for dir := filepath.Dir(path); dir != s.dir; dir = filepath.Dir(dir) {
		if os.Remove(dir) != nil { // it holds something else
			return nil
		}
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // an emptied directory that another call removed
	}
	if err != nil {
		return err
	}
	defer d.Close() //nolint:errcheck // opened for reading
	return d.Sync()
}

// contextReader ends a copy when the context does.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c contextReader) Read(p []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, context.Cause(c.ctx)
	}
	return c.r.Read(p)
}
