package controller

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// dbRoom is how much the metadata store's file may grow between two rounds of
// housekeeping without asking the disk.
const dbRoom = 8 << 20

// keepRoom gives the metadata store's file blocks for what it holds and dbRoom
// more. etcd ends the process when a commit finds the disk full, and its file has
// holes: somebody else who fills the disk to the last byte would end us before
// anything could be given up for it. Neither content nor length changes.
func keepRoom(dir string) error {
	f, err := os.OpenFile(filepath.Join(dir, "member", "snap", "db"), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	fi, err := f.Stat()
	if err == nil {
		err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, fi.Size()+dbRoom)
	}
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = nil // a file system that cannot promise blocks
	}
	return errors.Join(err, f.Close())
}
