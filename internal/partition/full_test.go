package partition

import (
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/record"
	"github.com/lockstep-kafka/lockstep/segment"
)

// roomyFS is a file system that tells how much room it has.
type roomyFS struct {
	vfs.FS
	free   atomic.Uint64
	broken atomic.Bool // fsyncs of the watermarks fail
}

func (f *roomyFS) MaybeError(op errorfs.Op) error {
	if f.broken.Load() && op.Kind == errorfs.OpFileSyncData && strings.Contains(op.Path, "watermarks") {
		return syscall.EIO
	}
	return nil
}

func (f *roomyFS) String() string { return "disk" }

func (f *roomyFS) GetDiskUsage(string) (vfs.DiskUsage, error) {
	return vfs.DiskUsage{TotalBytes: 1 << 20, AvailBytes: f.free.Load()}, nil
}

// fullWorld is a manager over one log directory whose disk a test fills.
func fullWorld(t *testing.T, change func(*metadata.Topic), options ...func(*segment.Options)) (*Partition, *roomyFS, *clock.Manual) {
	w := &world{t: t, disk: &disk{}, clock: clock.NewManual(time.UnixMilli(1_000_000))}
	fs := &roomyFS{}
	fs.FS = errorfs.Wrap(vfs.NewMem(), fs)
	fs.free.Store(1 << 19)
	var m atomic.Pointer[Manager]
	quiet := slog.New(slog.DiscardHandler)
	o := segment.Options{
		Dir: "data", FS: fs, Clock: w.clock, Logger: quiet, ReserveBytes: 100 << 10,
		OnHealth: func(h segment.Health) { m.Load().DirHealth("data", h) },
	}
	for _, option := range options {
		option(&o)
	}
	s, err := segment.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	w.store = s
	w.m = NewManager(Options{NodeID: self, Stores: []*segment.Store{s}, Clock: w.clock, Logger: quiet})
	m.Store(w.m)
	t.Cleanup(w.close)
	return w.apply(change), fs, w.clock
}

// waitState moves the clock until the store's watcher has seen the disk.
func waitState(t *testing.T, p *Partition, c *clock.Manual, full bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); p.Full() != full; {
		if time.Now().After(deadline) {
			t.Fatalf("full is still %v", !full)
		}
		c.Advance(time.Second)
	}
}

// A full disk refuses clients and mirrors with a storage error, and leaves the
// partition as it is: it can be read, our own batches are taken, and everything
// goes on with the first room.
func TestFullDiskLeavesThePartitionOnline(t *testing.T) {
	p, fs, c := fullWorld(t, func(*metadata.Topic) {})
	if a := <-produce(p, batch(2), -1); a.err != nil {
		t.Fatal(a.err)
	}
	fs.free.Store(60 << 10)
	waitState(t, p, c, true)
	for range 3 {
		if a := <-produce(p, batch(1), -1); !errors.Is(a.err, ErrStorage) || !errors.Is(a.err, segment.ErrFull) {
			t.Fatalf("produce: %v", a.err)
		}
	}
	own := make(chan error, 1)
	p.AppendInternal(3, batch(1), func(_ int64, err error) { own <- err })
	if err := <-own; err != nil {
		t.Errorf("a batch of our own: %v", err)
	}
	r, err := p.Read(ReadRequest{MaxBytes: 1 << 20, CurrentLeaderEpoch: -1, LastFetchedEpoch: -1})
	if err != nil || r.View.Len() == 0 || p.Info().Offline != nil {
		t.Fatalf("read %d bytes, %v; offline %v", r.View.Len(), err, p.Info().Offline)
	}
	r.View.Release()
	fs.free.Store(1 << 19)
	waitState(t, p, c, false)
	if a := <-produce(p, batch(1), -1); a.err != nil || a.r.BaseOffset != 3 {
		t.Fatalf("produce with room: %+v", a)
	}
}

