package group

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/internal/record"
	"github.com/lockstep-kafka/lockstep/segment"
)

// broker is a broker's storage and its groups, over one disk.
type broker struct {
	t      *testing.T
	fs     vfs.FS
	clock  clock.Clock
	image  *metadata.Image
	clean  partition.CleanerOptions
	store  *segment.Store
	parts  *partition.Manager
	groups *Coordinator
}

func (b *broker) open() {
	b.t.Helper()
	var err error
	quiet := slog.New(slog.DiscardHandler)
	if b.store, err = segment.Open(segment.Options{Dir: "data", FS: b.fs, Clock: b.clock, Logger: quiet}); err != nil {
		b.t.Fatal(err)
	}
	b.parts = partition.NewManager(partition.Options{NodeID: 1, Stores: []*segment.Store{b.store}, Clock: b.clock, Logger: quiet, Cleaner: b.clean})
	ps := NewPartitionStore(b.parts, func() *metadata.Image { return b.image })
	b.groups, err = New(Options{
		NodeID: 1, Clock: b.clock, InitialRebalanceDelay: -1,
		Partitions: ps.Partitions, Append: ps.Append, Load: ps.Load,
		AppendOffsets: ps.AppendOffsets, AppendMarker: ps.AppendMarker,
	})
	if err != nil {
		b.t.Fatal(err)
	}
	if b.image != nil {
		b.follow(nil)
	}
}

func (b *broker) follow(prev *metadata.Image) {
	b.parts.Apply(prev, b.image)
	b.groups.Apply(prev, b.image)
	for _, s := range b.groups.led.All() {
		waitLoaded(s)
	}
}

func (b *broker) close() {
	b.groups.Close()
	b.parts.Close()
	b.store.Close()
}

// edit changes the image and lets partitions and groups follow, as the
// controller's watch does.
func (b *broker) edit(change func(*metadata.Editor)) {
	prev := b.image
	base := prev
	if base == nil {
		base = metadata.NewImage()
	}
	e := base.Edit()
	change(e)
	b.image = e.Image(base.Revision + 1)
	b.follow(prev)
}

func topicOf(id byte, name string, leader, epoch int32, partitions int) *metadata.Topic {
	t := &metadata.Topic{ID: metadata.TopicID{id}, Name: name, Configs: map[string]string{}}
	for i := range partitions {
		t.Partitions = append(t.Partitions, &metadata.Partition{
			Index: int32(i), Replicas: []int32{1, 2}, ISR: []int32{leader}, Leader: leader, LeaderEpoch: epoch,
		})
	}
	return t
}

func (b *broker) offsets(group string) string {
	b.t.Helper()
	all, err := b.groups.Committed(context.Background(), group)
	if err != nil {
		return err.Error()
	}
	s := ""
	for _, o := range all {
		s += fmt.Sprintf("%s-%d:%d ", o.Topic, o.Partition, o.Offset)
	}
	return s
}

