package segment

import (
	"errors"
	"io"
	"os"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/lockstep-kafka/lockstep/internal/invariants"
)

// ballastFile is in the log directory, beside the logs.
const ballastFile = "ballast"

// maxReserve bounds the reserve that is chosen by itself: room for the metadata
// store's log (five files of 16 MiB) and the growth of its data. The ballast has
// room for one such file and what goes with it, also where the reserve is small,
// if the disk is not tiny.
const (
	maxReserve = 512 << 20
	minBallast = 24 << 20
	maxBallast = 64 << 20
)

func ballastSize(r room) int64 {
	return min(max(r.reserve/4, min(minBallast, r.total/20)), maxBallast)
}

// ballast is a file that holds blocks and nothing else. When somebody else
// fills the disk to the brim, giving it up makes room at once, without asking
// anybody what may be deleted. It is no part of the reserve: its blocks are not
// free.
//
// Its content says nothing, so nothing about it is synced. After a crash it is
// there or made again.
type ballast struct {
	disk disk
	path string
	size int64 // 0: given up
}

// find takes over what the last run left.
func (b *ballast) find() {
	if fi, err := b.disk.Stat(b.path); err == nil {
		b.size = fi.Size()
	}
}

// make replaces the file with one of the given size. Failing is no error: it is
// tried again at the next look.
func (b *ballast) make(size int64) {
	b.release()
	if err := b.create(size); err != nil {
		_ = b.disk.Remove(b.path)
		return
	}
	b.size = size
	invariants.Fault("segment.ballastMade")
}

func (b *ballast) create(size int64) error {
	if b.disk.real {
		f, err := os.Create(b.path)
		if err != nil {
			return err
		}
		if err = allocate(f, size); errors.Is(err, errors.ErrUnsupported) {
			err = fill(f, size)
		}
		return errors.Join(err, f.Close())
	}
	f, err := b.disk.Create(b.path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	return errors.Join(fill(f, size), f.Close())
}

// release gives the blocks back and tells how many bytes they were.
func (b *ballast) release() int64 {
	size := b.size
	if err := b.disk.Remove(b.path); err != nil {
		return 0
	}
	b.size = 0
	invariants.Fault("segment.ballastReleased")
	return size
}

// fill writes zeros, where blocks cannot be asked for.
func fill(f io.Writer, size int64) error {
	zeros := make([]byte, 256<<10)
	for size > 0 {
		n, err := f.Write(zeros[:min(size, int64(len(zeros)))])
		if err != nil {
			return err
		}
		size -= int64(n)
	}
	return nil
}
