package partition

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

// acks=all is answered, and the batch becomes readable, when it is on disk and
// not before; acks=1 is answered at once. (D11)
func TestAcksAllWaitsForTheDisk(t *testing.T) {
	w := newWorld(t)
	p := w.apply(func(*metadata.Topic) {})
	release := w.disk.hold()
	defer release()

	all := produce(p, batch(3), -1)
	one := produce(p, batch(2), 1)
	if a := w.wait(one); a.err != nil || a.r.BaseOffset != 3 {
		t.Fatalf("acks=1: %+v", a)
	}
	select {
	case a := <-all:
		t.Fatalf("acks=all was answered before the fsync: %+v", a)
	default:
	}
	if hw := p.HighWatermark(); hw != 0 {
		t.Fatalf("high watermark %d before the fsync", hw)
	}
	if r, err := p.Read(ReadRequest{MaxBytes: 1 << 20, CurrentLeaderEpoch: -1, LastFetchedEpoch: -1}); err != nil || r.View.Len() != 0 {
		t.Fatalf("unsynced bytes were readable: %d, %v", r.View.Len(), err)
	}
	waiter := NewWaiter()
	p.AddWaiter(waiter)
	defer p.RemoveWaiter(waiter)
	release()
	if a := w.wait(all); a.err != nil || a.r.BaseOffset != 0 {
		t.Fatalf("acks=all: %+v", a)
	}
	<-waiter.C
	for p.HighWatermark() != 5 {
		<-waiter.C
	}
	r, err := p.Read(ReadRequest{MaxBytes: 1 << 20, CurrentLeaderEpoch: 3, LastFetchedEpoch: -1})
	if err != nil || r.View.Len() == 0 || r.HighWatermark != 5 {
		t.Fatalf("read %d bytes, high watermark %d, %v", r.View.Len(), r.HighWatermark, err)
	}
	r.View.Release()
}

// A failed fsync ends every waiting write with a storage error, nothing is
// acknowledged afterwards, and the partition says that it is offline.
func TestFailedFsync(t *testing.T) {
	w := newWorld(t)
	p := w.apply(func(*metadata.Topic) {})
	if a := w.wait(produce(p, batch(1), -1)); a.err != nil {
		t.Fatal(a.err)
	}
	w.disk.fail(errors.New("input/output error"))
	if a := w.wait(produce(p, batch(1), -1)); !errors.Is(a.err, ErrStorage) {
		t.Fatalf("after a failed fsync: %v", a.err)
	}
	w.disk.fail(nil)
	if a := w.wait(produce(p, batch(1), -1)); !errors.Is(a.err, ErrStorage) {
		t.Fatalf("a later success must not revive the log: %v", a.err)
	}
	if p.Info().Offline == nil {
		t.Fatal("partition does not say that it is offline")
	}
}

// durability=replicated answers without the disk.
func TestReplicatedDurability(t *testing.T) {
	w := newWorld(t)
	p := w.apply(func(t *metadata.Topic) { t.Configs = map[string]string{"durability": "replicated"} })
	release := w.disk.hold()
	defer release()
	if a := w.wait(produce(p, batch(1), -1)); a.err != nil {
		t.Fatal(a.err)
	}
	if hw := p.HighWatermark(); hw != 1 {
		t.Fatalf("high watermark %d", hw)
	}
}