// Groups live in real partitions: through restarts with many batches, a change
// of leadership there and back, and the deletion of a topic.
func TestPartitionStore(t *testing.T) {
	ctx := context.Background()
	b := &broker{t: t, fs: vfs.NewMem(), clock: clock.NewManual(epoch0)}
	b.open()
	defer func() { b.close() }()

	b.edit(func(e *metadata.Editor) { e.PutTopic(topicOf(2, "orders", 1, 0, 1)) })
	if _, err := b.groups.Commit(ctx, commit(1)); !errors.Is(err, ErrNotAvailable) {
		t.Fatalf("without __consumer_offsets: %v", err)
	}
	b.edit(func(e *metadata.Editor) { e.PutTopic(topicOf(1, TopicName, 1, 0, 3)) })

	put := func(group, topic string, offset int64) error {
		r := commit(offset)
		r.Group, r.Offsets[0].Topic = group, topic
		errs, err := b.groups.Commit(ctx, r)
		if err == nil {
			err = errs[0]
		}
		return err
	}
	for i := range int64(200) {
		for _, g := range []string{"a", "b", "c"} {
			if err := put(g, "orders", i); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := put("a", "invoices", 7); err != nil {
		t.Fatal(err)
	}
	const all, some = "invoices-0:7 orders-0:199 ", "orders-0:199 "
	if got := b.offsets("a"); got != all {
		t.Fatal(got)
	}
	b.close()
	b.open()
	if got := b.offsets("a"); got != all {
		t.Fatalf("after a restart: %s", got)
	}

	// Another broker leads: it is asked, and nothing is written here.
	b.edit(func(e *metadata.Editor) { e.PutTopic(topicOf(1, TopicName, 2, 1, 3)) })
	if err := put("a", "orders", 1); !errors.Is(err, ErrNotCoordinator) {
		t.Fatal(err)
	}
	b.edit(func(e *metadata.Editor) { e.PutTopic(topicOf(1, TopicName, 1, 2, 3)) })
	if got := b.offsets("a"); got != all {
		t.Fatalf("leader again: %s", got)
	}

	// An older leadership cannot write any more, whatever its shard believes.
	s := b.groups.led.All()[0]
	refused := make(chan error, 1)
	ps := NewPartitionStore(b.parts, func() *metadata.Image { return b.image })
	ps.Append(s.Partition, s.Epoch-1, offsetBatch(), func(err error) { refused <- err })
	if err := <-refused; !errors.Is(err, ErrNotCoordinator) {
		t.Fatal(err)
	}

	// A deleted topic takes what was committed in it along, for good.
	b.edit(func(e *metadata.Editor) { e.PutTopic(topicOf(3, "invoices", 1, 0, 1)) })
	b.edit(func(e *metadata.Editor) { e.DeleteTopic(metadata.TopicID{3}) })
	for b.offsets("a") == all { // the tombstone is on its way
	}
	if got := b.offsets("a"); got != some {
		t.Fatal(got)
	}
	b.close()
	b.open()
	if got := b.offsets("a"); got != some {
		t.Fatalf("after a restart: %s", got)
	}
}

// __consumer_offsets is compacted: it shrinks while groups commit, and after a
// restart every group is what it was, those that were deleted gone, also once
// their tombstones are.
func TestCompactedOffsets(t *testing.T) {
	ctx := context.Background()
	clk := clock.NewManual(epoch0)
	b := &broker{t: t, fs: vfs.NewMem(), clock: clk, clean: partition.CleanerOptions{Enabled: true, Backoff: time.Second}}
	b.open()
	defer func() { b.close() }()
	offsets := topicOf(1, TopicName, 1, 0, 1)
	offsets.Configs = map[string]string{
		"cleanup.policy": "compact", "segment.bytes": "4000", "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "1000",
	}
	b.edit(func(e *metadata.Editor) {
		e.PutTopic(offsets)
		e.PutTopic(topicOf(2, "orders", 1, 0, 1))
	})
	put := func(group string, offset int64) {
		t.Helper()
		r := commit(offset)
		r.Group, r.Offsets[0].Topic = group, "orders"
		if errs, err := b.groups.Commit(ctx, r); err != nil || errs[0] != nil {
			t.Fatal(err, errs)
		}
	}
	tombstones := func() (n int) {
		t.Helper()
		ps := NewPartitionStore(b.parts, func() *metadata.Image { return b.image })
		if err := ps.Load(ctx, 0, 0, func(b record.Batch) error {
			return segment.EachRecord(b, 1<<20, func(r record.Record) error {
				if r.Value == nil {
					n++
				}
				return nil
			})
		}); err != nil {
			t.Fatal(err)
		}
		return n
	}
	// compacted waits until the cleaner has brought the log below some size.
	log := func() *segment.Log { return b.parts.Get(TopicName, 0).Log() }
	compacted := func(below int64) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); log().Size() >= below; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%d bytes, want less than %d", log().Size(), below)
			}
			clk.Advance(time.Second)
		}
	}
	check := func(when string) {
		t.Helper()
		if a, g, k := b.offsets("a"), b.offsets("gone"), b.offsets("kept"); a != "orders-0:299 " || g != "" || k != "orders-0:1 " {
			t.Fatalf("%s: a %q, gone %q, kept %q", when, a, g, k)
		}
	}

	put("kept", 1)
	for i := range int64(300) {
		put("a", i)
		if i < 100 {
			put("gone", i)
		}
	}
	if err := b.groups.Delete(ctx, "gone"); err != nil {
		t.Fatal(err)
	}
	for range 40 { // so that the tombstones' segment is closed
		put("a", 299)
	}
	before := log().Size()
	compacted(before / 2)
	check("compacted")
	if tombstones() == 0 {
		t.Fatal("a deleted group left no tombstone")
	}
	b.close()
	b.open()
	check("after a restart")

	// A later round, the retention of tombstones being over, takes them.
	for deadline := time.Now().Add(20 * time.Second); tombstones() > 0; {
		if time.Now().After(deadline) {
			t.Fatal("tombstones stay")
		}
		clk.Advance(2 * time.Second)
		for range 20 {
			put("a", 299)
		}
	}
	check("without tombstones")
	b.close()
	b.open()
	check("without tombstones, after a restart")
}

