package pgproc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"neki/internal/pgerr"
)

// Versions of PostgreSQL that neki runs.
const (
	OldestMajor = 15
	NewestMajor = 18
)

// ErrNoBinaries says that no server binaries of a supported version were found.
var ErrNoBinaries = errors.New("no PostgreSQL server binaries found")

// Installation is a directory with the server binaries of one version.
type Installation struct {
	BinDir  string
	Major   int
	Version string // as `postgres --version` says, for example "15.20 (Debian 15.20-0+deb12u1)"
	// Missing are programs that agents need, for replicas; tests do without.
	Missing []string
}

// Tool gives the path of one of its programs.
func (i Installation) Tool(name string) string { return filepath.Join(i.BinDir, name) }

// CheckTools reports the programs that are missing for an agent.
func (i Installation) CheckTools() error {
	if len(i.Missing) == 0 {
		return nil
	}
	return pgerr.New(pgerr.SystemError, "%s lacks %s", i.BinDir, strings.Join(i.Missing, ", ")).
		WithHint("Install the complete PostgreSQL server package of version %d.", i.Major)
}

// Programs without which nothing works, and those that an agent needs besides.
var (
	serverTools = []string{"postgres", "initdb"}
	agentTools  = []string{"pg_basebackup", "pg_controldata"}
)

// FindInstallation finds server binaries: in binDir and nowhere else when it is given, else the best of PATH and
// /usr/lib/postgresql/*/bin. major 0 means the newest supported version there is; PATH wins among equals.
func FindInstallation(ctx context.Context, binDir string, major int) (Installation, error) {
	dirs := []string{binDir}
	if binDir == "" {
		dirs = candidateDirs()
	}
	var best Installation
	var misses []error
	for _, dir := range dirs {
		found, err := inspect(ctx, dir)
		switch {
		case err != nil:
			misses = append(misses, err)
		case major != 0 && found.Major != major:
			misses = append(misses, fmt.Errorf("%s holds version %d, not %d", dir, found.Major, major))
		case found.betterThan(best):
			best = found
		}
	}
	if best.Major != 0 {
		return best, nil
	}
	e := pgerr.New(pgerr.SystemError, "%w", ErrNoBinaries)
	if len(misses) > 0 {
		e = e.WithDetail("%v", errors.Join(misses...))
	}
	return Installation{}, e.WithHint("Install PostgreSQL %d to %d (Debian: apt-get install postgresql), or give the "+
		"directory of its server programs with --postgres-bin.", OldestMajor, NewestMajor)
}

// betterThan: a complete installation comes before an incomplete one, then the newer one.
func (i Installation) betterThan(other Installation) bool {
	if other.Major != 0 && len(i.Missing) != len(other.Missing) {
		return len(i.Missing) < len(other.Missing)
	}
	return i.Major > other.Major
}

func candidateDirs() []string {
	var dirs []string
	if p, err := exec.LookPath("postgres"); err == nil {
		if real, err := filepath.EvalSymlinks(p); err == nil {
			p = real
		}
		dirs = append(dirs, filepath.Dir(p))
	}
	for _, pattern := range []string{"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin"} {
		found, _ := filepath.Glob(pattern) // the patterns are well formed
		dirs = append(dirs, found...)
	}
	slices.Sort(dirs[min(1, len(dirs)):])
	return slices.Compact(dirs)
}

// inspect asks the binaries in dir for their version and checks that all needed programs are there.
func inspect(ctx context.Context, dir string) (Installation, error) {
	for _, tool := range serverTools {
		if _, err := os.Stat(filepath.Join(dir, tool)); err != nil {
			return Installation{}, fmt.Errorf("%s has no %s", dir, tool)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(dir, "postgres"), "--version").Output()
	if err != nil {
		return Installation{}, fmt.Errorf("%s: postgres --version: %w", dir, err)
	}
	version, major, err := parseVersion(string(out))
	if err != nil {
		return Installation{}, fmt.Errorf("%s: %w", dir, err)
	}
	if major < OldestMajor || major > NewestMajor {
		return Installation{}, fmt.Errorf("%s holds version %d; supported are %d to %d", dir, major, OldestMajor, NewestMajor)
	}
	found := Installation{BinDir: dir, Major: major, Version: version}
	for _, tool := range agentTools {
		if _, err := os.Stat(found.Tool(tool)); err != nil {
			found.Missing = append(found.Missing, tool)
		}
	}
	return found, nil
}

// parseVersion reads "postgres (PostgreSQL) 15.20 (Debian 15.20-0+deb12u1)" and "... 19devel".
func parseVersion(out string) (version string, major int, err error) {
	_, version, ok := strings.Cut(strings.TrimSpace(out), "(PostgreSQL) ")
	digits := len(version) - len(strings.TrimLeft(version, "0123456789"))
	if !ok || digits == 0 {
		return "", 0, fmt.Errorf("can't read a version from %q", strings.TrimSpace(out))
	}
	major, err = strconv.Atoi(version[:digits])
	return version, major, err
}
