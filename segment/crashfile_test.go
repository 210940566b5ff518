package segment

import (
	"io"
	"io/fs"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// crashFile is an open file or directory.
type crashFile struct {
	fs   *crashFS
	n    *node
	name string
	pos  int64
}

func (f *crashFile) Close() error { return nil }

func (f *crashFile) Read(p []byte) (int, error) {
	n, err := f.ReadAt(p, f.pos)
	f.pos += int64(n)
	if n > 0 {
		err = nil
	}
	return n, err
}

func (f *crashFile) ReadAt(p []byte, off int64) (int, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if off >= int64(len(f.n.data)) {
		return 0, io.EOF
	}
	n := copy(p, f.n.data[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *crashFile) Write(p []byte) (int, error) {
	n, err := f.WriteAt(p, f.pos)
	f.pos += int64(n)
	return n, err
}

func (f *crashFile) WriteAt(p []byte, off int64) (int, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	o := fsOp{kind: opWrite, ino: f.n.ino, name: f.name, at: off, data: slices.Clone(p)}
	f.n.own()
	f.n.data = o.changeData(f.n.data)
	f.fs.record(o)
	return len(p), nil
}

func (f *crashFile) Sync() error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	o := fsOp{kind: opSync, ino: f.n.ino, name: f.name}
	if f.n.children != nil {
		o.kind = opSyncDir
	}
	f.fs.record(o)
	return nil
}

func (f *crashFile) SyncData() error              { return f.Sync() }
func (f *crashFile) SyncTo(int64) (bool, error)   { return false, nil }
func (f *crashFile) Preallocate(_, _ int64) error { return nil }
func (f *crashFile) Prefetch(_, _ int64) error    { return nil }
func (f *crashFile) Fd() uintptr                  { return vfs.InvalidFd }

func (f *crashFile) Stat() (vfs.FileInfo, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	return crashInfo{name: f.name, size: int64(len(f.n.data)), dir: f.n.children != nil}, nil
}

type crashInfo struct {
	name string
	size int64
	dir  bool
}

func (i crashInfo) Name() string           { return i.name }
func (i crashInfo) Size() int64            { return i.size }
func (i crashInfo) Mode() fs.FileMode      { return 0o644 }
func (i crashInfo) ModTime() time.Time     { return time.Time{} }
func (i crashInfo) IsDir() bool            { return i.dir }
func (i crashInfo) Sys() any               { return nil }
func (i crashInfo) DeviceID() vfs.DeviceID { return vfs.DeviceID{} }
