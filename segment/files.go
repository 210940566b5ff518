package segment

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/lockstep-kafka/lockstep/internal/invariants"
)

// dataFile is what a segment file has to be able to do. All access is by
// explicit position: files are shared between the appender, many readers and
// the flusher, and none of them may move a position under another.
type dataFile interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	// SyncData makes data and size durable. Its errors are errSync.
	SyncData() error
	Size() (int64, error)
	// Truncate cuts in place; errors.ErrUnsupported where that is impossible.
	Truncate(size int64) error
}

// osFile is a segment file of the real file system. Only it can be cut in
// place, and only it can be sent to a socket by the kernel.
type osFile struct {
	*os.File
	stalls *stalls
}

func (f osFile) SyncData() error {
	defer f.stalls.begin(syncHint).end()
	return syncError(fdatasync(f.File))
}

func (f osFile) Size() (int64, error) {
	fi, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return fi.Size(), nil
}

// vfsFile is a segment file of any other file system, such as the in-memory
// one of the tests.
type vfsFile struct {
	vfs.File
	stalls *stalls
}

func (f vfsFile) SyncData() error {
	defer f.stalls.begin(syncHint).end()
	return syncError(f.File.SyncData())
}

func (f vfsFile) Truncate(int64) error { return errors.ErrUnsupported }

func (f vfsFile) Size() (int64, error) {
	fi, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return fi.Size(), nil
}

// disk is the file system under one store: Options.FS, with the real one
// opened by ourselves so that *os.File can be had.
type disk struct {
	vfs.FS
	real   bool
	stalls *stalls // its outstanding operations; nil: not watched

	wrap func(dataFile) dataFile // tests make files fail
}

func newDisk(fs vfs.FS) disk {
	d := disk{FS: fs}
	if fs == nil {
		d.FS, d.real = vfs.Default, true
	}
	return d
}

// syncHint is where syncs look for a slot, so that appends, which spread over
// all, leave one of the few that a sync tries.
const syncHint = 0

// open opens a segment file; with create it must not exist before.
func (d disk) open(path string, create bool) (dataFile, error) {
	f, err := d.openFile(path, create)
	if err == nil && d.wrap != nil {
		f = d.wrap(f)
	}
	return f, err
}

func (d disk) openFile(path string, create bool) (dataFile, error) {
	if d.real {
		flags := os.O_RDWR
		if create {
			flags |= os.O_CREATE | os.O_EXCL
		}
		f, err := os.OpenFile(path, flags, 0o644)
		if err != nil {
			return nil, err
		}
		return osFile{f, d.stalls}, nil
	}
	if create {
		f, err := d.Create(path, vfs.WriteCategoryUnspecified)
		if err != nil {
			return nil, err
		}
		if err := f.Close(); err != nil {
			return nil, err
		}
	} else if _, err := d.Stat(path); err != nil {
		// OpenReadWrite would make a missing file.
		return nil, err
	}
	f, err := d.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, err
	}
	return vfsFile{f, d.stalls}, nil
}

// errSync marks an error of an fsync, after which the store is dead.
var errSync = errors.New("fsync failed")

func syncError(err error) error {
	if err != nil {
		return fmt.Errorf("%w: %w", errSync, err)
	}
	return nil
}

// sync makes all of a file or directory durable.
func (d disk) sync(f interface{ Sync() error }) error {
	defer d.stalls.begin(syncHint).end()
	return syncError(f.Sync())
}

// syncDir makes created, renamed and removed names durable.
func (d disk) syncDir(path string) error {
	if invariants.Planted("noDirectoryFsync") {
		return nil
	}
	dir, err := d.OpenDir(path)
	if err != nil {
		return err
	}
	return errors.Join(d.sync(dir), dir.Close())
}

// truncater is a file system other than the real one that can cut in place.
type truncater interface {
	Truncate(path string, size int64) error
}

// cutsInPlace says whether cut leaves the file the same one.
func (d disk) cutsInPlace() bool {
	_, ok := d.FS.(truncater)
	return d.real || ok
}

// cut shortens the file at path to size, durably. In place where the file
// system can. Elsewhere the beginning is copied to a new file that takes the
// name; handles of the old one go on reading the old bytes.
func (d disk) cut(path string, size int64) error {
	if t, ok := d.FS.(truncater); ok {
		if err := t.Truncate(path, size); err != nil {
			return err
		}
		invariants.Fault("segment.fileCut")
		f, err := d.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
		if err != nil {
			return err
		}
		return errors.Join(syncError(f.Sync()), f.Close())
	}
	if d.real {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		err = f.Truncate(size)
		if err == nil {
			invariants.Fault("segment.fileCut")
			err = d.sync(f) // the size is metadata: fdatasync need not keep it
		}
		return errors.Join(err, f.Close())
	}
	src, err := d.Open(path)
	if err != nil {
		return err
	}
	defer src.Close()
	return d.replace(path, io.NewSectionReader(src, 0, size))
}