func TestFullDiskAndAMirror(t *testing.T) {
	p, fs, c := fullWorld(t, func(t *metadata.Topic) { t.MirrorName = "m" })
	b := record.Batch(batch(1))
	b.SetLeaderEpoch(1)
	fs.free.Store(60 << 10)
	waitState(t, p, c, true)
	if _, err := p.MirrorAppend(3, b); !errors.Is(err, segment.ErrFull) || p.Info().Offline != nil {
		t.Fatalf("mirror append: %v, offline %v", err, p.Info().Offline)
	}
	fs.free.Store(1 << 19)
	waitState(t, p, c, false)
	if _, err := p.MirrorAppend(3, b); err != nil {
		t.Fatal(err)
	}
}

// Records that a mirror cuts are copied first. Without room for the copy the cut
// goes on, or, where the copy is required, nothing is cut and the partition stays
// online; with room it is.
func TestCutOnAFullDisk(t *testing.T) {
	for _, required := range []bool{false, true} {
		p, fs, c := fullWorld(t, func(t *metadata.Topic) { t.MirrorName = "m" }, func(o *segment.Options) { o.KeepRequired = required })
		for base := range int64(3) {
			b := record.Batch(batch(1))
			b.SetBaseOffset(base)
			b.SetLeaderEpoch(1)
			if _, err := p.MirrorAppend(3, b); err != nil {
				t.Fatal(err)
			}
		}
		fs.free.Store(60 << 10)
		waitState(t, p, c, true)
		for name, cut := range map[string]func() (Cut, error){
			"cut":      func() (Cut, error) { return p.Truncate(3, 2) },
			"cut full": func() (Cut, error) { return p.TruncateFully(3, 10) },
		} {
			if !required {
				break
			}
			if got, err := cut(); !errors.Is(err, segment.ErrFull) || got != (Cut{}) || p.Info().LogEnd != 3 || p.Info().Offline != nil {
				t.Errorf("%s: %+v, %v; log ends at %d, offline %v", name, got, err, p.Info().LogEnd, p.Info().Offline)
			}
		}
		if required {
			fs.free.Store(1 << 19)
			waitState(t, p, c, false)
		}
		if got, err := p.Truncate(3, 2); err != nil || got.Offsets != 1 || (got.Kept != "") != required || p.Info().LogEnd != 2 {
			t.Errorf("required %v: %+v, %v; log ends at %d", required, got, err, p.Info().LogEnd)
		}
	}
}

// A directory that becomes full makes retention look at once, and that may free
// what it needs.
func TestFullDiskCallsRetention(t *testing.T) {
	p, fs, c := fullWorld(t, func(t *metadata.Topic) {
		t.Configs = map[string]string{"segment.bytes": "1", "retention.bytes": "1"}
	})
	for range 3 {
		if a := <-produce(p, batch(1), -1); a.err != nil {
			t.Fatal(a.err)
		}
	}
	fs.free.Store(60 << 10)
	waitState(t, p, c, true) // by far not the five minutes of a round
	for deadline := time.Now().Add(10 * time.Second); p.Info().LogStart == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("nothing was deleted")
		}
	}
}

// A directory fails in the background, by the fsync of its watermarks. Its
// partitions go offline though nobody touches them, and a write that waits in one
// of them is answered.
func TestFailedDirectoryEndsWaitingWrites(t *testing.T) {
	p, fs, c := fullWorld(t, func(*metadata.Topic) {})
	if a := <-produce(p, batch(1), -1); a.err != nil { // something to note
		t.Fatal(a.err)
	}
	waits := make(chan error, 1)
	p.appendMu.Lock()
	p.acks.add(100, time.Time{}, func(err error) { waits <- err })
	p.appendMu.Unlock()
	fs.broken.Store(true)
	for deadline := time.Now().Add(10 * time.Second); len(waits) == 0; c.Advance(time.Second) {
		if time.Now().After(deadline) {
			t.Fatal("the write waits for ever")
		}
	}
	if err := <-waits; !errors.Is(err, ErrStorage) || !errors.Is(err, segment.ErrFailed) {
		t.Errorf("a write that waited: %v", err)
	}
	if p.Info().Offline == nil {
		t.Error("the partition is not offline")
	}
}
