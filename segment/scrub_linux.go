package segment

import (
	"io"
	"os"
	"syscall"
)

// openDirect opens a file to be read past the page cache: the bytes come from
// the disk, nothing that is hot is thrown out for them, and nothing cold is
// left behind. ok is false where the file system cannot do that.
func openDirect(path string) (f io.ReaderAt, closer io.Closer, ok bool) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECT, 0)
	if err != nil {
		return nil, nil, false
	}
	return file, file, true
}

// directBuffer is memory that a direct read takes: it begins at a page.
func directBuffer(size int) (b []byte, free func()) {
	b, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return make([]byte, size), func() {}
	}
	return b, func() { _ = syscall.Munmap(b) }
}