// replace makes a new file with the given content take the name path, durably
// and at once: a crash leaves the old file or the new one.
func (d disk) replace(path string, content io.Reader) error {
	tmp := path + tmpSuffix
	dst, err := d.Create(tmp, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = io.Copy(struct{ io.Writer }{dst}, content)
	if err == nil {
		err = d.sync(dst)
	}
	if err = errors.Join(err, dst.Close()); err != nil {
		return err
	}
	invariants.Fault("segment.fileWritten")
	if err := d.Rename(tmp, path); err != nil {
		return err
	}
	invariants.Fault("segment.fileRenamed")
	return d.syncDir(d.PathDir(path))
}

// tmpSuffix marks a file that is being made; recovery removes leftovers.
const tmpSuffix = ".tmp"

// handle is one open segment file, shared by all who use it. The cache holds
// one reference, each user one more; the last to go closes the file. So a
// removed file stays readable for the views on it.
type handle struct {
	dataFile
	refs atomic.Int32
	seg  *segment

	// List of the cache, most recently used first; guarded by its lock.
	prev, next *handle
}

func (h *handle) os() (*os.File, bool) {
	f, ok := h.dataFile.(osFile)
	return f.File, ok
}

func (h *handle) release() {
	if h.refs.Add(-1) == 0 {
		// Nothing is lost by a failing close: what had to be durable was synced, and
		// a handle with unsynced bytes is pinned.
		_ = h.Close()
	}
}

// fileCache keeps at most max segment files open. A file with unsynced bytes
// is pinned, because an error of an earlier write may be told only to the
// descriptor that was open then; so is one that is in use. Beyond twice max,
// appends sync and close their files themselves.
type fileCache struct {
	disk disk
	max  int
	size atomic.Int64 // mu.n, for who asks without the lock

	mu struct {
		sync.Mutex // never held over an open or close
		n          int
		first      *handle
		last       *handle
	}
}

// acquire opens the segment's file if it is not open, and holds it. The caller
// releases the handle.
func (c *fileCache) acquire(s *segment) (*handle, error) {
	c.mu.Lock()
	if h := s.h; h != nil {
		h.refs.Add(1)
		c.touchLocked(h)
		c.mu.Unlock()
		return h, nil
	}
	if s.dropped {
		c.mu.Unlock()
		return nil, fmt.Errorf("%w: %s was removed", ErrClosed, s.path())
	}
	c.mu.Unlock()
	f, err := c.disk.open(s.path(), false)
	if err != nil {
		return nil, err
	}
	return c.adopt(s, f)
}

// adopt puts a freshly opened file into the cache and holds it.
func (c *fileCache) adopt(s *segment, f dataFile) (*handle, error) {
	h := &handle{dataFile: f, seg: s}
	h.refs.Store(2)
	c.mu.Lock()
	if other := s.h; other != nil { // another goroutine was faster
		other.refs.Add(1)
		c.mu.Unlock()
		_ = f.Close()
		return other, nil
	}
	if s.dropped {
		c.mu.Unlock()
		_ = f.Close()
		return nil, fmt.Errorf("%w: %s was removed", ErrClosed, s.path())
	}
	s.h = h
	c.pushLocked(h)
	var few [4]*handle
	victims := few[:0]
	for len(victims) < len(few) {
		v := c.victimLocked()
		if v == nil {
			break
		}
		victims = append(victims, v)
	}
	c.mu.Unlock()
	for _, v := range victims {
		v.release()
	}
	return h, nil
}

// victimLocked takes one handle out of a cache that is too full. Each adopt adds
// one and takes out a few, so that a cache that views had swollen shrinks again.
func (c *fileCache) victimLocked() *handle {
	if c.mu.n <= c.max {
		return nil
	}
	for h, tries := c.mu.last, 0; h != nil && tries < 64; h, tries = h.prev, tries+1 {
		if h.refs.Load() == 1 && !h.seg.dirty.Load() {
			c.removeLocked(h)
			h.seg.h = nil
			return h
		}
	}
	return nil
}

// drop closes the segment's file once its last user has gone. With forever, it
// can never be opened again: its name is gone, or belongs to another file.
func (c *fileCache) drop(s *segment, forever bool) {
	c.mu.Lock()
	h := s.h
	s.h = nil
	s.dropped = s.dropped || forever
	if h != nil {
		c.removeLocked(h)
	}
	c.mu.Unlock()
	if h != nil {
		h.release()
	}
}

func (c *fileCache) touchLocked(h *handle) {
	if c.mu.first == h {
		return
	}
	c.removeLocked(h)
	c.pushLocked(h)
}

func (c *fileCache) pushLocked(h *handle) {
	h.prev, h.next = nil, c.mu.first
	if h.next != nil {
		h.next.prev = h
	} else {
		c.mu.last = h
	}
	c.mu.first = h
	c.mu.n++
	c.size.Store(int64(c.mu.n))
}

func (c *fileCache) removeLocked(h *handle) {
	if h.prev != nil {
		h.prev.next = h.next
	} else {
		c.mu.first = h.next
	}
	if h.next != nil {
		h.next.prev = h.prev
	} else {
		c.mu.last = h.prev
	}
	h.prev, h.next = nil, nil
	c.mu.n--
	c.size.Store(int64(c.mu.n))
}

// crowded says that pinned files have swollen the cache to twice its size.
func (c *fileCache) crowded() bool { return c.size.Load() > 2*int64(c.max) }

func (c *fileCache) open() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.n
}
