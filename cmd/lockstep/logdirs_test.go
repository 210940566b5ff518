package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/segment"
)

// dirsWorld opens log directories as a server does, without the server.
type dirsWorld struct {
	t    *testing.T
	root string
}

func (w dirsWorld) path(name string) string { return filepath.Join(w.root, name) }

func (w dirsWorld) open(metadata string, names ...string) (*logDirs, error) {
	w.t.Helper()
	paths := make([]string, len(names))
	for i, name := range names {
		paths[i] = w.path(name)
	}
	d, err := openLogDirs(paths, w.path(metadata), 1, slog.New(slog.DiscardHandler), func(string, segment.Health) {}, segment.Options{})
	if err != nil {
		return nil, err
	}
	id := d.clusterID()
	if id == "" {
		id = "cluster-one"
	}
	if err := d.claim(id); err != nil {
		w.t.Fatal(err)
	}
	return d, nil
}

// run opens, and closes again.
func (w dirsWorld) run(metadata string, names ...string) *logDirs {
	w.t.Helper()
	d, err := w.open(metadata, names...)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := d.close(); err != nil {
		w.t.Fatal(err)
	}
	return d
}

func (w dirsWorld) refused(metadata, want string, names ...string) {
	w.t.Helper()
	d, err := w.open(metadata, names...)
	if err == nil {
		d.close()
		w.t.Fatalf("%v were taken, want an error with %q", names, want)
	}
	if !strings.Contains(err.Error(), want) {
		w.t.Fatalf("error %q does not say %q", err, want)
	}
}

// Each directory gets a file with an id of its own, and keeps it; a file of
// the version before gets one added.
func TestDirectoryIDs(t *testing.T) {
	w := dirsWorld{t, t.TempDir()}
	if err := os.MkdirAll(w.path("a"), 0o755); err != nil {
		t.Fatal(err)
	}
	old := "version=1\ncluster.id=of-old\nnode.id=1\n"
	if err := os.WriteFile(w.path("a/meta.properties"), []byte(old), 0o644); err != nil {
		t.Fatal(err)
	}
	d := w.run("a", "a", "b")
	if len(d.dirs) != 2 || d.clusterID() != "of-old" {
		t.Fatalf("%+v", d)
	}
	ids := []string{d.dirs[0].meta.directoryID, d.dirs[1].meta.directoryID}
	if len(ids[0]) != 22 || len(ids[1]) != 22 || ids[0] == ids[1] {
		t.Fatalf("ids %q", ids)
	}
	again := w.run("a", "b", "a")
	if again.dirs[1].meta.directoryID != ids[0] || again.dirs[0].meta.directoryID != ids[1] || again.dirs[0].meta.clusterID != "of-old" {
		t.Fatalf("ids changed: %+v %+v", again.dirs[0].meta, again.dirs[1].meta)
	}
}

