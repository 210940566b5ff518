package partition

import (
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/segment"
)

// dirsWorld is a manager over several log directories, each with a disk of its
// own to fail.
type dirsWorld struct {
	t     *testing.T
	disks map[string]*disk
	fs    vfs.FS
	clock *clock.Manual
	image *metadata.Image

	logger  *slog.Logger // nil: quiet
	cleaner CleanerOptions

	stores map[string]*segment.Store
	m      *Manager
}

func newDirsWorld(t *testing.T, dirs ...string) *dirsWorld {
	w := &dirsWorld{
		t: t, disks: map[string]*disk{}, fs: vfs.NewMem(), image: metadata.NewImage(),
		clock: clock.NewManual(time.UnixMilli(1_000_000)),
	}
	for _, dir := range dirs {
		w.disks[dir] = &disk{}
	}
	w.open(dirs)
	t.Cleanup(w.close)
	return w
}

func (w *dirsWorld) open(dirs []string, offline ...OfflineDir) {
	w.t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	o := Options{NodeID: self, OfflineDirs: offline, Clock: w.clock, Logger: quiet, Cleaner: w.cleaner}
	if w.logger != nil {
		o.Logger = w.logger
	}
	w.stores = map[string]*segment.Store{}
	for _, dir := range dirs {
		s, err := segment.Open(segment.Options{Dir: dir, FS: errorfs.Wrap(w.fs, w.disks[dir]), Clock: w.clock, Logger: quiet})
		if err != nil {
			w.t.Fatal(err)
		}
		w.stores[dir] = s
		o.Stores = append(o.Stores, s)
	}
	w.m = NewManager(o)
	w.m.Apply(nil, w.image)
}

func (w *dirsWorld) close() {
	w.m.Close()
	for _, s := range w.stores {
		s.Close()
	}
}

func (w *dirsWorld) restart(dirs []string, offline ...OfflineDir) {
	w.t.Helper()
	w.close()
	w.open(dirs, offline...)
}

// topic creates a topic, or deletes it if partitions is 0.
func (w *dirsWorld) topic(name string, partitions int32, configs ...string) {
	w.t.Helper()
	id := metadata.TopicID{15: name[0]}
	e := w.image.Edit()
	if partitions == 0 {
		e.DeleteTopic(id)
	} else {
		t := &metadata.Topic{ID: id, Name: name, Configs: map[string]string{}}
		for i := 0; i+1 < len(configs); i += 2 {
			t.Configs[configs[i]] = configs[i+1]
		}
		for i := range partitions {
			t.Partitions = append(t.Partitions, &metadata.Partition{Index: i, Replicas: []int32{self}, ISR: []int32{self}, Leader: self})
		}
		e.PutTopic(t)
	}
	prev := w.image
	w.image = e.Image(prev.Revision + 1)
	w.m.Apply(prev, w.image)
}

func (w *dirsWorld) get(name string, index int32) *Partition {
	w.t.Helper()
	p := w.m.Get(name, index)
	if p == nil {
		w.t.Fatalf("no partition %s-%d", name, index)
	}
	return p
}

func (w *dirsWorld) write(p *Partition) {
	w.t.Helper()
	if a := <-produce(p, batch(1), -1); a.err != nil {
		w.t.Fatal(a.err)
	}
}

func (w *dirsWorld) offline(p *Partition, want ...string) {
	w.t.Helper()
	err := p.Info().Offline
	if err == nil {
		w.t.Fatalf("%s is online, want offline with %q", p.Key(), want)
	}
	for _, s := range want {
		if !strings.Contains(err.Error(), s) {
			w.t.Fatalf("%s: %q does not say %q", p.Key(), err, s)
		}
	}
	if a := <-produce(p, batch(1), -1); !errors.Is(a.err, ErrStorage) {
		w.t.Fatalf("%s is offline, produce answers %v", p.Key(), a.err)
	}
}

func logsIn(s *segment.Store) int { return len(s.Logs()) }

