package backup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"neki/internal/pgerr"
)

// IncrementalMajor is the first version of Postgres that takes incremental backups.
const IncrementalMajor = 17

// Combine makes one data directory of a chain of unpacked backups, the full one first (pgproc.Instance.Combine). moves gives the
// new place of each tablespace by where the last of the chain has it.
type Combine func(ctx context.Context, chain []string, into string, moves map[string]string) error

// NextBase gives the backup that the next one may build on: the newest, unless that has most incremental ones behind a full one
// already. "" asks for a full one.
func (r *Repository) NextBase(ctx context.Context, most int) (string, error) {
	if most <= 0 {
		return "", nil
	}
	all, err := r.Backups(ctx)
	if err != nil {
		return "", err
	}
	return nextBase(all, most), nil
}

func nextBase(all []Backup, most int) string {
	if len(all) == 0 {
		return ""
	}
	newest := all[len(all)-1].ID
	if chain, err := chainOf(all, newest); err != nil || len(chain) > most { // a chain that lacks a link is no base
		return ""
	}
	return newest
}

// chainOf gives the backups that a restore of id takes, the full one first.
func chainOf(all []Backup, id string) ([]Backup, error) {
	var chain []Backup
	for want := id; ; {
		i := slices.IndexFunc(all, func(b Backup) bool { return b.ID == want })
		if i < 0 {
			return nil, fmt.Errorf("backup %s, which backup %s needs: %w", want, id, ErrNotExist)
		}
		if len(chain) >= len(all) {
			return nil, fmt.Errorf("backup %s needs itself", id)
		}
		chain = append(chain, all[i])
		if want = all[i].Base; want == "" {
			slices.Reverse(chain)
			return chain, nil
		}
	}
}

// needed adds to the kept backups those that they build on.
func needed(all []Backup, keep func(Backup) bool) map[string]bool {
	kept := map[string]bool{}
	for _, b := range all {
		if !keep(b) {
			continue
		}
		kept[b.ID] = true
		chain, _ := chainOf(all, b.ID) // of one that lacks a link there is nothing to keep besides
		for _, link := range chain {
			kept[link.ID] = true
		}
	}
	return kept
}

// uploadManifest tells the server what the backup holds that an incremental one is to build on.
func (r *Repository) uploadManifest(ctx context.Context, conn *pgconn.PgConn, base string) error {
	b, err := r.Get(ctx, base)
	if err != nil {
		return fmt.Errorf("backup %s, to build on: %w", base, err)
	}
	manifest, err := r.read(ctx, r.key("base", b.ID, manifestName))
	if err != nil {
		return err
	}
	_, err = conn.CopyFrom(ctx, bytes.NewReader(manifest), "UPLOAD_MANIFEST")
	return err
}

// RefusedIncremental tells whether the server itself did not take an incremental backup: it lacks summaries of the WAL since the
// other one, or is of another version. A full one can be taken then.
func RefusedIncremental(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && !strings.HasPrefix(e.Code, "57") // an operator intervened: it ends, or was cancelled
}

// restoreChain unpacks a chain beside the data directory and has Postgres's own program make one of it.
func (r *Repository) restoreChain(ctx context.Context, chain []Backup, dataDir string, o RestoreOptions) (err error) {
	last := chain[len(chain)-1]
	if o.Combine == nil {
		return pgerr.New(pgerr.FeatureNotSupported, "backup %s is an incremental one", last.ID).
			WithDetail("It needs PostgreSQL %d and its pg_combinebackup.", IncrementalMajor)
	}
	beside := dataDir + ".chain"
	if err := makeEmpty(beside, o.Own); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(beside)) }()
	u := unpacker{o: o}
	for _, b := range chain {
		u.total += b.Bytes
	}
	var dirs []string
	var moves map[string]string
	for i, b := range chain {
		dir := filepath.Join(beside, strconv.Itoa(i))
		if err := makeEmpty(dir, o.Own); err != nil {
			return err
		}
		if u.o.Tablespaces != "" {
			u.o.Tablespaces = dir + ".tablespaces"
		}
		if err := r.unpackAll(ctx, b, dir, &u); err != nil {
			return err
		}
		if err := r.restoreManifest(ctx, b, dir, u.o); err != nil {
			return err
		}
		dirs, moves = append(dirs, dir), movesOf(b, u.o.Tablespaces, o.Tablespaces)
	}
	for _, to := range moves {
		if err := makeEmpty(to, o.Own); err != nil {
			return err
		}
	}
	return o.Combine(ctx, dirs, dataDir, moves)
}

func movesOf(b Backup, from, to string) map[string]string {
	moves := map[string]string{}
	for _, f := range b.Files {
		if oid := strconv.FormatUint(uint64(f.OID), 10); f.OID != 0 {
			moves[filepath.Join(from, oid)] = filepath.Join(to, oid)
		}
	}
	return moves
}
