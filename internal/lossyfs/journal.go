package lossyfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// step is one change of a directory's names that is not on disk yet. Applied,
// it is one system call.
type step struct {
	dir  *node // whose journal it is in
	kind stepKind
	name string
	n    *node
	from string // rename: the old name in the same directory
	done bool

	// after is a step of another directory that this one must not come before: a
	// file that moves is never without a name.
	after *step
}

type stepKind byte

const (
	addName stepKind = iota
	removeName
	renameName
)

// addLocked gives a node a new name.
func (f *FS) addLocked(dir *node, name string, n *node) error {
	dir.children[name] = n
	n.links++
	return f.noteLocked(&step{dir: dir, kind: addName, name: name, n: n})
}

func (f *FS) removeLocked(dir *node, name string) error {
	n := dir.children[name]
	delete(dir.children, name)
	n.links--
	return f.noteLocked(&step{dir: dir, kind: removeName, name: name, n: n})
}

// Rename moves a name; what had the new one loses it in the same step.
func (f *FS) Rename(oldname, newname string) error {
	from, ok1 := f.inside(oldname)
	to, ok2 := f.inside(newname)
	if ok1 != ok2 {
		return &os.LinkError{Op: "rename", Old: oldname, New: newname, Err: errors.New("across the root of lossyfs")}
	}
	if !ok1 {
		return os.Rename(oldname, newname)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	dir, n, err := f.mustFindLocked("rename", oldname, from)
	if err != nil {
		return err
	}
	toDir, there, err := f.findLocked("rename", newname, to)
	if err != nil {
		return err
	}
	a, b := from[len(from)-1], to[len(to)-1]
	switch {
	case there == n:
		return nil
	case there != nil && (there.dir || n.dir):
		return &os.LinkError{Op: "rename", Old: oldname, New: newname, Err: os.ErrExist}
	case dir != toDir && n.dir:
		return &os.LinkError{Op: "rename", Old: oldname, New: newname, Err: errors.New("lossyfs moves no directories to other directories")}
	}
	if !n.dir {
		if err := n.keep(); err != nil {
			return err
		}
	}
	if there != nil {
		there.links--
	}
	delete(dir.children, a)
	toDir.children[b] = n
	if dir == toDir {
		err = f.noteLocked(&step{dir: dir, kind: renameName, from: a, name: b, n: n})
	} else {
		add := &step{dir: toDir, kind: addName, name: b, n: n}
		if err = f.noteLocked(add); err == nil {
			err = f.noteLocked(&step{dir: dir, kind: removeName, name: a, n: n, after: add})
		}
	}
	if there != nil {
		there.forget()
	}
	return err
}

// noteLocked writes a step into its directory's journal.
func (f *FS) noteLocked(s *step) error {
	s.n.pending++
	s.dir.journal = append(s.dir.journal, s)
	if f.early() {
		return f.handOverLocked(s.dir)
	}
	return nil
}

// handOverLocked makes the real directory what the process sees.
func (f *FS) handOverLocked(dir *node) error {
	journal := dir.journal
	dir.journal = nil
	for _, s := range journal {
		if err := f.applyLocked(s); err != nil {
			return fmt.Errorf("lossyfs: hand over %s: %w", filepath.Join(dir.realPath(), s.name), err)
		}
	}
	return nil
}

func (f *FS) applyLocked(s *step) error {
	if s.done {
		return nil
	}
	if s.after != nil && !s.after.done {
		if err := f.handOverLocked(s.after.dir); err != nil { // with what is before it
			return err
		}
	}
	s.done = true
	defer func() {
		s.n.pending--
		s.n.forget()
	}()
	path := filepath.Join(s.dir.realPath(), s.name)
	switch s.kind {
	case addName:
		return s.n.place(s.dir, s.name, path)
	case removeName:
		if s.n.dir {
			return os.RemoveAll(path)
		}
		return os.Remove(path)
	}
	if err := os.Rename(filepath.Join(s.dir.realPath(), s.from), path); err != nil {
		return err
	}
	s.n.onDisk, s.n.parent, s.n.name = true, s.dir, s.name
	return nil
}

// place puts a file or directory from the stash at path. A file that has the
// name goes in the same step: a move replaces.
func (n *node) place(dir *node, name, path string) error {
	if n.dir {
		if err := os.Rename(n.stashPath(), path); err != nil {
			return err
		}
		n.onDisk, n.parent, n.name = true, dir, name
		return nil
	}
	tmp := n.stashPath() + "-link"
	if err := os.Link(n.stashPath(), tmp); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}
