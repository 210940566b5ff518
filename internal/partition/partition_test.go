package partition

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/producer"
	"github.com/lockstep-kafka/lockstep/internal/record"
	"github.com/lockstep-kafka/lockstep/pipeline"
	"github.com/lockstep-kafka/lockstep/segment"
)

// disk is a file system whose fsyncs of log files wait or fail on demand.
type disk struct {
	mu   sync.Mutex
	gate chan struct{} // nil: open
	held chan struct{} // says that an fsync waits at the gate
	err  error
	make error // of making a file that a compaction writes
}

func (d *disk) hold() (release func()) {
	gate := make(chan struct{})
	d.mu.Lock()
	d.gate = gate
	d.mu.Unlock()
	return sync.OnceFunc(func() {
		d.mu.Lock()
		d.gate = nil
		d.mu.Unlock()
		close(gate)
	})
}

func (d *disk) fail(err error) {
	d.mu.Lock()
	d.err = err
	d.mu.Unlock()
}

func (d *disk) failCompaction(err error) {
	d.mu.Lock()
	d.make = err
	d.mu.Unlock()
}

func (d *disk) MaybeError(op errorfs.Op) error {
	if op.Kind == errorfs.OpCreate && strings.HasSuffix(op.Path, ".cleaned") {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.make
	}
	if op.Kind != errorfs.OpFileSync && op.Kind != errorfs.OpFileSyncData {
		return nil
	}
	if !isLogFile(op.Path) {
		return nil
	}
	d.mu.Lock()
	gate, err := d.gate, d.err
	d.mu.Unlock()
	if gate != nil {
		select {
		case d.held <- struct{}{}:
		default: // said already
		}
		<-gate
	}
	return err
}

func (d *disk) String() string { return "disk" }

// isLogFile says that a file is, or becomes, a segment.
func isLogFile(path string) bool {
	return strings.HasSuffix(path, ".log") || strings.HasSuffix(path, ".cleaned")
}

const self = 1

var topicID = metadata.TopicID{9: 1}

// world is one broker's partition manager over a disk in memory, and the image
// that it was last given.
type world struct {
	t     *testing.T
	disk  *disk
	fs    vfs.FS
	clock *clock.Manual
	store *segment.Store
	m     *Manager
	image *metadata.Image
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, disk: &disk{held: make(chan struct{}, 1)}, fs: vfs.NewMem(), clock: clock.NewManual(time.UnixMilli(1_000_000))}
	w.open()
	t.Cleanup(w.close)
	return w
}

