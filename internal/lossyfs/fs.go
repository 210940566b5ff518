package lossyfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Options say what a power cut takes, and how slow the disk is.
type Options struct {
	// Early is the probability, 0 to 1, that a block or a directory's journal is
	// handed over when it is written. With 0 a cut takes all that was unsynced.
	Early float64
	// SyncDelay is the longest time that a sync waits before it hands anything
	// over, as a disk would; each waits a random part of it.
	SyncDelay time.Duration
	Seed      uint64
}

// FS is a file system below one root. Paths outside of the root go to the real
// file system. Safe for use by several goroutines.
type FS struct {
	o       Options
	root    string // absolute
	stash   string
	rootDir *node

	mu struct {
		sync.Mutex // guards the tree and the journals; taken before a file's lock
		nextID     uint64
	}
	dice struct {
		sync.Mutex
		*rand.Rand
	}
}

var _ vfs.FS = (*FS)(nil)

// stashName is the directory for what has no name on disk; lists do not show it.
const stashName = ".lossyfs"

// New opens the directory as a power cut left it. The directory must be there.
func New(root string, o Options) (*FS, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	f := &FS{o: o, root: root, stash: filepath.Join(root, stashName)}
	f.dice.Rand = rand.New(rand.NewPCG(o.Seed, 1))
	if err := os.RemoveAll(f.stash); err != nil {
		return nil, fmt.Errorf("lossyfs: empty the stash: %w", err)
	}
	if err := os.Mkdir(f.stash, 0o755); err != nil {
		return nil, fmt.Errorf("lossyfs: %w", err)
	}
	f.rootDir = &node{fs: f, dir: true, links: 1, onDisk: true}
	return f, nil
}

// node is a file or a directory as the process sees it, whatever its names.
type node struct {
	fs  *FS
	dir bool
	id  uint64 // of its place in the stash, 0 without one

	// Guarded by the FS.
	links   int // names in the process's view
	pending int // steps of journals that speak of it
	handles int

	// A directory's; guarded by the FS.
	children map[string]*node
	loaded   bool
	journal  []*step

	// Where the real file system has it: a directory's one name, or one of a file's
	// that is not in the stash. Guarded by the FS.
	onDisk bool
	parent *node // nil for the root
	name   string

	content content
}

// realPath is where a directory is on disk: at its place, or in the stash.
func (n *node) realPath() string {
	switch {
	case n == n.fs.rootDir:
		return n.fs.root
	case n.onDisk:
		return filepath.Join(n.parent.realPath(), n.name)
	}
	return n.stashPath()
}

func (n *node) stashPath() string { return filepath.Join(n.fs.stash, fmt.Sprint(n.id)) }

// keep gives a file that was found on disk a second name in the stash, so that
// its bytes can be reached whatever happens to its names.
func (n *node) keep() error {
	if n.id != 0 {
		return nil
	}
	n.fs.mu.nextID++
	n.id = n.fs.mu.nextID
	return os.Link(filepath.Join(n.parent.realPath(), n.name), n.stashPath())
}

// forget frees the stash when nobody can come back to the file.
func (n *node) forget() {
	if n.links > 0 || n.pending > 0 || n.handles > 0 || n.dir || n.id == 0 {
		return
	}
	_ = os.Remove(n.stashPath()) // New empties the stash in any case
	n.content.drop()
}

// load reads a directory that was there before.
func (n *node) load() error {
	if n.loaded {
		return nil
	}
	n.children = make(map[string]*node)
	entries, err := os.ReadDir(n.realPath())
	if err != nil {
		return err
	}
	for _, e := range entries {
		if n == n.fs.rootDir && e.Name() == stashName {
			continue
		}
		c := &node{fs: n.fs, dir: e.IsDir(), links: 1, onDisk: true, parent: n, name: e.Name()}
		if !c.dir {
			info, err := e.Info()
			if err != nil {
				return err
			}
			c.content.size, c.content.onDisk, c.content.changed = info.Size(), info.Size(), info.ModTime()
		}
		n.children[e.Name()] = c
	}
	n.loaded = true
	return nil
}

// inside splits a path below the root into its parts.
func (f *FS) inside(path string) (parts []string, ok bool) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, false
	}
	if abs == f.root {
		return nil, true
	}
	rel, ok := strings.CutPrefix(abs, f.root+string(filepath.Separator))
	if !ok {
		return nil, false
	}
	return strings.Split(rel, string(filepath.Separator)), true
}

func pathError(op, path string, err error) error { return &os.PathError{Op: op, Path: path, Err: err} }

var errNoDir = errors.New("not a directory")

