package segment

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// crashFS is a file system in memory that writes down every operation that
// changes it, so that afterwards a power cut can be tried after each of them
// (H2). Unlike vfs.MemFS it forgets removals, renames and truncations that were
// not synced, tears blocks, cuts files in place, and lets names become durable
// before the data behind them.
//
// What is durable is what POSIX promises and no more: the content of a file by
// its fsync, names by the fsync of their directory.
type crashFS struct {
	mu    sync.Mutex
	root  *node
	last  int // newest inode number
	ops   []fsOp
	base  durableState
	locks map[string]bool
	usage vfs.DiskUsage // what it says of its room
}

// plenty is a disk that is never full.
var plenty = vfs.DiskUsage{AvailBytes: 1 << 40, TotalBytes: 1 << 40}

// node is an inode as programs see it.
type node struct {
	ino      int
	data     []byte
	shared   bool             // data belongs to others too: copied before it is written
	children map[string]*node // nil for a file
}

type fsOpKind string

const (
	opCreate   fsOpKind = "create" // also mkdir and link
	opRemove   fsOpKind = "remove"
	opRename   fsOpKind = "rename"
	opWrite    fsOpKind = "write"
	opTruncate fsOpKind = "truncate"
	opSync     fsOpKind = "fsync"
	opSyncDir  fsOpKind = "dirsync"
)

// fsOp is one operation. dir and ino are inode numbers.
type fsOp struct {
	kind    fsOpKind
	dir     int
	name    string
	newName string // of a rename
	ino     int
	isDir   bool // create and rename: of a directory
	at      int64
	data    []byte
}

func (o fsOp) String() string {
	switch o.kind {
	case opRename:
		return fmt.Sprintf("rename %s to %s", o.name, o.newName)
	case opWrite:
		return fmt.Sprintf("write %d bytes at %d of %s", len(o.data), o.at, o.name)
	case opTruncate:
		return fmt.Sprintf("truncate %s to %d", o.name, o.at)
	}
	return fmt.Sprintf("%s %s", o.kind, o.name)
}

// ofIndex says that Pebble did it, by the names that its files have.
func (o fsOp) ofIndex() bool {
	for _, part := range []string{"MANIFEST", "OPTIONS", "marker", ".sst", ".dbtmp"} {
		if strings.Contains(o.name, part) {
			return true
		}
	}
	return o.name == indexDir || len(o.name) == len("000001.log") && strings.HasSuffix(o.name, ".log")
}

func newCrashFS() *crashFS {
	root := &node{ino: 1, children: map[string]*node{}}
	return &crashFS{root: root, last: 1, base: durableState{1: {names: map[string]int{}}}, locks: map[string]bool{}, usage: plenty}
}

// count is the number of operations so far.
func (f *crashFS) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.ops)
}

// eachPrefix calls fn with what may be left after the first k operations, for
// k from from to to.
func (f *crashFS) eachPrefix(from, to int, fn func(k int, d durableState)) {
	f.mu.Lock()
	ops := f.ops[:to:to]
	f.mu.Unlock()
	d := f.base.clone()
	for k := 0; ; k++ {
		if k >= from {
			fn(k, d)
		}
		if k == to {
			return
		}
		d.apply(k, ops[k])
	}
}

// crashNow is a power cut after all operations so far.
func (f *crashFS) crashNow(l loss, rng *rand.Rand) (c *crashFS) {
	n := f.count()
	f.eachPrefix(n, n, func(_ int, d durableState) { c = d.crash(l, rng) })
	c.usage = f.usage
	return c
}

func (f *crashFS) record(o fsOp) { f.ops = append(f.ops, o) }

// find walks to a name: the node, if it is there, and its directory.
func (f *crashFS) find(name string) (dir, n *node, base string, err error) {
	dir = f.root
	parts := strings.FieldsFunc(path.Clean(name), func(r rune) bool { return r == '/' })
	if len(parts) == 0 || len(parts) == 1 && parts[0] == "." {
		return nil, dir, "", nil
	}
	for _, p := range parts[:len(parts)-1] {
		if dir = dir.children[p]; dir == nil || dir.children == nil {
			return nil, nil, "", &os.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
		}
	}
	base = parts[len(parts)-1]
	return dir, dir.children[base], base, nil
}

func (f *crashFS) existing(op, name string) (dir, n *node, base string, err error) {
	dir, n, base, err = f.find(name)
	if err == nil && n == nil {
		err = &os.PathError{Op: op, Path: name, Err: fs.ErrNotExist}
	}
	return dir, n, base, err
}

func (f *crashFS) add(dir *node, name string, isDir bool) *node {
	f.last++
	n := &node{ino: f.last}
	if isDir {
		n.children = map[string]*node{}
	}
	dir.children[name] = n
	f.record(fsOp{kind: opCreate, dir: dir.ino, name: name, ino: n.ino, isDir: isDir})
	return n
}

func (f *crashFS) Create(name string, _ vfs.DiskWriteCategory) (vfs.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	dir, _, base, err := f.find(name)
	if err != nil {
		return nil, err
	}
	return &crashFile{fs: f, n: f.add(dir, base, false), name: base}, nil
}

