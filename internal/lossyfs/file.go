package lossyfs

import (
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

const blockSize = 4096

// content is the bytes of a file: blocks in memory over the real file.
type content struct {
	sync.Mutex
	blocks  map[int64][]byte // by number; whole blocks, whatever the size
	size    int64            // as the process sees it
	onDisk  int64            // size of the real file; never above size
	changed time.Time
	f       *os.File // the real file, while somebody has it open
}

// drop lets go of everything: nobody can reach the file any more.
func (c *content) drop() {
	c.Lock()
	defer c.Unlock()
	c.blocks = nil
	c.closeLocked()
}

func (c *content) closeLocked() {
	if c.f != nil {
		_ = c.f.Close() // nothing is buffered
		c.f = nil
	}
}

func (c *content) openLocked(n *node) (err error) {
	if c.f == nil {
		c.f, err = os.OpenFile(n.stashPath(), os.O_RDWR, 0)
	}
	return err
}

// readLocked fills p from off, of which all must lie below the size.
func (c *content) readLocked(n *node, p []byte, off int64) error {
	for len(p) > 0 {
		i, at := off/blockSize, off%blockSize
		part := p[:min(int64(len(p)), blockSize-at)]
		if b := c.blocks[i]; b != nil {
			copy(part, b[at:])
		} else if err := c.readRealLocked(n, part, off); err != nil {
			return err
		}
		p, off = p[len(part):], off+int64(len(part))
	}
	return nil
}

// readRealLocked reads the real file; behind its end are zeros.
func (c *content) readRealLocked(n *node, p []byte, off int64) error {
	if err := c.openLocked(n); err != nil {
		return err
	}
	got, err := c.f.ReadAt(p, off)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	clear(p[got:])
	return nil
}

func (c *content) writeLocked(n *node, p []byte, off int64) error {
	if c.blocks == nil {
		c.blocks = make(map[int64][]byte)
	}
	c.changed = time.Now()
	first, last := off/blockSize, (off+int64(len(p))-1)/blockSize
	for at := int64(0); at < int64(len(p)); {
		i, in := (off+at)/blockSize, (off+at)%blockSize
		b := c.blocks[i]
		if b == nil {
			b = make([]byte, blockSize)
			if err := c.readRealLocked(n, b, i*blockSize); err != nil {
				return err
			}
			c.blocks[i] = b
		}
		at += int64(copy(b[in:], p[at:]))
	}
	c.size = max(c.size, off+int64(len(p)))
	for i := first; len(p) > 0 && i <= last; i++ {
		if n.fs.early() {
			if err := c.handOverLocked(n, i); err != nil {
				return err
			}
		}
	}
	return nil
}

// handOverLocked gives one block to the real file.
func (c *content) handOverLocked(n *node, i int64) error {
	if err := c.openLocked(n); err != nil {
		return err
	}
	start := i * blockSize
	end := min(start+blockSize, c.size)
	if _, err := c.f.WriteAt(c.blocks[i][:end-start], start); err != nil {
		return err
	}
	delete(c.blocks, i)
	c.onDisk = max(c.onDisk, end)
	return nil
}

// sync gives everything to the real file.
func (c *content) sync(n *node) error {
	c.Lock()
	defer c.Unlock()
	for i := range c.blocks {
		if err := c.handOverLocked(n, i); err != nil {
			return err
		}
	}
	return nil
}

// file is one open file or directory.
type file struct {
	n     *node
	name  string
	write bool

	mu     sync.Mutex
	pos    int64
	closed bool
}

var _ vfs.File = (*file)(nil)

func (f *file) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return os.ErrClosed
	}
	f.closed = true
	f.n.fs.mu.Lock()
	defer f.n.fs.mu.Unlock()
	if f.n.handles--; f.n.handles == 0 && !f.n.dir {
		f.n.content.Lock()
		f.n.content.closeLocked()
		f.n.content.Unlock()
	}
	f.n.forget()
	return nil
}

func (f *file) Read(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.ReadAt(p, f.pos)
	f.pos += int64(n)
	if n > 0 && errors.Is(err, io.EOF) {
		err = nil // the next Read says it
	}
	return n, err
}

func (f *file) ReadAt(p []byte, off int64) (int, error) {
	if f.n.dir {
		return 0, pathError("read", f.name, errors.New("is a directory"))
	}
	c := &f.n.content
	c.Lock()
	defer c.Unlock()
	if len(p) == 0 {
		return 0, nil
	}
	n := min(int64(len(p)), c.size-off)
	if n <= 0 {
		return 0, io.EOF
	}
	if err := c.readLocked(f.n, p[:n], off); err != nil {
		return 0, err
	}
	if n < int64(len(p)) {
		return int(n), io.EOF
	}
	return int(n), nil
}

func (f *file) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.WriteAt(p, f.pos)
	f.pos += int64(n)
	return n, err
}

func (f *file) WriteAt(p []byte, off int64) (int, error) {
	if f.n.dir || !f.write {
		return 0, pathError("write", f.name, os.ErrPermission)
	}
	if len(p) == 0 {
		return 0, nil
	}
	c := &f.n.content
	c.Lock()
	defer c.Unlock()
	if err := c.writeLocked(f.n, p, off); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Sync hands over a file's bytes, or a directory's names; never both.
func (f *file) Sync() error {
	f.n.fs.seek()
	if f.n.dir {
		f.n.fs.mu.Lock()
		defer f.n.fs.mu.Unlock()
		return f.n.fs.handOverLocked(f.n)
	}
	return f.n.content.sync(f.n)
}

func (f *file) SyncData() error { return f.Sync() }

// SyncTo promises nothing when it answers false, and does nothing.
func (f *file) SyncTo(int64) (fullSync bool, err error) { return false, nil }

func (f *file) Preallocate(int64, int64) error { return nil }
func (f *file) Prefetch(int64, int64) error    { return nil }
func (f *file) Fd() uintptr                    { return vfs.InvalidFd }

func (f *file) Stat() (vfs.FileInfo, error) { return f.n.info(f.name), nil }

func (n *node) info(name string) vfs.FileInfo {
	n.content.Lock()
	defer n.content.Unlock()
	return fileInfo{name: name, size: n.content.size, changed: n.content.changed, dir: n.dir}
}

type fileInfo struct {
	name    string
	size    int64
	changed time.Time
	dir     bool
}

func (i fileInfo) Name() string           { return i.name }
func (i fileInfo) Size() int64            { return i.size }
func (i fileInfo) ModTime() time.Time     { return i.changed }
func (i fileInfo) IsDir() bool            { return i.dir }
func (i fileInfo) Sys() any               { return nil }
func (i fileInfo) DeviceID() vfs.DeviceID { return vfs.DeviceID{} }

func (i fileInfo) Mode() os.FileMode {
	if i.dir {
		return os.ModeDir | 0o755
	}
	return 0o644
}