// findLocked walks to a node; nil without an error means that its directory is
// there and the name is not.
func (f *FS) findLocked(op, path string, parts []string) (dir, n *node, err error) {
	n = f.rootDir
	for i, name := range parts {
		if !n.dir {
			return nil, nil, pathError(op, path, errNoDir)
		}
		if err := n.load(); err != nil {
			return nil, nil, err
		}
		dir, n = n, n.children[name]
		if n == nil && i < len(parts)-1 {
			return nil, nil, pathError(op, path, fs.ErrNotExist)
		}
	}
	if n != nil && n.dir {
		if err := n.load(); err != nil {
			return nil, nil, err
		}
	}
	return dir, n, nil
}

func (f *FS) mustFindLocked(op, path string, parts []string) (dir, n *node, err error) {
	dir, n, err = f.findLocked(op, path, parts)
	if err == nil && n == nil {
		err = pathError(op, path, fs.ErrNotExist)
	}
	return dir, n, err
}

// Create makes a new file; an old one of the name loses it first.
func (f *FS) Create(path string, c vfs.DiskWriteCategory) (vfs.File, error) {
	parts, ok := f.inside(path)
	if !ok {
		return vfs.Default.Create(path, c)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.createLocked(path, parts)
}

func (f *FS) createLocked(path string, parts []string) (vfs.File, error) {
	dir, old, err := f.findLocked("create", path, parts)
	if err != nil {
		return nil, err
	}
	if old != nil && old.dir {
		return nil, pathError("create", path, errors.New("is a directory"))
	}
	name := parts[len(parts)-1]
	if old != nil {
		if err := f.removeLocked(dir, name); err != nil {
			return nil, err
		}
	}
	n, err := f.newNodeLocked(false)
	if err != nil {
		return nil, err
	}
	n.handles++ // before the journal may be handed over
	if err := f.addLocked(dir, name, n); err != nil {
		return nil, err
	}
	return &file{n: n, name: name, write: true}, nil
}

// newNodeLocked makes a file or directory in the stash.
func (f *FS) newNodeLocked(dir bool) (*node, error) {
	f.mu.nextID++
	n := &node{fs: f, dir: dir, id: f.mu.nextID}
	n.content.changed = time.Now()
	if dir {
		n.children, n.loaded = make(map[string]*node), true
		return n, os.Mkdir(n.stashPath(), 0o755)
	}
	return n, os.WriteFile(n.stashPath(), nil, 0o644)
}

// Link gives a file a second name.
func (f *FS) Link(oldname, newname string) error {
	from, ok1 := f.inside(oldname)
	to, ok2 := f.inside(newname)
	if !ok1 || !ok2 {
		return vfs.Default.Link(oldname, newname)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	_, n, err := f.mustFindLocked("link", oldname, from)
	if err != nil {
		return err
	}
	dir, there, err := f.findLocked("link", newname, to)
	switch {
	case err != nil:
		return err
	case there != nil:
		return &os.LinkError{Op: "link", Old: oldname, New: newname, Err: fs.ErrExist}
	case n.dir:
		return &os.LinkError{Op: "link", Old: oldname, New: newname, Err: errors.New("is a directory")}
	}
	if err := n.keep(); err != nil {
		return err
	}
	return f.addLocked(dir, to[len(to)-1], n)
}

// Open opens a file or directory for reading.
func (f *FS) Open(path string, opts ...vfs.OpenOption) (vfs.File, error) {
	parts, ok := f.inside(path)
	if !ok {
		return vfs.Default.Open(path, opts...)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.openLocked(path, parts, false)
}

func (f *FS) openLocked(path string, parts []string, write bool) (vfs.File, error) {
	_, n, err := f.mustFindLocked("open", path, parts)
	if err != nil {
		return nil, err
	}
	if !n.dir {
		if err := n.keep(); err != nil {
			return nil, err
		}
	}
	n.handles++
	return &file{n: n, name: filepath.Base(path), write: write}, nil
}

// OpenReadWrite opens a file, and makes it if it is not there.
func (f *FS) OpenReadWrite(path string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	parts, ok := f.inside(path)
	if !ok {
		return vfs.Default.OpenReadWrite(path, c, opts...)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	_, n, err := f.findLocked("open", path, parts)
	switch {
	case err != nil:
		return nil, err
	case n == nil:
		return f.createLocked(path, parts)
	}
	return f.openLocked(path, parts, true)
}

// OpenDir opens a directory for syncing.
func (f *FS) OpenDir(path string) (vfs.File, error) {
	if _, ok := f.inside(path); !ok {
		return vfs.Default.OpenDir(path)
	}
	return f.Open(path)
}

// Remove takes a name away. A file stays readable for who has it open.
func (f *FS) Remove(path string) error {
	parts, ok := f.inside(path)
	if !ok {
		return vfs.Default.Remove(path)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	dir, n, err := f.mustFindLocked("remove", path, parts)
	if err != nil {
		return err
	}
	if n.dir && len(n.children) > 0 {
		return pathError("remove", path, errors.New("directory not empty"))
	}
	return f.removeLocked(dir, parts[len(parts)-1])
}

// RemoveAll takes a name away with everything below it.
func (f *FS) RemoveAll(path string) error {
	parts, ok := f.inside(path)
	if !ok {
		return vfs.Default.RemoveAll(path)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	dir, n, err := f.findLocked("remove", path, parts)
	if errors.Is(err, fs.ErrNotExist) || err == nil && n == nil {
		return nil
	}
	if err != nil {
		return err
	}
	return f.removeTreeLocked(dir, parts[len(parts)-1], n)
}

func (f *FS) removeTreeLocked(dir *node, name string, n *node) error {
	if n.dir {
		if err := n.load(); err != nil {
			return err
		}
		for name, c := range n.children {
			if err := f.removeTreeLocked(n, name, c); err != nil {
				return err
			}
		}
	}
	return f.removeLocked(dir, name)
}

// ReuseForWrite renames and opens for writing, keeping the content.
func (f *FS) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := f.Rename(oldname, newname); err != nil {
		return nil, err
	}
	return f.OpenReadWrite(newname, c)
}

// MkdirAll makes a directory and its parents.
func (f *FS) MkdirAll(path string, perm os.FileMode) error {
	parts, ok := f.inside(path)
	if !ok {
		return vfs.Default.MkdirAll(path, perm)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range parts {
		dir, n, err := f.findLocked("mkdir", path, parts[:i+1])
		if err != nil {
			return err
		}
		if n != nil {
			if !n.dir {
				return pathError("mkdir", path, errNoDir)
			}
			continue
		}
		if n, err = f.newNodeLocked(true); err != nil {
			return err
		}
		if err := f.addLocked(dir, parts[i], n); err != nil {
			return err
		}
	}
	return nil
}

// Lock is the real file system's: a lock ends with the process in any case.
func (f *FS) Lock(path string) (io.Closer, error) {
	lock, err := vfs.Default.Lock(path)
	if err != nil {
		return nil, err
	}
	if parts, ok := f.inside(path); ok {
		f.mu.Lock()
		defer f.mu.Unlock()
		dir, n, err := f.findLocked("lock", path, parts)
		if err != nil {
			return nil, errors.Join(err, lock.Close())
		}
		if name := parts[len(parts)-1]; n == nil {
			dir.children[name] = &node{fs: f, links: 1, onDisk: true, parent: dir, name: name}
		}
	}
	return lock, nil
}

// List names what is in a directory.
func (f *FS) List(path string) ([]string, error) {
	parts, ok := f.inside(path)
	if !ok {
		return vfs.Default.List(path)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	_, n, err := f.mustFindLocked("list", path, parts)
	if err != nil {
		return nil, err
	}
	if !n.dir {
		return nil, pathError("list", path, errNoDir)
	}
	names := make([]string, 0, len(n.children))
	for name := range n.children {
		names = append(names, name)
	}
	return names, nil
}

// Stat describes a file or directory.
func (f *FS) Stat(path string) (vfs.FileInfo, error) {
	parts, ok := f.inside(path)
	if !ok {
		return vfs.Default.Stat(path)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	_, n, err := f.mustFindLocked("stat", path, parts)
	if err != nil {
		return nil, err
	}
	return n.info(filepath.Base(path)), nil
}

func (f *FS) PathBase(path string) string    { return filepath.Base(path) }
func (f *FS) PathJoin(elem ...string) string { return filepath.Join(elem...) }
func (f *FS) PathDir(path string) string     { return filepath.Dir(path) }

// GetDiskUsage is the real file system's; what waits in memory is not in it.
func (f *FS) GetDiskUsage(path string) (vfs.DiskUsage, error) {
	return vfs.Default.GetDiskUsage(f.root)
}

// Unwrap is nil: the file system below sees other things than this one.
func (f *FS) Unwrap() vfs.FS { return nil }

// early rolls the dice for handing something over before it is synced.
func (f *FS) early() bool {
	if f.o.Early <= 0 {
		return false
	}
	f.dice.Lock()
	defer f.dice.Unlock()
	return f.dice.Float64() < f.o.Early
}

// seek is the time that a sync takes before anything is on disk.
func (f *FS) seek() {
	if f.o.SyncDelay <= 0 {
		return
	}
	f.dice.Lock()
	d := time.Duration(f.dice.Int64N(int64(f.o.SyncDelay)))
	f.dice.Unlock()
	time.Sleep(d)
}
