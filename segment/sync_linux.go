package segment

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// allocate gives a file blocks, without writing them.
func allocate(f *os.File, size int64) error {
	for {
		if err := syscall.Fallocate(int(f.Fd()), 0, 0, size); err != syscall.EINTR {
			return err
		}
	}
}

// fdatasync keeps the data and the size, and saves the journal write for the
// modification time that fsync costs.
func fdatasync(f *os.File) error { return syncCall(f, "fdatasync", unix.Fdatasync) }

// syncCall makes a system call that syncs until no signal has interrupted it.
func syncCall(f *os.File, name string, call func(fd int) error) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var errSync error
	if err := raw.Control(func(fd uintptr) {
		for {
			if errSync = call(int(fd)); errSync != unix.EINTR {
				return
			}
		}
	}); err != nil {
		return err
	}
	if errSync != nil {
		return &os.PathError{Op: name, Path: f.Name(), Err: errSync}
	}
	return nil
}

// startWriteback has the kernel begin to write a range to the disk, and does not
// wait: so a large file's fsync at the end finds little to do, and does not hold
// up the fsyncs of others. It promises nothing; a later fsync does.
func startWriteback(f *os.File, at, n int64) {
	if raw, err := f.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.SyncFileRange(int(fd), at, n, unix.SYNC_FILE_RANGE_WRITE) })
	}
}
