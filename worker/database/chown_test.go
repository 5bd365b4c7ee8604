package database

import (
	"io/fs"
	"os"
	"syscall"
	"testing"
)

// chownLike gives a file the owner of another: the server refuses a key that is not its own.
func chownLike(t *testing.T, path string, like fs.FileInfo) {
	t.Helper()
	if stat, ok := like.Sys().(*syscall.Stat_t); ok {
		if err := os.Chown(path, int(stat.Uid), int(stat.Gid)); err != nil {
			t.Fatal(err)
		}
	}
}
