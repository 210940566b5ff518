package segment

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// allocSlots makes n zeroed numbers outside of Go's heap: a hundred megabytes
// there would let as much garbage gather beside them before a collection, and
// would stay the process' for minutes after the round. Large pages, because
// every look-up is somewhere else.
func allocSlots(n int) (slots []uint64, free func()) {
	b, err := unix.Mmap(-1, 0, n*8, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return make([]uint64, n), func() {}
	}
	_ = unix.Madvise(b, unix.MADV_HUGEPAGE) // a wish
	return unsafe.Slice((*uint64)(unsafe.Pointer(&b[0])), n), func() { _ = unix.Munmap(b) }
}