func (f *crashFS) Link(oldname, newname string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, n, _, err := f.existing("link", oldname)
	if err != nil {
		return err
	}
	dir, there, base, err := f.find(newname)
	if err != nil {
		return err
	}
	if there != nil {
		return &os.LinkError{Op: "link", Old: oldname, New: newname, Err: fs.ErrExist}
	}
	dir.children[base] = n
	f.record(fsOp{kind: opCreate, dir: dir.ino, name: base, ino: n.ino})
	return nil
}

func (f *crashFS) Open(name string, _ ...vfs.OpenOption) (vfs.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, n, base, err := f.existing("open", name)
	if err != nil {
		return nil, err
	}
	return &crashFile{fs: f, n: n, name: base}, nil
}

func (f *crashFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	file, err := f.Open(name, o...)
	if errors.Is(err, fs.ErrNotExist) {
		return f.Create(name, c)
	}
	return file, err
}

func (f *crashFS) OpenDir(name string) (vfs.File, error) { return f.Open(name) }

func (f *crashFS) Remove(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	dir, n, base, err := f.existing("remove", name)
	if err != nil {
		return err
	}
	if len(n.children) > 0 {
		return &os.PathError{Op: "remove", Path: name, Err: errors.New("directory not empty")}
	}
	delete(dir.children, base)
	f.record(fsOp{kind: opRemove, dir: dir.ino, name: base, ino: n.ino})
	return nil
}

// RemoveAll removes file by file, as the real one does.
func (f *crashFS) RemoveAll(name string) error {
	f.mu.Lock()
	_, n, _, err := f.find(name)
	var children []string
	if n != nil {
		children = slices.Sorted(maps.Keys(n.children))
	}
	f.mu.Unlock()
	if err != nil || n == nil {
		return nil
	}
	for _, c := range children {
		if err := f.RemoveAll(path.Join(name, c)); err != nil {
			return err
		}
	}
	return f.Remove(name)
}

func (f *crashFS) Rename(oldname, newname string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	dir, n, base, err := f.existing("rename", oldname)
	if err != nil {
		return err
	}
	to, _, newBase, err := f.find(newname)
	if err != nil {
		return err
	}
	if to != dir {
		return errors.New("rename between directories is not modelled")
	}
	delete(dir.children, base)
	dir.children[newBase] = n
	f.record(fsOp{kind: opRename, dir: dir.ino, name: base, newName: newBase, ino: n.ino, isDir: n.children != nil})
	return nil
}

func (f *crashFS) ReuseForWrite(oldname, newname string, _ vfs.DiskWriteCategory) (vfs.File, error) {
	if err := f.Rename(oldname, newname); err != nil {
		return nil, err
	}
	return f.Open(newname)
}

func (f *crashFS) MkdirAll(name string, _ os.FileMode) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	dir := f.root
	for _, p := range strings.FieldsFunc(path.Clean(name), func(r rune) bool { return r == '/' }) {
		next := dir.children[p]
		if next == nil {
			next = f.add(dir, p, true)
		}
		dir = next
	}
	return nil
}

func (f *crashFS) Lock(name string) (io.Closer, error) {
	f.mu.Lock()
	held := f.locks[name]
	f.locks[name] = true
	f.mu.Unlock()
	if held {
		return nil, errors.New("lock held")
	}
	if _, err := f.Create(name, ""); err != nil {
		return nil, err
	}
	return crashLock{f, name}, nil
}

type crashLock struct {
	f    *crashFS
	name string
}

func (l crashLock) Close() error {
	l.f.mu.Lock()
	defer l.f.mu.Unlock()
	delete(l.f.locks, l.name)
	return nil
}

func (f *crashFS) List(name string) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, n, _, err := f.existing("open", name)
	if err != nil {
		return nil, err
	}
	return slices.Sorted(maps.Keys(n.children)), nil
}

func (f *crashFS) Stat(name string) (vfs.FileInfo, error) {
	file, err := f.Open(name)
	if err != nil {
		return nil, err
	}
	return file.Stat()
}

// Truncate makes disk.cut cut in place, as the real file system does.
func (f *crashFS) Truncate(name string, size int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, n, base, err := f.existing("truncate", name)
	if err != nil {
		return err
	}
	n.own()
	n.data = resize(n.data, size)
	f.record(fsOp{kind: opTruncate, ino: n.ino, name: base, at: size})
	return nil
}

func (*crashFS) PathBase(p string) string    { return path.Base(p) }
func (*crashFS) PathJoin(e ...string) string { return path.Join(e...) }
func (*crashFS) PathDir(p string) string     { return path.Dir(p) }
func (*crashFS) Unwrap() vfs.FS              { return nil }

func (f *crashFS) GetDiskUsage(string) (vfs.DiskUsage, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.usage, nil
}

func (f *crashFS) setUsage(u vfs.DiskUsage) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.usage = u
}

// tree lists the files below dir with their content, for comparing.
func (f *crashFS) tree(dir string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, n, _, err := f.find(dir)
	if err != nil || n == nil {
		return ""
	}
	var b strings.Builder
	n.print(&b, dir)
	return b.String()
}

func (n *node) print(b *strings.Builder, name string) {
	if n.children == nil {
		fmt.Fprintf(b, "%s %d bytes %x\n", name, len(n.data), crc32.ChecksumIEEE(n.data))
		return
	}
	for _, c := range slices.Sorted(maps.Keys(n.children)) {
		n.children[c].print(b, name+"/"+c)
	}
}

// own makes the data one's own before it is written.
func (n *node) own() {
	if n.shared {
		n.data, n.shared = slices.Clone(n.data), false
	}
}
