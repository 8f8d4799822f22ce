package backup

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"neki/internal/pgerr"
)

// S3Config names a bucket of an S3-compatible object store.
type S3Config struct {
	Endpoint  string // host:port, or a URL; "" = Amazon's
	Bucket    string
	Prefix    string // of all keys
	Region    string
	AccessKey string // "" = of the environment, the credentials file or the machine's role
	SecretKey string
	CA        string // file; "" = the system's
	// Timeout bounds each request but the transfer of a base backup's archive; 0 means 30 s.
	Timeout time.Duration
}

// S3Store keeps objects in a bucket.
//
// A PUT of S3 is whole or not at all, and If-None-Match has the store refuse a second one. Stores that don't know that
// condition are asked first whether the object is there: two servers that archive different content under one name in
// the same instant could then overwrite each other, and nothing else could.
type S3Store struct {
	cfg       S3Config
	client    *minio.Client
	core      minio.Core
	transport *http.Transport
}

// Sizes and times of requests.
const (
	defaultS3Host    = "s3.amazonaws.com"
	defaultS3Timeout = 30 * time.Second
	s3PartSize       = 16 << 20 // of an object of unknown size; 10 000 parts are the most that S3 takes: 160 GB
	s3Tries          = 3        // of each request, by the library
)

// NewS3Store makes a client. The bucket must exist; it is asked for with the first request.
func NewS3Store(cfg S3Config) (*S3Store, error) {
	if cfg.Timeout == 0 {
		cfg.Timeout = defaultS3Timeout
	}
	host, secure, err := endpointOf(cfg.Endpoint)
	if err != nil {
		return nil, err
	}
	creds := credentials.NewStaticV4(cfg.AccessKey, cfg.SecretKey, "")
	if cfg.AccessKey == "" {
		creds = credentials.NewChainCredentials([]credentials.Provider{
			&credentials.EnvAWS{}, &credentials.FileAWSCredentials{}, &credentials.IAM{},
		})
	}
	transport, err := s3Transport(cfg)
	if err != nil {
		return nil, err
	}
	client, err := minio.New(host, &minio.Options{
		Creds: creds, Secure: secure, Region: cfg.Region, Transport: transport, MaxRetries: s3Tries,
	})
	if err != nil {
		return nil, pgerr.New(pgerr.InvalidParameterValue, "object store %s: %w", host, err)
	}
	return &S3Store{cfg: cfg, client: client, core: minio.Core{Client: client}, transport: transport}, nil
}

func endpointOf(text string) (host string, secure bool, err error) {
	if text == "" {
		return defaultS3Host, true, nil
	}
	if !strings.Contains(text, "://") {
		return text, true, nil
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || strings.Trim(u.Path, "/") != "" {
		return "", false, pgerr.New(pgerr.InvalidParameterValue, "%q is no address of an object store", text).
			WithHint("Give host:port, or a URL as https://host:port.")
	}
	return u.Host, u.Scheme == "https", nil
}

func s3Transport(cfg S3Config) (*http.Transport, error) {
	t := &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: (&net.Dialer{Timeout: cfg.Timeout}).DialContext, TLSHandshakeTimeout: cfg.Timeout,
		ResponseHeaderTimeout: cfg.Timeout, ExpectContinueTimeout: time.Second, MaxIdleConnsPerHost: 4, IdleConnTimeout: time.Minute,
		DisableCompression: true,
	}
	if cfg.CA == "" {
		return t, nil
	}
	pem, err := os.ReadFile(cfg.CA)
	if err != nil {
		return nil, fmt.Errorf("object store: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, pgerr.New(pgerr.ConfigFileError, "%s holds no certificate", cfg.CA)
	}
	t.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	return t, nil
}

// closeIdle ends connections that nobody uses.
func (s *S3Store) closeIdle() { s.transport.CloseIdleConnections() }

// String names the bucket.
func (s *S3Store) String() string { return "s3://" + path.Join(s.cfg.Bucket, s.cfg.Prefix) }

func (s *S3Store) key(key string) string { return path.Join(s.cfg.Prefix, key) }

// Put stores an object that is not there.
func (s *S3Store) Put(ctx context.Context, key string, r io.Reader) error {
	if err := s.absent(ctx, key); err != nil {
		return err
	}
	var o minio.PutObjectOptions
	o.SetMatchETagExcept("*")
	return s.put(ctx, key, r, o)
}

func (s *S3Store) absent(ctx context.Context, key string) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	_, err := s.client.StatObject(ctx, s.cfg.Bucket, s.key(key), minio.StatObjectOptions{})
	switch {
	case err == nil:
		return fmt.Errorf("%s: %w", key, ErrExists)
	case isMissing(err):
		return nil
	}
	return s.failed(key, err)
}

// Replace stores an object whatever is there.
func (s *S3Store) Replace(ctx context.Context, key string, r io.Reader) error {
	return s.put(ctx, key, r, minio.PutObjectOptions{})
}

// put stores what is in memory by one request, within the time for it, and a stream in parts as it comes.
func (s *S3Store) put(ctx context.Context, key string, r io.Reader, o minio.PutObjectOptions) error {
	o.PartSize, o.NumThreads = s3PartSize, 1
	o.SendContentMd5, o.DisableContentSha256 = true, true // plain bodies, which every store takes, checked by their sum
	size := int64(-1)
	if known, ok := r.(*bytes.Reader); ok {
		size, o.DisableMultipart = known.Size(), true
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.cfg.Timeout)
		defer cancel()
	}
	_, err := s.client.PutObject(ctx, s.cfg.Bucket, s.key(key), r, size, o)
	if minio.ToErrorResponse(err).StatusCode == http.StatusPreconditionFailed {
		return fmt.Errorf("%s: %w", key, ErrExists)
	}
	return s.failed(key, err)
}

// Get opens an object; its length is checked when it is read.
func (s *S3Store) Get(ctx context.Context, key string) (io.ReadCloser, error) {
	in, _, _, err := s.core.GetObject(ctx, s.cfg.Bucket, s.key(key), minio.GetObjectOptions{})
	if isMissing(err) {
		return nil, fmt.Errorf("%s: %w", key, ErrNotExist)
	}
	return in, s.failed(key, err)
}

// List lists page by page.
func (s *S3Store) List(ctx context.Context, prefix string) ([]Object, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var found []Object
	base := s.key("") + "/"
	for o := range s.client.ListObjectsIter(ctx, s.cfg.Bucket, minio.ListObjectsOptions{Prefix: s.key(prefix) + "/", Recursive: true}) {
		if o.Err != nil {
			return nil, s.failed(prefix, o.Err)
		}
		found = append(found, Object{Key: strings.TrimPrefix(o.Key, strings.TrimPrefix(base, "/")), Size: o.Size, Modified: o.LastModified})
	}
	return found, context.Cause(ctx)
}

// Delete removes an object.
func (s *S3Store) Delete(ctx context.Context, key string) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	err := s.client.RemoveObject(ctx, s.cfg.Bucket, s.key(key), minio.RemoveObjectOptions{})
	if isMissing(err) {
		return nil
	}
	return s.failed(key, err)
}

func isMissing(err error) bool {
	return err != nil && minio.ToErrorResponse(err).Code == minio.NoSuchKey
}

func (s *S3Store) failed(key string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s of %s: %w", key, s, err)
}