// The life of a mirror topic as the log sees it: client writes are refused
// until STOPPED, mirrored bytes keep offsets and epochs, an old leader epoch
// and a stopped partition append nothing, a cut lowers the high watermark and
// the epochs. (L18, L19, S12)
func TestMirrorTopic(t *testing.T) {
	w := newWorld(t)
	p := w.apply(func(t *metadata.Topic) { t.MirrorName = "m" })
	mirrored := func(offset int64, epoch int32) []byte {
		b := record.Batch(batch(10))
		b.SetBaseOffset(offset)
		b.SetLeaderEpoch(epoch)
		return b
	}
	release := w.disk.hold() // mirrored data is readable without an fsync
	defer release()
	for i, epoch := range []int32{1, 1, 2} {
		if _, err := p.MirrorAppend(3, mirrored(int64(i)*10, epoch)); err != nil {
			t.Fatal(err)
		}
	}
	if p.HighWatermark() != 30 {
		t.Fatalf("high watermark %d", p.HighWatermark())
	}
	if a := w.wait(produce(p, batch(1), 1)); !errors.Is(a.err, ErrReadOnly) {
		t.Fatalf("client write while mirrored: %v", a.err)
	}
	if _, err := p.MirrorAppend(2, mirrored(30, 2)); !errors.Is(err, ErrFencedEpoch) {
		t.Fatalf("append in an old leader epoch: %v", err)
	}
	if e, err := p.EpochEnd(3, 1); err != nil || e.Epoch != 1 || e.End != 20 {
		t.Fatalf("end of epoch 1: %+v, %v", e, err)
	}
	r, err := p.Read(ReadRequest{Offset: 30, MaxBytes: 1, CurrentLeaderEpoch: -1, LastFetchedEpoch: 5})
	if err == nil && r.Diverging == nil {
		t.Fatal("a reader with an unknown history was not told")
	}
	release()
	if cut, err := p.Truncate(3, 15); err != nil || cut.Offsets != 20 || cut.Kept == "" {
		t.Fatalf("cut %+v, %v: a batch that holds the offset goes whole", cut, err)
	}
	if hw := p.HighWatermark(); hw != 10 || end(p) != 10 {
		t.Fatalf("after the cut: high watermark %d, end %d", hw, end(p))
	}
	if err := p.RestartEmpty(3, 500); err == nil || end(p) != 10 {
		t.Fatalf("a log with batches was restarted: %v, end %d", err, end(p))
	}
	if _, err := p.TruncateFully(3, 600); err != nil {
		t.Fatal(err)
	}
	if err := p.RestartEmpty(3, 500); err != nil { // the source's batch begins below its log start
		t.Fatal(err)
	}
	if _, err := p.MirrorAppend(3, mirrored(500, 4)); err != nil || p.HighWatermark() != 510 {
		t.Fatalf("after a restart at 500: %v, high watermark %d", err, p.HighWatermark())
	}

	w.apply(func(t *metadata.Topic) {
		t.MirrorName = "m.removed"
		t.Partitions[0].LeaderEpoch = 9
		t.Partitions[0].Mirror = &metadata.MirrorPartition{Mirror: "m", State: metadata.StateStopping}
	})
	done := make(chan error, 1)
	p.AppendInternal(9, record.PIDReset("cluster", 1_000_000), func(_ int64, err error) { done <- err })
	if err := <-done; err != nil {
		t.Fatalf("our own batch while STOPPING: %v", err)
	}
	if a := w.wait(produce(p, batch(1), 1)); !errors.Is(a.err, ErrReadOnly) {
		t.Fatalf("client write while STOPPING: %v", a.err)
	}
	w.apply(func(t *metadata.Topic) {
		t.Partitions[0].Mirror = &metadata.MirrorPartition{Mirror: "m", State: metadata.StateStopped}
	})
	if a := w.wait(produce(p, batch(1), -1)); a.err != nil || a.r.BaseOffset != 511 {
		t.Fatalf("client write after STOPPED: %+v", a)
	}
	if _, e := p.LogEnd(); e != 9 {
		t.Fatalf("epoch of our own batch is %d", e)
	}
	if _, err := p.MirrorAppend(9, mirrored(600, 9)); err == nil {
		t.Fatal("a stopped partition took mirrored bytes")
	}
}

// A restart brings back offsets, epochs and high watermark; logs whose topic is
// unknown stay, deletion of a topic removes its log and wakes the waiting.
func TestRestartAndDelete(t *testing.T) {
	w := newWorld(t)
	p := w.apply(func(*metadata.Topic) {})
	if a := w.wait(produce(p, batch(4), -1)); a.err != nil {
		t.Fatal(a.err)
	}
	w.close()
	w.open()
	p = w.apply(func(t *metadata.Topic) { t.Partitions[0].LeaderEpoch++ })
	if i := p.Info(); i.HighWatermark != 4 || i.LogEnd != 4 || i.LeaderEpoch != 4 {
		t.Fatalf("after a restart: %+v", i)
	}
	w.close()
	image := w.image
	w.image = nil
	w.open() // an image without the topic must not cost its log
	w.m.Apply(nil, metadata.NewImage())
	if n := len(w.store.Logs()); n != 1 {
		t.Fatalf("%d logs after a start with an empty image, want the one that is there", n)
	}
	w.m.Apply(nil, image)
	p = w.m.Get("orders", 0)
	waiter := NewWaiter()
	p.AddWaiter(waiter)
	e := image.Edit()
	e.DeleteTopic(topicID)
	w.m.Apply(image, e.Image(image.Revision+1))
	<-waiter.C
	if w.m.Get("orders", 0) != nil || len(w.store.Logs()) != 0 {
		t.Fatal("the deleted topic's log is still there")
	}
	if _, err := p.Read(ReadRequest{MaxBytes: 1, CurrentLeaderEpoch: -1, LastFetchedEpoch: -1}); !errors.Is(err, ErrUnknown) {
		t.Fatalf("read of a deleted partition: %v", err)
	}
	if err := p.Flush(context.Background()); err == nil {
		t.Fatal("flush of a deleted log succeeded")
	}
}