// A wrong set of disks is refused, and the error names the file.
func TestWrongDirectories(t *testing.T) {
	w := dirsWorld{t, t.TempDir()}
	w.run("a", "a", "b")
	w.run("x", "x")
	write := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(w.path(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(w.path(name+"/meta.properties"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("foreign", "version=1\ncluster.id=cluster-two\nnode.id=1\n")
	w.refused("a", w.path("foreign/meta.properties"), "a", "b", "foreign")
	write("neighbour", "version=1\ncluster.id=cluster-one\nnode.id=2\n")
	w.refused("a", w.path("neighbour/meta.properties"), "a", "b", "neighbour")
	write("garbage", "version=seven\n")
	w.refused("a", w.path("garbage/meta.properties"), "a", "b", "garbage")
	w.refused("new", "was never used", "new", "b")
	if err := os.Symlink(w.path("b"), w.path("link")); err != nil {
		t.Fatal(err)
	}
	w.refused("a", "same directory", "a", "b", "link")
	b, err := os.ReadFile(w.path("b/meta.properties"))
	if err != nil {
		t.Fatal(err)
	}
	write("copy", string(b))
	w.refused("a", "directory.id", "a", "b", "copy")

	d, err := w.open("a", "a", "b")
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	w.refused("a", "locked", "a", "c")
	w.refused("a", "locked", "b")
}

// A directory that cannot be used is offline, and the others are opened; the
// metadata directory must be usable, and one log directory.
func TestOfflineDirectory(t *testing.T) {
	w := dirsWorld{t, t.TempDir()}
	w.run("meta", "a", "b")
	aside := func(name string) (back func()) {
		t.Helper()
		if err := os.Rename(w.path(name), w.path(name+"-aside")); err != nil {
			t.Fatal(err)
		}
		return func() {
			if err := os.RemoveAll(w.path(name)); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(w.path(name+"-aside"), w.path(name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	offline := func(d *logDirs, name, want string) {
		t.Helper()
		if len(d.offline) != 1 || d.offline[0].Path != w.path(name) || !strings.Contains(d.offline[0].Err.Error(), want) {
			t.Fatalf("offline %+v, want %s with %q", d.offline, name, want)
		}
	}

	back := aside("b")
	offline(w.run("meta", "a", "b"), "b", "no such file")
	if _, err := os.Stat(w.path("b")); err == nil {
		t.Fatal("a directory that had been used was made again")
	}
	// A disk that is not mounted leaves an empty directory.
	if err := os.Mkdir(w.path("b"), 0o755); err != nil {
		t.Fatal(err)
	}
	offline(w.run("meta", "a", "b"), "b", "is empty now")
	back()
	// A file in the place of the segment files' directory stands for a disk that
	// answers with errors.
	if err := os.Rename(w.path("b/logs"), w.path("b/logs-aside")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(w.path("b/logs"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	offline(w.run("meta", "a", "b"), "b", "not a directory")
	w.refused("meta", "no log directory can be used", "b")
	if err := os.Remove(w.path("b/logs")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(w.path("b/logs-aside"), w.path("b/logs")); err != nil {
		t.Fatal(err)
	}
	if d := w.run("meta", "a", "b"); len(d.offline) != 0 || len(d.dirs) != 2 {
		t.Fatalf("%+v", d.offline)
	}

	back = aside("meta")
	w.refused("meta", "was never used", "a", "b")
	back()
	w.run("meta", "a", "b")
}

// A directory that the operator takes out of the list stays in mind as long as
// a partition is missing.
func TestRemovedDirectory(t *testing.T) {
	w := dirsWorld{t, t.TempDir()}
	w.run("a", "a", "b")
	for _, missing := range []bool{true, false} {
		d, err := w.open("a", "a")
		if err != nil {
			t.Fatal(err)
		}
		if len(d.offline) != 1 || !d.offline[0].Removed || d.offline[0].Path != w.path("b") {
			t.Fatalf("offline %+v", d.offline)
		}
		var matters []partition.OfflineDir
		if missing {
			matters = d.offline
		}
		if err := d.settle(matters); err != nil {
			t.Fatal(err)
		}
		if err := d.close(); err != nil {
			t.Fatal(err)
		}
	}
	if d := w.run("a", "a"); len(d.offline) != 0 {
		t.Fatalf("offline %+v after nobody missed it", d.offline)
	}
}

// A metadata directory that is no log directory has a ballast of its own, until the stop.
func TestBallastOfTheMetadata(t *testing.T) {
	w := dirsWorld{t, t.TempDir()}
	d, err := w.open("meta", "one")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"meta", "one"} {
		if fi, err := os.Stat(filepath.Join(w.path(name), "ballast")); err != nil || fi.Size() == 0 {
			t.Errorf("%s has no ballast: %v", name, err)
		}
	}
	if err := d.close(); err != nil {
		t.Fatal(err)
	}
	w.root = t.TempDir()
	if d, err = w.open("one", "one"); err != nil {
		t.Fatal(err)
	}
	if d.reserve != nil {
		t.Error("two ballasts in one directory")
	}
	if err := d.close(); err != nil {
		t.Fatal(err)
	}
}