func (w *world) open() {
	w.t.Helper()
	var err error
	w.store, err = segment.Open(segment.Options{
		Dir: "data", FS: errorfs.Wrap(w.fs, w.disk), Clock: w.clock, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.m = NewManager(Options{NodeID: self, Stores: []*segment.Store{w.store}, Clock: w.clock, Logger: slog.New(slog.DiscardHandler)})
	if w.image != nil {
		w.m.Apply(nil, w.image)
	}
}

func (w *world) close() {
	w.m.Close()
	w.store.Close()
}

// apply changes the topic and lets the manager follow.
func (w *world) apply(change func(t *metadata.Topic)) *Partition {
	w.t.Helper()
	prev := w.image
	base := prev
	if base == nil {
		base = metadata.NewImage()
	}
	topic := &metadata.Topic{
		ID: topicID, Name: "orders", Configs: map[string]string{},
		Partitions: []*metadata.Partition{{Replicas: []int32{self}, ISR: []int32{self}, Leader: self, LeaderEpoch: 3}},
	}
	if old := base.TopicByID(topicID); old != nil {
		copied, p := *old, *old.Partitions[0]
		topic, topic.Partitions = &copied, []*metadata.Partition{&p}
	}
	change(topic)
	e := base.Edit()
	e.PutTopic(topic)
	w.image = e.Image(base.Revision + 1)
	w.m.Apply(prev, w.image)
	p := w.m.Get("orders", 0)
	if p == nil || w.m.ByID(topicID, 0) != p {
		w.t.Fatal("partition is not found by name and by id")
	}
	return p
}

func batch(n int) []byte {
	recs := make([]record.Record, n)
	for i := range recs {
		recs[i] = record.Record{OffsetDelta: int32(i), Value: []byte("v")}
	}
	return record.Build(record.NoProducer(1_000_000), recs)
}

type answer struct {
	r   ProduceResult
	err error
}

func produce(p *Partition, b []byte, acks int16) chan answer {
	c := make(chan answer, 1)
	p.Produce(b, ProduceOptions{Acks: acks}, func(r ProduceResult, err error) { c <- answer{r, err} })
	return c
}

func (w *world) wait(c chan answer) answer {
	w.t.Helper()
	select {
	case a := <-c:
		return a
	case <-time.After(10 * time.Second):
		w.t.Fatal("no answer")
	}
	return answer{}
}

func end(p *Partition) int64 {
	e, _ := p.LogEnd()
	return e
}

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

// What a client may not send is refused whole, and nothing is appended.
func TestRefusals(t *testing.T) {
	w := newWorld(t)
	p := w.apply(func(t *metadata.Topic) {
		t.Configs = map[string]string{"max.message.bytes": "200", "message.timestamp.after.max.ms": "1000", "min.insync.replicas": "1"}
	})
	damaged := batch(1)
	damaged[len(damaged)-1] ^= 1
	late := record.Build(record.NoProducer(1_002_000), []record.Record{{Value: []byte("v")}})
	huge := record.Build(record.NoProducer(1<<62), []record.Record{{Value: []byte("v")}})
	for name, c := range map[string]struct {
		b    []byte
		want error
	}{
		"damaged": {damaged, nil}, "too large": {batch(30), ErrTooLarge}, "from the future": {late, ErrTimestamp},
		"absurd time": {huge, ErrTimestamp}, "marker": {record.AbortMarker(1, 0, 0, 1_000_000), nil}, "empty": {nil, nil},
	} {
		a := w.wait(produce(p, c.b, -1))
		if a.err == nil || c.want != nil && !errors.Is(a.err, c.want) {
			t.Errorf("%s: %v", name, a.err)
		}
	}
	w.apply(func(t *metadata.Topic) { t.Configs = map[string]string{"min.insync.replicas": "2"} })
	if a := w.wait(produce(p, batch(1), -1)); !errors.Is(a.err, ErrNotEnoughReplicas) {
		t.Errorf("below min.insync.replicas: %v", a.err)
	}
	if end(p) != 0 {
		t.Fatalf("log end %d after refusals", end(p))
	}
}

// An idempotent producer that repeats a batch gets the old offset, one that
// leaves a hole is refused.
func TestIdempotence(t *testing.T) {
	w := newWorld(t)
	p := w.apply(func(*metadata.Topic) {})
	send := func(seq int32) answer {
		h := record.NoProducer(1_000_000)
		h.ProducerID, h.ProducerEpoch, h.BaseSequence = 7, 0, seq
		return w.wait(produce(p, record.Build(h, []record.Record{{Value: []byte("v")}}), -1))
	}
	for seq := range int32(3) {
		if a := send(seq); a.err != nil || a.r.BaseOffset != int64(seq) {
			t.Fatalf("sequence %d: %+v", seq, a)
		}
	}
	if a := send(1); a.err != nil || a.r.BaseOffset != 1 {
		t.Fatalf("repeated sequence 1: %+v", a)
	}
	if a := send(9); !errors.Is(a.err, producer.ErrOutOfOrderSequence) {
		t.Fatalf("hole: %v", a.err)
	}
	if end(p) != 3 {
		t.Fatalf("log end %d", end(p))
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

// On a compacted topic a record without a key is refused, compressed or not,
// and on any other topic taken; a mirror takes what the source has.
func TestKeysOnACompactedTopic(t *testing.T) {
	w := newWorld(t)
	keyed := func(keys ...string) []byte {
		var recs []record.Record
		for i, k := range keys {
			r := record.Record{OffsetDelta: int32(i), Value: []byte("v")}
			if k != "" {
				r.Key = []byte(k)
			}
			recs = append(recs, r)
		}
		return record.Build(record.NoProducer(1_000_000), recs)
	}
	zipped := func(b []byte) []byte {
		var body bytes.Buffer
		z := gzip.NewWriter(&body)
		z.Write(record.Batch(b).RecordBytes())
		z.Close()
		out := append(slices.Clone(b[:record.HeaderSize]), body.Bytes()...)
		binary.BigEndian.PutUint32(out[8:], uint32(len(out)-12))
		out[22] |= byte(record.CodecGzip)
		binary.BigEndian.PutUint32(out[17:], crc32.Checksum(out[21:], crc32.MakeTable(crc32.Castagnoli)))
		return out
	}
	zeros := func(n int) []byte {
		return record.Build(record.NoProducer(1_000_000), []record.Record{{Key: []byte("k"), Value: make([]byte, n)}})
	}
	p := w.apply(func(t *metadata.Topic) { t.Configs = map[string]string{"cleanup.policy": "compact,delete"} })
	empty := record.Build(record.NoProducer(1_000_000), []record.Record{{Key: []byte{}, Value: []byte("v")}})
	for _, tc := range []struct {
		b    []byte
		want error
	}{
		{keyed("a", "b"), nil}, {keyed("a", ""), pipeline.ErrInvalidRecord}, {empty, nil},
		{zipped(keyed("a", "b")), nil}, {zipped(keyed("a", "")), pipeline.ErrInvalidRecord},
		{zipped(zeros(4 << 20)), nil}, {zipped(zeros(9 << 20)), pipeline.ErrInvalidRecord}, // 8 times max.message.bytes is between
	} {
		if a := w.wait(produce(p, tc.b, -1)); !errors.Is(a.err, tc.want) {
			t.Errorf("%.200x: %v, want %v", tc.b, a.err, tc.want)
		}
	}
	w.apply(func(t *metadata.Topic) { t.MirrorName = "m" })
	b := record.Batch(keyed("a", ""))
	b.SetBaseOffset(100)
	if _, err := p.MirrorAppend(3, b); err != nil {
		t.Errorf("mirrored: %v", err)
	}
	w.apply(func(t *metadata.Topic) { t.MirrorName, t.Configs = "", map[string]string{} })
	if a := w.wait(produce(p, keyed(""), -1)); a.err != nil {
		t.Errorf("not compacted: %v", a.err)
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

// compression.type other than producer compresses a client's batches anew, and
// nothing else: not those that have the codec, not those of a mirror. What its
// producer sends again is known again.
func TestCompressionType(t *testing.T) {
	w := newWorld(t)
	p := w.apply(func(t *metadata.Topic) {
		t.Configs = map[string]string{"compression.type": "zstd", "durability": "replicated"}
	})
	h := record.NoProducer(1_000_000)
	h.ProducerID, h.ProducerEpoch, h.BaseSequence = 9, 0, 0
	b := record.Build(h, []record.Record{{Value: bytes.Repeat([]byte("v"), 1000)}, {OffsetDelta: 1, Value: []byte("w")}})
	for range 2 {
		if a := w.wait(produce(p, bytes.Clone(b), 1)); a.err != nil || a.r.BaseOffset != 0 || end(p) != 2 {
			t.Fatal(a, end(p))
		}
	}
	codec := func(offset int64) record.Codec {
		t.Helper()
		r, err := p.Read(ReadRequest{Offset: offset, MaxBytes: 1 << 20, CurrentLeaderEpoch: -1, LastFetchedEpoch: -1})
		if err != nil {
			t.Fatal(err)
		}
		defer r.View.Release()
		raw := make([]byte, r.View.Len())
		if _, err := r.View.ReadAt(raw, 0); err != nil {
			t.Fatal(err)
		}
		got, _, err := record.Next(raw)
		if err != nil || got.VerifyCRC() != nil {
			t.Fatal(err)
		}
		return got.Codec()
	}
	if c := codec(0); c != record.CodecZstd {
		t.Error(c)
	}
	w.apply(func(t *metadata.Topic) {
		t.Configs = map[string]string{"compression.type": "producer", "durability": "replicated"}
	})
	if a := w.wait(produce(p, batch(1), 1)); a.err != nil || codec(2) != record.CodecNone {
		t.Error(a, codec(2))
	}
	// Uncompressed may grow beyond what a batch may have.
	w.apply(func(t *metadata.Topic) {
		t.Configs = map[string]string{"compression.type": "uncompressed", "durability": "replicated", "max.message.bytes": "500"}
	})
	small, _, release, err := segment.Recompress(record.Batch(b), segment.Compression{Codec: record.CodecGzip}, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	small.SetBaseOffset(0)
	if a := w.wait(produce(p, bytes.Clone(small), 1)); !errors.Is(a.err, ErrTooLarge) || len(small) > 500 {
		t.Error(a)
	}
}

// A client cannot say that the broker set the time, nor send records that are too
// old or too new, whichever of a batch's records is, and whatever its header says.
// Compressed batches are held to it where they are opened anyway: in compacted
// topics, and where compression.type is another codec.
func TestTimestampBounds(t *testing.T) {
	w := newWorld(t) // its clock stands at 1 000 000
	var p *Partition
	set := func(more ...string) {
		p = w.apply(func(t *metadata.Topic) {
			t.Configs = map[string]string{"message.timestamp.before.max.ms": "1000", "message.timestamp.after.max.ms": "500", "durability": "replicated"}
			for i := 0; i < len(more); i += 2 {
				t.Configs[more[i]] = more[i+1]
			}
		})
	}
	for _, tc := range []struct {
		base, middle, last int64
		ok                 bool
	}{
		{1_000_000, 1_000_000, 1_000_000, true}, {999_000, 999_000, 1_000_500, true}, {998_999, 1_000_000, 1_000_000, false},
		{1_000_000, 1_000_000, 1_000_501, false}, {-1, -1, -1, true}, {1_000_000, -1, 1_000_000, true},
		{1_000_000, 998_999, 1_000_000, false}, {1_000_000, 1_000_501, 1_000_000, false}, {1_000_000, -2, 1_000_000, false},
		{1_000_000, -1 << 62, 1_000_000, false}, {1_000_000, 1 << 62, 1_000_000, false},
	} {
		value := []byte("v")
		b := record.Build(record.NoProducer(tc.base), []record.Record{{Key: value}, {Key: value, OffsetDelta: 1, TimestampDelta: tc.middle - tc.base}, {Key: value, OffsetDelta: 2, TimestampDelta: tc.last - tc.base}})
		packed, _, release, err := segment.Recompress(record.Batch(b), segment.Compression{Codec: record.CodecGzip}, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		refused := func(what string, b []byte) {
			t.Helper()
			if a := w.wait(produce(p, slices.Clone(b), 1)); (a.err == nil) != tc.ok || !tc.ok && !errors.Is(a.err, ErrTimestamp) {
				t.Errorf("%s: %+v: %v", what, tc, a.err)
			}
		}
		set()
		refused("plain", b)
		lying := record.Batch(slices.Clone(b))
		if next, err := lying.AppendRebuilt(nil, record.Rebuild{Records: lying.RecordBytes(), Count: 3, MaxTimestamp: tc.base}); err != nil {
			t.Fatal(err)
		} else if tc.last == tc.base {
			refused("plain, with a wrong header", next)
		}
		set("cleanup.policy", "compact")
		refused("compacted", packed)
		set("compression.type", "zstd")
		refused("compressed anew", packed)
		release()
	}
	h := record.NoProducer(1_000_000)
	h.TimestampType = record.LogAppendTime
	if a := w.wait(produce(p, record.Build(h, []record.Record{{Value: []byte("a")}}), 1)); !errors.Is(a.err, ErrTimestamp) {
		t.Error(a.err)
	}
}

// An idle producer is forgotten after the time that the broker is set to, and not
// before; one with an open transaction stays.
func TestIdleProducersAreForgotten(t *testing.T) {
	w := newWorld(t)
	w.m.o.ProducerExpiration = time.Hour
	p := w.apply(func(*metadata.Topic) {})
	for pid, transactional := range []bool{false, true} {
		h := record.NoProducer(1_000_000)
		h.ProducerID, h.ProducerEpoch, h.BaseSequence, h.Transactional = int64(pid), 0, 0, transactional
		if a := w.wait(produce(p, record.Build(h, []record.Record{{Value: []byte("v")}}), -1)); a.err != nil {
			t.Fatal(a.err)
		}
	}
	w.clock.Advance(59 * time.Minute)
	for _, want := range []int{2, 1, 1} {
		w.m.retainAll()
		list, err := p.Producers()
		if err != nil || len(list) != want || list[len(list)-1].ProducerID != 1 {
			t.Fatalf("%+v %v, want %d with producer 1", list, err, want)
		}
		w.clock.Advance(2 * time.Minute)
	}
}
