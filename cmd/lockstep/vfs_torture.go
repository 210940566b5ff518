//go:build torture

package main

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/lockstep-kafka/lockstep/internal/lossyfs"
)

// logFS is what LOCKSTEP_VFS names: a file system on which kill -9 is a power
// cut (H5).
//
//	lossy       a cut takes all that was not synced
//	lossy-half  and this one leaves a random half of it
//	lossy-any   one of the two, by chance at each start
func logFS(dir string, logger *slog.Logger) (vfs.FS, error) {
	o := lossyfs.Options{SyncDelay: 4 * time.Millisecond, Seed: rand.Uint64()}
	switch name := os.Getenv("LOCKSTEP_VFS"); name {
	case "":
		return nil, nil
	case "lossy":
	case "lossy-half":
		o.Early = 0.5
	case "lossy-any":
		o.Early = 0.5 * float64(o.Seed%2)
	default:
		return nil, fmt.Errorf("LOCKSTEP_VFS=%s: no such file system", name)
	}
	logger.Warn("records are on a file system that loses what is not synced", "dir", dir, "early", o.Early, "seed", o.Seed)
	return lossyfs.New(dir, o)
}
