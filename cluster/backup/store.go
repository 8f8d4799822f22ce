package backup

import (
	"context"
	"errors"
	"io"
	"time"
)

// Errors of every Store, wrapped or not.
var (
	ErrNotExist = errors.New("backup: no such object")
	ErrExists   = errors.New("backup: the object is there already")
)

// Object is one stored object.
type Object struct {
	Key      string
	Size     int64
	Modified time.Time
}

// Store holds objects under slash-separated keys. It is safe for concurrent use.
type Store interface {
	// Put stores all of r, or nothing: ErrExists when there is an object of that key.
	Put(ctx context.Context, key string, r io.Reader) error
	// Replace stores all of r whether or not there is an object of that key; readers see the old or the new one.
	Replace(ctx context.Context, key string, r io.Reader) error
	// Get opens an object, or gives ErrNotExist.
	Get(ctx context.Context, key string) (io.ReadCloser, error)
	// List gives the objects whose keys start with prefix, which ends with a slash, in the order of their keys.
	List(ctx context.Context, prefix string) ([]Object, error)
	// Delete removes an object; one that is not there is no error.
	Delete(ctx context.Context, key string) error
	// String names the place for people, without secrets.
	String() string
}
