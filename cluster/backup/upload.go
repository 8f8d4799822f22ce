package backup

import (
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
)

// upload streams one object to the store as it comes. Its goroutine is the store's Put, joined by close.
type upload struct {
	file   ArchiveFile
	pipe   *io.PipeWriter
	zip    *gzip.Writer // nil: as it is
	out    io.Writer
	sum    hash.Hash
	stored int64
	done   chan error
}

func (r *Repository) upload(ctx context.Context, key string, f ArchiveFile, zipped bool) *upload {
	in, out := io.Pipe()
	u := &upload{file: f, pipe: out, sum: sha256.New(), done: make(chan error, 1)}
	u.out = countingWriter{io.MultiWriter(out, u.sum), &u.stored}
	if zipped {
		u.zip, _ = gzip.NewWriterLevel(u.out, gzip.BestSpeed) // the level is a valid one
		u.out = u.zip
	}
	go func() {
		err := r.store.Put(ctx, key, in)
		_ = in.CloseWithError(errors.Join(err, io.ErrClosedPipe)) // a writer learns why
		u.done <- err
	}()
	return u
}

func (u *upload) write(p []byte) error {
	u.file.Bytes += int64(len(p))
	_, err := u.out.Write(p)
	return err
}

// close ends the object, and waits until it is stored; after a failure it drops it.
func (u *upload) close(failed error) (ArchiveFile, int64, error) {
	if failed != nil {
		_ = u.pipe.CloseWithError(failed)
		<-u.done // it has failed for the same reason
		return u.file, u.stored, failed
	}
	var err error
	if u.zip != nil {
		err = u.zip.Close()
	}
	_ = u.pipe.CloseWithError(err) // nil: the end of the object
	if putErr := <-u.done; putErr != nil {
		err = fmt.Errorf("%s: %w", u.file.Name, putErr)
	}
	u.file.SHA256 = hex.EncodeToString(u.sum.Sum(nil))
	return u.file, u.stored, err
}

type countingWriter struct {
	w io.Writer
	n *int64
}

func (c countingWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	*c.n += int64(n)
	return n, err
}
