package testpg

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"neki/cluster/pgproc"
)

// Newer gives the directory of the programs of a Postgres that is at least so new: that of NEKI_NEWER_PGBIN, the one that is
// installed, or the one that scripts/setup.sh has put into .cache. Without any the test is skipped.
func Newer(tb testing.TB, major int) string {
	tb.Helper()
	dirs := []string{os.Getenv("NEKI_NEWER_PGBIN"), ""}
	if root, err := moduleRoot(); err == nil {
		dirs = append(dirs, filepath.Join(root, ".cache", "postgresql-"+strconv.Itoa(major), "usr", "lib", "postgresql", strconv.Itoa(major), "bin"))
	}
	account, err := pgproc.LookupAccount("")
	if err != nil {
		tb.Skipf("no account for servers: %v", err)
	}
	for i, dir := range dirs {
		if i == 0 && dir == "" {
			continue
		}
		found, err := pgproc.FindInstallation(tb.Context(), dir, 0)
		if err == nil && found.Major >= major && account.CheckReach(found.Tool("postgres")) == nil {
			return found.BinDir
		}
	}
	tb.Skipf("no PostgreSQL %d or newer: scripts/setup.sh newer fetches one where Debian's packages can be had", major)
	return ""
}

// moduleRoot is the directory of go.mod, above the test's own.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	for err == nil {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", os.ErrNotExist
		}
		dir = filepath.Dir(dir)
	}
	return "", err
}
