package agent

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"

	"neki/internal/pgerr"
)

// lockDir keeps two agents from working on one directory. The lock goes with the process, however it ends.
func lockDir(dir string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(dir, "agent.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, pgerr.New(pgerr.ObjectNotInPrerequisiteState, "another agent works in %s", dir)
		}
		return nil, err
	}
	return func() { _ = f.Close() }, nil
}
