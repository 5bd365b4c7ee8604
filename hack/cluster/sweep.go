package cluster

import (
	"fmt"
	"os"
	"path/filepath"
)

const (
	tempPrefix = "shardedjob-control-plane-"
	ownerFile  = "owner"
)

// markOwned notes in a temporary folder that it is ours.
func markOwned(dir string) error {
	id, err := identify(os.Getpid())
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, ownerFile), []byte(id.String()), 0o644)
	}
	if err != nil {
		return fmt.Errorf("mark folder as owned: %w", err)
	}
	return nil
}

// sweep removes the temporary folders of processes that were killed before they could. Their servers ended with them.
// What cannot be removed, being another user's, stays.
func sweep() {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), tempPrefix+"*"))
	for _, dir := range dirs {
		if owner, err := readIdentity(filepath.Join(dir, ownerFile)); err == nil && !owner.alive() {
			_ = os.RemoveAll(dir)
		}
	}
}
