package segment

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/lockstep-kafka/lockstep/internal/clock"
)

// faultDisk is a file system whose operations fail as a test says, and that
// tells how much room it has.
type faultDisk struct {
	vfs.FS
	inner *vfs.MemFS // without faults
	mu    sync.Mutex
	fault func(errorfs.Op) error
	usage vfs.DiskUsage // total 0: does not tell
}

func newFaultDisk() *faultDisk {
	d := &faultDisk{inner: vfs.NewMem()}
	d.FS = errorfs.Wrap(d.inner, errorfs.InjectorFunc(func(op errorfs.Op) error {
		d.mu.Lock()
		f := d.fault
		d.mu.Unlock()
		if f == nil {
			return nil
		}
		return f(op)
	}))
	return d
}

func (d *faultDisk) fail(f func(errorfs.Op) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fault = f
}

func (d *faultDisk) free(n uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.usage.AvailBytes = n
}

func (d *faultDisk) GetDiskUsage(string) (vfs.DiskUsage, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.usage.TotalBytes == 0 {
		return d.usage, vfs.ErrUnsupported
	}
	return d.usage, nil
}

// Kinds of files in a log directory.
func fileKind(path string) string {
	base := filepath.Base(path)
	switch {
	case strings.HasSuffix(base, fileSuffix):
		return "segment"
	case strings.HasPrefix(base, "watermarks"):
		return "marks"
	case strings.Contains(path, indexDir):
		return "index"
	}
	return "directory"
}