// New logs go where the fewest are, and are found again where they lie.
func TestNewLogsSpread(t *testing.T) {
	w := newDirsWorld(t, "a", "b")
	w.topic("one", 3)
	w.topic("two", 3)
	if a, b := logsIn(w.stores["a"]), logsIn(w.stores["b"]); a != 3 || b != 3 {
		t.Fatalf("%d and %d logs", a, b)
	}
	where := map[int32]string{}
	for i := range int32(3) {
		w.write(w.get("one", i))
		where[i] = w.get("one", i).Log().Dir()
	}
	w.restart([]string{"b", "a"})
	for i := range int32(3) {
		p := w.get("one", i)
		if got := p.Log().Dir(); got != where[i] || end(p) != 1 {
			t.Fatalf("%s is in %s with %d records, was in %s", p.Key(), got, end(p), where[i])
		}
	}
	w.topic("two", 0)
	if a, b := logsIn(w.stores["a"]), logsIn(w.stores["b"]); a+b != 3 {
		t.Fatalf("%d and %d logs after a topic was deleted", a, b)
	}
	w.topic("three", 3)
	if a, b := logsIn(w.stores["a"]), logsIn(w.stores["b"]); a != 3 || b != 3 {
		t.Fatalf("%d and %d logs", a, b)
	}
}

// While a directory is offline, a partition whose log may be in it is offline
// too and gets no empty log; what is created then goes elsewhere, and what the
// directory holds is there again when it is back.
func TestStartWithoutADirectory(t *testing.T) {
	w := newDirsWorld(t, "a", "b")
	w.topic("orders", 2)
	for i := range int32(2) {
		w.write(w.get("orders", i))
	}
	inA, inB := w.get("orders", 0), w.get("orders", 1)
	if inA.dir.path != "a" || inB.dir.path != "b" {
		t.Fatalf("%s in %s, %s in %s", inA.Key(), inA.dir, inB.Key(), inB.dir)
	}

	w.restart([]string{"a"}, OfflineDir{Path: "/mnt/b", Err: errors.New("input/output error")})
	w.write(w.get("orders", 0))
	w.offline(w.get("orders", 1), "/mnt/b", "input/output error")
	if !errors.Is(w.get("orders", 1).Info().Offline, ErrDirOffline) || logsIn(w.stores["a"]) != 1 {
		t.Fatal("an empty log was made for a partition that is elsewhere")
	}
	w.topic("later", 2)
	w.write(w.get("later", 0))
	w.write(w.get("later", 1))
	dirs := w.m.LogDirs()
	if len(dirs) != 2 || dirs[0].Err != nil || len(dirs[0].Partitions) != 3 || dirs[1].Err == nil || dirs[1].Path != "/mnt/b" {
		t.Fatalf("%+v", dirs)
	}

	w.restart([]string{"a", "b"})
	for _, p := range []*Partition{w.get("orders", 0), w.get("orders", 1), w.get("later", 0), w.get("later", 1)} {
		if p.Info().Offline != nil || end(p) == 0 {
			t.Fatalf("%s: %v, end %d", p.Key(), p.Info().Offline, end(p))
		}
	}
	if got := w.m.OfflineDirs(); len(got) != 0 {
		t.Fatalf("offline %v", got)
	}
}

// A directory that is not configured any more counts only while a partition is
// missing.
func TestRemovedDirectory(t *testing.T) {
	w := newDirsWorld(t, "a", "b")
	w.topic("orders", 1)
	gone := OfflineDir{Path: "/mnt/c", Err: errors.New("not in log.dirs any more"), Removed: true}
	w.restart([]string{"a", "b"}, gone)
	if len(w.m.OfflineDirs()) != 0 || len(w.m.LogDirs()) != 2 {
		t.Fatalf("offline %v", w.m.OfflineDirs())
	}
	w.restart([]string{"b"}, OfflineDir{Path: "a", Err: gone.Err, Removed: true})
	w.offline(w.get("orders", 0), "not in log.dirs any more")
	if len(w.m.OfflineDirs()) != 1 {
		t.Fatalf("offline %v", w.m.OfflineDirs())
	}
}

