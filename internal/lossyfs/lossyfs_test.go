package lossyfs

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

func newFS(t *testing.T, root string, o Options) *FS {
	t.Helper()
	f, err := New(root, o)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func create(t *testing.T, fs vfs.FS, path, text string) vfs.File {
	t.Helper()
	f, err := fs.Create(path, vfs.WriteCategoryUnspecified)
	must(t, err)
	_, err = f.Write([]byte(text))
	must(t, err)
	return f
}

func syncDir(t *testing.T, fs vfs.FS, path string) {
	t.Helper()
	d, err := fs.OpenDir(path)
	must(t, err)
	must(t, d.Sync())
	must(t, d.Close())
}

// tree is everything below a directory: names of directories, content of files.
func tree(t *testing.T, fs vfs.FS, dir string) []string {
	t.Helper()
	names, err := fs.List(dir)
	must(t, err)
	slices.Sort(names)
	var out []string
	for _, name := range names {
		path := fs.PathJoin(dir, name)
		info, err := fs.Stat(path)
		must(t, err)
		if info.IsDir() {
			out = append(out, name+"/")
			for _, s := range tree(t, fs, path) {
				out = append(out, name+"/"+s)
			}
			continue
		}
		f, err := fs.Open(path)
		must(t, err)
		b, err := io.ReadAll(f)
		must(t, err)
		must(t, f.Close())
		if int64(len(b)) != info.Size() {
			t.Fatalf("%s: read %d bytes, size %d", path, len(b), info.Size())
		}
		out = append(out, fmt.Sprintf("%s=%x", name, b))
	}
	return out
}

// A cut takes bytes, names, removals and moves, each unless its own sync came.
func TestCut(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(fs *FS, root string)
		want []string
	}{
		{"nothing synced", func(fs *FS, root string) { create(t, fs, root+"/a", "1") }, nil},
		{"bytes without the name", func(fs *FS, root string) { must(t, create(t, fs, root+"/a", "1").Sync()) }, nil},
		{"the name without bytes", func(fs *FS, root string) { create(t, fs, root+"/a", "1"); syncDir(t, fs, root) }, []string{"a="}},
		{"both", func(fs *FS, root string) {
			f := create(t, fs, root+"/a", "1")
			syncDir(t, fs, root)
			must(t, f.SyncData())
			_, err := f.Write([]byte("2"))
			must(t, err)
		}, []string{"a=31"}},
		{"a file in a directory without a name", func(fs *FS, root string) {
			must(t, fs.MkdirAll(root+"/d/e", 0o755))
			must(t, create(t, fs, root+"/d/e/a", "1").Sync())
			syncDir(t, fs, root+"/d/e")
			syncDir(t, fs, root+"/d")
		}, nil},
		{"directories that got their names last", func(fs *FS, root string) {
			must(t, fs.MkdirAll(root+"/d/e", 0o755))
			must(t, create(t, fs, root+"/d/e/a", "1").Sync())
			syncDir(t, fs, root+"/d/e")
			syncDir(t, fs, root+"/d")
			syncDir(t, fs, root)
		}, []string{"d/", "d/e/", "d/e/a=31"}},
		{"SyncTo", func(fs *FS, root string) {
			f := create(t, fs, root+"/a", "1")
			syncDir(t, fs, root)
			_, err := f.SyncTo(1)
			must(t, err)
		}, []string{"a="}},
		{"a move to another directory, the old one synced", func(fs *FS, root string) {
			must(t, fs.MkdirAll(root+"/d", 0o755))
			must(t, create(t, fs, root+"/a", "1").Sync())
			syncDir(t, fs, root)
			must(t, fs.Rename(root+"/a", root+"/d/b"))
			syncDir(t, fs, root)
		}, []string{"d/", "d/b=31"}},
		{"a move to another directory, the new one synced", func(fs *FS, root string) {
			must(t, fs.MkdirAll(root+"/d", 0o755))
			must(t, create(t, fs, root+"/a", "1").Sync())
			syncDir(t, fs, root)
			must(t, fs.Rename(root+"/a", root+"/d/b"))
			syncDir(t, fs, root+"/d")
		}, []string{"a=31", "d/", "d/b=31"}},
	} {
		root := t.TempDir()
		tt.do(newFS(t, root, Options{}), root)
		if got := tree(t, newFS(t, root, Options{}), root); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// What is removed stays readable for who has it open, and goes from the disk
// when the last one closes it.
func TestRemovedFile(t *testing.T) {
	root := t.TempDir()
	fs := newFS(t, root, Options{})
	must(t, create(t, fs, root+"/a", "1").Close())
	r, err := fs.Open(root + "/a")
	must(t, err)
	syncDir(t, fs, root)
	must(t, fs.Remove(root+"/a"))
	if _, err := os.Stat(root + "/a"); err != nil {
		t.Errorf("the name went before its sync: %v", err)
	}
	syncDir(t, fs, root)
	b := make([]byte, 1)
	if _, err := r.ReadAt(b, 0); err != nil || b[0] != '1' {
		t.Errorf("%q %v", b, err)
	}
	must(t, r.Close())
	if left, err := os.ReadDir(filepath.Join(root, stashName)); err != nil || len(left) != 0 {
		t.Errorf("the stash has %v %v", left, err)
	}
}

// twins does the same operations on a lossy file system and on Pebble's
// crashable one in memory, which knows what a power cut may leave.
type twins struct {
	t     *testing.T
	rng   *rand.Rand
	lossy *FS
	mem   *vfs.MemFS
	root  string
	open  map[string][2]vfs.File
}

func (w *twins) both(do func(fs vfs.FS, root string) error) bool {
	a, b := do(w.lossy, w.root), do(w.mem, "/r")
	if (a == nil) != (b == nil) {
		w.t.Fatalf("lossy: %v, in memory: %v", a, b)
	}
	return a == nil
}

// dirs are there from the beginning, with names that are synced.
var dirs = []string{"", "/d", "/d/e"}

func (w *twins) path() string {
	return dirs[w.rng.IntN(len(dirs))] + "/" + string(rune('w'+w.rng.IntN(4)))
}

func (w *twins) step() {
	p := w.path()
	switch w.rng.IntN(12) {
	case 0, 1:
		var fs [2]vfs.File
		i := 0
		if w.both(func(f vfs.FS, root string) (err error) {
			fs[i], err = f.Create(root+p, vfs.WriteCategoryUnspecified)
			i++
			return err
		}) {
			w.open[p] = fs
		}
	case 2, 3, 4, 5:
		files, ok := w.open[p]
		if !ok {
			return
		}
		b := make([]byte, w.rng.IntN(3*blockSize))
		for i := range b {
			b[i] = byte(w.rng.Uint32())
		}
		at := int64(w.rng.IntN(2 * blockSize))
		for _, f := range files {
			_, err := f.WriteAt(bytes.Clone(b), at)
			must(w.t, err)
		}
	case 6, 7:
		if files, ok := w.open[p]; ok {
			must(w.t, files[0].Sync())
			must(w.t, files[1].Sync())
		}
	case 8:
		d := dirs[w.rng.IntN(len(dirs))]
		syncDir(w.t, w.lossy, w.root+d)
		syncDir(w.t, w.mem, "/r"+d)
	case 9:
		if w.both(func(f vfs.FS, root string) error { return f.Remove(root + p) }) {
			delete(w.open, p)
		}
	case 10:
		to := filepath.Dir(p) + "/" + string(rune('w'+w.rng.IntN(4)))
		if w.both(func(f vfs.FS, root string) error { return f.Rename(root+p, root+to) }) && to != p {
			delete(w.open, to)
			if f, ok := w.open[p]; ok {
				w.open[filepath.Clean(to)] = f
				delete(w.open, p)
			}
		}
	case 11:
		// Names that are never moved: on two names of one file Pebble's Rename is not POSIX'.
		to := dirs[w.rng.IntN(len(dirs))] + "/" + string(rune('k'+w.rng.IntN(4)))
		w.both(func(f vfs.FS, root string) error { return f.Link(root+p, root+to) })
	}
}

// Random operations: the process sees what it would see on Pebble's file system
// in memory, and a cut leaves what a crash leaves there.
func TestLikeCrashableMem(t *testing.T) {
	for seed := range uint64(150) {
		w := &twins{t: t, rng: rand.New(rand.NewPCG(seed, 1)), mem: vfs.NewCrashableMem(), root: t.TempDir(), open: map[string][2]vfs.File{}}
		w.lossy = newFS(t, w.root, Options{})
		must(t, w.lossy.MkdirAll(w.root+"/d/e", 0o755))
		must(t, w.mem.MkdirAll("/r/d/e", 0o755))
		syncDir(t, w.mem, "/")
		for _, d := range []string{"", "/d"} {
			syncDir(t, w.lossy, w.root+d)
			syncDir(t, w.mem, "/r"+d)
		}
		for range 3 {
			for range 60 {
				w.step()
			}
			live, want := tree(t, w.lossy, w.root), tree(t, w.mem, "/r")
			if !slices.Equal(live, want) {
				t.Fatalf("seed %d: the process sees\n%.2000q\nwant\n%.2000q", seed, live, want)
			}
			// The power goes.
			w.mem = w.mem.CrashClone(vfs.CrashCloneCfg{})
			w.lossy = newFS(t, w.root, Options{})
			clear(w.open)
			left, want := tree(t, w.lossy, w.root), tree(t, w.mem, "/r")
			if !slices.Equal(left, want) {
				t.Fatalf("seed %d: a cut left\n%.2000q\nwant\n%.2000q", seed, left, want)
			}
		}
	}
}

// With Early a cut takes some blocks and leaves others; what was synced stays.
func TestEarly(t *testing.T) {
	root := t.TempDir()
	fs := newFS(t, root, Options{Early: 0.5, Seed: 7})
	f := create(t, fs, root+"/a", "synced")
	must(t, f.Sync())
	syncDir(t, fs, root)
	const blocks = 64
	_, err := f.WriteAt(bytes.Repeat([]byte{1}, blocks*blockSize), blockSize)
	must(t, err)
	b, err := os.ReadFile(root + "/a")
	must(t, err)
	if !bytes.HasPrefix(b, []byte("synced")) {
		t.Error("synced bytes are gone")
	}
	there, zero := 0, 0
	for at := blockSize; at < len(b); at += blockSize {
		switch block := b[at:min(at+blockSize, len(b))]; {
		case bytes.Count(block, []byte{1}) == len(block):
			there++
		case bytes.Count(block, []byte{0}) == len(block):
			zero++
		default:
			t.Errorf("block at %d is neither old nor new", at)
		}
	}
	if there < blocks/4 || there > blocks*3/4 || zero == 0 {
		t.Errorf("%d of %d blocks came early, %d holes", there, blocks, zero)
	}
}

// A sync takes a disk's time before anything is on disk.
func TestSyncDelay(t *testing.T) {
	root := t.TempDir()
	fs := newFS(t, root, Options{SyncDelay: time.Millisecond, Seed: 1})
	began := time.Now()
	f := create(t, fs, root+"/a", "1")
	for range 20 {
		must(t, f.Sync())
	}
	if d := time.Since(began); d < 2*time.Millisecond {
		t.Errorf("20 syncs took %v", d)
	}
}