// Every fault of the disk against every operation that meets it: what the
// operation answers, what becomes of the log and of the directory, and whether
// an append and a flush that come after the fault are taken.
func TestFaultsOfTheDisk(t *testing.T) {
	write := func(kind string) func(errorfs.Op) bool {
		return func(op errorfs.Op) bool {
			return fileKind(op.Path) == kind && (op.Kind == errorfs.OpFileWrite || op.Kind == errorfs.OpFileWriteAt)
		}
	}
	syncs := func(kind string) func(errorfs.Op) bool {
		return func(op errorfs.Op) bool {
			return fileKind(op.Path) == kind && (op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData)
		}
	}
	creates := func(op errorfs.Op) bool { return fileKind(op.Path) == "segment" && op.Kind == errorfs.OpCreate }
	reads := func(op errorfs.Op) bool { return fileKind(op.Path) == "segment" && op.Kind == errorfs.OpFileReadAt }
	removes := func(op errorfs.Op) bool { return fileKind(op.Path) == "segment" && op.Kind == errorfs.OpRemove }

	appendOne := func(l *Log) error {
		_, err := l.Append(testBatch{base: l.EndOffset(), n: 1, epoch: 1, value: 50}.build())
		return err
	}
	rolls := func(l *Log) error {
		l.SetConfig(Config{SegmentBytes: 1, RetentionMs: -1, RetentionBytes: -1})
		return appendOne(l)
	}
	reading := func(l *Log) error {
		v, err := l.Read(0, 1000, l.EndOffset(), true)
		if err == nil {
			_, err = v.ReadAt(make([]byte, v.N), 0)
			v.Release()
		}
		return err
	}
	firstRoll := func(l *Log) error {
		l, err := l.store.OpenLog(topicA, 1, Config{SegmentBytes: 1, RetentionMs: -1, RetentionBytes: -1})
		for err == nil && len(l.Segments()) < 2 {
			err = appendOne(l)
		}
		return err
	}
	startMoves := func(l *Log) error { return l.SetStartOffset(6) }
	checkpoints := func(l *Log) error {
		l.SetHighWatermark(2)
		l.store.flusher.checkpoint()
		return l.store.failure()
	}
	deletes := func(l *Log) error { return l.store.Delete(topicA, 1) }
	creating := func(l *Log) error { _, err := l.store.OpenLog(topicA, 2, Config{}); return err }

	for _, tt := range []struct {
		name  string
		fault error
		on    func(errorfs.Op) bool
		op    func(*Log) error

		want  error // what the operation answers: nil, the fault itself, or
		state State // of the directory
		after error // what a later append and flush answer
	}{
		{"ENOSPC, roll", syscall.ENOSPC, creates, rolls, ErrFull, Full, nil},
		{"EDQUOT, roll", syscall.EDQUOT, creates, rolls, ErrFull, Full, nil},
		{"EIO, roll", syscall.EIO, creates, rolls, syscall.EIO, Healthy, nil},
		{"EMFILE, roll", syscall.EMFILE, creates, rolls, syscall.EMFILE, Healthy, nil},
		{"EIO, write of marks, checkpoint", syscall.EIO, write("marks"), checkpoints, nil, Healthy, nil},
		{"ENOSPC, write of marks, log start", syscall.ENOSPC, write("marks"), startMoves, syscall.ENOSPC, Healthy, nil},
		{"EIO, fsync, flush", syscall.EIO, syncs("segment"), flush, ErrFailed, Failed, ErrFailed},
		{"ENOSPC, fsync, flush", syscall.ENOSPC, syncs("segment"), flush, ErrFailed, Failed, ErrFailed},
		{"EIO, fsync of a directory, flush", syscall.EIO, syncs("directory"), flush, ErrFailed, Failed, ErrFailed},
		{"EIO, fsync of marks, checkpoint", syscall.EIO, syncs("marks"), checkpoints, ErrFailed, Failed, ErrFailed},
		{"EIO, fsync of marks, roll", syscall.EIO, syncs("marks"), firstRoll, ErrFailed, Failed, ErrFailed},
		{"EIO, fsync of marks, log start", syscall.EIO, syncs("marks"), startMoves, ErrFailed, Failed, ErrFailed},
		{"EIO, fsync of marks, deletion", syscall.EIO, syncs("marks"), deletes, ErrFailed, Failed, ErrFailed},
		{"EIO, fsync of a directory, deletion", syscall.EIO, syncs("directory"), deletes, syscall.EIO, Failed, ErrFailed},
		{"EIO, removal, log start", syscall.EIO, removes, startMoves, ErrFailed, Healthy, ErrFailed},
		{"EIO, creation of another log", syscall.EIO, creates, creating, syscall.EIO, Healthy, nil},
		{"EIO, read", syscall.EIO, reads, reading, syscall.EIO, Healthy, nil},
		{"EIO, fsync of the index, append", syscall.EIO, syncs("index"), appendOne, nil, Healthy, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			disk := newFaultDisk()
			o := testOptions(disk)
			o.ReserveBytes = 0 // the default
			s := mustOpen(t, o)
			for p := range int32(2) {
				if _, err := s.OpenLog(topicA, p, Config{SegmentBytes: 500, RetentionMs: -1, RetentionBytes: -1}); err != nil {
					t.Fatal(err)
				}
			}
			l := mustLog(t, s, Config{SegmentBytes: 500, RetentionMs: -1, RetentionBytes: -1})
			appendN(t, l, 4, 1)
			end := l.EndOffset()
			disk.fail(func(op errorfs.Op) error {
				if tt.on(op) {
					return tt.fault
				}
				return nil
			})
			if err := tt.op(l); !errors.Is(err, tt.want) {
				t.Errorf("the operation answers %v, want %v", err, tt.want)
			}
			if got := s.Health().State; got != tt.state {
				t.Errorf("the directory is %v, want %v", got, tt.state)
			}
			disk.fail(nil)
			s.space.look()
			if err := appendOne(l); !errors.Is(err, tt.after) {
				t.Errorf("a later append answers %v, want %v", err, tt.after)
			}
			if err := flush(l); !errors.Is(err, tt.after) {
				t.Errorf("a later flush answers %v, want %v", err, tt.after)
			}
			if tt.after == nil && s.Health().State != Healthy {
				t.Errorf("afterwards the directory is %v", s.Health())
			}
			if got := content(t, l, l.StartOffset(), 1<<20); len(split(t, got)) < 2 || l.EndOffset() < end {
				t.Errorf("what was there cannot be read any more: %d batches, end %d", len(split(t, got)), l.EndOffset())
			}
		})
	}
}