// A directory whose fsync fails goes offline with its partitions, also with
// those that nobody writes to; the others go on.
func TestDirectoryFails(t *testing.T) {
	w := newDirsWorld(t, "a", "b")
	w.topic("orders", 4) // 0 and 2 in a, 1 and 3 in b
	for i := range int32(4) {
		w.write(w.get("orders", i))
	}
	w.disks["b"].fail(errors.New("input/output error"))
	if a := <-produce(w.get("orders", 1), batch(1), -1); !errors.Is(a.err, ErrStorage) {
		t.Fatalf("after a failed fsync: %v", a.err)
	}
	w.offline(w.get("orders", 1), "input/output error")
	w.offline(w.get("orders", 3), "input/output error")
	w.write(w.get("orders", 0))
	w.write(w.get("orders", 2))
	w.topic("later", 2)
	w.write(w.get("later", 0))
	w.write(w.get("later", 1))
	if got := w.m.OfflineDirs(); len(got) != 1 || got[0].Path != "b" || got[0].Err == nil {
		t.Fatalf("offline %v", got)
	}
	w.disks["b"].fail(nil)
	w.restart([]string{"a", "b"})
	for i := range int32(4) {
		if p := w.get("orders", i); p.Info().Offline != nil {
			t.Fatalf("%s: %v", p.Key(), p.Info().Offline)
		}
	}
}

// An operator may move logs between directories by hand while nothing runs,
// there and back; two copies of one log are refused, and a lost one is told.
func TestLogsMovedByHand(t *testing.T) {
	w := newDirsWorld(t, "a", "b")
	w.topic("orders", 1)
	p := w.get("orders", 0)
	w.write(p)
	if p.dir.path != "a" {
		t.Fatalf("in %s", p.dir)
	}
	name := segment.LogID{Topic: p.key.TopicID}.String()
	move := func(from, to string) {
		t.Helper()
		w.close()
		if err := w.fs.Rename(filepath.Join(from, "logs", name), filepath.Join(to, "logs", name)); err != nil {
			t.Fatal(err)
		}
		w.open([]string{"a", "b"})
	}
	for i, step := range [][2]string{{"a", "b"}, {"b", "a"}, {"a", "b"}} {
		move(step[0], step[1])
		p := w.get("orders", 0)
		if p.Info().Offline != nil || p.dir.path != step[1] || end(p) != int64(i+1) {
			t.Fatalf("moved to %s: in %s, end %d, %v", step[1], p.dir, end(p), p.Info().Offline)
		}
		if got := w.stores[step[0]].Missing(); len(got) != 0 {
			t.Fatalf("%s still knows %v", step[0], got)
		}
		// What the old place knew must not be believed when the log comes back: cut
		// it, and write other batches.
		if err := p.Log().Truncate(int64(i)); err != nil {
			t.Fatal(err)
		}
		w.restart([]string{"a", "b"})
		w.write(w.get("orders", 0))
		w.write(w.get("orders", 0))
	}

	w.close()
	if _, err := vfs.Clone(w.fs, w.fs, filepath.Join("b", "logs", name), filepath.Join("a", "logs", name)); err != nil {
		t.Fatal(err)
	}
	w.open([]string{"a", "b"})
	w.offline(w.get("orders", 0), filepath.Join("a", "logs", name), filepath.Join("b", "logs", name))

	w.close()
	for _, dir := range []string{"a", "b"} {
		if err := w.fs.RemoveAll(filepath.Join(dir, "logs", name)); err != nil {
			t.Fatal(err)
		}
	}
	w.open([]string{"a", "b"})
	w.offline(w.get("orders", 0), "missing")
}

// A log of a topic that the metadata does not know stays where it is.
func TestStraysStay(t *testing.T) {
	w := newDirsWorld(t, "a", "b")
	w.topic("orders", 2)
	w.restart([]string{"a"}, OfflineDir{Path: "b", Err: errors.New("unplugged")})
	w.topic("orders", 0)
	w.restart([]string{"a", "b"})
	if a, b := logsIn(w.stores["a"]), logsIn(w.stores["b"]); a != 0 || b != 1 {
		t.Fatalf("%d and %d logs; the topic was deleted while b was away", a, b)
	}
}
