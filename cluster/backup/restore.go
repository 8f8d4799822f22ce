package backup

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// RestoreOptions say how a backup is unpacked.
type RestoreOptions struct {
	// Own gives a file or directory to the server's account (pgproc.Account.Own); nil leaves it as it is.
	Own func(path string) error
	// Tablespaces is the directory, outside the data directory, that holds a subdirectory for each tablespace; the
	// place where the source had them belongs to the source. "" refuses a backup with tablespaces.
	Tablespaces string
	// Combine makes one of an incremental backup and what it builds on; nil refuses incremental ones.
	Combine Combine
	// Progress is told of the bytes of data that are in place, of all.
	Progress func(done, total int64)
}

// Restore unpacks a backup into an empty directory. What it makes is the data directory as Postgres's manual has it
// after a base backup, backup_label and backup_manifest included: the caller writes how WAL is fetched, makes
// standby.signal or recovery.signal, and flushes the file system. Content that doesn't match the description is an error.
func (r *Repository) Restore(ctx context.Context, id, dataDir string, o RestoreOptions) (Backup, error) {
	b, err := r.Get(ctx, id)
	if err != nil {
		return b, fmt.Errorf("backup %s of shard %s: %w", id, r.shard, err)
	}
	if entries, err := os.ReadDir(dataDir); err != nil || len(entries) > 0 {
		return b, errors.Join(fmt.Errorf("restore: %s is not an empty directory", dataDir), err)
	}
	if b.Base != "" {
		all, err := r.Backups(ctx)
		if err != nil {
			return b, err
		}
		chain, err := chainOf(all, id)
		if err != nil {
			return b, fmt.Errorf("restore: %w", err)
		}
		return b, r.restoreChain(ctx, chain, dataDir, o)
	}
	u := unpacker{o: o, total: b.Bytes}
	if err := r.unpackAll(ctx, b, dataDir, &u); err != nil {
		return b, err
	}
	return b, r.restoreManifest(ctx, b, dataDir, o)
}

// unpackAll unpacks the archives of one backup.
func (r *Repository) unpackAll(ctx context.Context, b Backup, dataDir string, u *unpacker) error {
	for _, f := range b.Files {
		dir := dataDir
		if f.OID != 0 {
			if u.o.Tablespaces == "" {
				return fmt.Errorf("restore: backup %s has tablespace %d and there is no place for it", b.ID, f.OID)
			}
			dir = filepath.Join(u.o.Tablespaces, strconv.FormatUint(uint64(f.OID), 10))
			if err := makeEmpty(dir, u.o.Own); err != nil {
				return err
			}
		}
		if err := r.restoreFile(ctx, b, f, dir, u); err != nil {
			return fmt.Errorf("restore %s of backup %s: %w", f.Name, b.ID, err)
		}
	}
	return nil
}

func makeEmpty(dir string, own func(string) error) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if own == nil {
		return nil
	}
	if err := own(filepath.Dir(dir)); err != nil {
		return err
	}
	return own(dir)
}

func (r *Repository) restoreManifest(ctx context.Context, b Backup, dataDir string, o RestoreOptions) error {
	in, err := r.store.Get(ctx, r.key("base", b.ID, manifestName))
	if err != nil {
		return err
	}
	defer in.Close() //nolint:errcheck // opened for reading
	path := filepath.Join(dataDir, manifestName)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if _, err := io.Copy(f, in); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := f.Close(); err != nil || o.Own == nil {
		return err
	}
	return o.Own(path)
}

func (r *Repository) restoreFile(ctx context.Context, b Backup, f ArchiveFile, dir string, u *unpacker) error {
	in, err := r.store.Get(ctx, r.key("base", b.ID, f.Name))
	if err != nil {
		return err
	}
	defer in.Close() //nolint:errcheck // opened for reading
	sum := hashReader{r: contextReader{ctx, in}, h: sha256.New()}
	zip, err := gzip.NewReader(&sum)
	if err != nil {
		return err
	}
	if err := u.unpack(tar.NewReader(zip), dir); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, zip); err != nil { // the padding after the last file, and gzip's own sum
		return err
	}
	if got := hex.EncodeToString(sum.h.Sum(nil)); got != f.SHA256 {
		return fmt.Errorf("the archive's checksum is %s, not %s: it is damaged", got, f.SHA256)
	}
	return nil
}

type hashReader struct {
	r io.Reader
	h hash.Hash
}

func (h *hashReader) Read(p []byte) (int, error) {
	n, err := h.r.Read(p)
	h.h.Write(p[:n])
	return n, err
}

// unpacker writes the members of tar archives below a directory, and nowhere else.
type unpacker struct {
	o           RestoreOptions
	done, total int64
}

func (u *unpacker) unpack(t *tar.Reader, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // opened for reading
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := u.member(root, h, t); err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
	}
}

func (u *unpacker) member(root *os.Root, h *tar.Header, content io.Reader) error {
	name := filepath.Clean(filepath.FromSlash(h.Name))
	switch {
	case name == ".":
		return nil
	case h.Typeflag == tar.TypeDir:
		if err := root.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	case h.Typeflag == tar.TypeSymlink:
		return u.tablespace(root, name)
	case h.Typeflag == tar.TypeReg:
		if err := u.file(root, name, content); err != nil {
			return err
		}
	default:
		return fmt.Errorf("a member of type %q", h.Typeflag)
	}
	return u.own(filepath.Join(root.Name(), name))
}

// tablespace links one to where it is put here.
func (u *unpacker) tablespace(root *os.Root, name string) error {
	oid, ok := strings.CutPrefix(name, "pg_tblspc"+string(filepath.Separator))
	if _, err := strconv.ParseUint(oid, 10, 32); !ok || err != nil {
		return fmt.Errorf("a symbolic link that is no tablespace")
	}
	path := filepath.Join(root.Name(), name)
	if err := os.Symlink(filepath.Join(u.o.Tablespaces, oid), path); err != nil {
		return err
	}
	return u.own(path)
}

func (u *unpacker) own(path string) error {
	if u.o.Own == nil {
		return nil
	}
	return u.o.Own(path)
}

func (u *unpacker) file(root *os.Root, name string, content io.Reader) error {
	f, err := root.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	n, err := io.Copy(f, content)
	u.done += n
	if u.o.Progress != nil {
		u.o.Progress(u.done, max(u.done, u.total))
	}
	return errors.Join(err, f.Close())
}