// brokenFile is a segment file that takes only a part of a write, or of none.
type brokenFile struct {
	dataFile
	d *brokenDisk
}

type brokenDisk struct {
	mu    sync.Mutex
	after int   // bytes of a write that get through
	err   error // nil: all is well
	cut   error // of Truncate
}

func (d *brokenDisk) set(after int, err, cut error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.after, d.err, d.cut = after, err, cut
}

func (f brokenFile) WriteAt(p []byte, at int64) (int, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if f.d.err == nil {
		return f.dataFile.WriteAt(p, at)
	}
	n, err := f.dataFile.WriteAt(p[:min(f.d.after, len(p))], at)
	return n, errors.Join(err, f.d.err)
}

func (f brokenFile) Truncate(size int64) error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if f.d.cut != nil {
		return f.d.cut
	}
	return f.dataFile.Truncate(size)
}

// A write of which only a part gets through is undone in place: neither the next
// append nor a recovery meets its bytes. The bytes that get through hold a whole
// batch, which a recovery would take for one that was appended.
func TestWriteThatFails(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want error
	}{{syscall.EIO, syscall.EIO}, {syscall.ENOSPC, ErrFull}} {
		t.Run(tt.err.Error(), func(t *testing.T) {
			var broken brokenDisk
			o := diskOptions(t)
			o.wrap = func(f dataFile) dataFile { return brokenFile{f, &broken} }
			s := mustOpen(t, o)
			l := mustLog(t, s, Config{})
			appendN(t, l, 2, 1)
			a := testBatch{base: 6, n: 2, epoch: 1, value: 40}.build()
			b := testBatch{base: 8, n: 2, epoch: 1, value: 40}.build()
			broken.set(len(a)+30, tt.err, nil)
			if _, err := l.Append(append(a, b...)); !errors.Is(err, tt.want) {
				t.Fatalf("append: %v", err)
			}
			seg := l.Segments()[0]
			if f, err := s.disk.Stat(seg.Path); err != nil || f.Size() != seg.Size {
				t.Errorf("the file has %d bytes, the segment %d: %v", f.Size(), seg.Size, err)
			}
			broken.set(0, nil, nil)
			s.space.look()
			mustAppend(t, l, testBatch{base: 6, n: 1, epoch: 2, value: 10}.build())
			mustFlush(t, l)
			if h := s.Health(); h.State != Healthy {
				t.Errorf("%v", h)
			}
			want := content(t, l, 0, 1<<20)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			o.wrap = nil
			l = mustLog(t, mustOpen(t, o), Config{})
			if got := content(t, l, 0, 1<<20); string(got) != string(want) || l.EndOffset() != 7 {
				t.Errorf("after a restart the log ends at %d", l.EndOffset())
			}
		})
	}
	t.Run("and cannot be undone", func(t *testing.T) {
		var broken brokenDisk
		o := diskOptions(t)
		o.wrap = func(f dataFile) dataFile { return brokenFile{f, &broken} }
		s := mustOpen(t, o)
		l := mustLog(t, s, Config{})
		appendN(t, l, 2, 1)
		broken.set(100, syscall.EIO, syscall.EIO)
		if _, err := l.Append(testBatch{base: 6, n: 2, value: 400}.build()); !errors.Is(err, ErrFailed) {
			t.Fatalf("append: %v", err)
		}
		broken.set(0, nil, nil)
		if _, err := l.Append(testBatch{base: 6, n: 2}.build()); !errors.Is(err, ErrFailed) {
			t.Errorf("a later append: %v", err)
		}
		other, err := s.OpenLog(topicA, 1, Config{})
		if err != nil {
			t.Fatal(err)
		}
		appendN(t, other, 1, 1)
		if got := len(split(t, content(t, l, 0, 1<<20))); got != 2 || s.Health().State != Healthy {
			t.Errorf("%d batches, directory %v", got, s.Health())
		}
	})
}