// A process killed with bytes in the page cache finds them in its log. They
// were never acknowledged, but they are there: recovery makes them durable, and
// the high watermark includes them without anybody having to write first.
func TestUnsyncedTailBecomesReadableAfterKill(t *testing.T) {
	mem := vfs.NewCrashableMem()
	w := &world{t: t, disk: &disk{}, fs: mem, clock: clock.NewManual(time.UnixMilli(1_000_000))}
	w.open()
	p := w.apply(func(*metadata.Topic) {})
	release := w.disk.hold()
	if a := w.wait(produce(p, batch(2), 1)); a.err != nil {
		t.Fatal(a.err)
	}
	// The kernel keeps what the process had written: all of it survives.
	after := &world{t: t, disk: &disk{}, clock: w.clock, image: w.image,
		fs: mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})}
	release()
	w.close()

	after.open()
	defer after.close()
	p = after.m.Get("orders", 0)
	waiter := NewWaiter()
	p.AddWaiter(waiter)
	for deadline := time.After(10 * time.Second); p.HighWatermark() != 2; {
		select {
		case <-waiter.C:
		case <-deadline:
			t.Fatalf("high watermark %d, log end %d", p.HighWatermark(), end(p))
		}
	}
}

// Clients that believe in another leader epoch are told (KIP-320), and offsets
// by time, start, end and isolation are right.
func TestEpochChecksAndListOffset(t *testing.T) {
	w := newWorld(t)
	p := w.apply(func(*metadata.Topic) {})
	if a := w.wait(produce(p, batch(4), -1)); a.err != nil {
		t.Fatal(a.err)
	}
	if _, err := p.Read(ReadRequest{CurrentLeaderEpoch: 2, LastFetchedEpoch: -1}); !errors.Is(err, ErrFencedEpoch) {
		t.Errorf("older epoch: %v", err)
	}
	if _, err := p.Read(ReadRequest{CurrentLeaderEpoch: 4, LastFetchedEpoch: -1}); !errors.Is(err, ErrUnknownEpoch) {
		t.Errorf("newer epoch: %v", err)
	}
	if _, err := p.Read(ReadRequest{Offset: 5, CurrentLeaderEpoch: -1, LastFetchedEpoch: -1}); !errors.Is(err, ErrOutOfRange) {
		t.Errorf("beyond the end: %v", err)
	}
	for _, c := range []struct{ ts, offset int64 }{{Latest, 4}, {Earliest, 0}, {MaxTimestamp, 0}, {1_000_000, 0}, {1_000_001, -1}, {0, 0}} {
		if o, _, _, err := p.ListOffset(c.ts, ReadCommitted, -1); err != nil || o != c.offset {
			t.Errorf("offset for %d: %d, %v, want %d", c.ts, o, err, c.offset)
		}
	}
	w.apply(func(t *metadata.Topic) { t.Partitions[0].Leader = 2 })
	if _, _, _, err := p.ListOffset(Latest, 0, -1); !errors.Is(err, ErrNotLeader) {
		t.Errorf("after losing leadership: %v", err)
	}
}

// A broker's own default takes effect while it runs, where the topic says nothing.
func TestTopicDefaultsChange(t *testing.T) {
	w := newWorld(t)
	p := w.apply(func(*metadata.Topic) {})
	tooLarge := func(want bool) {
		t.Helper()
		if err := w.wait(produce(p, batch(1), 1)).err; errors.Is(err, ErrTooLarge) != want || !want && err != nil {
			t.Fatal(err)
		}
	}
	tooLarge(false)
	w.m.SetTopicDefaults(map[string]string{"max.message.bytes": "10"})
	tooLarge(true)
	w.apply(func(t *metadata.Topic) { t.Configs = map[string]string{"max.message.bytes": "1000"} })
	tooLarge(false)
	w.apply(func(t *metadata.Topic) { t.Configs = nil })
	tooLarge(true)
	w.m.SetTopicDefaults(nil)
	tooLarge(false)
}
