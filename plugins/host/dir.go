package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/lockstep-kafka/lockstep/plugins/proto"
)

// Sockets live in Dir/run-*/, one such directory per Host, held by a lock on
// the file lock in it. Below it each start of a plugin and each connection has
// a directory of its own:
//
//	Dir/run-123456/lock
//	Dir/run-123456/p123456/plugin-dir123456/plugin123456   go-plugin's socket
//	Dir/run-123456/c123456/s                               one connection
//
// A process killed hard leaves its sockets; the next Host removes what no
// living one holds. The numbers are os.MkdirTemp's, of at most 10 digits.
const longestSocket = "/run-0123456789/p0123456789/plugin-dir0123456789/plugin0123456789"

var errLocked = errors.New("is locked")

func defaultDir() string {
	return filepath.Join(os.TempDir(), fmt.Sprintf("lockstep-plugins-%d", os.Geteuid()))
}

// runDir is a Host's own directory.
type runDir struct {
	path string
	lock *os.File
}

// openRunDir makes base if it is missing, sweeps it and makes a directory in it.
func openRunDir(base string) (*runDir, int, error) {
	if n := len(base) + len(longestSocket); n > proto.SocketPathMax {
		return nil, 0, fmt.Errorf("plugin directory %s is too long for the paths of sockets: %d bytes, at most %d",
			base, len(base), proto.SocketPathMax-len(longestSocket))
	}
	if err := os.MkdirAll(base, 0o700); err != nil {
		return nil, 0, err
	}
	if err := checkDir(base); err != nil {
		return nil, 0, err
	}
	swept := sweep(base)
	path, err := os.MkdirTemp(base, "run-")
	if err != nil {
		return nil, 0, err
	}
	lock, err := lockFile(filepath.Join(path, "lock"))
	if err != nil {
		os.RemoveAll(path)
		return nil, 0, err
	}
	return &runDir{path: path, lock: lock}, swept, nil
}

// sweep removes the directories of dead hosts and counts them. One without a
// lock file may be just being made: it stays for the next sweep, which finds
// either a lock or nothing worth removing.
func sweep(base string) (removed int) {
	dirs, _ := filepath.Glob(filepath.Join(base, "run-*"))
	for _, dir := range dirs {
		name := filepath.Join(dir, "lock")
		if _, err := os.Lstat(name); err != nil {
			continue
		}
		lock, err := lockFile(name)
		if err != nil {
			continue
		}
		if os.RemoveAll(dir) == nil {
			removed++
		}
		lock.Close()
	}
	return removed
}

func (d *runDir) close() {
	os.RemoveAll(d.path)
	d.lock.Close()
}