// The reserve: records end above it, our own batches at half of it, the ballast
// is given up at a quarter, and everything comes back by itself, the ballast
// first.
func TestReserve(t *testing.T) {
	const kb = 1 << 10
	disk := newFaultDisk()
	disk.usage = vfs.DiskUsage{AvailBytes: 2000 * kb, TotalBytes: 4000 * kb}
	o := testOptions(disk)
	o.ReserveBytes = 800 * kb
	s := mustOpen(t, o)
	l := mustLog(t, s, Config{})
	send := func(size int, own bool) error {
		b := testBatch{base: l.EndOffset(), n: 1, value: size}.build()
		if own {
			_, err := l.AppendReserved(b)
			return err
		}
		_, err := l.Append(b)
		return err
	}
	for _, step := range []struct {
		free    uint64 // KiB, as the disk says it from here on
		size    int    // KiB of the append
		own     bool
		look    bool // the watcher's timer comes first
		later   bool // … and the start is over
		want    error
		state   State
		ballast int64 // KiB
	}{
		{free: 2000, size: 100, want: nil, state: Healthy, ballast: 200},
		// What was granted at the last look still holds.
		{free: 850, size: 100, want: nil, state: Healthy, ballast: 200},
		{free: 850, size: 1100, want: ErrFull, state: Full, ballast: 200},
		{free: 850, size: 1, want: ErrFull, state: Full, ballast: 200},
		{free: 850, size: 1, own: true, want: nil, state: Full, ballast: 200},
		// Not yet: the state would change its mind with each append.
		{free: 899, size: 1, look: true, want: ErrFull, state: Full, ballast: 200},
		{free: 900, size: 1, look: true, want: nil, state: Healthy, ballast: 200},
		// Somebody else fills the disk.
		{free: 700, size: 1, look: true, want: ErrFull, state: Full, ballast: 200},
		{free: 700, size: 290, own: true, want: nil, state: Full, ballast: 200},
		{free: 700, size: 290, own: true, want: ErrFull, state: Full, ballast: 200},
		{free: 201, size: 1, look: true, own: true, want: ErrFull, state: Full, ballast: 200},
		{free: 199, size: 1, look: true, own: true, want: ErrFull, state: Full, ballast: 0},
		{free: 0, size: 1, look: true, want: ErrFull, state: Full, ballast: 0},
		{free: 599, size: 1, look: true, want: ErrFull, state: Full, ballast: 0},
		// Others may be starting beside us.
		{free: 600, size: 1, look: true, want: ErrFull, state: Full, ballast: 0},
		{free: 600, size: 1, look: true, later: true, want: ErrFull, state: Full, ballast: 200},
		{free: 1000, size: 1, look: true, want: nil, state: Healthy, ballast: 200},
	} {
		disk.free(step.free * kb)
		if step.later {
			s.space.scarce = time.Time{}
		}
		if step.look {
			s.health.look()
		}
		if err := send(step.size*kb, step.own); !errors.Is(err, step.want) {
			t.Fatalf("%+v: append answers %v", step, err)
		}
		if got := s.Health(); got.State != step.state {
			t.Fatalf("%+v: %v", step, got)
		}
		var size int64
		if fi, err := disk.Stat("data/" + ballastFile); err == nil {
			size = fi.Size()
		}
		if size != step.ballast*kb {
			t.Fatalf("%+v: ballast has %d bytes", step, size)
		}
	}
}