// gate is a file system whose fsyncs wait while it is held.
type gate struct{ sync.RWMutex }

func (g *gate) MaybeError(op errorfs.Op) error {
	if op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData {
		g.RLock()
		defer g.RUnlock()
	}
	return nil
}

func (g *gate) String() string { return "gate" }

// What is in the log and not acknowledged yet may be so later: a replay waits
// for it instead of ending at the high watermark.
func TestLoadWaitsForTheHighWatermark(t *testing.T) {
	g := &gate{}
	b := &broker{t: t, fs: errorfs.Wrap(vfs.NewMem(), g), clock: clock.NewManual(epoch0)}
	b.open()
	defer func() { b.close() }()
	b.edit(func(e *metadata.Editor) { e.PutTopic(topicOf(1, TopicName, 1, 0, 1)) })
	ps := NewPartitionStore(b.parts, func() *metadata.Image { return b.image })
	acked := make(chan error, 4)
	ps.Append(0, 0, offsetBatch(), func(err error) { acked <- err })
	if err := <-acked; err != nil {
		t.Fatal(err)
	}
	g.Lock()
	release := sync.OnceFunc(g.Unlock)
	defer release()
	for range 3 {
		ps.Append(0, 0, offsetBatch(), func(err error) { acked <- err })
	}
	last, loaded := int64(-1), make(chan error, 1)
	seen := make(chan struct{}, 4)
	go func() {
		loaded <- ps.Load(t.Context(), 0, 0, func(b record.Batch) error { last = b.LastOffset(); seen <- struct{}{}; return nil })
	}()
	<-seen // what is acknowledged; the rest only after the disk has it
	select {
	case err := <-loaded:
		t.Fatalf("load ended at offset %d: %v", last, err)
	default:
	}
	release()
	if err := <-loaded; err != nil || last != 3 {
		t.Fatalf("loaded up to %d: %v", last, err)
	}
	for range 3 {
		if err := <-acked; err != nil {
			t.Fatal(err)
		}
	}
	// And it can be given up.
	g.Lock()
	again := sync.OnceFunc(g.Unlock)
	defer again()
	ps.Append(0, 0, offsetBatch(), func(err error) { acked <- err })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := ps.Load(ctx, 0, 0, func(record.Batch) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	again()
	<-acked
}

func offsetBatch() []byte {
	e := offsetEntry("g", TopicPartition{"t", 0}, &committed{offset: 1, at: epoch0})
	return record.Build(record.NoProducer(0), []record.Record{{Key: e.key, Value: e.value}})
}
