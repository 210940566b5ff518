package segment

import (
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// wholeFS opens the file system that dir lies on for syncs of all that is on it; nil where
// such a sync does not promise what fsync does, as far as is known: it does on ext4, since
// Linux 5.8, which tells the errors. A FUSE file system, say, may promise nothing.
func wholeFS(dir string) *os.File {
	if !tellsErrors() {
		return nil
	}
	f, err := os.Open(dir)
	if err != nil {
		return nil
	}
	var st unix.Statfs_t
	if raw, err := f.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.Fstatfs(int(fd), &st) })
	}
	if st.Type != unix.EXT4_SUPER_MAGIC {
		_ = f.Close()
		return nil
	}
	return f
}

// tellsErrors tells whether syncfs of this kernel answers with errors of writing.
func tellsErrors() bool {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return false
	}
	var major, minor int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor); err != nil {
		return false
	}
	return major > 5 || major == 5 && minor >= 8
}

// unwritten is how many bytes the machine has still to write to disks, of whomever; more
// than any if it does not say.
func unwritten() int64 {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return math.MaxInt64
	}
	var kib int64
	found := 0
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		if name != "Dirty" && name != "Writeback" {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		if err != nil {
			return math.MaxInt64
		}
		kib += n
		found++
	}
	if found != 2 {
		return math.MaxInt64
	}
	return kib << 10
}

// syncWhole makes everything on the file system of f durable.
func syncWhole(f *os.File) error { return syncCall(f, "syncfs", unix.Syncfs) }