// The ballast is given up before the first write of a start, which a full disk
// would refuse; and one of another size is replaced.
func TestBallastAtStart(t *testing.T) {
	disk := newFaultDisk()
	disk.usage = vfs.DiskUsage{AvailBytes: 10 << 20, TotalBytes: 20 << 20}
	o := testOptions(disk)
	o.ReserveBytes = 4 << 20
	s := mustOpen(t, o)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	o.ReserveBytes = 6 << 20
	disk.free(9 << 20)
	s = mustOpen(t, o)
	if fi, err := disk.Stat("data/" + ballastFile); err != nil || fi.Size() != 1536<<10 {
		t.Fatalf("%v %v", fi, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	disk.free(0)
	disk.fail(func(op errorfs.Op) error {
		_, err := disk.inner.Stat("data/" + ballastFile)
		if err == nil && (op.Kind == errorfs.OpFileWrite || op.Kind == errorfs.OpCreate || op.Kind == errorfs.OpFileWriteAt) {
			return syscall.ENOSPC
		}
		return nil
	})
	s = mustOpen(t, o)
	if h := s.Health(); h.State != Full {
		t.Fatalf("%v", h)
	}
}

// On a file system without a say about its room, and with the reserve switched
// off, nothing is kept.
func TestWithoutReserve(t *testing.T) {
	for _, reserve := range []int64{0, -1} {
		disk := newFaultDisk()
		if reserve < 0 {
			disk.usage = vfs.DiskUsage{AvailBytes: 1, TotalBytes: 20 << 20}
		}
		o := testOptions(disk)
		o.ReserveBytes = reserve
		s := mustOpen(t, o)
		s.health.look()
		appendN(t, mustLog(t, s, Config{}), 3, 1)
		if _, err := disk.Stat("data/" + ballastFile); err == nil || s.Health().State != Healthy {
			t.Errorf("reserve %d: %v", reserve, s.Health())
		}
	}
}

// A disk that hangs: the directory is slow while an fsync is outstanding, nobody
// is told that it is durable, and it is well again only some time after it has
// answered.
func TestSlowDisk(t *testing.T) {
	disk := newFaultDisk()
	o := testOptions(disk)
	c := o.Clock.(*clock.Manual)
	o.StallTimeout = 10 * time.Second
	heard := make(chan Health, 10)
	o.OnHealth = func(h Health) { heard <- h }
	s := mustOpen(t, o)
	l := mustLog(t, s, Config{})
	appendN(t, l, 1, 1)

	reached, release := make(chan struct{}, 1), make(chan struct{})
	disk.fail(func(op errorfs.Op) error {
		if fileKind(op.Path) == "segment" && op.Kind == errorfs.OpFileSyncData {
			select {
			case reached <- struct{}{}:
			default: // the test has seen one
			}
			<-release
		}
		return nil
	})
	flushed := make(chan error, 1)
	l.Flush(func(err error) { flushed <- err })
	<-reached
	appendN(t, l, 1, 1) // appends go on
	c.Advance(10 * time.Second)
	s.health.look()
	if h := s.Health(); h.State != Healthy {
		t.Fatalf("after the limit itself: %v", h)
	}
	c.Advance(time.Millisecond)
	s.health.look()
	if h := s.Health(); h.State != Slow || h.Err == nil || l.DurableEnd() != 0 || len(flushed) != 0 {
		t.Fatalf("%v, durable end %d, %d answers", h, l.DurableEnd(), len(flushed))
	}
	if h := <-heard; h.State != Slow {
		t.Fatalf("heard %v", h)
	}
	close(release)
	if err := <-flushed; err != nil {
		t.Fatal(err)
	}
	s.health.look()
	c.Advance(4 * time.Second)
	s.health.look()
	if h := s.Health(); h.State != Slow {
		t.Fatalf("too early: %v", h)
	}
	c.Advance(time.Second)
	s.health.look()
	if h := s.Health(); h.State != Healthy || h.Err != nil {
		t.Fatalf("%v", h)
	}
	if h := <-heard; h.State != Healthy {
		t.Fatalf("heard %v", h)
	}
}

// An append that hangs in its write is seen too.
func TestSlowWrite(t *testing.T) {
	disk := newFaultDisk()
	o := testOptions(disk)
	c := o.Clock.(*clock.Manual)
	s := mustOpen(t, o)
	l := mustLog(t, s, Config{})
	reached, release := make(chan struct{}, 1), make(chan struct{})
	disk.fail(func(op errorfs.Op) error {
		if fileKind(op.Path) == "segment" && op.Kind == errorfs.OpFileWriteAt {
			select {
			case reached <- struct{}{}:
			default: // the test has seen one
			}
			<-release
		}
		return nil
	})
	done := make(chan error, 1)
	b := testBatch{base: 0, n: 1}.build()
	go func() { _, err := l.Append(b); done <- err }()
	<-reached
	c.Advance(time.Minute)
	s.health.look()
	if h := s.Health(); h.State != Slow {
		t.Errorf("%v", h)
	}
	close(release)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// The hook hears of a failed fsync though no log is touched again, and of
// nothing after it: a directory that failed never comes back.
func TestFailedDirectoryIsTold(t *testing.T) {
	disk := newFaultDisk()
	o := testOptions(disk)
	heard := make(chan Health, 10)
	o.OnHealth = func(h Health) { heard <- h }
	s := mustOpen(t, o)
	l := mustLog(t, s, Config{})
	appendN(t, l, 1, 1)
	disk.fail(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileSyncData {
			return syscall.EIO
		}
		return nil
	})
	if err := flush(l); !errors.Is(err, ErrFailed) {
		t.Fatal(err)
	}
	if h := <-heard; h.State != Failed || !errors.Is(h.Err, syscall.EIO) {
		t.Errorf("heard %v", h)
	}
	disk.fail(nil)
	s.health.look()
	s.health.full(syscall.ENOSPC)
	s.health.full(nil)
	if h := s.Health(); h.State != Failed || len(heard) != 0 {
		t.Errorf("%v", h)
	}
}

// events keeps the texts of a store's log.
type events struct {
	mu   sync.Mutex
	said []string
}

func (e *events) Write(p []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.said = append(e.said, string(p))
	return len(p), nil
}

func (e *events) count(word string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := 0
	for _, s := range e.said {
		if strings.Contains(s, word) {
			n++
		}
	}
	return n
}

// A directory that is full and not full in turn is in the log once a minute, and
// the last word there is what it is.
func TestEventsAreNotRepeated(t *testing.T) {
	o := testOptions(vfs.NewMem())
	o.EnsureDefaults()
	c := o.Clock.(*clock.Manual)
	var e events
	o.Logger = slog.New(slog.NewTextHandler(&e, nil))
	s := &Store{o: o, disk: newDisk(o.FS)} // without its goroutines: the test is the watcher
	s.disk.stalls = newStalls(c.Now())
	s.health, s.space = newHealth(s), newSpace(s)
	for i := range 10 {
		s.health.full(fmt.Errorf("%d: %w", i, ErrFull))
		s.health.tell()
		s.health.full(nil)
		s.health.tell()
	}
	if full, well := e.count("is full"), e.count("healthy again"); full != 1 || well != 1 {
		t.Errorf("said full %d times, healthy %d times", full, well)
	}
	s.health.full(ErrFull)
	s.health.tell()
	c.Advance(repeatAfter)
	s.health.tell()
	if full, well := e.count("is full"), e.count("healthy again"); full != 2 || well != 1 {
		t.Errorf("a minute later: said full %d times, healthy %d times", full, well)
	}
	for range 10 {
		s.seldom("write failed", syscall.EIO)
	}
	c.Advance(repeatAfter)
	s.seldom("write failed", syscall.EIO)
	if n := e.count("write failed"); n != 2 {
		t.Errorf("an error was said %d times", n)
	}
}
